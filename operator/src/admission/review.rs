//! The review of a policy, with the same validation as `sluice check`.

use serde_json::Value;
use sluice_crds::{Installation, Violation, compile};

/// Maximum number of violations, or warnings, in one response.
const MAX_LINES: usize = 20;

/// The result of reviewing a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Review {
    /// The violations of an invalid policy as one text, or `None` if the policy is valid.
    pub rejection: Option<String>,
    /// Warnings about settings that are valid but probably wrong.
    pub warnings: Vec<String>,
}

/// Reviews a policy object for an installation.
#[must_use]
pub fn review(object: &Value, installation: &Installation) -> Review {
    match compile(object, installation) {
        Ok(compiled) => Review { rejection: None, warnings: lines(&compiled.warnings) },
        Err(violations) => Review { rejection: Some(lines(&violations).join("; ")), warnings: Vec::new() },
    }
}

fn lines(violations: &[Violation]) -> Vec<String> {
    let mut lines: Vec<_> = violations.iter().take(MAX_LINES).map(ToString::to_string).collect();
    if violations.len() > MAX_LINES {
        lines.push(format!("and {} more", violations.len() - MAX_LINES));
    }
    lines
}
