//! One session of a sidecar: its pod, its reports, how long they count after it has ended, and what wakes it. Reports arrive as lines of
//! JSON on the connection that carries the events. The pods of a workload report the same, so equal reports are kept once.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Poll, ready};
use std::time::Duration;

use foldhash::fast::RandomState;
use sluice_config::PolicyHash;
use sluice_config::message::{
    PolicyFindings, PolicyReport, Report, ResetReport, ResetUid, StoreReport, VERSION,
};
use sluice_config::policy::DEFAULT_STORE;
use sluice_crds::policy::Enforcer;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, timeout_at};

use crate::cluster::pods::pod::Labels;

#[cfg(test)]
mod session_tests;

#[cfg(test)]
mod reports_tests;

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

/// The pod of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Enforces policies there.
    pub enforcer: Enforcer,
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// UID of the pod.
    pub pod_uid: String,
    /// Labels of the pod.
    pub labels: Labels,
    /// Time at which the token expires, in seconds since the Unix epoch.
    pub expires: Option<i64>,
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

/// Number of different reports of a namespace that are looked through for an equal one. Further ones are kept as often as they come.
const MAX_DIFFERENT: usize = 8;

/// The last reports of a sidecar.
#[derive(Default, PartialEq)]
pub(super) struct Reports {
    /// The report about each policy, by its UID.
    pub(super) policies: HashMap<String, PolicyReport, RandomState>,
    /// The report about each store, by its name.
    pub(super) stores: BTreeMap<String, StoreReport>,
}

/// The last different reports by namespace, the newest first.
#[derive(Default)]
pub(super) struct SharedReports(HashMap<String, VecDeque<Weak<Reports>>>);

impl SharedReports {
    /// Returns equal reports of another sidecar of the namespace, or these.
    pub(super) fn share(&mut self, namespace: &str, reports: Reports) -> Arc<Reports> {
        let known = match self.0.get_mut(namespace) {
            Some(known) => known,
            None => self.0.entry(namespace.to_owned()).or_default(),
        };
        if let Some(equal) = known.iter().filter_map(Weak::upgrade).find(|known| **known == reports) {
            return equal;
        }
        let reports = Arc::new(reports);
        known.retain(|known| known.strong_count() > 0);
        known.truncate(MAX_DIFFERENT - 1);
        known.push_front(Arc::downgrade(&reports));
        reports
    }

    /// Forgets the reports of a namespace that has no sessions any more.
    pub(super) fn forget(&mut self, namespace: &str) {
        self.0.remove(namespace);
    }
}

/// The kind of a change that concerns a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Changed {
    /// Only replicas or resets.
    Live,
    /// The policies of its pod, its labels, or the access to stores.
    Policies,
}

/// Wakes one session.
#[derive(Debug, Default)]
pub(super) struct Wakeup {
    pub(super) notify: Notify,
    /// Whether policies have changed since the session has looked.
    policies: AtomicBool,
}

impl Wakeup {
    pub(super) fn wake(&self, changed: Changed) {
        if changed == Changed::Policies {
            self.policies.store(true, Ordering::Release);
        }
        self.notify.notify_one();
    }

    /// Reports whether policies have changed since the last call.
    pub(super) fn take_policies(&self) -> bool {
        self.policies.swap(false, Ordering::AcqRel)
    }
}

/// Maximum size of a report, in bytes. Reports contain hashes and reasons only. The service reports about the policies of all
/// namespaces.
const MAX_REPORT: usize = 256 << 10;
const MAX_SERVICE_REPORT: usize = 16 << 20;
/// Time in which a report must arrive, from its first byte.
const REPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes that are read at once.
const CHUNK: usize = 4096;

/// Why no more reports are read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReportsEnd {
    #[error("the sidecar has closed the connection")]
    Closed,
    #[error("the connection failed: {0}")]
    Connection(#[from] io::Error),
    #[error("the session has ended")]
    Ended,
    #[error("{0}")]
    Refused(String),
}

impl ReportsEnd {
    fn refused(reason: impl Into<String>) -> Self {
        Self::Refused(reason.into())
    }
}

/// Passes each report to `take`, which returns false if the session has ended. Between reports it holds no memory.
pub(super) async fn receive(
    mut reader: impl AsyncRead + Unpin,
    enforcer: Enforcer,
    mut take: impl FnMut(Report) -> bool,
) -> ReportsEnd {
    let max = match enforcer {
        Enforcer::Sidecar => MAX_REPORT,
        Enforcer::Service => MAX_SERVICE_REPORT,
    };
    let mut read = Vec::new();
    loop {
        match next(&mut reader, &mut read, max).await {
            Ok(report) => {
                if !take(report) {
                    return ReportsEnd::Ended;
                }
            }
            Err(end) => return end,
        }
    }
}

/// Reads a report. `read` has what was read of it, and then of the next.
async fn next(
    reader: &mut (impl AsyncRead + Unpin),
    read: &mut Vec<u8>,
    max: usize,
) -> Result<Report, ReportsEnd> {
    let mut searched = 0;
    let mut deadline = (!read.is_empty()).then(|| Instant::now() + REPORT_TIMEOUT);
    loop {
        let end = read[searched..].iter().position(|byte| *byte == b'\n').map(|at| searched + at);
        if end.unwrap_or(read.len()) > max {
            return Err(ReportsEnd::refused(format!("a report is longer than {max} bytes")));
        }
        if let Some(end) = end {
            let report = parse(&read[..end]);
            read.drain(..=end);
            if read.is_empty() {
                *read = Vec::new();
            }
            return report;
        }
        searched = read.len();
        let filled = match deadline {
            None => fill(reader, read).await?,
            Some(deadline) => timeout_at(deadline, fill(reader, read))
                .await
                .map_err(|_| ReportsEnd::refused("a report did not arrive in time"))??,
        };
        if filled == 0 {
            return Err(ReportsEnd::Closed);
        }
        deadline.get_or_insert_with(|| Instant::now() + REPORT_TIMEOUT);
    }
}

/// Appends what has arrived, and returns its length, which is 0 at the end. Nothing is allocated while it waits.
async fn fill(reader: &mut (impl AsyncRead + Unpin), read: &mut Vec<u8>) -> io::Result<usize> {
    poll_fn(|cx| {
        let mut chunk = [MaybeUninit::uninit(); CHUNK];
        let mut chunk = ReadBuf::uninit(&mut chunk);
        ready!(Pin::new(&mut *reader).poll_read(cx, &mut chunk))?;
        read.extend_from_slice(chunk.filled());
        Poll::Ready(Ok(chunk.filled().len()))
    })
    .await
}

fn parse(line: &[u8]) -> Result<Report, ReportsEnd> {
    let report: Report = serde_json::from_slice(line)
        .map_err(|error| ReportsEnd::refused(format!("a report is not valid: {error}")))?;
    if report.version == VERSION {
        return Ok(report);
    }
    let remedy = if report.version < VERSION {
        "restart the pod to update its sidecar"
    } else {
        "update the operator before the sidecars"
    };
    let text =
        format!("reports of version {} are not supported, only version {VERSION}: {remedy}", report.version);
    Err(ReportsEnd::refused(text))
}
