//! A whole policy.

use serde::{Deserialize, Serialize};
use sluice_store::{Consistency, OnStoreFailure};

use crate::client_address::ClientAddress;
use crate::expression::Expressions;
use crate::jwt::CompiledJwt;
use crate::policy::{CompiledLimit, Mode, StatusHeaders};
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
