//! How many connections: what the cgroup's memory has room for when every client is at its worst. And how many keys may be
//! counted here.

use std::fs;
use std::path::Path;

/// What one connection may hold: a buffer on the client's side and one on the application's
/// ([`crate::upstream::pool::MAX_BUFFER`]).
const PER_CONNECTION: u64 = 2 * crate::upstream::pool::MAX_BUFFER as u64;
/// Fewer would stop honest clients, more than there are descriptors and ports for.
const FEWEST: u64 = 512;
const MOST: u64 = 10_000;

/// What a key takes that is counted in this process while the store does not answer, and which part of the memory may be
/// used for that.
const PER_KEY: u64 = 500;
const PART_FOR_KEYS: u64 = 8;

/// How many keys may be counted in this process while the store does not answer.
pub(crate) fn shared_keys() -> usize {
    shared_keys_in(limit(Path::new("/sys/fs/cgroup")))
}

fn shared_keys_in(limit: Option<u64>) -> usize {
    limit.map_or(65_536, |bytes| (bytes / PART_FOR_KEYS / PER_KEY).clamp(4_096, 65_536)) as usize
}

/// The number of connections for this process.
pub(crate) fn connections() -> usize {
    connections_in(limit(Path::new("/sys/fs/cgroup")))
}

fn connections_in(limit: Option<u64>) -> usize {
    limit.map_or(MOST, |bytes| (bytes / PER_CONNECTION).clamp(FEWEST, MOST)) as usize
}

/// The memory limit of cgroup v2 or v1, in bytes.
fn limit(root: &Path) -> Option<u64> {
    let file = ["memory.max", "memory/memory.limit_in_bytes"];
    let text = file.iter().find_map(|file| fs::read_to_string(root.join(file)).ok())?;
    // v2 says "max" where there is none; v1 a number larger than any memory.
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_follow_from_the_memory_limit() {
        let root = tempfile::tempdir().unwrap();
        let now = || connections_in(limit(root.path()));
        assert_eq!(now(), 10_000, "no limit");
        fs::create_dir(root.path().join("memory")).unwrap();
        fs::write(root.path().join("memory/memory.limit_in_bytes"), "9223372036854771712\n").unwrap();
        assert_eq!(now(), 10_000);
        for (text, connections) in
            [("max\n", 10_000), ("134217728\n", 2_048), ("16777216\n", 512), ("8589934592\n", 10_000)]
        {
            fs::write(root.path().join("memory.max"), text).unwrap();
            assert_eq!(now(), connections, "{text}");
        }
        assert_eq!([None, Some(1 << 20), Some(64 << 20)].map(shared_keys_in), [65_536, 4_096, 16_777]);
    }
}
