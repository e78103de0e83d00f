//! The operator's own connection to the store of the installation, which shows whether the store works before a sidecar
//! uses it. The operator connects to no store of a tenant: it would be a port scanner for them.

use sluice_config::store_access::StoreAccess;
use sluice_store::{Eviction, FaultCause, RedisStore, Store as _, StoreHealth};

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
    #[must_use]
    pub fn health(&self) -> Option<(StoreHealth, Option<FaultCause>)> {
        let (_, store) = self.0.as_ref()?;
        Some((store.health(), store.fault_cause()))
    }

    /// Returns whether the store evicts counters, if it can be used.
    #[must_use]
    pub fn eviction(&self) -> Option<Eviction> {
        let (_, store) = self.0.as_ref()?;
        (store.health() == StoreHealth::Healthy).then(|| store.eviction())
    }
}
