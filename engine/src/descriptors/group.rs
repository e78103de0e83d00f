//! Divides the descriptors of a question by how they are checked.

use std::sync::Arc;

use sluice_config::descriptor::{Found, RuleAllowance, descriptor_key};
use sluice_config::policy::Consistency;
use sluice_config::prepared::{Domain, Identified, NotApplied};
use sluice_limiter::{Algorithm, Burst, Period, Rate, Requests};
use sluice_store::{KeyHash, LimitPlan, LimitSpec, PlannedCounter};
use smallvec::SmallVec;

use crate::descriptors::question::{Descriptor, Hits, OverrideRate, Question};
use crate::limit::active::ActivePolicy;
use crate::limit::index::LimitIndex;
use crate::limit::query::{Intent, NamedReservation};
use crate::limit::rates::strict;
use crate::limit::snapshot::Snapshot;
use crate::limit::token::{Entry, Token};
use crate::question::counters::{Asked, Groups, MAX_CHECKED};
use crate::question::{CurrentLimit, Outcome, Status};

/// Finds the rule of each descriptor, and divides them by how they are checked. Writes the status of those that nothing counts.
pub(super) fn group(
    question: &Question<'_>,
    snapshot: &Snapshot,
    (position, policy, domain): (u16, &ActivePolicy, &Domain),
    statuses: &mut [Status],
) -> Groups {
    let found: SmallVec<[Option<Found<'_>>; 2]> =
        question.descriptors.iter().map(|descriptor| domain.rules.find(&descriptor.pairs)).collect();
    let rule = |n: usize| {
        let brings_rate = question.descriptors[n].rate.is_some();
        found[n].as_ref().map(|found| found.rule).filter(|_| !brings_rate)
    };
    let replaced: SmallVec<[&str; 4]> =
        (0..found.len()).filter_map(rule).flat_map(|rule| &rule.replaces).map(|name| &**name).collect();
    let secret = snapshot.secret(policy);
    let mut groups = Groups::default();
    for (n, descriptor) in question.descriptors.iter().enumerate() {
        let allowance = rule(n).map(|rule| rule.allowance);
        if allowance == Some(RuleAllowance::Unlimited) {
            let is_quota = rule(n).is_some_and(|rule| rule.is_quota);
            statuses[n] = Status::without_limit(Outcome::Unlimited, u64::MAX, is_quota);
            continue;
        }
        if rule(n).is_some_and(|rule| !rule.name.is_empty() && replaced.contains(&&*rule.name)) {
            continue;
        }
        let is_observed = rule(n).is_some_and(|rule| rule.is_shadow);
        let nothing = match (descriptor.rate, allowance) {
            (Some(OverrideRate { requests: 0, unit }), _) => Some(unit),
            (None, Some(RuleAllowance::Nothing(unit))) => Some(unit),
            _ => None,
        };
        if let Some(unit) = nothing {
            let name = rule(n).map(|rule| rule.name.clone()).unwrap_or_default();
            let period_millis = unit.seconds() * 1000;
            let limit = CurrentLimit { requests: 0, period_millis, unit, multiplier: 1, name };
            let is_quota = rule(n).is_some_and(|rule| rule.is_quota);
            let outcome = match (is_observed, is_quota) {
                (true, _) => Outcome::Observed,
                (false, true) => Outcome::QuotaExceeded,
                (false, false) => Outcome::OverLimit,
            };
            groups.is_denied |= outcome == Outcome::OverLimit && !question.is_shadow;
            let until_next = unit.seconds() - snapshot.seconds() % unit.seconds();
            statuses[n] = Status::nothing(outcome, limit, Some(until_next), is_quota);
            continue;
        }
        let number = match (found[n].as_ref().map(|found| found.rule.allowance), descriptor.rate) {
            (Some(RuleAllowance::Limit(number)), _) => number,
            (_, Some(_)) => domain.override_limit,
            _ => continue,
        };
        let limit = LimitIndex { policy: position, limit: number, rates: 0 };
        let plan = match descriptor.rate {
            Some(rate) => override_plan(snapshot, limit, policy, rate),
            None => snapshot.rates(limit).plan.clone(),
        };
        let key = match &found[n] {
            Some(found) if descriptor.rate.is_none() => found.key(&descriptor.pairs, secret),
            // A counter that values share is not for a rate that one of them brings along.
            Some(_) | None => descriptor_key(&descriptor.pairs, secret),
        };
        let asked = Asked {
            name: rule(n).map(|rule| rule.name.clone()).unwrap_or_default(),
            is_quota: rule(n).is_some_and(|rule| rule.is_quota),
            is_observed,
            ..Asked::new(
                n,
                limit,
                counter(plan, key, cost(descriptor.hits)),
                intent(descriptor.hits),
                policy.store,
            )
        };
        groups.add(asked, question.is_shadow);
    }
    groups
}

impl Groups {
    /// Finds the limits of policies that count each descriptor, and divides them by how they are checked. Writes the status of those
    /// that a limit denies or admits without counting.
    pub(super) fn add_limits(
        &mut self,
        question: &Question<'_>,
        snapshot: &Snapshot,
        limits: &[(u16, u16)],
        statuses: &mut [Status],
    ) {
        for &(position, number) in limits {
            // The question is refused then.
            if self.len() > MAX_CHECKED {
                return;
            }
            let policy = &snapshot.policies[usize::from(position)];
            let prepared = &policy.prepared.limits[usize::from(number)];
            let base = LimitIndex { policy: position, limit: number, rates: 0 };
            let active = snapshot.limit(base);
            for (n, descriptor) in question.descriptors.iter().enumerate() {
                if !prepared.counts_descriptor(question.domain, &descriptor.pairs) {
                    continue;
                }
                policy.prepared.note_asked();
                let (key, rates) =
                    match prepared.identify_descriptor(&descriptor.pairs, snapshot.secret(policy)) {
                        Ok(Identified::Counted { key, rates, cost: _ }) => (key, rates),
                        Ok(Identified::Refused(refusal)) => {
                            statuses[n].merge(self.refuse(active, (base, refusal), question.is_shadow));
                            continue;
                        }
                        Err(NotApplied::Unlimited) => {
                            statuses[n].merge(Status::without_limit(Outcome::Unlimited, u64::MAX, false));
                            continue;
                        }
                        Err(_) => continue,
                    };
                let limit = LimitIndex { rates, ..base };
                let (intent, plan, cost) = if prepared.reserves() {
                    let secret = snapshot.secret(policy);
                    self.reserving(snapshot, limit, descriptor, |token| {
                        token.entry(secret, &prepared.scope, KeyHash(key))
                    })
                } else {
                    let plan = match (descriptor.rate, prepared.max_override()) {
                        (Some(rate), Some(max)) => {
                            let requests = rate.requests.min(u32::try_from(max).unwrap_or(u32::MAX));
                            override_plan(snapshot, limit, policy, OverrideRate { requests, ..rate })
                        }
                        _ => snapshot.rates(limit).plan.clone(),
                    };
                    (intent(descriptor.hits), plan, cost(descriptor.hits))
                };
                let counter = counter(plan, key, cost);
                let asked = Asked::of_policy(n, limit, (policy, active), counter, intent);
                self.add(asked, question.is_shadow);
            }
        }
    }
}

impl Groups {
    /// Returns what a descriptor does with a limit that reserves, the plan of the counter, and the cost. `entry_of` returns what
    /// an id says of this counter.
    fn reserving(
        &mut self,
        snapshot: &Snapshot,
        limit: LimitIndex,
        descriptor: &Descriptor<'_>,
        entry_of: impl Fn(&Token) -> Option<Entry>,
    ) -> (Intent, Arc<LimitPlan>, u64) {
        let active = snapshot.limit(limit);
        let plan = strict(&snapshot.rates(limit).plan);
        if let Some(id) = descriptor.reservation {
            let named = Token::parse(id).and_then(|token| {
                let entry = entry_of(&token)?;
                let (rates, overflowed) = (entry.rates, entry.overflowed());
                Some(NamedReservation { number: token.number, rates, overflowed })
            });
            return match named {
                // A gateway that is configured so that it drops the hits must not make the budget endless.
                Some(_) if descriptor.hits == Hits::Unset && active.concurrency.is_none() => {
                    self.without_hits += 1;
                    (Intent::Peek, plan, 0)
                }
                Some(named) => {
                    let used = match descriptor.hits {
                        Hits::GivenBack(_) => 0,
                        hits => cost(hits),
                    };
                    (Intent::Settle(Some(named)), plan, used)
                }
                // An id of another client, or of none, changes nothing.
                None => (Intent::Peek, plan, 0),
            };
        }
        let reserve = |own: u64, groups: &mut Self| {
            let (lasts, plan) = groups.reserve(snapshot, limit, None);
            (Intent::Reserve(lasts), plan, own)
        };
        match (&active.concurrency, descriptor.hits) {
            (Some(_), Hits::Unset | Hits::One | Hits::Used(_)) => reserve(cost(descriptor.hits), self),
            // Whose slot it is, only an id tells.
            (Some(_), Hits::None | Hits::GivenBack(_)) => (Intent::Peek, plan, 0),
            (None, Hits::Unset | Hits::One | Hits::None) => {
                let prepared = &snapshot.policy(limit).limits[usize::from(limit.limit)];
                reserve(prepared.charge.reserve(), self)
            }
            (None, Hits::Used(used)) => (Intent::Settle(None), plan, used),
            (None, Hits::GivenBack(hits)) => (Intent::GiveBack, plan, hits),
        }
    }
}

fn intent(hits: Hits) -> Intent {
    match hits {
        Hits::Unset | Hits::One | Hits::None => Intent::Consume,
        Hits::Used(_) => Intent::Charge,
        Hits::GivenBack(_) => Intent::GiveBack,
    }
}

fn counter(limit: Arc<LimitPlan>, key: u128, cost: u64) -> PlannedCounter {
    PlannedCounter { limit, key: KeyHash(key), cost }
}

fn cost(hits: Hits) -> u64 {
    match hits {
        Hits::Unset | Hits::One => 1,
        Hits::None => 0,
        Hits::Used(hits) | Hits::GivenBack(hits) => hits.min(sluice_limiter::MAX_COUNT),
    }
}

/// Returns the plan of a limit with the rate that a descriptor brings along. It counts in the same counters if
/// its period is that of the limit.
fn override_plan(
    snapshot: &Snapshot,
    limit: LimitIndex,
    policy: &ActivePolicy,
    rate_override: OverrideRate,
) -> Arc<LimitPlan> {
    let base = &snapshot.rates(limit).plan;
    let (Ok(requests), Ok(period)) = (
        Requests::new(u64::from(rate_override.requests)),
        Period::from_millis(rate_override.unit.seconds() * 1000),
    ) else {
        return base.clone();
    };
    let algorithm = match base.spec.rates.first().map_or(Algorithm::FIXED_WINDOW, |rate| rate.algorithm) {
        Algorithm::TokenBucket { burst } => {
            Algorithm::TokenBucket { burst: Burst::new(requests.get()).unwrap_or(burst) }
        }
        other => other,
    };
    // Not every algorithm can count so many: a log has an entry for each request.
    let (rate, mark) = match Rate::new(requests, period, algorithm) {
        Ok(rate) => (Ok(rate), ""),
        Err(_) => (Rate::new(requests, period, Algorithm::SLIDING_WINDOW), "~window"),
    };
    let Ok(rate) = rate else { return base.clone() };
    // A rate of another period or algorithm would begin with what the limit's own has counted.
    let scope = match base.spec.rates.first() {
        Some(own) if own.period == period && mark.is_empty() => base.spec.scope.clone(),
        _ => format!("{}~{}{mark}", base.spec.scope, rate_override.unit.as_str()),
    };
    // The others stay, such as the block of the clients that are denied too often.
    let rates = std::iter::once(rate).chain(base.spec.rates.iter().skip(1).copied()).collect();
    let spec = Arc::new(LimitSpec::new(scope, rates).with_max_keys(base.spec.max_keys));
    let on_failure = policy.prepared.on_store_failure;
    Arc::new(LimitPlan::new(spec, Consistency::Strict, on_failure, true, policy.replicas.clone()))
}
