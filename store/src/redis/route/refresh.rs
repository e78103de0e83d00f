//! The task that keeps the map of hash slots up to date: it reads the map at intervals and whenever a server fails or
//! redirects a call. It asks the masters of the last map first, and then the seeds. Not every view of the cluster is believed: a server
//! that has left its cluster goes on answering, with an empty map, or with a cluster of its own.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::time::{Instant, sleep, timeout};

use super::cluster::{Cluster, MapState, SlotServer};
use crate::failure::StoreHealth;
use crate::fault_cause::FaultCause;
use crate::redis::cluster_view::{ClusterView, most_credible};
use crate::redis::connect::{Target, backoff, gather, open, read_view};

/// Interval between two readings while the cluster is healthy.
const INTERVAL: Duration = Duration::from_secs(30);

/// Shortest delay between two readings otherwise.
const SHORTEST_DELAY: Duration = Duration::from_millis(20);

/// Maximum duration of a server's reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);

/// Time for which the other seeds are waited for when the first one has answered.
const OTHERS: Duration = Duration::from_millis(100);

/// Time without an answer from a master of the last map, after which the seeds are believed, whatever they say.
const STRANGERS_AFTER: Duration = Duration::from_secs(10);

/// Keeps the map of a cluster up to date until the cluster is dropped.
pub(crate) async fn keep_up_to_date(cluster: Weak<Cluster>) {
    let mut failed = 0u32;
    let mut silent_since = None;
    loop {
        let Some(strong) = cluster.upgrade() else { return };
        let requested = strong.refresh.clone();
        let complete = strong.refresh_map(failed, &mut silent_since).await;
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
    /// Reads the map. Reports whether it is then complete and all of its circuits are closed. `silent_since` is the time of
    /// the first reading since which no master of the last map has answered.
    async fn refresh_map(&self, failed: u32, silent_since: &mut Option<Instant>) -> bool {
        let last = self.last_map();
        if last.ids.is_empty() {
            return self.read_first_map(failed).await;
        }
        let (mut readings, mut cause) = (Vec::new(), FaultCause::NoRoute);
        // The healthy masters one after another; all others at the same time, because they may not answer.
        let (healthy, others) = self.sources();
        let mut healthy = healthy.into_iter();
        let mut others: FuturesUnordered<_> =
            others.into_iter().map(|target| async move { self.read(&target, failed).await }).collect();
        loop {
            let read = match healthy.next() {
                Some(target) => Some(self.read(&target, failed).await),
                None => others.next().await,
            };
            match read {
                Some(Ok(reading)) => readings.push(reading),
                Some(Err(other)) => cause = cause.or_more_specific(other),
                None => break,
            }
            if let Some(chosen) = last.choose(&readings, &self.used) {
                *silent_since = None;
                self.log_disagreement(&last, &readings, Some(chosen));
                self.adopt(&chosen.view);
                return self.is_complete();
            }
        }
        if readings.iter().any(|reading| reading.member.is_some()) {
            *silent_since = None;
            self.log_disagreement(&last, &readings, None);
            return self.is_complete();
        }
        if silent_since.get_or_insert_with(Instant::now).elapsed() >= STRANGERS_AFTER {
            readings.retain(|reading| self.seeds.iter().any(|seed| seed.address == reading.from));
            if let Some(strange) = first(&readings, &self.used) {
                tracing::warn!(
                    from = strange.from,
                    "no master of the Redis Cluster has answered for {STRANGERS_AFTER:?}: the hash slots are those of another \
                     cluster now, as this server says"
                );
                *silent_since = None;
                self.adopt(&strange.view);
                return self.is_complete();
            }
        }
        if readings.is_empty() {
            self.log_unread(cause);
        } else {
            self.log_disagreement(&last, &readings, None);
        }
        false
    }

    /// Reads the map from all seeds: there is none that their answers could be compared with.
    async fn read_first_map(&self, failed: u32) -> bool {
        let asked = self.seeds.iter().map(|seed| self.read(seed, failed)).collect();
        let mut readings = match gather(asked, Some(OTHERS)).await {
            Ok(readings) => readings,
            Err(cause) => {
                self.log_unread(cause);
                return false;
            }
        };
        // The order of the seeds, and not that of their answers.
        readings.sort_by_key(|reading| self.seeds.iter().position(|seed| seed.address == reading.from));
        let Some(chosen) = first(&readings, &self.used) else { return false };
        self.log_disagreement(&LastMap::default(), &readings, Some(chosen));
        self.adopt(&chosen.view);
        self.is_complete()
    }

    /// Returns the map in use, by the ids of the masters.
    fn last_map(&self) -> LastMap {
        let map = self.map.borrow();
        let mut last = LastMap { ids: self.members.ids(), ..LastMap::default() };
        for (address, server) in &map.servers {
            let Some(id) = self.members.id(address) else { continue };
            if server.node.health() == StoreHealth::Healthy {
                last.answering.push(id.clone());
            }
            let owned = map.owners.iter().filter(|(_, node)| Arc::ptr_eq(node, &server.node));
            last.owners.extend(owned.map(|(&slot, _)| (slot, id.clone())));
        }
        last
    }

    /// Returns the servers to read the map from: the healthy masters of the last map in rotation, and then its other masters
    /// and the seeds.
    fn sources(&self) -> (Vec<Arc<Target>>, Vec<Arc<Target>>) {
        let map = self.map.borrow();
        let owns = |node| map.owners.values().any(|owner| Arc::ptr_eq(owner, node));
        let mut owners: Vec<_> = map.servers.values().filter(|server| owns(&server.node)).collect();
        owners.sort_unstable_by(|a, b| a.target.address.cmp(&b.target.address));
        let (healthy, failing): (Vec<_>, Vec<_>) =
            owners.into_iter().partition(|server| server.node.health() == StoreHealth::Healthy);
        let targets = |servers: Vec<&SlotServer>| -> Vec<_> {
            servers.into_iter().map(|server| server.target.clone()).collect()
        };
        let (mut healthy, mut others) = (targets(healthy), targets(failing));
        if !healthy.is_empty() {
            let first = self.next_source.fetch_add(1, Relaxed) % healthy.len();
            healthy.rotate_left(first);
        }
        for seed in &self.seeds {
            if healthy.iter().chain(&others).all(|known| known.address != seed.address) {
                others.push(seed.clone());
            }
        }
        (healthy, others)
    }

    /// Reads the map from one server.
    async fn read(&self, target: &Target, failed: u32) -> Result<Reading, FaultCause> {
        let mut connection = open(target, failed).await?;
        let view =
            read_view(&mut connection, target, REPLY_TIMEOUT).await.map_err(|failure| failure.cause)?;
        let is_member = self.members.knows(&target.address, view.ids());
        let id = self.members.id(&target.address);
        let has_left = id.is_some() && !is_member;
        Ok(Reading { from: target.address.clone(), member: id.filter(|_| is_member), has_left, view })
    }

    /// Replaces the map by a view.
    fn adopt(&self, view: &ClusterView) {
        let owners = view.owners(&self.used);
        // The connections ask who is a member as soon as they start.
        let ids: BTreeMap<_, _> =
            owners.values().map(|master| (master.address.clone(), master.id.clone())).collect();
        self.members.set(ids, view.ids().clone());
        self.change(|map| {
            let now = Instant::now();
            let before: usize = map.owners.len();
            for &slot in &self.used {
                match owners.get(&slot).and_then(|master| self.server(map, &master.address)) {
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

    /// Logs that no server returns the map.
    fn log_unread(&self, cause: FaultCause) {
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
    }

    /// Names the masters of a view that matter, at most a few of them.
    fn describe(&self, view: &ClusterView) -> String {
        const MOST: usize = 6;
        let owners = view.owners(&self.used);
        let masters: BTreeSet<_> = owners.values().map(|master| master.address.as_str()).collect();
        let names: Vec<_> = masters.iter().take(MOST).copied().collect();
        let more = match masters.len().saturating_sub(MOST) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let names = if names.is_empty() { "no master".to_owned() } else { names.join(", ") };
        format!("{names}{more} for {} of {} slots", owners.len(), self.used.len())
    }

    /// Logs that servers say different things about the hash slots that matter, once for each such state.
    fn log_disagreement(&self, last: &LastMap, readings: &[Reading], used: Option<&Reading>) {
        let differs = |reading: &Reading| match used {
            Some(used) => reading.view.owners(&self.used) != used.view.owners(&self.used),
            None => !last.owners.is_empty(),
        };
        let mut text = String::new();
        if readings.iter().any(differs) {
            // In an order that does not depend on who was asked first.
            let mut said = BTreeMap::<String, BTreeSet<&str>>::new();
            for reading in readings {
                said.entry(self.describe(&reading.view)).or_default().insert(&reading.from);
            }
            let all = said.into_iter().map(|(view, from)| {
                format!("{} name {view}", from.into_iter().collect::<Vec<_>>().join(" and "))
            });
            text = all.collect::<Vec<_>>().join("; ");
        }
        let used = used.map_or("the last map", |reading| reading.from.as_str());
        let state = format!("{used} {text}");
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if *logged == state {
            return;
        }
        if !text.is_empty() {
            tracing::warn!(used, "servers of the Redis Cluster disagree about its hash slots: {text}");
        }
        *logged = state;
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

/// A view, and the server that has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reading {
    /// `HOST:PORT` of the server.
    pub(super) from: String,
    /// Its id, if it is a master of the last map that still knows other ones.
    pub(super) member: Option<String>,
    /// Whether it is a master of the last map that knows no other server of it: it has left, or its address is a stranger's.
    pub(super) has_left: bool,
    pub(super) view: ClusterView,
}

/// The map in use.
#[derive(Debug, Default)]
pub(super) struct LastMap {
    /// The id of the master of each hash slot that is used.
    pub(super) owners: BTreeMap<u16, String>,
    /// The ids of masters that still answer.
    pub(super) answering: Vec<String>,
    /// The ids of all servers, replicas included.
    pub(super) ids: BTreeSet<String>,
}

/// The verdict about a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It can be adopted.
    Sound,
    /// It is adopted only if a second master of the last map says the same.
    Doubtful,
    /// It has no server of the last map.
    Strange,
}

impl LastMap {
    /// Judges a view. `used` are the hash slots that matter.
    pub(super) fn judge(&self, view: &ClusterView, used: &[u16]) -> Verdict {
        if self.ids.is_empty() {
            return Verdict::Sound;
        }
        if self.ids.is_disjoint(view.ids()) {
            return Verdict::Strange;
        }
        let now = view.owners(used);
        let loses = self.owners.keys().any(|slot| !now.contains_key(slot));
        let is_taken = |(slot, owner): &(&u16, &String)| {
            self.answering.contains(owner) && now.get(slot).is_some_and(|master| master.id != **owner)
        };
        let taken = self.owners.iter().filter(is_taken).count();
        if loses || taken * 2 >= used.len() { Verdict::Doubtful } else { Verdict::Sound }
    }

    /// Returns the first of these readings that may be adopted: it is sound, or a second master says the same, or there is no
    /// second master.
    pub(super) fn choose<'a>(&self, readings: &'a [Reading], used: &[u16]) -> Option<&'a Reading> {
        let is_alone = |member: &String| self.owners.values().all(|id| id == member);
        let says_the_same = |one: &Reading, other: &Reading| one.view.owners(used) == other.view.owners(used);
        readings.iter().find(|reading| match (self.judge(&reading.view, used), &reading.member) {
            (Verdict::Sound, _) => !reading.has_left,
            (Verdict::Doubtful, Some(member)) => {
                let is_second = |other: &Reading| {
                    other.member.as_ref().is_some_and(|other| other != member)
                        && says_the_same(reading, other)
                };
                is_alone(member) || readings.iter().any(is_second)
            }
            (Verdict::Doubtful, None) | (Verdict::Strange, _) => false,
        })
    }
}

/// Returns the reading that a process begins with, when it has no map yet.
pub(super) fn first<'a>(readings: &'a [Reading], used: &[u16]) -> Option<&'a Reading> {
    most_credible(readings, |reading| &reading.view, used)
}
