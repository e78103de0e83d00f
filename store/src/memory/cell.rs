//! A counter in 32 bytes: 16 bytes of id and 16 bytes of state.
//!
//! | bits | content |
//! |---|---|
//! | 64 | `high`: upper half of the [`CounterId`]; all ones in an empty cell |
//! | 64 | `low`: lower half, with the tag of the record XORed into the lowest 45 bits |
//! | 48 | start of the record's window, or its instant, in milliseconds |
//! | 16 | time from then until the record expires, rounded up: 11 bits, and 5 bits of left shift |
//! | 64 | `current` and `previous` in 31 and 32 bits or, with the highest bit set, in 45 and 18 |
//!
//! One comparison of `low` covers both the key and the tag, and the tag can be computed from `low` and the
//! key. At least 82 bits of a key are compared. A state that does not fit (several records, more than two
//! counts, an overrun soft limit) is spilled: its cell holds only the expiry and an index.

use sluice_limiter::{Overrun, Record, Tag};

/// Number of bits of a tag, without those that are always zero.
const TAG_BITS: u32 = 45;
const TAG_SHIFT: u32 = 3;
const INSTANT_BITS: u32 = 48;
const LIFE_BITS: u32 = 16;
const LIFE_SHIFT_BITS: u32 = 5;
/// Lifetime of a spilled cell: zero, shifted by 31, which no record has.
const SPILLED: u64 = 31;
/// Flag of counts in which `previous` has 18 bits instead of 32.
const WIDE: u64 = 1 << 63;
const NARROW_BITS: u32 = 18;

/// The id of a counter: the hash of its limit's scope XOR the hash of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct CounterId {
    pub(super) high: u64,
    pub(super) low: u64,
}

impl CounterId {
    /// The hash of a limit's scope, without a key.
    pub(super) fn of_scope(hash: u128) -> Self {
        Self { high: (hash >> 64) as u64, low: hash as u64 }
    }

    /// Returns the id of this scope's counter for a key.
    #[inline]
    pub(super) fn of_key(self, key: u128) -> Self {
        // All ones mark an empty cell, so the lowest bit is always zero.
        Self { high: (self.high ^ (key >> 64) as u64) & !1, low: self.low ^ key as u64 }
    }

    /// Reports whether a cell belongs to this counter, whatever its tag.
    #[inline]
    pub(super) fn is_of(self, cell: &TableCell) -> bool {
        self.high == cell.id.high && (self.low ^ cell.id.low) >> TAG_BITS == 0
    }

    /// Returns the id as a cell with this layout holds it.
    #[inline]
    pub(super) fn tagged(self, layout: &Layout) -> Self {
        Self { low: self.low ^ layout.bits, ..self }
    }
}

/// The layout of the records of a tag in a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Layout {
    tag: Tag,
    /// Tag as it is XORed into an id.
    bits: u64,
    /// Unit of the record's `window`, in milliseconds.
    unit: u64,
    /// Encoded lifetime.
    life: u64,
}

impl Layout {
    /// Returns the layout of a tag, or `None` if its records have more than two counts.
    pub(super) fn of(tag: Tag) -> Option<Self> {
        if tag.has_tail() {
            return None;
        }
        let expires = |window| Record { window, ..Record::empty(tag, 0) }.expires_at();
        let (unit, life) = (expires(1) - expires(0), rounded(expires(0))?);
        Some(Self { tag, bits: tag.get() >> TAG_SHIFT, unit, life })
    }
}

/// Encodes a lifetime in 16 bits, rounded up. Returns `None` if it is too long.
fn rounded(millis: u64) -> Option<u64> {
    let bits = LIFE_BITS - LIFE_SHIFT_BITS;
    let shift = (0..31).find(|&shift| millis.div_ceil(1 << shift) < 1 << bits)?;
    Some(millis.div_ceil(1 << shift) << LIFE_SHIFT_BITS | shift)
}

/// Encodes both counts in 64 bits, if they fit.
#[inline]
fn packed(current: u64, previous: u64) -> Option<u64> {
    if current <= TableCell::MAX_CURRENT && previous < 1 << 32 {
        Some(current << 32 | previous)
    } else {
        let fits = current < 1 << 45 && previous < 1 << NARROW_BITS;
        fits.then_some(WIDE | current << NARROW_BITS | previous)
    }
}

/// One counter, or none.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(32))]
pub(super) struct TableCell {
    /// Id with the tag. That of a spilled cell has none, so it equals no tagged id: no tag is 0.
    pub(super) id: CounterId,
    time: u64,
    counts: u64,
}

impl TableCell {
    /// A cell without a counter. It never expires.
    pub(super) const EMPTY: Self =
        Self { id: CounterId { high: u64::MAX, low: 0 }, time: u64::MAX, counts: 0 };

    /// Maximum current count in the narrow form, which leaves 32 bits to the previous one.
    pub(super) const MAX_CURRENT: u64 = (1 << 31) - 1;

    /// Packs a record into a cell, if it fits.
    #[inline]
    pub(super) fn pack(id: CounterId, layout: &Layout, record: &Record) -> Option<Self> {
        let instant =
            record.window.checked_mul(layout.unit).filter(|&instant| instant < 1 << INSTANT_BITS)?;
        let counts = packed(record.current, record.previous)?;
        let fits = record.tag == layout.tag && record.tail.is_empty() && record.overrun == Overrun::default();
        fits.then_some(Self { id: id.tagged(layout), time: instant << LIFE_BITS | layout.life, counts })
    }

    /// Unpacks the record.
    #[inline]
    pub(super) fn unpack(&self, layout: &Layout) -> Record {
        let (current, previous) = self.counts();
        let window = if layout.unit == 1 { self.instant() } else { self.instant() / layout.unit };
        Record { tag: layout.tag, window, current, previous, overrun: Overrun::default(), tail: Vec::new() }
    }

    /// Returns the layout of the record, given the id of its counter.
    pub(super) fn layout(&self, id: CounterId) -> Option<Layout> {
        Layout::of(Tag::from_number((self.id.low ^ id.low) << TAG_SHIFT))
    }

    /// A cell for records that are stored elsewhere, with their latest expiry in milliseconds.
    pub(super) fn spilled(id: CounterId, index: usize, expires: u64) -> Self {
        let instant = expires.min((1 << INSTANT_BITS) - 1);
        Self { id, time: instant << LIFE_BITS | SPILLED, counts: index as u64 }
    }

    #[inline]
    pub(super) fn is_spilled(&self) -> bool {
        self.time & ((1 << LIFE_BITS) - 1) == SPILLED
    }

    /// Returns the index of the records of a spilled cell.
    pub(super) fn spill_index(&self) -> Option<usize> {
        self.is_spilled().then_some(self.counts as usize)
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.id.high == u64::MAX
    }

    /// Returns the start of the record's window, or its instant, in milliseconds.
    #[inline]
    pub(super) fn instant(&self) -> u64 {
        self.time >> LIFE_BITS
    }

    /// Returns the expiry in milliseconds, which is at most a thousandth of the lifetime later than that of
    /// the record.
    #[inline]
    pub(super) fn expires_at(&self) -> u64 {
        let life = self.time & ((1 << LIFE_BITS) - 1);
        self.instant() + ((life >> LIFE_SHIFT_BITS) << (life & ((1 << LIFE_SHIFT_BITS) - 1)))
    }

    /// Reports whether each count fits into its half.
    #[inline]
    pub(super) fn is_narrow(&self) -> bool {
        self.counts & WIDE == 0
    }

    /// Returns the current and the previous count, if each fits into its half.
    #[inline]
    pub(super) fn narrow(&self) -> Option<(u64, u64)> {
        self.is_narrow().then(|| self.halves())
    }

    /// Returns the current and the previous count of a narrow cell.
    #[inline]
    pub(super) fn halves(&self) -> (u64, u64) {
        (self.counts >> 32, self.counts & u64::from(u32::MAX))
    }

    /// Returns the current and the previous count.
    #[inline]
    pub(super) fn counts(&self) -> (u64, u64) {
        if self.is_narrow() {
            self.halves()
        } else {
            ((self.counts ^ WIDE) >> NARROW_BITS, self.counts & ((1 << NARROW_BITS) - 1))
        }
    }

    /// Sets the instant, in milliseconds, and the counts. Returns false and changes nothing if they do not
    /// fit.
    #[inline]
    pub(super) fn set(&mut self, layout: &Layout, instant: u64, current: u64, previous: u64) -> bool {
        match packed(current, previous).filter(|_| instant < 1 << INSTANT_BITS) {
            Some(counts) => {
                (self.time, self.counts) = (instant << LIFE_BITS | layout.life, counts);
                true
            }
            None => false,
        }
    }

    /// Adds to the current count. The cell must be narrow before and after.
    #[inline]
    pub(super) fn charge(&mut self, cost: u64) {
        self.counts += cost << 32;
    }

    /// Replaces the current count of a narrow cell, with at most 31 bits.
    #[inline]
    pub(super) fn set_current(&mut self, current: u64) {
        self.counts = current << 32 | self.halves().1;
    }
}
