//! What happened, in numbers, and how the store is doing: atomics that the tasks write and anybody reads.

use std::future::Future;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::Instant;

use crate::failure::{StoreError, StoreFault, StoreHealth};

/// Upper bounds of the latency histogram in microseconds; one more bucket holds what is above the last.
pub const LATENCY_BOUNDS_US: [u64; 10] =
    [100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000];

/// A snapshot of the store's counters since its start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RedisMetrics {
    /// Calls sent that carried checks.
    pub calls: u64,
    /// Checks sent.
    pub checks: u64,
    /// Checks sent as a repetition of an equal one in the same call.
    pub merged: u64,
    /// Calls that were not answered within the latency budget.
    pub timeouts: u64,
    /// Calls that the server took up after their deadline, and so did not obey.
    pub late: u64,
    /// Checks dropped unsent, because their callers had gone or were about to.
    pub expired: u64,
    /// Calls that failed with an error.
    pub errors: u64,
    /// Connections made after the first, of each server.
    pub reconnects: u64,
    /// Calls that a cluster's server did not obey, as the keys are elsewhere or on their way; they were sent again.
    pub redirected: u64,
    /// Questions (checks, takes and settlements) that were not answered, by why, in the order of [`StoreError::ALL`].
    /// Each question counts, also those that the open circuit refuses.
    pub faults: [u64; StoreError::ALL.len()],
    /// Whether the circuit is open; in a cluster, that of any master.
    pub circuit_open: bool,
    /// Answered calls by how long they took; the bounds are [`LATENCY_BOUNDS_US`]. Not cumulative.
    pub latency_buckets: [u64; LATENCY_BOUNDS_US.len() + 1],
    /// The sum of what answered calls took, in microseconds.
    pub latency_sum_us: u64,
}

/// How one server is doing.
#[derive(Debug, Default)]
pub(super) struct Circuit {
    /// 0: starting, 1: healthy, 2 and up: failing with a fault of [`FAULTS`].
    health: AtomicU8,
}

/// What the tasks count.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) calls: AtomicU64,
    pub(super) checks: AtomicU64,
    pub(super) merged: AtomicU64,
    pub(super) timeouts: AtomicU64,
    pub(super) late: AtomicU64,
    pub(super) expired: AtomicU64,
    pub(super) errors: AtomicU64,
    pub(super) reconnects: AtomicU64,
    pub(super) redirected: AtomicU64,
    faults: [AtomicU64; StoreError::ALL.len()],
    latency_buckets: [AtomicU64; LATENCY_BOUNDS_US.len() + 1],
    latency_sum_us: AtomicU64,
}

const FAULTS: [StoreFault; 6] = [
    StoreFault::Unreachable,
    StoreFault::Slow,
    StoreFault::Refused,
    StoreFault::ReadOnly,
    StoreFault::Nonsense,
    StoreFault::WrongType,
];

/// Adds to a counter.
pub(super) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Relaxed);
}

impl Circuit {
    pub(super) fn health(&self) -> StoreHealth {
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

    /// Why the circuit is open, if it is.
    pub(super) fn fault(&self) -> Option<StoreFault> {
        match self.health() {
            StoreHealth::Failing(fault) => Some(fault),
            _ => None,
        }
    }
}

/// A question on its way.
struct PendingCheck<'a> {
    shared: &'a Shared,
    /// A caller who goes from now on goes because it took too long.
    nearly: Instant,
    answered: bool,
}

impl Drop for PendingCheck<'_> {
    fn drop(&mut self) {
        if !self.answered && Instant::now() >= self.nearly {
            self.shared.failed(&StoreError::Timeout);
        }
    }
}

impl Shared {
    /// Waits for the answer to a question, and counts it if there is none. A caller may have a deadline of its own, which
    /// is about this one, and let go before this one is over: that is no answer in time too.
    pub(super) async fn asked<T>(
        &self,
        deadline: Instant,
        budget: Duration,
        answer: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let nearly = deadline.checked_sub(budget / 10).unwrap_or(deadline);
        let mut asked = PendingCheck { shared: self, nearly, answered: false };
        let answer = answer.await;
        asked.answered = true;
        answer.inspect_err(|error| self.failed(error))
    }

    fn failed(&self, error: &StoreError) {
        let place = StoreError::ALL.iter().position(|known| known == error);
        if let Some(count) = place.and_then(|at| self.faults.get(at)) {
            add(count, 1);
        }
    }

    pub(super) fn took(&self, latency: Duration) {
        let micros = latency.as_micros() as u64;
        let bucket = LATENCY_BOUNDS_US.partition_point(|&bound| bound < micros);
        self.latency_buckets[bucket].fetch_add(1, Relaxed);
        self.latency_sum_us.fetch_add(micros, Relaxed);
    }

    pub(super) fn metrics(&self, health: StoreHealth) -> RedisMetrics {
        RedisMetrics {
            calls: self.calls.load(Relaxed),
            checks: self.checks.load(Relaxed),
            merged: self.merged.load(Relaxed),
            timeouts: self.timeouts.load(Relaxed),
            late: self.late.load(Relaxed),
            expired: self.expired.load(Relaxed),
            errors: self.errors.load(Relaxed),
            reconnects: self.reconnects.load(Relaxed),
            redirected: self.redirected.load(Relaxed),
            faults: std::array::from_fn(|n| self.faults[n].load(Relaxed)),
            circuit_open: matches!(health, StoreHealth::Failing(_)),
            latency_buckets: std::array::from_fn(|n| self.latency_buckets[n].load(Relaxed)),
            latency_sum_us: self.latency_sum_us.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_survives_its_byte() {
        let circuit = Circuit::default();
        assert_eq!((circuit.health(), circuit.fault()), (StoreHealth::Starting, None));
        for fault in FAULTS {
            circuit.set(StoreHealth::Failing(fault));
            assert_eq!((circuit.health(), circuit.fault()), (StoreHealth::Failing(fault), Some(fault)));
        }
        circuit.set(StoreHealth::Healthy);
        assert_eq!((circuit.health(), circuit.fault()), (StoreHealth::Healthy, None));
    }

    #[test]
    fn a_latency_falls_into_the_bucket_of_its_bound() {
        let shared = Shared::default();
        for micros in [0, 100, 101, 100_000, 100_001, 9_000_000] {
            shared.took(Duration::from_micros(micros));
        }
        assert_eq!(shared.metrics(StoreHealth::Healthy).latency_buckets, [2, 1, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
    }

    /// How often a question was not answered for this reason.
    fn count(shared: &Shared, error: &StoreError) -> u64 {
        let place = StoreError::ALL.iter().position(|known| known == error).unwrap();
        shared.metrics(StoreHealth::Healthy).faults[place]
    }

    #[tokio::test]
    async fn each_error_is_counted_by_itself_and_an_answer_is_not() {
        let shared = Shared::default();
        let (deadline, budget) = (Instant::now() + Duration::from_secs(10), Duration::from_secs(10));
        for (n, error) in StoreError::ALL.iter().enumerate() {
            for _ in 0..=n {
                let told = shared.asked::<()>(deadline, budget, async { Err(error.clone()) }).await;
                assert_eq!(told, Err(error.clone()));
            }
        }
        assert_eq!(shared.asked(deadline, budget, async { Ok(7) }).await, Ok(7));
        assert_eq!(shared.metrics(StoreHealth::Healthy).faults, [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_who_goes_at_the_deadline_counts_as_a_timeout_and_one_who_goes_before_does_not() {
        let shared = Shared::default();
        for (millis, timeouts) in [(500, 0), (950, 1), (1000, 2)] {
            let budget = Duration::from_secs(1);
            let never = shared.asked::<()>(Instant::now() + budget, budget, std::future::pending());
            assert!(tokio::time::timeout(Duration::from_millis(millis), never).await.is_err());
            assert_eq!(count(&shared, &StoreError::Timeout), timeouts, "after {millis} ms");
        }
    }
}
