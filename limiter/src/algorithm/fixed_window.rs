//! Fixed windows: a request is admitted if count + cost <= N, and the count starts again with the next
//! window.
//!
//! Up to 2N requests may pass within one period that crosses an edge. That follows from the definition, and
//! it is why fixed windows are not the default.

use serde::{Deserialize, Serialize};

use super::soft::Soft;
use super::{clock_windows, soft};
use crate::decision::Decision;
use crate::number::{MAX_COUNT, Period, Quota, add_delta};
use crate::record::{Kind, Record};

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

/// Returns how far the time of a key is ahead of the clock, in microseconds.
#[inline]
pub(crate) fn phase(alignment: Alignment, period: Period, key: u128) -> u64 {
    match alignment {
        Alignment::Spread => (key >> 64) as u64 % period.millis() * 1000,
        Alignment::Clock | Alignment::FirstRequest => 0,
    }
}

/// Returns the record at `now` and the instant that counts.
#[inline]
pub(crate) fn roll(alignment: Alignment, quota: Quota, record: Record, now: u64) -> (Record, u64) {
    match alignment {
        Alignment::Clock | Alignment::Spread => clock_windows::roll(record, now),
        Alignment::FirstRequest => roll_from_first_request(quota, record, now),
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
fn rebase(record: &mut Record, millis: u64) {
    record.window = millis;
    record.overrun.rebase(millis);
}

/// Reports whether the record has room for `cost`.
#[inline]
pub(crate) fn has_room(soft: Option<Soft>, quota: Quota, record: &Record, now: u64, cost: u64) -> bool {
    soft::has_room(soft, quota, record, now, record.current.saturating_add(cost))
}

/// Adds `cost` to the window.
#[inline]
pub(crate) fn charge(soft: Option<Soft>, quota: Quota, record: &mut Record, now: u64, cost: u64) {
    record.current = record.current.saturating_add(cost).min(MAX_COUNT);
    if soft.is_some() && cost > 0 && record.current > quota.requests.get() {
        soft::mark(quota, record, now, ends_at(record));
    }
}

/// Adds `delta` to the window if the instant `charged` lies in it.
pub(crate) fn settle(alignment: Alignment, record: &mut Record, charged: u64, delta: i64) {
    match alignment {
        Alignment::Clock | Alignment::Spread => clock_windows::settle(record, charged, delta),
        Alignment::FirstRequest => {
            if charged / 1000 >= record.window {
                record.current = add_delta(record.current, delta);
            }
        }
    }
}

/// Decides about `cost`; `has_room` was decided before a charge.
#[inline]
pub(crate) fn decide(
    soft: Option<Soft>,
    quota: Quota,
    record: &Record,
    now: u64,
    cost: u64,
    has_room: bool,
) -> Decision {
    let falls_to = |spare| if record.current <= spare { now / 1000 } else { ends_at(record) };
    Decision {
        remaining: quota.requests.get().saturating_sub(record.current),
        reset: if record.current == 0 { 0 } else { ends_at(record) * 1000 - now },
        retry_after: if has_room {
            None
        } else {
            soft::retry_after(soft, quota, record, now, cost, falls_to)
        },
        ..Decision::new(quota, has_room)
    }
}

/// Returns the end of the window in milliseconds.
#[inline]
fn ends_at(record: &Record) -> u64 {
    if record.tag.kind() == Some(Kind::FirstRequest) {
        record.window + record.tag.period_millis()
    } else {
        clock_windows::newest_end(record)
    }
}

/// Returns the arguments for the script: the phase in milliseconds, the soft ceiling, the duration of the
/// extra.
pub(crate) fn script_arguments(
    alignment: Alignment,
    soft: Option<Soft>,
    quota: Quota,
    key: u128,
) -> [u64; 5] {
    soft::script_arguments(soft, quota, phase(alignment, quota.period, key) / 1000)
}

/// Returns the instant, in milliseconds, from which a window that opened at the first request changes no
/// decision.
pub(crate) fn first_request_expires_at(record: &Record) -> u64 {
    record.window.saturating_add(record.tag.period_millis())
}

/// Rebases a window that opened at the first request, if it is more than a period ahead of `now`.
pub(crate) fn carry_over_first_request(mut record: Record, now: u64) -> Record {
    if record.window > now / 1000 + record.tag.period_millis() {
        rebase(&mut record, now / 1000);
    }
    record
}

#[cfg(test)]
mod tests;
