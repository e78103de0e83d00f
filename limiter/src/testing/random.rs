//! Reproducible random numbers.

/// A generator that returns the same numbers in every run: xorshift64* (Vigna, 2016).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Returns a number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % end
    }
}
