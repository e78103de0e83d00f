//! The managed stores: which users each should have, and what sidecars receive of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sluice_config::message::StoreReport;
use sluice_config::store_access::StoreAccess;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::distribution::hub::Hub;
use crate::distribution::stores::{ManagedSource, StoreSource};
use crate::object_key::StoreKey;
use crate::store::passwords::Passwords;
use crate::store::provisioner::{Provisioned, Provisioner, Users, can_repair};

/// Time for which the passwords of the epoch before are accepted, so that a sidecar which is away from the operator for
/// a while can still connect.
const ROTATION_GRACE: Duration = Duration::from_secs(300);

/// Time for which a namespace keeps its user after its last policy has left the store.
const LEAVE_GRACE: Duration = Duration::from_secs(45);

/// The managed stores.
pub struct ManagedStores {
    stores: BTreeMap<StoreKey, Managed>,
    /// Notified when the state of a store changes.
    changed: Arc<Notify>,
}

/// A store that should be managed.
pub struct Wanted<'a> {
    /// Key of the store.
    pub key: &'a StoreKey,
    /// Whether it is the store of the installation.
    pub is_default: bool,
    /// The store, with the credentials of its administrator.
    pub access: &'a StoreAccess,
    /// Number of its passwords.
    pub password_epoch: i64,
}

struct Managed {
    provisioner: Provisioner,
    access: StoreAccess,
    epoch: i64,
    /// Time since which this replica knows the epoch.
    epoch_since: Instant,
    /// The namespaces that use the store, with the last time at which they did.
    used: BTreeMap<String, Instant>,
    /// The source that sidecars received last. It stays until the servers are ready for another.
    source: Option<ManagedSource>,
}

impl ManagedStores {
    /// Manages no store yet.
    #[must_use]
    pub fn new(changed: Arc<Notify>) -> Self {
        Self { stores: BTreeMap::new(), changed }
    }

    /// Manages these stores and no others. Must be called within a tokio runtime.
    pub fn keep<'a>(&mut self, all: impl IntoIterator<Item = Wanted<'a>>, root: &[u8], hub: &Hub) {
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
        wanted: &Wanted<'_>,
        known: Option<Managed>,
        root: &[u8],
        hub: &Hub,
    ) -> Option<Managed> {
        let Wanted { key, is_default, access, password_epoch: epoch } = *wanted;
        let epoch_since = known.as_ref().filter(|known| known.epoch == epoch).map(|known| known.epoch_since);
        let epoch_since = epoch_since.unwrap_or_else(Instant::now);
        let passwords = Passwords::new(root, key, epoch, epoch_since.elapsed() < ROTATION_GRACE);
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
            StoreReport::Failing { cause: None, .. } | StoreReport::Healthy | StoreReport::Unknown => false,
        };
        if hub.store_reports(store).iter().any(|sidecar| misses(&sidecar.report)) {
            provisioner.repair();
        }
        Some(Managed { provisioner, access: access.clone(), epoch, epoch_since, used, source })
    }

    /// Returns what sidecars receive of a store; `None` until it is known which users its servers have.
    #[must_use]
    pub fn source(&self, key: &StoreKey) -> Option<StoreSource> {
        let source = self.stores.get(key)?.source.clone()?;
        Some(StoreSource::Managed(Box::new(source)))
    }

    /// Makes the servers of a store load a renewed certificate, by these settings.
    pub fn load_certificate(&self, key: &StoreKey, settings: Vec<(&'static str, String)>) {
        if let Some(managed) = self.stores.get(key) {
            managed.provisioner.load_certificate(settings);
        }
    }

    /// Returns what has been done for a store.
    #[must_use]
    pub fn provisioned(&self, key: &StoreKey) -> Option<Provisioned> {
        Some(self.stores.get(key)?.provisioner.provisioned())
    }
}
