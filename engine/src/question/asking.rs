//! Asks a question: makes the query of what it is about, records the verdict, and tells what it says of each descriptor or limit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::HeaderMap;
use sluice_config::descriptor::RateUnit;
use sluice_limiter::{Algorithm, Alignment, Decision, Rate, Unit};
use sluice_store::{MAX_COUNTERS, OnStoreFailure, Reservation};
use tokio::time::Instant as Deadline;

use crate::engine::Engine;
use crate::limit::decide::decide;
use crate::limit::denial_log::DeniedRequest;
use crate::limit::query::{Beside, Intent, Part, Query};
use crate::limit::record::record;
use crate::limit::reservation::{begin, counters_of};
use crate::limit::snapshot::Snapshot;
use crate::limit::state::{State, denies};
use crate::limit::token::Issued;
use crate::limit::told::Told;
use crate::limit::verdict::{Outcome, Verdict};
use crate::question::counters::{Asked, Groups};
use crate::question::status::{self, CurrentLimit, Status};
use crate::traceparent::trace_of;

/// Everything that a question finds out.
#[derive(Debug)]
pub(crate) struct Findings {
    pub(crate) statuses: Vec<Status>,
    pub(crate) store_failure: Option<&'static str>,
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
            reservation: None,
            settled: Vec::new(),
        }
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

/// Everything that the counters of one question share.
pub(crate) struct Asking<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) snapshot: &'a Arc<Snapshot>,
    /// Whether nothing is denied.
    pub(crate) is_shadow: bool,
    /// Headers of the call, which may name its trace.
    pub(crate) headers: &'a HeaderMap,
    /// Describes the client of a status for operators.
    pub(crate) client: &'a (dyn Fn(usize) -> Arc<str> + Sync),
}

/// The state of a counter with its decisions, or the store's failure.
type Known<'a> = Result<(&'a State, usize, &'a [Decision]), &'static str>;

impl Asking<'_> {
    /// Decides the question, and writes the statuses. The calls to the store may take so long together.
    pub(crate) async fn decide(&self, groups: Groups, budget: Duration, findings: &mut Findings) -> Verdict {
        let (asked, alone, mut query) = groups.query(self.snapshot, self.is_shadow, Deadline::now() + budget);
        let verdict = decide(self.snapshot.clone(), &mut query, self.engine.publisher().slots()).await;
        let all = || asked.iter().chain(&alone);
        let client = |limit, key| {
            let is_it = |one: &&Asked| one.limit == limit && one.counter.key == key;
            let position = all().find(is_it).and_then(|one| one.positions.first());
            position.map_or_else(|| "".into(), |&position| (self.client)(position))
        };
        let request = |_| DeniedRequest { path: None, trace: trace_of(self.headers) };
        record(&verdict, self.engine.denials(), Instant::now(), client, request);
        findings.store_failure = verdict.failure();
        let fault = findings.store_failure.unwrap_or("");
        // Without room in a ledger nothing is reserved, although every limit has room.
        let is_ledger_full =
            matches!(verdict.outcome, Outcome::Deny(_)) && verdict.denials().next().is_none();
        let mut states = verdict
            .states
            .iter()
            .flat_map(|state| state.decisions().map(move |(n, _, decisions)| (state, n, decisions)));
        for one in &asked {
            let known = states.next().ok_or(fault);
            let has_room = match known {
                Ok((.., decisions)) => {
                    !(denies(decisions) || is_ledger_full && matches!(one.intent, Intent::Reserve(_)))
                }
                Err(_) => false,
            };
            self.tell(one, known, has_room, findings);
        }
        drop(states);
        for (one, answered) in alone.iter().zip(&verdict.beside) {
            findings.settled.extend(answered.settled);
            let known = match &answered.state {
                Ok(state) => match state.decisions().next() {
                    Some((n, _, decisions)) => Ok((state, n, decisions)),
                    None => continue,
                },
                Err(fault) => Err(*fault),
            };
            let has_room = match (known, one.intent) {
                (Ok((.., decisions)), _) => !denies(decisions),
                (Err(_), Intent::GiveBack) => true,
                (Err(_), Intent::Peek | Intent::Settle(_)) => {
                    one.counter.limit.on_failure != OnStoreFailure::Deny
                }
                (Err(_), Intent::Consume | Intent::Reserve(_) | Intent::Charge) => false,
            };
            self.tell(one, known, has_room, findings);
        }
        let is_over = |status: &Status| status.outcome == status::Outcome::OverLimit;
        let is_denied = matches!(verdict.outcome, Outcome::Deny(_)) || findings.statuses.iter().any(is_over);
        if is_denied && !self.is_shadow {
            // Limits in Shadow, or those beside a report that is over its limit, have reserved something for a request that is denied.
            self.give_up(findings.reservation.take());
        }
        verdict
    }

    /// Writes the statuses that a counter is for, and what was charged to it.
    fn tell(&self, one: &Asked, known: Known<'_>, has_room: bool, findings: &mut Findings) {
        let snapshot = &**self.snapshot;
        let rates = &one.counter.limit.spec.rates;
        let Some(first) = rates.first() else { return };
        let told = match known {
            Ok((state, n, decisions)) => {
                findings.store_failure = findings.store_failure.or(state.checked.failure());
                let charged = state.checked.charged(n);
                let charges = matches!(one.intent, Intent::Consume | Intent::Reserve(_) | Intent::Charge);
                if charges && charged != Reservation::Nothing && one.counter.cost > 0 {
                    self.note_charge(one, charged, state.checked.is_listed(&state.part, n), findings);
                }
                let told = Told::of(snapshot, !has_room, std::iter::once((one.limit, decisions)));
                // Of a rate that does not decide nobody is told.
                let Some(told) =
                    told.or_else(|| Told::of(snapshot, false, std::iter::once((one.limit, decisions))))
                else {
                    return;
                };
                Some((told, state.checked.outcome.response.at))
            }
            Err(fault) => {
                findings.store_failure = findings.store_failure.or(Some(fault));
                None
            }
        };
        let rate = told.and_then(|(told, _)| rates.get(told.position)).unwrap_or(first);
        let reset = told.and_then(|(told, at)| {
            let reset = told.reset(snapshot)?;
            let micros = rate.period.micros();
            // A domain's window in which nothing was counted ends too, as ratelimit says.
            let is_window = !one.is_of_policy && rate.algorithm == Algorithm::FixedWindow(Alignment::Clock);
            Some(if is_window && reset == 0 { micros - at % micros } else { reset })
        });
        let reset = reset.map(|reset| reset.div_ceil(1_000_000));
        let wait = match told {
            Some((told, _)) => told.retry_after(),
            // The store may answer soon.
            None => Some(1),
        };
        let active = snapshot.limit(one.limit);
        let left = told.map_or(0, |(told, _)| told.decision.remaining);
        for &position in &one.positions {
            let Some(status) = findings.statuses.get_mut(position) else { continue };
            status.merge(Status {
                outcome: match (has_room, one.is_observed, one.is_quota) {
                    (true, ..) => status::Outcome::WithinLimit,
                    (false, true, _) => status::Outcome::Observed,
                    (false, false, true) => status::Outcome::QuotaExceeded,
                    (false, false, false) => status::Outcome::OverLimit,
                },
                limit: Some(current_limit(rate, one)),
                // What is denied has nothing left for a gateway.
                remaining: if has_room { left } else { 0 },
                left,
                reset_seconds: reset,
                retry_after_seconds: wait.filter(|_| !has_room).map(|wait| active.with_jitter(wait)),
                is_quota: one.is_quota,
            });
        }
    }

    /// Notes a charge for its settlement.
    fn note_charge(&self, one: &Asked, charged: Reservation, is_listed: bool, findings: &mut Findings) {
        let policy = &self.snapshot.policies[usize::from(one.limit.policy)];
        let (secret, key) = (self.snapshot.secret(policy), one.counter.key);
        let scope = &one.counter.limit.spec.scope;
        if let (true, Some(number)) = (is_listed, one.number) {
            let issued = findings.reservation.get_or_insert_with(|| Issued::new(number));
            issued.add(secret, scope, key, one.limit.rates, charged);
        }
    }

    /// Settles a reservation of a question that is denied, as if nothing had been used.
    fn give_up(&self, reservation: Option<Issued>) {
        let Some(token) = reservation.and_then(|issued| issued.token()) else { return };
        for open in counters_of(self.snapshot, &token) {
            // Without room for it, what was reserved stays charged.
            let _ = begin(self.snapshot, open, Some(0), drop);
        }
    }
}

impl Groups {
    /// Makes the query. Returns what is asked together and alone, in the order of the query.
    fn query(
        mut self,
        snapshot: &Snapshot,
        is_shadow: bool,
        deadline: Deadline,
    ) -> (Vec<Asked>, Vec<Asked>, Query) {
        let mut query = Query {
            deadline: Some(deadline),
            refused: self.refused,
            beside_refused: std::mem::take(&mut self.beside_refused),
            ..Query::default()
        };
        if self.is_denied {
            // What is denied already is not counted elsewhere: a domain's limits are only read, as ratelimit's answers have them all.
            // What was used is charged.
            let is_left_out = |one: &Asked| one.is_of_policy || self.refused.is_some();
            self.alone.retain(|one| !(one.intent.needs_room() && is_left_out(one)));
            let of_domain = self.asked.drain(..).filter(|one| !one.is_of_policy);
            self.alone.extend(of_domain.map(|one| Asked { intent: Intent::Peek, ..one }));
        }
        let Self { mut asked, mut alone, number, .. } = self;
        asked.iter_mut().chain(&mut alone).for_each(|one| one.number = number);
        asked.sort_by_key(|one| (one.layer, one.store));
        let reserved = |one: &Asked| match one.intent {
            Intent::Reserve(lasts) => number.map(|number| (number, lasts)),
            Intent::Consume | Intent::Peek | Intent::Charge | Intent::GiveBack | Intent::Settle(_) => None,
        };
        // Beside each counter may be a ledger.
        let most = if number.is_some() { MAX_COUNTERS / 2 } else { MAX_COUNTERS };
        for part in asked.chunk_by(|a, b| (a.layer, a.store) == (b.layer, b.store)) {
            for chunk in part.chunks(most) {
                let reserved: Vec<_> =
                    chunk.iter().enumerate().filter_map(|(n, one)| Some((n, reserved(one)?))).collect();
                let counters = chunk.iter().map(|one| (one.limit, one.counter.clone()));
                query.ask_part(chunk[0].store, counters, &reserved);
            }
        }
        query.beside = alone
            .iter()
            .map(|one| Beside {
                part: Part::of_one(snapshot.store(one.limit), one.limit, one.counter.clone(), reserved(one)),
                intent: one.intent,
                denies: !(one.is_observed || one.is_quota || is_shadow),
            })
            .collect();
        (asked, alone, query)
    }
}

/// Returns a rate as an answer names it.
fn current_limit(rate: &Rate, one: &Asked) -> CurrentLimit {
    let (unit, multiplier) = RateUnit::of(rate);
    let period_millis = if rate.unit() == Unit::Slots { 0 } else { rate.period.millis() };
    CurrentLimit { requests: rate.requests.get(), period_millis, unit, multiplier, name: one.name.clone() }
}
