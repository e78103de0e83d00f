//! One sidecar's side of a session: it stays connected, confirms what it has received, and notes when.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sluice_config::PolicyHash;
use sluice_config::message::{Policies, PolicyFindings, PolicyReport, StoreReport};
use sluice_tests::components::{ControlClient, Session};
use tokio::sync::watch;
use tokio::time::timeout;

/// Longest time that a sidecar waits until its session begins.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Wait before a sidecar tries again, up to twice as long.
const RETRY: Duration = Duration::from_millis(250);
/// Longest wait of a real sidecar that has lost its session.
const SPREAD: Duration = Duration::from_secs(1);

/// Counts over all sidecars.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Attempts that were refused, or found no connection.
    pub(crate) refused: AtomicU64,
    /// Events with replicas.
    pub(crate) live: AtomicU64,
    /// Sessions that have ended.
    pub(crate) ended: AtomicU64,
    /// Whether sidecars that have lost their sessions wait before they connect, as real ones do. Otherwise all of them come at once.
    pub(crate) waits: AtomicBool,
    /// Longest time of a sidecar between two sessions, in microseconds.
    pub(crate) longest_gap: AtomicU64,
    /// Changes break all connections.
    pub(crate) storm: watch::Sender<u64>,
}

/// The state of one sidecar.
#[derive(Debug, Default)]
pub(crate) struct Sidecar {
    /// Number of its policies, and the time of the last event that changed them, in its present session.
    configured: Mutex<Option<(usize, Instant)>>,
    /// Time at which it lost its last session.
    lost: Mutex<Option<Instant>>,
    /// While it is set, the sidecar keeps its connection and reads nothing.
    pub(crate) hangs: watch::Sender<bool>,
}

impl Sidecar {
    /// Returns when it received the last of its policies, if it has this many.
    pub(crate) fn configured(&self, policies: usize) -> Option<Instant> {
        let configured = *self.configured.lock().unwrap_or_else(PoisonError::into_inner);
        configured.filter(|(count, _)| *count == policies).map(|(_, at)| at)
    }

    /// Reports whether it has a session in which it has received policies.
    pub(crate) fn has_session(&self) -> bool {
        self.configured.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn set(&self, policies: usize, seen: &Seen) {
        let now = Instant::now();
        *self.configured.lock().unwrap_or_else(PoisonError::into_inner) = Some((policies, now));
        if let Some(lost) = self.lost.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let gap = u64::try_from((now - lost).as_micros()).unwrap_or(u64::MAX);
            seen.longest_gap.fetch_max(gap, Ordering::Relaxed);
        }
    }

    fn lose(&self, seen: &Seen) {
        *self.configured.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(Instant::now);
        seen.ended.fetch_add(1, Ordering::Relaxed);
    }

    /// Stays connected for ever.
    pub(crate) async fn run(
        self: Arc<Self>,
        control: Arc<Mutex<ControlClient>>,
        token: String,
        seen: Arc<Seen>,
    ) {
        let mut last_id: Option<String> = None;
        let mut hashes = BTreeMap::new();
        // The same for a sidecar each time.
        let part = token.bytes().fold(0, |sum, byte| (sum * 31 + u32::from(byte)) % 256);
        loop {
            let client = control.lock().unwrap_or_else(PoisonError::into_inner).clone();
            match timeout(CONNECT_TIMEOUT, client.try_connect(&token, last_id.as_deref())).await {
                Ok(Ok(Ok(session))) => {
                    self.follow(session, &mut hashes, &mut last_id, &seen).await;
                    if seen.waits.load(Ordering::Relaxed) {
                        tokio::time::sleep(SPREAD * part / 256).await;
                    }
                }
                Ok(Ok(Err(_)) | Err(_)) | Err(_) => {
                    seen.refused.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(RETRY + RETRY * part / 256).await;
                }
            }
        }
    }

    /// Follows a session until it ends.
    async fn follow(
        &self,
        mut session: Session,
        hashes: &mut BTreeMap<String, PolicyHash>,
        last_id: &mut Option<String>,
        seen: &Seen,
    ) {
        if last_id.is_some() {
            // It has all that it had. The operator sends nothing as long as nothing has changed.
            self.set(hashes.len(), seen);
            report(&session, hashes).await;
        }
        let (mut storm, mut hangs) = (seen.storm.subscribe(), self.hangs.subscribe());
        loop {
            let _ = hangs.wait_for(|hangs| !hangs).await;
            let event = tokio::select! {
                event = session.event() => event,
                // An event that has been read only in part stays in the session's buffer.
                Ok(()) = hangs.changed() => continue,
                Ok(()) = storm.changed() => None,
            };
            let Some(event) = event else { break };
            let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
            match field("event: ") {
                Some("live") => drop(seen.live.fetch_add(1, Ordering::Relaxed)),
                Some("policies") => {
                    let Some(Ok(policies)) = field("data: ").map(serde_json::from_str::<Policies>) else {
                        continue;
                    };
                    if policies.full {
                        hashes.retain(|uid, _| policies.keep.contains(uid));
                    }
                    policies.removed.iter().for_each(|uid| drop(hashes.remove(uid)));
                    hashes.extend(policies.policies.into_iter().map(|(uid, policy)| (uid, policy.hash)));
                    *last_id = field("id: ").map(str::to_owned);
                    self.set(hashes.len(), seen);
                    report(&session, hashes).await;
                }
                _ => {}
            }
        }
        self.lose(seen);
    }
}

async fn report(session: &Session, hashes: &BTreeMap<String, PolicyHash>) {
    let applied = hashes.iter().map(|(uid, hash)| {
        let hash = hash.clone();
        (uid.clone(), PolicyReport::Applied { hash, findings: PolicyFindings::NOTHING })
    });
    session.try_report(applied, StoreReport::HEALTHY).await;
}
