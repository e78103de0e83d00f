//! A shard: a table of cells, and beside it the records that do not fit into a cell.

use sluice_limiter::Record;

use super::cell_table::CellTable;
use super::hot::Hot;
use super::spill::SpilledRecords;
use crate::check::{LimitSpec, MAX_RATES, Records};
use crate::memory::cell::{CounterId, Layout, TableCell};

/// Number of checks between two sweeps. It doubles with each sweep that removes nothing, up to the maximum.
const CHECKS_PER_SWEEP: u32 = 64;
const MAX_CHECKS_PER_SWEEP: u32 = 512;

/// Number of cells per sweep. They are consecutive, as memory prefers.
const CELLS_PER_SWEEP: usize = 128;

/// Number of consecutive checks of one counter after which the counter becomes hot.
const CHECKS_UNTIL_HOT: u32 = 4;

/// Number of checks that a new key counts for.
const CHECKS_PER_NEW: u32 = 2;

/// A part of the store's keys. The fields that every check needs come first, on one cache line with the lock.
#[derive(Debug)]
#[repr(C)]
pub(in crate::memory) struct Shard {
    /// Number of checks since the last sweep, and number of checks between two sweeps.
    checks: u32,
    sweep_interval: u32,
    /// Upper half of the id of the counter that was checked last.
    last: u64,
    pub(in crate::memory) table: CellTable,
    /// Number of consecutive checks of that counter, and value of `checks` at the last of them.
    repeated: u32,
    repeated_at: u32,
    /// Index of the next cell to sweep.
    next_sweep: usize,
    spilled: Box<SpilledRecords>,
}

/// A counter whose records were taken out of the shard to be changed.
#[derive(Debug, Default)]
pub(in crate::memory) struct StoredCounter {
    /// Whether the counter has a cell.
    pub(in crate::memory) exists: bool,
    /// Records of rates that the limit does not have now. They stay until they expire, because during a
    /// rollout both versions of the limit are in use.
    others: Records,
}

impl StoredCounter {
    /// Returns the records of rates that the limit does not have now.
    pub(in crate::memory) fn others(&self) -> &[Record] {
        &self.others
    }
}

impl Shard {
    pub(in crate::memory) fn new(number: usize) -> Self {
        Self {
            checks: 0,
            sweep_interval: CHECKS_PER_SWEEP,
            last: 0,
            table: CellTable::new(number),
            repeated: 0,
            repeated_at: 0,
            next_sweep: 0,
            spilled: Box::default(),
        }
    }

    /// Counts a check. Reports whether a sweep is due.
    #[inline]
    pub(in crate::memory) fn tick(&mut self) -> bool {
        self.checks += 1;
        self.checks >= self.sweep_interval
    }

    #[cfg(test)]
    pub(in crate::memory) fn is_nearly_due(&self) -> bool {
        self.checks + 8 >= self.sweep_interval
    }

    /// Makes a sweep due.
    pub(in crate::memory) fn make_due(&mut self) {
        self.checks = self.sweep_interval;
    }

    /// Reports whether a check needs only the counter's cell: no sweep is due, and the check before was of
    /// another counter.
    #[inline]
    pub(in crate::memory) fn is_quiet(&self, id: CounterId) -> bool {
        self.last != id.high && self.checks + 1 < self.sweep_interval
    }

    /// Counts a check for which the shard is quiet.
    #[inline]
    pub(in crate::memory) fn note(&mut self, id: CounterId) {
        self.last = id.high;
        self.checks += 1;
    }

    /// Notes a check of a counter. Reports whether enough consecutive checks were of this counter to make it
    /// hot.
    pub(in crate::memory) fn is_repeated(&mut self, id: CounterId) -> bool {
        let repeated = std::mem::replace(&mut self.last, id.high) == id.high;
        // Quiet checks only call `note`, which advances `checks`, so a sequence starts over after one.
        self.repeated = if repeated && self.repeated_at == self.checks { self.repeated + 1 } else { 0 };
        self.repeated_at = self.checks + 1;
        self.repeated >= CHECKS_UNTIL_HOT
    }

    /// Moves the hot counter back into the shard, if there is one.
    #[inline]
    pub(in crate::memory) fn cool(&mut self, hot: &Hot) {
        if hot.is_live() {
            self.take_back(hot);
        }
    }

    #[cold]
    fn take_back(&mut self, hot: &Hot) {
        if let Some((id, current)) = hot.take()
            && let Ok(at) = self.table.seek(id)
            && let Some(cell) = self.table.get_mut(at)
        {
            cell.set_current(current);
        }
    }

    /// Removes the expired counters among some cells. Returns their number.
    pub(in crate::memory) fn sweep(&mut self, now: u64) -> usize {
        self.checks = 0;
        let (millis, mut removed) = (now / 1000, 0);
        for _ in 0..CELLS_PER_SWEEP.min(self.table.cells()) {
            let Some(cell) = self.table.get(self.next_sweep) else {
                self.next_sweep = 0;
                continue;
            };
            if cell.expires_at() > millis {
                self.next_sweep += 1;
                continue;
            }
            if let Some(index) = cell.spill_index() {
                self.spilled.remove(index);
            }
            self.table.remove(self.next_sweep);
            removed += 1;
        }
        if removed > 0 {
            self.table.shrink();
            self.sweep_interval = CHECKS_PER_SWEEP;
        } else {
            self.sweep_interval = (2 * self.sweep_interval).min(MAX_CHECKS_PER_SWEEP);
        }
        removed
    }

    /// Takes out the records of the limit's rates, and the rest.
    pub(in crate::memory) fn take(&mut self, id: CounterId, limit: &LimitSpec) -> (Records, StoredCounter) {
        let Some(cell) = self.table.seek(id).ok().and_then(|at| self.table.get(at)) else {
            return Default::default();
        };
        let mut records = match cell.spill_index() {
            Some(index) => self.spilled.take(index),
            None => cell.layout(id).map(|layout| cell.unpack(&layout)).into_iter().collect(),
        };
        let is_own = |record: &Record| limit.rates.iter().any(|rate| rate.tag() == record.tag);
        let mut stored = StoredCounter { exists: true, others: Records::new() };
        if !records.iter().all(is_own) {
            (records, stored.others) = records.into_iter().partition(is_own);
        }
        (records, stored)
    }

    /// Returns all records of a counter.
    #[cfg(test)]
    pub(in crate::memory) fn peek(&self, id: CounterId) -> Option<Records> {
        let cell = self.table.get(self.table.seek(id).ok()?)?;
        let packed = || cell.layout(id).map(|layout| cell.unpack(&layout));
        Some(match cell.spill_index() {
            Some(index) => self.spilled.peek(index),
            None => packed().into_iter().collect(),
        })
    }

    /// Stores a counter's records. Reports whether its key is new.
    pub(in crate::memory) fn put(
        &mut self,
        id: CounterId,
        limit: &LimitSpec,
        mut records: Records,
        stored: StoredCounter,
        now: u64,
    ) -> bool {
        let others = stored.others.into_iter().filter(|record| record.expires_at() > now / 1000);
        records.extend(others.take(MAX_RATES));
        let packed = match (&limit.prepared.layout, &records[..]) {
            (Some(layout), [record]) => TableCell::pack(id, layout, record),
            _ => None,
        };
        let found = self.table.seek(id);
        let index = found.ok().and_then(|at| self.table.get(at)?.spill_index());
        let cell = match packed {
            Some(cell) => {
                index.inspect(|&index| self.spilled.remove(index));
                cell
            }
            None => {
                let expires = records.iter().map(Record::expires_at).max().unwrap_or(0);
                TableCell::spilled(id, self.spilled.put(index, records), expires)
            }
        };
        match found {
            Ok(at) => {
                if let Some(stored) = self.table.get_mut(at) {
                    *stored = cell;
                }
                false
            }
            Err(at) => {
                self.insert(id, at, cell);
                true
            }
        }
    }

    /// Inserts the cell of a new counter.
    #[inline]
    pub(in crate::memory) fn insert(&mut self, id: CounterId, at: usize, cell: TableCell) {
        self.checks += CHECKS_PER_NEW - 1;
        self.table.insert(id, at, cell);
    }

    /// Replaces the record of a cell.
    #[inline]
    pub(in crate::memory) fn set(&mut self, id: CounterId, at: usize, layout: &Layout, record: Record) {
        let cell = TableCell::pack(id, layout, &record).unwrap_or_else(|| {
            let expires = record.expires_at();
            TableCell::spilled(id, self.spilled.put(None, Records::from_iter([record])), expires)
        });
        if let Some(stored) = self.table.get_mut(at) {
            *stored = cell;
        }
    }
}
