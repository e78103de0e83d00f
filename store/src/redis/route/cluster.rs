//! A Redis Cluster: finds the server of a key and sends operations to it. Each master has a worker, a queue
//! and a circuit of its own.

use std::fmt;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, Weak};

use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, timeout_at};

use super::slot_map::{MapState, SlotMap};
use crate::check::{CheckRequest, KeyHash, LimitSpec, Settlement};
use crate::eviction::Eviction;
use crate::failure::{StoreError, StoreFault, StoreHealth};
use crate::fault_cause::FaultCause;
use crate::redis::batch::{BatchGroup, Operation, PendingOperation, Responder};
use crate::redis::connect::{Connector, Members, Target, TargetTemplate, split};
use crate::redis::pipeline::{Node, PipelineSettings, QueueItem, RedirectHandler};

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
