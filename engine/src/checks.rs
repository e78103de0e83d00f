//! Checks of applications: limits that they name with the keys of their clients, or a request as a proxy would see it. Reservations,
//! which they settle.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use http::HeaderMap;
use sluice_config::RequestAttributes;
use sluice_config::policy::Consistency;
use sluice_config::prepared::rate_set::Choice;
use sluice_config::prepared::{PreparedKind, Refusal as LimitRefusal};
use sluice_limiter::{Algorithm, MAX_COUNT, Period, Rate};
use sluice_store::{KeyHash, MAX_COUNTERS, PlannedCounter};
use tokio::time::Instant;

use crate::engine::Engine;
pub use crate::heads::{NotChecked, Policies};
use crate::limit::index::LimitIndex;
use crate::limit::query::{Intent, Part, Query, View};
use crate::limit::rates::strict;
use crate::limit::reservation::{Open, Settled, counters_of, settle};
use crate::limit::snapshot::Snapshot;
use crate::limit::token::Token;
use crate::question::asking::{Asking, Findings};
use crate::question::counters::{Asked, Groups, MAX_CHECKED};
pub use crate::question::{CurrentLimit, Outcome, Status};

/// A check of an application: all its limits admit it, or none is charged.
#[derive(Debug)]
pub struct Check<'a> {
    /// Whether costs are charged, reserved or only compared.
    pub how: How,
    /// Headers of the call, which may name its trace.
    pub headers: &'a HeaderMap,
}

/// Whether the costs of a check are charged, reserved or only compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// They are charged if there is room.
    Charge,
    /// They are only compared with what is left.
    Peek,
    /// They are charged if there is room, and settled by an id. It can be settled for this time, or else for that of the policy or
    /// for an hour.
    Reserve(Option<Period>),
}

/// A limit that an application names, with the client.
#[derive(Debug, Clone, Copy)]
pub struct NamedLimit<'a> {
    /// `NAMESPACE/NAME` of the policy.
    pub policy: &'a str,
    /// Name of the limit; `None` if the policy has one alone.
    pub limit: Option<&'a str>,
    /// The values of the parts of the key.
    pub key: &'a [String],
    /// The cost; `None` for 1, or for what the policy reserves.
    pub cost: Option<u64>,
}

/// The answer to a check.
#[derive(Debug)]
pub struct CheckAnswer {
    /// The limits that it is about, in their order.
    pub limits: Vec<LimitStatus>,
    /// The id by which what was reserved is settled.
    pub reservation: Option<Reservation>,
    /// The store's failure, if it did not answer.
    pub store_failure: Option<&'static str>,
}

/// The id of a reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    /// The id.
    pub id: String,
    /// The number of limits in which something was reserved.
    pub limits: usize,
    /// Time until the first of its limits forgets it.
    pub lasts: Duration,
}

/// A limit, with its decision about a check.
#[derive(Debug)]
pub struct LimitStatus {
    /// `NAMESPACE/NAME` of the policy.
    pub policy: String,
    /// Name of the limit.
    pub limit: Arc<str>,
    /// The decision.
    pub status: Status,
}

impl CheckAnswer {
    /// Reports whether no limit denies it.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.limits.iter().all(|one| one.status.outcome != Outcome::OverLimit)
    }
}

/// The reason why a check has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// It is not checked by the policies that it names.
    #[error(transparent)]
    NotChecked(#[from] NotChecked),
    /// The policy has several limits, and the check names none.
    #[error("{0}")]
    Unnamed(String),
    /// The policy has no such limit.
    #[error("{0}")]
    Limit(String),
    /// The key is not one of the limit.
    #[error("{0}")]
    Key(String),
    /// The cost does not fit the check.
    #[error("{0}")]
    Cost(String),
    /// The limit cannot be checked so.
    #[error("{0}")]
    NotPossible(String),
    /// Two of its limits have one counter.
    #[error("the same limit and key are there twice: add up their costs")]
    Twice,
    /// The check is about too many limits.
    #[error("one check is about at most {MAX_COUNTERS} limits")]
    TooManyLimits,
}

/// A check that has no answer, and the limit that it is due to, by its position.
pub type Refusal = (Option<usize>, CheckError);

/// Why a settlement has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SettleError {
    /// The id is none of a reservation that the caller may settle.
    #[error("this is not the id of a reservation of yours")]
    Unknown,
    /// The store did not answer.
    #[error(
        "the store did not answer, so it is not known whether the reservation was settled: try again with the same id"
    )]
    Store(&'static str),
}

/// A settled counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettledLimit {
    /// `NAMESPACE/NAME` of the policy.
    pub policy: String,
    /// Name of the limit.
    pub limit: Arc<str>,
    /// The cost that was reserved; `None` if it was settled before, or has expired, or is a slot.
    pub reserved: Option<u64>,
    /// Whether this call has settled it.
    pub settled: bool,
}

impl Engine {
    /// Prepares the check of limits that an application names.
    ///
    /// # Errors
    /// A limit cannot be checked as it is named.
    pub fn prepare_limits<'a>(
        &self,
        check: Check<'a>,
        named: &[NamedLimit<'_>],
    ) -> Result<PreparedCheck<'a>, Refusal> {
        let snapshot = self.publisher().current();
        if snapshot.denies_all {
            return Err((None, NotChecked::NoPolicies.into()));
        }
        if named.len() > MAX_COUNTERS {
            return Err((None, CheckError::TooManyLimits));
        }
        let mut prepared = PreparedCheck::new(snapshot, check);
        for (position, one) in named.iter().enumerate() {
            prepared.add_named(one).map_err(|error| (Some(position), error))?;
        }
        Ok(prepared)
    }

    /// Prepares the check of a request by policies.
    ///
    /// # Errors
    /// There are no such policies, or the request meets what no application can be told about.
    pub fn prepare_request<'a, 'r>(
        &self,
        check: Check<'a>,
        policies: Policies<'_>,
        request: impl Fn() -> RequestAttributes<'r>,
    ) -> Result<PreparedCheck<'a>, CheckError> {
        let snapshot = self.publisher().current();
        let matched = snapshot.find_among(View::Exchange, policies, &request)?;
        let mut prepared = PreparedCheck::new(snapshot.clone(), check);
        prepared.add_matched(&matched)?;
        prepared.describe(&request);
        Ok(prepared)
    }

    /// Settles a reservation: `used` is what it has cost in the end, of each of its limits, or else what was reserved. `may_settle`
    /// tells whether the caller may settle those of a namespace.
    ///
    /// # Errors
    /// The id is none that the caller may settle, or the store did not answer.
    pub async fn settle(
        &self,
        id: &str,
        used: Option<u64>,
        may_settle: impl Fn(&str) -> bool,
        budget: Duration,
    ) -> Result<Vec<SettledLimit>, SettleError> {
        let snapshot = self.publisher().current();
        let token = Token::parse(id.as_bytes()).ok_or(SettleError::Unknown)?;
        let counters = counters_of(&snapshot, &token);
        let prepared = |index: LimitIndex| &snapshot.policies[usize::from(index.policy)].prepared;
        if counters.is_empty() || !counters.iter().all(|open| may_settle(&prepared(open.limit).namespace)) {
            return Err(SettleError::Unknown);
        }
        let deadline = Instant::now() + budget;
        let settle = async |open: Open| {
            let limit = open.limit;
            let settled = settle(&snapshot, open, used, deadline).await;
            let settled = settled.map_err(|error| SettleError::Store(error.as_str()))?;
            Ok(SettledLimit {
                policy: prepared(limit).qualified_name(),
                limit: snapshot.limit(limit).name.clone(),
                reserved: match settled {
                    Settled::Cost(reserved) => Some(reserved.cost),
                    Settled::Slots | Settled::NotFound => None,
                },
                settled: settled != Settled::NotFound,
            })
        };
        // All of them begin, even if the store does not answer about one.
        join_all(counters.into_iter().map(settle)).await.into_iter().collect()
    }
}

/// A check whose counters are found.
#[derive(Debug)]
pub struct PreparedCheck<'a> {
    snapshot: Arc<Snapshot>,
    check: Check<'a>,
    groups: Groups,
    /// The limit of each status.
    places: Vec<LimitIndex>,
    /// The statuses of those that nothing counts, by their positions.
    uncounted: Vec<(usize, Status)>,
    /// The cost of each.
    costs: Vec<u64>,
    /// The greatest cost that each ever admits.
    capacities: Vec<u64>,
    /// The clients in words, for operators. Without them, they are as an application has named them.
    clients: Vec<Arc<str>>,
    lasts: Option<Period>,
}

impl<'a> PreparedCheck<'a> {
    fn new(snapshot: Arc<Snapshot>, check: Check<'a>) -> Self {
        Self {
            snapshot,
            check,
            groups: Groups::default(),
            places: Vec::new(),
            uncounted: Vec::new(),
            costs: Vec::new(),
            capacities: Vec::new(),
            clients: Vec::new(),
            lasts: None,
        }
    }

    /// Describes the clients of a request.
    fn describe<'r>(&mut self, request: &impl Fn() -> RequestAttributes<'r>) {
        let describe = |index: &LimitIndex| {
            let policy = &self.snapshot.policies[usize::from(index.policy)].prepared;
            policy.describe_client(usize::from(index.limit), &request())
        };
        self.clients = self.places.iter().map(describe).collect();
    }

    /// Begins with a limit. Returns the position of its status.
    fn begin(&mut self, index: LimitIndex, cost: u64) -> usize {
        self.places.push(index);
        self.costs.push(cost);
        self.capacities.push(u64::MAX);
        self.places.len() - 1
    }

    fn add_named(&mut self, named: &NamedLimit<'_>) -> Result<(), CheckError> {
        let snapshot = self.snapshot.clone();
        let position = snapshot.by_name(named.policy);
        let position = position.ok_or_else(|| NotChecked::Policy(named.policy.to_owned()))?;
        let policy = &snapshot.policies[usize::from(position)];
        let limits = &policy.prepared.limits;
        let found = match named.limit {
            Some(name) => (0..).zip(limits).find(|(_, limit)| limit.name == name),
            None if limits.len() == 1 => (0..).zip(limits).next(),
            None => None,
        };
        let (number, limit) = found.ok_or_else(|| {
            let names: Vec<_> = limits.iter().map(|limit| limit.name.as_str()).collect();
            let names = names.join(", ");
            match named.limit {
                Some(name) => CheckError::Limit(format!(
                    "policy {} has no limit {name:?}: its limits are {names}",
                    named.policy
                )),
                None => CheckError::Unnamed(format!(
                    "policy {} has several limits: name one of {names}",
                    named.policy
                )),
            }
        })?;
        let (key, choice) = limit
            .client(snapshot.secret(policy), named.key)
            .map_err(|error| CheckError::Key(format!("limit {}: {error}", limit.name)))?;
        let base = LimitIndex { policy: position, limit: number, rates: 0 };
        let reserve = limit.charge.reserve();
        let cost = named.cost.unwrap_or(match self.check.how {
            How::Reserve(_) if reserve > 0 => reserve,
            How::Charge | How::Peek | How::Reserve(_) => 1,
        });
        if let (How::Reserve(_), 0) = (self.check.how, cost) {
            return Err(CheckError::Cost("a reservation of 0 is none: send a cost of at least 1".to_owned()));
        }
        let at = self.begin(base, cost);
        match choice.unwrap_or(Choice::Rates(0)) {
            Choice::Rates(rates) => self.add(at, LimitIndex { rates, ..base }, KeyHash(key), cost),
            Choice::Unlimited => {
                self.uncounted.push((at, Status::without_limit(Outcome::Unlimited, MAX_COUNT, false)));
                Ok(())
            }
            Choice::Deny => {
                self.refuse(at, base, LimitRefusal::Tier);
                Ok(())
            }
        }
    }

    fn refuse(&mut self, at: usize, index: LimitIndex, refusal: LimitRefusal) {
        let status = self.groups.refuse(self.snapshot.limit(index), (index, refusal), false);
        self.uncounted.push((at, status));
    }

    fn add_matched(&mut self, matched: &Query) -> Result<(), CheckError> {
        if matched.meets_too_many {
            return Err(CheckError::TooManyLimits);
        }
        let beside = matched.beside.iter().map(|one| &one.part);
        for (index, counter) in matched.parts.iter().chain(beside).flat_map(Part::iter) {
            let (key, cost) = (counter.key, counter.cost);
            let at = self.begin(index, cost);
            self.add(at, index, key, cost)?;
        }
        let refused = matched.beside_refused.iter().map(|&index| (index, LimitRefusal::Tier));
        for (index, refusal) in matched.refused.into_iter().chain(refused) {
            let at = self.begin(index, 0);
            self.refuse(at, index, refusal);
        }
        Ok(())
    }

    /// Adds the counter of a limit.
    fn add(&mut self, at: usize, index: LimitIndex, key: KeyHash, cost: u64) -> Result<(), CheckError> {
        let snapshot = &self.snapshot.clone();
        let policy = &snapshot.policies[usize::from(index.policy)];
        let prepared = &policy.prepared.limits[usize::from(index.limit)];
        let name = || format!("limit {} of policy {}", prepared.name, policy.prepared.qualified_name());
        let not_possible = |reason: &str| Err(CheckError::NotPossible(format!("{} {reason}", name())));
        let is_local = |consistency| matches!(consistency, Consistency::Local | Consistency::PerPod);
        let plan = &snapshot.rates(index).plan;
        let (intent, plan) = match (&prepared.kind, self.check.how) {
            (PreparedKind::Adaptive(_), _) => {
                return not_possible("adapts to the load of a pod, and has no counters");
            }
            (_, How::Peek) => (Intent::Peek, plan.clone()),
            (PreparedKind::Slots(_), How::Charge) => {
                return not_possible(
                    "is on concurrent requests: send `reserve`, and settle the reservation when the request has ended",
                );
            }
            (PreparedKind::Rates { .. }, How::Reserve(_)) if is_local(policy.prepared.consistency) => {
                return not_possible(
                    "is counted by each process alone, so another one could not settle a reservation: leave `reserve` out, or choose \
                     another consistency",
                );
            }
            (PreparedKind::Rates { .. }, How::Reserve(_))
                if plan.spec.rates.iter().any(|rate| matches!(rate.algorithm, Algorithm::WarmUp(_))) =>
            {
                return not_possible(
                    "has a bucket that warms up, which cannot take a charge back: leave `reserve` out, or choose another algorithm",
                );
            }
            (_, How::Reserve(lasts)) => {
                let (own, plan) = self.groups.reserve(snapshot, index, lasts);
                self.lasts = Some(self.lasts.map_or(own, |lasts| lasts.min(own)));
                (Intent::Reserve(own), plan)
            }
            // Quota is leased for one cost alone.
            (PreparedKind::Rates { .. }, How::Charge) if cost == 1 => (Intent::Consume, plan.clone()),
            (PreparedKind::Rates { .. }, How::Charge) => (Intent::Consume, strict(plan)),
        };
        let capacity = plan.spec.rates.iter().map(Rate::capacity).min();
        self.capacities[at] = capacity.unwrap_or(u64::MAX);
        let counter = PlannedCounter { limit: plan, key, cost };
        let active = snapshot.limit(index);
        if active.needs_pods() {
            return not_possible(
                "delays requests, or depends on the load of a pod: only sidecars enforce it",
            );
        }
        policy.prepared.note_asked();
        let is_known = |other: &&Asked| {
            other.counter.key == key && other.counter.limit.spec.scope == counter.limit.spec.scope
        };
        if self.groups.asked.iter().chain(&self.groups.alone).any(|other| is_known(&other)) {
            return Err(CheckError::Twice);
        }
        self.groups.add(Asked::of_policy(at, index, (policy, active), counter, intent), false);
        if self.groups.len() > MAX_CHECKED {
            return Err(CheckError::TooManyLimits);
        }
        Ok(())
    }

    /// Returns the number of limits that it is about.
    #[must_use]
    pub fn limits(&self) -> usize {
        self.places.len()
    }

    /// Makes the check. All calls to the store may take `budget` together.
    pub async fn decide(self, engine: &Engine, budget: Duration) -> CheckAnswer {
        let Self { snapshot, check, groups, places, uncounted, costs, capacities, clients, lasts } = self;
        let mut findings = Findings::new(places.len());
        let client = |position: usize| -> Arc<str> {
            clients.get(position).cloned().unwrap_or_else(|| "(named by an application)".into())
        };
        let asking =
            Asking { engine, snapshot: &snapshot, is_shadow: false, headers: check.headers, client: &client };
        asking.decide(groups, budget, &mut findings).await;
        for (at, status) in uncounted {
            findings.statuses[at] = status;
        }
        let (id, reserved) = (findings.reservation(), findings.reserved());
        if check.how == How::Peek && findings.store_failure.is_none() {
            for (at, (status, cost)) in findings.statuses.iter_mut().zip(costs).enumerate() {
                let (capacity, denies) = (capacities[at], snapshot.limit(places[at]).denies());
                status.compare(cost, capacity, if denies { Outcome::OverLimit } else { Outcome::Observed });
            }
        }
        let mut limits: Vec<_> = places.into_iter().zip(findings.statuses).collect();
        if !clients.is_empty() {
            // What a request meets is in the order of the policies, whatever the store is asked first.
            limits.sort_by_key(|(index, _)| (index.policy, index.limit));
        }
        let limits = limits.into_iter().map(|(index, status)| LimitStatus {
            policy: snapshot.policies[usize::from(index.policy)].prepared.qualified_name(),
            limit: snapshot.limit(index).name.clone(),
            status,
        });
        CheckAnswer {
            limits: limits.collect(),
            reservation: id.zip(lasts).map(|(id, lasts)| {
                let lasts = Duration::from_millis(lasts.millis());
                Reservation { id, limits: reserved, lasts }
            }),
            store_failure: findings.store_failure,
        }
    }
}
