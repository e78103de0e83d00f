//! The managed stores: which users each should have, what sidecars receive of it, and a task for each that keeps its servers up to date.
//! The passwords of the users are derived, so that no replica has to remember them: whoever knows one learns nothing about another.
//!
//! The operator's own connection to an unmanaged store of the installation shows whether the store works before a sidecar uses it. The
//! operator connects to no store of a tenant: it would be a port scanner for them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sha2::{Digest as _, Sha256};
use sluice_config::message::StoreReport;
use sluice_config::store_access::StoreAccess;
use sluice_crds::store::PasswordEpoch;
use sluice_store::redis::admin::{Administrator, ManagedUser, Problem, ServerReport};
use sluice_store::redis::{OptionsError, Secret};
use sluice_store::{Eviction, FaultCause, RedisOptions, RedisStore, Store as _, StoreHealth};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::conditions::whole_seconds;
use crate::distribution::hub::Hub;
use crate::distribution::stores::{ManagedSource, StoreSource};
use crate::locks::lock;
use crate::names::StoreKey;

#[cfg(test)]
mod managed_tests;

#[cfg(test)]
mod passwords_tests;

/// Time for which the passwords of the epoch before are accepted, so that a sidecar which is away from the operator for
/// a while can still connect.
const ROTATION_GRACE: SignedDuration = SignedDuration::from_secs(300);

/// Time for which a namespace keeps its user after its last policy has left the store.
const LEAVE_GRACE: Duration = Duration::from_secs(45);

/// The managed stores.
pub struct ManagedStores {
    stores: BTreeMap<StoreKey, Managed>,
    /// Notified when the state of a store changes.
    changed: Arc<Notify>,
}

/// A store that should be managed.
pub struct WantedStore<'a> {
    /// Key of the store.
    pub key: &'a StoreKey,
    /// Whether it is the store of the installation.
    pub is_default: bool,
    /// The store, with the credentials of its administrator.
    pub access: &'a StoreAccess,
    /// Number of its passwords.
    pub password_epoch: i64,
    /// The passwords that its status records.
    pub recorded: Option<PasswordEpoch>,
}

struct Managed {
    provisioner: Provisioner,
    access: StoreAccess,
    passwords: PasswordEpoch,
    /// The namespaces that use the store, with the last time at which they did.
    used: BTreeMap<String, Instant>,
    /// The source that sidecars received last. It stays until the servers are ready for another.
    source: Option<ManagedSource>,
}

impl ManagedStores {
    /// Manages no store yet.
    pub fn new(changed: Arc<Notify>) -> Self {
        Self { stores: BTreeMap::new(), changed }
    }

    /// Manages these stores and no others. Must be called within a tokio runtime.
    pub fn keep<'a>(&mut self, all: impl IntoIterator<Item = WantedStore<'a>>, root: &[u8], hub: &Hub) {
        let mut before = std::mem::take(&mut self.stores);
        for wanted in all {
            let known = before.remove(wanted.key);
            if let Some(managed) = self.keep_one(&wanted, known, root, hub) {
                self.stores.insert(wanted.key.clone(), managed);
            }
        }
    }

    fn keep_one(
        &self,
        wanted: &WantedStore<'_>,
        known: Option<Managed>,
        root: &[u8],
        hub: &Hub,
    ) -> Option<Managed> {
        let WantedStore { key, is_default, access, password_epoch, ref recorded } = *wanted;
        let before = known.as_ref().map(|known| &known.passwords).or(recorded.as_ref());
        let epoch = epoch_since(password_epoch, before, Timestamp::now());
        let passwords = Passwords::new(root, key, epoch.epoch, accepts_previous(&epoch, Timestamp::now()));
        let store = (!is_default).then_some(key);
        let now = Instant::now();
        let mut used = known.as_ref().map(|known| known.used.clone()).unwrap_or_default();
        used.extend(hub.namespaces_of_store(store).into_iter().map(|namespace| (namespace, now)));
        // Sidecars that leave the store still return leases and slots there.
        used.retain(|_, last| now.duration_since(*last) < LEAVE_GRACE);
        let users: Users = used.keys().map(|name| (name.clone(), passwords.user(name))).collect();
        let mut source = known.as_ref().and_then(|known| known.source.clone());
        let same = known.filter(|known| known.access == *access);
        let provisioner = match same {
            Some(Managed { provisioner, .. }) => {
                provisioner.want(users);
                provisioner
            }
            None => Provisioner::start(access.redis.clone(), users, source.is_none(), self.changed.clone())
                .inspect_err(|error| tracing::error!(store = %key, %error, "the store cannot be managed"))
                .ok()?,
        };
        if let Some(users) = provisioner.provisioned().users {
            source = Some(ManagedSource { access: access.clone(), users });
        }
        let misses = |report: &StoreReport| match report {
            StoreReport::Failing { cause: Some(cause), .. } => can_repair(*cause),
            StoreReport::Failing { cause: None, .. } | StoreReport::Healthy(_) | StoreReport::Unknown => {
                false
            }
        };
        if hub.store_reports(store).iter().any(|sidecar| misses(&sidecar.report)) {
            provisioner.repair.notify_one();
        }
        Some(Managed { provisioner, access: access.clone(), passwords: epoch, used, source })
    }

    /// Returns what sidecars receive of a store; `None` until it is known which users its servers have.
    pub fn source(&self, key: &StoreKey) -> Option<StoreSource> {
        let source = self.stores.get(key)?.source.clone()?;
        Some(StoreSource::Managed(Box::new(source)))
    }

    /// Returns the passwords of a store's users, for its status.
    pub fn passwords(&self, key: &StoreKey) -> Option<PasswordEpoch> {
        Some(self.stores.get(key)?.passwords.clone())
    }

    /// Makes the servers of a store load a renewed certificate, by these settings.
    pub fn load_certificate(&self, key: &StoreKey, settings: Vec<(&'static str, String)>) {
        if let Some(managed) = self.stores.get(key) {
            managed.provisioner.load_certificate(settings);
        }
    }

    /// Returns what has been done for a store.
    pub fn provisioned(&self, key: &StoreKey) -> Option<Provisioned> {
        Some(self.stores.get(key)?.provisioner.provisioned())
    }
}

/// Returns the passwords of an epoch, and since when they are used, given what was known before: by this replica, or by the
/// leader before it.
fn epoch_since(epoch: i64, before: Option<&PasswordEpoch>, now: Timestamp) -> PasswordEpoch {
    let since = match before {
        Some(before) if before.epoch == epoch => Time(before.since.0.min(now)),
        Some(_) | None => whole_seconds(now),
    };
    PasswordEpoch { epoch, since }
}

/// Reports whether the passwords of the epoch before are still accepted.
fn accepts_previous(passwords: &PasswordEpoch, now: Timestamp) -> bool {
    now.duration_since(passwords.since.0) < ROTATION_GRACE
}

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

    /// Makes the servers load a certificate that a file of theirs will soon have, by these settings.
    pub fn load_certificate(&self, settings: Vec<(&'static str, String)>) {
        let until = Instant::now() + CERTIFICATE_WINDOW;
        self.certificate.send_replace(Some(CertificateLoad { settings, until }));
    }

    /// Returns what has been done.
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

/// Derives the passwords of one store.
#[derive(Clone, PartialEq, Eq)]
pub struct Passwords {
    root: Vec<u8>,
    store: StoreKey,
    epoch: i64,
    /// Whether the passwords of the epoch before are still accepted.
    pub accepts_previous: bool,
}

impl Passwords {
    /// Derives passwords from the root secret.
    pub fn new(root: &[u8], store: &StoreKey, epoch: i64, accepts_previous: bool) -> Self {
        Self { root: root.to_vec(), store: store.clone(), epoch, accepts_previous }
    }

    /// Returns the user of a namespace.
    pub fn user(&self, namespace: &str) -> ManagedUser {
        let previous = self.accepts_previous && self.epoch > 0;
        let epochs = std::iter::once(self.epoch).chain(previous.then_some(self.epoch - 1));
        ManagedUser {
            namespace: namespace.to_owned(),
            passwords: epochs.map(|epoch| self.password(namespace, epoch)).collect(),
        }
    }

    fn password(&self, namespace: &str, epoch: i64) -> Secret {
        // No name of an object contains a slash. The outer hash covers a fixed length, so it cannot be extended.
        let inner =
            Sha256::digest(format!("{}/{}/{namespace}/{epoch}", self.store.namespace, self.store.name));
        let outer = Sha256::new().chain_update(Sha256::digest(&self.root)).chain_update(inner).finalize();
        Secret::new(URL_SAFE_NO_PAD.encode(outer))
    }
}

/// The operator's own connection.
#[derive(Default)]
pub struct OwnConnection(Option<(StoreAccess, RedisStore)>);

impl OwnConnection {
    /// Connects with this access, and stays connected while it is the same. Must be called within a tokio runtime.
    pub fn keep(&mut self, access: Option<&StoreAccess>) {
        if self.0.as_ref().map(|(access, _)| access) != access {
            self.0 = access.and_then(|access| {
                let store = RedisStore::start(access.redis.clone()).ok()?;
                Some((access.clone(), store))
            });
        }
    }

    /// Returns the health of the store, and the cause of a fault.
    pub fn health(&self) -> Option<(StoreHealth, Option<FaultCause>)> {
        let (_, store) = self.0.as_ref()?;
        Some((store.health(), store.fault_cause()))
    }

    /// Returns whether the store evicts counters, if it can be used.
    pub fn eviction(&self) -> Option<Eviction> {
        let (_, store) = self.0.as_ref()?;
        (store.health() == StoreHealth::Healthy).then(|| store.eviction())
    }
}
