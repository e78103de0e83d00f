//! What the store holds of a key: 32 bytes, 16 to know it by and 16 of state.
//!
//! | bits | content |
//! |---|---|
//! | 64 | `high`: the upper half of the [`Id`]; all ones where there is no key |
//! | 64 | `low`: the lower half, its 45 lowest bits XOR the tag of the record. So one comparison tells that it is the key and the tag; and who knows the key, knows the tag |
//! | 48 | where the record's slot begins, or its instant, in milliseconds |
//! | 16 | how long after that the record expires, rounded up: 11 bits, and 5 by how many they are shifted |
//! | 64 | `current` and `previous` in 31 and 32 bits, or, with the highest bit set, in 45 and 18 |
//!
//! 82 bits of a key are always compared. What does not fit (several records, more than two counts, a soft rate that is
//! over) is spilled: the entry holds when it expires, and where it is.

use sluice_limiter::{Overrun, Record, Tag};

/// The bits of a tag, without those that are always zero.
const TAG_BITS: u32 = 45;
const TAG_SHIFT: u32 = 3;
const INSTANT_BITS: u32 = 48;
const LIFE_BITS: u32 = 16;
const LIFE_SHIFT_BITS: u32 = 5;
/// Nothing, shifted by 31: no record lives so long.
const SPILLED: u64 = 31;
/// Set where `previous` has 18 bits, not 32.
const WIDE: u64 = 1 << 63;
const NARROW_BITS: u32 = 18;

/// What a counter is known by: the hash of its limit's scope XOR the hash of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Id {
    pub(super) high: u64,
    pub(super) low: u64,
}

impl Id {
    /// The hash of a limit's scope, as an id of no key.
    pub(super) fn of_scope(hash: u128) -> Self {
        Self { high: (hash >> 64) as u64, low: hash as u64 }
    }

    /// The id of this scope's counter of a key.
    #[inline]
    pub(super) fn of_key(self, key: u128) -> Self {
        // All ones stand for no key.
        Self { high: (self.high ^ (key >> 64) as u64) & !1, low: self.low ^ key as u64 }
    }

    /// Whether this is the counter's entry, whatever it counts.
    #[inline]
    pub(super) fn is_of(self, entry: &Entry) -> bool {
        self.high == entry.id.high && (self.low ^ entry.id.low) >> TAG_BITS == 0
    }

    /// As an entry holds it that counts by this layout.
    #[inline]
    pub(super) fn tagged(self, layout: &Layout) -> Self {
        Self { low: self.low ^ layout.bits, ..self }
    }
}

/// How the records of a tag stand in an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Layout {
    tag: Tag,
    /// The tag as it is mixed into an id.
    bits: u64,
    /// Milliseconds in a unit of the record's `slot`.
    unit: u64,
    /// The lifetime, as it stands in an entry.
    life: u64,
}

impl Layout {
    /// `None` if records of this tag have more than two counts.
    pub(super) fn of(tag: Tag) -> Option<Self> {
        if tag.has_tail() {
            return None;
        }
        let expires = |slot| Record { window: slot, ..Record::empty(tag, 0) }.expires_at();
        let (unit, life) = (expires(1) - expires(0), rounded(expires(0))?);
        Some(Self { tag, bits: tag.get() >> TAG_SHIFT, unit, life })
    }
}

/// A lifetime in 16 bits, never shorter than it is; `None` if it is longer than any.
fn rounded(millis: u64) -> Option<u64> {
    let bits = LIFE_BITS - LIFE_SHIFT_BITS;
    let shift = (0..31).find(|&shift| millis.div_ceil(1 << shift) < 1 << bits)?;
    Some(millis.div_ceil(1 << shift) << LIFE_SHIFT_BITS | shift)
}

/// Both counts in 64 bits, if they fit.
#[inline]
fn packed(current: u64, previous: u64) -> Option<u64> {
    if current <= Entry::MAX_CURRENT && previous < 1 << 32 {
        Some(current << 32 | previous)
    } else {
        let fits = current < 1 << 45 && previous < 1 << NARROW_BITS;
        fits.then_some(WIDE | current << NARROW_BITS | previous)
    }
}

/// One key, or none.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(32))]
pub(super) struct Entry {
    /// A spilled entry's has no tag mixed in: it is like no tagged one, as no tag is 0.
    pub(super) id: Id,
    time: u64,
    counts: u64,
}

impl Entry {
    /// No key; it never expires.
    pub(super) const EMPTY: Self = Self { id: Id { high: u64::MAX, low: 0 }, time: u64::MAX, counts: 0 };

    /// The largest newest count that leaves half of the bits to the one before.
    pub(super) const MAX_CURRENT: u64 = (1 << 31) - 1;

    /// The entry of this record, if it fits.
    #[inline]
    pub(super) fn pack(id: Id, layout: &Layout, record: &Record) -> Option<Self> {
        let instant =
            record.window.checked_mul(layout.unit).filter(|&instant| instant < 1 << INSTANT_BITS)?;
        let counts = packed(record.current, record.previous)?;
        let fits = record.tag == layout.tag && record.tail.is_empty() && record.overrun == Overrun::default();
        fits.then_some(Self { id: id.tagged(layout), time: instant << LIFE_BITS | layout.life, counts })
    }

    /// The record that was packed.
    #[inline]
    pub(super) fn unpack(&self, layout: &Layout) -> Record {
        let (current, previous) = self.counts();
        let slot = if layout.unit == 1 { self.instant() } else { self.instant() / layout.unit };
        Record {
            tag: layout.tag,
            window: slot,
            current,
            previous,
            overrun: Overrun::default(),
            tail: Vec::new(),
        }
    }

    /// How its record stands in it, of the counter with this id.
    pub(super) fn layout(&self, id: Id) -> Option<Layout> {
        Layout::of(Tag::from_number((self.id.low ^ id.low) << TAG_SHIFT))
    }

    /// An entry for what stands elsewhere, and expires then.
    pub(super) fn spilled(id: Id, place: usize, expires: u64) -> Self {
        let instant = expires.min((1 << INSTANT_BITS) - 1);
        Self { id, time: instant << LIFE_BITS | SPILLED, counts: place as u64 }
    }

    #[inline]
    pub(super) fn is_spilled(&self) -> bool {
        self.time & ((1 << LIFE_BITS) - 1) == SPILLED
    }

    /// Where the records of a spilled entry are.
    pub(super) fn place(&self) -> Option<usize> {
        self.is_spilled().then_some(self.counts as usize)
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.id.high == u64::MAX
    }

    /// Where the slot begins, in milliseconds.
    #[inline]
    pub(super) fn instant(&self) -> u64 {
        self.time >> LIFE_BITS
    }

    /// When it expires, in milliseconds; at most a thousandth of its life later than its record.
    #[inline]
    pub(super) fn expires_at(&self) -> u64 {
        let life = self.time & ((1 << LIFE_BITS) - 1);
        self.instant() + ((life >> LIFE_SHIFT_BITS) << (life & ((1 << LIFE_SHIFT_BITS) - 1)))
    }

    /// Whether each count stands in its half.
    #[inline]
    pub(super) fn is_narrow(&self) -> bool {
        self.counts & WIDE == 0
    }

    /// The newest count and the one before it, if each stands in its half.
    #[inline]
    pub(super) fn narrow(&self) -> Option<(u64, u64)> {
        self.is_narrow().then(|| self.halves())
    }

    /// The newest count and the one before it. To be asked of an entry that is narrow.
    #[inline]
    pub(super) fn halves(&self) -> (u64, u64) {
        (self.counts >> 32, self.counts & u64::from(u32::MAX))
    }

    /// The newest count and the one before it.
    #[inline]
    pub(super) fn counts(&self) -> (u64, u64) {
        if self.is_narrow() {
            self.halves()
        } else {
            ((self.counts ^ WIDE) >> NARROW_BITS, self.counts & ((1 << NARROW_BITS) - 1))
        }
    }

    /// Another instant, in milliseconds, and other counts; false, and nothing changed, if they do not fit.
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

    /// Adds to the newest count. To be asked only of an entry that is narrow, and remains so.
    #[inline]
    pub(super) fn charge(&mut self, cost: u64) {
        self.counts += cost << 32;
    }
    /// Another newest count, of no more than 31 bits. To be asked only of an entry that is narrow.
    #[inline]
    pub(super) fn recount(&mut self, current: u64) {
        self.counts = current << 32 | self.halves().1;
    }
}
