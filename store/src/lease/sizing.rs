//! The size of the next block. Pure. A block is
//!
//! - a quarter of the holder's share of the quota left in the store, or all of that share when it is small.
//!   Blocks shrink as the counter fills, so that little is left anywhere at the end;
//! - no more than the holder will use before the block expires, and beyond a few requests no more than it
//!   will use within two seconds, so that a holder that dies loses no more;
//! - no more than twice the previous block, so that a new holder begins small.
//!
//! A holder whose share of the limit is below [`LEAST_SHARE`] acquires nothing and makes a call per request.

use crate::plan::lease_terms::LeaseTerms;

/// Least share of the limit, in requests, for which blocks are acquired. Below about 50 there is little to
/// gain, and an estimate can be wrong by half.
const LEAST_SHARE: f64 = 20.0;

/// A block of this size is not divided further.
const SMALL_BLOCK: f64 = 25.0;

/// Smallest block that is worth a call where quota comes back gradually.
pub(super) const LEAST_GRADUAL_BLOCK: u64 = 5;

/// Smallest block that is worth a call where quota comes back at the end of a window.
pub(super) const LEAST_WINDOW_BLOCK: u64 = 3;

/// Fraction of the holder's share of the limit that is worth a call where quota comes back gradually.
const WORTHWHILE_FRACTION: f64 = 0.05;
/// A block of this size makes calls rare enough, and is worth a call in any case.
const WORTHWHILE_MOST: f64 = 40.0;

/// Time for which a block of more than [`SMALL_BLOCK`] is acquired ahead, in microseconds.
const LOOKAHEAD: f64 = 2_000_000.0;

/// The state of a lease and its counter when a block is acquired.
#[derive(Debug)]
pub(super) struct BlockInputs {
    /// The holder's share of the usage, in (0, 1].
    pub(super) share: f64,
    /// Quota left in the store.
    pub(super) available: f64,
    /// Demand, in cost per microsecond.
    pub(super) demand: f64,
    /// Time in which the block can be used, in microseconds.
    pub(super) usable_for: u64,
    /// Quota left in the current block.
    pub(super) in_hand: u64,
    /// Largest size allowed by the previous block.
    pub(super) largest: u64,
}

/// Reports whether the holder's share of the limit is large enough for blocks.
pub(super) fn is_worth_leasing(terms: &LeaseTerms, share: f64) -> bool {
    terms.capacity as f64 * share >= LEAST_SHARE
}

/// Returns the size of the next block.
pub(super) fn block_size(terms: &LeaseTerms, inputs: &BlockInputs) -> u64 {
    let fair = inputs.available * inputs.share;
    let mut size = (fair / 4.0).max(fair.min(SMALL_BLOCK));
    if terms.refills_gradually {
        size = size.max(worthwhile_block(terms, inputs.share).min(inputs.available));
    }
    let soon = likely_most(inputs.demand * LOOKAHEAD).max(SMALL_BLOCK);
    let needed = likely_most(inputs.demand * inputs.usable_for as f64).min(soon) - inputs.in_hand as f64;
    size.min(needed.max(0.0)).min(inputs.largest as f64) as u64
}

/// Returns the smallest block that is worth a call, for a holder with this share.
pub(super) fn worthwhile_block(terms: &LeaseTerms, share: f64) -> f64 {
    let least = LEAST_GRADUAL_BLOCK as f64;
    (terms.capacity as f64 * share * WORTHWHILE_FRACTION).clamp(least, WORTHWHILE_MOST)
}

/// Returns the most that is likely to be needed when `expected` is the mean. Requests come by chance, so the
/// margin is relatively larger for small numbers.
pub(super) fn likely_most(expected: f64) -> f64 {
    1.1 * expected + expected.sqrt()
}
