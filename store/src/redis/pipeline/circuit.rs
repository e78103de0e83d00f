//! The health of one server.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use crate::failure::{StoreFault, StoreHealth};

/// The health of one server. While it is failing, the circuit is open: operations fail immediately.
#[derive(Debug, Default)]
pub(crate) struct Circuit {
    /// 0: starting, 1: healthy, 2 and above: failing with a fault from [`FAULTS`].
    health: AtomicU8,
}

const FAULTS: [StoreFault; 6] = [
    StoreFault::Unreachable,
    StoreFault::Slow,
    StoreFault::Refused,
    StoreFault::ReadOnly,
    StoreFault::Nonsense,
    StoreFault::WrongType,
];

impl Circuit {
    pub(crate) fn health(&self) -> StoreHealth {
        match self.health.load(Relaxed) {
            0 => StoreHealth::Starting,
            1 => StoreHealth::Healthy,
            n => StoreHealth::Failing(
                FAULTS.get(usize::from(n) - 2).copied().unwrap_or(StoreFault::Unreachable),
            ),
        }
    }

    pub(super) fn set(&self, health: StoreHealth) {
        let n = match health {
            StoreHealth::Starting => 0,
            StoreHealth::Healthy => 1,
            StoreHealth::Failing(fault) => {
                2 + FAULTS.iter().position(|&known| known == fault).unwrap_or(0) as u8
            }
        };
        self.health.store(n, Relaxed);
    }

    /// Returns the fault that opened the circuit, if it is open.
    pub(crate) fn fault(&self) -> Option<StoreFault> {
        match self.health() {
            StoreHealth::Failing(fault) => Some(fault),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_health_is_read_back_as_it_was_set() {
        let circuit = Circuit::default();
        assert_eq!((circuit.health(), circuit.fault()), (StoreHealth::Starting, None));
        for fault in FAULTS {
            circuit.set(StoreHealth::Failing(fault));
            assert_eq!((circuit.health(), circuit.fault()), (StoreHealth::Failing(fault), Some(fault)));
        }
        circuit.set(StoreHealth::Healthy);
        assert_eq!((circuit.health(), circuit.fault()), (StoreHealth::Healthy, None));
    }
}
