//! The log filter of sidecars, as the installation or a pod sets it.

use std::fmt::{Display, Formatter};
use std::str::FromStr;

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
/// Maximum length of a filter, in bytes.
const MAX_LENGTH: usize = 200;
/// Maximum length of a filter in an error, in characters.
const MAX_SHOWN: usize = 40;
/// Part that is added to a level alone: these warnings are about what clients send, and any client can cause them.
const QUIET: &str = "h2=error";

/// A filter that a sidecar accepts: a level, or levels by module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFilter(String);

/// A text that is not a filter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a log filter: write off, error, warn, info, debug or trace, or levels by module such as \
     info,sluice_store=debug"
)]
pub struct InvalidLogFilter(String);

impl FromStr for LogFilter {
    type Err = InvalidLogFilter;

    // Stricter than the filter of `tracing`, which takes a mistyped level for the name of a module.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_module = |name: &str| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
            !name.is_empty() && name.chars().all(allowed)
        };
        let is_directive = |item: &str| match item.split_once('=') {
            Some((module, level)) => is_module(module) && LEVELS.contains(&level),
            None => LEVELS.contains(&item),
        };
        if text.len() > MAX_LENGTH || !text.split(',').all(is_directive) {
            return Err(InvalidLogFilter(text.chars().take(MAX_SHOWN).collect()));
        }
        let quiet = ["warn", "info"].contains(&text);
        Ok(Self(if quiet { format!("{text},{QUIET}") } else { text.to_owned() }))
    }
}

impl Display for LogFilter {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_a_level_or_levels_by_module() {
        let filter = |text: &str| text.parse::<LogFilter>().map(|filter| filter.to_string());
        assert_eq!(filter("debug"), Ok("debug".into()));
        assert_eq!(filter("info,sluice_store=debug"), Ok("info,sluice_store=debug".into()));
        assert_eq!(filter("warn"), Ok("warn,h2=error".into()), "no noise that any client can cause");
        for bad in
            ["", "inof", "Info", "info,", "=info", "info=", "a b=info", "[span]=info", &"a".repeat(300)]
        {
            assert!(filter(bad).is_err(), "{bad}");
        }
    }
}
