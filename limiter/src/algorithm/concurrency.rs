//! Concurrency limits that many processes share: at most N requests are in flight at any time.
//!
//! A *holder* is the identity under which one process holds slots. A record has the number of slots of each
//! holder and the expiry of their lease. A holder renews its lease before it expires; the slots of a process
//! that has died are free again when its lease has expired.
//!
//! A charge takes slots. A settlement returns them (a negative correction) or only renews the lease (zero). It is a difference, and
//! means nothing once the record is lost, so it says how many slots the holder must have before at least: it has them again
//! then, also above the number. Nothing can tell when a slot becomes free, so the retry-after of a denied request is an estimate.
//!
//! In a [`Record`] `tail` holds three numbers for each holder: its own number, its slots, and the expiry of
//! its lease in milliseconds; `window` is the latest expiry. The period of a rate is the length of a lease.
//! The period of the tag is always 1, so that an edit of that length keeps the record.
//!
//! A reset frees all slots although their requests go on, and leaves a mark for the longest lease, a holder with the number 0: those
//! that had slots before do not have them again.

use super::definition::{Checked, Definition};
use super::shape::{RecordView, SlotsFound, Unit};
use crate::decision::Decision;
use crate::error::RateError;
use crate::number::{OutOfRange, within};
use crate::quota::Quota;
use crate::record::{Kind, MAX_HOLDERS, Record, Tag};

/// The largest number of slots.
pub const MAX_CONCURRENT: u64 = 1_000_000;
/// The longest lease of slots, in milliseconds. Callers of a limit may have leases of different lengths.
pub const MAX_SLOT_LEASE_MS: u64 = 3_600_000;
/// The number that the mark of a reset has in place of a holder's.
const MARK: u64 = 0;
/// Estimated wait of a denied request, in microseconds.
const RETRY_AFTER_MICROS: u64 = 1_000_000;

/// The identity under which a process holds slots: a number below 2^48, drawn at random. A process may use
/// several, one after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Holder(u64);

impl Holder {
    /// The first number.
    pub const FIRST: Self = Self(1);

    /// Checks the range.
    pub fn new(value: u64) -> Result<Self, OutOfRange> {
        within(value, 1, (1 << 48) - 1).map(Self)
    }

    /// Returns the number.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }
}

/// Slots for the requests of many processes, taken for one of them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Concurrency {
    pub(crate) holder: Holder,
}

impl Definition for Concurrency {
    fn validate(self, quota: Quota) -> Result<(), RateError> {
        let slots = quota.requests.get();
        if slots > MAX_CONCURRENT { Err(RateError::TooManySlots(slots)) } else { Ok(()) }
    }

    /// The tag of all concurrency limits.
    #[inline]
    fn tag(self, _quota: Quota) -> Tag {
        Tag::new(Kind::Holders, 0, 1)
    }

    /// Removes expired leases. None lasts longer than the longest lease from now.
    fn roll(self, quota: Quota, mut stored: Record, now: u64) -> (Record, u64) {
        let millis = now / 1000;
        let latest = millis + quota.period.millis().max(MAX_SLOT_LEASE_MS);
        // Rule: slots.kept-for-lease.
        let live = stored.tail.chunks_exact(3).filter(|holder| is_kept(holder) && holder[2] > millis);
        stored.tail = live.flat_map(|holder| [holder[0], holder[1], holder[2].min(latest)]).collect();
        set_latest_expiry(&mut stored);
        (stored, now)
    }

    /// Returns the number of slots in use.
    #[inline]
    fn used(self, _quota: Quota, record: &Record, _now: u64) -> u64 {
        record.tail.chunks_exact(3).map(|holder| holder[1]).sum()
    }

    /// Reports whether `cost` slots are free, and the record has room for the holder.
    fn has_room(self, quota: Quota, record: &Record, now: u64, cost: u64) -> bool {
        let is_listed = record.tail.chunks_exact(3).any(|other| other[0] == self.holder.0);
        // Rule: slots.within-number.
        let fits = self.used(quota, record, now).saturating_add(cost) <= quota.requests.get();
        fits && (is_listed || record.tail.len() < 3 * MAX_HOLDERS)
    }

    /// Gives `cost` slots to the holder and renews its lease.
    fn charge(self, quota: Quota, record: &mut Record, now: u64, cost: u64) {
        if cost == 0 {
            return;
        }
        let until = lease_end(quota, now);
        match record.tail.chunks_exact_mut(3).find(|other| other[0] == self.holder.0) {
            Some(own) => (own[1], own[2]) = (own[1] + cost, own[2].max(until)),
            None => record.tail.extend([self.holder.0, cost, until]),
        }
        set_latest_expiry(record);
    }

    /// Changes the slots of the holder by `delta` and renews its lease. Does nothing if the holder is not in
    /// the record.
    fn settle(self, quota: Quota, record: &mut Record, now: u64, _charged: u64, delta: i64) {
        let until = lease_end(quota, now);
        if let Some(own) = record.tail.chunks_exact_mut(3).find(|other| other[0] == self.holder.0) {
            own[1] = own[1].saturating_add_signed(delta).min(MAX_CONCURRENT);
            own[2] = own[2].max(until);
        }
        record.tail = record.tail.chunks_exact(3).filter(|other| is_kept(other)).flatten().copied().collect();
        set_latest_expiry(record);
    }

    /// Gives the holder, which took its first slots at `since`, at least so many slots, unless they were reset since then or the
    /// record has no room for the holder. Renews its lease then.
    fn keep(self, quota: Quota, record: &mut Record, now: u64, since: u64, least: u64) -> SlotsFound {
        // Rule: slots.keeps-least.
        let least = least.min(MAX_CONCURRENT);
        let until = lease_end(quota, now);
        let is_full = record.tail.len() >= 3 * MAX_HOLDERS;
        let own = record.tail.chunks_exact(3).find(|other| other[0] == self.holder.0);
        let slots = own.map_or(0, |own| own[1]);
        if slots >= least || own.is_none() && is_full {
            return SlotsFound::Enough;
        }
        let mark = record.tail.chunks_exact(3).find(|other| other[0] == MARK);
        // Rule: slots.reset-marked.
        if mark.is_some_and(|mark| since / 1000 + MAX_SLOT_LEASE_MS <= mark[2]) {
            return SlotsFound::Reset;
        }
        match record.tail.chunks_exact_mut(3).find(|other| other[0] == self.holder.0) {
            Some(own) => (own[1], own[2]) = (least, own[2].max(until)),
            None => record.tail.extend([self.holder.0, least, until]),
        }
        set_latest_expiry(record);
        SlotsFound::Fewer(least - slots)
    }

    /// Leaves the mark.
    fn left_by_reset(self, quota: Quota, now: u64) -> Option<Record> {
        let until = now / 1000 + MAX_SLOT_LEASE_MS;
        let mut record = self.fresh(quota, now);
        record.tail.extend([MARK, 0, until]);
        record.window = until;
        Some(record)
    }

    #[inline]
    fn decide(self, quota: Quota, record: &Record, checked: Checked) -> Decision {
        self.decide_from_view(quota, &self.view(quota, record, checked.cost), checked)
    }

    #[inline]
    fn view(self, quota: Quota, record: &Record, _cost: u64) -> RecordView {
        let holders = record.tail.chunks_exact(3).filter(|holder| holder[0] != MARK);
        let newest = holders.map(|holder| holder[2]).max().unwrap_or(0);
        RecordView { newest, used: self.used(quota, record, 0), leaves: 0 }
    }

    #[inline]
    fn decide_from_view(self, quota: Quota, view: &RecordView, checked: Checked) -> Decision {
        let Checked { now, cost, has_room, .. } = checked;
        let slots = quota.requests.get();
        Decision {
            remaining: slots.saturating_sub(view.used),
            reset: if view.used == 0 { 0 } else { (view.newest * 1000).saturating_sub(now) },
            retry_after: (!has_room && cost <= slots).then_some(RETRY_AFTER_MICROS),
            ..Decision::new(quota, has_room)
        }
    }

    /// Returns the holder, and the length of its lease in milliseconds.
    fn script_arguments(self, quota: Quota, _key: u128, _cost: u64) -> [u64; 5] {
        [self.holder.get(), quota.period.millis(), 0, 0, 0]
    }

    fn unit(self) -> Unit {
        Unit::Slots
    }

    fn description(self, quota: Quota) -> String {
        let noun = if quota.requests.get() == 1 { "request" } else { "requests" };
        format!("admits {} concurrent {noun}", quota.requests.get())
    }

    fn notes(self, _quota: Quota) -> Vec<String> {
        vec![]
    }
}

#[inline]
fn lease_end(quota: Quota, now: u64) -> u64 {
    now / 1000 + quota.period.millis()
}

/// Reports whether an entry of a record says something: a holder without slots does not.
#[inline]
fn is_kept(entry: &[u64]) -> bool {
    entry[1] > 0 || entry[0] == MARK
}

#[inline]
fn set_latest_expiry(record: &mut Record) {
    record.window = record.tail.chunks_exact(3).map(|holder| holder[2]).max().unwrap_or(0);
}

#[cfg(test)]
mod tests;
