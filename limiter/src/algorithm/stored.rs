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
