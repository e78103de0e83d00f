//! The tag of a record.

use super::kind::Kind;

const WIDTH_BITS: u32 = 3;
const VARIANT_BITS: u32 = 6;
const KIND_BITS: u32 = 4;
const VARIANT_SHIFT: u32 = WIDTH_BITS;
const KIND_SHIFT: u32 = VARIANT_SHIFT + VARIANT_BITS;
const PERIOD_SHIFT: u32 = KIND_SHIFT + KIND_BITS;

/// Kind, variant and period of a record, in one number.
///
/// | bits | content |
/// |---|---|
/// | 0 to 2 | zero; on the wire the width of a count in bytes |
/// | 3 to 8 | variant: of [`Kind::Sliding`] the number of windows kept before the newest; of other kinds a number that an algorithm chose |
/// | 9 to 12 | kind |
/// | 13 to 47 | period in milliseconds |
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(u64);

impl Tag {
    #[inline]
    pub(crate) fn new(kind: Kind, variant: u64, period: u64) -> Self {
        Self((period << PERIOD_SHIFT) | (kind.code() << KIND_SHIFT) | (variant << VARIANT_SHIFT))
    }

    /// Returns the number that represents the tag in a store. Its lowest 3 bits are zero.
    #[must_use]
    #[inline]
    pub fn get(self) -> u64 {
        self.0
    }

    /// Returns the tag with this number, which must have come from [`Tag::get`].
    #[must_use]
    #[inline]
    pub fn from_number(number: u64) -> Self {
        Self(number)
    }

    #[inline]
    pub(crate) fn kind(self) -> Option<Kind> {
        Kind::from_code((self.0 >> KIND_SHIFT) & ((1 << KIND_BITS) - 1))
    }

    /// Returns the length of the period in milliseconds.
    #[must_use]
    #[inline]
    pub fn period_millis(self) -> u64 {
        self.0 >> PERIOD_SHIFT
    }

    /// Returns the length of a window in milliseconds.
    #[must_use]
    #[inline]
    pub fn window_millis(self) -> u64 {
        match self.previous_windows() {
            0 | 1 => self.period_millis(),
            windows => self.period_millis() / windows,
        }
    }

    /// Returns the number of windows that a record keeps before the newest.
    #[must_use]
    #[inline]
    pub fn previous_windows(self) -> u64 {
        if self.kind() == Some(Kind::Sliding) { self.variant() } else { 0 }
    }

    #[inline]
    pub(crate) fn variant(self) -> u64 {
        (self.0 >> VARIANT_SHIFT) & ((1 << VARIANT_BITS) - 1)
    }

    /// Reports whether records with this tag use [`Record::tail`](super::Record::tail).
    #[must_use]
    pub fn has_tail(self) -> bool {
        self.previous_windows() > 1 || self.has_view()
    }

    /// Reports whether a decision needs the whole tail of a record. Such a record has a
    /// [`RecordView`](crate::RecordView).
    #[must_use]
    pub fn has_view(self) -> bool {
        matches!(self.kind(), Some(Kind::Log | Kind::Holders | Kind::Block | Kind::Reservations))
    }

    /// Reports whether this is the tag of a log.
    #[must_use]
    pub fn is_log(self) -> bool {
        self.kind() == Some(Kind::Log)
    }

    /// Reports whether this is the tag of a ledger of reservations.
    #[must_use]
    pub fn is_ledger(self) -> bool {
        self == Self::new(Kind::Reservations, 0, 1)
    }

    /// Reports whether records with this tag count in windows that are aligned to the clock, the same for all
    /// keys.
    #[must_use]
    pub fn has_clock_windows(self) -> bool {
        matches!(self.kind(), Some(Kind::Sliding | Kind::Clock))
    }
}
