//! The messages between the operator and a sidecar. Each message carries a version. A receiver ignores fields
//! and events that it does not know.
//!
//! A session is one connection: `GET /v1/stream` changes its protocol. Then the operator sends server-sent events: the pod's compiled
//! [`Policies`], the [`LiveReplicas`] of each, the [`Credentials`] for the stores, and [`Resets`] of clients' counters.
//!
//! A policy may refer to content by its hash, which the sidecar fetches with `GET /v1/blobs/HASH` unless it has it.
//!
//! An event's `id` covers everything that was published up to it. The sidecar answers with lines of JSON, each a [`Report`]: which
//! policies it applied, the health of the stores, and the results of resets.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sluice_store::{Eviction, FaultCause, StoreFault};

use crate::client_address::AddressHeader;
use crate::policy::PolicyHash;
pub use crate::policy::PolicyUid;
use crate::store_access::StoreChoices;

/// Version of all messages.
pub const VERSION: u32 = 2;
/// Path of a session. The connection changes to [`SESSION_PROTOCOL`] there.
pub const STREAM_PATH: &str = "/v1/stream";
/// Name of the protocol of a session, as the header `Upgrade` has it: server-sent events to the sidecar, and reports from it, each a
/// line of JSON.
pub const SESSION_PROTOCOL: &str = "sluice-session";
/// Path from which a sidecar fetches content by its hash: `/v1/blobs/HASH`. The session must be named in
/// [`SESSION_HEADER`].
pub const BLOBS_PATH: &str = "/v1/blobs/";
/// Largest content, in bytes.
pub const MAX_BLOB: usize = 6 << 20;
/// Response header of [`STREAM_PATH`] that names the session. Content is sent only to who names it in the same header.
pub const SESSION_HEADER: &str = "sluice-stream";
/// Name of the event that carries [`Policies`].
pub const POLICIES_EVENT: &str = "policies";
/// Name of the event that carries [`Credentials`].
pub const CREDENTIALS_EVENT: &str = "credentials";
/// Name of the event that carries [`LiveReplicas`].
pub const LIVE_EVENT: &str = "live";
/// Name of the event that carries [`Resets`].
pub const RESETS_EVENT: &str = "resets";
/// Name of the event, the last of a session, whose data is the reason for which a report was refused, a string of JSON.
pub const REFUSED_EVENT: &str = "refused";

/// The policies of a pod: either all of them, or the changes since the event before.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Policies {
    /// Message version, [`VERSION`].
    pub version: u32,
    /// True if the message lists all policies of the pod. The sidecar then drops every policy that is neither
    /// in `policies` nor in `keep`.
    pub full: bool,
    /// New and changed policies.
    #[serde(default)]
    pub policies: BTreeMap<PolicyUid, PublishedPolicy>,
    /// Policies that no longer apply to the pod.
    #[serde(default)]
    pub removed: Vec<PolicyUid>,
    /// Policies whose latest edit is invalid. The sidecar keeps the version that it has.
    #[serde(default)]
    pub keep: Vec<PolicyUid>,
    /// Policies without content that cannot be used. The sidecar keeps the version that it has, and without any applies
    /// this one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fallback: BTreeMap<PolicyUid, PublishedPolicy>,
}

/// A compiled policy in the form in which it is sent.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PublishedPolicy {
    /// Hash of the exact bytes of `policy`.
    pub hash: PolicyHash,
    /// A [`crate::CompiledPolicy`] in JSON.
    pub policy: Box<RawValue>,
}

/// The position of a pod among the replicas of each of its policies. A policy's replicas are the pods that it
/// selects, that run, are not being deleted and have a sidecar, with or without a session.
///
/// Replica counts are not part of a policy's hash and are not confirmed. Whenever one of them changes, the
/// operator sends the counts of all policies of the pod for which it knows them. For a policy that the
/// message leaves out, a sidecar keeps the last count that it received; without any, it assumes that it is
/// the only replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LiveReplicas {
    /// Message version, [`VERSION`].
    pub version: u32,
    /// Position of the pod, by policy.
    pub policies: BTreeMap<PolicyUid, Replica>,
}

/// The position of a pod among the replicas of a policy, which are ordered by the UIDs of their pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Replica {
    /// Index of the pod, from 0.
    pub index: u32,
    /// Number of replicas.
    pub count: u32,
}

/// The stores that a sidecar counts in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Credentials {
    /// Message version, [`VERSION`].
    pub version: u32,
    /// The stores, with the access to them.
    #[serde(flatten)]
    pub stores: StoreChoices,
    /// Names of stores that the operator cannot resolve at present. The sidecar keeps the access that it has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keep: Vec<String>,
    /// The keys that tokens of callers are verified with. Only for the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_keys: Option<TokenKeys>,
}

/// The public keys of an issuer of service-account tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenKeys {
    /// The issuer.
    pub issuer: String,
    /// Its keys, as a JSON Web Key Set (RFC 7517).
    pub jwks: String,
}

/// The UID of the object that requests a reset.
pub type ResetUid = String;

/// All resets that a pod takes part in. A reset that the message leaves out is over.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Resets {
    /// Message version, [`VERSION`].
    pub version: u32,
    /// The resets.
    pub resets: BTreeMap<ResetUid, ResetOrder>,
}

/// The reset of one client's counter. One pod removes the counter in the store; then all pods that enforce the limit forget
/// what they know about the client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResetOrder {
    /// Namespace of the policy.
    pub namespace: String,
    /// Name of the policy.
    pub policy: String,
    /// Name of the limit.
    pub limit: String,
    /// Hash of the client's key, as it ends the name of the key in Redis.
    pub key: String,
    /// The step that the pod is to take.
    pub step: ResetStep,
}

/// A step of a reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ResetStep {
    /// Removes the counter in the store.
    Remove,
    /// Forgets the client.
    #[serde(rename_all = "camelCase")]
    Forget {
        /// Time at which the counter was removed by the store's clock, in microseconds since the Unix epoch. What the pod
        /// learnt later stays.
        removed_at: u64,
    },
}

/// The result of a step in one pod. A pod that has no result yet reports none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ResetReport {
    /// The pod has removed the counter.
    #[serde(rename_all = "camelCase")]
    Removed {
        /// Time by the store's clock, in microseconds since the Unix epoch.
        at: u64,
    },
    /// The pod has forgotten the client.
    #[serde(rename_all = "camelCase")]
    Forgotten {
        /// The time in the order that it has carried out.
        removed_at: u64,
    },
    /// The pod could not reset the client, and tries again.
    #[serde(rename_all = "camelCase")]
    Failed {
        /// The reason.
        reason: String,
    },
}

/// Maximum number of limits in [`ShadowDenied`].
pub const MAX_SHADOW_DENIED: usize = 48;
/// Sketches of clients, by a policy as `NAMESPACE/NAME` and the name of one of its limits: a [`crate::distinct::DistinctSketch`] as a
/// text, which the operator reads only if the limit exists.
pub type ShadowDenied = BTreeMap<String, BTreeMap<String, String>>;

/// A sidecar's report about itself, which replaces the one before.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Message version, [`VERSION`].
    pub version: u32,
    /// State of every policy that the sidecar has received.
    pub policies: BTreeMap<PolicyUid, PolicyReport>,
    /// Health of each store that some policy uses, by the name of the store.
    #[serde(default)]
    pub stores: BTreeMap<String, StoreReport>,
    /// The clients that limits in Shadow would have denied in the last 5 to 10 minutes, by the names of the policy
    /// and of the limit.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub shadow_denied: ShadowDenied,
    /// Results of the resets that the sidecar has received last.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub resets: BTreeMap<ResetUid, ResetReport>,
    /// Ports of the applications that have accepted no connection for a minute, although requests came.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreachable: Vec<u16>,
}

/// The state of one policy in one sidecar.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PolicyReport {
    /// The policy is applied.
    #[serde(rename_all = "camelCase")]
    Applied {
        /// Hash of the applied version.
        hash: PolicyHash,
        /// Findings that users should be told.
        #[serde(flatten)]
        findings: PolicyFindings,
    },
    /// The sidecar cannot enforce this version. The version that was applied before stays applied.
    #[serde(rename = "refused", rename_all = "camelCase")]
    Nacked {
        /// Hash of the nacked version.
        hash: PolicyHash,
        /// Reason for the nack.
        reason: String,
    },
}

/// Findings of a sidecar about a policy that it applies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyFindings {
    /// The proxy through which most requests arrive, if the policy does not trust it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub untrusted_proxy: Option<UntrustedProxy>,
    /// Whether trusted proxies have reported much of late that is no address.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unreadable_addresses: bool,
    /// Names of the limits with nearly as many keys as `maxKeys` allows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nearly_full: Vec<String>,
    /// Names of the limits that have counted many requests of late whose key is not clear.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unclear_keys: Vec<String>,
    /// Whether gateways have asked about a descriptor that the policy counts. Only of a service.
    #[serde(default, skip_serializing_if = "is_false")]
    pub asked: bool,
}

impl PolicyFindings {
    /// Nothing.
    pub const NOTHING: Self = Self {
        untrusted_proxy: None,
        unreadable_addresses: false,
        nearly_full: Vec::new(),
        unclear_keys: Vec::new(),
        asked: false,
    };
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

/// A peer that reports the addresses of clients and that a policy does not trust. For the policy, all its clients
/// are one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UntrustedProxy {
    /// Address of the peer.
    pub peer: IpAddr,
    /// Header in which it reports the addresses of clients.
    pub header: AddressHeader,
}

/// The health of a store, as one sidecar sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StoreReport {
    /// The sidecar has not called the store yet.
    Unknown,
    /// The store responds.
    Healthy(StoreFindings),
    /// The store does not respond or cannot be used.
    Failing {
        /// Kind of failure.
        fault: StoreFault,
        /// Cause of the failure, if it is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cause: Option<FaultCause>,
    },
}

/// Findings of a sidecar about a store that responds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoreFindings {
    /// Whether the store has lost counters in the last ten minutes, before they expired.
    #[serde(default)]
    pub lost_counters: bool,
    /// Whether the store evicts counters.
    #[serde(default)]
    pub eviction: Eviction,
}

impl StoreReport {
    /// A store that responds, and of which nothing else is known.
    pub const HEALTHY: Self =
        Self::Healthy(StoreFindings { lost_counters: false, eviction: Eviction::NotSeen });
}

#[cfg(test)]
mod tests {
    use sluice_store::RedisOptions;

    use super::*;
    use crate::KeySecret;
    use crate::store_access::{StoreAccess, StoreChoice};

    #[test]
    fn credentials_survive_serialization_and_print_no_password() {
        let redis = RedisOptions::from_url("redis://:hunter2@a").unwrap();
        let access = StoreAccess { redis, key_secret: KeySecret::new([0; 16]) };
        let stores = StoreChoices::only(StoreChoice::Access(Box::new(access)));
        let credentials = Credentials { version: VERSION, stores, keep: Vec::new(), token_keys: None };
        assert!(!format!("{credentials:?}").contains("hunter2"), "{credentials:?}");
        let text = serde_json::to_string(&credentials).unwrap();
        assert_eq!(serde_json::from_str::<Credentials>(&text).unwrap(), credentials);
    }
}
