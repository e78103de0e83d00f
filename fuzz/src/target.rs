//! The form of a check.

/// A check of arbitrary bytes.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Name of the check.
    pub name: &'static str,
    /// Panics if a promise does not hold.
    pub check: fn(&[u8]),
    /// Inputs to begin with.
    pub seeds: &'static [&'static str],
    /// Pieces that random changes insert.
    pub words: &'static [&'static str],
}
