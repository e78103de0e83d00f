//! A sidecar's report about its policies and its store.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::policy::{PolicyHash, PolicyUid};

/// A sidecar's report about itself, sent with `POST /v1/reports`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Message version, [`crate::message::VERSION`].
    pub version: u32,
    /// Name of the session, from [`crate::message::SESSION_HEADER`].
    #[serde(rename = "stream")]
    pub session: String,
    /// State of every policy that the sidecar has received.
    pub policies: BTreeMap<PolicyUid, PolicyReport>,
    /// Health of the store.
    pub store: StoreReport,
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

/// The health of the store, as one sidecar sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StoreReport {
    /// The sidecar has not called the store yet.
    Unknown,
    /// The store responds.
    Healthy,
    /// The store does not respond or cannot be used.
    Failing {
        /// Kind of failure: `unreachable`, `slow`, `refused`, `read-only` or `nonsense`.
        fault: String,
    },
}
