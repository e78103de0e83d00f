//! A part of the store behind one lock: a table of entries, and beside it the records that do not fit in an entry.

use sluice_limiter::Record;

use super::entry::{Entry, Id, Layout};
use super::hot::Hot;
use super::table::Table;
use crate::check::{LimitSpec, MAX_RATES, Records};

/// After how many checks places are swept, and how many then: one after another, as memory likes it. Twice as many checks
/// for each sweep that was in vain, up to a number.
const CHECKS_PER_SWEEP: u32 = 64;
const CHECKS_AT_MOST: u32 = 512;
const PLACES_PER_SWEEP: usize = 128;
/// How many times in turn a counter is asked for again until it is often.
const OFTEN: u32 = 4;
/// A new key counts for so many checks.
const CHECKS_PER_NEW: u32 = 2;

/// Some of the store's keys. What each check needs stands first, in one line of memory with the lock.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Shard {
    /// Checks since the last sweep, and how many there are to be until the next one.
    checks: u32,
    pause: u32,
    /// The upper half of the id of who was asked for last.
    last: u64,
    pub(super) table: Table,
    /// How many times in turn it was asked for again, and how many checks there were then.
    again: u32,
    seen: u32,
    /// The next place to be swept.
    swept: usize,
    spilled: Box<Spilled>,
}

/// Records that do not fit in an entry, each key's in a place that its entry names.
#[derive(Debug, Default)]
struct Spilled {
    places: Vec<Records>,
    free: Vec<usize>,
}

/// What is held of a counter, taken out to be changed.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Whether there is an entry.
    pub(super) known: bool,
    /// Records of other rates than the limit has now. They stay until they expire: during a roll-out both are in use.
    others: Records,
}

impl Held {
    /// Records that are of none of the limit's rates.
    pub(super) fn others(&self) -> &[Record] {
        &self.others
    }
}

impl Shard {
    pub(super) fn new(number: usize) -> Self {
        Self {
            checks: 0,
            pause: CHECKS_PER_SWEEP,
            last: 0,
            table: Table::new(number),
            again: 0,
            seen: 0,
            swept: 0,
            spilled: Box::default(),
        }
    }

    /// Counts a check; tells whether it is time to sweep.
    #[inline]
    pub(super) fn tick(&mut self) -> bool {
        self.checks += 1;
        self.checks >= self.pause
    }

    #[cfg(test)]
    pub(super) fn is_nearly_due(&self) -> bool {
        self.checks + 8 >= self.pause
    }

    /// Makes it time to sweep.
    pub(super) fn due(&mut self) {
        self.checks = self.pause;
    }

    /// Whether nothing but a counter's entry has to be seen to: it is not time to sweep, and it was not asked for last.
    #[inline]
    pub(super) fn is_quiet(&self, id: Id) -> bool {
        self.last != id.high && self.checks + 1 < self.pause
    }

    /// Counts a check of a counter for which it is quiet.
    #[inline]
    pub(super) fn note(&mut self, id: Id) {
        self.last = id.high;
        self.checks += 1;
    }

    /// Notes who is asked for; tells whether it was this counter so many times, one after another.
    pub(super) fn is_often(&mut self, id: Id) -> bool {
        let again = std::mem::replace(&mut self.last, id.high) == id.high;
        // Who is asked for once is not seen here.
        self.again = if again && self.seen == self.checks { self.again + 1 } else { 0 };
        self.seen = self.checks + 1;
        self.again >= OFTEN
    }

    /// Takes back the counter that is asked for outside of the lock, if there is one.
    #[inline]
    pub(super) fn cool(&mut self, hot: &Hot) {
        if hot.is_live() {
            self.take_back(hot);
        }
    }

    #[cold]
    fn take_back(&mut self, hot: &Hot) {
        if let Some((id, current)) = hot.take()
            && let Ok(at) = self.table.seek(id)
            && let Some(entry) = self.table.get_mut(at)
        {
            entry.recount(current);
        }
    }

    /// Drops what has expired of some places; returns how many keys are gone.
    pub(super) fn sweep(&mut self, now: u64) -> usize {
        self.checks = 0;
        let (millis, mut gone) = (now / 1000, 0);
        for _ in 0..PLACES_PER_SWEEP.min(self.table.places()) {
            let Some(entry) = self.table.get(self.swept) else {
                self.swept = 0;
                continue;
            };
            if entry.expires_at() > millis {
                self.swept += 1;
                continue;
            }
            if let Some(place) = entry.place() {
                self.spilled.take(place);
            }
            self.table.remove(self.swept);
            gone += 1;
        }
        if gone > 0 {
            self.table.shrink();
            self.pause = CHECKS_PER_SWEEP;
        } else {
            self.pause = (2 * self.pause).min(CHECKS_AT_MOST);
        }
        gone
    }

    /// What is held of a counter: the records of the limit's rates, and the rest.
    pub(super) fn take(&mut self, id: Id, limit: &LimitSpec) -> (Records, Held) {
        let Some(entry) = self.table.seek(id).ok().and_then(|at| self.table.get(at)) else {
            return Default::default();
        };
        let mut records = match entry.place() {
            Some(place) => self.spilled.places.get_mut(place).map(std::mem::take).unwrap_or_default(),
            None => entry.layout(id).map(|layout| entry.unpack(&layout)).into_iter().collect(),
        };
        let is_own = |record: &Record| limit.rates.iter().any(|rate| rate.tag() == record.tag);
        let mut held = Held { known: true, others: Records::new() };
        if !records.iter().all(is_own) {
            (records, held.others) = records.into_iter().partition(is_own);
        }
        (records, held)
    }

    /// What is held of a counter.
    #[cfg(test)]
    pub(super) fn peek(&self, id: Id) -> Option<Records> {
        let entry = self.table.get(self.table.seek(id).ok()?)?;
        let packed = || entry.layout(id).map(|layout| entry.unpack(&layout));
        Some(match entry.place() {
            Some(place) => self.spilled.places[place].clone(),
            None => packed().into_iter().collect(),
        })
    }

    /// Stores what is known of a counter now; returns whether its key is new.
    pub(super) fn put(
        &mut self,
        id: Id,
        limit: &LimitSpec,
        mut records: Records,
        held: Held,
        now: u64,
    ) -> bool {
        let others = held.others.into_iter().filter(|record| record.expires_at() > now / 1000);
        records.extend(others.take(MAX_RATES));
        let packed = match (&limit.prepared.layout, &records[..]) {
            (Some(layout), [record]) => Entry::pack(id, layout, record),
            _ => None,
        };
        let found = self.table.seek(id);
        let place = found.ok().and_then(|at| self.table.get(at)?.place());
        let entry = match packed {
            Some(entry) => {
                place.inspect(|&place| self.spilled.take(place));
                entry
            }
            None => {
                let expires = records.iter().map(Record::expires_at).max().unwrap_or(0);
                Entry::spilled(id, self.spilled.put(place, records), expires)
            }
        };
        match found {
            Ok(at) => {
                if let Some(stored) = self.table.get_mut(at) {
                    *stored = entry;
                }
                false
            }
            Err(at) => {
                self.insert(id, at, entry);
                true
            }
        }
    }

    /// Adds an entry of a counter that is not there.
    #[inline]
    pub(super) fn insert(&mut self, id: Id, at: usize, entry: Entry) {
        self.checks += CHECKS_PER_NEW - 1;
        self.table.insert(id, at, entry);
    }

    /// Stores the record of an entry that is there.
    #[inline]
    pub(super) fn set(&mut self, id: Id, at: usize, layout: &Layout, record: Record) {
        let entry = Entry::pack(id, layout, &record).unwrap_or_else(|| {
            let expires = record.expires_at();
            Entry::spilled(id, self.spilled.put(None, Records::from_iter([record])), expires)
        });
        if let Some(stored) = self.table.get_mut(at) {
            *stored = entry;
        }
    }
}

impl Spilled {
    /// Stores records in a place, or in another that it returns.
    fn put(&mut self, place: Option<usize>, records: Records) -> usize {
        match place.or_else(|| self.free.pop()) {
            Some(place) => {
                if let Some(before) = self.places.get_mut(place) {
                    *before = records;
                }
                place
            }
            None => {
                self.places.push(records);
                self.places.len() - 1
            }
        }
    }

    /// Frees a place.
    fn take(&mut self, place: usize) {
        if let Some(records) = self.places.get_mut(place) {
            *records = Records::new();
            self.free.push(place);
        }
        if self.free.len() == self.places.len() {
            *self = Self::default();
        }
    }
}
