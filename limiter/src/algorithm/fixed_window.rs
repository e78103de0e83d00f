//! Fixed windows: a request is admitted if count + cost <= N, and the count starts again with the next
//! window.
//!
//! Up to 2N requests may pass within one period that crosses an edge. That follows from the definition, and
//! it is why fixed windows are not the default.

use serde::{Deserialize, Serialize};

use super::clock_windows;
use super::definition::{Checked, Definition, Windows};
use super::shape::{PreviousPart, Shape};
use crate::decision::Decision;
use crate::error::RateError;
use crate::number::{MAX_COUNT, add_delta};
use crate::quota::Quota;
use crate::record::{Kind, Record, Tag};

/// The beginnings of fixed windows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Alignment {
    /// At multiples of the period since the Unix epoch.
    #[default]
    Clock,
    /// At the first admitted request. [`Record::window`] is that instant in milliseconds.
    FirstRequest,
    /// Like [`Alignment::Clock`], moved for each key by a part of the period that its hash determines, so
    /// that not all clients return at the same instant.
    Spread,
}

/// One fixed window after another.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FixedWindow(pub(crate) Alignment);

impl Definition for FixedWindow {
    fn validate(self, _quota: Quota) -> Result<(), RateError> {
        Ok(())
    }

    fn can_be_soft(self) -> bool {
        true
    }

    fn can_count_denied(self) -> bool {
        true
    }

    fn windows(self) -> Option<Windows> {
        Some(match self.0 {
            Alignment::Clock => Windows::Clock,
            Alignment::FirstRequest | Alignment::Spread => Windows::Any,
        })
    }

    #[inline]
    fn tag(self, quota: Quota) -> Tag {
        let kind = match self.0 {
            Alignment::Clock => Kind::Clock,
            Alignment::Spread => Kind::Spread,
            Alignment::FirstRequest => Kind::FirstRequest,
        };
        Tag::new(kind, 0, quota.period.millis())
    }

    #[inline]
    fn phase(self, quota: Quota, key: u128) -> u64 {
        match self.0 {
            Alignment::Spread => (key >> 64) as u64 % quota.period.millis() * 1000,
            Alignment::Clock | Alignment::FirstRequest => 0,
        }
    }

    #[inline]
    fn roll(self, quota: Quota, stored: Record, now: u64) -> (Record, u64) {
        match self.0 {
            Alignment::Clock | Alignment::Spread => clock_windows::roll(stored, now),
            Alignment::FirstRequest => roll_from_first_request(quota, stored, now),
        }
    }

    #[inline]
    fn used(self, _quota: Quota, record: &Record, _now: u64) -> u64 {
        record.current
    }

    #[inline]
    fn has_room(self, quota: Quota, record: &Record, now: u64, cost: u64) -> bool {
        quota.has_room(record, now, record.current.saturating_add(cost))
    }

    #[inline]
    fn charge(self, quota: Quota, record: &mut Record, now: u64, cost: u64) {
        record.current = record.current.saturating_add(cost).min(MAX_COUNT);
        if quota.soft.is_some() && cost > 0 && record.current > quota.requests.get() {
            quota.mark_overrun(record, now, self.ends_at(record));
        }
    }

    fn settle(self, _quota: Quota, record: &mut Record, _now: u64, charged: u64, delta: i64) {
        match self.0 {
            Alignment::Clock | Alignment::Spread => clock_windows::settle(record, charged, delta),
            Alignment::FirstRequest => {
                if charged / 1000 >= record.window {
                    record.current = add_delta(record.current, delta);
                }
            }
        }
    }

    #[inline]
    fn decide(self, quota: Quota, record: &Record, checked: Checked) -> Decision {
        let Checked { now, cost, has_room, .. } = checked;
        let falls_to = |spare| if record.current <= spare { now / 1000 } else { self.ends_at(record) };
        Decision {
            remaining: quota.requests.get().saturating_sub(record.current),
            reset: if record.current == 0 { 0 } else { self.ends_at(record) * 1000 - now },
            retry_after: if has_room { None } else { quota.retry_after(record, now, cost, falls_to) },
            ..Decision::new(quota, has_room)
        }
    }

    #[inline]
    fn is_plain(self) -> bool {
        self.0 == Alignment::Clock
    }

    /// Returns the phase in milliseconds, and what all windows need.
    fn script_arguments(self, quota: Quota, key: u128, _cost: u64) -> [u64; 5] {
        quota.script_arguments(self.phase(quota, key) / 1000)
    }

    fn shape(self) -> Option<Shape> {
        (self.0 == Alignment::Clock).then_some(Shape::Windows(PreviousPart::None))
    }

    /// Leases to the end of the window, which is exact.
    fn longest_lease(self, quota: Quota) -> Option<u64> {
        Some(quota.period.micros())
    }

    fn left_of_window(self, quota: Quota, now: u64, decision: &Decision) -> Option<u64> {
        match self.0 {
            Alignment::FirstRequest if decision.reset > 0 => Some(decision.reset),
            _ => Some(quota.period.micros() - now % quota.period.micros()),
        }
    }

    fn refills_gradually(self) -> bool {
        false
    }

    fn freed_after(self, _quota: Quota, used: f64, decision: &Decision, micros: u64) -> f64 {
        if micros >= decision.reset { used } else { 0.0 }
    }

    fn least_still_used(self, quota: Quota, used: u64, at: u64, now: u64) -> u64 {
        // Rule: share.lost-of-window.
        let is_same_window = at / quota.period.micros() == now / quota.period.micros();
        // Rule: share.restores-lost.
        if is_same_window && self.0 != Alignment::FirstRequest { used } else { 0 }
    }

    fn notes(self, _quota: Quota) -> Vec<String> {
        vec![match self.0 {
            Alignment::Clock => "fixedWindow".into(),
            alignment => format!("fixedWindow {alignment:?}"),
        }]
    }
}

impl FixedWindow {
    /// Returns the end of the window in milliseconds.
    #[inline]
    fn ends_at(self, record: &Record) -> u64 {
        match self.0 {
            Alignment::FirstRequest => record.window + record.tag.period_millis(),
            Alignment::Clock | Alignment::Spread => clock_windows::newest_end(record),
        }
    }
}

fn roll_from_first_request(quota: Quota, mut record: Record, now: u64) -> (Record, u64) {
    let (millis, period) = (now / 1000, quota.period.millis());
    if record.window <= millis {
        if millis - record.window >= period {
            record.current = 0;
        }
        if record.current == 0 {
            record.window = millis;
        }
        (record, now)
    } else if record.window - millis <= period {
        let at = record.window * 1000;
        (record, at)
    } else {
        rebase(&mut record, millis);
        (record, now)
    }
}

/// Moves a window that opened at the first request, and is in the future, back to `millis`.
pub(crate) fn rebase(record: &mut Record, millis: u64) {
    record.window = millis;
    record.overrun.rebase(millis);
}

#[cfg(test)]
mod tests;
