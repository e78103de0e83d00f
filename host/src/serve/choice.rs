//! Chooses the connections that make room for others.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

/// At most so many connections make room at once, and at most one of [`BATCH_FRACTION`], so that choosing them costs little for each new
/// connection. nginx does the same.
pub const MAX_BATCH: usize = 32;
const BATCH_FRACTION: usize = 16;

/// Returns how many of at most `max` connections make room at once.
#[must_use]
pub fn batch(max: usize) -> usize {
    (max / BATCH_FRACTION).clamp(1, MAX_BATCH)
}

/// The harm that the end of a connection does, from the least to the most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Harm {
    /// No request yet: a silent socket, or the beginning of a head.
    New,
    /// Between two requests.
    Idle,
    /// The client neither sends nor reads.
    Stalled,
    /// The client sends or reads a few bytes now and then.
    Slow,
    /// Upgraded, or a gRPC stream, and silent.
    Quiet,
}

impl Harm {
    /// Returns the time in microseconds for which a connection must have been in this state before it makes room. A client that has just
    /// connected or received a response may be sending a request.
    #[must_use]
    pub const fn makes_room_after(self) -> u64 {
        match self {
            Self::New | Self::Idle => 200_000,
            Self::Stalled => 2_000_000,
            Self::Slow => 10_000_000,
            Self::Quiet => 3_000_000,
        }
    }
}

/// A connection that can make room.
#[derive(Debug, Clone, Copy)]
pub struct Candidate {
    /// Its number, for who asks.
    pub index: usize,
    /// The address of its client.
    pub peer: IpAddr,
    /// The harm that its end does.
    pub harm: Harm,
    /// Time since when it is in this state.
    pub since: u64,
}

/// Returns up to `count` of the candidates. `peers` are those of all connections. First go connections whose end
/// does the least harm; of these the peers with by far the most connections, so that one address cannot evict all
/// others; of these the longest idle ones. Behind an ingress everybody is one peer, and only the time counts.
#[must_use]
pub fn choose(
    mut candidates: Vec<Candidate>,
    peers: impl Iterator<Item = IpAddr>,
    count: usize,
) -> Vec<usize> {
    let mut share: HashMap<IpAddr, u32> = HashMap::new();
    for peer in peers {
        *share.entry(network(peer)).or_default() += 1;
    }
    let magnitude = |peer| share.get(&network(peer)).map_or(0, |count| count.max(&1).ilog2());
    candidates.sort_by_cached_key(|candidate| {
        (candidate.harm, Reverse(magnitude(candidate.peer)), candidate.since)
    });
    candidates.truncate(count);
    candidates.into_iter().map(|candidate| candidate.index).collect()
}

/// Returns the network that one client is assumed to own: an IPv4 address, or a /64 of IPv6.
#[must_use]
pub fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(index: usize, peer: &str, harm: Harm, since: u64) -> Candidate {
        Candidate { index, peer: peer.parse().unwrap(), harm, since }
    }

    fn chosen(candidates: &[Candidate], count: usize) -> Vec<usize> {
        choose(candidates.to_vec(), candidates.iter().map(|candidate| candidate.peer), count)
    }

    #[test]
    fn the_longest_idle_connection_makes_room() {
        let idle = [3, 1, 2].map(|since| candidate(since as usize, "10.0.0.1", Harm::Idle, since));
        assert_eq!(chosen(&idle, 2), [1, 2]);
        assert_eq!(chosen(&idle, 9), [1, 2, 3]);
        assert!(chosen(&[], 1).is_empty());
    }

    #[test]
    fn the_end_that_does_the_least_harm_comes_first() {
        let all = [Harm::Quiet, Harm::Slow, Harm::Stalled, Harm::Idle, Harm::New];
        let all: Vec<_> = (0..5).map(|n| candidate(n, "10.0.0.1", all[n], n as u64)).collect();
        assert_eq!(chosen(&all, 5), [4, 3, 2, 1, 0]);
    }

    #[test]
    fn a_peer_with_far_more_connections_makes_room_first() {
        let mut all: Vec<_> = (0..16).map(|n| candidate(n, "10.0.0.1", Harm::Idle, 100)).collect();
        all.push(candidate(16, "10.0.0.2", Harm::Idle, 1));
        all.push(candidate(17, "2001:db8::1", Harm::Idle, 2));
        assert!(chosen(&all, 16).iter().all(|index| *index < 16));
        assert_eq!(chosen(&all, 18)[16..], [16, 17]);
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one_peer() {
        let network = |address: &str| network(address.parse().unwrap());
        assert_eq!(network("::ffff:10.0.0.1"), network("10.0.0.1"));
        assert_ne!(network("10.0.0.1"), network("10.0.0.2"));
        let mut all: Vec<_> =
            (0..8).map(|n| candidate(n, &format!("2001:db8::{n}"), Harm::Idle, 100)).collect();
        all.push(candidate(8, "2001:db8:0:1::1", Harm::Idle, 1));
        assert_eq!(chosen(&all, 9)[8], 8);
    }
}
