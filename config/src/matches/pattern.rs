//! Regular expressions and templates.

use regex::bytes::{Regex, RegexBuilder};

use crate::nack::Nack;

/// Memory limit of a compiled regular expression, in bytes.
const REGEX_BYTES: usize = 1 << 18;

/// Memory limit of the cache that a regular expression fills while it matches, in bytes.
const REGEX_CACHE_BYTES: usize = 1 << 18;

/// Compiles a regular expression that must match a whole text. The engine does not backtrack, so matching
/// takes linear time for every text.
pub fn full_match_regex(pattern: &str, ignores_case: bool) -> Result<Regex, String> {
    RegexBuilder::new(&format!("^(?:{pattern})$"))
        .case_insensitive(ignores_case)
        // A decoded path may contain a line break.
        .dot_matches_new_line(true)
        .size_limit(REGEX_BYTES)
        .dfa_size_limit(REGEX_CACHE_BYTES)
        .build()
        .map_err(|error| match error {
            regex::Error::CompiledTooBig(limit) => format!("it needs more than {limit} bytes when compiled"),
            regex::Error::Syntax(text) => {
                text.lines().last().unwrap_or("syntax error").replace("error: ", "")
            }
            other => other.to_string(),
        })
}

/// Returns a regular expression for the paths of a template.
#[must_use]
pub fn template_regex(template: &str) -> String {
    let segments = template
        .split('/')
        .map(|segment| if is_parameter(segment) { "[^/]+".to_owned() } else { regex::escape(segment) });
    segments.collect::<Vec<_>>().join("/")
}

/// Reports whether a segment of a template stands for any text.
#[must_use]
pub fn is_parameter(segment: &str) -> bool {
    let name = segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    name.is_some_and(|name| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'))
}

pub(super) fn compile_regex(pattern: &str, ignores_case: bool) -> Result<Regex, Nack> {
    full_match_regex(pattern, ignores_case)
        .map_err(|error| Nack(format!("invalid regular expression {pattern:?}: {error}")))
}
