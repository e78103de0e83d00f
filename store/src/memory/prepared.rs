//! What the memory store needs to know of a limit and would otherwise have to find out for each check.

use sha2::{Digest as _, Sha256};
use sluice_limiter::Rate;

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
    /// Whether a denied check changes a counter.
    pub(super) counts_denied: bool,
}

impl Prepared {
    pub(crate) fn new(scope: &str, rates: &[Rate]) -> Self {
        // Whoever writes policies chooses names: two scopes must not collide on purpose.
        let digest: [u8; 32] = Sha256::digest(scope.as_bytes()).into();
        let half = digest.iter().take(16).fold(0, |number, &byte| number << 8 | u128::from(byte));
        let layout = match rates {
            [rate] => Layout::of(rate.tag()),
            _ => None,
        };
        let window = match rates {
            [rate] => layout.and_then(|layout| Window::of(rate, layout)),
            _ => None,
        };
        Self {
            scope: Id::of_scope(half),
            layout,
            window,
            counts_denied: rates.iter().any(Rate::counts_denied),
        }
    }

    #[inline]
    pub(super) fn id(&self, key: u128) -> Id {
        self.scope.of_key(key)
    }
}
