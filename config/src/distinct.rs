//! The number of distinct clients, by a HyperLogLog sketch (<https://algo.inria.fr/flajolet/Publications/FlFuGaMe07.pdf>).
//! Sketches of several pods merge into that of all their clients. A client cannot be recognized in one.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD_NO_PAD as BASE64;

/// Number of bits of a hash that choose its register.
const INDEX_BITS: u32 = 10;
/// Number of registers. The standard error is 1.04 / sqrt(1024), 3.3 %.
const REGISTERS: usize = 1 << INDEX_BITS;

/// A sketch of a set of hashes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DistinctSketch(Box<[u8; REGISTERS]>);

impl Default for DistinctSketch {
    fn default() -> Self {
        Self(Box::new([0; REGISTERS]))
    }
}

impl DistinctSketch {
    /// Adds a hash whose bits are random.
    pub fn add(&mut self, hash: u128) {
        // The lower half: the upper one chooses shards and partitions elsewhere.
        let hash = hash as u64;
        let register = &mut self.0[(hash >> (64 - INDEX_BITS)) as usize];
        let rest = hash << INDEX_BITS | 1 << (INDEX_BITS - 1);
        *register = (*register).max(rest.leading_zeros() as u8 + 1);
    }

    /// Adds all hashes of another sketch.
    pub fn merge(&mut self, other: &Self) {
        self.0.iter_mut().zip(&*other.0).for_each(|(to, from)| *to = (*to).max(*from));
    }

    /// Reports whether nothing was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|&register| register == 0)
    }

    /// Estimates the number of distinct hashes.
    #[must_use]
    pub fn count(&self) -> u64 {
        let m = REGISTERS as f64;
        let sum: f64 = self.0.iter().map(|&register| 0.5f64.powi(register.into())).sum();
        let estimate = 0.7213 / (1.0 + 1.079 / m) * m * m / sum;
        let zeros = self.0.iter().filter(|&&register| register == 0).count();
        // Linear counting is exact enough for small sets. With 64 bits there are no collisions of large ones.
        let count = if estimate <= 2.5 * m && zeros > 0 { m * (m / zeros as f64).ln() } else { estimate };
        count.round() as u64
    }
}

/// A text is not a sketch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not the registers of a sketch")]
pub struct InvalidSketch;

/// Writes the registers in base64, each run of zeros as one byte.
impl Display for DistinctSketch {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (mut bytes, mut zeros) = (Vec::new(), 0u8);
        for &register in self.0.iter() {
            if register == 0 && zeros < 127 {
                zeros += 1;
                continue;
            }
            if zeros > 0 {
                bytes.push(0x80 | std::mem::take(&mut zeros));
            }
            match register {
                0 => zeros = 1,
                other => bytes.push(other),
            }
        }
        if zeros > 0 {
            bytes.push(0x80 | zeros);
        }
        f.write_str(&BASE64.encode(bytes))
    }
}

impl FromStr for DistinctSketch {
    type Err = InvalidSketch;

    fn from_str(text: &str) -> Result<Self, InvalidSketch> {
        let bytes = BASE64.decode(text).map_err(|_| InvalidSketch)?;
        let mut sketch = Self::default();
        let mut at = 0;
        for byte in bytes {
            if byte >= 0x80 {
                at += usize::from(byte & 0x7f);
                continue;
            }
            *sketch.0.get_mut(at).ok_or(InvalidSketch)? = byte.min(64);
            at += 1;
        }
        if at == REGISTERS { Ok(sketch) } else { Err(InvalidSketch) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the hash of a number, as random as that of a key.
    fn hash(n: u128) -> u128 {
        let mut hash = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
        for _ in 0..3 {
            hash = (hash ^ hash >> 61).wrapping_mul(0xda94_2042_e4dd_58b5_9e37_79b9_7f4a_7c15);
        }
        hash ^ hash >> 64
    }

    fn of(numbers: std::ops::Range<u128>) -> DistinctSketch {
        let mut sketch = DistinctSketch::default();
        numbers.for_each(|n| sketch.add(hash(n)));
        sketch
    }

    #[test]
    fn the_number_of_clients_is_right_within_a_few_percent() {
        for count in [0, 1, 10, 100, 1_000, 5_000, 20_000, 200_000] {
            let sketch = of(0..count);
            let (estimate, count) = (sketch.count() as f64, count as f64);
            // Three standard errors, and one client.
            assert!((estimate - count).abs() <= 0.1 * count + 1.0, "{estimate} of {count}");
        }
        let mut twice = of(0..1_000);
        let before = twice.clone();
        twice.merge(&of(0..1_000));
        assert_eq!(twice, before);
    }

    #[test]
    fn merged_sketches_are_that_of_all_clients() {
        let mut merged = of(0..3_000);
        merged.merge(&of(2_000..6_000));
        assert_eq!(merged, of(0..6_000));
    }

    #[test]
    fn a_sketch_survives_serialization_and_nothing_else_is_one() {
        for count in [0, 1, 7, 300, 100_000] {
            let sketch = of(0..count);
            let text = sketch.to_string();
            assert!(count > 7 || text.len() < 64, "{text}");
            assert_eq!(text.parse::<DistinctSketch>().unwrap(), sketch);
        }
        let long = BASE64.encode([1; REGISTERS + 1]);
        for text in ["", "_", "AAAA", "7", &long] {
            assert_eq!(text.parse::<DistinctSketch>(), Err(InvalidSketch), "{text}");
        }
    }
}
