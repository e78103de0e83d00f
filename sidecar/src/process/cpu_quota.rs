//! How many workers: the cgroup's CPU quota, rounded up.

use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;

/// Workers where there is no quota: a sidecar is a guest on its node.
const UNBOUNDED: usize = 2;

/// The number of workers for this process.
pub(crate) fn workers() -> usize {
    let there = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    quota(Path::new("/sys/fs/cgroup")).unwrap_or(UNBOUNDED).clamp(1, there.max(1))
}

/// The quota of cgroup v2 or v1, in whole CPUs.
fn quota(root: &Path) -> Option<usize> {
    let number = |file: &str| fs::read_to_string(root.join(file)).ok()?.trim().parse::<usize>().ok();
    let (quota, period) = match fs::read_to_string(root.join("cpu.max")) {
        Ok(text) => {
            let (quota, period) = text.trim().split_once(' ')?;
            (quota.parse().ok()?, period.parse().ok()?)
        }
        // A quota of -1 is none, and no number here.
        Err(_) => (number("cpu/cpu.cfs_quota_us")?, number("cpu/cpu.cfs_period_us")?),
    };
    (period > 0).then(|| quota.div_ceil(period))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_rounded_up_to_whole_cpus() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(quota(root.path()), None);
        fs::create_dir(root.path().join("cpu")).unwrap();
        fs::write(root.path().join("cpu/cpu.cfs_period_us"), "100000\n").unwrap();
        for (text, cpus) in [("-1\n", None), ("50000\n", Some(1)), ("250000\n", Some(3))] {
            fs::write(root.path().join("cpu/cpu.cfs_quota_us"), text).unwrap();
            assert_eq!(quota(root.path()), cpus, "v1: {text}");
        }
        for (text, cpus) in
            [("max 100000\n", None), ("10000 100000\n", Some(1)), ("200000 100000\n", Some(2)), ("1 0", None)]
        {
            fs::write(root.path().join("cpu.max"), text).unwrap();
            assert_eq!(quota(root.path()), cpus, "v2: {text}");
        }
    }
}
