//! The slots of this process, by counter and holder.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_store::{LimitSpec, Limiter};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::limit::{ConcurrencyLimit, ExpiredMark};

/// Maximum number of counters with slots of this process. A request in flight uses at most one for each
/// limit.
pub(super) const MAX_COUNTERS: usize = 65_536;

/// The number of the next life of a counter.
static LIVES: AtomicU64 = AtomicU64::new(0);

/// The counter of a holder: the holder, and the hash of the key.
pub(super) type CounterId = (u64, u128);

/// The slots of this process. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Slots(pub(super) Arc<SharedTable>);

/// The table, and the signals between requests and the upkeep task.
#[derive(Debug, Default)]
pub(super) struct SharedTable {
    table: Mutex<Table>,
    /// Notified when slots are released.
    pub(super) released: Notify,
    /// Number of calls that the store has not answered.
    pub(super) calls: AtomicUsize,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) counters: HashMap<CounterId, CounterSlots>,
    /// Counters with released slots.
    pub(super) released: Vec<CounterId>,
}

/// The slots of this process under one counter.
#[derive(Debug)]
pub(super) struct CounterSlots {
    pub(super) limit: Arc<ConcurrencyLimit>,
    pub(super) spec: Arc<LimitSpec>,
    pub(super) limiter: Arc<Limiter>,
    /// Number of checks without an answer.
    pub(super) pending: u32,
    /// Number of slots that requests hold.
    pub(super) held: u32,
    /// Number of released slots that the store still counts.
    pub(super) released: u32,
    /// Number of this life of the counter: slots of an earlier one were reset.
    pub(super) life: u64,
    /// Time at which the first of the slots was granted, by the store's clock in microseconds. A later reset has freed them.
    pub(super) since: u64,
    /// Time at which the store was last told how many slots it must have.
    pub(super) told: Instant,
    /// Whether the counter is in the table's list of released slots.
    pub(super) listed: bool,
    /// Whether the store may count more slots than this process holds. Everything is released when the last
    /// request ends.
    pub(super) uncertain: bool,
    /// Set while held slots have expired in the store.
    pub(super) expired: Option<ExpiredMark>,
    /// Whether the held slots are being acquired again under a new holder.
    pub(super) moving: bool,
    /// Earliest time of the next attempt to acquire the held slots under a new holder.
    pub(super) move_after: Instant,
    /// Time until which the store keeps the slots, by this process's clock.
    pub(super) until: Instant,
}

impl CounterSlots {
    pub(super) fn new(
        limit: Arc<ConcurrencyLimit>,
        spec: Arc<LimitSpec>,
        limiter: Arc<Limiter>,
        until: Instant,
    ) -> Self {
        Self {
            limit,
            spec,
            limiter,
            pending: 0,
            held: 0,
            released: 0,
            life: LIVES.fetch_add(1, Relaxed),
            since: u64::MAX,
            told: Instant::now(),
            listed: false,
            uncertain: false,
            expired: None,
            moving: false,
            move_after: Instant::now(),
            until,
        }
    }

    /// Reports whether no request uses the counter any more.
    pub(super) fn is_unused(&self) -> bool {
        self.pending == 0 && self.held == 0
    }

    /// Reports whether the counter holds nothing that must be remembered.
    pub(super) fn is_forgettable(&self) -> bool {
        self.is_unused() && self.released == 0 && !self.uncertain && !self.moving && !self.listed
    }

    /// Returns the number of slots that the store must have: those that were granted, less the ones whose release may be under way.
    /// A check without an answer may have taken more.
    pub(super) fn least(&self) -> u64 {
        u64::from(self.held) + u64::from(self.released)
    }

    /// Forgets all slots, which were reset. What the store still counts is released when the last check has its answer.
    pub(super) fn forget(&mut self) {
        self.limit.totals.held.dec_by(i64::from(self.held));
        (self.held, self.released, self.since) = (0, 0, u64::MAX);
        self.life = LIVES.fetch_add(1, Relaxed);
        self.expired = None;
        self.mark_uncertain();
    }

    /// Notes that the store may count slots that this process does not know of. The limit continues under a
    /// new holder.
    pub(super) fn mark_uncertain(&mut self) {
        self.uncertain = true;
        // Rule: slots.new-holder.
        self.limit.change_holder(&self.spec);
    }
}

impl SharedTable {
    pub(super) fn lock(&self) -> MutexGuard<'_, Table> {
        // The table is consistent between any two statements that can panic.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
