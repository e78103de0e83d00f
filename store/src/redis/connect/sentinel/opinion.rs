//! The opinions of sentinels about who the master is, and the order in which they are believed.

use std::cmp::Reverse;
use std::fmt;

/// The answer of one sentinel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Opinion {
    /// Index of the sentinel.
    pub(super) sentinel: usize,
    /// `HOST:PORT` of the master.
    pub(super) master: String,
    /// Its configuration epoch, which every failover increases. `None` without the right to read it.
    pub(super) epoch: Option<u64>,
}

/// A server that sentinels name as the master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    /// `HOST:PORT`.
    pub(super) address: String,
    /// Newest epoch with which a sentinel names it.
    pub(super) epoch: Option<u64>,
    /// Indexes of the sentinels that name it.
    pub(super) sentinels: Vec<usize>,
}

/// Returns the servers that sentinels name, the most credible one first: the one with the newest configuration epoch, never
/// the one that most sentinels name. Where the epochs do not decide, the server in use stays. If it is not among them, the
/// order of the addresses decides, which is the same in all processes.
pub(super) fn candidates(opinions: &[Opinion], current: Option<&str>) -> Vec<Candidate> {
    let mut found = Vec::<Candidate>::new();
    for Opinion { sentinel, master, epoch } in opinions {
        match found.iter_mut().find(|candidate| candidate.address == *master) {
            Some(candidate) => {
                candidate.epoch = candidate.epoch.max(*epoch);
                candidate.sentinels.push(*sentinel);
            }
            None => {
                found.push(Candidate { address: master.clone(), epoch: *epoch, sentinels: vec![*sentinel] });
            }
        }
    }
    // An unknown epoch can be compared with none.
    let epochs_decide = found.iter().all(|candidate| candidate.epoch.is_some());
    found.sort_by_cached_key(|Candidate { address, epoch, .. }| {
        let epoch = epoch.filter(|_| epochs_decide);
        (Reverse(epoch), current != Some(address), address.clone())
    });
    found
}

/// Returns those of the named servers that may replace the one in use, which works: they stand before it, and are no older
/// masters than it was when it was chosen.
pub(super) fn replacements(named: &[Candidate], current: &str, epoch_in_use: Option<u64>) -> Vec<Candidate> {
    let is_older = |candidate: &&Candidate| {
        candidate.epoch.zip(epoch_in_use).is_some_and(|(epoch, in_use)| epoch < in_use)
    };
    let preferred = named.iter().take_while(|candidate| candidate.address != current);
    preferred.filter(|candidate| !is_older(candidate)).cloned().collect()
}

impl Candidate {
    /// Reports whether another candidate is an older master.
    pub(super) fn is_newer_than(&self, other: &Self) -> bool {
        self.epoch.zip(other.epoch).is_some_and(|(this, other)| this > other)
    }
}

/// The server, with the epoch by which it can be compared.
impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.epoch {
            Some(epoch) => write!(f, "{} (epoch {epoch})", self.address),
            None => f.write_str(&self.address),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn opinion(sentinel: usize, master: &str, epoch: Option<u64>) -> Opinion {
        Opinion { sentinel, master: master.into(), epoch }
    }

    fn order(opinions: &[Opinion], current: Option<&str>) -> Vec<String> {
        candidates(opinions, current).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_newest_epoch_is_believed_and_not_the_majority() {
        let opinions = [opinion(0, "a:1", Some(3)), opinion(1, "a:1", Some(3)), opinion(2, "b:1", Some(4))];
        for current in [None, Some("a:1"), Some("b:1"), Some("c:1")] {
            assert_eq!(order(&opinions, current), ["b:1 (epoch 4)", "a:1 (epoch 3)"]);
        }
        assert_eq!(candidates(&opinions, None)[1].sentinels, [0, 1]);
    }

    #[test]
    fn where_epochs_do_not_decide_the_server_in_use_stays() {
        for (left, right) in [(Some(3), Some(3)), (None, Some(9)), (Some(9), None), (None, None)] {
            let opinions = [opinion(0, "b:1", left), opinion(1, "a:1", right)];
            let first = |current| candidates(&opinions, current)[0].address.clone();
            assert_eq!(first(Some("b:1")), "b:1");
            assert_eq!(first(Some("a:1")), "a:1");
            assert_eq!((first(None), first(Some("c:1"))), ("a:1".into(), "a:1".into()));
        }
    }

    proptest! {
        /// Processes that hear the same sentinels, in any order, use the same one if the epochs decide or none is in use.
        #[test]
        fn all_processes_believe_the_same(
            said in prop::collection::vec((0..4u8, prop::option::of(0..4u64)), 1..6),
            turn in 0..6usize,
            current in prop::option::of(0..4u8),
        ) {
            let name = |server: u8| format!("{server}:1");
            let mut opinions: Vec<_> =
                said.iter().enumerate().map(|(at, (server, epoch))| opinion(at, &name(*server), *epoch)).collect();
            let first = candidates(&opinions, None);
            let middle = turn % opinions.len();
            opinions.rotate_left(middle);
            let again = candidates(&opinions, None);
            prop_assert_eq!(&first[0].address, &again[0].address);
            let current = current.map(name);
            let other = candidates(&opinions, current.as_deref());
            let all_known = first.iter().all(|candidate| candidate.epoch.is_some());
            let decided = first.len() < 2 || all_known && first[0].is_newer_than(&first[1]);
            if decided {
                prop_assert_eq!(&first[0].address, &other[0].address);
            }
        }
    }
}
