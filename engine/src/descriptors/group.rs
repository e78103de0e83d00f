//! Divides the descriptors of a question by how they are checked.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use sluice_config::descriptor::{Found, RateUnit, RuleAllowance, descriptor_key};
use sluice_config::policy::Consistency;
use sluice_config::prepared::{Domain, Identified, NotApplied};
use sluice_limiter::{Algorithm, Burst, Period, Rate, Requests};
use sluice_store::{KeyHash, LimitPlan, LimitSpec, PlannedCounter};
use smallvec::SmallVec;

use crate::descriptors::question::{CurrentLimit, Hits, Outcome, OverrideRate, Question, Status};
use crate::limit::active::{ActivePolicy, Effect};
use crate::limit::index::LimitIndex;
use crate::limit::snapshot::Snapshot;

/// Most counters of a question: descriptors times the limits that count each.
pub(super) const MAX_CHECKED: usize = 1024;

/// A counter that is checked.
#[derive(Debug)]
pub(super) struct Checked {
    /// Positions of the descriptors that it is for.
    pub(super) positions: SmallVec<[usize; 1]>,
    pub(super) limit: LimitIndex,
    pub(super) counter: PlannedCounter,
    /// Name of the rule.
    pub(super) name: Arc<str>,
    pub(super) is_quota: bool,
    /// Whether the rule is in Shadow.
    pub(super) is_observed: bool,
    pub(super) gives_back: bool,
    /// Whether its hits were used already.
    pub(super) is_used: bool,
    /// Whether a policy has the limit, and not a domain of ratelimit's configuration.
    pub(super) is_of_policy: bool,
    /// Position of the store that has the counter.
    pub(super) store: usize,
    /// A check has each counter once. A counter that has two numbers in a question, because a descriptor brings one along, is
    /// checked again after all others.
    pub(super) layer: usize,
}

impl Checked {
    /// Creates the counter of one descriptor, which is enforced and no quota.
    fn new(
        (position, hits): (usize, Hits),
        limit: LimitIndex,
        (plan, key): (Arc<LimitPlan>, KeyHash),
        store: usize,
    ) -> Self {
        Self {
            positions: SmallVec::from_slice(&[position]),
            limit,
            counter: PlannedCounter { limit: plan, key, cost: cost(hits) },
            name: Arc::default(),
            is_quota: false,
            is_observed: false,
            gives_back: matches!(hits, Hits::GivenBack(_)),
            is_used: matches!(hits, Hits::Used(_)),
            is_of_policy: false,
            store,
            layer: 0,
        }
    }
}

/// The descriptors of a question by how they are checked.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// Checked together, in the order of their layers and stores.
    pub(super) asked: SmallVec<[Checked; 2]>,
    /// Each checked alone: they deny nothing.
    pub(super) observed: Vec<Checked>,
    pub(super) used: Vec<Checked>,
    pub(super) given_back: Vec<Checked>,
    /// A rule admits nothing, so what is asked for is only looked at.
    pub(super) is_denied: bool,
}

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
            let limit = Some(CurrentLimit { requests: 0, unit, multiplier: 1, name });
            let is_quota = rule(n).is_some_and(|rule| rule.is_quota);
            let outcome = match (is_observed, is_quota) {
                (true, _) => Outcome::Observed,
                (false, true) => Outcome::QuotaExceeded,
                (false, false) => Outcome::OverLimit,
            };
            groups.is_denied |= outcome == Outcome::OverLimit && !question.is_shadow;
            let (reset_seconds, headers) = (until_next(unit), Vec::new());
            statuses[n] = Status { outcome, limit, remaining: 0, reset_seconds, is_quota, headers };
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
        let checked = Checked {
            name: rule(n).map(|rule| rule.name.clone()).unwrap_or_default(),
            is_quota: rule(n).is_some_and(|rule| rule.is_quota),
            is_observed,
            ..Checked::new((n, descriptor.hits), limit, (plan, KeyHash(key)), policy.store)
        };
        groups.add(descriptor.hits, checked, question.is_shadow);
    }
    groups
}

impl Groups {
    /// Adds a counter to those that are checked as it is.
    fn add(&mut self, hits: Hits, checked: Checked, is_shadow: bool) {
        match hits {
            Hits::Used(_) => self.used.push(checked),
            Hits::GivenBack(_) => self.given_back.push(checked),
            Hits::One | Hits::None if checked.is_quota || checked.is_observed || is_shadow => {
                self.observed.push(checked);
            }
            Hits::One | Hits::None => add(&mut self.asked, checked),
        }
    }

    /// Returns the number of counters.
    pub(super) fn len(&self) -> usize {
        self.asked.len() + self.observed.len() + self.used.len() + self.given_back.len()
    }

    /// Puts those that are checked together into their order.
    pub(super) fn sorted(mut self) -> Self {
        self.asked.sort_by_key(|checked| (checked.layer, checked.store));
        self
    }

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
            let is_observed = matches!(active.effect, Effect::Observe);
            for (n, descriptor) in question.descriptors.iter().enumerate() {
                if !prepared.counts_descriptor(question.domain, &descriptor.pairs) {
                    continue;
                }
                policy.prepared.note_asked();
                let (key, rates) = match prepared
                    .identify_descriptor(&descriptor.pairs, snapshot.secret(policy))
                {
                    Ok(Identified::Counted { key, rates, cost: _ }) => (key, rates),
                    Ok(Identified::Refused(_)) => {
                        let outcome = if is_observed { Outcome::Observed } else { Outcome::OverLimit };
                        self.is_denied |= !is_observed && !question.is_shadow;
                        let (unit, multiplier) =
                            active.base().plan.spec.rates.first().map_or((RateUnit::Second, 1), RateUnit::of);
                        let limit =
                            Some(CurrentLimit { requests: 0, unit, multiplier, name: active.name.clone() });
                        let reset_seconds = unit.seconds().saturating_mul(multiplier.into());
                        let headers = Vec::new();
                        statuses[n].merge(Status {
                            outcome,
                            limit,
                            remaining: 0,
                            reset_seconds,
                            is_quota: false,
                            headers,
                        });
                        continue;
                    }
                    Err(NotApplied::Unlimited) => {
                        statuses[n].merge(Status::without_limit(Outcome::Unlimited, u64::MAX, false));
                        continue;
                    }
                    Err(_) => continue,
                };
                let limit = LimitIndex { rates, ..base };
                let plan = match (descriptor.rate, prepared.max_override()) {
                    (Some(rate), Some(max)) => {
                        let requests = rate.requests.min(u32::try_from(max).unwrap_or(u32::MAX));
                        override_plan(snapshot, limit, policy, OverrideRate { requests, ..rate })
                    }
                    _ => snapshot.rates(limit).plan.clone(),
                };
                let checked = Checked {
                    name: active.name.clone(),
                    is_observed,
                    is_of_policy: true,
                    ..Checked::new((n, descriptor.hits), limit, (plan, KeyHash(key)), policy.store)
                };
                self.add(descriptor.hits, checked, question.is_shadow);
            }
        }
    }
}

fn cost(hits: Hits) -> u64 {
    match hits {
        Hits::One => 1,
        Hits::None => 0,
        Hits::Used(hits) | Hits::GivenBack(hits) => hits.min(sluice_limiter::MAX_COUNT),
    }
}

/// Returns the time until a unit of time begins anew, in seconds.
fn until_next(unit: RateUnit) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    unit.seconds() - now % unit.seconds()
}

/// Adds a descriptor to those that are checked together.
fn add(asked: &mut SmallVec<[Checked; 2]>, mut checked: Checked) {
    let (key, spec) = (checked.counter.key, checked.counter.limit.spec.clone());
    for other in asked.iter_mut().filter(|other| other.counter.key == key && other.store == checked.store) {
        let others = &other.counter.limit.spec;
        if *others == spec {
            other.counter.cost += checked.counter.cost;
            other.positions.extend(checked.positions);
            return;
        }
        if others.scope == spec.scope {
            checked.layer = checked.layer.max(other.layer + 1);
        }
    }
    asked.push(checked);
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
