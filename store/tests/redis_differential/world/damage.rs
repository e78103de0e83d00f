//! Damage to stored values.

use rand::Rng;
use rand::seq::IndexedRandom;
use sluice_limiter::{MAX_PERIOD_MS, Record, Tag};

use super::state::{World, encode};

/// The lowest 13 bits of valid tags, and of their neighbours: the algorithm and the number of sub-windows.
const KINDS: [u64; 30] = [
    512, 520, 528, 536, 984, 992, 1000, 1016, 1024, 1032, 1528, 1536, 1544, 2048, 2056, 2552, 2560, 2568,
    3064, 3072, 3080, 3584, 3592, 4096, 4104, 4608, 4616, 5120, 5632, 5640,
];

impl World {
    /// Damages a value. The result may still consist of valid records.
    pub(super) fn damage(&mut self, bytes: &mut Vec<u8>) {
        let length = bytes.len();
        match self.rng.random_range(0..16) {
            0 => bytes.truncate(self.rng.random_range(0..length)),
            1 => bytes.truncate(length - 1),
            2 => bytes.extend((0..self.rng.random_range(1..4)).map(|_| self.rng.random::<u8>())),
            3 => bytes[self.rng.random_range(0..6)] = self.rng.random(),
            4 => bytes[self.rng.random_range(0..length)] = self.rng.random(),
            5 => *bytes = self.wrong_tag(),
            // Another width of the counts.
            6 => bytes[0] = bytes[0] & !7 | self.rng.random_range(0..8),
            7 => self.change_width(bytes),
            8 => {
                let kind = *KINDS.choose(&mut self.rng).unwrap();
                change_tag(bytes, |tag| tag >> 13 << 13 | kind | tag & 7);
            }
            9 => {
                let period = *[0, 1, 2, MAX_PERIOD_MS, MAX_PERIOD_MS + 1].choose(&mut self.rng).unwrap();
                change_tag(bytes, |tag| period << 13 | tag & 0x1fff);
            }
            // The newest instant of a log, and the length of a list.
            10 => bytes[6] ^= 1,
            11 if length > 12 => bytes[12] = bytes[12].wrapping_add(*[1, 255].choose(&mut self.rng).unwrap()),
            // The lengths at which a script reads on or does not.
            13 | 14 => bytes.truncate(*[4, 5, 6, 11, 12, 13, 14, 17].choose(&mut self.rng).unwrap()),
            // Repeats bytes of the length of a short record at the end.
            12 => bytes.extend_from_within(length.saturating_sub(self.rng.random_range(13..19))..),
            _ => self.append_overrun(bytes),
        }
    }

    /// Changes the width of the counts of the last record, and their number of bytes with it.
    fn change_width(&mut self, bytes: &mut Vec<u8>) {
        let width = usize::from(bytes[0] & 7);
        if bytes.len() <= 12 || width == 0 || !(bytes.len() - 12).is_multiple_of(width) {
            return;
        }
        let counts = (bytes.len() - 12) / width;
        let other = self.rng.random_range(0..8);
        bytes[0] = bytes[0] & !7 | other;
        bytes.resize(12 + counts * usize::from(other), 0);
    }

    /// Appends the overrun of a record, or one that is damaged.
    fn append_overrun(&mut self, bytes: &mut Vec<u8>) {
        let mut tag = [0; 8];
        tag[..6].copy_from_slice(&bytes[..6]);
        let off = *[0, 0, 0, 1 << 13].choose(&mut self.rng).unwrap();
        let width = *[0, 1, 2, 3, 6, 7].choose(&mut self.rng).unwrap();
        let tag = (u64::from_le_bytes(tag) >> 13 << 13) + off + 4096 + width;
        let since = match self.rng.random_range(0..8) {
            0 => self.rng.random_range(1..3),
            _ => self.now / 1000 - self.rng.random_range(0..5000),
        };
        let overrun =
            [&tag.to_le_bytes()[..6], &since.to_le_bytes()[..6], &[1; 7][..width as usize]].concat();
        for _ in 0..self.rng.random_range(1..3) {
            bytes.extend_from_slice(&overrun);
        }
        if self.rng.random_bool(0.2) {
            bytes.truncate(bytes.len() - self.rng.random_range(1..14));
        }
    }

    /// Returns a record that is valid except for its period or its number of sub-windows.
    pub(super) fn wrong_tag(&mut self) -> Vec<u8> {
        let (period, sub_windows) = match self.rng.random_range(0..3) {
            0 => (0, 1),
            1 => (MAX_PERIOD_MS + self.rng.random_range(1..1000), 1),
            _ => {
                let sub_windows = *[2, 3, 58, 59, 60, 61, 63].choose(&mut self.rng).unwrap();
                (sub_windows * self.rng.random_range(1..100_000) + self.rng.random_range(0..2), sub_windows)
            }
        };
        let valid = Record::empty(Tag::from_number(sub_windows << 13 | 1 << 9 | sub_windows << 3), 1000);
        // The tag consists of the period, the algorithm and the number of sub-windows.
        encode(&[Record { tag: Tag::from_number(period << 13 | 1 << 9 | sub_windows << 3), ..valid }])
    }
}

fn change_tag(bytes: &mut [u8], change: impl Fn(u64) -> u64) {
    let mut tag = [0; 8];
    tag[..6].copy_from_slice(&bytes[..6]);
    let tag = change(u64::from_le_bytes(tag));
    bytes[..6].copy_from_slice(&tag.to_le_bytes()[..6]);
}
