//! A sidecar's report about its policies and its stores.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use sluice_store::{Eviction, FaultCause, StoreFault};

use crate::client_address::AddressHeader;
use crate::message::resets::{ResetReport, ResetUid};
use crate::policy::{PolicyHash, PolicyUid};

/// Maximum number of limits in [`ShadowDenied`].
pub const MAX_SHADOW_DENIED: usize = 48;
/// Sketches of clients, by a policy as `NAMESPACE/NAME` and the name of one of its limits: a [`crate::distinct::DistinctSketch`] as a
/// text, which the operator reads only if the limit exists.
pub type ShadowDenied = BTreeMap<String, BTreeMap<String, String>>;

/// A sidecar's report about itself, which replaces the one before.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Message version, [`crate::message::VERSION`].
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
