//! Upper bounds of the process: the number of workers, connections and keys, and the sizes of buffers. They
//! follow from the CPU quota and the memory limit of the cgroup, so that the sidecar survives even
//! if every client sends as much as it can.

use std::num::NonZeroUsize;

use crate::cgroup;

/// Maximum size of an HTTP/1 head, and of each buffer of an HTTP/1 connection, in bytes. Larger buffers are
/// no faster on a loopback.
pub const MAX_BUFFER: usize = 32 * 1024;

/// Memory that the process may use before it stops to read: a part of the cgroup's limit. The rest is for the bytes
/// that arrive before the excess is noticed, and for the kernel's buffers.
const BUDGET_FRACTION: u64 = 2;
/// The budget without a limit, in bytes.
const BUDGET_WITHOUT_LIMIT: u64 = 1 << 30;

/// Workers without a CPU quota: the sidecar is a guest on its node.
const WORKERS_WITHOUT_QUOTA: usize = 2;

/// Memory of one connection at worst, in bytes: buffers for reading and writing, towards the client and the application.
const CONNECTION_BYTES: u64 = 5 * MAX_BUFFER as u64;
/// Fewer connections would not suffice for ordinary clients.
const MIN_CONNECTIONS: u64 = 512;
/// Descriptors and ports run out beyond this.
const MAX_CONNECTIONS: u64 = 10_000;

/// Memory of one counter of the local quota, in bytes.
const LOCAL_KEY_BYTES: u64 = 500;
/// The local quota may use the memory limit divided by this.
const LOCAL_KEYS_FRACTION: u64 = 8;
const MIN_LOCAL_KEYS: u64 = 4_096;
const MAX_LOCAL_KEYS: u64 = 65_536;

/// Memory of one counter of a memory store, in bytes, of a limit with one or two rates.
const MEMORY_KEY_BYTES: u64 = 256;
/// A memory store may use the memory limit divided by this.
const MEMORY_KEYS_FRACTION: u64 = 4;
const MIN_MEMORY_KEYS: u64 = 16_384;
const MAX_MEMORY_KEYS: u64 = 1 << 20;

/// Returns the number of workers: the CPU quota, rounded up.
pub fn workers() -> usize {
    let cpus = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    cgroup::cpu_quota().unwrap_or(WORKERS_WITHOUT_QUOTA).clamp(1, cpus.max(1))
}

/// Returns the number of client connections that the memory has room for.
pub fn connections() -> usize {
    connections_in(cgroup::memory_limit())
}

/// Returns the number of connections that one peer may have of so many. One address may be all clients behind a proxy, or one that
/// floods: it leaves a part to others.
pub fn of_peer(connections: usize) -> usize {
    (connections * 3 / 4).max(1)
}

/// Returns the memory that the process may use before it stops to read, in bytes.
pub fn memory_budget() -> u64 {
    memory_budget_in(cgroup::memory_limit())
}

/// Returns the number of keys that the local quota may count.
pub fn local_keys() -> usize {
    local_keys_in(cgroup::memory_limit())
}

/// Returns the number of keys that a memory store may count.
pub fn memory_keys() -> usize {
    memory_keys_in(cgroup::memory_limit())
}

fn connections_in(memory: Option<u64>) -> usize {
    let connections = |bytes: u64| (bytes / CONNECTION_BYTES).clamp(MIN_CONNECTIONS, MAX_CONNECTIONS);
    memory.map_or(MAX_CONNECTIONS, connections) as usize
}

fn memory_budget_in(memory: Option<u64>) -> u64 {
    memory.map_or(BUDGET_WITHOUT_LIMIT, |bytes| bytes / BUDGET_FRACTION).min(BUDGET_WITHOUT_LIMIT)
}

fn local_keys_in(memory: Option<u64>) -> usize {
    let keys =
        |bytes: u64| (bytes / LOCAL_KEYS_FRACTION / LOCAL_KEY_BYTES).clamp(MIN_LOCAL_KEYS, MAX_LOCAL_KEYS);
    memory.map_or(MAX_LOCAL_KEYS, keys) as usize
}

fn memory_keys_in(memory: Option<u64>) -> usize {
    let keys = |bytes: u64| {
        (bytes / MEMORY_KEYS_FRACTION / MEMORY_KEY_BYTES).clamp(MIN_MEMORY_KEYS, MAX_MEMORY_KEYS)
    };
    memory.map_or(MAX_MEMORY_KEYS, keys) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_follow_from_the_memory_limit() {
        for (memory, connections) in [
            (None, 10_000),
            (Some(9_223_372_036_854_771_712), 10_000),
            (Some(8 << 30), 10_000),
            (Some(128 << 20), 819),
            (Some(16 << 20), 512),
        ] {
            assert_eq!(connections_in(memory), connections, "{memory:?}");
        }
    }

    #[test]
    fn the_memory_budget_follows_from_the_memory_limit() {
        for (memory, budget) in [
            (None, 1 << 30),
            (Some(u64::MAX), 1 << 30),
            (Some(128 << 20), 64 << 20),
            (Some(64 << 20), 32 << 20),
        ] {
            assert_eq!(memory_budget_in(memory), budget, "{memory:?}");
        }
    }

    #[test]
    fn the_keys_of_a_memory_store_take_a_quarter_of_the_memory_limit() {
        let keys = [None, Some(1 << 20), Some(128 << 20), Some(1 << 30)].map(memory_keys_in);
        assert_eq!(keys, [1 << 20, 16_384, 131_072, 1 << 20]);
    }

    #[test]
    fn local_keys_follow_from_the_memory_limit() {
        assert_eq!([None, Some(1 << 20), Some(64 << 20)].map(local_keys_in), [65_536, 4_096, 16_777]);
    }
}
