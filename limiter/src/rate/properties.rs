//! Properties of a rate beside counting: its shape and its numbers for scripts, leases and local quota,
//! descriptions.

use super::definition::Rate;
use crate::algorithm::{Definition as _, Shape, Unit, Windows, dispatch};
use crate::decision::Decision;
use crate::duration::Millis;
use crate::record::Kind;

/// The largest number passed to a script. Larger ones would mean the same, and a double could not hold them
/// exactly.
const LARGEST: u64 = 1 << 52;
/// Shortest lease worth taking, in microseconds. A shorter one would expire before it arrives.
const SHORTEST_LEASE: u64 = 50_000;

impl Rate {
    /// Returns the arguments of this rate for a check of `cost` by a key; `None` for the two default
    /// algorithms without a soft extra and without counted denials, which need none.
    ///
    /// They are the numbers that a script needs, beside a rate's number and tag, to repeat the arithmetic.
    /// All are whole and below 2^53, which a double holds exactly.
    ///
    /// The five numbers (ms: milliseconds, us: microseconds; the rest is 0):
    ///
    /// | algorithm | 1 | 2 | 3 | 4 | 5 |
    /// |---|---|---|---|---|---|
    /// | `slidingWindowCounter` | 1 if guaranteed | soft ceiling | ms of the extra | 1 if denials count | |
    /// | `fixedWindow` | phase of `Spread`, ms | soft ceiling | ms of the extra | 1 if denials count | |
    /// | `slidingWindowLog` | minimum interval, ms | | | 1 if denials count | |
    /// | buckets | capacity, us | its rest | time of the cost, us | its rest | most ahead, us |
    /// | block | its length, ms | time of a denial, ms | | | |
    /// | concurrency | holder | lease, ms | | | |
    /// | warm-up | period, us | cold factor | units of a settlement | | |
    #[must_use]
    pub fn script_arguments(&self, key: u128, cost: u64) -> Option<[u64; 5]> {
        if self.is_plain() { None } else { Some(self.full_script_arguments(key, cost)) }
    }

    /// Returns the arguments as [`Rate::script_arguments`] does, but also for the default algorithms.
    #[must_use]
    pub fn full_script_arguments(&self, key: u128, cost: u64) -> [u64; 5] {
        dispatch!(self.algorithm, definition => definition.script_arguments(self.quota(), key, cost))
            .map(|number| number.min(LARGEST))
    }

    /// Returns the arguments for a settlement of `amount`. They are those of a check, but for a bucket the
    /// first two are 1 if it is a leaky one, and 0.
    #[must_use]
    pub fn settlement_script_arguments(&self, key: u128, amount: u64) -> [u64; 5] {
        let quota = self.quota();
        dispatch!(self.algorithm, definition => definition.settlement_script_arguments(quota, key, amount))
            .map(|number| number.min(LARGEST))
    }

    /// Returns the time that a script takes for a record of this rate, measured, as a multiple of that for a
    /// record of the default algorithm.
    #[must_use]
    pub fn script_weight(&self) -> usize {
        if self.is_plain() {
            return 1;
        }
        dispatch!(self.algorithm, definition => definition.script_weight(self.quota()))
    }

    #[inline]
    fn is_plain(&self) -> bool {
        self.is_simple() && dispatch!(self.algorithm, definition => definition.is_plain())
    }

    /// Returns the shape of the rate, if a store may count it on a compact form of its record.
    #[must_use]
    pub fn shape(&self) -> Option<Shape> {
        dispatch!(self.algorithm, definition => definition.shape()).filter(|_| self.is_simple())
    }

    /// Reports whether only admitted requests change a record, up to the number.
    #[inline]
    fn is_simple(&self) -> bool {
        self.soft.is_none() && !self.count_denied
    }

    /// Returns the most that is admitted at one instant.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        dispatch!(self.algorithm, definition => definition.capacity(self.quota()))
    }

    /// Returns the time in which an exhausted rate refills, in microseconds.
    #[must_use]
    pub fn refill_time(&self) -> u64 {
        self.quota().refill_time(self.capacity())
    }

    /// Returns the longest time, in microseconds, for which a block of quota can be leased.
    ///
    /// It is `None` for rates that allow no leases: logs, which record the instant of each request; leaky
    /// buckets and warm-up, where each request waits for its own delay; soft rates, whose extra begins with
    /// the request that exceeds the number; rates that count denied requests; and rates whose blocks would expire before they arrive.
    #[must_use]
    pub fn longest_lease(&self) -> Option<u64> {
        let longest = dispatch!(self.algorithm, definition => definition.longest_lease(self.quota()));
        longest.filter(|&micros| self.is_simple() && micros >= SHORTEST_LEASE)
    }

    /// Returns the microseconds that are left of the window in which a key was charged. `at` is the time of
    /// that decision by the clock. Buckets have no windows.
    #[must_use]
    pub fn left_of_window(&self, key: u128, at: u64, decision: &Decision) -> Option<u64> {
        let (quota, now) = (self.quota(), at + self.phase(key));
        dispatch!(self.algorithm, definition => definition.left_of_window(quota, now, decision))
    }

    /// Reports whether quota comes back gradually, and not only at the end of a window.
    #[must_use]
    pub fn refills_gradually(&self) -> bool {
        dispatch!(self.algorithm, definition => definition.refills_gradually())
    }

    /// Returns the usage after a decision.
    #[must_use]
    pub fn used_after(&self, decision: &Decision) -> u64 {
        self.capacity().saturating_sub(decision.remaining)
    }

    /// Estimates how much of the usage after a decision has expired `micros` microseconds later.
    #[must_use]
    pub fn freed_after(&self, decision: &Decision, micros: u64) -> f64 {
        let (quota, used) = (self.quota(), self.used_after(decision) as f64);
        dispatch!(self.algorithm, definition => definition.freed_after(quota, used, decision, micros))
    }

    /// Returns the least of what was `used` at the instant `at` that must still count at `now`, unless the
    /// store has lost it. Instants are in the rate's own time.
    #[must_use]
    pub fn least_still_used(&self, used: u64, at: u64, now: u64) -> u64 {
        dispatch!(self.algorithm, definition => definition.least_still_used(self.quota(), used, at, now))
    }

    /// Returns until when a counter must stay in a store that loses nothing, given a decision at `at`, in microseconds; 0 if
    /// that is not certain. `charged` tells whether this decision charged the counter.
    ///
    /// A refund leaves the record of a window where it is, and removes from a log only what was charged before. But it takes debt
    /// from a bucket, so that nobody knows when the record of a bucket expires. Slots of concurrency and blocks end at any time.
    #[must_use]
    pub fn stays_until(&self, decision: &Decision, at: u64, charged: bool) -> u64 {
        let micros = match self.tag().kind() {
            Some(Kind::Sliding | Kind::Clock | Kind::Spread | Kind::FirstRequest) => decision.reset,
            Some(Kind::Log) if charged => self.period.micros(),
            Some(
                Kind::Log
                | Kind::Arrival
                | Kind::WarmUp
                | Kind::Holders
                | Kind::Block
                | Kind::Reservations
                | Kind::Overrun,
            )
            | None => 0,
        };
        // Without usage there may be no counter.
        if micros > 0 { at.saturating_add(micros) } else { 0 }
    }

    /// Returns how long a record lives at most, in milliseconds.
    pub(crate) fn longest_lifetime(&self) -> u64 {
        dispatch!(self.algorithm, definition => definition.longest_lifetime(self.quota()))
    }

    /// Returns the unit of the rate's number.
    #[must_use]
    pub fn unit(&self) -> Unit {
        dispatch!(self.algorithm, definition => definition.unit())
    }

    /// Returns the windows whose number of requests alone decides, if the algorithm has such.
    #[must_use]
    pub fn windows(&self) -> Option<Windows> {
        dispatch!(self.algorithm, definition => definition.windows())
    }

    /// Reports whether admitted requests may be delayed.
    #[must_use]
    pub fn delays(&self) -> bool {
        dispatch!(self.algorithm, definition => definition.delays())
    }

    /// Describes the rate for clients, as the end of a sentence that begins with the limit: `admits 5 requests
    /// per minute, in bursts of up to 9`.
    #[must_use]
    pub fn description(&self) -> String {
        let mut text = dispatch!(self.algorithm, definition => definition.description(self.quota()));
        if self.count_denied && !self.counts_only_own_denials() {
            text += "; denied requests count too";
        }
        text
    }

    /// Names the algorithm and its parameters as a policy does, without its defaults: `slidingWindowLog`,
    /// `minInterval 2s`.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let mut notes = dispatch!(self.algorithm, definition => definition.notes(self.quota()));
        if let Some(soft) = self.soft {
            notes.push(format!("soft +{}% for {}", soft.over_percent(), Millis(soft.millis())));
        }
        if self.count_denied && !self.counts_only_own_denials() {
            notes.push("countDenied".into());
        }
        notes
    }
}

#[cfg(test)]
mod tests;
