//! The page `/explain/descriptors`: which rules and limits the descriptors of a gateway's question would meet. Nothing is counted.

use std::collections::BTreeSet;

use sluice_config::PreparedLimit;
use sluice_config::client_pages::{DescriptorQuestion, ExplainedLimit, Explanation, LimitResult};
use sluice_config::descriptor::{Pair, Rule, RuleAllowance, describe};
use sluice_config::prepared::{Identified, Refusal};
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
    let mut limits = Vec::new();
    let described = snapshot.described(name.as_bytes());
    for (position, number) in described.into_iter().flatten().copied() {
        explain_limit(snapshot, question, position, number, &mut limits).await;
    }
    let Some((position, policy, domain)) = snapshot.domain(name.as_bytes()) else {
        if described.is_some() {
            return Ok(Explanation { refused: None, limits });
        }
        return Err(format!(
            "there are no rules and no limits for the domain {name:?}, so requests pass: {}",
            known(snapshot)
        ));
    };
    let secret = snapshot.secret(policy);
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
            needs_exchange: false,
            policy: policy.prepared.qualified_name(),
            limit: limit.to_owned(),
            effect: effect.to_owned(),
            result,
        });
    }
    Ok(Explanation { refused: None, limits })
}

/// Explains what a limit of a policy does about descriptors.
async fn explain_limit(
    snapshot: &Snapshot,
    question: &DescriptorQuestion,
    position: u16,
    number: u16,
    limits: &mut Vec<ExplainedLimit>,
) {
    let policy = &snapshot.policies[usize::from(position)];
    let limit = &policy.prepared.limits[usize::from(number)];
    for descriptor in &question.descriptors {
        let pairs =
            descriptor.iter().map(|(key, value)| Pair { key: key.as_bytes(), value: value.as_bytes() });
        let pairs: SmallVec<[Pair<'_>; 4]> = pairs.collect();
        let words = describe(&pairs, |_| true);
        let result = if !limit.counts_descriptor(question.domain.as_bytes(), &pairs) {
            LimitResult::DoesNotApply { reason: format!("no entry of matches is for {words}") }
        } else {
            match limit.identify_descriptor(&pairs, snapshot.secret(policy)) {
                Ok(Identified::Counted { key, rates, cost }) => {
                    let index = LimitIndex { policy: position, limit: number, rates };
                    let key = KeyHash(key);
                    let state = counter_state::read(snapshot, index, key).await;
                    let (key, exception) = (key.to_string(), limit.exception(rates));
                    LimitResult::Counts { key, client: words, exception, cost, state }
                }
                Ok(Identified::Refused(Refusal::KeyMissing)) => LimitResult::Denies {
                    reason: format!("{words} lacks a part of the key, and onMissing is Deny"),
                },
                Ok(Identified::Refused(Refusal::Tier)) => {
                    LimitResult::Denies { reason: format!("the plan of {words} admits nothing") }
                }
                Err(reason) => LimitResult::DoesNotApply { reason: reason.to_string() },
            }
        };
        limits.push(ExplainedLimit {
            needs_exchange: false,
            policy: policy.prepared.qualified_name(),
            limit: limit.name.clone(),
            effect: limit.effect_name().to_owned(),
            result,
        });
    }
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
    let policies = || snapshot.policies.iter().map(|policy| &policy.prepared);
    let of_files = policies().filter_map(|policy| Some(policy.domain.as_ref()?.name.as_str()));
    let of_limits = policies().flat_map(|policy| &policy.limits).flat_map(PreparedLimit::domains);
    let names: BTreeSet<_> = of_files.chain(of_limits).collect();
    let count = names.len();
    let names: Vec<_> = names.into_iter().take(MAX_NAMED).collect();
    match count {
        0 => "there are none for any domain".to_owned(),
        count if count > MAX_NAMED => format!("{count} domains have rules, such as {}", names.join(", ")),
        _ => format!("the domains with rules are {}", names.join(", ")),
    }
}
