//! The managed stores: which users each should have, and what sidecars receive of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sluice_config::message::StoreReport;
use sluice_config::store_access::StoreAccess;
use sluice_crds::store::PasswordEpoch;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::distribution::hub::Hub;
use crate::distribution::stores::{ManagedSource, StoreSource};
use crate::object_key::StoreKey;
use crate::store::passwords::Passwords;
use crate::store::provisioner::{Provisioned, Provisioner, Users, can_repair};

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
pub struct Wanted<'a> {
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
        let Wanted { key, is_default, access, password_epoch, ref recorded } = *wanted;
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
            provisioner.repair();
        }
        Some(Managed { provisioner, access: access.clone(), passwords: epoch, used, source })
    }

    /// Returns what sidecars receive of a store; `None` until it is known which users its servers have.
    #[must_use]
    pub fn source(&self, key: &StoreKey) -> Option<StoreSource> {
        let source = self.stores.get(key)?.source.clone()?;
        Some(StoreSource::Managed(Box::new(source)))
    }

    /// Returns the passwords of a store's users, for its status.
    #[must_use]
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
    #[must_use]
    pub fn provisioned(&self, key: &StoreKey) -> Option<Provisioned> {
        Some(self.stores.get(key)?.provisioner.provisioned())
    }
}

/// Returns the passwords of an epoch, and since when they are used, given what was known before: by this replica, or by the
/// leader before it.
fn epoch_since(epoch: i64, before: Option<&PasswordEpoch>, now: Timestamp) -> PasswordEpoch {
    let since = match before {
        Some(before) if before.epoch == epoch => before.since.0.min(now),
        // Whole seconds, because the API server stores no fractions.
        Some(_) | None => Timestamp::from_second(now.as_second()).unwrap_or(now),
    };
    PasswordEpoch { epoch, since: Time(since) }
}

/// Reports whether the passwords of the epoch before are still accepted.
fn accepts_previous(passwords: &PasswordEpoch, now: Timestamp) -> bool {
    now.duration_since(passwords.since.0) < ROTATION_GRACE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_new_leader_goes_on_with_the_time_that_the_status_records() {
        let changed = epoch_since(3, None, at(1000));
        assert_eq!((changed.epoch, changed.since.0), (3, at(1000)));
        // Another leader reads it from the status.
        assert_eq!(epoch_since(3, Some(&changed), at(1200)), changed);
        assert!(accepts_previous(&changed, at(1299)));
        assert!(!accepts_previous(&changed, at(1300)));
        // The number has changed while there was no leader.
        assert_eq!(epoch_since(4, Some(&changed), at(2000)).since.0, at(2000));
        // The clock of the leader before was ahead.
        assert_eq!(epoch_since(3, Some(&changed), at(900)).since.0, at(900));
    }
}
