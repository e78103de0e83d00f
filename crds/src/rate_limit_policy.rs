//! The object `RateLimitPolicy`. The doc comments are what `kubectl explain` prints.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::duration;

mod concurrency;

pub use concurrency::{Adaptive, Aimd, Concurrency, Gradient2, Vegas};

/// Rate limits for the requests that reach the pods of this namespace.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "sluice.dev",
    version = "v1alpha1",
    kind = "RateLimitPolicy",
    plural = "ratelimitpolicies",
    shortname = "slp",
    category = "sluice",
    namespaced,
    status = "RateLimitPolicyStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "Rate limits for the requests that reach pods of this namespace.",
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Programmed","type":"string","jsonPath":".status.conditions[?(@.type==\"Programmed\")].status"}"#,
    printcolumn = r#"{"name":"Pods","type":"string","jsonPath":".status.pods.summary","description":"Pods that confirmed this policy, of all that it selects."}"#,
    printcolumn = r#"{"name":"Store","type":"string","jsonPath":".status.conditions[?(@.type==\"StoreHealthy\")].reason"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason","priority":1}"#,
    printcolumn = r#"{"name":"Limits","type":"string","jsonPath":".status.limits","priority":1}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.limits) || has(self.concurrency)").message("at least one of limits, concurrency is needed"))]
#[x_kube(validation = Rule::new("!has(self.limits) || !has(self.concurrency) || self.concurrency.all(c, self.limits.all(l, l.name != c.name))").message("names are unique among limits and concurrency together"))]
pub struct RateLimitPolicySpec {
    /// Which pods of this namespace. Absent: all of them. Several policies may select a pod: their limits add up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Enforce rejects requests over a limit; Shadow decides and reports, and never rejects.
    #[serde(default)]
    pub mode: Mode,
    /// Where requests are counted. Strict asks the store about every request: N is N. Leased takes quota from the store in
    /// blocks, for most requests without a call: exact in aligned windows, to a few percent in trailing ones. Local asks
    /// nobody: each pod counts alone, by the number divided by the pods that share the policy.
    #[serde(default)]
    pub consistency: Consistency,
    /// What to do with a request when the store of counters cannot answer in time. Share counts it in its pod, by the
    /// number divided by the pods that share the policy, and tells the store when it is back.
    #[serde(default)]
    pub on_store_failure: OnStoreFailure,
    /// Where a client's address comes from. Absent: from the connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_address: Option<ClientAddress>,
    /// The limits. All that match a request must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub limits: Vec<Limit>,
    /// How many requests at a time. All that match a request must hold, besides the limits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub concurrency: Vec<Concurrency>,
}

/// Whether to reject.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Reject requests over a limit.
    #[default]
    Enforce,
    /// Decide and report, never reject.
    Shadow,
}

/// Where requests are counted.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// In the store, with a question a request.
    #[default]
    Strict,
    /// In the store, in blocks that a pod takes in advance, where the limit allows it.
    Leased,
    /// In each pod alone, by its share of the number.
    Local,
}

/// What to do when the store cannot answer.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnStoreFailure {
    /// Let requests pass.
    #[default]
    Allow,
    /// Reject requests.
    Deny,
    /// Count in each pod by its share of the number.
    Share,
}

/// Where a client's address comes from when the peer is a trusted proxy.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ClientAddress {
    /// Networks (CIDR) of the proxies whose word counts. They are passed over from right to left.
    #[schemars(length(min = 1, max = 64), inner(length(max = 64)))]
    pub trusted_proxies: Vec<String>,
    /// The header in which they say it.
    #[serde(default)]
    pub header: AddressHeader,
}

/// A header that names client addresses.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressHeader {
    /// X-Forwarded-For.
    #[default]
    XForwardedFor,
    /// Forwarded (RFC 7239).
    Forwarded,
}

/// One limit: what it matches, how it tells clients apart, and its rates.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.algorithm) || has(self.algorithm.slidingWindowCounter) || self.rates.all(r, !has(r.subWindows))").message("only slidingWindowCounter has subWindows"))]
#[x_kube(validation = Rule::new("!has(self.enforcement) || !has(self.enforcement.soft) || !has(self.algorithm) || has(self.algorithm.slidingWindowCounter) || has(self.algorithm.fixedWindow)").message("only slidingWindowCounter and fixedWindow can be soft"))]
#[x_kube(validation = Rule::new("!has(self.enforcement) || !has(self.enforcement.elastic) || self.rates.size() == 1").message("an elastic limit has exactly one rate"))]
pub struct Limit {
    /// Its name, unique in this policy. Counters and metrics carry it.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Overrides the policy's mode for this limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Which requests: those that any entry matches. Absent: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub matches: Vec<Match>,
    /// How clients are told apart. Absent: one counter for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Key>,
    /// How many requests. All rates must hold.
    #[schemars(length(min = 1, max = 8))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub rates: Vec<Rate>,
    /// How they are counted. Absent: slidingWindowCounter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub algorithm: Option<Algorithm>,
    /// How strictly the numbers are meant. Absent: hard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<Enforcement>,
}

/// What a request must have: everything that is said here.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Match {
    /// Its path, without the query, with percent-encoding and dot segments resolved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathMatch>,
    /// Its method: one of these. Absent: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 32), regex(pattern = "^[A-Z][A-Z-]*$")))]
    pub methods: Vec<String>,
    /// Its headers: all of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub headers: Vec<HeaderMatch>,
}

/// A test of the path: exactly one of its fields.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.exact), has(self.prefix), has(self.regex)].filter(x, x).size() == 1").message("exactly one of exact, prefix, regex is needed"))]
pub struct PathMatch {
    /// The whole path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024), regex(pattern = "^/"))]
    pub exact: Option<String>,
    /// Whole segments at its beginning: /v1 matches /v1 and /v1/x, not /v10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024), regex(pattern = "^/"))]
    pub prefix: Option<String>,
    /// A regular expression (RE2 syntax) that the whole path must match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub regex: Option<String>,
}

/// A test of a header: its name and exactly one of the other fields.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.exact), has(self.regex), has(self.present)].filter(x, x).size() == 1").message("exactly one of exact, regex, present is needed"))]
pub struct HeaderMatch {
    /// The header's name, in any case.
    #[schemars(length(min = 1, max = 128), regex(pattern = "^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"))]
    pub name: String,
    /// The whole value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub exact: Option<String>,
    /// A regular expression (RE2 syntax) that the whole value must match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub regex: Option<String>,
    /// true: the header is there. false: it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub present: Option<bool>,
}

/// How clients are told apart.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Key {
    /// The parts of the key: clients that differ in any have counters of their own.
    #[schemars(length(min = 1, max = 8))]
    pub parts: Vec<KeyPart>,
    /// What to do with a request that lacks a part. A header that is empty, or there twice, counts as lacking.
    #[serde(default)]
    pub on_missing: OnMissing,
}

/// A part of a key: exactly one of its fields.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.header), has(self.clientIP)].filter(x, x).size() == 1").message("exactly one of header, clientIP is needed"))]
pub struct KeyPart {
    /// The value of a header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<HeaderKey>,
    /// The client's address.
    #[serde(default, rename = "clientIP", skip_serializing_if = "Option::is_none")]
    pub client_ip: Option<ClientIpKey>,
}

/// A header as a part of a key.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct HeaderKey {
    /// The header's name, in any case.
    #[schemars(length(min = 1, max = 128), regex(pattern = "^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"))]
    pub name: String,
}

/// The client's address as a part of a key.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ClientIpKey {
    /// Bits kept of an IPv4 address: clients of one network share a counter. Default 32.
    #[serde(default, rename = "ipv4Prefix", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 32))]
    pub ipv4_prefix: Option<i32>,
    /// Bits kept of an IPv6 address. Default 64: a customer usually has a whole /64.
    #[serde(default, rename = "ipv6Prefix", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 128))]
    pub ipv6_prefix: Option<i32>,
}

/// What to do with a request that lacks a part of the key.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnMissing {
    /// One counter for all that lack one.
    #[default]
    Shared,
    /// The limit is not about them.
    Skip,
    /// Reject them.
    Deny,
}

/// So many requests per period.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Rate {
    /// How many requests; 0 denies all.
    #[schemars(range(min = 0, max = 1_099_511_627_776i64))]
    pub requests: i64,
    /// Per how long: a duration such as 500ms, 10s, 1m, 1h30m; from 1ms to 8784h.
    #[schemars(length(min = 2, max = 32), regex(pattern = duration::PATTERN))]
    pub per: String,
    /// Into how many sub-windows a slidingWindowCounter cuts the period: more are more exact, and a few bytes each. They
    /// must be whole milliseconds. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 60))]
    pub sub_windows: Option<i64>,
}

/// How requests are counted: exactly one of its fields.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.slidingWindowCounter), has(self.fixedWindow), has(self.slidingWindowLog), has(self.tokenBucket), has(self.gcra), has(self.leakyBucket)].filter(x, x).size() == 1").message("exactly one of slidingWindowCounter, fixedWindow, slidingWindowLog, tokenBucket, gcra, leakyBucket is needed"))]
pub struct Algorithm {
    /// The current sub-window, all whole ones before it within the period, and the oldest by the share of it that the
    /// period still overlaps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sliding_window_counter: Option<SlidingWindowCounter>,
    /// One window after another. Up to twice the number may pass within a period across their edge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed_window: Option<FixedWindow>,
    /// Every admitted request by its instant: exact in every period, 6 bytes a request. At most 10000 requests a rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sliding_window_log: Option<SlidingWindowLog>,
    /// Tokens that come with constant speed, requests per period, up to a burst; each request takes one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_bucket: Option<TokenBucket>,
    /// The generic cell rate algorithm: requests come at least period/requests apart, but for a burst.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gcra: Option<Gcra>,
    /// A queue: requests reach the application at least period/requests apart, and wait for their turn in the sidecar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaky_bucket: Option<LeakyBucket>,
}

/// A window that slides.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SlidingWindowCounter {
    /// What is supposed about the oldest sub-window.
    #[serde(default)]
    pub bound: Bound,
}

/// What is supposed about the oldest sub-window.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bound {
    /// That it was used evenly: it counts by its share.
    #[default]
    Estimate,
    /// Nothing: all of it counts. No period, wherever it begins, has ever more than the number; in return a steady client
    /// gets only subWindows/(subWindows+1) of it.
    Guaranteed,
}

/// One window after another.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct FixedWindow {
    /// When windows begin.
    #[serde(default)]
    pub alignment: Alignment,
}

/// When fixed windows begin.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Alignment {
    /// At multiples of the period since the Unix epoch (UTC).
    #[default]
    Clock,
    /// At the first request that is admitted, for each client.
    FirstRequest,
    /// As Clock, moved by a share of the period of its own for each client, so that clients do not all come back at once.
    Spread,
}

/// Every request by its instant.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SlidingWindowLog {
    /// Least time between two admitted requests: a duration such as 500ms, at most the period. Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 32), regex(pattern = duration::PATTERN))]
    pub min_interval: Option<String>,
    /// Whether denied requests count too: who goes on asking stays denied until being quiet for long enough.
    #[serde(default)]
    pub count_denied: bool,
}

/// A bucket of tokens.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(has(self.burst) && has(self.warmUp))").message("burst and warmUp exclude each other"))]
pub struct TokenBucket {
    /// How many tokens the bucket holds. Default: the rate's requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_099_511_627_776i64))]
    pub burst: Option<i64>,
    /// Instead of a burst: after a rest the rate is lower, and rises to its number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_up: Option<WarmUp>,
}

/// How a token bucket warms up.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct WarmUp {
    /// How long it takes: a duration from 1ms to 1h.
    #[schemars(length(min = 2, max = 32), regex(pattern = duration::PATTERN))]
    pub period: String,
    /// How many times slower it is when cold. Default 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2, max = 100))]
    pub cold_factor: Option<i64>,
}

/// The generic cell rate algorithm.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Gcra {
    /// How many requests may come at once. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_099_511_627_776i64))]
    pub burst: Option<i64>,
}

/// A queue with a constant outflow.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct LeakyBucket {
    /// The longest wait: a duration from 1ms to 1h. Whoever would have to wait longer is rejected at once.
    #[schemars(length(min = 2, max = 32), regex(pattern = duration::PATTERN))]
    pub max_wait: String,
}

/// How strictly numbers are meant: exactly one of its fields.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.hard), has(self.soft), has(self.elastic)].filter(x, x).size() == 1").message("exactly one of hard, soft, elastic is needed"))]
pub struct Enforcement {
    /// No more than the number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hard: Option<Hard>,
    /// For some time some more than the number. Only slidingWindowCounter and fixedWindow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soft: Option<Soft>,
    /// A higher number while the pod has capacity to spare. Only a limit of one rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elastic: Option<Elastic>,
}

/// Has no settings: `{}`.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct Hard {}

/// Some more for some time.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Soft {
    /// How many percent more, rounded down to whole requests.
    #[schemars(range(min = 1, max = 1000))]
    pub over_percent: i64,
    /// For how long, from the first request above the number on: a duration from 1ms to 8784h. It can be used again a
    /// whole period after the window of the last request above the number.
    #[serde(rename = "for")]
    #[schemars(length(min = 2, max = 32), regex(pattern = duration::PATTERN))]
    pub lasts: String,
}

/// A higher number while the pod has capacity to spare.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Elastic {
    /// The higher number, per the rate's period; more than the rate's own.
    #[schemars(range(min = 1, max = 1_099_511_627_776i64))]
    pub requests: i64,
    /// It holds in a pod while less than so many percent of the pod's capacity were used in the last second.
    #[schemars(range(min = 1, max = 100))]
    pub utilization_below_percent: i64,
    /// What 100 percent are.
    pub capacity: Capacity,
}

/// What 100 percent of a pod's utilization are: exactly one of its fields.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.inFlight)].filter(x, x).size() == 1").message("exactly one of inFlight is needed"))]
pub struct Capacity {
    /// So many requests at the application at a time: forwarded, and not yet answered to the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub in_flight: Option<i64>,
}

/// What is known of a policy.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RateLimitPolicyStatus {
    /// The generation that the rest is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Accepted, Programmed, Captured, StoreHealthy and Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Pods that the policy selects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pods: Option<PodCounts>,
    /// The limits in short.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<String>,
}

/// How many pods. Counted are those that run, are not being deleted, not opted out and not on the host's network.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PodCounts {
    /// Pods that the policy selects.
    pub selected: i32,
    /// Those with a sidecar.
    pub injected: i32,
    /// Those whose sidecar confirmed this very policy.
    pub programmed: i32,
    /// programmed/selected.
    pub summary: String,
}
