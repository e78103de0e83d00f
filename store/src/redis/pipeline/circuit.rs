//! The health of one server, and which of its failures are logged. One that fails again as soon as it works, or in several ways in turn,
//! must not fill the log.

use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::time::Instant;

use crate::eviction::Eviction;
use crate::failure::{StoreFault, StoreHealth};
use crate::fault_cause::FaultCause;
use crate::redis::connect::FailureAt;

/// The health of one server. While it is failing, the circuit is open: operations fail immediately.
#[derive(Debug)]
pub(crate) struct Circuit {
    /// 0: starting, 1: healthy, 2 and above: failing for a cause from [`FaultCause::ALL`].
    health: AtomicU8,
    /// Whether the server evicts counters, from [`Eviction`].
    eviction: AtomicU8,
    /// From [`Info`].
    info: AtomicU8,
}

/// Whether the server at the address answers INFO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Info {
    /// It has not been asked.
    Unasked,
    /// It has answered.
    Answered,
    /// It has not answered, or has ended the connection, as some proxies do. It is not asked again.
    EndsConnections,
}

impl Default for Circuit {
    fn default() -> Self {
        Self {
            health: AtomicU8::new(0),
            eviction: AtomicU8::new(Eviction::NotSeen as u8),
            info: AtomicU8::new(Info::Unasked as u8),
        }
    }
}

impl Circuit {
    pub(crate) fn health(&self) -> StoreHealth {
        match (self.health.load(Relaxed), self.cause()) {
            (0, _) => StoreHealth::Starting,
            (_, None) => StoreHealth::Healthy,
            (_, Some(cause)) => StoreHealth::Failing(cause.fault()),
        }
    }

    /// Returns whether the server evicts counters.
    pub(crate) fn eviction(&self) -> Eviction {
        Eviction::from_number(self.eviction.load(Relaxed))
    }

    pub(super) fn set_eviction(&self, eviction: Eviction) {
        self.eviction.store(eviction as u8, Relaxed);
    }

    /// Returns whether the server answers INFO.
    pub(super) fn info(&self) -> Info {
        match self.info.load(Relaxed) {
            0 => Info::Unasked,
            1 => Info::Answered,
            _ => Info::EndsConnections,
        }
    }

    /// Sets whether the server answers INFO. Where it does not, nothing is known about evictions.
    pub(super) fn set_info(&self, info: Info) {
        self.info.store(info as u8, Relaxed);
        if info != Info::Answered {
            self.set_eviction(Eviction::NotSeen);
        }
    }

    /// Closes the circuit: the server works.
    pub(super) fn close(&self) {
        self.health.store(1, Relaxed);
    }

    /// Opens the circuit.
    pub(super) fn open(&self, cause: FaultCause) {
        self.health.store(2 + cause as u8, Relaxed);
    }

    /// Returns what opened the circuit, if it is open.
    pub(crate) fn cause(&self) -> Option<FaultCause> {
        let at = usize::from(self.health.load(Relaxed)).checked_sub(2)?;
        FaultCause::ALL.get(at).copied()
    }

    /// Returns the fault that opened the circuit, if it is open.
    pub(crate) fn fault(&self) -> Option<StoreFault> {
        self.cause().map(FaultCause::fault)
    }
}

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

    #[test]
    fn every_health_is_read_back_as_it_was_set() {
        let circuit = Circuit::default();
        assert_eq!((circuit.health(), circuit.cause()), (StoreHealth::Starting, None));
        for cause in FaultCause::ALL {
            circuit.open(cause);
            let failing = StoreHealth::Failing(cause.fault());
            assert_eq!((circuit.health(), circuit.cause()), (failing, Some(cause)));
            assert_eq!(circuit.fault(), Some(cause.fault()));
        }
        circuit.close();
        assert_eq!((circuit.health(), circuit.cause(), circuit.fault()), (StoreHealth::Healthy, None, None));
    }

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
