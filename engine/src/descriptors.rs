//! The way of a gateway's question about descriptors: a rule for each, one check for all of them, and a status for each.
//!
//! - A descriptor that costs one hit, as each does without a word about hits, is asked for: all of a question are charged, or none.
//! - More hits report what was used already. They are charged whether or not there is room: a budget would never end otherwise.
//! - No hits look at a counter, which denies while nothing is left. Negative hits give back.

mod group;
mod question;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::{join, join_all};
use sluice_config::charged::ChargedMark;
use sluice_config::descriptor::{RateUnit, describe};
use sluice_limiter::{Algorithm, Decision, Rate};
use sluice_store::{CheckOutcome, MAX_COUNTERS, PlannedCounter, Reservation, Source, StoreError};
use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::time::{Instant as Deadline, timeout_at};

use crate::answer::Refused;
use crate::descriptors::group::{Checked, Groups, MAX_CHECKED, group};
pub use crate::descriptors::question::{
    Answer, CurrentLimit, Descriptor, Hits, Outcome, OverrideRate, Question, Status,
};
use crate::engine::Engine;
use crate::limit::correction::Correction;
use crate::limit::denial_log::DeniedRequest;
use crate::limit::matching::unix_seconds;
use crate::limit::snapshot::Snapshot;
use crate::stores::limiter_handle::LimiterHandle;
use crate::traceparent::trace_of;

/// Keys of pairs whose values operators may read: they are no secrets of clients.
const PUBLIC_KEYS: [&[u8]; 4] =
    [b"remote_address", b"masked_remote_address", b"generic_key", b"destination_cluster"];

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
        let mut answer = Answer {
            statuses: vec![Status::UNMATCHED; question.descriptors.len()],
            is_known_domain: false,
            charged: None,
            store_failure: None,
        };
        let mut groups = Groups::default();
        if let Some(domain) = snapshot.domain(question.domain) {
            answer.is_known_domain = true;
            groups = group(question, &snapshot, domain, &mut answer.statuses);
        }
        if let Some(limits) = snapshot.described(question.domain) {
            answer.is_known_domain = true;
            groups.add_limits(question, &snapshot, limits, &mut answer.statuses);
        }
        if groups.len() > MAX_CHECKED {
            return Err(Refused::TooManyLimits);
        }
        let mut mark = None;
        let deadline = Deadline::now() + question.budget;
        let context = Context { engine: self, question, snapshot: &snapshot, deadline };
        let Groups { asked, observed, used, given_back, is_denied } = groups.sorted();
        if observed.is_empty() && used.is_empty() && given_back.is_empty() {
            context.ask(&asked, is_denied, &mut answer, &mut mark).await;
            answer.charged = mark.and_then(|mark| mark.to_text());
            return Ok(answer);
        }
        let others = async {
            let observed = join_all(observed.iter().map(|one| context.check_alone(one)));
            let used = join_all(used.iter().map(|one| context.charge(one)));
            let given_back = join_all(given_back.iter().map(|one| context.give_back(one)));
            join(observed, join(used, given_back)).await
        };
        let (_, (of_observed, (of_used, of_given_back))) =
            join(context.ask(&asked, is_denied, &mut answer, &mut mark), others).await;
        let others = observed.iter().zip(of_observed).chain(used.iter().zip(of_used));
        for (one, result) in others.chain(given_back.iter().zip(of_given_back)) {
            context.record(one, result, &mut answer, &mut mark);
        }
        answer.charged = mark.and_then(|mark| mark.to_text());
        Ok(answer)
    }
}

/// Everything that the checks of one question share.
struct Context<'a, 'q> {
    engine: &'a Engine,
    question: &'a Question<'q>,
    snapshot: &'a Arc<Snapshot>,
    /// The time until which the store may answer.
    deadline: Deadline,
}

impl Context<'_, '_> {
    /// Checks all descriptors that are asked for: they are charged together, or not at all.
    async fn ask(
        &self,
        asked: &[Checked],
        is_denied: bool,
        answer: &mut Answer,
        mark: &mut Option<ChargedMark>,
    ) {
        let mut admitted = !is_denied;
        let mut chunks = SmallVec::<[(&[Checked], Result<CheckOutcome, StoreError>); 1]>::new();
        // The number of those that were charged, which are the first.
        let mut charged = 0;
        for chunk in asked
            .chunk_by(|a, b| (a.layer, a.store) == (b.layer, b.store))
            .flat_map(|part| part.chunks(MAX_COUNTERS))
        {
            let counters: SmallVec<[PlannedCounter; 2]> = chunk
                .iter()
                .map(|one| PlannedCounter {
                    cost: if admitted { one.counter.cost } else { 0 },
                    ..one.counter.clone()
                })
                .collect();
            let result = self.limiter(&chunk[0]).check_within(&counters, self.left()).await;
            admitted &= matches!(&result, Ok(outcome) if outcome.response.admitted);
            charged += usize::from(admitted);
            chunks.push((chunk, result));
        }
        for (number, (chunk, result)) in chunks.into_iter().enumerate() {
            if let (true, Ok(outcome)) = (!admitted && number < charged, &result) {
                for (one, &reservation) in chunk.iter().zip(&outcome.reservations) {
                    Correction::refund(self.limiter(one).clone(), one.counter.clone(), reservation).start(());
                }
            }
            let mut decided = result.map(decided);
            for one in chunk {
                let own = decided
                    .as_mut()
                    .map(|decided| take(decided, &one.counter))
                    .map_err(|error| error.as_str());
                self.record(one, own, answer, mark);
            }
        }
    }

    /// Adds a limit that has charged the request to its mark, if sidecars enforce the limit too.
    fn mark(&self, one: &Checked, mark: &mut Option<ChargedMark>) {
        let policy = &self.snapshot.policies[usize::from(one.limit.policy)];
        let limit = &policy.prepared.limits[usize::from(one.limit.limit)];
        // A descriptor may have brought a rate along that is counted elsewhere.
        if limit.is_for_requests() && one.counter.limit.spec.scope == limit.scope {
            let mark = mark.get_or_insert_with(|| ChargedMark::new(unix_seconds(), rand::random()));
            mark.add(self.snapshot.secret(policy), &limit.scope, one.counter.key.0);
        }
    }

    /// Returns the headers by which an answer reports a limit of a policy.
    fn headers(
        &self,
        one: &Checked,
        position: usize,
        wait: Option<u64>,
        remaining: u64,
        reset: u64,
    ) -> Vec<(&'static str, String)> {
        let mut headers = Vec::new();
        // A limit in Shadow is none of the client's business.
        if !one.is_of_policy || one.is_observed {
            return headers;
        }
        let (active, rates) = (self.snapshot.limit(one.limit), &one.counter.limit.spec.rates);
        let [rate_limit, x_rate_limit] = active.status_headers;
        if let (true, Some(name)) = (rate_limit, self.snapshot.rates(one.limit).names.name(position)) {
            headers.push(("ratelimit-policy", name.policy_item.clone()));
            headers.push(("ratelimit", format!("{};r={remaining};t={reset}", name.item)));
        }
        if let (true, Some(rate)) = (x_rate_limit, rates.get(position)) {
            headers.push(("x-ratelimit-limit", rate.requests.get().to_string()));
            headers.push(("x-ratelimit-remaining", remaining.to_string()));
            headers.push(("x-ratelimit-reset", reset.to_string()));
        }
        headers.extend(wait.map(|wait| ("retry-after", wait.to_string())));
        headers
    }

    /// Returns the limiter of the store that has a counter.
    fn limiter(&self, one: &Checked) -> &LimiterHandle {
        self.snapshot.limiter(one.limit)
    }

    /// Returns the time that is left for the store.
    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Deadline::now())
    }

    /// Checks a descriptor alone.
    async fn check_alone(&self, one: &Checked) -> Result<Decided, &'static str> {
        self.check_counter(one, &one.counter).await
    }

    async fn check_counter(&self, one: &Checked, counter: &PlannedCounter) -> Result<Decided, &'static str> {
        let outcome = self.limiter(one).check_within(std::slice::from_ref(counter), self.left()).await;
        outcome.map(decided).map_err(|error| error.as_str())
    }

    /// Charges hits that were used, whether or not there is room.
    async fn charge(&self, one: &Checked) -> Result<Decided, &'static str> {
        let decided = self.check_alone(one).await?;
        if decided.decisions.iter().any(|decision| !decision.admitted) {
            let hits = i64::try_from(one.counter.cost).unwrap_or(i64::MAX);
            self.correct(one, decided.reservation(), hits).await;
        }
        Ok(decided)
    }

    /// Gives hits back, down to none.
    async fn give_back(&self, one: &Checked) -> Result<Decided, &'static str> {
        let look = PlannedCounter { cost: 0, ..one.counter.clone() };
        let before = self.check_counter(one, &look).await?;
        let hits = i64::try_from(one.counter.cost).unwrap_or(i64::MAX);
        self.correct(one, before.reservation(), -hits).await;
        let mut after = self.check_counter(one, &look).await.unwrap_or(before);
        // Giving back is never denied.
        after.decisions.iter_mut().for_each(|decision| decision.admitted = true);
        Ok(after)
    }

    /// Corrects a counter, and waits for it while there is time. It is corrected in any case, unless the store stays away.
    async fn correct(&self, one: &Checked, reservation: Reservation, delta: i64) {
        let (corrected, wait) = oneshot::channel::<()>();
        Correction::by(delta, self.limiter(one).clone(), one.counter.clone(), reservation).start(corrected);
        let _ = timeout_at(self.deadline, wait).await;
    }

    /// Writes the statuses of the descriptors of a counter, and counts the decision.
    fn record(
        &self,
        one: &Checked,
        result: Result<Decided, &'static str>,
        answer: &mut Answer,
        mark: &mut Option<ChargedMark>,
    ) {
        let active = self.snapshot.limit(one.limit);
        let metrics = &active.metrics;
        let rates = &one.counter.limit.spec.rates;
        let Some(mut rate) = rates.first() else { return };
        let (mut place, mut retry_after) = (0, None);
        let (has_room, remaining, reset, failure, by_local_quota) = match result {
            Ok(decided) => {
                let is_counted = !matches!(decided.reservation(), Reservation::Nothing);
                let Decided { decisions, at, failure, by_local_quota } = decided;
                let Some((position, decision)) = self.tightest(one, &decisions) else { return };
                (place, rate) = (position, rates.get(position).unwrap_or(rate));
                let micros = rate.period.micros();
                let reset = match rate.algorithm {
                    Algorithm::FixedWindow(_) => micros - at % micros,
                    _ => decision.reset,
                };
                let has_room = decisions.iter().all(|decision| decision.admitted);
                // What was used is charged in any case.
                if one.is_of_policy
                    && one.counter.cost > 0
                    && is_counted
                    && (has_room || one.is_used)
                    && !one.gives_back
                {
                    self.mark(one, mark);
                }
                retry_after = decision.retry_after;
                (has_room, decision.remaining, reset, failure, by_local_quota)
            }
            Err(failure) => (one.gives_back, 0, rate.period.micros(), Some(failure), false),
        };
        let limit = current_limit(rate, one);
        answer.store_failure = answer.store_failure.or(failure);
        let denies = !has_room && !one.is_observed && !one.is_quota && !self.question.is_shadow;
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
        let outcome = match (has_room, one.is_observed, one.is_quota) {
            (true, ..) => Outcome::WithinLimit,
            (false, true, _) => Outcome::Observed,
            (false, false, true) => Outcome::QuotaExceeded,
            (false, false, false) => Outcome::OverLimit,
        };
        // What is denied has nothing left for a gateway.
        let remaining = if has_room { remaining } else { 0 };
        let reset_seconds = reset.div_ceil(1_000_000);
        let wait =
            (!has_room).then(|| retry_after.map_or(reset_seconds, |wait| wait.div_ceil(1_000_000)).max(1));
        let headers = self.headers(one, place, wait, remaining, reset_seconds);
        for &position in &one.positions {
            answer.statuses[position].merge(Status {
                outcome,
                limit: Some(limit.clone()),
                remaining,
                reset_seconds,
                is_quota: one.is_quota,
                headers: headers.clone(),
            });
        }
    }

    /// Returns the decision that a gateway is told: that of the rate which denies for the longest time, or has the least left.
    fn tightest(&self, one: &Checked, decisions: &[Decision]) -> Option<(usize, Decision)> {
        let names = &self.snapshot.rates(one.limit).names;
        let deciding = || names.deciding(decisions).map(|(position, _, decision)| (position, decision));
        let wait = |decision: &Decision| decision.retry_after.unwrap_or(u64::MAX);
        let denying = deciding().filter(|(_, decision)| !decision.admitted);
        denying.max_by_key(|(_, decision)| wait(decision)).or_else(|| {
            deciding().min_by_key(|(_, decision)| (decision.remaining, std::cmp::Reverse(decision.reset)))
        })
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
        match (self.failure, self.by_local_quota) {
            (_, true) => Reservation::Local(self.at),
            (None, false) => Reservation::Store(self.at),
            (Some(_), false) => Reservation::Nothing,
        }
    }
}

/// Returns a rate as an answer names it.
fn current_limit(rate: &Rate, one: &Checked) -> CurrentLimit {
    let (unit, multiplier) = RateUnit::of(rate);
    CurrentLimit { requests: rate.requests.get(), unit, multiplier, name: one.name.clone() }
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
