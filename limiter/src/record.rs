//! The state of one rate for one key. A record says itself what it counts (algorithm, windows, period), so that an
//! edit of a policy's numbers keeps it, and an edit of a period cannot be mistaken for it.
//!
//! In a store a value is records one after another, little-endian:
//!
//! | bytes | content |
//! |---|---|
//! | 6 | the [`Tag`] with the width of a count in its lowest 3 bits |
//! | 6 | `window`: of windows the index of the newest, of other kinds an instant in milliseconds |
//! | width x n | n counts, newest first, each `width` bytes (1 to 6): as many as there are windows; of `FirstRequest` 1; of buckets 2 |
//!
//! A log has instead of counts: 2 bytes with the number of instants, then each in 6 bytes (width is 6), newest first; a record
//! of holders 2 bytes with their number, then of each who (6), how many (4), until when (6). Behind
//! the record of a soft rate that is or was over its number stands one of the kind `Overrun` and the same period: `window` is
//! since when, its one count how many milliseconds later the window of the last one ends.

use crate::algorithm::Kind;
use crate::concurrency::MAX_HOLDERS;
use crate::sliding_window_log::MAX_REQUESTS;
use crate::{MAX_COUNT, MAX_PERIOD_MS, Rate, sliding_window_counter, warm_up};

const WIDTH_BITS: u32 = 3;
const SLOT_BITS: u32 = 6;
const ALGORITHM_BITS: u32 = 4;
const SLOT_SHIFT: u32 = WIDTH_BITS;
const ALGORITHM_SHIFT: u32 = SLOT_SHIFT + SLOT_BITS;
const PERIOD_SHIFT: u32 = ALGORITHM_SHIFT + ALGORITHM_BITS;
const HEAD: usize = 12;

/// What a record counts: bits 0-2 zero (the width, in bytes on the wire), 3-8 previous windows kept, 9-12 algorithm,
/// 13-47 period in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(u64);

impl Tag {
    /// The tag of all records of this rate, whatever its number of requests.
    #[must_use]
    #[inline]
    pub fn of(rate: &Rate) -> Self {
        let kind = rate.algorithm.kind();
        // How long holders are believed may change, who they are does not.
        let period = if kind == Kind::Holders { 1 } else { rate.period.millis() };
        Self::new(kind, u64::from(rate.algorithm.previous_windows()), period)
    }

    fn new(kind: Kind, previous_windows: u64, period: u64) -> Self {
        Self((period << PERIOD_SHIFT) | (kind.code() << ALGORITHM_SHIFT) | (previous_windows << SLOT_SHIFT))
    }

    /// The number that stands for it in a store; its lowest 3 bits are zero.
    #[must_use]
    #[inline]
    pub fn get(self) -> u64 {
        self.0
    }

    /// The tag with this number, which must have come from [`Tag::get`].
    #[must_use]
    #[inline]
    pub fn from_number(number: u64) -> Self {
        Self(number)
    }

    pub(crate) fn kind(self) -> Option<Kind> {
        Kind::from_code((self.0 >> ALGORITHM_SHIFT) & ((1 << ALGORITHM_BITS) - 1))
    }

    /// Length of the period in milliseconds.
    #[must_use]
    #[inline]
    pub fn period_millis(self) -> u64 {
        self.0 >> PERIOD_SHIFT
    }

    /// Length of a window in milliseconds.
    #[must_use]
    #[inline]
    pub fn window_millis(self) -> u64 {
        match self.previous_windows() {
            0 | 1 => self.period_millis(),
            windows => self.period_millis() / windows,
        }
    }

    /// How many windows before the newest a record keeps.
    #[must_use]
    #[inline]
    pub fn previous_windows(self) -> u64 {
        (self.0 >> SLOT_SHIFT) & ((1 << SLOT_BITS) - 1)
    }

    /// Whether the state is one number more than two: it does not fit in `window`, `current` and `previous`.
    #[must_use]
    pub fn has_tail(self) -> bool {
        self.previous_windows() > 1 || self.has_view()
    }

    /// Whether an answer looks at the whole of a tail: then it is known by its view.
    #[must_use]
    pub fn has_view(self) -> bool {
        matches!(self.kind(), Some(Kind::Log | Kind::Holders))
    }

    /// Whether this is a log.
    #[must_use]
    pub fn is_log(self) -> bool {
        self.kind() == Some(Kind::Log)
    }
}

/// The state of one rate for one key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Record {
    /// What is counted.
    pub tag: Tag,
    /// Of windows the index of the newest: instant / window length. Of other kinds an instant in milliseconds.
    pub window: u64,
    /// Count of the newest window, or what the algorithm says.
    pub current: u64,
    /// Count of the window before it, or what the algorithm says; 0 where it says nothing.
    pub previous: u64,
    /// Since when a soft rate is over its number.
    pub overrun: Overrun,
    /// Counts of the windows before those, newest first; of a log the instants.
    pub tail: Vec<u64>,
}

/// When a soft rate went over its number, in milliseconds; both 0 when it never did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Overrun {
    /// The first request above it.
    pub since: u64,
    /// The end of the window of the last one.
    pub last: u64,
}

/// The counts of a record of windows, newest first.
pub(crate) struct Counts<'a>(pub(crate) &'a Record);

impl Counts<'_> {
    pub(crate) fn get(&self, index: u64) -> u64 {
        match index {
            0 => self.0.current,
            1 => self.0.previous,
            _ => self.0.tail.get(index as usize - 2).copied().unwrap_or(0),
        }
    }
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
    /// A log that does not begin with its newest instant.
    #[error("a log does not begin with its newest instant")]
    Disorder,
}

impl Record {
    /// An empty record at `now` (microseconds).
    #[must_use]
    #[inline]
    pub fn empty(tag: Tag, now: u64) -> Self {
        let window = match tag.kind() {
            Some(Kind::Log | Kind::Arrival | Kind::WarmUp | Kind::Holders) => 0,
            Some(Kind::FirstRequest) => now / 1000,
            _ => now / (tag.window_millis() * 1000),
        };
        let tail = vec![0; (tag.previous_windows() as usize).saturating_sub(1)];
        Self { tag, window, current: 0, previous: 0, overrun: Overrun::default(), tail }
    }

    /// The instant, in milliseconds, from which on this record changes no decision.
    #[must_use]
    #[inline]
    pub fn expires_at(&self) -> u64 {
        // A damaged value may hold any window.
        let end = match self.tag.kind() {
            Some(Kind::FirstRequest | Kind::Log) => self.window.saturating_add(self.tag.period_millis()),
            Some(Kind::Arrival | Kind::Holders) => self.window.saturating_add(1),
            Some(Kind::WarmUp) => self.window.saturating_add(1 + warm_up::MAX_WARM_UP_MS),
            _ => self
                .window
                .saturating_add(self.tag.previous_windows() + 1)
                .saturating_mul(self.tag.window_millis()),
        };
        if self.overrun.last == 0 {
            end
        } else {
            end.max(self.overrun.last.saturating_add(self.tag.period_millis()))
        }
    }

    /// The record as a writer keeps it that has no use for it (another version of the limit has): not at all once it
    /// has expired; one that is far ahead is rebased as its own rate would do, or it would be kept for as long.
    #[must_use]
    pub fn carry(mut self, now: u64) -> Option<Self> {
        let millis = now / 1000;
        if self.expires_at() <= millis {
            return None;
        }
        match self.tag.kind() {
            Some(Kind::FirstRequest) => {
                if self.window > millis + self.tag.period_millis() {
                    self.window = millis;
                    self.overrun.since = self.overrun.since.min(millis);
                    self.overrun.last = self.overrun.last.min(millis);
                }
            }
            Some(Kind::Log) => {
                if self.window > millis + self.tag.period_millis() {
                    self.window = millis;
                    self.tail.fill(millis);
                }
            }
            Some(Kind::Arrival | Kind::WarmUp | Kind::Holders) => {
                self.window = self.window.min(millis + 2 * MAX_PERIOD_MS);
            }
            _ => {
                if self.window > millis / self.tag.window_millis() + self.tag.previous_windows().max(1) {
                    self = sliding_window_counter::roll(self, now).0;
                }
            }
        }
        Some(self)
    }

    /// Appends the record's bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let kind = self.tag.kind();
        if kind == Some(Kind::Log) {
            head(out, self.tag, 6, self.window);
            out.extend_from_slice(&(self.tail.len() as u16).to_le_bytes());
            self.tail.iter().for_each(|instant| out.extend_from_slice(&instant.to_le_bytes()[..6]));
            return;
        }
        if kind == Some(Kind::Holders) {
            head(out, self.tag, 6, self.window);
            out.extend_from_slice(&((self.tail.len() / 3) as u16).to_le_bytes());
            for holder in self.tail.chunks_exact(3) {
                out.extend_from_slice(&holder[0].to_le_bytes()[..6]);
                out.extend_from_slice(&holder[1].min(u64::from(u32::MAX)).to_le_bytes()[..4]);
                out.extend_from_slice(&holder[2].to_le_bytes()[..6]);
            }
            return;
        }
        let counts = [self.current.min(MAX_COUNT), self.previous.min(MAX_COUNT)];
        let counts = &counts[..if one_count(kind, self.tag) { 1 } else { 2 }];
        let top = counts.iter().chain(&self.tail).copied().max().unwrap_or(0);
        let width = width_of(top);
        head(out, self.tag, width, self.window);
        for count in counts.iter().chain(&self.tail) {
            out.extend_from_slice(&count.to_le_bytes()[..width]);
        }
        if self.overrun.since > 0 {
            let lasted = self.overrun.last.saturating_sub(self.overrun.since).min(MAX_COUNT);
            let width = width_of(lasted);
            head(out, Tag::new(Kind::Overrun, 0, self.tag.period_millis()), width, self.overrun.since);
            out.extend_from_slice(&lasted.to_le_bytes()[..width]);
        }
    }

    /// Reads the first record of `bytes`; returns it and how many bytes it took.
    pub fn decode(bytes: &[u8]) -> Result<(Self, usize), RecordError> {
        let number = read(bytes, 0, 6)?;
        let (width, tag) = ((number & 7) as usize, Tag(number & !7));
        let kind = tag.kind().filter(|&kind| {
            let windows = tag.previous_windows();
            let cut = match kind {
                Kind::Sliding => (1..=60).contains(&windows) && tag.period_millis() % windows == 0,
                Kind::Overrun => false,
                _ => windows == 0,
            };
            cut && (1..=6).contains(&width)
                && (!matches!(kind, Kind::Log | Kind::Holders) || width == 6)
                && (1..=MAX_PERIOD_MS).contains(&tag.period_millis())
        });
        let Some(kind) = kind else { return Err(RecordError::UnknownTag(number)) };
        let window = read(bytes, 6, 6)?;
        let mut record =
            Self { tag, window, current: 0, previous: 0, overrun: Overrun::default(), tail: Vec::new() };
        let mut at = HEAD;
        if kind == Kind::Log {
            let instants = read(bytes, at, 2)? as usize;
            at += 2;
            if instants > MAX_REQUESTS as usize {
                return Err(RecordError::UnknownTag(number));
            }
            record.tail = counts(bytes, at, 6, instants)?;
            at += 6 * instants;
            if record.tail.first().is_some_and(|&newest| newest != window) {
                return Err(RecordError::Disorder);
            }
            return Ok((record, at));
        }
        if kind == Kind::Holders {
            let holders = read(bytes, at, 2)? as usize;
            at += 2;
            if holders > MAX_HOLDERS {
                return Err(RecordError::UnknownTag(number));
            }
            for _ in 0..holders {
                record.tail.extend([read(bytes, at, 6)?, read(bytes, at + 6, 4)?, read(bytes, at + 10, 6)?]);
                at += 16;
            }
            return Ok((record, at));
        }
        record.current = read(bytes, at, width)?;
        at += width;
        if !one_count(Some(kind), tag) {
            record.previous = read(bytes, at, width)?;
            at += width;
        }
        let more = (tag.previous_windows() as usize).saturating_sub(1);
        record.tail = counts(bytes, at, width, more)?;
        at += width * more;
        if matches!(kind, Kind::Sliding | Kind::Clock | Kind::Spread | Kind::FirstRequest)
            && let Ok(number) = read(bytes, at, 6)
            && Tag(number & !7) == Tag::new(Kind::Overrun, 0, tag.period_millis())
        {
            let width = (number & 7) as usize;
            if !(1..=6).contains(&width) {
                return Err(RecordError::UnknownTag(number));
            }
            let since = read(bytes, at + 6, 6)?;
            record.overrun = Overrun { since, last: since + read(bytes, at + HEAD, width)? };
            at += HEAD + width;
        }
        Ok((record, at))
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

fn one_count(kind: Option<Kind>, tag: Tag) -> bool {
    !matches!(kind, Some(Kind::Arrival | Kind::WarmUp)) && tag.previous_windows() == 0
}

fn width_of(top: u64) -> usize {
    (8 - top.leading_zeros() as usize / 8).max(1)
}

fn head(out: &mut Vec<u8>, tag: Tag, width: usize, window: u64) {
    out.extend_from_slice(&(tag.0 | width as u64).to_le_bytes()[..6]);
    out.extend_from_slice(&window.to_le_bytes()[..6]);
}

fn counts(bytes: &[u8], at: usize, width: usize, how_many: usize) -> Result<Vec<u64>, RecordError> {
    (0..how_many).map(|n| read(bytes, at + n * width, width)).collect()
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
    #[inline]
    pub fn tag(&self) -> Tag {
        Tag::of(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{any_rate, rate};
    use crate::{Algorithm, Alignment};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_record_survives_its_bytes(
            rate in any_rate(), window in 0u64..1 << 47, counts in proptest::collection::vec(0..=MAX_COUNT, 61..80), over in 0u64..1 << 46, lasted in 0u64..1 << 39,
        ) {
            let mut record = Record { window: window, current: counts[0], ..Record::empty(rate.tag(), 0) };
            if record.tag.is_log() {
                record.current = 0;
                record.tail = counts.clone();
                record.tail.sort_by(|a, b| b.cmp(a));
                record.window = record.tail[0];
            } else {
                if !one_count(record.tag.kind(), record.tag) {
                    record.previous = counts[1];
                }
                for (to, from) in record.tail.iter_mut().zip(&counts[2..]) {
                    *to = *from;
                }
            }
            if rate.soft.is_some() && over > 0 {
                record.overrun = Overrun { since: over, last: over + lasted };
            }
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            let length = bytes.len();
            record.encode(&mut bytes);
            prop_assert_eq!(Record::decode_all(&bytes), Ok(vec![record.clone(), record.clone()]));
            for cut in 1..length {
                // What is cut off may be the whole of the last part.
                let cut = Record::decode_all(&bytes[..cut]);
                prop_assert!(cut == Err(RecordError::Truncated) || record.overrun.since > 0);
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
        Record::empty(rate(1, 60_000, Algorithm::SLIDING_WINDOW).tag(), 1).encode(&mut bytes);
        assert_eq!(bytes.len(), 14);
    }

    #[test]
    fn edits_of_the_period_or_the_algorithm_change_the_tag() {
        let windows = |n| Algorithm::SlidingWindowCounter {
            sub_windows: crate::SubWindows::new(n).unwrap(),
            bound: crate::Bound::Guaranteed,
        };
        let tags = [
            rate(1, 60_000, Algorithm::SLIDING_WINDOW).tag(),
            rate(1, 60_001, Algorithm::SLIDING_WINDOW).tag(),
            rate(1, 60_000, Algorithm::FIXED_WINDOW).tag(),
            rate(1, 60_000, Algorithm::FixedWindow(Alignment::Spread)).tag(),
            rate(1, 60_000, windows(60)).tag(),
            rate(1, 60_000, windows(30)).tag(),
        ];
        for (n, tag) in tags.iter().enumerate() {
            assert!(tag.get() & 7 == 0 && tag.get() < 1 << 48 && !tags[..n].contains(tag));
        }
        assert_eq!(rate(1, 60_000, windows(1)).tag(), tags[0], "the bound changes no record");
    }
}
