//! Resets of the counters of single clients.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The UID of the object that requests a reset.
pub type ResetUid = String;

/// All resets that a pod takes part in. A reset that the message leaves out is over.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Resets {
    /// Message version, [`crate::message::VERSION`].
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
