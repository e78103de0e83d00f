//! The limits of the process's cgroup, version 2 or 1.

use std::fs;
use std::path::Path;

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
