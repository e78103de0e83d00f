//! The trait that every algorithm implements. It holds all properties of an algorithm: no other code
//! distinguishes algorithms.

use super::shape::{RecordView, Shape, SlotsFound, Unit};
use crate::decision::Decision;
use crate::error::RateError;
use crate::number::MAX_COUNT;
use crate::quota::Quota;
use crate::record::{Record, Tag};

/// A check of a rate after it was decided.
#[derive(Clone, Copy)]
pub(crate) struct Checked {
    /// Its instant.
    pub(crate) now: u64,
    /// Its cost.
    pub(crate) cost: u64,
    /// Whether the record had room for the cost.
    pub(crate) has_room: bool,
    /// Whether the cost is in the record already.
    pub(crate) charged: bool,
}

/// The windows in which an algorithm counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Windows {
    /// Those that begin at multiples of the period since the Unix epoch.
    Clock,
    /// Those that begin at any time.
    Any,
}

/// An algorithm with its parameters. The defaults are what most algorithms do.
///
/// Instants are microseconds in the rate's own time. A record is *rolled* if it comes from [`roll`](Self::roll)
/// at the same instant. A cost is at least 1 unless the method says otherwise.
pub(crate) trait Definition: Copy {
    /// Checks that the numbers of the rate fit together.
    fn validate(self, quota: Quota) -> Result<(), RateError>;

    /// Reports whether the rate may have a soft extra.
    fn can_be_soft(self) -> bool {
        false
    }

    /// Reports whether denied requests may count too.
    fn can_count_denied(self) -> bool {
        false
    }

    /// Reports whether only denials by the rate's own limit count, and not those by other limits of the request.
    fn counts_only_own_denials(self) -> bool {
        false
    }

    /// Returns the windows whose number of requests alone decides, if the algorithm has such.
    fn windows(self) -> Option<Windows> {
        None
    }

    /// Reports whether a replica that decides alone has a part of the number.
    fn is_divided_among_replicas(self) -> bool {
        true
    }

    /// Returns the tag of the rate's records. The number of requests does not change it.
    fn tag(self, quota: Quota) -> Tag;

    /// Returns how far the rate's own time is ahead of the clock for a key, in microseconds.
    #[inline]
    fn phase(self, _quota: Quota, _key: u128) -> u64 {
        0
    }

    // Counting.

    /// Returns the record of a key that sends its first request.
    #[inline]
    fn fresh(self, quota: Quota, now: u64) -> Record {
        Record::empty(self.tag(quota), now)
    }

    /// Brings a stored record to now. Returns it with the instant that counts.
    fn roll(self, quota: Quota, stored: Record, now: u64) -> (Record, u64);

    /// Returns the usage of a rolled record, in requests.
    fn used(self, quota: Quota, record: &Record, now: u64) -> u64;

    /// Reports whether a rolled record has room for `cost`.
    fn has_room(self, quota: Quota, record: &Record, now: u64, cost: u64) -> bool;

    /// Adds an admitted `cost`, which may be 0, to a rolled record.
    fn charge(self, quota: Quota, record: &mut Record, now: u64, cost: u64);

    /// Adds a denied `cost` to a rolled record, if denied requests count.
    #[inline]
    fn charge_denied(self, quota: Quota, record: &mut Record, now: u64, cost: u64) {
        self.charge(quota, record, now, cost);
    }

    /// Removes a `cost` that was charged to the record at the same instant.
    #[inline]
    fn undo_charge(self, quota: Quota, record: &mut Record, now: u64, cost: u64) {
        self.settle(quota, record, now, now, -(cost.min(MAX_COUNT) as i64));
    }

    /// Corrects the cost that was charged at the instant `charged`.
    fn settle(self, quota: Quota, record: &mut Record, now: u64, charged: u64, delta: i64);

    /// Makes up for what is missing of the `least` that the rate's user must have in a rolled record since an instant. Only slots
    /// are held, and so only they can be missing.
    fn keep(self, _quota: Quota, _record: &mut Record, _now: u64, _since: u64, _least: u64) -> SlotsFound {
        SlotsFound::Enough
    }

    /// Returns what a reset leaves in place of the record.
    fn left_by_reset(self, _quota: Quota, _now: u64) -> Option<Record> {
        None
    }

    /// Reports whether equal checks at the same instant may be decided together, from their number alone.
    fn is_mergeable(self) -> bool {
        true
    }

    // Decisions.

    /// Returns the decision about a check, from the record that it left.
    fn decide(self, quota: Quota, record: &Record, checked: Checked) -> Decision;

    /// Returns the summary that a decision about `cost` needs. Only records of a list have one; other
    /// algorithms keep the defaults of this method and the next two, which no store calls.
    fn view(self, _quota: Quota, record: &Record, _cost: u64) -> RecordView {
        RecordView { newest: record.window, used: record.current, leaves: 0 }
    }

    /// Reports whether the record that the view summarizes has room for `cost`.
    fn view_has_room(self, quota: Quota, view: &RecordView, _now: u64, cost: u64) -> bool {
        view.used.saturating_add(cost) <= quota.requests.get()
    }

    /// Returns what [`decide`](Self::decide) does, from the view of a record.
    fn decide_from_view(self, quota: Quota, view: &RecordView, checked: Checked) -> Decision {
        let Checked { has_room, .. } = checked;
        let remaining = quota.requests.get().saturating_sub(view.used);
        Decision { remaining, ..Decision::new(quota, has_room) }
    }

    // Scripts.

    /// Reports whether a script can count a hard rate without arguments.
    #[inline]
    fn is_plain(self) -> bool {
        false
    }

    /// Returns the numbers with which a script repeats the arithmetic for a check of `cost`, which may be 0.
    fn script_arguments(self, quota: Quota, key: u128, cost: u64) -> [u64; 5];

    /// Returns the same for a settlement of `amount`.
    fn settlement_script_arguments(self, quota: Quota, key: u128, amount: u64) -> [u64; 5] {
        self.script_arguments(quota, key, amount)
    }

    /// Returns the time that a script takes for a record, measured, as a multiple of that for a plain rate.
    fn script_weight(self, _quota: Quota) -> usize {
        3
    }

    /// Returns the shape of a hard rate that a store may count on a compact form of its record.
    fn shape(self) -> Option<Shape> {
        None
    }

    /// Returns how long a record lives at most, in milliseconds: mostly that of a counter which is charged to its capacity
    /// when a window begins.
    fn longest_lifetime(self, quota: Quota) -> u64 {
        let now = quota.period.micros();
        let mut record = self.fresh(quota, now);
        self.charge(quota, &mut record, now, self.capacity(quota));
        record.expires_at().saturating_sub(now / 1000)
    }

    // Leases and local quota.

    /// Returns the most that is admitted at one instant.
    fn capacity(self, quota: Quota) -> u64 {
        quota.requests.get()
    }

    /// Returns the longest time, in microseconds, for which quota of a hard rate can be leased; `None` if it
    /// cannot.
    fn longest_lease(self, _quota: Quota) -> Option<u64> {
        None
    }

    /// Returns the microseconds that are left of the window that was charged at `now`; `None` if there are no
    /// windows.
    fn left_of_window(self, _quota: Quota, _now: u64, _decision: &Decision) -> Option<u64> {
        None
    }

    /// Reports whether quota comes back gradually, and not only at the end of a window.
    fn refills_gradually(self) -> bool {
        true
    }

    /// Estimates how much of what was `used` after a decision has expired `micros` microseconds later.
    fn freed_after(self, quota: Quota, used: f64, _decision: &Decision, micros: u64) -> f64 {
        // Assumes that the usage is spread evenly over the period.
        (used * (micros as f64 / quota.period.micros() as f64)).min(used)
    }

    /// Returns the least of what was `used` at the instant `at` that must still count at `now`. Quota comes
    /// back no faster than this assumes.
    fn least_still_used(self, _quota: Quota, _used: u64, _at: u64, _now: u64) -> u64 {
        0
    }

    // Descriptions.

    /// Returns the unit of the rate's number.
    fn unit(self) -> Unit {
        Unit::Requests
    }

    /// Reports whether admitted requests may be delayed.
    fn delays(self) -> bool {
        false
    }

    /// Describes a rate for people who do not know the names of the algorithms, as the end of a sentence that
    /// begins with the limit.
    fn description(self, quota: Quota) -> String {
        format!("admits {quota}")
    }

    /// Names the algorithm and its parameters as a policy does. Defaults are left out.
    fn notes(self, quota: Quota) -> Vec<String>;
}
