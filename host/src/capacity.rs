//! Upper bounds of the process: the number of workers, connections and keys, and the sizes of buffers. They
//! follow from the CPU quota and the memory limit of the cgroup, version 2 or 1, so that the sidecar survives even
//! if every client sends as much as it can.

use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;

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
    cpu_quota().unwrap_or(WORKERS_WITHOUT_QUOTA).clamp(1, cpus.max(1))
}

/// Returns the number of client connections that the memory has room for.
pub fn connections() -> usize {
    connections_in(memory_limit())
}

/// Returns the number of connections that one peer may have of so many. One address may be all clients behind a proxy, or one that
/// floods: it leaves a part to others.
pub fn of_peer(connections: usize) -> usize {
    (connections * 3 / 4).max(1)
}

/// Returns the memory that the process may use before it stops to read, in bytes.
pub fn memory_budget() -> u64 {
    memory_budget_in(memory_limit())
}

/// Returns the number of keys that the local quota may count.
pub fn local_keys() -> usize {
    local_keys_in(memory_limit())
}

/// Returns the number of keys that a memory store may count.
pub fn memory_keys() -> usize {
    memory_keys_in(memory_limit())
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

const ROOT: &str = "/sys/fs/cgroup";

/// Returns the CPU quota in whole CPUs, rounded up, or `None` without a quota.
pub fn cpu_quota() -> Option<usize> {
    cpu_quota_in(Path::new(ROOT))
}

/// Returns the memory limit in bytes, or `None` without a limit.
pub fn memory_limit() -> Option<u64> {
    let membership = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    memory_limit_in(Path::new(ROOT), &membership)
}

fn cpu_quota_in(root: &Path) -> Option<usize> {
    let number = |file: &str| fs::read_to_string(root.join(file)).ok()?.trim().parse::<usize>().ok();
    let (quota, period) = match fs::read_to_string(root.join("cpu.max")) {
        Ok(text) => {
            let (quota, period) = text.trim().split_once(' ')?;
            (quota.parse().ok()?, period.parse().ok()?)
        }
        // Version 1 has the quota -1 for none, which does not parse here.
        Err(_) => (number("cpu/cpu.cfs_quota_us")?, number("cpu/cpu.cfs_period_us")?),
    };
    (period > 0).then(|| quota.div_ceil(period))
}

/// Returns the lowest limit of the process's cgroup and its ancestors. In a container the root is the container's own
/// cgroup, and the path of the membership may be one of the host that does not exist here.
fn memory_limit_in(root: &Path, membership: &str) -> Option<u64> {
    let lines = membership.lines().filter_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let path = Path::new(path.trim_start_matches('/'));
        if controllers.is_empty() {
            Some((root.to_owned(), "memory.max", path))
        } else {
            let has_memory = controllers.split(',').any(|controller| controller == "memory");
            has_memory.then(|| (root.join("memory"), "memory.limit_in_bytes", path))
        }
    });
    let here = Path::new("");
    let roots = [(root.to_owned(), "memory.max", here), (root.join("memory"), "memory.limit_in_bytes", here)];
    lines
        .chain(roots)
        .flat_map(|(root, file, path)| {
            path.ancestors().map(|path| root.join(path).join(file)).collect::<Vec<_>>()
        })
        // Without a limit, version 2 has "max" and version 1 a number larger than any memory.
        .filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok())
        .min()
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

    #[test]
    fn a_cpu_quota_is_rounded_up_to_whole_cpus() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(cpu_quota_in(root.path()), None);
        fs::create_dir(root.path().join("cpu")).unwrap();
        fs::write(root.path().join("cpu/cpu.cfs_period_us"), "100000\n").unwrap();
        for (text, cpus) in [("-1\n", None), ("50000\n", Some(1)), ("250000\n", Some(3))] {
            fs::write(root.path().join("cpu/cpu.cfs_quota_us"), text).unwrap();
            assert_eq!(cpu_quota_in(root.path()), cpus, "v1: {text}");
        }
        for (text, cpus) in
            [("max 100000\n", None), ("10000 100000\n", Some(1)), ("200000 100000\n", Some(2)), ("1 0", None)]
        {
            fs::write(root.path().join("cpu.max"), text).unwrap();
            assert_eq!(cpu_quota_in(root.path()), cpus, "v2: {text}");
        }
    }

    #[test]
    fn a_memory_limit_is_read_from_both_versions() {
        let root = tempfile::tempdir().unwrap();
        let limit = |membership| memory_limit_in(root.path(), membership);
        let write = |file: &str, text: &str| {
            let file = root.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        assert_eq!(limit(""), None);
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(limit(""), Some(9_223_372_036_854_771_712));
        write("memory/pod/a/memory.limit_in_bytes", "1000\n");
        let membership = "5:cpu,cpuacct:/x\n4:memory:/pod/a/b\n";
        assert_eq!(limit(membership), Some(1000));
        write("memory/pod/memory.limit_in_bytes", "900\n");
        assert_eq!(limit(membership), Some(900));
        assert_eq!(limit("4:memory:/of/the/host\n"), Some(9_223_372_036_854_771_712));
        for (text, expected) in [("max\n", 9_223_372_036_854_771_712), ("134217728\n", 134_217_728)] {
            write("memory.max", text);
            assert_eq!(limit(""), Some(expected), "{text}");
        }
        write("service/memory.max", "5000\n");
        assert_eq!(limit("0::/service\n"), Some(5000));
    }
}
