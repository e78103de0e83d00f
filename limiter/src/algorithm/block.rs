//! The block of a client that a limit denies too often: after N denials within a period, nothing more of it is admitted for
//! some time.
//!
//! A block is a rate beside the other rates of a limit. Only denials by these count in it, and none while the client
//! is blocked: whoever keeps trying neither lengthens the block nor begins another one. Any trailing period counts, in whole
//! milliseconds, so N denials within it begin the block whenever they come.
//!
//! In a [`Record`] `tail` holds the instants of the denials in milliseconds, newest first, and `window` the time at which the
//! record ends: a period after the newest denial. While the client is blocked `tail` is empty, and `window` is the end of the
//! block. The period of the tag is always 1, so that an edit of the numbers lifts no block.

use super::definition::{Checked, Definition};
use super::shape::RecordView;
use crate::decision::Decision;
use crate::duration::{Millis, Words};
use crate::error::RateError;
use crate::number::Period;
use crate::quota::Quota;
use crate::record::{Kind, MAX_DENIALS, Record, Tag};

/// The largest number of denials before a block.
pub const MAX_BLOCK_AFTER: u64 = MAX_DENIALS as u64;

/// The block of a client that is denied too often.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    /// Length of the block.
    pub(crate) lasts: Period,
}

impl Block {
    fn is_blocked(record: &Record, now: u64) -> bool {
        record.tail.is_empty() && record.window > now / 1000
    }
}

impl Definition for Block {
    fn validate(self, quota: Quota) -> Result<(), RateError> {
        match quota.requests.get() {
            1..=MAX_BLOCK_AFTER => Ok(()),
            other => Err(RateError::BlockAfter(other)),
        }
    }

    fn can_count_denied(self) -> bool {
        true
    }

    fn counts_only_own_denials(self) -> bool {
        true
    }

    fn is_divided_among_replicas(self) -> bool {
        false
    }

    #[inline]
    fn tag(self, _quota: Quota) -> Tag {
        Tag::new(Kind::Block, 0, 1)
    }

    /// Removes the denials that no longer count. Instants of a clock that was ahead count as now.
    fn roll(self, quota: Quota, mut stored: Record, now: u64) -> (Record, u64) {
        let (millis, period) = (now / 1000, quota.period.millis());
        if stored.tail.is_empty() {
            let latest = millis + self.lasts.millis();
            stored.window = if stored.window > millis { stored.window.min(latest) } else { 0 };
        } else {
            stored.tail.iter_mut().for_each(|instant| *instant = millis.min(*instant));
            stored.tail.retain(|instant| instant + period > millis);
            stored.window = stored.tail.first().map_or(0, |newest| newest + period);
        }
        (stored, now)
    }

    #[inline]
    fn used(self, _quota: Quota, record: &Record, _now: u64) -> u64 {
        record.tail.len() as u64
    }

    #[inline]
    fn has_room(self, _quota: Quota, record: &Record, now: u64, _cost: u64) -> bool {
        !Self::is_blocked(record, now)
    }

    #[inline]
    fn charge(self, _quota: Quota, _record: &mut Record, _now: u64, _cost: u64) {}

    fn charge_denied(self, quota: Quota, record: &mut Record, now: u64, _cost: u64) {
        if Self::is_blocked(record, now) {
            return;
        }
        let millis = now / 1000;
        if record.tail.len() as u64 + 1 >= quota.requests.get() {
            record.tail.clear();
            record.window = millis + self.lasts.millis();
        } else {
            record.tail.insert(0, millis);
            record.window = millis + quota.period.millis();
        }
    }

    fn settle(self, _quota: Quota, _record: &mut Record, _now: u64, _charged: u64, _delta: i64) {}

    fn is_mergeable(self) -> bool {
        false
    }

    #[inline]
    fn decide(self, quota: Quota, record: &Record, checked: Checked) -> Decision {
        self.decide_from_view(quota, &self.view(quota, record, checked.cost), checked)
    }

    /// Returns the view of a rolled record. `leaves` is 1 if the client is blocked.
    #[inline]
    fn view(self, _quota: Quota, record: &Record, _cost: u64) -> RecordView {
        let is_blocked = record.tail.is_empty() && record.window > 0;
        RecordView { newest: record.window, used: record.tail.len() as u64, leaves: u64::from(is_blocked) }
    }

    /// Reports whether the client was not blocked before the check.
    #[inline]
    fn view_has_room(self, _quota: Quota, view: &RecordView, _now: u64, _cost: u64) -> bool {
        view.leaves == 0
    }

    /// Returns the decision from the view after the check. The denial that begins a block has a wait too.
    #[inline]
    fn decide_from_view(self, quota: Quota, view: &RecordView, checked: Checked) -> Decision {
        let Checked { now, has_room, .. } = checked;
        let left = (view.newest * 1000).saturating_sub(now);
        let is_blocked = view.used == 0 && view.newest > now / 1000;
        Decision {
            remaining: if is_blocked { 0 } else { quota.requests.get().saturating_sub(view.used) },
            reset: left,
            retry_after: is_blocked.then_some(left),
            ..Decision::new(quota, has_room)
        }
    }

    /// Returns the length of the block, and the time for which a denial counts, in milliseconds.
    fn script_arguments(self, quota: Quota, _key: u128, _cost: u64) -> [u64; 5] {
        [self.lasts.millis(), quota.period.millis(), 0, 0, 0]
    }

    fn longest_lifetime(self, quota: Quota) -> u64 {
        self.lasts.millis().max(quota.period.millis()) + 1
    }

    fn description(self, quota: Quota) -> String {
        let (after, within) = (quota.requests.get(), Words(quota.period.millis()));
        let requests = if after == 1 { "request" } else { "requests" };
        format!(
            "blocks a client for {} after {after} denied {requests} within {within}",
            Words(self.lasts.millis())
        )
    }

    fn notes(self, quota: Quota) -> Vec<String> {
        let (after, within) = (quota.requests.get(), Millis(quota.period.millis()));
        let denials = if after == 1 { "denial" } else { "denials" };
        vec![format!("block for {} after {after} {denials} within {within}", Millis(self.lasts.millis()))]
    }
}

#[cfg(test)]
mod tests;
