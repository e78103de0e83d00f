//! The share of a number that belongs to one replica. Replica i of p gets floor(N / p), and one more if its
//! rendezvous rank for the key is below N mod p. The shares of a key add up to exactly N, and the extra
//! requests of different keys go to different replicas.
//!
//! Rendezvous hashing: every replica has a score for a key, made from both, and its rank is the number of
//! replicas with a higher score (Thaler and Ravishankar, "Using Name-Based Mappings to Increase Hit Rates",
//! 1998). Replicas are identified by an index from 0, in an order that is the same for all of them.

/// The index of this replica among the replicas of a policy, and their count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replica {
    index: u32,
    count: u32,
}

impl Replica {
    /// The only replica.
    pub const ONLY: Self = Self { index: 0, count: 1 };

    /// Returns replica `index` of `count`, numbered from 0. An index beyond the count raises the count.
    #[must_use]
    pub fn new(index: u32, count: u32) -> Self {
        Self { index, count: count.max(index.saturating_add(1)) }
    }

    /// Returns the number of replicas.
    #[must_use]
    pub fn count(self) -> u64 {
        u64::from(self.count)
    }

    /// Returns this replica's rank for a key: the number of replicas that come before it.
    pub(crate) fn rank(self, key: u128) -> u64 {
        let position = |index: u32| (score(u64::from(index), key), index);
        let own = position(self.index);
        (0..self.count).filter(|&index| position(index) > own).count() as u64
    }

    /// Returns this replica's share of `number`, given its rank.
    pub(crate) fn share(self, number: u64, rank: u64) -> u64 {
        // Rule: share.adds-up.
        number / self.count() + u64::from(rank < number % self.count())
    }
}

fn score(index: u64, key: u128) -> u64 {
    mix(index ^ mix((key >> 64) as u64 ^ mix(key as u64)))
}

/// The finalizer of splitmix64 (Steele, Lea and Flood, 2014). All replicas must compute the same ranks, so it
/// must not change between releases.
fn mix(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_shares_of_all_replicas_add_up_to_the_number(
            count in 1u32..40, key: u128, number in 0u64..1 << 40,
        ) {
            let replicas = (0..count).map(|index| Replica::new(index, count));
            let sum: u64 = replicas.map(|replica| replica.share(number, replica.rank(key))).sum();
            prop_assert_eq!(sum, number);
        }
    }

    #[test]
    fn extra_requests_are_spread_evenly_over_the_replicas() {
        for replica in (0..10).map(|index| Replica::new(index, 10)) {
            let keys = (0..10_000u128).map(|key| key.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let extra = keys.filter(|&key| replica.rank(key) < 3).count();
            assert!((2_700..3_300).contains(&extra), "{extra} of 10000 keys");
        }
    }
}
