//! The place of a limit.

use sluice_config::KeySecret;

/// The position of a limit in a snapshot, and which of its rates apply to the request at hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LimitIndex {
    pub(crate) policy: u16,
    pub(crate) limit: u16,
    /// Index of the rates that apply to the request.
    pub(crate) rates: u16,
}

/// The hash of a scope, by which ids name limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ScopeHash(u64);

impl ScopeHash {
    pub(crate) fn new(hash: u64) -> Self {
        Self(hash)
    }

    pub(crate) fn get(self) -> u64 {
        self.0
    }

    pub(crate) fn of(scope: &str) -> Self {
        Self(KeySecret::new([0; 16]).code(SCOPE, &[scope.as_bytes()]))
    }
}

/// Keeps these hashes apart from keys, whose parts begin with other bytes.
const SCOPE: u8 = 252;
