//! The bytes of records.
//!
//! In a store a value is a sequence of records. Numbers are little-endian:
//!
//! | bytes | content |
//! |---|---|
//! | 6 | the [`Tag`], with the width of a count in its lowest 3 bits |
//! | 6 | `window`: the index of the newest window, or an instant in milliseconds |
//! | width x n | n counts of `width` bytes (1 to 6), newest first: one for each window, two for a bucket |
//!
//! Some kinds have a list instead of the counts, preceded by its length in 2 bytes; their width is 6:
//! - a log or a block: each instant in 6 bytes, newest first;
//! - holders: each with its number (6 bytes), its slots (4) and the expiry of its lease in milliseconds (6);
//! - reservations: each with its id (6), its cost (6), the instant of its charge in milliseconds (6) and the microseconds beyond
//!   (2), and its expiry in milliseconds (6).
//!
//! If a soft rate has gone over its number, a second record of kind `Overrun` and the same period follows.
//! Its `window` is [`Overrun::since`], its only count the milliseconds from there to [`Overrun::last`].

use super::kind::{Kind, MAX_DENIALS, MAX_HOLDERS, MAX_INSTANTS, MAX_RESERVATIONS};
use super::state::{Overrun, Record};
use super::tag::Tag;
use crate::number::{MAX_COUNT, MAX_PERIOD_MS};

/// Numbers of a holder in the tail, and their widths in bytes: number, slots, expiry.
const HOLDER: [usize; 3] = [6, 4, 6];
/// Numbers of a reservation: id, cost, instant, microseconds beyond, expiry.
const RESERVATION: [usize; 5] = [6, 6, 6, 2, 6];

/// Bytes that are not a record.
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
    /// Appends the record's bytes to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self.tag.kind() {
            Some(Kind::Log | Kind::Block) => self.encode_instants(out),
            Some(Kind::Holders) => self.encode_groups(out, HOLDER),
            Some(Kind::Reservations) => self.encode_groups(out, RESERVATION),
            kind => self.encode_counts(out, kind),
        }
    }

    fn encode_instants(&self, out: &mut Vec<u8>) {
        write_head(out, self.tag, 6, self.window);
        write(out, self.tail.len() as u64, 2);
        self.tail.iter().for_each(|&instant| write(out, instant, 6));
    }

    /// Encodes a list whose entries have numbers of these widths.
    fn encode_groups<const N: usize>(&self, out: &mut Vec<u8>, widths: [usize; N]) {
        write_head(out, self.tag, 6, self.window);
        write(out, (self.tail.len() / N) as u64, 2);
        for group in self.tail.chunks_exact(N) {
            let numbers = group.iter().zip(widths);
            numbers.for_each(|(&number, width)| write(out, number.min((1 << (8 * width)) - 1), width));
        }
    }

    fn encode_counts(&self, out: &mut Vec<u8>, kind: Option<Kind>) {
        let counts = [self.current.min(MAX_COUNT), self.previous.min(MAX_COUNT)];
        let counts = &counts[..if has_one_count(kind, self.tag) { 1 } else { 2 }];
        let largest = counts.iter().chain(&self.tail).copied().max().unwrap_or(0);
        let width = width_of(largest);
        write_head(out, self.tag, width, self.window);
        counts.iter().chain(&self.tail).for_each(|&count| write(out, count, width));
        if self.overrun.since > 0 {
            let lasted = self.overrun.last.saturating_sub(self.overrun.since).min(MAX_COUNT);
            let width = width_of(lasted);
            write_head(out, overrun_tag(self.tag), width, self.overrun.since);
            write(out, lasted, width);
        }
    }

    /// Reads the first record of `bytes`. Returns it and the number of bytes read.
    pub fn decode(bytes: &[u8]) -> Result<(Self, usize), RecordError> {
        let mut reader = Reader { bytes, at: 0 };
        let number = reader.read(6)?;
        let (width, tag) = ((number & 7) as usize, Tag::from_number(number & !7));
        let unknown = RecordError::UnknownTag(number);
        let kind = tag.kind().filter(|&kind| is_valid(kind, tag, width)).ok_or(unknown)?;
        let window = reader.read(6)?;
        let mut record =
            Self { tag, window, current: 0, previous: 0, overrun: Overrun::default(), tail: Vec::new() };
        match kind {
            Kind::Log => {
                let instants = reader.length(MAX_INSTANTS)?.ok_or(unknown)?;
                record.tail = reader.list(6, instants)?;
                if record.tail.first().is_some_and(|&newest| newest != window) {
                    return Err(RecordError::Disorder);
                }
            }
            Kind::Block => {
                let denials = reader.length(MAX_DENIALS)?.ok_or(unknown)?;
                record.tail = reader.list(6, denials)?;
            }
            Kind::Holders => {
                let holders = reader.length(MAX_HOLDERS)?.ok_or(unknown)?;
                record.tail = reader.groups(HOLDER, holders)?;
            }
            Kind::Reservations => {
                let open = reader.length(MAX_RESERVATIONS)?.ok_or(unknown)?;
                record.tail = reader.groups(RESERVATION, open)?;
            }
            _ => {
                record.current = reader.read(width)?;
                if !has_one_count(Some(kind), tag) {
                    record.previous = reader.read(width)?;
                }
                record.tail = reader.list(width, (tag.previous_windows() as usize).saturating_sub(1))?;
                if matches!(kind, Kind::Sliding | Kind::Clock | Kind::Spread | Kind::FirstRequest) {
                    record.overrun = reader.overrun(tag)?;
                }
            }
        }
        Ok((record, reader.at))
    }

    /// Reads every record of a value.
    pub fn decode_all(mut bytes: &[u8]) -> Result<Vec<Self>, RecordError> {
        let mut records = Vec::new();
        while !bytes.is_empty() {
            let (record, length) = Self::decode(bytes)?;
            records.push(record);
            bytes = &bytes[length..];
        }
        Ok(records)
    }
}

/// Reports whether a record of `kind` may have this tag and this width of a count.
fn is_valid(kind: Kind, tag: Tag, width: usize) -> bool {
    let variant = tag.variant();
    let is_variant_valid = match kind {
        Kind::Sliding => (1..=60).contains(&variant) && tag.period_millis().is_multiple_of(variant),
        Kind::Clock | Kind::Spread => variant == 0,
        Kind::Overrun => false,
        Kind::FirstRequest
        | Kind::Log
        | Kind::Arrival
        | Kind::WarmUp
        | Kind::Holders
        | Kind::Block
        | Kind::Reservations => true,
    };
    let is_width_valid = match kind {
        Kind::Log | Kind::Holders | Kind::Block | Kind::Reservations => width == 6,
        _ => (1..=6).contains(&width),
    };
    is_variant_valid && is_width_valid && (1..=MAX_PERIOD_MS).contains(&tag.period_millis())
}

fn has_one_count(kind: Option<Kind>, tag: Tag) -> bool {
    !matches!(kind, Some(Kind::Arrival | Kind::WarmUp)) && tag.previous_windows() == 0
}

/// Returns the tag of the overrun that follows a record.
fn overrun_tag(tag: Tag) -> Tag {
    Tag::new(Kind::Overrun, 0, tag.period_millis())
}

/// Returns the number of bytes that `largest` takes.
fn width_of(largest: u64) -> usize {
    (8 - largest.leading_zeros() as usize / 8).max(1)
}

fn write_head(out: &mut Vec<u8>, tag: Tag, width: usize, window: u64) {
    write(out, tag.get() | width as u64, 6);
    write(out, window, 6);
}

fn write(out: &mut Vec<u8>, number: u64, width: usize) {
    out.extend_from_slice(&number.to_le_bytes()[..width]);
}

/// Bytes, and the position of the next number.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn read(&mut self, width: usize) -> Result<u64, RecordError> {
        let bytes = self.bytes.get(self.at..self.at + width).ok_or(RecordError::Truncated)?;
        let mut number = [0; 8];
        number[..width].copy_from_slice(bytes);
        self.at += width;
        Ok(u64::from_le_bytes(number))
    }

    /// Reads the length of a list; `None` if it is above `most`.
    fn length(&mut self, most: usize) -> Result<Option<usize>, RecordError> {
        Ok(Some(self.read(2)? as usize).filter(|&length| length <= most))
    }

    fn list(&mut self, width: usize, length: usize) -> Result<Vec<u64>, RecordError> {
        (0..length).map(|_| self.read(width)).collect()
    }

    /// Reads a list of so many entries, which have numbers of these widths.
    fn groups<const N: usize>(&mut self, widths: [usize; N], length: usize) -> Result<Vec<u64>, RecordError> {
        (0..length).flat_map(|_| widths).map(|width| self.read(width)).collect()
    }

    /// Reads the overrun that follows a record with this tag, if there is one.
    fn overrun(&mut self, tag: Tag) -> Result<Overrun, RecordError> {
        let begin = self.at;
        match self.read(6) {
            Ok(number) if Tag::from_number(number & !7) == overrun_tag(tag) => {
                let width = (number & 7) as usize;
                if !(1..=6).contains(&width) {
                    return Err(RecordError::UnknownTag(number));
                }
                let since = self.read(6)?;
                Ok(Overrun { since, last: since + self.read(width)? })
            }
            _ => {
                self.at = begin;
                Ok(Overrun::default())
            }
        }
    }
}

#[cfg(test)]
mod tests;
