//! Connections that have not shown whose they are. They cannot take the places of those that have, and must not stay for long. When there
//! are too many, the oldest of the peer that has the most makes room if it has had its time, so that a few peers do not keep others out.
//! Otherwise a crowd connects, node by node perhaps: each waits until another has shown whose it is.

use std::future::pending;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::{Connection, EndReason, Entries, Place, PortMetrics, Strangers, Table};

/// Longest time that a connection waits for a place among the strangers.
const MAX_WAIT: Duration = Duration::from_secs(10);
/// Time in which a stranger does not make room for others: that of a caller in a crowd.
const UNDISTURBED: Duration = Duration::from_secs(5);
/// Longest time for which a connection is a stranger's: for the handshake of TLS, the head, and what its answer waits for.
const MAX_STRANGE: Duration = Duration::from_secs(30);

impl Table {
    /// Admits a connection, which waits first. `None` if there are too many.
    pub(super) fn enter(self: &Arc<Self>, peer: IpAddr, maxima: Strangers) -> Option<Place> {
        let mut entries = self.lock();
        let own = entries.of_peer.get(&peer).copied().unwrap_or_default();
        if entries.places >= self.maxima.connections
            || own.places >= self.maxima.of_peer
            || own.strangers >= maxima.of_address
        {
            self.metrics.ended(EndReason::Peer);
            return None;
        }
        let place = self.add(&mut entries, peer);
        entries.of_peer.entry(peer).or_default().strangers += 1;
        place.0.is_stranger.store(true, Relaxed);
        Some(place)
    }
}

impl Entries {
    /// Gives a place among at most `max` strangers to a connection that waits. Reports whether there is one.
    fn seat(&mut self, connection: &Arc<Connection>, max: usize, metrics: &PortMetrics) -> bool {
        if self.strangers.len() >= max && !self.displace(connection.peer, metrics) {
            return false;
        }
        self.of_peer.entry(connection.peer).or_default().seated += 1;
        self.strangers.push((Instant::now(), connection.clone()));
        true
    }

    /// Ends the oldest stranger of the peer with the most, unless `by` has as many and would only displace its like, or it is young.
    fn displace(&mut self, by: IpAddr, metrics: &PortMetrics) -> bool {
        // They are in the order of their age.
        if self.strangers.first().is_none_or(|(since, _)| since.elapsed() < UNDISTURBED) {
            return false;
        }
        let own = self.of_peer.get(&by).map_or(0, |own| own.seated);
        let largest = self.of_peer.iter().max_by_key(|(_, of_peer)| of_peer.seated);
        let oldest = largest
            .filter(|(_, of_peer)| of_peer.seated > own + 1)
            .and_then(|(peer, _)| self.strangers.iter().find(|(_, one)| one.peer == *peer))
            .filter(|(since, _)| since.elapsed() >= UNDISTURBED);
        let Some((_, oldest)) = oldest.cloned() else { return false };
        self.admit(&oldest);
        oldest.end(EndReason::EvictedStalled);
        metrics.ended(EndReason::EvictedStalled);
        true
    }

    /// Notes that a connection is no longer a stranger's. Reports whether it was.
    pub(super) fn admit(&mut self, connection: &Connection) -> bool {
        let was_stranger = connection.is_stranger.swap(false, Relaxed);
        if was_stranger && let Some(of_peer) = self.of_peer.get_mut(&connection.peer) {
            of_peer.strangers -= 1;
            if let Some(seat) = self.strangers.iter().position(|(_, one)| std::ptr::eq(&**one, connection)) {
                of_peer.seated -= 1;
                self.strangers.remove(seat);
            }
        }
        was_stranger
    }
}

impl Connection {
    /// Notes that it has shown whose it is.
    pub fn identified(&self) {
        if self.table.lock().admit(self) {
            self.table.left.notify_one();
        }
    }

    /// Reports whether it has not shown whose it is, although it must.
    #[must_use]
    pub fn is_stranger(&self) -> bool {
        self.is_stranger.load(Relaxed)
    }

    /// Waits for a place among the strangers, if it is one. Reports whether there is one in time.
    pub(in crate::serve) async fn is_seated(self: &Arc<Self>) -> bool {
        let table = &self.table;
        let Some(Strangers { connections: max, .. }) = table.maxima.strangers else { return true };
        let seat = || {
            let mut entries = table.lock();
            let is_seated = entries.seat(self, max, &table.metrics);
            if is_seated && entries.strangers.len() < max {
                // Several may have left at once.
                table.left.notify_one();
            }
            is_seated
        };
        let seated = timeout(MAX_WAIT, async {
            while !seat() {
                // One that is too young to make room will be older then.
                let _ = timeout(UNDISTURBED, table.left.notified()).await;
            }
        });
        let is_seated = seated.await.is_ok();
        if !is_seated {
            table.metrics.ended(EndReason::Peer);
        }
        is_seated
    }

    /// Waits until it has been a stranger's for too long.
    pub(in crate::serve) async fn overstays(&self) {
        if self.is_stranger() {
            sleep(MAX_STRANGE).await;
        }
        if !self.is_stranger() {
            pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use futures::FutureExt as _;

    use super::*;
    use crate::serve::table::Maxima;
    use crate::serve::table::exchange::Exchange;

    fn peer(n: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, n).into()
    }

    fn table(connections: usize, of_peer: usize, strangers: usize, of_address: usize) -> Arc<Table> {
        let strangers = Some(Strangers { connections: strangers, of_address });
        Table::new(Maxima { connections, of_peer, strangers, bytes: 0 }, PortMetrics::default())
    }

    /// Waits for a place of a connection.
    async fn wait(table: &Arc<Table>, peer: IpAddr) -> Option<Place> {
        let place = table.place(peer).await?;
        place.0.is_seated().await.then_some(place)
    }

    /// Returns a place that is free now.
    fn place(table: &Arc<Table>, n: u8) -> Option<Place> {
        wait(table, peer(n)).now_or_never().flatten()
    }

    fn has_ended(place: &Place) -> bool {
        place.0.ended().now_or_never().is_some()
    }

    fn is_empty(table: &Table) -> bool {
        let entries = table.lock();
        entries.places == 0
            && entries.all.is_empty()
            && entries.of_peer.is_empty()
            && entries.strangers.is_empty()
    }

    #[tokio::test(start_paused = true)]
    async fn strangers_take_only_their_share_of_the_connections() {
        let table = table(6, 4, 3, 2);
        let mut first: Vec<_> = (0..3).filter_map(|_| place(&table, 1)).collect();
        assert_eq!(first.len(), 2, "of one peer");
        for place in &first {
            place.0.identified();
            place.0.identified();
        }
        first.extend((0..3).filter_map(|_| place(&table, 1)));
        assert_eq!(first.len(), 4, "all of one peer");
        first.iter().for_each(|place| place.0.identified());
        assert!(place(&table, 1).is_none());
        let others = [2, 3].map(|n| place(&table, n).unwrap());
        assert!(place(&table, 4).is_none(), "of all peers");
        assert!(!first.iter().chain(&others).any(has_ended));
        drop((first, others));
        assert!(is_empty(&table));
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_stranger_of_the_peer_that_has_the_most_makes_room_after_its_time() {
        let table = table(100, 10, 6, 4);
        let known = place(&table, 1).unwrap();
        known.0.identified();
        let many: Vec<_> = (0..4).map(|_| place(&table, 1).unwrap()).collect();
        // It makes room too, although its request waits for an answer.
        let _busy = Exchange::begin(&many[0].0, true, 0).0;
        let few: Vec<_> = (0..2).map(|_| place(&table, 2).unwrap()).collect();
        assert!(place(&table, 3).is_none(), "in a crowd, one node connects before another");
        let waiting = tokio::spawn({
            let table = table.clone();
            async move { wait(&table, peer(3)).await }
        });
        sleep(UNDISTURBED).await;
        let new = [waiting.await.unwrap().unwrap(), place(&table, 3).unwrap()];
        let ended = |places: &[Place]| places.iter().map(has_ended).collect::<Vec<_>>();
        assert_eq!(ended(&many), [true, true, false, false]);
        assert!(place(&table, 3).is_none(), "all peers have two");
        assert!(!has_ended(&known) && ended(&few) == [false; 2] && ended(&new) == [false; 2]);
        drop((many, _busy));
        assert!(place(&table, 3).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn in_a_crowd_each_connection_waits_until_another_is_identified() {
        let table = table(6, 4, 2, 2);
        let first = [1, 2].map(|n| place(&table, n).unwrap());
        let waiting = [3, 4, 5].map(|n| {
            let table = table.clone();
            tokio::spawn(async move { wait(&table, peer(n)).await })
        });
        tokio::task::yield_now().await;
        assert_eq!(table.lock().places, 5);
        let [third, fourth, late] = waiting;
        first[0].0.identified();
        let third = third.await.unwrap().expect("the first is identified");
        drop(third);
        let fourth = fourth.await.unwrap().expect("the third has left");
        assert!(late.await.unwrap().is_none(), "nobody leaves in time");
        drop((first, fourth));
        assert!(is_empty(&table));
    }

    #[tokio::test(start_paused = true)]
    async fn pods_whose_addresses_share_a_network_are_several_peers() {
        let table = table(9, 1, 9, 1);
        let addresses = ["2001:db8::1", "2001:db8::2", "10.0.0.1"];
        let places = addresses.map(|address| wait(&table, address.parse().unwrap()).now_or_never().flatten());
        assert!(places.iter().all(Option::is_some));
        assert!(table.place("::ffff:10.0.0.1".parse().unwrap()).await.is_none(), "the same address");
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_stranger_must_not_stay() {
        let table = table(9, 9, 9, 9);
        let [stranger, known] = [1, 2].map(|n| place(&table, n).unwrap());
        let late = timeout(2 * MAX_STRANGE, known.0.overstays());
        known.0.identified();
        assert!(late.await.is_err());
        assert!(timeout(MAX_STRANGE / 2, stranger.0.overstays()).await.is_err());
        assert!(timeout(MAX_STRANGE, stranger.0.overstays()).await.is_ok());
    }
}
