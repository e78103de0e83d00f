//! Operations on a stored record that need only its tag, not its rate.

use super::warm_up::MAX_WARM_UP_MS;
use super::{clock_windows, fixed_window, log};
use crate::number::MAX_PERIOD_MS;
use crate::record::{Kind, Record};

impl Record {
    /// Returns the instant, in milliseconds, from which this record no longer changes a decision.
    #[must_use]
    #[inline]
    pub fn expires_at(&self) -> u64 {
        let end = match self.tag.kind() {
            Some(Kind::FirstRequest | Kind::Log) => self.window.saturating_add(self.tag.period_millis()),
            Some(Kind::Arrival | Kind::Holders | Kind::Block | Kind::Reservations) => {
                self.window.saturating_add(1)
            }
            Some(Kind::WarmUp) => self.window.saturating_add(1 + MAX_WARM_UP_MS),
            Some(Kind::Sliding | Kind::Clock | Kind::Spread | Kind::Overrun) | None => {
                clock_windows::expires_at(self)
            }
        };
        if self.overrun.last == 0 {
            end
        } else {
            end.max(self.overrun.last.saturating_add(self.tag.period_millis()))
        }
    }

    /// Returns what a reset leaves of this record: of windows and logs one without usage, which lasts as long as anybody can know of
    /// the one before, so that nobody takes the counter for lost. `None` for nothing, as of one that has expired.
    #[must_use]
    pub fn emptied(&self, now: u64) -> Option<Self> {
        if self.expires_at() <= now / 1000 {
            return None;
        }
        let empty = Self::empty(self.tag, now);
        let (newest, ahead) = match self.tag.kind()? {
            Kind::Sliding | Kind::Clock | Kind::Spread => (empty.window, self.tag.previous_windows().max(1)),
            Kind::FirstRequest | Kind::Log => (now / 1000, self.tag.period_millis()),
            Kind::Arrival
            | Kind::WarmUp
            | Kind::Holders
            | Kind::Block
            | Kind::Reservations
            | Kind::Overrun => return None,
        };
        // A clock that has stepped back a little does not shorten it.
        let is_kept = self.window > newest && self.window - newest <= ahead;
        Some(Self { window: if is_kept { self.window } else { newest }, ..empty })
    }

    /// Corrects what was charged at the instant `charged` in a record that belongs to a former version of the limit, at `now`. A rate that
    /// has no record yet begins with the counts of windows on the clock, so only these are corrected.
    pub fn settle_former(&mut self, now: u64, charged: u64, delta: i64) {
        if self.tag.has_clock_windows() {
            let stored = std::mem::replace(self, Self::empty(self.tag, 0));
            *self = clock_windows::roll(stored, now).0;
            clock_windows::settle(self, charged, delta);
        }
    }

    /// Returns a record that belongs to another version of the limit, as a writer without its rate keeps it.
    ///
    /// Returns `None` if the record has expired. A record from far in the future is rebased, as its own rate
    /// would do; otherwise it would be kept until then.
    #[must_use]
    pub fn carry_over(mut self, now: u64) -> Option<Self> {
        let millis = now / 1000;
        if self.expires_at() <= millis {
            return None;
        }
        let is_far_ahead = self.window > millis + self.tag.period_millis();
        match self.tag.kind() {
            Some(Kind::FirstRequest) if is_far_ahead => fixed_window::rebase(&mut self, millis),
            Some(Kind::Log) if is_far_ahead => log::rebase(&mut self, millis),
            Some(Kind::FirstRequest | Kind::Log) => {}
            Some(Kind::Arrival | Kind::WarmUp | Kind::Holders | Kind::Block | Kind::Reservations) => {
                self.window = self.window.min(millis + 2 * MAX_PERIOD_MS);
            }
            Some(Kind::Sliding | Kind::Clock | Kind::Spread | Kind::Overrun) | None => {
                self = clock_windows::carry_over(self, now);
            }
        }
        Some(self)
    }
}
