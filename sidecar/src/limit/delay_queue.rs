//! Turns: what a leaky bucket admits waits until its turn before it goes to the application. A client that goes away
//! meanwhile gives its place back, so that whoever comes next waits less.

use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use sluice_limiter::Decision;
use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::config::snapshot::LimitAt;
use crate::limit::check::{Charged, Question};
use crate::limit::decide::Standing;

/// How many requests may wait under one limit at a time; each holds a connection or a stream, and memory.
pub(crate) const MOST_WAITING: i64 = 1000;

/// A request that waits. Dropped before its turn has come, it gives its places back.
#[derive(Debug)]
pub(crate) struct Turn {
    at: Instant,
    charges: SmallVec<[Charge; 1]>,
}

/// Too many wait already under a limit.
#[derive(Debug)]
pub(crate) struct Crowded {
    pub(crate) limit: LimitAt,
    /// How long it would have had to wait.
    pub(crate) wait: Duration,
}

impl Turn {
    /// When an admitted request may go on; `None`: now. `asked` is what it was charged for, in the order of the standing's
    /// limits; where there is no place left to wait at, all of it is given back.
    pub(crate) fn of(standing: &Standing, asked: &Question) -> Result<Option<Self>, Crowded> {
        let delay = |decisions: &[Decision]| {
            Duration::from_micros(decisions.iter().map(|decision| decision.delay).max().unwrap_or(0))
        };
        let longest = delay(&standing.answer.decisions);
        if longest.is_zero() {
            return Ok(None);
        }
        let mut charges = SmallVec::<[Charge; 1]>::new();
        for (n, limit, decisions) in standing.numbered() {
            let Some(waiting) = &standing.snapshot.limit(limit).metrics.waiting else { continue };
            if delay(decisions).is_zero() {
                continue;
            }
            let Some(place) = Place::take(waiting) else {
                charges.into_iter().for_each(Charge::keep);
                for (n, limit, decisions) in standing.numbered() {
                    // A place among those at a time gives itself back.
                    if standing.snapshot.limit(limit).shared.is_none() {
                        drop(Charge::new(standing, asked, n, delay(decisions), None));
                    }
                }
                return Err(Crowded { limit, wait: longest });
            };
            charges.push(Charge::new(standing, asked, n, delay(decisions), Some(place)));
        }
        Ok(Some(Self { at: Instant::now() + longest, charges }))
    }

    /// Waits until it is this request's turn.
    pub(crate) async fn come(self) {
        tokio::time::sleep_until(self.at).await;
        self.charges.into_iter().for_each(Charge::keep);
    }
}

/// What a request was charged, with its place among those who wait; dropped, both are given back.
#[derive(Debug)]
struct Charge {
    back: Option<Charged>,
    place: Option<Place>,
}

impl Charge {
    /// For counter `n` of what was asked.
    fn new(standing: &Standing, asked: &Question, n: usize, delay: Duration, place: Option<Place>) -> Self {
        // A leaky bucket knows its charges by their turns.
        let later = delay.as_micros() as u64;
        let charged = (&standing.answer, &standing.charges[..]);
        let counting = standing.snapshot.counting.as_ref();
        Self { back: counting.and_then(|counting| Charged::new(counting, asked, n, charged, later)), place }
    }

    /// It stays charged.
    fn keep(mut self) {
        self.back = None;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let place = self.place.take();
        if let Some(charged) = self.back.take()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(async move {
                // Where no answer comes the place may stay taken, and the queue is longer by one.
                charged.give_back().await;
                drop(place);
            });
        }
    }
}

/// A place among those who wait under a limit.
#[derive(Debug)]
struct Place(Gauge);

impl Place {
    fn take(waiting: &Gauge) -> Option<Self> {
        let place = Self(waiting.clone());
        // The gauge itself is the count: what it says and what is allowed cannot differ.
        (waiting.inc() < MOST_WAITING).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_wait_at_a_time_and_no_more() {
        let waiting = Gauge::default();
        let mut places: Vec<_> = std::iter::from_fn(|| Place::take(&waiting)).collect();
        assert_eq!((places.len() as i64, waiting.get()), (MOST_WAITING, MOST_WAITING));
        places.pop();
        assert_eq!(waiting.get(), MOST_WAITING - 1);
        assert!(Place::take(&waiting).is_some());
        drop(places);
        assert_eq!(waiting.get(), 0);
    }
}
