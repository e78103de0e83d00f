//! Steady load on two stores, and everything that came of it: 24 callers, a third of them on each limit, ask one
//! check after another from a thread of their own, whose lateness is measured beside them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sluice_limiter::{Algorithm, MAX_COUNT, MAX_PERIOD_MS, Period, Rate, Record, Requests};
use sluice_store::failure::StoreFault;
use sluice_store::{
    CheckRequest, Counter, KeyHash, LimitSpec, RedisOptions, RedisStore, StoreError, StoreHealth,
};

/// Callers of each limit at each store.
pub(crate) const CALLERS: usize = 4;
/// What the two limits that deny admit in a period.
pub(crate) const REQUESTS: u64 = 100;
/// The periods of the sliding and of the fixed window, in milliseconds. They divide a day.
pub(crate) const PERIODS: [u64; 2] = [3_000, 2_000];
pub(crate) const SLIDING: usize = 0;
pub(crate) const FIXED: usize = 1;
/// The limit that never denies: whatever is cut would have been counted.
pub(crate) const UNLIMITED: usize = 2;

/// What became of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Admitted,
    Denied,
    /// Refused at the door: the circuit was open, nothing was sent.
    Refused(StoreFault),
    /// Taken up, then given up: it may have been sent.
    Cut(StoreError),
}

/// A check as its caller saw it.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) limit: usize,
    pub(crate) store: usize,
    pub(crate) begun: Instant,
    pub(crate) ended: Instant,
    pub(crate) outcome: Outcome,
}

/// What came of a load.
pub(crate) struct Log {
    pub(crate) seen: Vec<Seen>,
    /// When the runtime was to do something, and when it did: as far as it was more than a timer's grain late.
    pub(crate) late: Vec<(Instant, Instant)>,
}

/// What a store last did, for whoever waits for it.
#[derive(Debug, Default)]
struct Replica {
    /// When the newest check began that was answered: nanoseconds since the load began.
    answered: AtomicU64,
    /// The same of those that were admitted, by limit.
    admitted: [AtomicU64; 3],
    /// Faults that checks ended with, a bit each.
    faults: AtomicU8,
}

/// A load that runs.
pub(crate) struct Load {
    pub(crate) stores: [Arc<RedisStore>; 2],
    pub(crate) limits: [Arc<LimitSpec>; 3],
    live: Arc<[Replica; 2]>,
    begun: Instant,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Log>>,
}

impl Load {
    pub(crate) fn start(urls: [String; 2], budget: Duration) -> Self {
        let (stop, live, begun) =
            (Arc::new(AtomicBool::new(false)), Arc::<[Replica; 2]>::default(), Instant::now());
        let limits = limits();
        let (give, take) = mpsc::channel();
        let thread = std::thread::spawn({
            let (stop, live, limits) = (stop.clone(), live.clone(), limits.clone());
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    let stores = urls.map(|url| {
                        let options = RedisOptions { latency_budget: budget, ..RedisOptions::new(url) };
                        Arc::new(RedisStore::start(options).unwrap())
                    });
                    give.send(stores.clone()).unwrap();
                    let late = tokio::spawn(lateness(stop.clone()));
                    let callers: Vec<_> = (0..6 * CALLERS)
                        .map(|n| {
                            let (store, limit) = (n % 2, n / 2 % 3);
                            let caller = Caller {
                                at: (store, limit),
                                store: stores[store].clone(),
                                limit: limits[limit].clone(),
                                live: live.clone(),
                                base: begun,
                            };
                            tokio::spawn(caller.run(stop.clone()))
                        })
                        .collect();
                    let mut seen = vec![];
                    for caller in callers {
                        seen.append(&mut caller.await.unwrap());
                    }
                    Log { seen, late: late.await.unwrap() }
                })
            }
        });
        let stores = take.recv().unwrap();
        Self { stores, limits, live, begun, stop, thread: Some(thread) }
    }

    /// Whether this store is well, and answered a check that began after `since`.
    pub(crate) fn answers(&self, store: usize, since: Instant) -> bool {
        let since = since.duration_since(self.begun).as_nanos() as u64;
        self.stores[store].health() == StoreHealth::Healthy && self.live[store].answered.load(SeqCst) > since
    }

    /// Whether every limit admitted a check that began after `since`.
    pub(crate) fn admits(&self, since: Instant) -> bool {
        let since = since.duration_since(self.begun).as_nanos() as u64;
        (0..3).all(|limit| self.live.iter().any(|live| live.admitted[limit].load(SeqCst) > since))
    }

    /// Forgets the faults that were met.
    pub(crate) fn forget_faults(&self) {
        self.live.iter().for_each(|live| live.faults.store(0, SeqCst));
    }

    /// Whether this store says that it fails with this fault, or did so to a check since they were forgotten.
    pub(crate) fn fails_with(&self, store: usize, fault: StoreFault) -> bool {
        self.stores[store].health() == StoreHealth::Failing(fault)
            || self.live[store].faults.load(SeqCst) & bit(fault) != 0
    }

    /// How many requests Redis has counted for a limit; its counter must be readable.
    pub(crate) fn counted(&self, redis: &mut redis::Connection, limit: usize) -> u64 {
        let value: Option<Vec<u8>> =
            redis::Commands::get(redis, self.stores[0].key(&counter(&self.limits[limit]))).unwrap();
        let meter = self.limits[limit].rates.last().unwrap().tag();
        let records = Record::decode_all(&value.unwrap_or_default()).unwrap();
        records.iter().find(|record| record.tag == meter).map_or(0, |record| record.current)
    }

    /// Ends the load.
    pub(crate) fn end(&mut self) -> Log {
        self.stop.store(true, SeqCst);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn bit(fault: StoreFault) -> u8 {
    1 << fault as u8
}

struct Caller {
    at: (usize, usize),
    store: Arc<RedisStore>,
    limit: Arc<LimitSpec>,
    live: Arc<[Replica; 2]>,
    base: Instant,
}

impl Caller {
    async fn run(self, stop: Arc<AtomicBool>) -> Vec<Seen> {
        let (store, limit) = self.at;
        let live = &self.live[store];
        let mut seen = vec![];
        while !stop.load(SeqCst) {
            // The store's task has this thread too: nothing changes between this look and the check's own.
            let open = matches!(self.store.health(), StoreHealth::Failing(_));
            let begun = Instant::now();
            let answer = self.store.check(CheckRequest::from_iter([counter(&self.limit)])).await;
            let ended = Instant::now();
            let outcome = match answer {
                Ok(answer) => {
                    let since = begun.duration_since(self.base).as_nanos() as u64;
                    live.answered.fetch_max(since, SeqCst);
                    if answer.admitted {
                        live.admitted[limit].fetch_max(since, SeqCst);
                        Outcome::Admitted
                    } else {
                        Outcome::Denied
                    }
                }
                Err(error) => {
                    if let StoreError::Unavailable(fault) = error {
                        live.faults.fetch_or(bit(fault), SeqCst);
                    }
                    match error {
                        StoreError::Unavailable(fault) if open => Outcome::Refused(fault),
                        other => Outcome::Cut(other),
                    }
                }
            };
            seen.push(Seen { limit, store, begun, ended, outcome });
            tokio::time::sleep(Duration::from_millis(rand::random_range(3..9))).await;
        }
        seen
    }
}

/// Measures how late this thread is.
async fn lateness(stop: Arc<AtomicBool>) -> Vec<(Instant, Instant)> {
    let mut late = vec![];
    while !stop.load(SeqCst) {
        let due = Instant::now() + Duration::from_millis(1);
        tokio::time::sleep_until(due.into()).await;
        let now = Instant::now();
        // Timers go by whole milliseconds.
        if now - due > Duration::from_millis(2) {
            late.push((due, now));
        }
    }
    late
}

pub(crate) fn counter(limit: &Arc<LimitSpec>) -> Counter {
    Counter { limit: limit.clone(), key: KeyHash(7), cost: 1 }
}

/// Each has, as its last rate, one that never denies and only counts.
pub(crate) fn limits() -> [Arc<LimitSpec>; 3] {
    let rate = |requests: u64, period: u64, algorithm: Algorithm| {
        let (requests, period) = (Requests::new(requests).unwrap(), Period::from_millis(period).unwrap());
        Rate::new(requests, period, algorithm).unwrap()
    };
    let meter = rate(MAX_COUNT, calm_period(), Algorithm::FIXED_WINDOW);
    [
        ("sliding", vec![rate(REQUESTS, PERIODS[SLIDING], Algorithm::SLIDING_WINDOW), meter]),
        ("fixed", vec![rate(REQUESTS, PERIODS[FIXED], Algorithm::FIXED_WINDOW), meter]),
        ("unlimited", vec![meter]),
    ]
    .map(|(scope, rates)| Arc::new(LimitSpec::new(format!("chaos/load/{scope}"), rates)))
}

/// About a year, so that its window neither began nor ends within days from now.
fn calm_period() -> u64 {
    const DAY: u64 = 86_400_000;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    (0..30)
        .map(|n| MAX_PERIOD_MS - n * 7 * DAY)
        .find(|period| (3 * DAY..period - 3 * DAY).contains(&(now % period)))
        .unwrap()
}
