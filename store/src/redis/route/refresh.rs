//! The task that keeps the map of hash slots up to date: it reads the map from any server, at intervals and
//! whenever a server fails or redirects a call.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::cluster::Cluster;
use super::hash_slots::{self, SlotRange};
use super::slot_map::{MapState, Server};
use crate::failure::StoreHealth;
use crate::fault_cause::FaultCause;
use crate::redis::connect::{Target, backoff, classify, open, split};
use crate::redis::script::send;

/// Interval between two readings while the cluster is healthy.
const INTERVAL: Duration = Duration::from_secs(30);

/// Shortest delay between two readings otherwise.
const SHORTEST_DELAY: Duration = Duration::from_millis(20);

/// Maximum duration of a server's reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);

/// Keeps the map of a cluster up to date until the cluster is dropped.
pub(crate) async fn keep_up_to_date(cluster: Weak<Cluster>) {
    let mut failed = 0u32;
    loop {
        let Some(strong) = cluster.upgrade() else { return };
        let requested = strong.refresh.clone();
        let complete = strong.refresh_map(failed).await;
        drop(strong);
        if complete {
            failed = 0;
            sleep(SHORTEST_DELAY).await;
            // A request and the end of the interval have the same effect.
            let _ = timeout(INTERVAL, requested.notified()).await;
        } else {
            sleep(backoff(failed, FaultCause::NoRoute).max(SHORTEST_DELAY)).await;
            failed = failed.saturating_add(1);
        }
    }
}

impl Cluster {
    /// Reads the map from the first server that returns it. Reports whether the map is then complete and all
    /// of its circuits are closed.
    async fn refresh_map(&self, failed: u32) -> bool {
        let mut cause = FaultCause::NoRoute;
        for target in self.sources() {
            match read(&target, failed).await {
                Ok(ranges) => {
                    self.adopt(&ranges);
                    return self.is_complete();
                }
                // The fault of a server that answers is the more specific one.
                Err(other) if cause.is_silence() || !other.is_silence() => cause = other,
                Err(_) => {}
            }
        }
        let mut is_new = false;
        self.map.send_if_modified(|map| {
            is_new = map.state != MapState::Known && map.state != MapState::Failed(cause);
            if is_new {
                map.state = MapState::Failed(cause);
            }
            is_new
        });
        if is_new {
            let seeds: Vec<_> = self.seeds.iter().map(|seed| seed.address.as_str()).collect();
            tracing::warn!(
                ?seeds,
                "cannot read the hash slots of the Redis Cluster from any server: {cause}"
            );
        }
        false
    }

    /// Returns the servers to read the map from: the healthy masters in rotation, then the seeds, then all
    /// other known servers.
    fn sources(&self) -> Vec<Arc<Target>> {
        let map = self.map.borrow();
        let (mut healthy, others): (Vec<_>, Vec<_>) =
            map.servers.values().partition(|server| server.node.health() == StoreHealth::Healthy);
        healthy.sort_unstable_by(|a, b| a.target.address.cmp(&b.target.address));
        if !healthy.is_empty() {
            let first = self.next_source.fetch_add(1, Relaxed) % healthy.len();
            healthy.rotate_left(first);
        }
        let target = |server: &Server| server.target.clone();
        let mut all: Vec<Arc<Target>> = healthy.into_iter().map(target).collect();
        all.extend(self.seeds.iter().cloned());
        all.extend(others.into_iter().map(target));
        all
    }

    /// Replaces the map by the one just read.
    fn adopt(&self, ranges: &[SlotRange]) {
        self.change(|map| {
            let now = Instant::now();
            let before: usize = map.owners.len();
            for &slot in &self.used {
                let range = ranges.iter().find(|range| (range.first..=range.last).contains(&slot));
                match range.and_then(|range| self.server(map, &format!("{}:{}", range.host, range.port))) {
                    Some(node) => {
                        map.owners.insert(slot, node);
                    }
                    None => {
                        map.owners.remove(&slot);
                    }
                }
            }
            if map.owners.len() < self.used.len()
                && (before == self.used.len() || map.state != MapState::Known)
            {
                let slots = self.used.len() - map.owners.len();
                tracing::warn!(slots, "the Redis Cluster has no master for some of the required hash slots");
            }
            map.state = MapState::Known;
            map.forget_old(now);
        });
    }

    /// Reports whether each hash slot that is used has a server with a closed circuit.
    fn is_complete(&self) -> bool {
        let map = self.map.borrow();
        let is_served = |slot: &u16| {
            map.owners.get(slot).is_some_and(|node| !matches!(node.health(), StoreHealth::Failing(_)))
        };
        map.state == MapState::Known && self.used.iter().all(is_served)
    }
}

/// Reads the map from one server.
async fn read(target: &Target, failed: u32) -> Result<Vec<SlotRange>, FaultCause> {
    let mut connection = open(target, failed).await?;
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    match timeout(REPLY_TIMEOUT, send(&mut connection, &command)).await {
        Ok(Ok(reply)) => {
            let host = split(&target.address).map_or("", |(host, _)| host);
            hash_slots::read_ranges(&reply, host).ok_or(FaultCause::InvalidReply)
        }
        Ok(Err(error)) => {
            tracing::debug!(
                address = target.address,
                %error,
                "cannot read the hash slots of the Redis Cluster"
            );
            Err(classify(&error))
        }
        Err(_) => Err(FaultCause::Slow),
    }
}
