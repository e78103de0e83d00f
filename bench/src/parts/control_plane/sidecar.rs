//! One sidecar's side of a session: it stays connected, confirms what it has received, and notes when.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sluice_config::PolicyHash;
use sluice_config::message::{Policies, PolicyReport, StoreReport};
use sluice_tests::components::{ControlClient, Session};
use tokio::sync::watch;
use tokio::time::timeout;

/// Longest time that a sidecar waits until its session begins.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Wait before a sidecar tries again, up to twice as long.
const RETRY: Duration = Duration::from_millis(250);

/// Counts over all sidecars.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Attempts that were refused, or found no connection.
    pub(crate) refused: AtomicU64,
    /// Events with replicas.
    pub(crate) live: AtomicU64,
    /// Sessions that have ended.
    pub(crate) ended: AtomicU64,
    /// Changes break all connections.
    pub(crate) storm: watch::Sender<u64>,
}

/// The state of one sidecar.
#[derive(Debug, Default)]
pub(crate) struct Sidecar {
    /// Number of its policies, and the time of the last event that changed them, in its present session.
    configured: Mutex<Option<(usize, Instant)>>,
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

    fn set(&self, configured: Option<(usize, Instant)>) {
        *self.configured.lock().unwrap_or_else(PoisonError::into_inner) = configured;
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
        loop {
            let client = control.lock().unwrap_or_else(PoisonError::into_inner).clone();
            match timeout(CONNECT_TIMEOUT, client.try_connect(&token, last_id.as_deref())).await {
                Ok(Ok(Ok(session))) => self.follow(session, &mut hashes, &mut last_id, &seen).await,
                Ok(Ok(Err(_)) | Err(_)) | Err(_) => {
                    seen.refused.fetch_add(1, Ordering::Relaxed);
                    let spread = token.bytes().fold(0, |sum, byte| sum * 31 % 256 + u32::from(byte)) % 256;
                    tokio::time::sleep(RETRY + RETRY * spread / 256).await;
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
            self.set(Some((hashes.len(), Instant::now())));
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
                    self.set(Some((hashes.len(), Instant::now())));
                    report(&session, hashes).await;
                }
                _ => {}
            }
        }
        self.set(None);
        seen.ended.fetch_add(1, Ordering::Relaxed);
    }
}

async fn report(session: &Session, hashes: &BTreeMap<String, PolicyHash>) {
    let applied = hashes.iter().map(|(uid, hash)| {
        let hash = hash.clone();
        (
            uid.clone(),
            PolicyReport::Applied { hash, untrusted_proxy: None, nearly_full: Vec::new(), asked: false },
        )
    });
    session.try_report(applied, StoreReport::HEALTHY).await;
}
