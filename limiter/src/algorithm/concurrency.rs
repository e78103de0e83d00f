//! Concurrency limits that many processes share: at most N requests are in flight at any time.
//!
//! A *holder* is the identity under which one process holds slots. A record has the number of slots of each
//! holder and the expiry of their lease. A holder renews its lease before it expires; the slots of a process
//! that has died are free again when its lease has expired.
//!
//! A charge takes slots. A settlement returns them (a negative correction) or only renews the lease (zero).
//! Nothing can tell when a slot becomes free, so the retry-after of a denied request is an estimate.
//!
//! In a [`Record`] `tail` holds three numbers for each holder: its own number, its slots, and the expiry of
//! its lease in milliseconds; `window` is the latest expiry. The period of a rate is the length of a lease.
//! The period of the tag is always 1, so that an edit of that length keeps the record.

use super::view::RecordView;
use crate::decision::Decision;
use crate::error::RateError;
use crate::number::{OutOfRange, Quota, within};
use crate::record::{Kind, MAX_HOLDERS, Record, Tag};

/// The largest number of slots.
pub const MAX_CONCURRENT: u64 = 1_000_000;
/// Estimated wait of a denied request, in microseconds.
const RETRY_AFTER_MICROS: u64 = 1_000_000;

/// The identity under which a process holds slots: a number below 2^48, drawn at random. A process may use
/// several, one after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Holder(u64);

impl Holder {
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

/// Checks the number of slots.
pub(crate) fn validate(quota: Quota) -> Result<(), RateError> {
    let slots = quota.requests.get();
    if slots > MAX_CONCURRENT { Err(RateError::TooManySlots(slots)) } else { Ok(()) }
}

/// Returns the tag of all concurrency limits.
#[inline]
pub(crate) fn tag() -> Tag {
    Tag::new(Kind::Holders, 0, 1)
}

/// Returns the record at `now` without expired leases. No lease lasts longer than a period from now.
pub(crate) fn roll(quota: Quota, mut record: Record, now: u64) -> Record {
    let (millis, latest) = (now / 1000, lease_end(quota, now));
    let live = record.tail.chunks_exact(3).filter(|holder| holder[1] > 0 && holder[2] > millis);
    record.tail = live.flat_map(|holder| [holder[0], holder[1], holder[2].min(latest)]).collect();
    set_latest_expiry(&mut record);
    record
}

/// Returns the number of slots in use.
#[inline]
pub(crate) fn used(record: &Record) -> u64 {
    record.tail.chunks_exact(3).map(|holder| holder[1]).sum()
}

/// Reports whether `cost` slots are free, and the record has room for the holder.
pub(crate) fn has_room(holder: Holder, quota: Quota, record: &Record, cost: u64) -> bool {
    let is_listed = record.tail.chunks_exact(3).any(|other| other[0] == holder.0);
    let fits = used(record).saturating_add(cost) <= quota.requests.get();
    fits && (is_listed || record.tail.len() < 3 * MAX_HOLDERS)
}

/// Gives `cost` slots to the holder and renews its lease.
pub(crate) fn charge(holder: Holder, quota: Quota, record: &mut Record, now: u64, cost: u64) {
    if cost == 0 {
        return;
    }
    let until = lease_end(quota, now);
    match record.tail.chunks_exact_mut(3).find(|other| other[0] == holder.0) {
        Some(own) => (own[1], own[2]) = (own[1] + cost, until),
        None => record.tail.extend([holder.0, cost, until]),
    }
    set_latest_expiry(record);
}

/// Changes the slots of the holder by `delta` and renews its lease. Does nothing if the holder is not in the
/// record.
pub(crate) fn settle(holder: Holder, quota: Quota, record: &mut Record, now: u64, delta: i64) {
    let until = lease_end(quota, now);
    if let Some(own) = record.tail.chunks_exact_mut(3).find(|other| other[0] == holder.0) {
        own[1] = own[1].saturating_add_signed(delta).min(MAX_CONCURRENT);
        own[2] = until;
    }
    record.tail = record.tail.chunks_exact(3).filter(|other| other[1] > 0).flatten().copied().collect();
    set_latest_expiry(record);
}

/// Returns the summary that a decision needs.
#[inline]
pub(crate) fn view(record: &Record) -> RecordView {
    RecordView { newest: record.window, used: used(record), leaves: 0 }
}

/// Reports whether `cost` slots are free in the record that the view summarizes.
pub(crate) fn view_has_room(quota: Quota, view: &RecordView, cost: u64) -> bool {
    view.used.saturating_add(cost) <= quota.requests.get()
}

/// Decides about `cost` from a view; `has_room` was decided before a charge.
#[inline]
pub(crate) fn decide(quota: Quota, view: &RecordView, now: u64, cost: u64, has_room: bool) -> Decision {
    let slots = quota.requests.get();
    Decision {
        remaining: slots.saturating_sub(view.used),
        reset: if view.used == 0 { 0 } else { (view.newest * 1000).saturating_sub(now) },
        retry_after: (!has_room && cost <= slots).then_some(RETRY_AFTER_MICROS),
        ..Decision::new(quota, has_room)
    }
}

/// Returns the arguments for the script: the holder, and the length of its lease in milliseconds.
pub(crate) fn script_arguments(holder: Holder, quota: Quota) -> [u64; 5] {
    [holder.get(), quota.period.millis(), 0, 0, 0]
}

/// Returns the instant, in milliseconds, from which the record no longer changes a decision.
pub(crate) fn expires_at(record: &Record) -> u64 {
    record.window.saturating_add(1)
}

#[inline]
fn lease_end(quota: Quota, now: u64) -> u64 {
    now / 1000 + quota.period.millis()
}

#[inline]
fn set_latest_expiry(record: &mut Record) {
    record.window = record.tail.chunks_exact(3).map(|holder| holder[2]).max().unwrap_or(0);
}

#[cfg(test)]
mod tests;
