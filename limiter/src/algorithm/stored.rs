//! Operations on a stored record that need only its tag, not its rate.

use super::{clock_windows, concurrency, fixed_window, gcra, log, warm_up};
use crate::number::MAX_PERIOD_MS;
use crate::record::{Kind, Record};

impl Record {
    /// Returns the instant, in milliseconds, from which this record no longer changes a decision.
    #[must_use]
    #[inline]
    pub fn expires_at(&self) -> u64 {
        let end = match self.tag.kind() {
            Some(Kind::FirstRequest) => fixed_window::first_request_expires_at(self),
            Some(Kind::Log) => log::expires_at(self),
            Some(Kind::Arrival) => gcra::expires_at(self),
            Some(Kind::WarmUp) => warm_up::expires_at(self),
            Some(Kind::Holders) => concurrency::expires_at(self),
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
        Some(match self.tag.kind() {
            Some(Kind::FirstRequest) => fixed_window::carry_over_first_request(self, now),
            Some(Kind::Log) => log::carry_over(self, now),
            Some(Kind::Arrival | Kind::WarmUp | Kind::Holders) => {
                self.window = self.window.min(millis + 2 * MAX_PERIOD_MS);
                self
            }
            Some(Kind::Sliding | Kind::Clock | Kind::Spread | Kind::Overrun) | None => {
                clock_windows::carry_over(self, now)
            }
        })
    }
}
