//! Fixed windows: admit iff count + cost <= N, and begin again with the next window. Up to 2N may pass within one
//! period across an edge; that is the definition, and why it is not the default.
//!
//! - `Clock`: windows begin at multiples of the period since the Unix epoch.
//! - `Spread`: the same, moved for each key by a share of the period that its hash says, so that not all clients come
//!   back at the same instant.
//! - `FirstRequest`: a window begins with the first request that is admitted. `slot` of the record is that instant in
//!   milliseconds.

use crate::algorithm::Kind;
use crate::{Rate, Record};

/// The record of `FirstRequest` at `now`, and the instant that counts.
pub(crate) fn roll(rate: &Rate, mut record: Record, now: u64) -> (Record, u64) {
    let (millis, period) = (now / 1000, rate.period.millis());
    if record.slot <= millis {
        if millis - record.slot >= period {
            record.current = 0;
        }
        if record.current == 0 {
            record.slot = millis;
        }
        (record, now)
    } else if record.slot - millis <= period {
        let at = record.slot * 1000;
        (record, at)
    } else {
        record.slot = millis;
        record.over.since = record.over.since.min(millis);
        record.over.last = record.over.last.min(millis);
        (record, now)
    }
}

/// When the window ends, in milliseconds.
pub(crate) fn ends(record: &Record) -> u64 {
    if record.tag.kind() == Some(Kind::FirstRequest) {
        record.slot + record.tag.period_millis()
    } else {
        (record.slot + 1) * record.tag.slot_millis()
    }
}

/// Microseconds until the window ends; 0 when nothing is used.
pub(crate) fn reset(record: &Record, now: u64) -> u64 {
    if record.current == 0 { 0 } else { ends(record) * 1000 - now }
}
