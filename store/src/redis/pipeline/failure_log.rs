//! Decides which failures of a server are logged. A server that fails again as soon as it works, or in several ways in turn,
//! must not fill the log.

use std::time::Duration;

use tokio::time::Instant;

use crate::redis::connect::FailureAt;

/// Interval in which a failure is logged once.
const INTERVAL: Duration = Duration::from_secs(10);

/// Maximum number of different failures that are logged in an interval.
const MOST: usize = 4;

/// The failures of one server that were logged.
#[derive(Debug, Default)]
pub(super) struct FailureLog {
    since: Option<Instant>,
    logged: Vec<FailureAt>,
    /// Number of failures since the last line.
    unlogged: u32,
}

impl FailureLog {
    /// Records a failure. Returns whether it is to be logged, and how many others were not logged since the last line.
    /// `lasts` says that the server has not worked since the last failure.
    pub(super) fn record(&mut self, failed: &FailureAt, lasts: bool, now: Instant) -> Option<u32> {
        let is_logged = self.logged.contains(failed);
        if lasts && is_logged {
            return None;
        }
        let is_over = self.since.is_none_or(|since| now.duration_since(since) >= INTERVAL);
        if is_over {
            self.since = Some(now);
            self.logged.clear();
        } else if is_logged || self.logged.len() >= MOST {
            self.unlogged = self.unlogged.saturating_add(1);
            return None;
        }
        self.logged.push(failed.clone());
        Some(std::mem::take(&mut self.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault_cause::FaultCause;

    #[test]
    fn a_failure_is_logged_once_an_interval_and_the_others_are_counted() {
        let failed = |cause: FaultCause| FailureAt { address: "h:1".into(), failure: cause.into() };
        let (ended, refused) = (failed(FaultCause::ConnectionLost), failed(FaultCause::ConnectionRefused));
        let (begin, mut log) = (Instant::now(), FailureLog::default());
        let at = |millis| begin + Duration::from_millis(millis);
        assert_eq!(log.record(&ended, false, at(0)), Some(0));
        assert_eq!(log.record(&refused, true, at(1)), Some(0));
        // It lasts for hours.
        for hours in 0..5 {
            assert_eq!(log.record(&refused, true, at(hours * 3_600_000)), None);
        }
        let mut log = FailureLog::default();
        let lines: Vec<_> =
            (0..100).filter_map(|n| Some((n, log.record(&ended, false, at(n * 250))?))).collect();
        assert_eq!(lines, [(0, 0), (40, 39), (80, 39)]);
        // Any number of different failures has few lines.
        let mut log = FailureLog::default();
        let other = |n: u64| FailureAt { address: format!("h:{n}"), failure: FaultCause::NoRoute.into() };
        assert_eq!((0..100).filter(|&n| log.record(&other(n), true, at(n)).is_some()).count(), MOST);
    }
}
