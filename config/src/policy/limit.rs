//! One limit of a policy.

use serde::{Deserialize, Serialize};
use sluice_limiter::{Period, Rate, RateError, Requests};

use crate::expression::{Attribute, Expression, Expressions, Node};
use crate::key::{KeyPart, OnMissing};
use crate::matches::Match;
use crate::policy::{
    AdaptiveLimit, Allowance, BlobHash, Cost, CountWhen, Mode, OnLimit, Plan, Priority, RequestCost, Tier,
};

/// Time after which the slots of a sidecar that died are free again, in milliseconds. A live sidecar renews
/// its slots three times within it, so a shorter outage of the store loses no slot.
pub const SLOT_LEASE_MILLIS: u64 = 30_000;

/// Number of keys of a limit that names no other maximum.
pub const DEFAULT_MAX_KEYS: u64 = 100_000;

/// A compiled limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CompiledLimit {
    /// Name of the limit, unique in the policy.
    pub name: String,
    /// Enforced, or only observed.
    pub mode: Mode,
    /// Requests that the limit applies to: those that match at least one entry. If empty, all requests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matches: Vec<Match>,
    /// Requests that the limit does not apply to, although they match: those that match at least one entry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub except: Vec<Match>,
    /// Condition that requests must fulfil too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<String>,
    /// Parts of the key that identifies clients. If empty, all clients share one counter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub key: Vec<KeyPart>,
    /// Largest number of requests that a descriptor may bring along in place of the rate's; if absent, none may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_override: Option<u64>,
    /// Treatment of a request that lacks a part of the key.
    pub on_missing: OnMissing,
    /// Number of keys that the store keeps at most, within 25 %. New keys beyond it share one counter. `None` is
    /// [`DEFAULT_MAX_KEYS`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_keys: Option<u64>,
    /// Treatment of a request that the limit denies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_limit: Option<OnLimit>,
    /// Kind of the limit, and how much it admits.
    pub kind: LimitKind,
}

/// The kind of a limit, and how much it admits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum LimitKind {
    /// Requests per period.
    Rates(Box<Rates>),
    /// Concurrent requests in all pods together.
    Slots(Slots),
    /// Concurrent requests in each pod, which learns their number from its application.
    Adaptive(AdaptiveLimit),
}

/// The rates of a limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rates {
    /// Rates, all of which must admit a request that no tier matches.
    pub base: Vec<Rate>,
    /// A higher number of requests while the pod has spare capacity. The limit then has exactly one rate: with
    /// several it would be ambiguous which of them is boosted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boosted: Option<Boosted>,
    /// Exceptions for some requests. The first tier that matches decides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<Tier>,
    /// Plans that `overrides` may give to clients.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plans: Vec<Plan>,
    /// Hash of the [`OverrideTable`](crate::overrides::OverrideTable) with the plans of clients, which precede tiers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overrides: Option<BlobHash>,
    /// Cost of a request; if absent, 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// Outcomes of requests that count; if absent, all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count_when: Option<CountWhen>,
}

/// A higher number of requests while the pod has spare capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Boosted {
    /// Boosted number of requests per period.
    pub requests: Requests,
    /// Utilization below which the boosted number applies, in percent of `capacity`.
    pub below_percent: u64,
    /// Capacity of the pod.
    pub capacity: Capacity,
}

/// The capacity of a pod, 100 percent of utilization.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Capacity {
    /// Number of requests in flight.
    InFlight(u64),
}

/// A limit on concurrent requests in all pods together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Slots {
    /// Number of slots, at most [`sluice_limiter::MAX_CONCURRENT`].
    pub max: Requests,
    /// Slot lease: time after which a slot that is not renewed expires.
    #[serde(rename = "leaseMillis")]
    pub lease: Period,
    /// Longest time, in milliseconds, for which a request whose client has left keeps its slot.
    pub abandoned_for_millis: u64,
}

impl CompiledLimit {
    /// Iterates over all conditions on requests: those of the limit and of its tiers or priorities.
    pub fn conditions(&self) -> impl Iterator<Item = &Match> {
        let (tiers, priorities) = self.tiers_and_priorities();
        let of_tiers = tiers.iter().flat_map(|tier| &tier.matches);
        let of_priorities = priorities.iter().flat_map(|priority| &priority.matches);
        self.matches.iter().chain(&self.except).chain(of_tiers).chain(of_priorities)
    }

    fn tiers_and_priorities(&self) -> (&[Tier], &[Priority]) {
        match &self.kind {
            LimitKind::Rates(rates) => (&rates.tiers, &[]),
            LimitKind::Slots(_) => (&[], &[]),
            LimitKind::Adaptive(adaptive) => (&[], &adaptive.priorities),
        }
    }

    /// Iterates over all expressions: those of the limit, its key and its tiers or priorities, and that of its cost. `compiled` has those
    /// of the policy.
    pub fn expressions<'a>(&'a self, compiled: &'a Expressions) -> impl Iterator<Item = &'a Expression> {
        let (tiers, priorities) = self.tiers_and_priorities();
        let cost = match &self.kind {
            LimitKind::Rates(rates) => rates.cost.as_ref(),
            LimitKind::Slots(_) | LimitKind::Adaptive(_) => None,
        };
        let cost = match cost.and_then(|cost| cost.request.as_ref()) {
            Some(RequestCost::Cel(text)) => Some(text),
            Some(RequestCost::Number(_) | RequestCost::Header(_) | RequestCost::BodyBytes(_)) | None => None,
        };
        let of_tiers = tiers.iter().filter_map(|tier| tier.when.as_ref());
        let of_priorities = priorities.iter().filter_map(|priority| priority.when.as_ref());
        let of_parts = self.key.iter().filter_map(|part| part.source.expression());
        let texts = self.when.iter().chain(of_tiers).chain(of_priorities).chain(cost).chain(of_parts);
        texts.filter_map(|text| compiled.get(text))
    }

    /// Reports whether the limit needs more than the head of a request: its response, its end, or a process that holds it back.
    #[must_use]
    pub fn needs_exchange(&self) -> bool {
        let LimitKind::Rates(rates) = &self.kind else { return true };
        let of_tiers = rates.tiers.iter().map(|tier| &tier.allowance);
        let allowances = of_tiers.chain(rates.plans.iter().map(|plan| &plan.allowance));
        let others = allowances.filter_map(|allowance| match allowance {
            Allowance::Rates(rates) => Some(rates),
            Allowance::Unlimited | Allowance::Deny => None,
        });
        self.on_limit.as_ref().is_some_and(|on| on.queue.is_some())
            || rates.boosted.is_some()
            || rates.count_when.is_some()
            || rates.cost.as_ref().is_some_and(|cost| cost.response.is_some())
            || rates.base.iter().chain(others.flatten()).any(Rate::delays)
    }

    /// Reports whether a condition looks at the address of the client.
    pub fn reads_address(&self, compiled: &Expressions) -> bool {
        self.expressions(compiled).any(|expression| {
            expression.root.any(&mut |node| *node == Node::Attribute(Attribute::ClientAddress))
        }) || self.conditions().any(|condition| !condition.client_cidrs.is_empty())
    }

    /// Returns the number of regular expressions in all conditions. A template becomes one.
    #[must_use]
    pub fn regexes(&self, compiled: &Expressions) -> usize {
        let in_conditions = self.conditions().map(Match::regexes).sum::<usize>();
        in_conditions + self.expressions(compiled).map(|expression| expression.patterns.len()).sum::<usize>()
    }

    /// Returns the number of keys that the store keeps at most; 0 for any number. A limit with one key for all clients
    /// needs no maximum. Nor does a limit of concurrency: its records end with the requests in flight.
    #[must_use]
    pub fn most_keys(&self) -> u64 {
        match self.kind {
            LimitKind::Rates(_) if !self.key.is_empty() => self.max_keys.unwrap_or(DEFAULT_MAX_KEYS),
            LimitKind::Rates(_) | LimitKind::Slots(_) | LimitKind::Adaptive(_) => 0,
        }
    }
}

impl Rates {
    /// Iterates over the base rates and those of all tiers and plans.
    pub fn all(&self) -> impl Iterator<Item = &Rate> {
        self.base.iter().chain(self.other_sets().flatten())
    }

    /// Iterates over the sets of rates of tiers and plans.
    pub fn other_sets(&self) -> impl Iterator<Item = &Vec<Rate>> {
        let of_tiers = self.tiers.iter().map(|tier| &tier.allowance);
        of_tiers.chain(self.plans.iter().map(|plan| &plan.allowance)).filter_map(
            |allowance| match allowance {
                Allowance::Rates(rates) => Some(rates),
                Allowance::Unlimited | Allowance::Deny => None,
            },
        )
    }
}

impl LimitKind {
    /// Returns the longest time, in milliseconds, for which a request whose client has left is in flight; 0 for limits
    /// of rates.
    #[must_use]
    pub fn abandoned_for_millis(&self) -> u64 {
        match self {
            Self::Rates(_) => 0,
            Self::Slots(slots) => slots.abandoned_for_millis,
            Self::Adaptive(adaptive) => adaptive.abandoned_for_millis,
        }
    }
}

impl Boosted {
    /// Returns the boosted form of a rate. It has the tag of the base rate, so both count in the same record.
    pub fn apply(&self, base: Rate) -> Result<Rate, RateError> {
        Rate { requests: self.requests, ..base }.validated()
    }

    /// Returns the mean number of requests in flight below which the boosted number applies, in hundredths of
    /// a request.
    #[must_use]
    pub fn below_hundredths(&self) -> u64 {
        let Capacity::InFlight(capacity) = self.capacity;
        self.below_percent.saturating_mul(capacity)
    }
}
