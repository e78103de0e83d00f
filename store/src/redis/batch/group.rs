//! Which operations may share a script call.

use crate::check::{KeyHash, LimitSpec};

/// Operations that may share a script call: in a cluster those on the keys of one hash slot, or on one key
/// while that hash slot is moving. Groups are ordered by hash slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BatchGroup(u64);

impl BatchGroup {
    /// The single group of a server without hash slots.
    pub(crate) const ALL: Self = Self(0);

    /// All keys of a hash slot.
    pub(crate) fn of_slot(slot: u16) -> Self {
        Self(u64::from(slot) << 48)
    }

    /// One key of a hash slot. Other keys may by chance have the same group.
    pub(crate) fn of_key(slot: u16, limit: &LimitSpec, key: KeyHash) -> Self {
        let scope = limit
            .scope
            .bytes()
            .fold(key.0 as u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        Self(u64::from(slot) << 48 | scope >> 16)
    }

    /// Returns the hash slot.
    pub(crate) fn slot(self) -> u16 {
        (self.0 >> 48) as u16
    }
}
