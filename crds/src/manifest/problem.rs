//! Problems in a file.

use std::fmt;

use serde::Serialize;

/// A problem in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Name of the file; empty if it has none.
    pub file: String,
    /// Line number, from 1; 0 if a file cannot be read.
    pub line: u64,
    /// Path of the field; empty if the text is not valid YAML or the problem concerns the whole file.
    pub path: String,
    /// The problem, and what is allowed.
    pub message: String,
}

impl Problem {
    pub(super) fn new(line: u64, path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { file: String::new(), line: line.max(1), path: path.into(), message: message.into() }
    }

    /// Adds the name of the file.
    pub(super) fn in_file(self, file: &str) -> Self {
        Self { file: file.to_owned(), ..self }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, path, message } = self;
        match (file.as_str(), line) {
            ("", line) => write!(f, "{line}: ")?,
            (file, 0) => write!(f, "{file}: ")?,
            (file, line) => write!(f, "{file}:{line}: ")?,
        }
        if path.is_empty() { f.write_str(message) } else { write!(f, "{path}: {message}") }
    }
}
