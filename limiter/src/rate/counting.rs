//! Counting requests in a record. Instants are microseconds since the Unix epoch, in the rate's own time.

use super::definition::Rate;
use crate::algorithm::{Checked, Definition as _, RecordView, SlotsFound, dispatch};
use crate::decision::Decision;
use crate::record::Record;

impl Rate {
    /// Returns the record of this rate at `now`, and the instant that counts.
    ///
    /// That instant is never before the newest window stored, so time never runs backwards for a counter. A
    /// record from more than a period ahead, left by a wrong clock, is rebased: all its usage counts now.
    /// That denies requests for one more period at most, and never forgets any.
    #[must_use]
    #[inline]
    pub fn roll(&self, stored: Option<Record>, now: u64) -> (Record, u64) {
        let tag = self.tag();
        let Some(stored) = stored.filter(|record| record.tag == tag) else {
            return (self.fresh(now), now);
        };
        dispatch!(self.algorithm, definition => definition.roll(self.quota(), stored, now))
    }

    fn fresh(&self, now: u64) -> Record {
        dispatch!(self.algorithm, definition => definition.fresh(self.quota(), now))
    }

    /// Returns the usage of a rolled record, in requests.
    #[must_use]
    #[inline]
    pub fn used(&self, record: &Record, now: u64) -> u64 {
        dispatch!(self.algorithm, definition => definition.used(self.quota(), record, now))
    }

    /// Reports whether a rolled record has room for `cost`. A cost of 0 is a peek and needs one request left.
    #[must_use]
    #[inline]
    pub fn has_room(&self, record: &Record, now: u64, cost: u64) -> bool {
        let cost = cost.max(1);
        dispatch!(self.algorithm, definition => definition.has_room(self.quota(), record, now, cost))
    }

    /// Returns a rolled record after `cost` was admitted. Counts saturate at [`MAX_COUNT`](crate::MAX_COUNT).
    #[must_use]
    #[inline]
    pub fn charge(&self, mut record: Record, now: u64, cost: u64) -> Record {
        dispatch!(self.algorithm, definition => definition.charge(self.quota(), &mut record, now, cost));
        record
    }

    /// Returns a rolled record after `cost` was denied. It is unchanged unless this rate counts denials.
    #[must_use]
    #[inline]
    pub fn charge_denied(&self, mut record: Record, now: u64, cost: u64) -> Record {
        if self.count_denied {
            // One request alone must not deny all others for longer than the rate takes to recover.
            let cost = cost.clamp(1, self.requests.get().max(1));
            dispatch!(self.algorithm, definition => {
                definition.charge_denied(self.quota(), &mut record, now, cost);
            });
        }
        record
    }

    /// Reports whether only denials by the rate's own limit count in it, and not those by other limits of the request.
    #[must_use]
    pub fn counts_only_own_denials(&self) -> bool {
        dispatch!(self.algorithm, definition => definition.counts_only_own_denials())
    }

    /// Reports whether equal checks at the same instant may be decided together, from their number alone.
    #[must_use]
    pub fn is_mergeable(&self) -> bool {
        !self.count_denied && dispatch!(self.algorithm, definition => definition.is_mergeable())
    }

    /// Returns the record as it was before `cost` was charged at `now`.
    #[must_use]
    pub fn undo_charge(&self, mut record: Record, now: u64, cost: u64) -> Record {
        dispatch!(self.algorithm, definition => definition.undo_charge(self.quota(), &mut record, now, cost));
        record
    }

    /// Returns a record, rolled to `now`, with a correction of what was charged at the instant `charged`.
    ///
    /// The correction goes to the window that was charged: `delta` more, or less if it is negative. A refund
    /// never goes below zero used, and does nothing if that window has expired. For a leaky bucket `charged`
    /// is the time at which the request left: that of the check plus its delay.
    #[must_use]
    pub fn settle(&self, mut record: Record, now: u64, charged: u64, delta: i64) -> Record {
        let quota = self.quota();
        dispatch!(self.algorithm, definition => definition.settle(quota, &mut record, now, charged, delta));
        record
    }

    /// Gives the holder of slots, which took its first ones at `since`, at least so many in a rolled record: it must have them, unless
    /// they were reset.
    pub fn keep(&self, record: &mut Record, now: u64, since: u64, least: u64) -> SlotsFound {
        dispatch!(self.algorithm, definition => definition.keep(self.quota(), record, now, since, least))
    }

    /// Returns the record that a reset leaves in place of this rate's, if it leaves one.
    #[must_use]
    pub fn left_by_reset(&self, now: u64) -> Option<Record> {
        dispatch!(self.algorithm, definition => definition.left_by_reset(self.quota(), now))
    }

    /// Returns this rate's decision about a check of `cost`.
    ///
    /// `record` and `now` come from [`Rate::roll`]. `has_room` is the result of [`Rate::has_room`] on that
    /// record. If the whole check was admitted, `charged` is set and the cost is already charged to `record`.
    #[must_use]
    #[inline]
    pub fn decision(&self, record: &Record, now: u64, cost: u64, has_room: bool, charged: bool) -> Decision {
        let checked = Checked { now, cost: cost.max(1), has_room, charged };
        dispatch!(self.algorithm, definition => definition.decide(self.quota(), record, checked))
    }

    /// Returns the summary of a record with a long tail that [`Rate::decide_from_view`] needs.
    #[must_use]
    pub fn view(&self, record: &Record, cost: u64) -> RecordView {
        dispatch!(self.algorithm, definition => definition.view(self.quota(), record, cost.max(1)))
    }

    /// Returns the decision about a check, as [`Rate::decision`], from the view of a record.
    #[must_use]
    pub fn decide_from_view(&self, view: &RecordView, now: u64, cost: u64, has_room: bool) -> Decision {
        let checked = Checked { now, cost: cost.max(1), has_room, charged: false };
        dispatch!(self.algorithm, definition => definition.decide_from_view(self.quota(), view, checked))
    }

    /// Reports whether the record that the view summarizes has room for `cost`.
    #[must_use]
    pub fn view_has_room(&self, view: &RecordView, now: u64, cost: u64) -> bool {
        dispatch!(self.algorithm, definition => {
            definition.view_has_room(self.quota(), view, now, cost.max(1))
        })
    }
}
