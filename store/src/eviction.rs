//! Whether a server evicts counters when its memory is full.

use serde::{Deserialize, Serialize};

/// Whether a server evicts counters when its memory is full: then their clients begin again with nothing used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Eviction {
    /// No: `maxmemory-policy` is `noeviction`, or there is no `maxmemory`.
    Never,
    /// It is not known: the user has no right to INFO, or INFO does not say it.
    #[default]
    NotSeen,
    /// Yes, by `maxmemory-policy`.
    Possible,
}

impl Eviction {
    /// All values.
    const ALL: [Self; 3] = [Self::Never, Self::NotSeen, Self::Possible];

    /// Reads what `INFO memory` says.
    pub(crate) fn read(info: &str) -> Self {
        let field = |name: &str| {
            info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
        };
        // A proxy may leave fields out, or empty.
        match (field("maxmemory_policy"), field("maxmemory")) {
            (Some("noeviction"), _) => Self::Never,
            (_, Some("0")) => Self::Never,
            (None | Some(""), _) => Self::NotSeen,
            (Some(_), _) => Self::Possible,
        }
    }

    /// Returns the value with this number, as `self as u8` is one.
    pub(crate) fn from_number(number: u8) -> Self {
        Self::ALL.get(usize::from(number)).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_evicts_only_with_a_policy_and_a_maximum() {
        let read = |policy: &str, max: &str| {
            Eviction::read(&format!("# Memory\r\nmaxmemory:{max}\r\nmaxmemory_policy:{policy}\r\n"))
        };
        assert_eq!(read("noeviction", "100"), Eviction::Never);
        assert_eq!(read("volatile-lru", "100"), Eviction::Possible);
        assert_eq!(read("allkeys-lfu", "0"), Eviction::Never);
        assert_eq!(read("", "100"), Eviction::NotSeen);
        assert_eq!(Eviction::read(""), Eviction::NotSeen);
        for eviction in Eviction::ALL {
            assert_eq!(Eviction::from_number(eviction as u8), eviction);
        }
    }
}
