//! Faults behind the limits in responses. A client must not learn that limits are off, nor where the application listens: both help
//! only those who look for a moment, or a way, to get past the limits.

use http::{HeaderMap, HeaderName, HeaderValue};

/// Names the store's failure on a response that was decided without the store.
const STORE_FAILURE: HeaderName = HeaderName::from_static("x-sluice-store-failure");

/// How much responses tell about faults behind the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reveal {
    /// Nothing, because anybody may read them.
    Nothing,
    /// Faults of the store and of the application.
    Faults,
}

impl Reveal {
    /// Adds the header that names a failure of the store.
    pub(crate) fn store_failure(self, fault: &'static str, headers: &mut HeaderMap) {
        match self {
            Self::Nothing => {}
            Self::Faults => drop(headers.insert(STORE_FAILURE, HeaderValue::from_static(fault))),
        }
    }

    /// Returns the explanation in a response: the public one, or the other with the fault.
    #[must_use]
    pub fn detail(self, public: &str, with_fault: impl FnOnce() -> String) -> String {
        match self {
            Self::Nothing => public.to_owned(),
            Self::Faults => with_fault(),
        }
    }
}
