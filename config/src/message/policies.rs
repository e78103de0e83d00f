//! The policies of a pod.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::policy::{PolicyHash, PolicyUid};

/// The policies of a pod: either all of them, or the changes since the event before.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Policies {
    /// Message version, [`crate::message::VERSION`].
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
