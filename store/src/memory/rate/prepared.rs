//! Values that the memory store derives from a limit once instead of for each check.

use sha2::{Digest as _, Sha256};
use sluice_limiter::Rate;

use super::bucket::Bucket;
use super::window::Window;
use crate::memory::cell::{CounterId, Layout};

/// Values that the memory store derives from a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PreparedLimit {
    scope: CounterId,
    /// Layout of the record in a cell, if the limit has one rate and its record fits.
    pub(in crate::memory) layout: Option<Layout>,
    /// The rate, if it is the only one and a plain window.
    pub(in crate::memory) window: Option<Window>,
    /// The rate, if it is the only one and a bucket.
    pub(in crate::memory) bucket: Option<Bucket>,
}

impl PreparedLimit {
    pub(crate) fn new(scope: &str, rates: &[Rate]) -> Self {
        // Authors of policies choose the names, and must not be able to make two scopes collide.
        let digest: [u8; 32] = Sha256::digest(scope.as_bytes()).into();
        let half = digest.iter().take(16).fold(0, |number, &byte| number << 8 | u128::from(byte));
        let one = if let [rate] = rates { Layout::of(rate.tag()).map(|layout| (rate, layout)) } else { None };
        Self {
            scope: CounterId::of_scope(half),
            layout: one.map(|(_, layout)| layout),
            window: one.and_then(|(rate, layout)| Window::of(rate, layout)),
            bucket: one.and_then(|(rate, layout)| Bucket::of(rate, layout)),
        }
    }

    /// Returns the id of the scope, which all versions of the limit share.
    pub(in crate::memory) fn scope(&self) -> CounterId {
        self.scope
    }

    /// Returns the id of the limit's counter for a key.
    #[inline]
    pub(in crate::memory) fn id(&self, key: u128) -> CounterId {
        self.scope.of_key(key)
    }
}
