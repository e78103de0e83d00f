//! How a limit treats a request, for operators.

use std::fmt::{self, Display, Formatter};

/// How a limit treats a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Explained {
    /// The limit counts the request, as in [`Identified::Counted`](super::Identified::Counted).
    Counts {
        /// Hash of the client's key.
        key: u128,
        /// Index of the rates that decide.
        rates: u16,
        /// The charge before the response is known.
        cost: u64,
        /// Why the client is not clear, if it has the counter of all such requests.
        nobody: Option<String>,
    },
    /// The limit denies the request without counting it, for this reason.
    Denies(String),
    /// The limit does not apply, for this reason.
    DoesNotApply(String),
}

/// The reason why a limit does not apply to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotApplied {
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
            Self::Unlimited => f.write_str("the tier or plan of the client admits everything"),
            Self::Preflight => f.write_str("the request is a preflight, which the limit does not count"),
            Self::KeyMissing => f.write_str("the request lacks a part of the key, and onMissing is Skip"),
        }
    }
}
