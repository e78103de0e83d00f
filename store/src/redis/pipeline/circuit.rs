//! The health of one server.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use crate::eviction::Eviction;
use crate::failure::{StoreFault, StoreHealth};
use crate::fault_cause::FaultCause;

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
}
