//! The limits of the process's cgroup, version 2 or 1.

use std::fs;
use std::path::Path;

const ROOT: &str = "/sys/fs/cgroup";

/// Returns the CPU quota in whole CPUs, rounded up, or `None` without a quota.
pub(crate) fn cpu_quota() -> Option<usize> {
    cpu_quota_in(Path::new(ROOT))
}

/// Returns the memory limit in bytes, or `None` without a limit.
pub(crate) fn memory_limit() -> Option<u64> {
    memory_limit_in(Path::new(ROOT))
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

fn memory_limit_in(root: &Path) -> Option<u64> {
    let file = ["memory.max", "memory/memory.limit_in_bytes"];
    let text = file.iter().find_map(|file| fs::read_to_string(root.join(file)).ok())?;
    // Without a limit, version 2 has "max" and version 1 a number larger than any memory.
    text.trim().parse().ok()
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
        assert_eq!(memory_limit_in(root.path()), None);
        fs::create_dir(root.path().join("memory")).unwrap();
        fs::write(root.path().join("memory/memory.limit_in_bytes"), "9223372036854771712\n").unwrap();
        assert_eq!(memory_limit_in(root.path()), Some(9_223_372_036_854_771_712));
        for (text, limit) in [("max\n", None), ("134217728\n", Some(134_217_728))] {
            fs::write(root.path().join("memory.max"), text).unwrap();
            assert_eq!(memory_limit_in(root.path()), limit, "{text}");
        }
    }
}
