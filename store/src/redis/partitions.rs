//! The partitions of a store. In a cluster, the keys of a partition are in one hash slot, because they have the
//! same hash tag: <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/>.

use crate::check::KeyHash;

/// Number of hash slots of a cluster.
pub(crate) const HASH_SLOTS: u16 = 16_384;

/// The hash tag of each partition and its hash slot.
#[derive(Debug)]
pub(crate) struct Partitions(Vec<(u32, u16)>);

impl Partitions {
    /// Chooses the tags of so many partitions. Each partition stands for one of as many even ranges of the hash
    /// slots. Its tag is the smallest number whose hash slot is at most an eighth of the range from the middle
    /// of the range. So masters that own even ranges own equally many partitions, give or take one.
    pub(crate) fn new(count: u16) -> Self {
        let (count, slots) = (u32::from(count.max(1)), u32::from(HASH_SLOTS));
        let mut chosen = vec![None; count as usize];
        let mut missing = chosen.len();
        for tag in 0u32.. {
            if missing == 0 {
                break;
            }
            let slot = slot_of(tag.to_string().as_bytes());
            let (partition, within) = (u32::from(slot) * count / slots, u32::from(slot) * count % slots);
            if let Some(free @ None) = chosen.get_mut(partition as usize)
                && within.abs_diff(slots / 2) <= slots / 8
            {
                *free = Some((tag, slot));
                missing -= 1;
            }
        }
        Self(chosen.into_iter().flatten().collect())
    }

    /// Returns the tag and the hash slot of a client's key, which are the same in all limits.
    pub(crate) fn of(&self, key: KeyHash) -> (u32, u16) {
        let at = (key.0 % self.0.len().max(1) as u128) as usize;
        self.0.get(at).copied().unwrap_or_default()
    }

    /// Returns the number of partitions.
    pub(crate) fn count(&self) -> u64 {
        self.0.len() as u64
    }

    /// Returns all hash tags.
    pub(crate) fn tags(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|&(tag, _)| tag)
    }

    /// Returns all hash slots.
    pub(crate) fn slots(&self) -> impl Iterator<Item = u16> {
        self.0.iter().map(|&(_, slot)| slot)
    }
}

/// Returns the hash slot of a hash tag: 14 bits of CRC16/XMODEM, with the polynomial 0x1021.
fn slot_of(tag: &[u8]) -> u16 {
    let crc = tag.iter().fold(0u16, |crc, &byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    crc % HASH_SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::MAX_PARTITIONS;

    #[test]
    fn hash_slots_follow_the_specification() {
        assert_eq!(slot_of(b"123456789"), 0x31c3);
        assert_eq!((slot_of(b""), slot_of(b"foo"), slot_of(b"0")), (0, 12_182, 13_907));
    }

    #[test]
    fn masters_with_even_ranges_own_equally_many_partitions() {
        for count in [64, 48, 100, MAX_PARTITIONS] {
            let partitions = Partitions::new(count);
            for masters in [1, 2, 3, 4, 6, 8, 16, 32, 64].into_iter().filter(|&masters| masters <= count) {
                let mut owned = vec![0; usize::from(masters)];
                for slot in partitions.slots() {
                    owned[usize::from(slot) * usize::from(masters) / usize::from(HASH_SLOTS)] += 1;
                }
                let (least, most) = (owned.iter().min().unwrap(), owned.iter().max().unwrap());
                assert!(most - least <= 1, "{count} partitions on {masters} masters: {owned:?}");
            }
        }
    }

    #[test]
    fn each_partition_has_a_hash_slot_of_its_own_near_the_middle_of_its_range() {
        for count in [1, 2, 3, 63, 64, 1000, MAX_PARTITIONS] {
            let partitions = Partitions::new(count);
            assert_eq!(partitions.0.len(), usize::from(count));
            for (at, slot) in partitions.slots().enumerate() {
                assert_eq!(usize::from(slot) * usize::from(count) / usize::from(HASH_SLOTS), at);
            }
        }
        // Sidecars of other releases must choose the same tags.
        let tags: Vec<_> = Partitions::new(4).0.into_iter().map(|(tag, _)| tag).collect();
        assert_eq!(tags, [3, 2, 1, 0]);
    }
}
