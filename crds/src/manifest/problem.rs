//! Problems in a file.

use std::fmt;

/// A problem in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Line number, from 1.
    pub line: u64,
    /// Path of the field; empty if the text is not valid YAML or the problem concerns the whole file.
    pub path: String,
    /// The problem, and what is allowed.
    pub message: String,
}

impl Problem {
    pub(super) fn new(line: u64, path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { line: line.max(1), path: path.into(), message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() {
            write!(f, "{}: {}", self.line, self.message)
        } else {
            write!(f, "{}: {}: {}", self.line, self.path, self.message)
        }
    }
}
