//! Open reservations: costs that were charged in advance, and are not settled yet. They are the ledger beside the counter that was
//! charged, and deny nothing themselves.
//!
//! A reservation has an id, the cost that was charged for it, the instant of the charge, and the time until which it can be settled.
//! Whoever settles it takes it out, so that it is settled once. One that nobody settles expires, and its charge stays.
//!
//! In a [`Record`] `tail` holds five numbers for each reservation, in the order of the charges: its id, its cost, the instant of the
//! charge in milliseconds and the microseconds beyond, and its expiry in milliseconds; `window` is the latest expiry. The period of a
//! rate is the time for which a reservation stays open. The period of the tag is always 1, so that an edit of that time keeps the
//! record.

use super::concurrency::Holder;
use super::definition::{Checked, Definition};
use super::shape::RecordView;
use crate::decision::Decision;
use crate::error::RateError;
use crate::number::{MAX_COUNT, MAX_PERIOD_MS};
use crate::quota::Quota;
use crate::record::{Kind, MAX_RESERVATIONS, Record, Tag};

/// Numbers of a reservation in the tail.
const NUMBERS: usize = 5;

/// A ledger of open reservations, to which a check adds one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reservations {
    /// Its id.
    pub(crate) id: Holder,
}

/// A reservation in a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reserved {
    /// Its id.
    pub id: Holder,
    /// The cost that was charged for it.
    pub cost: u64,
    /// The instant of the charge, in microseconds.
    pub charged: u64,
}

impl Record {
    /// Returns a reservation of a ledger: the one with this id, or else the oldest. Returns `None` if there is no such one at `now`.
    #[must_use]
    pub fn reservation(&self, id: Option<Holder>, now: u64) -> Option<Reserved> {
        // Rule: settle.while-open.
        let is_meant = |one: &&[u64]| one[4] > now / 1000 && id.is_none_or(|id| one[0] == id.get());
        let found = self.tail.chunks_exact(NUMBERS).find(is_meant)?;
        // Without an id it is damaged.
        let id = Holder::new(found[0]).ok()?;
        Some(Reserved { id, cost: found[1], charged: found[2] * 1000 + found[3].min(999) })
    }

    /// Takes the reservation with this id out of a ledger. Returns `None` if there is no such one at `now`.
    pub fn take_reservation(&mut self, id: Holder, now: u64) -> Option<Reserved> {
        let found = self.reservation(Some(id), now)?;
        self.remove_expired(now);
        let at = NUMBERS * self.tail.chunks_exact(NUMBERS).position(|one| one[0] == id.get())?;
        // Rule: settle.taken-out.
        self.tail.drain(at..at + NUMBERS);
        self.set_latest();
        Some(found)
    }

    /// Removes reservations that have expired. None stays open for longer than the longest period.
    fn remove_expired(&mut self, now: u64) {
        let millis = now / 1000;
        let open = self.tail.chunks_exact(NUMBERS).filter(|one| one[4] > millis);
        let latest = |one: &[u64]| [one[0], one[1], one[2], one[3], one[4].min(millis + MAX_PERIOD_MS)];
        self.tail = open.flat_map(latest).collect();
        self.set_latest();
    }

    fn set_latest(&mut self) {
        self.window = self.tail.chunks_exact(NUMBERS).map(|one| one[4]).max().unwrap_or(0);
    }
}

impl Definition for Reservations {
    fn validate(self, _quota: Quota) -> Result<(), RateError> {
        Ok(())
    }

    fn is_divided_among_replicas(self) -> bool {
        false
    }

    /// The tag of all ledgers.
    #[inline]
    fn tag(self, _quota: Quota) -> Tag {
        Tag::new(Kind::Reservations, 0, 1)
    }

    fn roll(self, _quota: Quota, mut stored: Record, now: u64) -> (Record, u64) {
        stored.remove_expired(now);
        (stored, now)
    }

    /// Returns the sum of the costs.
    #[inline]
    fn used(self, _quota: Quota, record: &Record, _now: u64) -> u64 {
        record.tail.chunks_exact(NUMBERS).map(|one| one[1]).sum()
    }

    /// Always true: the counter beside the ledger decides.
    #[inline]
    fn has_room(self, _quota: Quota, _record: &Record, _now: u64, _cost: u64) -> bool {
        true
    }

    /// Adds a reservation. A full ledger forgets the oldest one, whose charge stays.
    fn charge(self, quota: Quota, record: &mut Record, now: u64, cost: u64) {
        if cost == 0 {
            return;
        }
        if record.tail.len() >= NUMBERS * MAX_RESERVATIONS {
            record.tail.drain(..NUMBERS);
        }
        let expiry = now / 1000 + quota.period.millis();
        record.tail.extend([self.id.get(), cost.min(MAX_COUNT), now / 1000, now % 1000, expiry]);
        record.set_latest();
    }

    /// Takes the reservation out.
    fn settle(self, _quota: Quota, record: &mut Record, now: u64, _charged: u64, _delta: i64) {
        record.take_reservation(self.id, now);
    }

    fn is_mergeable(self) -> bool {
        false
    }

    #[inline]
    fn decide(self, quota: Quota, record: &Record, checked: Checked) -> Decision {
        self.decide_from_view(quota, &self.view(quota, record, checked.cost), checked)
    }

    /// Returns the view of a rolled record. `leaves` is the number of reservations.
    #[inline]
    fn view(self, quota: Quota, record: &Record, _cost: u64) -> RecordView {
        let open = (record.tail.len() / NUMBERS) as u64;
        RecordView { newest: record.window, used: self.used(quota, record, 0), leaves: open }
    }

    #[inline]
    fn view_has_room(self, _quota: Quota, _view: &RecordView, _now: u64, _cost: u64) -> bool {
        true
    }

    /// Returns the decision: what remains of the number beside the costs of all reservations, and the time until the last expires.
    #[inline]
    fn decide_from_view(self, quota: Quota, view: &RecordView, checked: Checked) -> Decision {
        let Checked { now, has_room, .. } = checked;
        Decision {
            remaining: quota.requests.get().saturating_sub(view.used),
            reset: (view.newest * 1000).saturating_sub(now),
            ..Decision::new(quota, has_room)
        }
    }

    /// Returns the id, and the time for which the reservation stays open, in milliseconds.
    fn script_arguments(self, quota: Quota, _key: u128, _cost: u64) -> [u64; 5] {
        [self.id.get(), quota.period.millis(), 0, 0, 0]
    }

    fn longest_lifetime(self, _quota: Quota) -> u64 {
        MAX_PERIOD_MS + 1
    }

    fn description(self, _quota: Quota) -> String {
        "keeps the reservations that are not settled".to_owned()
    }

    fn notes(self, _quota: Quota) -> Vec<String> {
        vec![]
    }
}

#[cfg(test)]
mod tests;
