//! Which server serves which hash slot.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::eviction::Eviction;
use crate::failure::StoreHealth;
use crate::fault_cause::FaultCause;
use crate::redis::connect::Target;
use crate::redis::pipeline::Node;

/// Duration for which a hash slot counts as moving after a server last reported it.
const MOVING: Duration = Duration::from_secs(2);

/// Duration for which a server without a used hash slot is kept, because a hash slot may be moving to it.
const UNUSED: Duration = Duration::from_secs(30);

/// The servers of a cluster and their hash slots, as far as they are known.
pub(super) struct SlotMap {
    pub(super) state: MapState,
    pub(super) owners: HashMap<u16, Arc<Node>, foldhash::fast::RandomState>,
    pub(super) servers: HashMap<String, Server>,
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
pub(super) struct Server {
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
        let server = Server { node: node.clone(), target, used: Instant::now() };
        self.servers.insert(address.to_owned(), server);
        Some(node)
    }

    /// Forgets old reports of moving hash slots, and servers that are unused at `now`.
    pub(super) fn forget_old(&mut self, now: Instant) {
        self.moving.retain(|_, reported| reported.elapsed() < MOVING);
        self.servers.retain(|_, server| now.duration_since(server.used) < UNUSED);
    }
}
