//! A steady load on two stores, and its results. 24 callers, a third of them for each limit, send one check
//! after another from a thread of their own. The delays of this thread are measured too.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sluice_limiter::{Algorithm, MAX_COUNT, MAX_PERIOD_MS, Period, Rate, Record, Requests};
use sluice_store::failure::StoreFault;
use sluice_store::{
    CheckRequest, Counter, KeyHash, LimitSpec, RedisOptions, RedisStore, Store as _, StoreError, StoreHealth,
};

/// Number of callers per limit and store.
pub(crate) const CALLERS: usize = 4;
/// Number of requests per period of the two limits that deny.
pub(crate) const REQUESTS: u64 = 100;
/// The periods of the sliding and the fixed window, in milliseconds. They divide a day.
pub(crate) const PERIODS: [u64; 2] = [3_000, 2_000];
pub(crate) const SLIDING: usize = 0;
pub(crate) const FIXED: usize = 1;
/// Index of a limit that never denies, so that every charge is visible.
pub(crate) const UNLIMITED: usize = 2;

/// The outcome of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Admitted,
    Denied,
    /// The circuit was open, so no call was sent.
    Refused(StoreFault),
    /// The check was queued and then failed, so a call may have been sent.
    Cut(StoreError),
}

/// The result of a check.
#[derive(Debug, Clone)]
pub(crate) struct CheckResult {
    pub(crate) limit: usize,
    pub(crate) store: usize,
    pub(crate) started: Instant,
    pub(crate) ended: Instant,
    pub(crate) outcome: Outcome,
}

/// The results of a load.
pub(crate) struct Log {
    pub(crate) results: Vec<CheckResult>,
    /// Delays of the thread beyond the resolution of a timer: the due time and the actual one.
    pub(crate) delays: Vec<(Instant, Instant)>,
}

/// The latest results of a store.
#[derive(Debug, Default)]
struct LatestResults {
    /// Start of the latest check that completed, in nanoseconds since the start of the load.
    completed: AtomicU64,
    /// Start of the latest admitted check of each limit.
    admitted: [AtomicU64; 3],
    /// Faults that checks failed with, one bit each.
    faults: AtomicU8,
}

/// A running load.
pub(crate) struct Load {
    pub(crate) stores: [Arc<RedisStore>; 2],
    pub(crate) limits: [Arc<LimitSpec>; 3],
    latest: Arc<[LatestResults; 2]>,
    started: Instant,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Log>>,
}

impl Load {
    pub(crate) fn start(urls: [String; 2], budget: Duration) -> Self {
        let (stop, latest, started) =
            (Arc::new(AtomicBool::new(false)), Arc::<[LatestResults; 2]>::default(), Instant::now());
        let limits = limits();
        let (sender, receiver) = mpsc::channel();
        let thread = std::thread::spawn({
            let (stop, latest, limits) = (stop.clone(), latest.clone(), limits.clone());
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    let stores = urls.map(|url| {
                        let options = RedisOptions::from_url(&url).unwrap();
                        let options = RedisOptions { latency_budget: budget, ..options };
                        Arc::new(RedisStore::start(options).unwrap())
                    });
                    sender.send(stores.clone()).unwrap();
                    let delays = tokio::spawn(measure_delays(stop.clone()));
                    let callers: Vec<_> = (0..6 * CALLERS)
                        .map(|n| {
                            let (store, limit) = (n % 2, n / 2 % 3);
                            let caller = Caller {
                                at: (store, limit),
                                store: stores[store].clone(),
                                limit: limits[limit].clone(),
                                latest: latest.clone(),
                                base: started,
                            };
                            tokio::spawn(caller.run(stop.clone()))
                        })
                        .collect();
                    let mut results = vec![];
                    for caller in callers {
                        results.append(&mut caller.await.unwrap());
                    }
                    Log { results, delays: delays.await.unwrap() }
                })
            }
        });
        let stores = receiver.recv().unwrap();
        Self { stores, limits, latest, started, stop, thread: Some(thread) }
    }

    /// Reports whether this store is healthy and has completed a check that started after `since`.
    pub(crate) fn has_completed(&self, store: usize, since: Instant) -> bool {
        let since = since.duration_since(self.started).as_nanos() as u64;
        self.stores[store].health() == StoreHealth::Healthy
            && self.latest[store].completed.load(SeqCst) > since
    }

    /// Reports whether every limit has admitted a check that started after `since`.
    pub(crate) fn has_admitted(&self, since: Instant) -> bool {
        let since = since.duration_since(self.started).as_nanos() as u64;
        (0..3).all(|limit| self.latest.iter().any(|latest| latest.admitted[limit].load(SeqCst) > since))
    }

    /// Forgets the faults so far.
    pub(crate) fn forget_faults(&self) {
        self.latest.iter().for_each(|latest| latest.faults.store(0, SeqCst));
    }

    /// Reports whether this store is failing with this fault, or a check has failed with it since the faults
    /// were forgotten.
    pub(crate) fn fails_with(&self, store: usize, fault: StoreFault) -> bool {
        self.stores[store].health() == StoreHealth::Failing(fault)
            || self.latest[store].faults.load(SeqCst) & bit(fault) != 0
    }

    /// Returns the number of requests that Redis has counted for a limit. Panics if the counter cannot be
    /// read.
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
    latest: Arc<[LatestResults; 2]>,
    base: Instant,
}

impl Caller {
    async fn run(self, stop: Arc<AtomicBool>) -> Vec<CheckResult> {
        let (store, limit) = self.at;
        let latest = &self.latest[store];
        let mut results = vec![];
        while !stop.load(SeqCst) {
            // The store's worker runs on this thread, so the health cannot change before the check reads it.
            let open = matches!(self.store.health(), StoreHealth::Failing(_));
            let started = Instant::now();
            let response = self.store.check(CheckRequest::from_iter([counter(&self.limit)])).await;
            let ended = Instant::now();
            let outcome = match response {
                Ok(response) => {
                    let since = started.duration_since(self.base).as_nanos() as u64;
                    latest.completed.fetch_max(since, SeqCst);
                    if response.admitted {
                        latest.admitted[limit].fetch_max(since, SeqCst);
                        Outcome::Admitted
                    } else {
                        Outcome::Denied
                    }
                }
                Err(error) => {
                    if let StoreError::Unavailable(fault) = error {
                        latest.faults.fetch_or(bit(fault), SeqCst);
                    }
                    match error {
                        StoreError::Unavailable(fault) if open => Outcome::Refused(fault),
                        other => Outcome::Cut(other),
                    }
                }
            };
            results.push(CheckResult { limit, store, started, ended, outcome });
            tokio::time::sleep(Duration::from_millis(rand::random_range(3..9))).await;
        }
        results
    }
}

/// Measures the delays of this thread.
async fn measure_delays(stop: Arc<AtomicBool>) -> Vec<(Instant, Instant)> {
    let mut delays = vec![];
    while !stop.load(SeqCst) {
        let due = Instant::now() + Duration::from_millis(1);
        tokio::time::sleep_until(due.into()).await;
        let now = Instant::now();
        // Timers have a resolution of one millisecond.
        if now - due > Duration::from_millis(2) {
            delays.push((due, now));
        }
    }
    delays
}

pub(crate) fn counter(limit: &Arc<LimitSpec>) -> Counter {
    Counter { limit: limit.clone(), key: KeyHash(7), cost: 1 }
}

/// Returns the limits. The last rate of each never denies and only counts.
pub(crate) fn limits() -> [Arc<LimitSpec>; 3] {
    let rate = |requests: u64, period: u64, algorithm: Algorithm| {
        let (requests, period) = (Requests::new(requests).unwrap(), Period::from_millis(period).unwrap());
        Rate::new(requests, period, algorithm).unwrap()
    };
    let meter = rate(MAX_COUNT, quiet_period(), Algorithm::FIXED_WINDOW);
    [
        ("sliding", vec![rate(REQUESTS, PERIODS[SLIDING], Algorithm::SLIDING_WINDOW), meter]),
        ("fixed", vec![rate(REQUESTS, PERIODS[FIXED], Algorithm::FIXED_WINDOW), meter]),
        ("unlimited", vec![meter]),
    ]
    .map(|(scope, rates)| Arc::new(LimitSpec::new(format!("chaos/load/{scope}"), rates)))
}

/// Returns a period of about a year whose window neither started nor ends within days from now.
fn quiet_period() -> u64 {
    const DAY: u64 = 86_400_000;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    (0..30)
        .map(|n| MAX_PERIOD_MS - n * 7 * DAY)
        .find(|period| (3 * DAY..period - 3 * DAY).contains(&(now % period)))
        .unwrap()
}
