//! The way of a gateway's question about descriptors: a rule for each, one check for all of them, and a status for each.
//!
//! - A descriptor that costs one hit, as each does without a word about hits, is asked for: all of a question are charged, or none.
//! - More hits report what was used already. They are charged whether or not there is room: a budget would never end otherwise.
//! - No hits look at a counter, which denies while nothing is left. Negative hits give back.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures::future::{join, join_all};
use http::HeaderMap;
use sluice_config::descriptor::{Found, Pair, RateUnit, RuleAllowance, describe, descriptor_key};
use sluice_config::policy::{Consistency, Mode};
use sluice_config::prepared::Domain;
use sluice_limiter::{Algorithm, Burst, Decision, Rate, Requests};
use sluice_store::{
    CheckOutcome, KeyHash, LimitPlan, LimitSpec, MAX_COUNTERS, PlannedCounter, Reservation, Source,
    StoreError,
};
use smallvec::SmallVec;

use crate::answer::Refused;
use crate::engine::Engine;
use crate::limit::active::ActivePolicy;
use crate::limit::correction::Correction;
use crate::limit::denial_log::DeniedRequest;
use crate::limit::index::LimitIndex;
use crate::limit::snapshot::Snapshot;
use crate::stores::limiter_handle::LimiterHandle;
use crate::traceparent::trace_of;

/// Keys of pairs whose values operators may read: they are no secrets of clients.
const PUBLIC_KEYS: [&[u8]; 4] =
    [b"remote_address", b"masked_remote_address", b"generic_key", b"destination_cluster"];

/// A question about the descriptors of one request.
#[derive(Debug)]
pub struct Question<'a> {
    /// The domain.
    pub domain: &'a [u8],
    /// The descriptors.
    pub descriptors: SmallVec<[Descriptor<'a>; 2]>,
    /// The longest time that a call to the store may take.
    pub budget: Duration,
    /// Whether nothing is denied, so that each limit is counted alone.
    pub is_shadow: bool,
    /// Headers of the call, which may name its trace.
    pub headers: &'a HeaderMap,
}

/// A descriptor of a question.
#[derive(Debug)]
pub struct Descriptor<'a> {
    /// The pairs, in their order.
    pub pairs: SmallVec<[Pair<'a>; 4]>,
    /// What it costs.
    pub hits: Hits,
    /// A rate in place of that of the rule.
    pub rate: Option<OverrideRate>,
}

/// A rate that a descriptor brings along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverrideRate {
    /// Number of requests in each unit; with 0, none is admitted.
    pub requests: u32,
    /// The unit.
    pub unit: RateUnit,
}

/// What a descriptor costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hits {
    /// One hit, which is charged if there is room.
    One,
    /// These hits were used: they are charged whether or not there is room.
    Used(u64),
    /// None. The counter is only looked at.
    None,
    /// These hits are given back.
    GivenBack(u64),
}

/// The status of a descriptor.
#[derive(Debug, Clone)]
pub struct Status {
    /// What its rule says.
    pub outcome: Outcome,
    /// The limit that counts it, if one does.
    pub limit: Option<CurrentLimit>,
    /// Hits that remain.
    pub remaining: u64,
    /// Time until the limit has more, in seconds, rounded up.
    pub reset_seconds: u64,
}

/// What a rule says about a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// No rule is for it.
    Unmatched,
    /// Its rule admits everything.
    Unlimited,
    /// The limit has room.
    WithinLimit,
    /// The limit has no room.
    OverLimit,
    /// The limit has no room, and is in Shadow.
    Observed,
    /// The limit has no room, and only the metadata of the answer tells it.
    QuotaExceeded,
}

/// A limit, as an answer names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CurrentLimit {
    /// Number of requests in each period.
    pub requests: u64,
    /// The period is this unit ...
    pub unit: RateUnit,
    /// ... so many times.
    pub multiplier: u32,
    /// Name of the rule; empty without one.
    pub name: Arc<str>,
}

/// The answer to a question.
#[derive(Debug)]
pub struct Answer {
    /// A status for each descriptor, in their order.
    pub statuses: Vec<Status>,
    /// Whether the domain has rules.
    pub is_known_domain: bool,
    /// The store's failure, if it did not answer.
    pub store_failure: Option<&'static str>,
}

impl Answer {
    /// Reports whether a descriptor is over its limit, so that the request is denied.
    #[must_use]
    pub fn is_over_limit(&self) -> bool {
        self.statuses.iter().any(|status| status.outcome == Outcome::OverLimit)
    }
}

/// A descriptor whose limit is checked.
#[derive(Debug)]
struct Checked {
    /// Positions of the descriptors that it is for.
    positions: SmallVec<[usize; 1]>,
    limit: LimitIndex,
    counter: PlannedCounter,
    /// Name of the rule.
    name: Arc<str>,
    is_quota: bool,
}

/// The descriptors of a question by how they are checked.
#[derive(Debug, Default)]
struct Groups {
    /// Checked together.
    asked: SmallVec<[Checked; 2]>,
    /// Each checked alone: they deny nothing.
    observed: Vec<Checked>,
    used: Vec<Checked>,
    given_back: Vec<Checked>,
    /// A rule admits nothing, so what is asked for is only looked at.
    is_denied: bool,
}

/// The result of a check of some descriptors.
struct Decided {
    decisions: SmallVec<[Decision; 2]>,
    /// Time of the decision by the store's clock, in microseconds.
    at: u64,
    failure: Option<&'static str>,
    by_local_quota: bool,
}

impl Engine {
    /// Decides a question of a gateway. Domains and rules that are not known deny nothing.
    ///
    /// # Errors
    /// No rules have been received yet, and all questions are refused until then.
    pub async fn check(&self, question: &Question<'_>) -> Result<Answer, Refused> {
        let snapshot = self.publisher().current();
        if snapshot.denies_all {
            return Err(Refused::NoPolicies);
        }
        let unmatched = Status { outcome: Outcome::Unmatched, limit: None, remaining: 0, reset_seconds: 0 };
        let mut answer = Answer {
            statuses: vec![unmatched; question.descriptors.len()],
            is_known_domain: false,
            store_failure: None,
        };
        let Some((position, policy, domain)) = snapshot.domain(question.domain) else { return Ok(answer) };
        answer.is_known_domain = true;
        let groups = group(question, &snapshot, (position, policy, domain), &mut answer.statuses);
        let limiter = snapshot.limiter(LimitIndex { policy: position, limit: 0, rates: 0 });
        let context = Context { engine: self, question, snapshot: &snapshot, policy, limiter };
        let Groups { mut asked, observed, used, given_back, is_denied } = groups;
        if is_denied {
            asked.iter_mut().for_each(|checked| checked.counter.cost = 0);
        }
        if observed.is_empty() && used.is_empty() && given_back.is_empty() {
            context.ask(&asked, is_denied, &mut answer).await;
            return Ok(answer);
        }
        let others = async {
            let observed = join_all(observed.iter().map(|one| context.check_alone(&one.counter)));
            let used = join_all(used.iter().map(|one| context.charge(&one.counter)));
            let given_back = join_all(given_back.iter().map(|one| context.give_back(&one.counter)));
            join(observed, join(used, given_back)).await
        };
        let (_, (of_observed, (of_used, of_given_back))) =
            join(context.ask(&asked, is_denied, &mut answer), others).await;
        for (one, result) in observed.iter().zip(of_observed) {
            context.record(one, result, true, &mut answer);
        }
        for (one, result) in used.iter().zip(of_used).chain(given_back.iter().zip(of_given_back)) {
            let is_observed = context.is_observed(one);
            context.record(one, result, is_observed, &mut answer);
        }
        Ok(answer)
    }
}

/// Finds the rule of each descriptor, and divides them by how they are checked. Writes the status of those that nothing counts.
fn group(
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
    let is_replaced = |name: &str| {
        let rules = (0..found.len()).filter_map(rule);
        !name.is_empty() && rules.flat_map(|rule| &rule.replaces).any(|replaced| **replaced == *name)
    };
    let secret = snapshot.secret(policy);
    let mut groups = Groups::default();
    for (n, descriptor) in question.descriptors.iter().enumerate() {
        let allowance = rule(n).map(|rule| rule.allowance);
        if allowance == Some(RuleAllowance::Unlimited) {
            statuses[n] =
                Status { outcome: Outcome::Unlimited, limit: None, remaining: u64::MAX, reset_seconds: 0 };
            continue;
        }
        if rule(n).is_some_and(|rule| is_replaced(&rule.name)) {
            continue;
        }
        let nothing = match (descriptor.rate, allowance) {
            (Some(OverrideRate { requests: 0, unit }), _) => Some(unit),
            (None, Some(RuleAllowance::Nothing(unit))) => Some(unit),
            _ => None,
        };
        if let Some(unit) = nothing {
            let name = rule(n).map(|rule| rule.name.clone()).unwrap_or_default();
            let limit = Some(CurrentLimit { requests: 0, unit, multiplier: 1, name });
            let is_quota = rule(n).is_some_and(|rule| rule.is_quota);
            let outcome = if is_quota { Outcome::QuotaExceeded } else { Outcome::OverLimit };
            groups.is_denied |= !is_quota && !question.is_shadow;
            statuses[n] = Status { outcome, limit, remaining: 0, reset_seconds: until_next(unit) };
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
        let cost = match descriptor.hits {
            Hits::One => 1,
            Hits::None => 0,
            Hits::Used(hits) | Hits::GivenBack(hits) => hits.min(sluice_limiter::MAX_COUNT),
        };
        let is_quota = rule(n).is_some_and(|rule| rule.is_quota);
        let is_observed =
            descriptor.rate.is_none() && policy.prepared.limits[usize::from(number)].mode == Mode::Shadow;
        let checked = Checked {
            positions: SmallVec::from_slice(&[n]),
            limit,
            counter: PlannedCounter { limit: plan, key: KeyHash(key), cost },
            name: rule(n).map(|rule| rule.name.clone()).unwrap_or_default(),
            is_quota,
        };
        match descriptor.hits {
            Hits::Used(_) => groups.used.push(checked),
            Hits::GivenBack(_) => groups.given_back.push(checked),
            Hits::One | Hits::None if is_quota || is_observed || question.is_shadow => {
                groups.observed.push(checked);
            }
            Hits::One | Hits::None => add(&mut groups.asked, checked),
        }
    }
    groups
}

/// Returns the time until a unit of time begins anew, in seconds.
fn until_next(unit: RateUnit) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    unit.seconds() - now % unit.seconds()
}

/// Adds a descriptor to those that are checked together, in which no counter occurs twice.
fn add(asked: &mut SmallVec<[Checked; 2]>, checked: Checked) {
    let same = |other: &&mut Checked| {
        other.counter.key == checked.counter.key && other.counter.limit.spec == checked.counter.limit.spec
    };
    match asked.iter_mut().find(same) {
        Some(other) => {
            other.counter.cost += checked.counter.cost;
            other.positions.extend(checked.positions);
        }
        None => asked.push(checked),
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
    let base = &snapshot.limit(limit).base().plan;
    let (Ok(requests), Ok(period)) = (
        Requests::new(u64::from(rate_override.requests)),
        sluice_limiter::Period::from_millis(rate_override.unit.seconds() * 1000),
    ) else {
        return base.clone();
    };
    let algorithm = match base.spec.rates.first().map_or(Algorithm::FIXED_WINDOW, |rate| rate.algorithm) {
        Algorithm::TokenBucket { burst } => {
            Algorithm::TokenBucket { burst: Burst::new(requests.get()).unwrap_or(burst) }
        }
        other => other,
    };
    let rate = Rate { requests, period, algorithm, soft: None, count_denied: false };
    // A rate of another period would begin with what the limit's own has counted.
    let scope = match base.spec.rates.first() {
        Some(own) if own.period == period => base.spec.scope.clone(),
        _ => format!("{}~{}", base.spec.scope, rate_override.unit.as_str()),
    };
    let spec = Arc::new(LimitSpec::new(scope, vec![rate]));
    let on_failure = policy.prepared.on_store_failure;
    Arc::new(LimitPlan::new(spec, Consistency::Strict, on_failure, true, policy.replicas.clone()))
}

/// What the checks of one question share.
struct Context<'a, 'q> {
    engine: &'a Engine,
    question: &'a Question<'q>,
    snapshot: &'a Arc<Snapshot>,
    policy: &'a ActivePolicy,
    limiter: &'a LimiterHandle,
}

impl Context<'_, '_> {
    /// Checks all descriptors that are asked for: they are charged together, or not at all.
    async fn ask(&self, asked: &[Checked], is_denied: bool, answer: &mut Answer) {
        let mut chunks = SmallVec::<[Result<CheckOutcome, StoreError>; 1]>::new();
        let mut admitted = !is_denied;
        for chunk in asked.chunks(MAX_COUNTERS) {
            let counters: SmallVec<[PlannedCounter; 2]> = chunk
                .iter()
                .map(|one| PlannedCounter {
                    cost: if admitted { one.counter.cost } else { 0 },
                    ..one.counter.clone()
                })
                .collect();
            let result = self.limiter.check_within(&counters, self.question.budget).await;
            admitted &= matches!(&result, Ok(outcome) if outcome.response.admitted);
            chunks.push(result);
        }
        let several = chunks.len() > 1;
        for (chunk, result) in asked.chunks(MAX_COUNTERS).zip(chunks) {
            let refunds = !admitted && several && matches!(&result, Ok(outcome) if outcome.response.admitted);
            if let (true, Ok(outcome)) = (refunds, &result) {
                for (one, &reservation) in chunk.iter().zip(&outcome.reservations) {
                    Correction::refund(self.limiter.clone(), one.counter.clone(), reservation).start(());
                }
            }
            let mut decided = result.map(decided);
            for one in chunk {
                let own = decided
                    .as_mut()
                    .map(|decided| take(decided, &one.counter))
                    .map_err(|error| error.as_str());
                self.record(one, own, false, answer);
            }
        }
    }

    /// Checks a descriptor alone.
    async fn check_alone(&self, counter: &PlannedCounter) -> Result<Decided, &'static str> {
        let outcome = self.limiter.check_within(std::slice::from_ref(counter), self.question.budget).await;
        outcome.map(decided).map_err(|error| error.as_str())
    }

    /// Charges hits that were used, whether or not there is room.
    async fn charge(&self, counter: &PlannedCounter) -> Result<Decided, &'static str> {
        let decided = self.check_alone(counter).await?;
        if decided.decisions.iter().any(|decision| !decision.admitted) {
            let reservation = decided.reservation();
            let more = i64::try_from(counter.cost).unwrap_or(i64::MAX);
            // Without an answer the hits are lost, as those of a gateway that could not ask are.
            let _ = self.limiter.settle(counter, reservation, more).await;
        }
        Ok(decided)
    }

    /// Gives hits back, down to none.
    async fn give_back(&self, counter: &PlannedCounter) -> Result<Decided, &'static str> {
        let look = PlannedCounter { cost: 0, ..counter.clone() };
        let before = self.check_alone(&look).await?;
        let hits = i64::try_from(counter.cost).unwrap_or(i64::MAX);
        self.limiter.settle(counter, before.reservation(), -hits).await.map_err(|error| error.as_str())?;
        let mut after = self.check_alone(&look).await?;
        // Giving back is never denied.
        after.decisions.iter_mut().for_each(|decision| decision.admitted = true);
        Ok(after)
    }

    fn is_observed(&self, one: &Checked) -> bool {
        self.policy.prepared.limits[usize::from(one.limit.limit)].mode == Mode::Shadow
    }

    /// Writes the statuses of the descriptors of a counter, and counts the decision.
    fn record(
        &self,
        one: &Checked,
        result: Result<Decided, &'static str>,
        observes: bool,
        answer: &mut Answer,
    ) {
        let active = self.snapshot.limit(one.limit);
        let metrics = &active.metrics;
        let Some(rate) = one.counter.limit.spec.rates.first() else { return };
        let (unit, multiplier) = RateUnit::of(rate);
        let limit = CurrentLimit { requests: rate.requests.get(), unit, multiplier, name: one.name.clone() };
        let (has_room, remaining, reset, failure, by_local_quota) = match result {
            Ok(Decided { decisions, at, failure, by_local_quota }) => {
                let Some(decision) = decisions.first() else { return };
                let micros = rate.period.micros();
                let reset = match rate.algorithm {
                    Algorithm::FixedWindow(_) => micros - at % micros,
                    _ => decision.reset,
                };
                let remaining = if decision.admitted {
                    decision.remaining
                } else {
                    decision.remaining.min(limit.requests)
                };
                (decision.admitted, remaining, reset, failure, by_local_quota)
            }
            Err(failure) => (false, 0, rate.period.micros(), Some(failure), false),
        };
        answer.store_failure = answer.store_failure.or(failure);
        let denies = !has_room && !observes && !one.is_quota && !self.question.is_shadow;
        match (failure, has_room) {
            (Some(_), has_room) if by_local_quota => metrics.by_local_quota(has_room).inc(),
            (Some(_), true) => metrics.fallback_admitted.inc(),
            (Some(_), false) => metrics.fallback_denied.inc(),
            (None, _) => 0,
        };
        if failure.is_none() || by_local_quota {
            match (has_room, denies) {
                (true, _) => metrics.admitted.inc(),
                (false, true) => metrics.denied.inc(),
                (false, false) => metrics.shadow_denied.inc(),
            };
        }
        if !has_room {
            self.log_denial(one, !denies);
        }
        let outcome = match (has_room, observes, one.is_quota) {
            (true, ..) => Outcome::WithinLimit,
            (false, _, true) => Outcome::QuotaExceeded,
            (false, true, false) if self.is_observed(one) => Outcome::Observed,
            (false, ..) => Outcome::OverLimit,
        };
        // What is denied has nothing left for a gateway.
        let remaining = if has_room { remaining } else { 0 };
        for &position in &one.positions {
            answer.statuses[position] = Status {
                outcome,
                limit: Some(limit.clone()),
                remaining,
                reset_seconds: reset.div_ceil(1_000_000),
            };
        }
    }

    fn log_denial(&self, one: &Checked, is_shadow: bool) {
        let Some(&position) = one.positions.first() else { return };
        let pairs = &self.question.descriptors[position].pairs;
        let client = || -> Arc<str> { describe(pairs, |key| PUBLIC_KEYS.contains(&key)).into() };
        let (now, key) = (Instant::now(), one.counter.key);
        self.snapshot.limit(one.limit).denied_clients.count(key.0, now.into(), is_shadow, client);
        self.engine.denials().denied(self.snapshot, one.limit, key, now, || DeniedRequest {
            client: client(),
            path: None,
            trace: trace_of(self.question.headers),
        });
    }
}

impl Decided {
    /// Where what is charged beyond the decision goes.
    fn reservation(&self) -> Reservation {
        if self.by_local_quota { Reservation::Local(self.at) } else { Reservation::Store(self.at) }
    }
}

fn decided(outcome: CheckOutcome) -> Decided {
    let failure = outcome.failure.as_ref().map(StoreError::as_str);
    let by_local_quota = outcome.source == Source::LocalQuota;
    Decided { decisions: outcome.response.decisions, at: outcome.response.at, failure, by_local_quota }
}

/// Takes the decisions of the first counter.
fn take(decided: &mut Decided, counter: &PlannedCounter) -> Decided {
    let own =
        decided.decisions.drain(..counter.limit.spec.rates.len().min(decided.decisions.len())).collect();
    Decided { decisions: own, ..*decided }
}
