//! The keys that occur most often in a stream, in bounded memory: the algorithm Space-Saving (Metwally, Agrawal and El Abbadi,
//! 2005).

use std::sync::Arc;

/// Keys that occur often, with their counts.
///
/// A key that is not among them takes the place of the rarest one, and its count. So a count is never too low, and too high by
/// that of the key before at most; and each key that has more than one in `most` of all occurrences is among them.
#[derive(Debug)]
pub(super) struct HeavyHitters {
    /// Keys, and their counts in the same order: apart from the rest, so that a look at all of them is a look at a few
    /// cache lines.
    keys: Vec<u128>,
    counts: Vec<u64>,
    /// Description and error of each.
    clients: Vec<(Arc<str>, u64)>,
    most: usize,
}

/// A key that occurs often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hitter {
    /// Hash of the key.
    pub(crate) key: u128,
    /// Description for operators.
    pub(crate) client: Arc<str>,
    /// Number of occurrences, at most.
    pub(crate) count: u64,
    /// Number of them that may be those of other keys.
    pub(crate) error: u64,
}

impl HeavyHitters {
    /// Keeps `most` keys.
    pub(super) fn new(most: usize) -> Self {
        Self { keys: Vec::new(), counts: Vec::new(), clients: Vec::new(), most }
    }

    /// Counts an occurrence of a key. `describe` describes a key that is new.
    pub(super) fn count(&mut self, key: u128, describe: impl FnOnce() -> Arc<str>) {
        if let Some(known) = self.keys.iter().position(|&other| other == key) {
            self.counts[known] += 1;
        } else if self.keys.len() < self.most {
            self.keys.push(key);
            self.counts.push(1);
            self.clients.push((describe(), 0));
        } else if let Some((rarest, count)) =
            self.counts.iter_mut().enumerate().min_by_key(|(_, count)| **count)
        {
            self.keys[rarest] = key;
            self.clients[rarest] = (describe(), *count);
            *count += 1;
        }
    }

    /// Iterates over the keys that occur most often.
    pub(super) fn hitters(&self) -> impl Iterator<Item = Hitter> {
        let counted = self.keys.iter().zip(&self.counts).zip(&self.clients);
        counted.map(|((&key, &count), (client, error))| Hitter {
            key,
            client: client.clone(),
            count,
            error: *error,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_count_is_never_too_low_and_its_error_is_known(keys in proptest::collection::vec(0u128..30, 0..2_000)) {
            let (mut hitters, mut exact) = (HeavyHitters::new(8), HashMap::<u128, u64>::new());
            for &key in &keys {
                hitters.count(key, || key.to_string().into());
                *exact.entry(key).or_default() += 1;
            }
            prop_assert!(hitters.hitters().count() <= 8);
            for Hitter { key, client, count, error } in hitters.hitters() {
                prop_assert!(count >= exact[&key] && count - error <= exact[&key]);
                prop_assert_eq!(&*client, key.to_string());
            }
            for (key, count) in exact {
                let is_among = hitters.hitters().any(|hitter| hitter.key == key);
                prop_assert!(is_among || count <= keys.len() as u64 / 8);
            }
        }
    }
}
