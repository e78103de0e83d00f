//! Checks of a model: with all rules on, and without each of them.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, Expectation, HasDiscoveries, Model};

use crate::rules::{Rule, Rules};

/// The most states that are generated, those that are met again included: a frontier of more may not fit into memory.
const MOST_STATES: usize = 60_000_000;

/// A protocol whose rules can be turned off.
pub trait Protocol:
    Model<State: Hash + Clone + PartialEq + Debug + Send + Sync, Action: Clone + PartialEq + Debug>
    + Clone
    + Send
    + Sync
    + 'static
{
    /// Its rules.
    type Rule: Rule;

    /// Returns the protocol with these rules, and no others.
    #[must_use]
    fn with(&self, rules: Rules<Self::Rule>) -> Self;
}

/// Checks that the protocol with all of its rules never violates a property in any reachable state, and that each
/// `sometimes` property has an example.
///
/// # Panics
/// A property is violated, or never has an example.
pub fn holds<P: Protocol>(protocol: &P) {
    let checker = protocol.with(Rules::all()).checker().target_state_count(MOST_STATES).spawn_bfs().join();
    assert!(checker.state_count() < MOST_STATES, "the bounds are too large for the memory");
    checker.assert_properties();
    let expects = |one| checker.model().properties().iter().any(|property| property.expectation == one);
    assert!(expects(Expectation::Always) && expects(Expectation::Sometimes));
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    println!("{}: {states} states, {depth} steps", std::any::type_name::<P>());
}

/// Checks that the protocol without any one of its rules violates the property that the rule keeps, within the bounds that stand with
/// the rule.
///
/// # Panics
/// A rule is not needed, or missing.
pub fn needs_each_rule<P: Protocol>(cases: &[(P, &'static [P::Rule])]) {
    let of_case = |(_, rules): &(P, &'static [P::Rule])| rules.iter().map(|rule| rule.position());
    let named: BTreeSet<usize> = cases.iter().flat_map(of_case).collect();
    assert_eq!(named.len(), P::Rule::ALL.len(), "each rule has its bounds");
    for (protocol, rules) in cases {
        rules.iter().for_each(|rule| needs(protocol, *rule));
    }
}

/// Checks that the protocol without a rule violates the property that the rule keeps.
fn needs<P: Protocol>(protocol: &P, rule: P::Rule) {
    let model = protocol.with(Rules::all().without(rule));
    let wanted = HasDiscoveries::AnyOf(BTreeSet::from([rule.keeps()]));
    let checker = model.checker().finish_when(wanted).target_state_count(MOST_STATES).spawn_bfs().join();
    let states = checker.unique_state_count();
    let Some(path) = checker.discovery(rule.keeps()) else {
        panic!("without {} nothing violates '{}' in {states} states", rule.id(), rule.keeps());
    };
    println!("without {}: '{}' is violated after {states} states by", rule.id(), rule.keeps());
    path.into_actions().iter().for_each(|action| println!("    {action:?}"));
}
