//! The pages of a sidecar's debug port, in JSON: its policies, questions about clients, and the answers.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::policy::OnStoreFailure;

/// Path of the page with the clients that are denied most.
pub const TOP: &str = "/keys/top";
/// Path of the page with the counter of one client. The question is a [`PeekQuestion`].
pub const PEEK: &str = "/keys/peek";
/// Path of the page with the limits that a request would meet. The question is an [`ExplainQuestion`].
pub const EXPLAIN: &str = "/explain";
/// Path of the page with the rules that descriptors would meet. The question is a [`DescriptorQuestion`].
pub const EXPLAIN_DESCRIPTORS: &str = "/explain/descriptors";
/// Path of the page with the policies that a sidecar enforces.
pub const POLICIES: &str = "/policies";
/// Path of the page of a service with those who have asked it, and what was refused.
pub const CALLERS: &str = "/callers";

/// The callers of a service, and the questions that it refused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallersPage {
    /// The callers that may ask, ordered by subject. Without a list, whoever reaches the service may.
    pub callers: Vec<CallerState>,
    /// The refusals, the last one first.
    pub refused: Vec<RefusedQuestions>,
}

/// A caller of a service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallerState {
    /// Its subject.
    pub subject: String,
    /// Namespaces whose domains it may name; `*` for all.
    pub namespaces: Vec<String>,
    /// Other domains that it may name.
    pub domains: Vec<String>,
    /// Number of questions since the service has started.
    pub asked: u64,
    /// Number of those that named something else, and were refused.
    pub refused: u64,
}

/// Questions that were refused for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusedQuestions {
    /// The reason, and what to do.
    pub reason: String,
    /// How often.
    pub times: u64,
    /// Time of the last one, in seconds since the Unix epoch.
    pub last_seconds: u64,
}

/// The clients that the limits of a pod deny most often.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Top {
    /// Limits that have denied something in the last minutes.
    pub limits: Vec<TopLimit>,
}

/// A limit that has denied something in the last minutes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TopLimit {
    /// `NAMESPACE/NAME`.
    pub policy: String,
    /// Name of the limit.
    pub limit: String,
    /// `Reject`, `Queue`, `Mark` or `Shadow`. The last two deny nothing.
    pub effect: String,
    /// Number of seconds that the numbers cover.
    pub seconds: u64,
    /// Most often denied first.
    pub clients: Vec<TopClient>,
}

/// A client, with its denials.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TopClient {
    /// Hash of the key, as in the name of its counter in the store.
    pub key: String,
    /// The client in words, with the public parts of its key.
    pub client: String,
    /// Number of denials, at most.
    pub denied: u64,
    /// Number of them that may be those of other clients.
    pub error: u64,
}

/// The client whose counter is read.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PeekQuestion {
    /// `NAMESPACE/NAME`.
    pub policy: String,
    /// Name of the limit.
    pub limit: String,
    /// The client.
    pub client: NamedClient,
}

/// A client that an operator names.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum NamedClient {
    /// The values of the parts of its key, in their order.
    Values(Vec<String>),
    /// The hash of its key.
    Hash(String),
}

/// The counter of a client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Peeked {
    /// `NAMESPACE/NAME`.
    pub policy: String,
    /// Name of the limit.
    pub limit: String,
    /// Hash of the key, as in the name of its counter in the store.
    pub key: String,
    /// The plan of an override that decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exception: Option<String>,
    /// Costs reserved in the counter, and not settled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<OpenReservations>,
    /// The state of the counter.
    pub state: CounterState,
}

/// The reservations of a counter that are not settled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OpenReservations {
    /// The sum of their costs.
    pub cost: u64,
    /// Seconds until the last of them expires.
    pub expire_seconds: f64,
}

/// The state of a client's counter, which reading it does not change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum CounterState {
    /// The rates that decide.
    Rates(Vec<RateState>),
    /// The state is not known, for this reason.
    Unknown(String),
    /// The store did not answer, so `onStoreFailure` of the policy decides.
    NoStore {
        /// The fault in words.
        error: String,
        /// The decision of the policy then.
        on_store_failure: OnStoreFailure,
    },
}

impl CounterState {
    /// Returns the reason why the state is not known.
    #[must_use]
    pub fn unknown(&self) -> Option<String> {
        match self {
            Self::Rates(_) => None,
            Self::Unknown(reason) => Some(reason.clone()),
            Self::NoStore { error, on_store_failure } => {
                Some(format!("{error}. onStoreFailure: {on_store_failure:?} decides"))
            }
        }
    }
}

/// One rate, and the number that is left.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RateState {
    /// The rate in words: `Limit per-client admits 5 requests per minute.`
    pub rule: String,
    /// Number that it admits.
    pub limit: u64,
    /// Number that is left.
    pub remaining: u64,
    /// Whether a request of cost 1 would be admitted now.
    pub has_room: bool,
    /// Seconds until the whole limit is free again if nothing else happens; absent if only the end of requests frees it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset_seconds: Option<f64>,
    /// Seconds for which the client is still blocked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked_seconds: Option<f64>,
}

/// A request that somebody thinks of.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExplainQuestion {
    /// Method.
    pub method: String,
    /// Target: path and query.
    pub target: String,
    /// Names and values of headers.
    #[serde(default)]
    pub headers: Vec<(String, String)>,
    /// Address of the peer that opens the connection; 127.0.0.1 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<IpAddr>,
}

/// A question of a gateway that somebody thinks of.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DescriptorQuestion {
    /// The domain.
    pub domain: String,
    /// The descriptors: pairs of a key and a value.
    pub descriptors: Vec<Vec<(String, String)>>,
}

/// The limits of a pod, and what they do about a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The reason why the proxy refuses the request before any limit, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// All limits of the pod, in the order of its policies.
    pub limits: Vec<ExplainedLimit>,
}

/// A limit, and what it does about a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedLimit {
    /// `NAMESPACE/NAME`.
    pub policy: String,
    /// Name of the limit.
    pub limit: String,
    /// `Reject`, `Queue`, `Mark` or `Shadow`: what the limit does about requests that it has no room for.
    pub effect: String,
    /// Whether gateways that show the head of a request alone cannot ask about it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub needs_exchange: bool,
    /// The effect on this request.
    #[serde(flatten)]
    pub result: LimitResult,
}

/// The effect of a limit on a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all_fields = "camelCase", tag = "result")]
pub enum LimitResult {
    /// The limit counts the request.
    Counts {
        /// Hash of the key, as in the name of its counter in the store.
        key: String,
        /// The client in words, with the public parts of its key.
        client: String,
        /// The tier or plan that decides.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exception: Option<String>,
        /// The charge before the response is known.
        cost: u64,
        /// The state of the counter before the request.
        state: CounterState,
    },
    /// The limit denies the request without counting it.
    Denies {
        /// The reason in words.
        reason: String,
    },
    /// The limit does not apply to the request.
    DoesNotApply {
        /// The reason in words.
        reason: String,
    },
}

/// The policies that a sidecar enforces.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoliciesInForce {
    /// The policies, in their order.
    pub policies: Vec<PolicyInForce>,
    /// Files that differ from what is in force, because an edit was rejected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rejected: Vec<RejectedFile>,
}

/// A file that differs from what is in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RejectedFile {
    /// Its path.
    pub file: String,
    /// Time since which it differs, in seconds since the Unix epoch.
    pub since_seconds: u64,
    /// Why its edit was rejected.
    pub reason: String,
}

/// A policy that a sidecar enforces.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyInForce {
    /// `NAMESPACE/NAME`.
    pub policy: String,
    /// Hash of the version.
    pub hash: String,
    /// Name of the store.
    pub store: String,
    /// Health of the store: `starting`, `healthy`, or the kind of failure.
    pub health: String,
}
