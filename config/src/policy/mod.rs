//! Compiled policies, as the operator sends them to the sidecars in JSON.
//!
//! A compiled policy means the same to every sidecar that applies it. A sidecar may be older than the operator,
//! so it nacks a policy with a field or a name that it does not know, at any depth. An absent field means that
//! a feature is not used, and that meaning never changes. Only [`Hints`] may hold fields that a sidecar ignores.
//!
//! [`matches`](crate::matches) selects the requests of a limit, [`key`](crate::key) identifies clients, by [tokens](crate::jwt) too, and
//! its [`LimitKind`] says how many requests it admits, in general, in each tier and with each plan.
//!
//! - [`cost`]: what a request costs, and which outcomes count.
//! - [`on_limit`]: what happens to a request that a limit denies, and the response to it.
//! - [`adaptive`]: a concurrency limit that each pod learns.

pub mod adaptive;
pub mod cost;
pub mod on_limit;

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use sluice_limiter::{Period, Rate, RateError, Requests};
pub use sluice_store::{Consistency, OnStoreFailure};

pub use self::adaptive::{Adaptive, AdaptiveLimit, Aimd, MAX_PRIORITIES, MAX_RESERVES, Priority};
pub use self::cost::{
    Cost, CountWhen, GrpcStatus, RequestCost, ResponseCost, ResponseCostSource, StatusCodes,
};
pub use self::on_limit::{
    Block, Body, Empty, Envelope, Header, Mark, OnLimit, Queue, QueueOrder, Reject, ResetFormat,
    StatusHeaders, Template,
};
use crate::client_address::ClientAddress;
use crate::expression::{Attribute, Expression, Expressions, Node};
use crate::jwt::CompiledJwt;
use crate::key::{KeyPart, OnMissing};
use crate::matches::Match;
use crate::request::Habit;

/// Name of the installation's store. Other names are those of stores in the policy's namespace.
pub const DEFAULT_STORE: &str = "default";

/// A compiled policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CompiledPolicy {
    /// Namespace of the policy object.
    pub namespace: String,
    /// Name of the policy object.
    pub name: String,
    /// Enforced, or only observed.
    pub mode: Mode,
    /// Decision about requests while the store does not respond.
    pub on_store_failure: OnStoreFailure,
    /// Location of the counters.
    pub consistency: Consistency,
    /// Name of the store; if absent, [`DEFAULT_STORE`].
    #[serde(default = "default_store", skip_serializing_if = "is_default_store")]
    pub store: String,
    /// Whether sidecars and the service enforce it: the service may have counted what a sidecar receives, and leaves to sidecars what
    /// it cannot decide itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_shared: bool,
    /// Treatment of requests whose path can be read in several ways.
    pub ambiguous_paths: AmbiguousPaths,
    /// Source of client addresses; if absent, the peer's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_address: Option<ClientAddress>,
    /// Habits of the application.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub habits: Vec<Habit>,
    /// Headers that report the state of the limits; if absent, all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status_headers: Option<Vec<StatusHeaders>>,
    /// Kinds of tokens to which the keys of limits refer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jwt: Vec<CompiledJwt>,
    /// Limits of the policy. A request must pass all that match it.
    pub limits: Vec<CompiledLimit>,
    /// Expressions in CEL, as they were compiled, by their texts.
    #[serde(default, skip_serializing_if = "Expressions::is_empty")]
    pub expressions: Expressions,
    /// Parts that a sidecar may ignore.
    #[serde(default, skip_serializing_if = "Hints::is_empty")]
    pub hints: Hints,
}

/// The treatment of requests whose path can be read in several ways: with an encoded slash, a backslash or a dot
/// segment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum AmbiguousPaths {
    /// A limit matches if any reading of the path does.
    #[default]
    Match,
    /// The request is refused.
    Reject,
}

/// Parts of a policy that a sidecar may ignore, because every request is decided alike without them. A sidecar
/// that does not know a hint drops it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hints {}

fn default_store() -> String {
    DEFAULT_STORE.to_owned()
}

fn is_default_store(name: &str) -> bool {
    name == DEFAULT_STORE
}

impl Hints {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl CompiledPolicy {
    /// Returns the policy with all its limits in Shadow.
    #[must_use]
    pub fn in_shadow(&self) -> Self {
        let mut policy = Self { mode: Mode::Shadow, ..self.clone() };
        for limit in &mut policy.limits {
            limit.mode = Mode::Shadow;
        }
        policy
    }

    /// Returns the JSON in which the policy is sent. Equal policies give equal bytes.
    #[must_use]
    pub fn to_json(&self) -> String {
        // The policy consists of structs, lists, strings and integers only, which always serialize.
        serde_json::to_string(self).unwrap_or_default()
    }
}

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

/// A tier: some requests of a limit, and what it admits of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Tier {
    /// Name of the tier, unique in the limit.
    pub name: String,
    /// Requests of the tier: those that match at least one entry; if empty, all. The first tier that matches decides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matches: Vec<Match>,
    /// Condition that requests must fulfil too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<String>,
    /// Treatment of these requests.
    pub allowance: Allowance,
}

/// A plan, which overrides give to clients.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Plan {
    /// Name of the plan, unique among the plans and tiers of the limit.
    pub name: String,
    /// Treatment of the requests of clients with this plan.
    pub allowance: Allowance,
}

/// Treatment of the requests of a tier or plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Allowance {
    /// The requests that these rates admit. They count in the same records as the base rates.
    Rates(Vec<Rate>),
    /// Every request. None is counted.
    Unlimited,
    /// No request. None is counted.
    Deny,
}

/// The effect of a denial.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Mode {
    /// The request is rejected.
    #[default]
    Enforce,
    /// The decision is counted in the metrics, and the request passes.
    Shadow,
}

/// UID of a policy object.
pub type PolicyUid = String;

/// Hash of a compiled policy: the first half of the SHA-256 of its JSON, in 32 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PolicyHash(String);

impl PolicyHash {
    /// Returns the hash of a policy's JSON, computed over its exact bytes.
    #[must_use]
    pub fn of(json: &str) -> Self {
        Self(hexadecimal(&Sha256::digest(json)[..16]))
    }
}

impl fmt::Display for PolicyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Hash of content that sidecars fetch apart from the policy: the SHA-256 of its bytes, in 64 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct BlobHash(String);

impl BlobHash {
    /// Returns the hash of content.
    #[must_use]
    pub fn of(content: &[u8]) -> Self {
        Self(hexadecimal(&Sha256::digest(content)))
    }
}

/// A text that is no [`BlobHash`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a hash of content has 64 hexadecimal digits")]
pub struct InvalidBlobHash;

impl TryFrom<String> for BlobHash {
    type Error = InvalidBlobHash;

    fn try_from(text: String) -> Result<Self, InvalidBlobHash> {
        // It becomes the name of a file and a part of a path.
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() == 64 && text.bytes().all(is_digit) { Ok(Self(text)) } else { Err(InvalidBlobHash) }
    }
}

impl fmt::Display for BlobHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    use fmt::Write as _;
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}
