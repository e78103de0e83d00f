//! Whose questions are decided next: those of each caller wait for each other, and not for those of one that floods.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use sluice_host::serve::choice::network;
use sluice_host::serve::turns::{TooLate, Turn, Turns};
use tokio::time::Instant;

use crate::callers::Caller;

/// Counters that are decided at a time: more than keep a store busy, and so few that one who comes waits a fraction of a millisecond.
const CAPACITY: usize = 256;
/// Counters that wait for their turn, of all callers.
const ROOM: usize = 1 << 18;
/// Large bodies that are read, or whose answers are written, at a time, and those that wait for that.
const LARGE: usize = 4;
const LARGE_ROOM: usize = 1 << 10;

/// Whose question it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Whose(Key);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    /// A caller that is listed, by its place in memory.
    Caller(usize),
    Address(IpAddr),
}

impl Whose {
    /// A question of this process.
    pub const LOCAL: Self = Self(Key::Address(IpAddr::V4(Ipv4Addr::LOCALHOST)));

    /// A question of a caller, if callers are known, or of an address.
    pub(crate) fn of(caller: Option<&Arc<Caller>>, address: IpAddr) -> Self {
        Self(
            caller.map_or(Key::Address(network(address)), |caller| Key::Caller(Arc::as_ptr(caller) as usize)),
        )
    }
}

/// A question that waits.
struct Waiting<'a>(&'a Gauge);

impl<'a> Waiting<'a> {
    fn new(waiting: &'a Gauge) -> Self {
        waiting.inc();
        Self(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// The questions of all callers.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    turns: Turns<Whose>,
    large: Turns<Whose>,
    waiting: Gauge,
    late: Counter,
}

impl Work {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let (waiting, late) = (Gauge::default(), Counter::default());
        registry.register(
            "questions_waiting",
            "Questions and checks that wait for their turn because their caller has many others",
            waiting.clone(),
        );
        registry.register(
            "questions_late",
            "Questions and checks whose turn did not come in time, so that onStoreFailure decided",
            late.clone(),
        );
        let (turns, large) = (Turns::new(CAPACITY, ROOM), Turns::new(LARGE, LARGE_ROOM));
        Self { turns, large, waiting, late }
    }

    /// Waits for the turn of a large body, so long at most.
    pub(crate) async fn large(&self, whose: Whose, time: Duration) -> Option<Turn<Whose>> {
        self.large.turn(&whose, 1, Instant::now() + time).await.ok()
    }

    /// Waits for the turn of a question about so many counters, which has a time in all. Returns the turn with the time that is left for
    /// the store. It has none if the turn does not come.
    pub(crate) async fn turn(
        &self,
        whose: Whose,
        counters: usize,
        time: Duration,
    ) -> (Option<Turn<Whose>>, Duration) {
        if let Some(turn) = self.turns.begin_at_once(&whose, counters) {
            return (Some(turn), time);
        }
        let deadline = Instant::now() + time;
        let waiting = Waiting::new(&self.waiting);
        let turn = self.turns.turn(&whose, counters, deadline).await;
        drop(waiting);
        match turn {
            Ok(turn) => (Some(turn), deadline.saturating_duration_since(Instant::now())),
            Err(TooLate) => {
                self.late.inc();
                (None, Duration::ZERO)
            }
        }
    }
}
