//! A policy's verdict: the same code as `sluice check`, in the API server's form.

use serde_json::Value;
use sluice_crds::{Violation, validate as validate_policy};

/// How many violations one answer names.
const MOST: usize = 20;

/// What admission says of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// What is wrong; nothing if it may be.
    pub refused: Option<String>,
    /// What is legal and probably wrong.
    pub warnings: Vec<String>,
}

/// Judges an object.
#[must_use]
pub fn judge(object: &Value) -> Verdict {
    match validate_policy(object) {
        Ok(valid) => Verdict { refused: None, warnings: lines(&valid.warnings) },
        Err(violations) => Verdict { refused: Some(lines(&violations).join("; ")), warnings: Vec::new() },
    }
}

fn lines(violations: &[Violation]) -> Vec<String> {
    let mut lines: Vec<_> = violations.iter().take(MOST).map(ToString::to_string).collect();
    if violations.len() > MOST {
        lines.push(format!("and {} more", violations.len() - MOST));
    }
    lines
}
