//! The stores in the hub, and what sidecars report about them.

use std::sync::Arc;

use sluice_config::message::StoreReport;
use sluice_config::policy::DEFAULT_STORE;
use tokio::sync::Notify;

use super::Hub;
use crate::distribution::stores::{HubStores, SidecarReport};
use crate::object_key::StoreKey;

impl Hub {
    /// Sets the stores, with the access to them.
    pub fn set_stores(&self, stores: HubStores) {
        let mut state = self.lock();
        let changed = state.stores != stores;
        state.stores = stores;
        drop(state);
        self.readiness.send_if_modified(|readiness| !std::mem::replace(&mut readiness.stores, true));
        if changed {
            self.changed();
        }
    }

    /// Reports whether the stores are known.
    #[must_use]
    pub fn has_stores(&self) -> bool {
        self.readiness.borrow().stores
    }

    /// Returns what is notified when reports about stores may have changed.
    #[must_use]
    pub fn store_reports_changed(&self) -> Arc<Notify> {
        self.store_reports.clone()
    }

    /// Returns the reports of all connected sidecars about the store of the installation, if `store` is `None`, or about
    /// a store of a namespace.
    #[must_use]
    pub fn store_reports(&self, store: Option<&StoreKey>) -> Vec<SidecarReport> {
        let state = self.lock();
        let sessions = state.sessions.values().filter(|session| session.counts());
        let reports = sessions.filter_map(|session| {
            let identity = &session.identity;
            let name = match store {
                None => DEFAULT_STORE,
                Some(store) if store.namespace == identity.namespace => &store.name,
                Some(_) => return None,
            };
            let report = session.stores.get(name).filter(|report| **report != StoreReport::Unknown)?;
            Some(SidecarReport {
                pod: format!("{}/{}", identity.namespace, identity.pod),
                report: report.clone(),
            })
        });
        reports.collect()
    }
}
