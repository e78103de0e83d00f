use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::Algorithm;
use crate::testing::{any_rate, rate};

const NOW: u64 = 1_700_000_000_000;

proptest! {
    /// Compares the registry with the set of keys and their expiries, under steady use and idle times.
    #[test]
    fn the_registry_of_plain_windows_is_exact(
        fixed in any::<bool>(),
        uses in proptest::collection::vec((0u64..30, 0u64..1500), 1..200),
    ) {
        let algorithm = if fixed { Algorithm::FIXED_WINDOW } else { Algorithm::SLIDING_WINDOW };
        let rate = rate(10, 1000, algorithm);
        let grid = KeyRegistry::grid(&[rate]);
        prop_assert_eq!(grid, 1000);
        let (mut registry, mut live, mut now) = (KeyRegistry::new(NOW, grid), HashMap::new(), NOW);
        for (key, passed) in uses {
            now += passed;
            live.retain(|_, expiry| *expiry > now);
            registry = KeyRegistry::decode(&registry.encode()).unwrap_or(KeyRegistry::new(now, grid)).at(now, grid);
            prop_assert_eq!(registry.keys(), live.len() as u64);
            let (record, at) = rate.roll(None, now * 1000);
            let expiry = rate.charge(record, at, 1).expires_at();
            registry.replace(live.insert(key, expiry).unwrap_or(0), expiry);
        }
    }

    /// A key never counts too little, and at most for a slot too long.
    #[test]
    fn any_other_key_counts_until_the_end_of_the_slot_in_which_it_expires(
        rate in any_rate(),
        start in NOW..NOW + 100_000_000,
        cost in 1u64..100,
    ) {
        let grid = KeyRegistry::grid(&[rate]);
        let (record, at) = rate.roll(None, start * 1000);
        let expiry = rate.charge(record, at, cost.min(rate.capacity())).expires_at();
        // A limit of 0 has no keys.
        prop_assume!(expiry > start);
        prop_assert!(expiry <= start + 17 * grid);
        let mut registry = KeyRegistry::new(start, grid);
        registry.replace(0, expiry);
        let keys = |now| registry.clone().at(now, grid).keys();
        prop_assert_eq!(keys(start.max(expiry.min(start + 14 * grid) - 1)), 1);
        prop_assert_eq!(keys(expiry + grid), 0);
    }

    /// Two versions of a limit take turns for a while.
    #[test]
    fn slots_of_other_lengths_shift_a_key_by_half_a_slot_at_most(one in 1u64..100_000, other in 1u64..100_000) {
        let mut registry = KeyRegistry::new(NOW, one);
        registry.replace(0, NOW + one);
        let end = registry.expires_at();
        for _ in 0..20 {
            registry = registry.at(NOW, other).at(NOW, one);
        }
        prop_assert!(registry.keys() == 1 && registry.expires_at().abs_diff(end) <= one.max(other));
    }
}

#[test]
fn bytes_that_are_no_registry_are_told() {
    let mut registry = KeyRegistry::new(NOW, 1000);
    registry.replace(0, NOW + 2000);
    let bytes = registry.encode();
    assert_eq!(KeyRegistry::decode(&bytes), Some(registry));
    for damaged in [&bytes[..12], &bytes[1..], &[bytes.as_slice(), &[0]].concat(), &[0xff; 20], &[0; 20], b""]
    {
        assert_eq!(KeyRegistry::decode(damaged), None);
    }
    assert_eq!(
        KeyRegistry::decode(&[&bytes[..12], &[0; 64]].concat()).map(|registry| registry.keys()),
        Some(0)
    );
    assert_eq!(KeyRegistry::decode(&[&bytes[..12], &[0; 68]].concat()), None);
}

#[test]
fn a_clock_that_steps_back_loses_no_key() {
    let mut registry = KeyRegistry::new(NOW, 1000);
    registry.replace(0, NOW + 2000);
    for back in [1_000, 5_000, 100_000] {
        assert_eq!(registry.clone().at(NOW - back, 1000).keys(), 1);
    }
    assert_eq!(registry.at(NOW + 2000, 1000).keys(), 0);
}

#[test]
fn hashed_keys_fill_between_75_and_125_percent_of_a_limit() {
    for (max_keys, partitions) in [(10_000, 64), (10_000, 16), (100_000, 64), (1_000_000, 64), (10_000, 1)] {
        let share = partition_share(max_keys, partitions);
        assert!(share * partitions <= max_keys * 5 / 4, "{share} of {max_keys} keys in {partitions}");
        let mut used = vec![0; partitions as usize];
        let mut seed = 7u64;
        for key in 0..max_keys * 3 / 4 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let partition = &mut used[((seed >> 33) % partitions) as usize];
            *partition += 1;
            assert!(*partition <= share, "a partition is full after {key} of {max_keys} keys");
        }
        assert!(share * partitions >= max_keys * 99 / 100, "{share} of {max_keys} keys in {partitions}");
    }
}
