//! The clients that a limit denies most often.
//!
//! - [`heavy_hitters`]: the most frequent keys of a stream, in bounded memory.

mod heavy_hitters;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sluice_config::distinct::DistinctSketch;
use tokio::time::Instant;

use self::heavy_hitters::{HeavyHitters, Hitter};

/// Number of clients of each limit and each half of the time.
const MOST: usize = 32;
/// Half of the time that is reported at most.
const HALF: Duration = Duration::from_secs(300);

/// The clients that a limit has denied most often in the last 5 to 10 minutes. All snapshots with the limit share it.
#[derive(Debug, Clone)]
pub(crate) struct DeniedClients(Arc<Mutex<Halves>>);

#[derive(Debug)]
struct Halves {
    older: HeavyHitters,
    newer: HeavyHitters,
    /// The distinct clients of the older and of the newer half. Only of limits in Shadow.
    distinct: [Option<DistinctSketch>; 2],
    /// Beginning of the older and of the newer half.
    begins: [Instant; 2],
}

/// The clients that were denied most often, and the time since when they are counted.
#[derive(Debug)]
pub(crate) struct TopClients {
    pub(crate) since: Duration,
    /// Most often denied first.
    pub(crate) clients: Vec<Hitter>,
}

impl DeniedClients {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self(Arc::new(Mutex::new(Halves {
            older: HeavyHitters::new(MOST),
            newer: HeavyHitters::new(MOST),
            distinct: [None, None],
            begins: [now; 2],
        })))
    }

    /// Counts the denial of a client, and the client itself if the limit is in Shadow. `describe` describes a client that is not
    /// known yet.
    pub(crate) fn count(
        &self,
        key: u128,
        now: Instant,
        is_shadow: bool,
        describe: impl FnOnce() -> Arc<str>,
    ) {
        let mut halves = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        halves.turn(now);
        halves.newer.count(key, describe);
        if is_shadow {
            halves.distinct[1].get_or_insert_default().add(key);
        }
    }

    /// Returns the distinct clients that a limit in Shadow would have denied; `None` if there are none.
    pub(crate) fn distinct(&self) -> Option<DistinctSketch> {
        let mut halves = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        halves.turn(Instant::now());
        let mut all = halves.distinct.iter().flatten().cloned();
        let mut first = all.next()?;
        all.for_each(|other| first.merge(&other));
        Some(first)
    }

    /// Returns the clients that were denied most often.
    pub(crate) fn top(&self) -> TopClients {
        let now = Instant::now();
        let mut halves = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        halves.turn(now);
        let mut clients: Vec<_> = halves.newer.hitters().collect();
        for older in halves.older.hitters() {
            match clients.iter_mut().find(|client| client.key == older.key) {
                Some(client) => {
                    client.count += older.count;
                    client.error += older.error;
                }
                None => clients.push(older),
            }
        }
        clients.sort_by(|a, b| b.count.cmp(&a.count).then(a.key.cmp(&b.key)));
        TopClients { since: now - halves.begins[0], clients }
    }
}

impl Halves {
    /// Begins another half if the newer one is over.
    fn turn(&mut self, now: Instant) {
        let passed = now - self.begins[1];
        if passed >= HALF {
            let newer = std::mem::replace(&mut self.newer, HeavyHitters::new(MOST));
            let is_recent = passed < 2 * HALF;
            self.older = if is_recent { newer } else { HeavyHitters::new(MOST) };
            let newer = self.distinct[1].take();
            self.distinct[0] = newer.filter(|_| is_recent);
            self.begins = [if is_recent { self.begins[1] } else { now }, now];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(denied: &DeniedClients) -> Vec<(u128, u64)> {
        denied.top().clients.iter().map(|client| (client.key, client.count)).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn denials_count_for_five_to_ten_minutes() {
        let denied = DeniedClients::new();
        for key in [1, 2, 2, 3, 2, 1] {
            denied.count(key, Instant::now(), true, || "".into());
        }
        assert_eq!(counts(&denied), [(2, 3), (1, 2), (3, 1)]);
        assert!(denied.distinct().is_some());
        tokio::time::advance(HALF).await;
        denied.count(3, Instant::now(), false, || "".into());
        denied.count(3, Instant::now(), false, || "".into());
        assert_eq!(counts(&denied), [(2, 3), (3, 3), (1, 2)]);
        assert_eq!(denied.top().since, HALF);
        assert!(denied.distinct().is_some());
        tokio::time::advance(HALF).await;
        assert_eq!((counts(&denied), denied.top().since), (vec![(3, 2)], HALF));
        tokio::time::advance(2 * HALF).await;
        assert_eq!((counts(&denied), denied.top().since), (vec![], Duration::ZERO));
        assert_eq!(denied.distinct(), None);
    }
}
