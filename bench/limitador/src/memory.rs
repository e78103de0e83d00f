//! The storage in memory.

use std::hint::black_box;
use std::ops::Range;
use std::str::FromStr;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use limitador::RateLimiter;
use limitador::counter::Counter;
use limitador::limit::{Context, Limit, Namespace};
use limitador::storage::in_memory::InMemoryStorage;
use limitador::storage::{Authorization, CounterStorage};

use crate::limits::{NAMESPACE, context, counters, limit, to_anyhow};
use crate::random::Random;

/// Number of checks that are prepared together. A context takes some kilobytes.
const CHUNK: u64 = 10_000;

/// The layer of the crate that is called.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Way {
    /// The storage, with prepared counters.
    Storage,
    /// The rate limiter, with prepared contexts.
    Limiter,
}

impl FromStr for Way {
    type Err = anyhow::Error;

    fn from_str(word: &str) -> anyhow::Result<Self> {
        match word {
            "storage" => Ok(Self::Storage),
            "limiter" => Ok(Self::Limiter),
            _ => Err(anyhow::anyhow!("expected storage or limiter, not {word:?}")),
        }
    }
}

/// A storage that holds the counters of all clients, and a rate limiter with an empty storage of its own.
pub(crate) struct Peer {
    storage: InMemoryStorage,
    limiter: RateLimiter,
    limit: Arc<Limit>,
    clients: u64,
}

/// Creates a storage with room for `keys`.
pub(crate) fn storage(keys: u64) -> InMemoryStorage {
    InMemoryStorage::new(keys)
}

/// Creates the keys of some clients.
pub(crate) fn fill(storage: &InMemoryStorage, clients: Range<u64>) -> anyhow::Result<()> {
    let limit = Arc::new(limit(1_000_000_000)?);
    clients.into_iter().try_for_each(|client| {
        storage.check_and_update(&mut counters(&limit, client)?, 1).map_err(to_anyhow)?;
        Ok(())
    })
}

impl Peer {
    pub(crate) fn new(clients: u64, requests: u64) -> anyhow::Result<Self> {
        let filled = storage(2 * clients + 1_000);
        fill(&filled, 0..clients)?;
        let limiter = RateLimiter::new(2 * clients + 1_000);
        limiter.add_limit(limit(requests)?);
        Ok(Self { storage: filled, limiter, limit: Arc::new(limit(requests)?), clients })
    }

    /// Runs `checks` in each thread.
    pub(crate) fn run(&self, way: Way, threads: u64, checks: u64, seed: u64) -> anyhow::Result<String> {
        let barrier = &Barrier::new(threads as usize);
        let sums = std::thread::scope(|scope| {
            let spawned: Vec<_> = (0..threads)
                .map(|thread| {
                    let random = Random::new(seed * threads + thread + 1);
                    scope.spawn(move || self.run_thread(way, checks, random, barrier))
                })
                .collect();
            spawned
                .into_iter()
                .map(|thread| thread.join().ok().context("a thread panicked")?)
                .collect::<anyhow::Result<Vec<_>>>()
        })?;
        let time: Duration = sums.iter().map(|sum| sum.0).sum();
        let admitted: u64 = sums.iter().map(|sum| sum.1).sum();
        Ok(format!("{} {admitted}", time.as_nanos() as f64 / (threads * checks) as f64))
    }

    fn run_thread(
        &self,
        way: Way,
        checks: u64,
        mut random: Random,
        barrier: &Barrier,
    ) -> anyhow::Result<(Duration, u64)> {
        let (mut time, mut admitted) = (Duration::ZERO, 0);
        for first in (0..checks).step_by(CHUNK as usize) {
            let clients = (first..checks.min(first + CHUNK)).map(|_| random.below(self.clients));
            let (took, passed) = match way {
                Way::Storage => self.call_storage(clients, barrier)?,
                Way::Limiter => self.call_limiter(clients, barrier)?,
            };
            time += took;
            admitted += passed;
        }
        Ok((time, admitted))
    }

    fn call_storage(
        &self,
        clients: impl Iterator<Item = u64>,
        barrier: &Barrier,
    ) -> anyhow::Result<(Duration, u64)> {
        let prepared = clients.map(|client| counters(&self.limit, client));
        let mut prepared: Vec<Vec<Counter>> = prepared.collect::<anyhow::Result<_>>()?;
        barrier.wait();
        let (start, mut admitted) = (Instant::now(), 0);
        for counters in &mut prepared {
            let response = self.storage.check_and_update(black_box(counters), 1).map_err(to_anyhow)?;
            admitted += u64::from(matches!(response, Authorization::Ok));
        }
        Ok((start.elapsed(), admitted))
    }

    fn call_limiter(
        &self,
        clients: impl Iterator<Item = u64>,
        barrier: &Barrier,
    ) -> anyhow::Result<(Duration, u64)> {
        let prepared: Vec<Context<'_>> = clients.map(context).collect();
        let namespace = Namespace::from(NAMESPACE);
        barrier.wait();
        let (start, mut admitted) = (Instant::now(), 0);
        for context in &prepared {
            let response = self
                .limiter
                .check_rate_limited_and_update(&namespace, black_box(context), 1)
                .map_err(to_anyhow)?;
            admitted += u64::from(!response.limited);
        }
        Ok((start.elapsed(), admitted))
    }
}
