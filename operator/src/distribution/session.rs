//! One session of a sidecar: its reports, and how long they count after it has ended.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sluice_config::PolicyHash;
use sluice_config::message::{PolicyFindings, PolicyReport, ResetReport, ResetUid, StoreReport};
use sluice_config::policy::DEFAULT_STORE;
use sluice_crds::policy::Enforcer;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::distribution::identity::Identity;
use crate::distribution::shared_reports::Reports;
use crate::distribution::wakeup::Wakeup;

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
    /// The sidecar is connected, and has reported nothing at all in this session yet.
    AwaitsReport,
    /// The sidecar is not connected.
    NotConnected,
}

/// The last report of a pod's sidecar, as far as one edit of a policy and its store matter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reported {
    /// Whether it applies the edit.
    pub confirmation: Confirmation,
    /// Findings about the edit.
    pub findings: PolicyFindings,
    /// The store, or `None` if the sidecar is not connected or has not reported on it.
    pub store: Option<StoreReport>,
    /// Ports of the applications that it has not reached for a minute although requests came.
    pub unreachable: Vec<u16>,
}

impl Reported {
    /// Nothing, because the sidecar is not connected.
    pub(super) const NOTHING: Self = Self {
        confirmation: Confirmation::NotConnected,
        findings: PolicyFindings::NOTHING,
        store: None,
        unreachable: Vec::new(),
    };
}

/// A session, current or recently ended, of one pod.
pub(super) struct Session {
    pub(super) identity: Identity,
    /// Random name of the session, which only its sidecar has received.
    pub(super) name: String,
    /// The last reports about policies and stores.
    pub(super) reports: Arc<Reports>,
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
    /// Wakes the stream of its events.
    pub(super) wakeup: Arc<Wakeup>,
    /// Dropped to end the session.
    pub(super) _close: mpsc::Sender<()>,
}

impl Session {
    /// Reports whether the session lasts and has reported nothing.
    fn awaits_report(&self) -> bool {
        self.expires.is_some() && !self.ended
    }

    /// Reports whether the session lasts and has reported something.
    pub(super) fn has_reported(&self) -> bool {
        self.expires.is_none() && !self.ended
    }

    /// Reports whether the session's reports still count.
    pub(super) fn counts(&self) -> bool {
        self.expires.is_none_or(|expires| Instant::now() < expires)
    }

    /// Reports whether another session has reported the same, but for the ports of its applications.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.reports, &other.reports)
            && self.identity.enforcer == other.identity.enforcer
            && self.awaits_report() == other.awaits_report()
    }

    /// Returns what it has reported last about this edit of a policy and about a store.
    pub(super) fn reported(
        &self,
        policy_uid: &str,
        hash: &PolicyHash,
        (namespace, store): (&str, &str),
    ) -> Reported {
        let name = match self.identity.enforcer {
            Enforcer::Service if store != DEFAULT_STORE => Cow::Owned(format!("{namespace}/{store}")),
            Enforcer::Sidecar | Enforcer::Service => Cow::Borrowed(store),
        };
        let mut reported = Reported {
            confirmation: Confirmation::Unconfirmed,
            store: self.reports.stores.get(&*name).cloned(),
            unreachable: self.unreachable.clone(),
            ..Reported::NOTHING
        };
        match self.reports.policies.get(policy_uid) {
            Some(PolicyReport::Applied { hash: applied, findings }) if applied == hash => {
                reported.confirmation = Confirmation::Applied;
                reported.findings.clone_from(findings);
            }
            Some(PolicyReport::Nacked { hash: nacked, reason }) if nacked == hash => {
                reported.confirmation = Confirmation::Nacked(reason.clone());
            }
            _ if self.awaits_report() => reported.confirmation = Confirmation::AwaitsReport,
            _ => {}
        }
        reported
    }
}

/// Makes a report fit for a status message: the reason of a nack becomes one short line without control
/// characters, which a terminal would interpret, and no more limits are named than a policy can have.
pub(super) fn sanitized(report: PolicyReport) -> PolicyReport {
    match report {
        PolicyReport::Nacked { hash, reason } => {
            PolicyReport::Nacked { hash, reason: sanitized_reason(reason) }
        }
        PolicyReport::Applied { hash, mut findings } => {
            for names in [&mut findings.nearly_full, &mut findings.unclear_keys] {
                names.retain(|name| name.len() <= MAX_LIMIT_NAME);
                names.truncate(MAX_LIMITS);
            }
            PolicyReport::Applied { hash, findings }
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
