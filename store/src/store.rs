//! [`Store`]: what a store of counters does.

use std::future::Future;
use std::sync::Arc;

use sluice_limiter::{Reserved, SlotsFound};

use crate::check::{
    CheckRequest, CheckResponse, Counter, Grant, KeyHash, LimitSpec, Lookup, Settlement, Taking,
};
use crate::failure::{StoreError, StoreHealth};
use crate::fault_cause::FaultCause;

/// A store of counters. Each call is atomic: no other call sees a part of it. After an error of [`Store::settle`],
/// [`Store::take`] or [`Store::reset`], the call may or may not have been carried out, and the store does not repeat it.
pub trait Store: Send + Sync + 'static {
    /// Decides a check as [`decide`](crate::check::decide) does: every counter is charged, or none.
    ///
    /// # Errors
    /// The store did not answer in time. Nothing is charged then, as far as the store can prevent it.
    fn check(&self, check: CheckRequest) -> impl Future<Output = Result<CheckResponse, StoreError>> + Send;

    /// Charges a counter's cost up to `times` times, with the same result as that many checks one after another that stop at
    /// the first denial, in one call.
    ///
    /// # Errors
    /// See [`Store::check`].
    fn acquire(&self, counter: Counter, times: u64)
    -> impl Future<Output = Result<Grant, StoreError>> + Send;

    /// Corrects a charge as [`settle`](crate::check::settle) does. Returns what was found of the slots that must be there.
    ///
    /// # Errors
    /// See [`Store::check`].
    fn settle(&self, settlement: Settlement) -> impl Future<Output = Result<SlotsFound, StoreError>> + Send;

    /// Returns a reservation; `None` if there is no such one.
    ///
    /// # Errors
    /// See [`Store::check`].
    fn find(&self, lookup: Lookup) -> impl Future<Output = Result<Option<Reserved>, StoreError>> + Send;

    /// Settles a reservation: takes it out of its ledger and corrects its charge, or neither. Returns whether there was such
    /// one.
    ///
    /// # Errors
    /// See [`Store::check`].
    fn take(&self, taking: Taking) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Removes the counter of a key, as if its client had never sent a request. Returns the time of the removal by the store's
    /// clock, in microseconds since the Unix epoch.
    ///
    /// # Errors
    /// See [`Store::check`].
    fn reset(
        &self,
        limit: &Arc<LimitSpec>,
        key: KeyHash,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Returns the state of the store as the last calls found it.
    fn health(&self) -> StoreHealth;

    /// Returns the cause of the fault while the store fails, if it is known.
    fn fault_cause(&self) -> Option<FaultCause> {
        None
    }

    /// Reports whether the counters are in the memory of this process. Then every call is ready at once and succeeds, and no
    /// other process counts in them.
    fn is_in_process(&self) -> bool {
        false
    }
}
