//! Why a limit does not apply to a request.

use std::fmt::{self, Display, Formatter};

/// The reason why a limit does not apply to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotApplied {
    /// No entry of `matches` applies.
    NotMatched,
    /// The entry of `except` at this position applies.
    Excepted(usize),
    /// The condition is false.
    When,
    /// An override, a plan or a tier admits everything.
    Unlimited,
    /// The request is a preflight of a browser.
    Preflight,
    /// The request lacks a part of the key.
    KeyMissing,
}

impl Display for NotApplied {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotMatched => f.write_str("no entry of matches applies"),
            Self::Excepted(position) => write!(f, "except[{position}] applies"),
            Self::When => f.write_str("when is false"),
            Self::Unlimited => f.write_str("the tier or plan of the client is unlimited"),
            Self::Preflight => f.write_str("the request is a preflight, which the limit does not count"),
            Self::KeyMissing => f.write_str("the request lacks a part of the key, and onMissing is Skip"),
        }
    }
}
