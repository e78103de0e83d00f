//! Decides requests of the past, by the same code as those of the present: matching, keys, counters and outcomes. The time is that
//! of the requests. Nothing is forwarded, and requests that would wait are not held.

use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderMap, Request, StatusCode};
use http_body::Body;
use prometheus_client::registry::Registry;
use sluice_config::message::PolicyUid;
use sluice_config::store_access::{StoreChoice, StoreChoices};
use sluice_config::{Nack, PreparedPolicy};
use sluice_store::{Clock, PlannedCounter};
use smallvec::SmallVec;

use crate::engine::{Engine, EngineOptions};
use crate::limit::decide::decide;
use crate::limit::index::LimitIndex;
use crate::limit::matching::attributes;
use crate::limit::query::{Part, Query};
use crate::limit::rates::Load;
use crate::limit::verdict::{Outcome, Reason};
use crate::publish::publisher::Publisher;
use crate::startup_policy::StartupPolicy;

/// Policies with counters in memory, and a clock that follows the requests.
#[derive(Debug)]
pub struct Simulation {
    publisher: Publisher,
    clock: Clock,
}

/// A request that was decided.
#[derive(Debug)]
pub struct Simulated {
    /// Whether the request was forwarded.
    pub is_admitted: bool,
    /// The limits that counted or denied it.
    pub limits: SmallVec<[LimitOutcome; 4]>,
}

/// The effect of one limit on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitOutcome {
    /// Position of the policy.
    pub policy: usize,
    /// Position of the limit in its policy.
    pub limit: usize,
    /// Index of the rates that decide; 0 are those of the limit itself.
    pub rates: u16,
    /// Hash of the client's key. A limit that refuses a request without counting it has none.
    pub key: Option<u128>,
    /// Whether the request lacks a part of the key, so that all such requests share the counter.
    pub lacks_part: bool,
    /// Charge before the response was known.
    pub cost: u64,
    /// The decision.
    pub decision: LimitDecision,
}

/// The decision of a limit about a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitDecision {
    /// The limit had room.
    Admitted,
    /// The limit had room, or was not asked, and another one denied the request.
    DeniedByOther,
    /// The limit denied the request.
    Denied,
    /// The limit would have denied the request, and only marks or observes.
    Passed,
    /// The request would have waited in the queue of the limit.
    Waits,
}

impl Simulation {
    /// Begins at a time, in microseconds since the Unix epoch. Must be called within a tokio runtime. Fails if the policies cannot
    /// be active together.
    pub fn begin(
        policies: &[(PolicyUid, Arc<PreparedPolicy>)],
        at: u64,
    ) -> Result<Self, Vec<(PolicyUid, Nack)>> {
        let clock = Clock::manual(0);
        clock.advance_micros(at);
        let options = EngineOptions {
            runtime: tokio::runtime::Handle::current(),
            clock: clock.clone(),
            startup_policy: StartupPolicy::Forward,
            local_quota_keys: 0,
            memory_keys: 1 << 20,
            load: Load::default(),
        };
        let publisher = Engine::start(options, &mut Registry::default()).publisher().clone();
        let nacks = publisher.publish(&StoreChoices::only(StoreChoice::Memory), policies);
        if nacks.is_empty() { Ok(Self { publisher, clock }) } else { Err(nacks) }
    }

    /// Decides a request of a time, in microseconds since the Unix epoch, which the application answered with a status. Time does
    /// not go back.
    pub async fn decide<B: Body>(
        &self,
        at: u64,
        request: &Request<B>,
        peer: IpAddr,
        status: Option<StatusCode>,
    ) -> Simulated {
        self.clock.advance_micros(at.saturating_sub(self.clock.now()));
        let snapshot = self.publisher.current();
        let mut query = Query::find(&snapshot, || attributes(request, peer, None));
        let outcome = |index: LimitIndex, key: Option<u128>, cost, decision| LimitOutcome {
            policy: usize::from(index.policy),
            limit: usize::from(index.limit),
            rates: index.rates,
            lacks_part: key.is_some_and(|key| {
                snapshot.policy(index).limits[usize::from(index.limit)]
                    .is_shared_key(snapshot.secret(&snapshot.policies[usize::from(index.policy)]), key)
            }),
            key,
            cost,
            decision,
        };
        let admitted = |(index, counter): (LimitIndex, &PlannedCounter)| {
            outcome(index, Some(counter.key.0), counter.cost, LimitDecision::Admitted)
        };
        let mut limits: SmallVec<[_; 4]> = query.parts.iter().flat_map(Part::iter).map(admitted).collect();
        let beside: SmallVec<[_; 4]> =
            query.beside.iter().flat_map(|one| one.part.iter()).map(admitted).collect();
        let mut verdict = decide(snapshot.clone(), &mut query, self.publisher.slots()).await;
        let mut held = std::mem::take(&mut verdict.held);
        let mut deny = |index: LimitIndex, decision| {
            limits.iter_mut().for_each(|limit| limit.decision = LimitDecision::DeniedByOther);
            (usize::from(index.policy), usize::from(index.limit), decision)
        };
        let denials: SmallVec<[_; 4]> = match &verdict.outcome {
            Outcome::Admit(_) | Outcome::Unknown(_) => SmallVec::new(),
            Outcome::Wait(wait) => std::iter::once(deny(wait.limit, LimitDecision::Waits)).collect(),
            Outcome::Deny(Reason::Limits) => {
                verdict.denials().map(|(index, _)| deny(index, LimitDecision::Denied)).collect()
            }
            Outcome::Deny(Reason::QueueFull(full)) => {
                std::iter::once(deny(full.limit, LimitDecision::Denied)).collect()
            }
            Outcome::Deny(Reason::NotQueued(denial)) => {
                std::iter::once(deny(denial.limit, LimitDecision::Denied)).collect()
            }
            Outcome::Deny(
                Reason::Undecidable(index)
                | Reason::Refused(index, _)
                | Reason::Shed(index)
                | Reason::SlotsExpired { limit: index, .. }
                | Reason::StoreFailed { limit: index, .. },
            ) => std::iter::once(deny(*index, LimitDecision::Denied)).collect(),
            Outcome::Deny(Reason::TooManyLimits) => {
                limits.iter_mut().for_each(|limit| limit.decision = LimitDecision::DeniedByOther);
                SmallVec::new()
            }
        };
        let is_admitted = matches!(verdict.outcome, Outcome::Admit(_) | Outcome::Unknown(_));
        let asks_beside = !verdict.beside.is_empty();
        for (policy, limit, decision) in denials {
            match limits.iter_mut().find(|known| (known.policy, known.limit) == (policy, limit)) {
                Some(known) => known.decision = decision,
                None => limits.push(LimitOutcome {
                    policy,
                    limit,
                    rates: 0,
                    key: None,
                    lacks_part: false,
                    cost: 0,
                    decision,
                }),
            }
        }
        limits.extend(beside.into_iter().map(|observed| {
            let is_passed = verdict.passed().any(|(index, _)| {
                (usize::from(index.policy), usize::from(index.limit)) == (observed.policy, observed.limit)
            });
            let decision = match (is_passed, asks_beside) {
                (true, _) => LimitDecision::Passed,
                (false, true) => LimitDecision::Admitted,
                (false, false) => LimitDecision::DeniedByOther,
            };
            LimitOutcome { decision, ..observed }
        }));
        if is_admitted && !held.charges.is_empty() {
            held.forwarding();
            held.charges.head(status.unwrap_or(StatusCode::OK), &HeaderMap::new());
            held.charges.end();
            drop(held);
            // The charges are corrected by tasks, which never wait for memory.
            for _ in 0..4 {
                tokio::task::yield_now().await;
            }
        }
        Simulated { is_admitted, limits }
    }

    /// Describes the client of a request as a limit identifies it, with the public parts of its key.
    #[must_use]
    pub fn describe_client<B: Body>(
        policy: &PreparedPolicy,
        limit: usize,
        request: &Request<B>,
        peer: IpAddr,
    ) -> String {
        policy.describe_client(limit, &attributes(request, peer, None)).to_string()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::Empty;

    use super::*;

    const POLICY: &str = r#"{"namespace":"shop","name":"p","mode":"Enforce","onStoreFailure":"Allow","consistency":"Strict","ambiguousPaths":"Match",
        "limits":[
        {"name":"logins","mode":"Enforce","onMissing":"Shared","key":[{"header":{"name":"x-user"}}],"kind":{"rates":{
            "base":[{"requests":2,"periodMillis":60000,"algorithm":{"fixedWindow":"Clock"}}],"countWhen":{"statusCodes":["401"]}}}},
        {"name":"observed","mode":"Shadow","onMissing":"Shared","kind":{"rates":{
            "base":[{"requests":3,"periodMillis":60000,"algorithm":{"fixedWindow":"Clock"}}]}}}]}"#;

    #[tokio::test]
    async fn requests_are_decided_at_their_time_and_by_their_outcome() {
        let policies = [("p".to_owned(), Arc::new(PreparedPolicy::from_json(POLICY).unwrap()))];
        let simulation = Simulation::begin(&policies, 60_000_000).unwrap();
        let request = Request::get("/").header("x-user", "mallory").body(Empty::<Bytes>::new()).unwrap();
        let mut decisions = Vec::new();
        for (second, status) in [(60, 401), (61, 200), (62, 401), (63, 401), (59, 401), (120, 401)] {
            let status = StatusCode::from_u16(status).ok();
            let peer = "192.0.2.1".parse().unwrap();
            let simulated = simulation.decide(second * 1_000_000, &request, peer, status).await;
            decisions.push((
                simulated.is_admitted,
                simulated.limits.iter().map(|limit| limit.decision).collect::<Vec<_>>(),
            ));
        }
        use LimitDecision::{Admitted, Denied, Passed};
        let expected = [
            (true, vec![Admitted, Admitted]),
            (true, vec![Admitted, Admitted]),
            (true, vec![Admitted, Admitted]),
            (false, vec![Denied, Passed]),
            (false, vec![Denied, Passed]),
            (true, vec![Admitted, Admitted]),
        ];
        assert_eq!(decisions, expected);
    }
}
