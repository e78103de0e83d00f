//! The page `/explain/descriptors`: which rules the descriptors of a gateway's question would meet. Nothing is counted.

use sluice_config::client_pages::{DescriptorQuestion, ExplainedLimit, Explanation, LimitResult};
use sluice_config::descriptor::{Pair, Rule, RuleAllowance, describe};
use sluice_store::KeyHash;
use smallvec::SmallVec;

use super::counter_state;
use crate::limit::index::LimitIndex;
use crate::limit::snapshot::Snapshot;

/// Most descriptors of a question.
const MAX_DESCRIPTORS: usize = 64;
/// Most domains that an error names.
const MAX_NAMED: usize = 10;

/// Explains what the rules of a snapshot do about descriptors.
pub(super) async fn explain(
    snapshot: &Snapshot,
    question: &DescriptorQuestion,
) -> Result<Explanation, String> {
    let DescriptorQuestion { domain: name, descriptors } = question;
    if descriptors.len() > MAX_DESCRIPTORS {
        return Err(format!("at most {MAX_DESCRIPTORS} descriptors can be explained at once"));
    }
    let Some((position, policy, domain)) = snapshot.domain(name.as_bytes()) else {
        return Err(format!(
            "there are no rules for the domain {name:?}, so requests pass: {}",
            known(snapshot)
        ));
    };
    let secret = snapshot.secret(policy);
    let mut limits = Vec::new();
    for descriptor in descriptors {
        let pairs =
            descriptor.iter().map(|(key, value)| Pair { key: key.as_bytes(), value: value.as_bytes() });
        let pairs: SmallVec<[Pair<'_>; 4]> = pairs.collect();
        let words = describe(&pairs, |_| true);
        let found = domain.rules.find(&pairs);
        let effect = found.as_ref().map_or("Reject", |found| effect(found.rule));
        let (limit, result) = match found.as_ref().map(|found| (found, found.rule.allowance)) {
            None => {
                let reason = format!("no rule of the domain is for {words}");
                ("-", LimitResult::DoesNotApply { reason })
            }
            Some((_, RuleAllowance::Unlimited)) => {
                let reason = format!("the rule for {words} is unlimited");
                ("-", LimitResult::DoesNotApply { reason })
            }
            Some((_, RuleAllowance::Nothing(_))) => {
                let reason = format!("the rule for {words} admits no request");
                ("-", LimitResult::Denies { reason })
            }
            Some((found, RuleAllowance::Limit(number))) => {
                let index = LimitIndex { policy: position, limit: number, rates: 0 };
                let key = KeyHash(found.key(&pairs, secret));
                let state = counter_state::read(snapshot, index, key).await;
                let (key, client) = (key.to_string(), words);
                let counts = LimitResult::Counts { key, client, exception: None, cost: 1, state };
                (&*policy.prepared.limits[usize::from(number)].name, counts)
            }
        };
        limits.push(ExplainedLimit {
            policy: policy.prepared.qualified_name(),
            limit: limit.to_owned(),
            effect: effect.to_owned(),
            result,
        });
    }
    Ok(Explanation { refused: None, limits })
}

/// Names the effect of a rule on what it has no room for.
fn effect(rule: &Rule) -> &'static str {
    match (rule.is_shadow, rule.is_quota) {
        (true, _) => "Shadow",
        // The metadata of the answer marks the request.
        (false, true) => "Mark",
        (false, false) => "Reject",
    }
}

/// Names the domains that there are.
fn known(snapshot: &Snapshot) -> String {
    let mut names: Vec<_> =
        snapshot.policies.iter().filter_map(|policy| policy.prepared.domain.as_ref()).collect();
    let count = names.len();
    names.truncate(MAX_NAMED);
    let names: Vec<_> = names.iter().map(|domain| &*domain.name).collect();
    match count {
        0 => "there are none for any domain".to_owned(),
        count if count > MAX_NAMED => format!("{count} domains have rules, such as {}", names.join(", ")),
        _ => format!("the domains with rules are {}", names.join(", ")),
    }
}
