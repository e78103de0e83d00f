//! Fixed windows aligned to the Unix epoch: admit iff count + cost <= N. Up to 2N may pass within one period across
//! an edge; that is the definition, and why it is not the default.

use crate::Record;

/// Requests used in the current window.
#[must_use]
pub fn used(record: &Record) -> u64 {
    record.current
}

/// Milliseconds until the window ends; 0 when nothing is used. It is also the wait after a denial.
#[must_use]
pub fn reset(record: &Record, now: u64) -> u64 {
    if record.current == 0 { 0 } else { (record.slot + 1) * record.tag.slot_millis() - now }
}
