//! The slot of one request.

use std::sync::Arc;

use super::table::{CounterId, SharedTable, Table};

/// A slot, requested or held. Dropping it releases it.
#[derive(Debug)]
pub struct Slot {
    table: Arc<SharedTable>,
    id: CounterId,
    state: State,
    /// Life of the counter in which the slot was granted.
    life: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The store has not answered.
    Pending,
    Held,
    /// The store did not answer, and may have granted the slot.
    Uncertain,
    Denied,
}

impl Slot {
    /// Creates the guard of a check that is about to be sent.
    pub(super) fn pending(table: Arc<SharedTable>, id: CounterId) -> Self {
        Self { table, id, state: State::Pending, life: 0 }
    }

    /// Returns the counter of the slot.
    pub(super) fn id(&self) -> CounterId {
        self.id
    }

    /// Notes that the store has granted the slot at a time of its clock.
    pub(super) fn granted(&mut self, at: u64) {
        self.state = State::Held;
        if let Some(counter) = self.table.lock().counters.get_mut(&self.id) {
            counter.pending = counter.pending.saturating_sub(1);
            counter.held += 1;
            counter.since = counter.since.min(at);
            self.life = counter.life;
            counter.limit.totals.held.inc();
        }
    }

    /// Notes that the store has not granted the slot.
    pub(super) fn denied(&mut self) {
        self.state = State::Denied;
    }

    /// Notes that the store did not answer.
    pub(super) fn unanswered(&mut self) {
        self.state = State::Uncertain;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut table = self.table.lock();
        let Table { counters, released } = &mut *table;
        let Some(counter) = counters.get_mut(&self.id) else { return };
        let mut first_release = false;
        match self.state {
            // It was reset.
            // Rule: slots.end-of-reset.
            State::Held if self.life != counter.life => {}
            State::Held => {
                counter.held = counter.held.saturating_sub(1);
                counter.limit.totals.held.dec();
                counter.released += 1;
                first_release = !std::mem::replace(&mut counter.listed, true);
            }
            State::Denied => counter.pending = counter.pending.saturating_sub(1),
            State::Pending | State::Uncertain => {
                counter.pending = counter.pending.saturating_sub(1);
                counter.mark_uncertain();
            }
        }
        if counter.held == 0 {
            counter.expired = None;
        }
        if counter.is_forgettable() {
            counters.remove(&self.id);
        }
        if first_release {
            released.push(self.id);
            drop(table);
            self.table.released.notify_one();
        }
    }
}
