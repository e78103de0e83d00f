//! The number of pods that each policy selects.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::policy::PolicyUid;

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
    /// Message version, [`crate::message::VERSION`].
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
