//! What the memory store needs to know of a limit and would otherwise have to find out for each check.

use sha2::{Digest as _, Sha256};
use sluice_limiter::Rate;

use super::bucket::Bucket;
use super::entry::{Id, Layout};
use super::window::Window;

/// Made once with a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Prepared {
    scope: Id,
    /// How the record stands in an entry, if there is one rate and it does.
    pub(super) layout: Option<Layout>,
    /// The rate, if there is one and it is a plain window.
    pub(super) window: Option<Window>,
    /// The rate, if there is one and it is a bucket.
    pub(super) bucket: Option<Bucket>,
    /// Whether a denied check changes a counter.
    pub(super) counts_denied: bool,
}

impl Prepared {
    pub(crate) fn new(scope: &str, rates: &[Rate]) -> Self {
        // Whoever writes policies chooses names: two scopes must not collide on purpose.
        let digest: [u8; 32] = Sha256::digest(scope.as_bytes()).into();
        let half = digest.iter().take(16).fold(0, |number, &byte| number << 8 | u128::from(byte));
        let one = if let [rate] = rates { Layout::of(rate.tag()).map(|layout| (rate, layout)) } else { None };
        Self {
            scope: Id::of_scope(half),
            layout: one.map(|(_, layout)| layout),
            window: one.and_then(|(rate, layout)| Window::of(rate, layout)),
            bucket: one.and_then(|(rate, layout)| Bucket::of(rate, layout)),
            counts_denied: rates.iter().any(Rate::counts_denied),
        }
    }

    #[inline]
    pub(super) fn id(&self, key: u128) -> Id {
        self.scope.of_key(key)
    }
}
