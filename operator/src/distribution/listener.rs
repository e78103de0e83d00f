//! One pod that has, or lately had, a stream: what it has said, and for how long that counts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sluice_config::message::{PolicyReport, StoreReport};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::distribution::identity::Identity;

/// How long a confirmation counts after its stream has ended.
pub const LAPSE: Duration = Duration::from_secs(30);
/// The longest reason of a refusal that is kept.
const MAX_REASON: usize = 500;

/// One pod that has, or lately had, a stream.
pub(super) struct Listener {
    pub(super) identity: Identity,
    pub(super) stream: String,
    pub(super) reports: BTreeMap<String, PolicyReport>,
    pub(super) store: StoreReport,
    /// When what it has said no longer counts; nothing while its stream is there and has reported.
    pub(super) lapses: Option<Instant>,
    /// Whether its stream has ended.
    pub(super) ended: bool,
    /// Rung when the pods change that share a policy with this one.
    pub(super) live: Arc<Notify>,
    /// Dropped to end the stream.
    pub(super) _close: mpsc::Sender<()>,
}

impl Listener {
    /// Whether what it has said counts.
    pub(super) fn counts(&self) -> bool {
        self.lapses.is_none_or(|lapses| Instant::now() < lapses)
    }
}

/// A report as it may become part of a status.
pub(super) fn shortened(report: PolicyReport) -> PolicyReport {
    match report {
        PolicyReport::Nacked { hash, mut reason } => {
            if let Some((end, _)) = reason.char_indices().nth(MAX_REASON) {
                reason.truncate(end);
            }
            // It becomes part of a status message: one line, nothing that a terminal would obey.
            reason.retain(|c| !c.is_control());
            PolicyReport::Nacked { hash, reason }
        }
        applied @ PolicyReport::Applied { .. } => applied,
    }
}
