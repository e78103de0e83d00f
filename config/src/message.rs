//! What is said between the operator and a sidecar. Each message carries a version; a receiver ignores fields and
//! events that it does not know.
//!
//! The stream, `GET /v1/stream`, is server-sent events. The first line of an answer's headers names the stream
//! ([`STREAM_HEADER`]); whoever knows it may report for it. An event's `id` stands for everything published up to it.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::key::KeySecret;
use crate::policy::PolicyHash;

/// The version of all messages.
pub const VERSION: u32 = 1;
/// The path of the stream.
pub const STREAM_PATH: &str = "/v1/stream";
/// The path of reports.
pub const REPORTS_PATH: &str = "/v1/reports";
/// The header of the stream's answer that names the stream.
pub const STREAM_HEADER: &str = "sluice-stream";
/// The event of [`Policies`].
pub const POLICIES_EVENT: &str = "policies";
/// The event of [`Credentials`].
pub const CREDENTIALS_EVENT: &str = "credentials";

/// The UID of a policy object.
pub type PolicyUid = String;

/// The policies of a pod: the whole map, or what changed.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Policies {
    /// [`VERSION`].
    pub version: u32,
    /// Whether this is the whole map: what is neither in it nor in `keep` is gone.
    pub full: bool,
    /// New and changed policies.
    #[serde(default)]
    pub policies: BTreeMap<PolicyUid, Published>,
    /// Policies that are gone.
    #[serde(default)]
    pub removed: Vec<PolicyUid>,
    /// Policies whose newest edit is invalid: a sidecar keeps what it has of them.
    #[serde(default)]
    pub keep: Vec<PolicyUid>,
}

/// A policy as it travels.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Published {
    /// The hash of `policy`, byte for byte.
    pub hash: PolicyHash,
    /// A [`crate::CompiledPolicy`] in JSON.
    pub policy: Box<RawValue>,
}

/// How to reach the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Credentials {
    /// [`VERSION`].
    pub version: u32,
    /// The store; absent: none is configured, and limits cannot be enforced.
    pub store: Option<StoreAccess>,
}

/// Access to one Redis.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoreAccess {
    /// `redis://HOST:PORT` or `rediss://HOST:PORT`.
    pub url: String,
    /// The user; absent: the default user.
    #[serde(default)]
    pub username: Option<String>,
    /// The password.
    #[serde(default)]
    pub password: Option<String>,
    /// The authority that signs the store's certificate, in PEM; absent: the public ones.
    #[serde(default)]
    pub ca: Option<String>,
    /// How long a check may take, in milliseconds.
    pub latency_budget_millis: u64,
    /// The secret that keys are hashed with.
    pub key_secret: KeySecret,
    /// What every key in the store begins with.
    pub prefix: String,
}

impl fmt::Debug for StoreAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreAccess").field("url", &self.url).finish_non_exhaustive()
    }
}

/// What a sidecar says of itself, `POST /v1/reports`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// [`VERSION`].
    pub version: u32,
    /// The stream's name, from [`STREAM_HEADER`].
    pub stream: String,
    /// Every policy that the sidecar has been told of.
    pub policies: BTreeMap<PolicyUid, PolicyReport>,
    /// How the store is doing.
    pub store: StoreReport,
}

/// What became of one policy in one sidecar.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PolicyReport {
    /// It is in force.
    #[serde(rename_all = "camelCase")]
    Applied {
        /// Which.
        hash: PolicyHash,
    },
    /// It is not; what was in force before still is.
    #[serde(rename_all = "camelCase")]
    Refused {
        /// Which.
        hash: PolicyHash,
        /// Why.
        reason: String,
    },
}

/// How a sidecar's store is doing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StoreReport {
    /// Not asked yet.
    Unknown,
    /// It answers.
    Healthy,
    /// It does not, in a word of the store's own: `unreachable`, `slow`, `refused`, `read-only`, `nonsense`.
    Failing {
        /// The word.
        fault: String,
    },
}
