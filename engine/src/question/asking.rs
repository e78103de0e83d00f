//! The checks of a question: what is asked for together, and beside it what denies nothing or is known already.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::{join, join_all};
use http::HeaderMap;
use sluice_config::charged::ChargedMark;
use sluice_config::descriptor::RateUnit;
use sluice_limiter::{Algorithm, Decision, Holder, Rate, Unit};
use sluice_store::{
    CheckOutcome, MAX_COUNTERS, OnStoreFailure, PlannedCounter, Reservation, Source, StoreError,
};
use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::time::{Instant as Deadline, timeout_at};

use crate::limit::correction::Correction;
use crate::limit::denial_log::{DenialLog, DeniedRequest};
use crate::limit::index::LimitIndex;
use crate::limit::matching::unix_seconds;
use crate::limit::snapshot::Snapshot;
use crate::question::counters::{Checked, Groups, Use, strict};
use crate::question::settlement::{Open, Settled, begin, counters_of, settle};
use crate::question::status::{CurrentLimit, Outcome, Status};
use crate::question::token::{Entry, Issued};
use crate::stores::limiter_handle::LimiterHandle;
use crate::traceparent::trace_of;

/// The counters of a call.
type Counters = SmallVec<[PlannedCounter; 2]>;

/// The result of the check of a counter.
struct Decided {
    decisions: SmallVec<[Decision; 2]>,
    /// Time of the decision by the store's clock, in microseconds.
    at: u64,
    failure: Option<&'static str>,
    by_local_quota: bool,
    /// Where the charge went.
    charged: Reservation,
    /// Whether the reservation is in the ledger.
    is_listed: bool,
    /// Whether a settlement has found its reservation.
    settled: Option<bool>,
}

/// Everything that a question finds out.
#[derive(Debug)]
pub(crate) struct Findings {
    pub(crate) statuses: Vec<Status>,
    pub(crate) store_failure: Option<&'static str>,
    mark: Option<ChargedMark>,
    reservation: Option<Issued>,
    /// For each settlement whether it has found its reservation.
    pub(crate) settled: Vec<bool>,
}

impl Findings {
    /// Begins with so many statuses.
    pub(crate) fn new(statuses: usize) -> Self {
        Self {
            statuses: vec![Status::UNMATCHED; statuses],
            store_failure: None,
            mark: None,
            reservation: None,
            settled: Vec::new(),
        }
    }

    /// Returns the mark of the limits that have counted the request, for sidecars behind a gateway.
    pub(crate) fn mark(&self) -> Option<String> {
        self.mark.as_ref().and_then(ChargedMark::to_text)
    }

    /// Returns the number of counters in which something was reserved.
    pub(crate) fn reserved(&self) -> usize {
        self.reservation.as_ref().map_or(0, Issued::len)
    }

    /// Returns the id of what was reserved.
    pub(crate) fn reservation(&self) -> Option<String> {
        self.reservation.as_ref().map(Issued::to_text)
    }
}

/// Everything that the checks of one question share.
pub(crate) struct Asking<'a> {
    pub(crate) denials: &'a DenialLog,
    pub(crate) snapshot: &'a Arc<Snapshot>,
    /// Whether nothing is denied.
    pub(crate) is_shadow: bool,
    /// Headers of the call, which may name its trace.
    pub(crate) headers: &'a HeaderMap,
    /// Describes the client of a status for operators.
    pub(crate) client: &'a (dyn Fn(usize) -> Arc<str> + Sync),
    /// Whether the request goes on to pods whose sidecars should not count it again.
    pub(crate) marks: bool,
    /// The number of the reservation, if something is reserved.
    pub(crate) number: Option<Holder>,
}

impl Asking<'_> {
    /// Makes all checks, and writes the statuses. The calls to the store may take so long together.
    pub(crate) async fn decide(&self, groups: Groups, budget: Duration, findings: &mut Findings) {
        let deadline = Deadline::now() + budget;
        let Groups { asked, alone, is_denied, .. } = groups.sorted();
        let reserved = asked.iter().chain(&alone).filter_map(|one| self.reserved(one)).collect();
        let mut unheard = Unheard { snapshot: self.snapshot, reserved };
        let admitted = if alone.is_empty() {
            self.ask(&asked, is_denied, deadline, findings).await
        } else {
            let others = join_all(alone.iter().map(|one| self.check_alone(one, deadline)));
            let (admitted, others) = join(self.ask(&asked, is_denied, deadline, findings), others).await;
            for (one, result) in alone.iter().zip(others) {
                self.record(one, result, findings);
            }
            admitted
        };
        unheard.reserved.clear();
        if !admitted && !self.is_shadow {
            // Limits in Shadow have reserved something for a request that is denied.
            self.give_up(findings.reservation.take());
        }
    }

    /// Checks all counters that are asked for: they are charged together, or not at all. Returns whether they were.
    async fn ask(
        &self,
        asked: &[Checked],
        is_denied: bool,
        deadline: Deadline,
        findings: &mut Findings,
    ) -> bool {
        let mut admitted = !is_denied;
        let mut chunks = SmallVec::<[(&[Checked], Result<CheckOutcome, StoreError>); 1]>::new();
        // The number of those that were charged, which are the first.
        let mut charged = 0;
        // Beside each counter may be a ledger.
        let most = if self.number.is_some() { MAX_COUNTERS / 2 } else { MAX_COUNTERS };
        for chunk in
            asked.chunk_by(|a, b| (a.layer, a.store) == (b.layer, b.store)).flat_map(|part| part.chunks(most))
        {
            let mut counters = Counters::new();
            chunk.iter().for_each(|one| self.add_counters(one, admitted, &mut counters));
            let result = self.limiter(&chunk[0]).check_within(&counters, left(deadline)).await;
            admitted &= matches!(&result, Ok(outcome) if outcome.response.admitted);
            charged += usize::from(admitted);
            chunks.push((chunk, result));
        }
        for (number, (chunk, result)) in chunks.into_iter().enumerate() {
            let mut results = Results::new(result);
            for one in chunk {
                let own = results.take(one);
                if let (true, Ok(decided)) = (!admitted && number < charged, &own) {
                    self.refund(one, decided);
                }
                self.record(one, own, findings);
            }
        }
        admitted
    }

    /// Adds the counter of what is asked for, and the ledger of what is reserved.
    fn add_counters(&self, one: &Checked, admitted: bool, counters: &mut Counters) {
        let cost = if admitted { one.counter.cost } else { 0 };
        counters.push(PlannedCounter { cost, ..one.counter.clone() });
        if let (Use::Reserve(lasts), Some(number)) = (one.what, self.number) {
            let limit = Arc::new(one.counter.limit.ledger(number, lasts));
            counters.push(PlannedCounter { limit, key: one.counter.key, cost });
        }
    }

    /// Gives back what was charged for a question that is denied after all.
    fn refund(&self, one: &Checked, decided: &Decided) {
        if let (true, Some(open)) = (decided.is_listed, self.reserved(one)) {
            let overflowed = matches!(decided.charged, Reservation::Overflow(_));
            // Without room for it, what was reserved stays charged.
            let _ = begin(self.snapshot, Open { overflowed, ..open }, Some(0), drop);
            return;
        }
        Correction::refund(self.limiter(one).clone(), one.counter.clone(), decided.charged).start(());
    }

    /// Settles a reservation of a question that is denied, as if nothing had been used.
    fn give_up(&self, reservation: Option<Issued>) {
        let Some(token) = reservation.and_then(|issued| issued.token()) else { return };
        for open in counters_of(self.snapshot, &token) {
            // Without room for it, what was reserved stays charged.
            let _ = begin(self.snapshot, open, Some(0), drop);
        }
    }

    /// Returns what a call may have reserved in a counter.
    fn reserved(&self, one: &Checked) -> Option<Open> {
        let number = self.number.filter(|_| matches!(one.what, Use::Reserve(_)) && one.counter.cost > 0)?;
        let PlannedCounter { limit: plan, key, .. } = one.counter.clone();
        Some(Open { limit: one.limit, plan, key, number: Some(number), overflowed: false })
    }

    /// Adds a limit that has charged the request to its mark, if sidecars enforce the limit too.
    fn mark(&self, one: &Checked, findings: &mut Findings) {
        let policy = &self.snapshot.policies[usize::from(one.limit.policy)];
        let limit = &policy.prepared.limits[usize::from(one.limit.limit)];
        // A descriptor may have brought a rate along that is counted elsewhere.
        if self.marks && limit.is_for_requests() && one.counter.limit.spec.scope == limit.scope {
            let mark = findings.mark.get_or_insert_with(|| ChargedMark::new(unix_seconds(), rand::random()));
            mark.add(self.snapshot.secret(policy), &limit.scope, one.counter.key.0);
        }
    }

    /// Adds a counter to the reservation.
    fn note_reserved(&self, one: &Checked, decided: &Decided, findings: &mut Findings) {
        if let (true, Some(number)) = (decided.is_listed && one.counter.cost > 0, self.number) {
            let policy = &self.snapshot.policies[usize::from(one.limit.policy)];
            let issued = findings.reservation.get_or_insert_with(|| Issued::new(number));
            let scope = &one.counter.limit.spec.scope;
            let rates = one.limit.rates;
            issued.add(self.snapshot.secret(policy), scope, one.counter.key, rates, decided.charged);
        }
    }

    /// Returns the headers by which an answer reports a limit of a policy.
    fn status_headers(
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

    /// Checks a counter by itself.
    async fn check_alone(&self, one: &Checked, deadline: Deadline) -> Result<Decided, &'static str> {
        match one.what {
            Use::Look => self.look(one).await,
            Use::Ask | Use::Reserve(_) => self.check(one, one.counter.cost, deadline).await,
            Use::Charge => self.charge(one, deadline).await,
            Use::GiveBack => self.give_back(one, deadline).await,
            Use::Settle(id) => self.settle(one, id, deadline).await,
        }
    }

    async fn check(&self, one: &Checked, cost: u64, deadline: Deadline) -> Result<Decided, &'static str> {
        let mut counters = Counters::new();
        self.add_counters(one, cost > 0, &mut counters);
        Results::new(self.limiter(one).check_within(&counters, left(deadline)).await).take(one)
    }

    /// Charges what was used, whether or not there is room.
    async fn charge(&self, one: &Checked, deadline: Deadline) -> Result<Decided, &'static str> {
        let decided = self.check(one, one.counter.cost, deadline).await?;
        if decided.decisions.iter().any(|decision| !decision.admitted) {
            self.correct(one, decided.elsewhere(), signed(one.counter.cost), deadline).await;
        }
        Ok(decided)
    }

    /// Gives a cost back, down to none.
    async fn give_back(&self, one: &Checked, deadline: Deadline) -> Result<Decided, &'static str> {
        let before = self.check(one, 0, deadline).await?;
        self.correct(one, before.elsewhere(), -signed(one.counter.cost), deadline).await;
        Ok(self.check(one, 0, deadline).await.unwrap_or(before).admitted())
    }

    /// Settles a reservation. Without an id it is the oldest one, and what was used is charged if there is none.
    async fn settle(
        &self,
        one: &Checked,
        id: Option<(Holder, Entry)>,
        deadline: Deadline,
    ) -> Result<Decided, &'static str> {
        let PlannedCounter { limit: plan, key, cost } = one.counter.clone();
        let (number, entry) = id.unzip();
        let (limit, plan) = match entry {
            // The rates that it was charged by, if the policy still has them.
            Some(entry) => {
                let limit = LimitIndex { rates: entry.rates, ..one.limit };
                (limit, strict(&self.snapshot.limit(limit).rates_or_base(entry.rates).plan))
            }
            None => (one.limit, plan),
        };
        let overflowed = entry.is_some_and(|entry| entry.overflowed());
        let open = Open { limit, plan, key, number, overflowed };
        let found = match settle(self.snapshot, open, Some(cost), deadline).await {
            Ok(settled) => settled != Settled::NotFound,
            Err(error) => return Err(error.as_str()),
        };
        let decided =
            if !found && id.is_none() { self.charge(one, deadline).await? } else { self.look(one).await? };
        Ok(Decided { settled: Some(found), ..decided })
    }

    /// Reads a counter without counting anything. That of a limit which only this process counts, and which counts denials, tells
    /// nothing.
    async fn look(&self, one: &Checked) -> Result<Decided, &'static str> {
        let PlannedCounter { limit, key, .. } = &one.counter;
        let looked = self.limiter(one).peek(limit, *key).await.map_err(|error| error.as_str())?;
        Ok(Decided {
            decisions: looked.unwrap_or_default(),
            at: unix_seconds() * 1_000_000,
            failure: None,
            by_local_quota: false,
            charged: Reservation::Nothing,
            is_listed: false,
            settled: None,
        })
    }

    /// Corrects a counter, and waits for it while there is time. It is corrected in any case, unless the store stays away.
    async fn correct(&self, one: &Checked, reservation: Reservation, delta: i64, deadline: Deadline) {
        let (corrected, wait) = oneshot::channel::<()>();
        Correction::by(delta, self.limiter(one).clone(), one.counter.clone(), reservation).start(corrected);
        let _ = timeout_at(deadline, wait).await;
    }

    /// Writes the statuses of the descriptors of a counter, and counts the decision.
    fn record(&self, one: &Checked, result: Result<Decided, &'static str>, findings: &mut Findings) {
        let active = self.snapshot.limit(one.limit);
        let metrics = &active.metrics;
        let is_unknown = match &result {
            Ok(decided) => decided.failure.is_some() && !decided.is_listed,
            Err(_) => true,
        };
        if let Some(open) = is_unknown.then(|| self.reserved(one)).flatten() {
            let _ = begin(self.snapshot, open, Some(0), drop);
        }
        let rates = &one.counter.limit.spec.rates;
        let Some(mut rate) = rates.first() else { return };
        let (mut place, mut retry_after) = (0, None);
        let (has_room, remaining, reset, failure, by_local_quota) = match result {
            Ok(decided) => {
                let is_used = matches!(one.what, Use::Charge);
                let has_all = decided.decisions.iter().all(|decision| decision.admitted);
                findings.settled.extend(decided.settled);
                if has_all {
                    self.note_reserved(one, &decided, findings);
                }
                // What was used is charged in any case.
                let is_charged = (has_all && matches!(one.what, Use::Ask | Use::Reserve(_)) || is_used)
                    && !matches!(decided.elsewhere(), Reservation::Nothing);
                if is_charged && one.is_of_policy && one.counter.cost > 0 {
                    self.mark(one, findings);
                }
                let Decided { decisions, at, failure, by_local_quota, .. } = decided;
                let Some((position, decision)) = self.tightest(one, &decisions) else { return };
                (place, rate) = (position, rates.get(position).unwrap_or(rate));
                let micros = rate.period.micros();
                let reset = match rate.algorithm {
                    Algorithm::FixedWindow(_) => micros - at % micros,
                    _ => decision.reset,
                };
                let has_room = decisions.iter().all(|decision| decision.admitted);
                let blocked_for = self.snapshot.rates(one.limit).names.blocked_for(&decisions);
                retry_after = blocked_for.or(decision.retry_after);
                (has_room, decision.remaining, reset, failure, by_local_quota)
            }
            Err(failure) => {
                let has_room = match one.what {
                    Use::GiveBack => true,
                    Use::Look | Use::Settle(_) => one.counter.limit.on_failure != OnStoreFailure::Deny,
                    Use::Ask | Use::Charge | Use::Reserve(_) => false,
                };
                (has_room, 0, rate.period.micros(), Some(failure), false)
            }
        };
        let limit = current_limit(rate, one);
        findings.store_failure = findings.store_failure.or(failure);
        let denies = !has_room && !one.is_observed && !one.is_quota && !self.is_shadow;
        let counts = !matches!(one.what, Use::Look | Use::Settle(_));
        match (failure, has_room) {
            _ if !counts => 0,
            (Some(_), has_room) if by_local_quota => metrics.by_local_quota(has_room).inc(),
            (Some(_), true) => metrics.fallback_admitted.inc(),
            (Some(_), false) => metrics.fallback_denied.inc(),
            (None, _) => 0,
        };
        if counts && (failure.is_none() || by_local_quota) {
            match (has_room, denies) {
                (true, _) => metrics.admitted.inc(),
                (false, true) => metrics.denied.inc(),
                (false, false) => metrics.shadow_denied.inc(),
            };
        }
        if counts && !has_room {
            self.log_denial(one, !denies);
        }
        let outcome = match (has_room, one.is_observed, one.is_quota) {
            (true, ..) => Outcome::WithinLimit,
            (false, true, _) => Outcome::Observed,
            (false, false, true) => Outcome::QuotaExceeded,
            (false, false, false) => Outcome::OverLimit,
        };
        // What is denied has nothing left for a gateway.
        let (left, remaining) = (remaining, if has_room { remaining } else { 0 });
        let reset_seconds = reset.div_ceil(1_000_000);
        let wait =
            (!has_room).then(|| retry_after.map_or(reset_seconds, |wait| wait.div_ceil(1_000_000)).max(1));
        let headers = self.status_headers(one, place, wait, remaining, reset_seconds);
        for &position in &one.positions {
            let Some(status) = findings.statuses.get_mut(position) else { continue };
            status.merge(Status {
                outcome,
                limit: Some(limit.clone()),
                remaining,
                left,
                reset_seconds,
                retry_after_seconds: retry_after.map(|wait| wait.div_ceil(1_000_000).max(1)),
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
        let client = || (self.client)(position);
        let (now, key) = (Instant::now(), one.counter.key);
        self.snapshot.limit(one.limit).denied_clients.count(key.0, now.into(), is_shadow, client);
        self.denials.denied(self.snapshot, one.limit, key, now, || DeniedRequest {
            client: client(),
            path: None,
            trace: trace_of(self.headers),
        });
    }
}

/// Reservations of a question that nobody may wait for any longer. They are settled then, as if nothing had been used.
struct Unheard<'a> {
    snapshot: &'a Arc<Snapshot>,
    reserved: Vec<Open>,
}

impl Drop for Unheard<'_> {
    fn drop(&mut self) {
        for open in self.reserved.drain(..) {
            let _ = begin(self.snapshot, open, Some(0), drop);
        }
    }
}

impl Decided {
    /// Where what is charged beyond the decision goes.
    fn elsewhere(&self) -> Reservation {
        match (self.failure, self.by_local_quota) {
            (_, true) => Reservation::Local(self.at),
            (None, false) => Reservation::Store(self.at),
            (Some(_), false) => Reservation::Nothing,
        }
    }

    /// Returns the same state, which denies nothing.
    fn admitted(mut self) -> Self {
        self.decisions.iter_mut().for_each(|decision| decision.admitted = true);
        self
    }
}

/// The results of a call, which are taken in the order of its counters.
struct Results(Result<CheckOutcome, StoreError>);

impl Results {
    fn new(result: Result<CheckOutcome, StoreError>) -> Self {
        Self(result)
    }

    /// Takes what is of the next counter, and of its ledger.
    fn take(&mut self, one: &Checked) -> Result<Decided, &'static str> {
        let outcome = self.0.as_mut().map_err(|error| error.as_str())?;
        let failure = outcome.failure.as_ref().map(StoreError::as_str);
        let by_local_quota = outcome.source == Source::LocalQuota;
        let decisions = &mut outcome.response.decisions;
        let own = decisions.drain(..one.counter.limit.spec.rates.len().min(decisions.len())).collect();
        let mut reservation = || {
            let is_left = !outcome.reservations.is_empty();
            if is_left { outcome.reservations.remove(0) } else { Reservation::Nothing }
        };
        let charged = reservation();
        let mut is_listed = false;
        if matches!(one.what, Use::Reserve(_)) {
            is_listed = matches!(reservation(), Reservation::Store(_));
            decisions.drain(..1.min(decisions.len()));
        }
        Ok(Decided {
            decisions: own,
            at: outcome.response.at,
            failure,
            by_local_quota,
            charged,
            is_listed,
            settled: None,
        })
    }
}

fn left(deadline: Deadline) -> Duration {
    deadline.saturating_duration_since(Deadline::now())
}

fn signed(cost: u64) -> i64 {
    i64::try_from(cost).unwrap_or(i64::MAX)
}

/// Returns a rate as an answer names it.
fn current_limit(rate: &Rate, one: &Checked) -> CurrentLimit {
    let (unit, multiplier) = RateUnit::of(rate);
    let period_millis = if rate.unit() == Unit::Slots { 0 } else { rate.period.millis() };
    CurrentLimit { requests: rate.requests.get(), period_millis, unit, multiplier, name: one.name.clone() }
}
