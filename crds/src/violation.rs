//! Problems of a policy.

use std::fmt;

/// Begins the message about a field that a schema does not have.
pub(crate) const UNKNOWN_FIELD: &str = "unknown field";

/// A problem of a policy: the field and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Path of the field, such as `spec.limits[0].rates[1].per`.
    pub path: String,
    /// The problem, and what is allowed.
    pub message: String,
    /// Its kind.
    pub kind: Kind,
}

/// The kind of a problem.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Kind {
    /// A field is wrong.
    #[default]
    Invalid,
    /// The namespace may not name a domain.
    DomainNotGranted,
}

impl Violation {
    /// Creates a violation of a field.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: shortened(message.into()), kind: Kind::Invalid }
    }
}

/// Leaves out the middle of a message that repeats a value of any length.
fn shortened(message: String) -> String {
    const LONGEST: usize = 2_000;
    if message.len() <= LONGEST {
        return message;
    }
    let begin = message.floor_char_boundary(LONGEST / 10);
    let end = message.floor_char_boundary(message.len() - LONGEST / 10);
    format!("{} ... {}", &message[..begin], &message[end..])
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}
