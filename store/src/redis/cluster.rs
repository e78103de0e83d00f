//! Which master of a cluster serves which slot: a map that is read from any server, corrected by what servers answer, and
//! read again whenever one of them fails. Each master has a task, a queue and a circuit of its own.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::batch::Batch;
use super::call::Part;
use super::connect::{Way, backoff, open};
use super::fault::{Redirect, classify};
use super::node::{Again, Caller, Item, Lane, Node};
use super::parts;
use super::queue::{Ask, Job};
use super::script::send;
use super::slots::{self, Range};
use super::target::{Reach, Target, split};
use super::worker::Setting;
use crate::check::{CheckRequest, Counter, KeyHash, LimitSpec, Settlement};
use crate::failure::{StoreError, StoreFault, StoreHealth};

/// How long the map is believed while all is well, and the bounds of the wait between two readings while it is not.
const BELIEVED: Duration = Duration::from_secs(30);
const SHORTEST_WAIT: Duration = Duration::from_millis(20);
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// How long a server may take to tell the map.
const LONGEST_ANSWER: Duration = Duration::from_secs(1);

/// How long a slot counts as moving after a server last said so.
const MOVING: Duration = Duration::from_secs(2);

/// How long a server is kept that owns no slot of ours: one may be moving there.
const UNUSED: Duration = Duration::from_secs(30);

/// How long a call waits that nobody obeys at the moment.
const PAUSE: Duration = Duration::from_millis(5);

/// After so many redirections in a row each further one waits: two servers may send a call to and fro while they
/// disagree.
const MAX_TRIES: u32 = 3;

/// A cluster.
pub(super) struct Cluster {
    setting: Setting,
    runtime: Handle,
    seeds: Vec<Arc<Target>>,
    reach: Reach,
    /// The slot of each partition, and each of these slots once.
    slots: Vec<u16>,
    used: Vec<u16>,
    map: watch::Sender<Map>,
    look: Arc<Notify>,
    /// Whom to ask first for the map.
    turn: AtomicUsize,
}

/// The lane of each counter of a check.
pub(super) type Lanes = SmallVec<[Lane; 2]>;

/// Who serves what.
struct Map {
    known: Known,
    owners: HashMap<u16, Arc<Node>, foldhash::fast::RandomState>,
    servers: HashMap<String, Server>,
    moving: HashMap<u16, Instant, foldhash::fast::RandomState>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    NotYet,
    Not(StoreFault),
    Yes,
}

/// A server that a task talks to.
struct Server {
    node: Arc<Node>,
    target: Arc<Target>,
    used: Instant,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("servers", &self.map.borrow().servers.keys()).finish_non_exhaustive()
    }
}

impl Cluster {
    /// A cluster of which only the seeds are known; [`keep`] does the rest.
    pub(super) fn new(runtime: Handle, setting: Setting, seeds: Vec<Target>, reach: Reach) -> Arc<Self> {
        let slots = slots::slots_of(setting.keys.partitions);
        let mut used = slots.clone();
        used.sort_unstable();
        used.dedup();
        let map = Map {
            known: Known::NotYet,
            owners: HashMap::default(),
            servers: HashMap::default(),
            moving: HashMap::default(),
        };
        Arc::new_cyclic(|cluster| Self {
            setting: Setting { cluster: cluster.clone(), ..setting },
            runtime,
            seeds: seeds.into_iter().map(Arc::new).collect(),
            reach,
            slots,
            used,
            map: watch::Sender::new(map),
            look: Arc::default(),
            turn: AtomicUsize::new(0),
        })
    }

    /// How the cluster is doing: it fails if any master does that we need.
    pub(super) fn health(&self) -> StoreHealth {
        let map = self.map.borrow();
        match map.known {
            Known::NotYet => return StoreHealth::Starting,
            Known::Not(fault) => return StoreHealth::Failing(fault),
            Known::Yes => {}
        }
        let mut health = StoreHealth::Healthy;
        for slot in &self.used {
            match map.owners.get(slot).map(|node| node.circuit.health()) {
                None => return StoreHealth::Failing(StoreFault::Unreachable),
                Some(StoreHealth::Failing(fault)) => return StoreHealth::Failing(fault),
                Some(StoreHealth::Starting) => health = StoreHealth::Starting,
                Some(StoreHealth::Healthy) => {}
            }
        }
        health
    }

    /// The lanes of a check's counters, as soon as the map is known.
    pub(super) async fn lanes(&self, check: &CheckRequest, deadline: Instant) -> Result<Lanes, StoreError> {
        self.known(deadline).await?;
        let map = self.map.borrow();
        Ok(check.iter().map(|counter| self.lane(&map, &counter.limit, counter.key)).collect())
    }

    /// The lane of one counter, as soon as the map is known.
    pub(super) async fn lane_of(
        &self,
        limit: &LimitSpec,
        key: KeyHash,
        deadline: Instant,
    ) -> Result<Lane, StoreError> {
        self.known(deadline).await?;
        Ok(self.lane(&self.map.borrow(), limit, key))
    }

    async fn known(&self, deadline: Instant) -> Result<(), StoreError> {
        let mut known = self.map.borrow().known;
        if known == Known::NotYet {
            let mut map = self.map.subscribe();
            known = match timeout_at(deadline, map.wait_for(|map| map.known != Known::NotYet)).await {
                Ok(Ok(map)) => map.known,
                Ok(Err(_)) => Known::Not(StoreFault::Unreachable),
                Err(_) => return Err(StoreError::Timeout),
            };
        }
        match known {
            Known::Not(fault) => Err(StoreError::Unavailable(fault)),
            _ => Ok(()),
        }
    }

    fn lane(&self, map: &Map, limit: &LimitSpec, key: KeyHash) -> Lane {
        let partition = usize::from(self.setting.keys.partition(key));
        let slot = self.slots.get(partition).copied().unwrap_or_default();
        match map.moving.get(&slot) {
            Some(said) if said.elapsed() < MOVING => Lane::of_key(slot, limit, key),
            _ => Lane::of_slot(slot),
        }
    }

    /// Asks the master of a lane's slot.
    pub(super) async fn ask<T>(
        &self,
        lane: Lane,
        deadline: Instant,
        ask: impl FnOnce(Caller<T>) -> Ask,
    ) -> Result<T, StoreError> {
        match self.owner(lane.slot()) {
            Some(node) => node.ask(lane, deadline, ask).await,
            None => Err(StoreError::Unavailable(StoreFault::Unreachable)),
        }
    }

    /// Corrects a charge without waiting for it.
    pub(super) fn settle(&self, lane: Lane, settlement: Settlement) {
        if let Some(node) = self.owner(lane.slot()) {
            let ask = Ask::Settle(settlement, oneshot::channel().0);
            node.push(Item::Job(lane, Job { ask, deadline: Instant::now() + self.setting.budget }));
        }
    }

    fn owner(&self, slot: u16) -> Option<Arc<Node>> {
        self.map.borrow().owners.get(&slot).cloned()
    }

    /// Has the map read again soon.
    pub(super) fn look_again(&self) {
        self.look.notify_one();
    }

    /// Sends again what the server at `from` did not obey; nothing of it was done. What takes too long is answered
    /// where it waits.
    pub(super) fn again(self: &Arc<Self>, redirect: Redirect, from: &str, part: Part) {
        let slot = part.lane.slot();
        let (batch, tries) = (part.batch, part.tries + 1);
        let item =
            |batch, asking| Item::Again(Box::new(Again { lane: Lane::of_slot(slot), batch, asking, tries }));
        let pause = if tries > MAX_TRIES { PAUSE } else { Duration::ZERO };
        match redirect {
            Redirect::Moved(address) => {
                self.look_again();
                self.change(|cluster, map| {
                    if let Some(node) = cluster.server(map, &complete(&address, from)) {
                        map.owners.insert(slot, node);
                    }
                });
                self.later(slot, vec![item(batch, false)], pause);
            }
            Redirect::Ask(address) => {
                self.moves(slot);
                let mut target = None;
                self.change(|cluster, map| target = cluster.server(map, &complete(&address, from)));
                match target {
                    // Several keys at once are only obeyed there when all of them have arrived.
                    Some(node) if batch.len() == 1 && pause.is_zero() => node.push(item(batch, true)),
                    _ => self.one_by_one(slot, batch, tries, pause),
                }
            }
            Redirect::TryAgain => {
                self.moves(slot);
                self.one_by_one(slot, batch, tries, PAUSE);
            }
            Redirect::Down => {
                self.look_again();
                self.later(slot, vec![item(batch, false)], PAUSE);
            }
        }
    }

    /// Sends what was one call in a call for each key: while a slot moves, its keys may be in two places.
    fn one_by_one(self: &Arc<Self>, slot: u16, batch: Batch, tries: u32, pause: Duration) {
        let deadline = batch.first_deadline();
        let mut singles = Vec::new();
        for single in batch.into_singles() {
            match single.into_check() {
                Err(batch) => {
                    let lane = Lane::of_slot(slot);
                    singles.push(Item::Again(Box::new(Again { lane, batch, asking: false, tries })));
                }
                Ok((check, callers)) => {
                    let check = Arc::new(check);
                    for caller in callers {
                        let (cluster, check) = (self.clone(), check.clone());
                        self.runtime.spawn(async move {
                            let lane = |one: &Counter| Lane::of_key(slot, &one.limit, one.key);
                            let lanes: Lanes = check.iter().map(lane).collect();
                            let deadline = deadline.unwrap_or_else(Instant::now);
                            // One who has gone does not mind.
                            let _ = caller.send(parts::check(&cluster, &check, &lanes, deadline).await);
                        });
                    }
                }
            }
        }
        self.later(slot, singles, pause);
    }

    /// Gives items to whoever owns the slot by then.
    fn later(self: &Arc<Self>, slot: u16, items: Vec<Item>, pause: Duration) {
        let give = move |cluster: &Self, items: Vec<Item>| match cluster.owner(slot) {
            Some(node) => items.into_iter().for_each(|item| node.push(item)),
            None => {
                let error = StoreError::Unavailable(StoreFault::Unreachable);
                items.into_iter().for_each(|item| item.refuse(&error));
            }
        };
        if pause.is_zero() {
            return give(self, items);
        }
        let cluster = self.clone();
        self.runtime.spawn(async move {
            sleep(pause).await;
            give(&cluster, items);
        });
    }

    /// Remembers that a slot is moving: its keys are in two places.
    fn moves(&self, slot: u16) {
        self.map.send_if_modified(|map| {
            map.moving.insert(slot, Instant::now());
            false
        });
    }

    fn change(&self, change: impl FnOnce(&Self, &mut Map)) {
        self.map.send_modify(|map| change(self, map));
    }

    /// The server at an address, with its task.
    fn server(&self, map: &mut Map, address: &str) -> Option<Arc<Node>> {
        if let Some(server) = map.servers.get_mut(address) {
            server.used = Instant::now();
            return Some(server.node.clone());
        }
        let (host, port) = split(address)?;
        let target = Arc::new(self.reach.at(host, port)?);
        let way = Way::Fixed(target.clone());
        let node = Arc::new(Node::start(&self.runtime, way, self.setting.clone()));
        let server = Server { node: node.clone(), target, used: Instant::now() };
        map.servers.insert(address.to_owned(), server);
        Some(node)
    }

    /// Reads the map from the first server that tells it. Whether all is well then.
    async fn refresh(&self, failed: u32) -> bool {
        let mut fault = StoreFault::Unreachable;
        for target in self.tellers() {
            match read(&target, failed).await {
                Ok(ranges) => {
                    self.adopt(&ranges);
                    return self.settled();
                }
                // That one is not to be reached says less than what another one answers.
                Err(StoreFault::Unreachable) => {}
                Err(other) => fault = other,
            }
        }
        let mut told = false;
        self.map.send_if_modified(|map| {
            told = map.known != Known::Yes && map.known != Known::Not(fault);
            if told {
                map.known = Known::Not(fault);
            }
            told
        });
        if told {
            let seeds: Vec<_> = self.seeds.iter().map(|seed| seed.address.as_str()).collect();
            tracing::warn!(?seeds, "no server tells the slots of the Redis cluster: {fault}");
        }
        false
    }

    /// All who may know the map: masters that answer in turn, then the seeds, then whoever else was known.
    fn tellers(&self) -> Vec<Arc<Target>> {
        let map = self.map.borrow();
        let (mut good, bad): (Vec<_>, Vec<_>) =
            map.servers.values().partition(|server| server.node.circuit.health() == StoreHealth::Healthy);
        good.sort_unstable_by(|a, b| a.target.address.cmp(&b.target.address));
        if !good.is_empty() {
            let turn = self.turn.fetch_add(1, Relaxed) % good.len();
            good.rotate_left(turn);
        }
        let target = |server: &Server| server.target.clone();
        let mut all: Vec<Arc<Target>> = good.into_iter().map(target).collect();
        all.extend(self.seeds.iter().cloned());
        all.extend(bad.into_iter().map(target));
        all
    }

    /// Takes a map over.
    fn adopt(&self, ranges: &[Range]) {
        self.change(|cluster, map| {
            let now = Instant::now();
            let before: usize = map.owners.len();
            for &slot in &cluster.used {
                let range = ranges.iter().find(|range| (range.first..=range.last).contains(&slot));
                match range.and_then(|range| cluster.server(map, &format!("{}:{}", range.host, range.port))) {
                    Some(node) => {
                        map.owners.insert(slot, node);
                    }
                    None => {
                        map.owners.remove(&slot);
                    }
                }
            }
            if map.owners.len() < cluster.used.len()
                && (before == cluster.used.len() || map.known != Known::Yes)
            {
                let slots = cluster.used.len() - map.owners.len();
                tracing::warn!(
                    slots,
                    "the Redis cluster has no master for some of the slots that are needed"
                );
            }
            map.known = Known::Yes;
            map.moving.retain(|_, said| said.elapsed() < MOVING);
            map.servers.retain(|_, server| now.duration_since(server.used) < UNUSED);
        });
    }

    fn settled(&self) -> bool {
        let map = self.map.borrow();
        map.known == Known::Yes
            && self
                .used
                .iter()
                .all(|slot| map.owners.get(slot).is_some_and(|node| node.circuit.fault().is_none()))
    }
}

/// Keeps the map of a cluster until the cluster is gone.
pub(super) async fn keep(cluster: Weak<Cluster>) {
    let mut failed = 0u32;
    loop {
        let Some(strong) = cluster.upgrade() else { return };
        let look = strong.look.clone();
        let settled = strong.refresh(failed).await;
        drop(strong);
        if settled {
            failed = 0;
            sleep(SHORTEST_WAIT).await;
            // Either is a reason to read again.
            let _ = timeout(BELIEVED, look.notified()).await;
        } else {
            sleep(backoff(failed).clamp(SHORTEST_WAIT, LONGEST_WAIT)).await;
            failed = failed.saturating_add(1);
        }
    }
}

/// An address with the host that answered, if it has none of its own.
fn complete(address: &str, from: &str) -> String {
    match (split(address), split(from)) {
        (Some(("" | "?", port)), Some((host, _))) => format!("{host}:{port}"),
        _ => address.to_owned(),
    }
}

/// Asks one server for the map.
async fn read(target: &Target, failed: u32) -> Result<Vec<Range>, StoreFault> {
    let mut connection = open(target, failed).await?;
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    match timeout(LONGEST_ANSWER, send(&mut connection, &command)).await {
        Ok(Ok(reply)) => {
            let host = split(&target.address).map_or("", |(host, _)| host);
            slots::read(&reply, host).ok_or(StoreFault::Nonsense)
        }
        Ok(Err(error)) => {
            tracing::debug!(address = target.address, %error, "a server does not tell the cluster's slots");
            Err(classify(&error))
        }
        Err(_) => Err(StoreFault::Slow),
    }
}
