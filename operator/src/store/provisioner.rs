//! Keeps the servers of a managed store up to date: a task for each store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sluice_store::redis::OptionsError;
use sluice_store::redis::admin::{Administrator, ManagedUser, Problem, ServerReport};
use sluice_store::{FaultCause, RedisOptions};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Interval at which servers that are up to date are read again.
const CHECK_EVERY: Duration = Duration::from_secs(30);
/// Delay after a pass with a problem.
const RETRY: Duration = Duration::from_secs(2);
/// Time within which kubelet writes a changed Secret into a container, several times over.
pub(super) const CERTIFICATE_WINDOW: Duration = Duration::from_secs(600);
/// Shortest interval between two passes.
const PACE: Duration = Duration::from_secs(1);

/// The users of a store, by namespace.
pub type Users = BTreeMap<String, ManagedUser>;

/// The task of one managed store.
pub struct Provisioner {
    wanted: watch::Sender<Users>,
    state: Arc<Mutex<Provisioned>>,
    repair: Arc<Notify>,
    certificate: watch::Sender<Option<CertificateLoad>>,
    task: AbortHandle,
}

/// A certificate to load.
#[derive(Debug, Clone)]
struct CertificateLoad {
    settings: Vec<(&'static str, String)>,
    /// End of the time in which kubelet writes the certificate into the container.
    until: Instant,
}

/// Work that a provisioner has done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Provisioned {
    /// The users that can connect; `None` before the first pass has ended.
    pub users: Option<Users>,
    /// The reports of the last pass, or the reason why it failed.
    pub result: Option<Result<Vec<ServerReport>, Problem>>,
}

impl Provisioned {
    /// Returns the servers that are not up to date, with the reason, or the reason why none can be found.
    #[must_use]
    pub fn problems(&self) -> Vec<(Option<&str>, &Problem)> {
        match &self.result {
            None => Vec::new(),
            Some(Err(problem)) => vec![(None, problem)],
            Some(Ok(reports)) => reports
                .iter()
                .filter_map(|report| Some((Some(report.address.as_str()), report.problem.as_ref()?)))
                .collect(),
        }
    }

    /// Returns the largest part of its memory that a server uses, from 0 to 1.
    #[must_use]
    pub fn memory_used(&self) -> Option<f64> {
        let reports = self.result.as_ref()?.as_ref().ok()?;
        let parts =
            reports.iter().filter_map(|report| report.memory).map(|(used, max)| used as f64 / max as f64);
        parts.reduce(f64::max)
    }
}

impl Provisioner {
    /// Starts the task. Notifies `changed` when its result changes. If `is_taken_over`, the servers are assumed to have the
    /// users until they can be read, because another replica has set them. Must be called within a tokio runtime.
    pub fn start(
        options: RedisOptions,
        users: Users,
        is_taken_over: bool,
        changed: Arc<Notify>,
    ) -> Result<Self, OptionsError> {
        let administrator = Administrator::new(options)?;
        let (wanted, state, repair) = (watch::Sender::new(users), Arc::default(), Arc::<Notify>::default());
        let certificate = watch::Sender::new(None);
        let task = Task {
            administrator,
            wanted: wanted.subscribe(),
            state: Arc::clone(&state),
            repair: repair.clone(),
            certificate: certificate.subscribe(),
            is_taken_over,
            changed,
        };
        let task = tokio::spawn(task.run()).abort_handle();
        Ok(Self { wanted, state, repair, certificate, task })
    }

    /// Sets the users that the store should have.
    pub fn want(&self, users: Users) {
        self.wanted.send_if_modified(|wanted| {
            let changed = *wanted != users;
            *wanted = users;
            changed
        });
    }

    /// Makes another pass soon, because a sidecar misses something.
    pub fn repair(&self) {
        self.repair.notify_one();
    }

    /// Makes the servers load a certificate that a file of theirs will soon have, by these settings.
    pub fn load_certificate(&self, settings: Vec<(&'static str, String)>) {
        let until = Instant::now() + CERTIFICATE_WINDOW;
        self.certificate.send_replace(Some(CertificateLoad { settings, until }));
    }

    /// Returns what has been done.
    #[must_use]
    pub fn provisioned(&self) -> Provisioned {
        lock(&self.state).clone()
    }
}

impl Drop for Provisioner {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reports whether a sidecar with this fault misses what a provisioner sets.
#[must_use]
pub fn can_repair(cause: FaultCause) -> bool {
    matches!(cause, FaultCause::AuthenticationFailed | FaultCause::NotPermitted | FaultCause::FunctionMissing)
}

/// The task of a provisioner.
struct Task {
    administrator: Administrator,
    wanted: watch::Receiver<Users>,
    state: Arc<Mutex<Provisioned>>,
    repair: Arc<Notify>,
    certificate: watch::Receiver<Option<CertificateLoad>>,
    is_taken_over: bool,
    changed: Arc<Notify>,
}

impl Task {
    async fn run(mut self) {
        loop {
            let users = self.wanted.borrow_and_update().clone();
            let is_complete = self.pass(users).await;
            let load = self.certificate.borrow().clone().filter(|load| Instant::now() < load.until);
            if let Some(CertificateLoad { settings, .. }) = load {
                self.administrator.set(&settings).await;
            }
            tokio::time::sleep(PACE).await;
            tokio::select! {
                // The sender lives as long as the task.
                _ = self.wanted.changed() => {}
                () = self.repair.notified() => {}
                () = tokio::time::sleep(if is_complete { CHECK_EVERY } else { RETRY }) => {}
            }
        }
    }

    /// Brings the servers up to date. Reports whether all of them are.
    async fn pass(&self, users: Users) -> bool {
        let all: Vec<_> = users.values().cloned().collect();
        let result = self.administrator.provision(&all).await;
        let is_good = |report: &ServerReport| report.problem.is_none();
        let is_complete = result.as_ref().is_ok_and(|reports| reports.iter().all(is_good));
        let can_connect = result.as_ref().is_ok_and(|reports| reports.iter().any(is_good));
        let mut state = lock(&self.state);
        let before = state.clone();
        // If the store is away when this replica begins to lead, its users are probably those that are wanted.
        if can_connect || (self.is_taken_over && state.users.is_none()) {
            state.users = Some(users);
        }
        state.result = Some(result);
        if without_memory(&before) != without_memory(&state) {
            self.changed.notify_one();
        }
        is_complete
    }
}

/// Returns the state without numbers that change all the time.
fn without_memory(state: &Provisioned) -> Provisioned {
    let mut state = state.clone();
    if let Some(Ok(reports)) = &mut state.result {
        reports.iter_mut().for_each(|report| report.memory = None);
    }
    state
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No statement that changes the value can panic halfway.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
