//! The state of one rate for one key. A record says itself what it counts (algorithm, slots, period), so that an
//! edit of a policy's numbers keeps it, and an edit of a period cannot be mistaken for it.
//!
//! In a store a value is records one after another, little-endian:
//!
//! | bytes | content |
//! |---|---|
//! | 6 | the [`Tag`] with the width of a count in its lowest 3 bits |
//! | 6 | index of the newest slot: instant / slot length |
//! | width x (previous slots + 1) | counts, newest first, each `width` bytes (1 to 6) |

use crate::{Algorithm, MAX_COUNT, MAX_PERIOD_MS, Rate};

const WIDTH_BITS: u32 = 3;
const SLOT_BITS: u32 = 6;
const ALGORITHM_BITS: u32 = 4;
const SLOT_SHIFT: u32 = WIDTH_BITS;
const ALGORITHM_SHIFT: u32 = SLOT_SHIFT + SLOT_BITS;
const PERIOD_SHIFT: u32 = ALGORITHM_SHIFT + ALGORITHM_BITS;
const HEAD: usize = 12;

/// What a record counts: bits 0-2 zero (the width, in bytes on the wire), 3-8 previous slots kept, 9-12 algorithm,
/// 13-47 period in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(u64);

impl Tag {
    /// The tag of all records of this rate, whatever its number of requests.
    #[must_use]
    pub fn of(rate: &Rate) -> Self {
        Self(
            (rate.period.millis() << PERIOD_SHIFT)
                | (u64::from(rate.algorithm.code()) << ALGORITHM_SHIFT)
                | (u64::from(rate.algorithm.previous_slots()) << SLOT_SHIFT),
        )
    }

    /// The number that stands for it in a store; its lowest 3 bits are zero.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }

    /// Length of a slot in milliseconds.
    #[must_use]
    pub fn slot_millis(self) -> u64 {
        self.0 >> PERIOD_SHIFT
    }

    /// How many slots before the newest a record keeps.
    #[must_use]
    pub fn previous_slots(self) -> u64 {
        (self.0 >> SLOT_SHIFT) & ((1 << SLOT_BITS) - 1)
    }
}

/// The state of one rate for one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Record {
    /// What is counted.
    pub tag: Tag,
    /// Index of the newest slot: instant / slot length.
    pub slot: u64,
    /// Count of the newest slot.
    pub current: u64,
    /// Count of the slot before it; 0 where the algorithm keeps none.
    pub previous: u64,
}

/// Bytes that are no record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The value ends inside a record.
    #[error("the value ends inside a record")]
    Truncated,
    /// A tag that this release cannot read.
    #[error("a record has the unknown tag {0:#x}")]
    UnknownTag(u64),
}

impl Record {
    /// An empty record at `now`.
    #[must_use]
    pub fn empty(tag: Tag, now: u64) -> Self {
        Self { tag, slot: now / tag.slot_millis(), current: 0, previous: 0 }
    }

    /// The instant from which on this record changes no decision.
    #[must_use]
    pub fn expires_at(&self) -> u64 {
        // A damaged value may hold any slot.
        let end = self.slot.saturating_add(self.tag.previous_slots() + 1);
        end.saturating_mul(self.tag.slot_millis())
    }

    /// Appends the record's bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let counts = [self.current.min(MAX_COUNT), self.previous.min(MAX_COUNT)];
        let counts = &counts[..=usize::from(self.tag.previous_slots() > 0)];
        let top = counts.iter().copied().max().unwrap_or(0);
        let width = (8 - top.leading_zeros() as usize / 8).max(1);
        out.extend_from_slice(&(self.tag.0 | width as u64).to_le_bytes()[..6]);
        out.extend_from_slice(&self.slot.to_le_bytes()[..6]);
        for count in counts {
            out.extend_from_slice(&count.to_le_bytes()[..width]);
        }
    }

    /// Reads the first record of `bytes`; returns it and how many bytes it took.
    pub fn decode(bytes: &[u8]) -> Result<(Self, usize), RecordError> {
        let head = read(bytes, 0, 6)?;
        let (width, tag) = ((head & 7) as usize, Tag(head & !7));
        let algorithm = (head >> ALGORITHM_SHIFT) & ((1 << ALGORITHM_BITS) - 1);
        let known = Algorithm::from_code(algorithm as u8)
            .is_some_and(|a| u64::from(a.previous_slots()) == tag.previous_slots());
        if !known || !(1..=6).contains(&width) || !(1..=MAX_PERIOD_MS).contains(&tag.slot_millis()) {
            return Err(RecordError::UnknownTag(head));
        }
        let slot = read(bytes, 6, 6)?;
        let current = read(bytes, HEAD, width)?;
        let kept = tag.previous_slots() as usize;
        let previous = if kept > 0 { read(bytes, HEAD + width, width)? } else { 0 };
        Ok((Self { tag, slot, current, previous }, HEAD + width * (kept + 1)))
    }

    /// Reads every record of a value.
    pub fn decode_all(mut bytes: &[u8]) -> Result<Vec<Self>, RecordError> {
        let mut records = Vec::new();
        while !bytes.is_empty() {
            let (record, taken) = Self::decode(bytes)?;
            records.push(record);
            bytes = &bytes[taken..];
        }
        Ok(records)
    }
}

fn read(bytes: &[u8], at: usize, width: usize) -> Result<u64, RecordError> {
    let part = bytes.get(at..at + width).ok_or(RecordError::Truncated)?;
    let mut word = [0; 8];
    word[..width].copy_from_slice(part);
    Ok(u64::from_le_bytes(word))
}

impl Rate {
    /// The tag of this rate's records.
    #[must_use]
    pub fn tag(&self) -> Tag {
        Tag::of(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Period, Requests};
    use proptest::prelude::*;

    fn rate(algorithm: Algorithm, period: u64) -> Rate {
        Rate { requests: Requests::new(1).unwrap(), period: Period::from_millis(period).unwrap(), algorithm }
    }

    proptest! {
        #[test]
        fn a_record_survives_its_bytes(
            period in 1..=MAX_PERIOD_MS, slot in 0u64..1 << 47, current in 0..=MAX_COUNT, previous in 0..=MAX_COUNT, fixed: bool,
        ) {
            let algorithm = if fixed { Algorithm::FIXED_WINDOW } else { Algorithm::SLIDING_WINDOW };
            let previous = if fixed { 0 } else { previous };
            let record = Record { tag: rate(algorithm, period).tag(), slot, current, previous };
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            record.encode(&mut bytes);
            prop_assert_eq!(Record::decode_all(&bytes), Ok(vec![record, record]));
            for cut in 1..bytes.len() / 2 {
                prop_assert_eq!(Record::decode_all(&bytes[..cut]), Err(RecordError::Truncated));
            }
        }

        #[test]
        fn any_bytes_are_records_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Record::decode_all(&bytes);
        }
    }

    #[test]
    fn a_small_count_takes_a_byte() {
        let mut bytes = Vec::new();
        Record::empty(rate(Algorithm::SLIDING_WINDOW, 60_000).tag(), 1).encode(&mut bytes);
        assert_eq!(bytes.len(), 14);
    }

    #[test]
    fn edits_of_the_period_or_the_algorithm_change_the_tag() {
        let tags = [
            rate(Algorithm::SLIDING_WINDOW, 60_000).tag(),
            rate(Algorithm::SLIDING_WINDOW, 60_001).tag(),
            rate(Algorithm::FIXED_WINDOW, 60_000).tag(),
        ];
        assert!(tags[0] != tags[1] && tags[0] != tags[2] && tags[1] != tags[2]);
        assert!(tags.iter().all(|t| t.get() & 7 == 0 && t.get() < 1 << 48));
    }
}
