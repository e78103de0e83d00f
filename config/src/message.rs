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
/// The event of [`LiveReplicas`].
pub const LIVE_EVENT: &str = "live";

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

/// Which pods share a policy: those that it selects, that run, are not being deleted and carry a sidecar, whether they
/// have a stream or not. It is no part of a policy's hash and is not confirmed. It names all policies of the pod of which
/// this is known, whenever any of it changes; of others a sidecar keeps what it heard last, and of a policy of which it
/// never heard it takes itself to be the only one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LiveReplicas {
    /// [`VERSION`].
    pub version: u32,
    /// Which one this pod is among those of each policy.
    pub policies: BTreeMap<PolicyUid, Replica>,
}

/// Which one a pod is of those that share a policy. They are numbered in the order of their UIDs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Replica {
    /// Its number, from 0.
    pub index: u32,
    /// How many there are.
    pub count: u32,
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

/// Access to a Redis: a server, a cluster, or a master that sentinels know.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoreAccess {
    /// Where it is, and its topology: `redis://HOST:PORT`, `redis+cluster://HOST:PORT,...`,
    /// `redis+sentinel://HOST:PORT,.../MASTER`, or these with `rediss`.
    pub url: String,
    /// The user; absent: the default user.
    #[serde(default)]
    pub username: Option<String>,
    /// The password.
    #[serde(default)]
    pub password: Option<String>,
    /// The user at the sentinels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sentinel_username: Option<String>,
    /// The password at the sentinels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sentinel_password: Option<String>,
    /// The authority that signs the store's certificate, in PEM; absent: the public ones.
    #[serde(default)]
    pub ca: Option<String>,
    /// What to show to a store that asks for a certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<ClientCertificate>,
    /// How long a check may take, in milliseconds.
    pub latency_budget_millis: u64,
    /// The secret that keys are hashed with.
    pub key_secret: KeySecret,
    /// What every key in the store begins with.
    pub prefix: String,
}

/// A client's certificate with its key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientCertificate {
    /// The certificate and those between it and its authority, in PEM.
    pub certificate: String,
    /// The key, in PEM.
    pub key: String,
}

impl fmt::Debug for StoreAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What stands before the last @ may be a password, even in a URL that is none.
        let url = self.url.rsplit_once('@').map_or(self.url.as_str(), |(_, rest)| rest);
        f.debug_struct("StoreAccess").field("url", &url).finish_non_exhaustive()
    }
}

impl fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientCertificate").finish_non_exhaustive()
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
    #[serde(rename = "refused", rename_all = "camelCase")]
    Nacked {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// As a release before wrote it.
    const OLD: &str = r#"{"url":"redis://:hunter2@a","username":null,"password":null,"ca":null,"latencyBudgetMillis":50,"keySecret":"AAAAAAAAAAAAAAAAAAAAAA==","prefix":"sluice:"}"#;

    #[test]
    fn access_without_what_is_new_is_written_and_read_as_before() {
        let access: StoreAccess = serde_json::from_str(OLD).unwrap();
        assert_eq!((&access.client, &access.sentinel_password), (&None, &None));
        assert_eq!(serde_json::to_string(&access).unwrap(), OLD);
    }

    #[test]
    fn access_is_printed_without_its_secrets() {
        let access = StoreAccess {
            username: Some("hunter2".into()),
            password: Some("hunter2".into()),
            sentinel_username: Some("hunter2".into()),
            sentinel_password: Some("hunter2".into()),
            client: Some(ClientCertificate { certificate: "hunter2".into(), key: "hunter2".into() }),
            ..serde_json::from_str(OLD).unwrap()
        };
        let credentials = Credentials { version: VERSION, store: Some(access) };
        let client = credentials.store.as_ref().and_then(|access| access.client.as_ref());
        let text = format!("{credentials:?} {client:?}");
        assert!(text.contains("url: \"a\"") && !text.contains("hunter2"), "{text}");
        let text = serde_json::to_string(&credentials).unwrap();
        assert_eq!(serde_json::from_str::<Credentials>(&text).unwrap(), credentials);
    }
}
