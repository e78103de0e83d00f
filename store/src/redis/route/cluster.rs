//! A Redis Cluster: finds the server of a key, by the map of hash slots, and sends operations to it. Each master has a worker, a queue
//! and a circuit of its own.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, timeout_at};

use crate::check::{CheckRequest, KeyHash, LimitSpec, Settlement};
use crate::eviction::Eviction;
use crate::failure::{StoreError, StoreFault, StoreHealth};
use crate::fault_cause::FaultCause;
use crate::redis::batch::{BatchGroup, Operation, PendingOperation, Responder};
use crate::redis::connect::{Connector, Members, Target, TargetTemplate, split};
use crate::redis::pipeline::{Node, PipelineSettings, QueueItem, RedirectHandler};

/// Duration for which a hash slot counts as moving after a server last reported it.
const MOVING: Duration = Duration::from_secs(2);

/// Duration for which a server without a used hash slot is kept, because a hash slot may be moving to it.
const UNUSED: Duration = Duration::from_secs(30);

/// The servers of a cluster and their hash slots, as far as they are known.
pub(super) struct SlotMap {
    pub(super) state: MapState,
    pub(super) owners: HashMap<u16, Arc<Node>, foldhash::fast::RandomState>,
    pub(super) servers: HashMap<String, SlotServer>,
    moving: HashMap<u16, Instant, foldhash::fast::RandomState>,
}

/// Whether the map has been read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum MapState {
    Unread,
    /// No server has returned it so far.
    Failed(FaultCause),
    Known,
}

/// A server with a worker.
pub(super) struct SlotServer {
    pub(super) node: Arc<Node>,
    pub(super) target: Arc<Target>,
    /// Time at which a redirection or the map last named it.
    used: Instant,
}

impl SlotMap {
    /// A map that has not been read yet.
    pub(super) fn new() -> Self {
        Self {
            state: MapState::Unread,
            owners: HashMap::default(),
            servers: HashMap::default(),
            moving: HashMap::default(),
        }
    }

    /// Returns the health of the cluster: it fails if the master of any of these hash slots fails.
    pub(super) fn health(&self, slots: &[u16]) -> StoreHealth {
        if self.state == MapState::Unread {
            return StoreHealth::Starting;
        }
        if let Some(cause) = self.cause(slots) {
            return StoreHealth::Failing(cause.fault());
        }
        let owners = slots.iter().filter_map(|slot| self.owners.get(slot));
        match owners.map(|node| node.health()).any(|health| health == StoreHealth::Starting) {
            true => StoreHealth::Starting,
            false => StoreHealth::Healthy,
        }
    }

    /// Returns the cause of the first fault of a master of these hash slots.
    pub(super) fn cause(&self, slots: &[u16]) -> Option<FaultCause> {
        match self.state {
            MapState::Unread => None,
            MapState::Failed(cause) => Some(cause),
            MapState::Known => slots.iter().find_map(|slot| match self.owners.get(slot) {
                None => Some(FaultCause::ClusterDown),
                Some(node) => node.cause(),
            }),
        }
    }

    /// Returns whether any master of these hash slots evicts counters.
    pub(super) fn eviction(&self, slots: &[u16]) -> Eviction {
        let owners = slots.iter().filter_map(|slot| self.owners.get(slot));
        owners.map(|node| node.eviction()).max().unwrap_or_default()
    }

    pub(super) fn mark_moving(&mut self, slot: u16) {
        self.moving.insert(slot, Instant::now());
    }

    /// Reports whether a hash slot is moving, so that its keys may be on two servers.
    pub(super) fn is_moving(&self, slot: u16) -> bool {
        self.moving.get(&slot).is_some_and(|reported| reported.elapsed() < MOVING)
    }

    /// Returns the server at an address, and starts it if it is new. `None` if the address is invalid.
    pub(super) fn server(
        &mut self,
        address: &str,
        start: impl FnOnce() -> Option<(Arc<Node>, Arc<Target>)>,
    ) -> Option<Arc<Node>> {
        if let Some(server) = self.servers.get_mut(address) {
            server.used = Instant::now();
            return Some(server.node.clone());
        }
        let (node, target) = start()?;
        let server = SlotServer { node: node.clone(), target, used: Instant::now() };
        self.servers.insert(address.to_owned(), server);
        Some(node)
    }

    /// Forgets old reports of moving hash slots, and servers that are unused at `now`.
    pub(super) fn forget_old(&mut self, now: Instant) {
        self.moving.retain(|_, reported| reported.elapsed() < MOVING);
        self.servers.retain(|_, server| now.duration_since(server.used) < UNUSED);
    }
}

/// A Redis Cluster.
pub(crate) struct Cluster {
    pub(super) settings: PipelineSettings,
    pub(super) runtime: Handle,
    pub(super) seeds: Vec<Arc<Target>>,
    template: TargetTemplate,
    /// The hash slots of all partitions, sorted.
    pub(super) used: Vec<u16>,
    pub(super) map: watch::Sender<SlotMap>,
    pub(super) refresh: Arc<Notify>,
    /// Rotates the servers that are queried for the map.
    pub(super) next_source: AtomicUsize,
    /// The masters of the map, by which connections recognize strangers.
    pub(super) members: Members,
    /// The disagreement about the map that was logged last, so that it is logged once.
    pub(super) logged: Mutex<String>,
}

/// The batch group of each counter of a check.
pub(crate) type Groups = SmallVec<[BatchGroup; 2]>;

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("servers", &self.map.borrow().servers.keys()).finish_non_exhaustive()
    }
}

impl Cluster {
    /// A cluster of which only the seeds are known. [`super::keep_up_to_date`] reads its map.
    pub(crate) fn new(
        runtime: Handle,
        settings: PipelineSettings,
        seeds: Vec<Target>,
        template: TargetTemplate,
    ) -> Arc<Self>
    where
        Self: RedirectHandler,
    {
        let mut used: Vec<u16> = settings.names.partitions.slots().collect();
        used.sort_unstable();
        Arc::new_cyclic(|cluster: &Weak<Self>| {
            let redirects: Weak<dyn RedirectHandler> = cluster.clone();
            Self {
                settings: PipelineSettings { redirects: Some(redirects), ..settings },
                runtime,
                seeds: seeds.into_iter().map(Arc::new).collect(),
                template,
                used,
                map: watch::Sender::new(SlotMap::new()),
                refresh: Arc::default(),
                next_source: AtomicUsize::new(rand::random_range(0..1 << 16)),
                members: Members::default(),
                logged: Mutex::default(),
            }
        })
    }

    /// Returns the health of the cluster: it fails if any master with counters fails.
    pub(crate) fn health(&self) -> StoreHealth {
        self.map.borrow().health(&self.used)
    }

    /// Returns whether any master with counters evicts them.
    pub(crate) fn eviction(&self) -> Eviction {
        self.map.borrow().eviction(&self.used)
    }

    /// Returns the cause of the fault, if a master with counters fails.
    pub(crate) fn cause(&self) -> Option<FaultCause> {
        self.map.borrow().cause(&self.used)
    }

    /// Returns the batch groups of a check's counters, once the map is known.
    pub(crate) async fn groups(&self, check: &CheckRequest, deadline: Instant) -> Result<Groups, StoreError> {
        self.wait_for_map(deadline).await?;
        let map = self.map.borrow();
        Ok(check.iter().map(|counter| self.group(&map, &counter.limit, counter.key)).collect())
    }

    /// Returns the batch group of one counter, once the map is known.
    pub(crate) async fn group_of(
        &self,
        limit: &LimitSpec,
        key: KeyHash,
        deadline: Instant,
    ) -> Result<BatchGroup, StoreError> {
        self.wait_for_map(deadline).await?;
        Ok(self.group(&self.map.borrow(), limit, key))
    }

    async fn wait_for_map(&self, deadline: Instant) -> Result<(), StoreError> {
        let mut state = self.map.borrow().state;
        if state == MapState::Unread {
            let mut map = self.map.subscribe();
            state = match timeout_at(deadline, map.wait_for(|map| map.state != MapState::Unread)).await {
                Ok(Ok(map)) => map.state,
                Ok(Err(_)) => MapState::Failed(FaultCause::ConnectionLost),
                Err(_) => return Err(StoreError::Timeout),
            };
        }
        match state {
            MapState::Failed(cause) => Err(StoreError::Unavailable(cause.fault())),
            _ => Ok(()),
        }
    }

    fn group(&self, map: &SlotMap, limit: &LimitSpec, key: KeyHash) -> BatchGroup {
        let (_, slot) = self.settings.names.partitions.of(key);
        if map.is_moving(slot) { BatchGroup::of_key(slot, limit, key) } else { BatchGroup::of_slot(slot) }
    }

    /// Sends an operation to the master of a group's hash slot and waits for its result.
    pub(crate) async fn send<T>(
        &self,
        group: BatchGroup,
        deadline: Instant,
        operation: impl FnOnce(Responder<T>) -> Operation,
    ) -> Result<T, StoreError> {
        match self.owner(group.slot()) {
            Some(node) => node.send(group, deadline, operation).await,
            None => Err(StoreError::Unavailable(StoreFault::Unreachable)),
        }
    }

    /// Sends a settlement without waiting for its result.
    pub(super) fn settle(&self, group: BatchGroup, settlement: Settlement) {
        if let Some(node) = self.owner(group.slot()) {
            let operation = Operation::Settle(settlement, oneshot::channel().0);
            let deadline = Instant::now() + self.settings.budget;
            node.push(QueueItem::New(group, PendingOperation { operation, deadline }));
        }
    }

    /// Returns the server of a hash slot.
    pub(super) fn owner(&self, slot: u16) -> Option<Arc<Node>> {
        self.map.borrow().owners.get(&slot).cloned()
    }

    /// Changes the map and wakes the operations that wait for it.
    pub(super) fn change(&self, change: impl FnOnce(&mut SlotMap)) {
        self.map.send_modify(change);
    }

    /// Marks a hash slot as moving: its keys are on two servers.
    pub(super) fn mark_moving(&self, slot: u16) {
        self.map.send_if_modified(|map| {
            map.mark_moving(slot);
            false
        });
    }

    /// Returns the server at an address, and starts its worker if it is new.
    pub(super) fn server(&self, map: &mut SlotMap, address: &str) -> Option<Arc<Node>> {
        map.server(address, || {
            let (host, port) = split(address)?;
            let target = Arc::new(self.template.target(host, port)?);
            let connector = Connector::Member(target.clone(), self.members.clone());
            let node = Node::start(&self.runtime, connector, self.settings.clone());
            Some((Arc::new(node), target))
        })
    }
}
