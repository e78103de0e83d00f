//! The observations that the status of a store is computed from, and the result of one condition.

use std::time::Duration;

use sluice_crds::RateLimitStoreStatus;
use sluice_crds::conditions::types;
use sluice_crds::store::{PasswordEpoch, SidecarCounts};
use sluice_store::{Eviction, FaultCause, StoreHealth};

use crate::distribution::stores::SidecarReport;
use crate::leadership::LEADER_GRACE;
use crate::object_key::StoreKey;
use crate::store::provisioner::Provisioned;
use crate::store::resolve::Resolved;

/// Everything that the status of a store is computed from.
pub struct Observed<'a> {
    /// Key of the store.
    pub key: &'a StoreKey,
    /// Generation of the store.
    pub generation: i64,
    /// The store, as far as it can be used.
    pub resolved: &'a Resolved,
    /// Namespace and service account of the operator, to which rights are granted.
    pub operator_namespace: &'a str,
    /// The reports of the sidecars that use the store.
    pub reports: &'a [SidecarReport],
    /// Health that the operator sees itself, and the cause of a fault. Only for stores that it connects to.
    pub own: Option<(StoreHealth, Option<FaultCause>)>,
    /// Whether the store evicts counters, as the operator sees it itself. Only for stores that it connects to.
    pub own_eviction: Option<Eviction>,
    /// Work of the operator at the servers. Only for managed stores.
    pub provisioned: Option<&'a Provisioned>,
    /// Passwords of the users. Only for managed stores.
    pub passwords: Option<PasswordEpoch>,
    /// Status that the store has.
    pub previous: Option<&'a RateLimitStoreStatus>,
    /// Time for which this operator has been the leader.
    pub leader_for: Duration,
}

impl Observed<'_> {
    /// Returns the counts before this operator became the leader, while sidecars are still connecting to it.
    pub(super) fn awaited(&self) -> Option<&SidecarCounts> {
        let before = self.previous?.sidecars.as_ref()?;
        let is_fewer = usize::try_from(before.reporting).is_ok_and(|before| self.reports.len() < before);
        (self.leader_for < LEADER_GRACE && is_fewer).then_some(before)
    }

    /// Reports whether all sidecars could reach this generation of the store before.
    pub(super) fn was_reachable(&self) -> bool {
        let before = self.previous.into_iter().flat_map(|previous| &previous.conditions);
        before.into_iter().any(|condition| {
            condition.type_ == types::REACHABLE
                && condition.status == "True"
                && condition.observed_generation == Some(self.generation)
        })
    }
}

/// The result of one condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) status: &'static str,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl Finding {
    pub(super) fn new(status: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Self { status, reason, message: message.into() }
    }
}
