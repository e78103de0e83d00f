//! One session of a sidecar: its reports, and how long they count after it has ended.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sluice_config::PolicyHash;
use sluice_config::message::{PolicyReport, ResetReport, ResetUid, StoreReport, UntrustedProxy};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::distribution::identity::Identity;

/// Time for which the reports of a session count after it has ended.
pub const EXPIRY: Duration = Duration::from_secs(30);
/// Maximum number of characters of a nack's reason that are kept.
const MAX_REASON: usize = 500;
/// Number of limits of a policy, and length of their names.
const MAX_LIMITS: usize = 48;
const MAX_LIMIT_NAME: usize = 63;
/// Number of ports that a sidecar captures.
const MAX_PORTS: usize = 16;

/// The last report of a pod's sidecar about one edit of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Confirmation {
    /// The sidecar has applied this edit.
    Applied,
    /// The sidecar has rejected this edit, with a reason.
    Nacked(String),
    /// The sidecar is connected, but has reported nothing about the policy or has reported another edit.
    Unconfirmed,
    /// The sidecar is not connected.
    NotConnected,
}

/// A session, current or recently ended, of one pod.
pub(super) struct Session {
    pub(super) identity: Identity,
    /// Random name of the session, which only its sidecar has received.
    pub(super) name: String,
    /// The last report about each policy, by its UID.
    pub(super) reports: BTreeMap<String, PolicyReport>,
    /// The last report about each store, by its name.
    pub(super) stores: BTreeMap<String, StoreReport>,
    /// The last report about each reset, by the UID of its object.
    pub(super) resets: BTreeMap<ResetUid, ResetReport>,
    /// Ports of the applications that the sidecar has not reached for a minute.
    pub(super) unreachable: Vec<u16>,
    /// Whether an event has told of them.
    pub(super) unreachable_told: bool,
    /// Time at which the reports expire, or `None` while the session lasts and has reported.
    pub(super) expires: Option<Instant>,
    /// Whether the session has ended.
    pub(super) ended: bool,
    /// Notified when the replicas of one of the pod's policies change.
    pub(super) replicas_changed: Arc<Notify>,
    /// Dropped to end the session.
    pub(super) _close: mpsc::Sender<()>,
}

impl Session {
    /// Reports whether the session's reports still count.
    pub(super) fn counts(&self) -> bool {
        self.expires.is_none_or(|expires| Instant::now() < expires)
    }

    /// Returns the proxy that this edit of a policy does not trust, if most requests arrive through it.
    pub(super) fn untrusted_proxy(&self, policy_uid: &str, hash: &PolicyHash) -> Option<UntrustedProxy> {
        match self.reports.get(policy_uid)? {
            PolicyReport::Applied { hash: applied, untrusted_proxy, .. } if applied == hash => {
                untrusted_proxy.clone()
            }
            PolicyReport::Applied { .. } | PolicyReport::Nacked { .. } => None,
        }
    }

    /// Returns the names of the limits of this edit of a policy that have nearly as many keys as they may have.
    pub(super) fn nearly_full(&self, policy_uid: &str, hash: &PolicyHash) -> Vec<String> {
        match self.reports.get(policy_uid) {
            Some(PolicyReport::Applied { hash: applied, nearly_full, .. }) if applied == hash => {
                nearly_full.clone()
            }
            _ => Vec::new(),
        }
    }

    /// Returns the last report about this edit of a policy.
    pub(super) fn confirmation(&self, policy_uid: &str, hash: &PolicyHash) -> Confirmation {
        match self.reports.get(policy_uid) {
            Some(PolicyReport::Applied { hash: applied, .. }) if applied == hash => Confirmation::Applied,
            Some(PolicyReport::Nacked { hash: nacked, reason }) if nacked == hash => {
                Confirmation::Nacked(reason.clone())
            }
            _ => Confirmation::Unconfirmed,
        }
    }
}

/// Makes a report fit for a status message: the reason of a nack becomes one short line without control
/// characters, which a terminal would interpret, and no more limits are named than a policy can have.
pub(super) fn sanitized(report: PolicyReport) -> PolicyReport {
    match report {
        PolicyReport::Nacked { hash, reason } => {
            PolicyReport::Nacked { hash, reason: sanitized_reason(reason) }
        }
        PolicyReport::Applied { hash, untrusted_proxy, mut nearly_full } => {
            nearly_full.retain(|name| name.len() <= MAX_LIMIT_NAME);
            nearly_full.truncate(MAX_LIMITS);
            PolicyReport::Applied { hash, untrusted_proxy, nearly_full }
        }
    }
}

/// Makes a report about a reset fit for a status message.
pub(super) fn sanitized_reset(report: ResetReport) -> ResetReport {
    match report {
        ResetReport::Failed { reason } => ResetReport::Failed { reason: sanitized_reason(reason) },
        ResetReport::Removed { .. } | ResetReport::Forgotten { .. } => report,
    }
}

/// Makes ports of a report fit for a status message: no more than a pod can have captured.
pub(super) fn sanitized_ports(mut ports: Vec<u16>) -> Vec<u16> {
    ports.truncate(MAX_PORTS);
    ports
}

fn sanitized_reason(mut reason: String) -> String {
    if let Some((end, _)) = reason.char_indices().nth(MAX_REASON) {
        reason.truncate(end);
    }
    reason.retain(|c| !c.is_control());
    reason
}

/// Makes a report about a store fit for a status message: the kind of a fault is one of few words.
pub(super) fn sanitized_store(report: StoreReport) -> StoreReport {
    match report {
        StoreReport::Failing { mut fault, cause } => {
            fault
                .truncate(fault.bytes().take_while(|&b| b.is_ascii_lowercase() || b == b'-').count().min(32));
            StoreReport::Failing { fault, cause }
        }
        StoreReport::Unknown | StoreReport::Healthy(_) => report,
    }
}
