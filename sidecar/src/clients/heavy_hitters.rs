//! The keys that occur most often in a stream, in bounded memory: the algorithm Space-Saving (Metwally, Agrawal and El Abbadi,
//! 2005).

/// Keys that occur often, with their counts.
///
/// A key that is not among them takes the place of the rarest one, and its count. So a count is never too low, and too high by
/// that of the key before at most; and each key that has more than one in `most` of all occurrences is among them.
#[derive(Debug)]
pub(super) struct HeavyHitters {
    hitters: Vec<Hitter>,
    most: usize,
}

/// A key that occurs often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hitter {
    /// Hash of the key.
    pub(crate) key: u128,
    /// Description for operators.
    pub(crate) client: String,
    /// Number of occurrences, at most.
    pub(crate) count: u64,
    /// Number of them that may be those of other keys.
    pub(crate) error: u64,
}

impl HeavyHitters {
    /// Keeps `most` keys.
    pub(super) fn new(most: usize) -> Self {
        Self { hitters: Vec::new(), most }
    }

    /// Counts an occurrence of a key. `describe` describes a key that is new.
    pub(super) fn count(&mut self, key: u128, describe: impl FnOnce() -> String) {
        if let Some(known) = self.hitters.iter_mut().find(|hitter| hitter.key == key) {
            known.count += 1;
        } else if self.hitters.len() < self.most {
            self.hitters.push(Hitter { key, client: describe(), count: 1, error: 0 });
        } else if let Some(rarest) = self.hitters.iter_mut().min_by_key(|hitter| hitter.count) {
            let error = rarest.count;
            *rarest = Hitter { key, client: describe(), count: error + 1, error };
        }
    }

    pub(super) fn hitters(&self) -> &[Hitter] {
        &self.hitters
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
                hitters.count(key, || key.to_string());
                *exact.entry(key).or_default() += 1;
            }
            prop_assert!(hitters.hitters().len() <= 8);
            for Hitter { key, client, count, error } in hitters.hitters() {
                prop_assert!(*count >= exact[key] && count - error <= exact[key]);
                prop_assert_eq!(client, &key.to_string());
            }
            for (key, count) in exact {
                let is_among = hitters.hitters().iter().any(|hitter| hitter.key == key);
                prop_assert!(is_among || count <= keys.len() as u64 / 8);
            }
        }
    }
}
