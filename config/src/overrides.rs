//! Overrides: the plans of single clients, thousands of them in one table. The operator builds the table from lines of
//! text, sidecars fetch it once by its hash, and a look-up takes the same time however large the table is.
//!
//! The bytes of a table are the same for equal overrides, and they are what is looked up: nothing is copied out of them but the names of
//! the plans and an index. They are the version, the number of plans, the plans (each a length and a name), and the overrides in the order
//! of their clients: 16 bytes of the client's digest, the index of the plan, and 4 bytes of the time at which the override ends,
//! little-endian.

use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use crate::nack::Nack;

/// Name of the plan that admits nothing, which every limit has.
pub const DENY: &str = "deny";
/// Name of the plan that admits everything, which every limit has.
pub const UNLIMITED: &str = "unlimited";

/// Largest number of overrides in a table.
pub const MAX_ENTRIES: usize = 250_000;

/// Version of the format.
const VERSION: u8 = 1;
/// Length of an override in bytes.
const ENTRY: usize = 16 + 1 + 4;
/// Number of overrides in a bucket of the index, on average.
const BUCKET: usize = 4;

/// First half of the SHA-256 of a client's text, which identifies the client in a table.
pub type ClientDigest = [u8; 16];

/// Returns the digest of a client's text.
#[must_use]
pub fn client_digest(client: &[u8]) -> ClientDigest {
    let digest = Sha256::digest(client);
    std::array::from_fn(|n| digest[n])
}

/// The plan of one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Override {
    /// The client.
    pub client: ClientDigest,
    /// Index of the plan in the table.
    pub plan: u8,
    /// Time from which the override no longer holds, in seconds since the Unix epoch; 0 for never.
    pub until: u32,
}

/// A table of overrides.
#[derive(Debug, Clone)]
pub struct OverrideTable {
    bytes: Arc<[u8]>,
    plans: Vec<String>,
    /// Offset of the first override.
    entries_at: usize,
    /// Index of the first override of each bucket, and their number. The first bits of a digest are its bucket.
    buckets: Box<[u32]>,
    /// Number of low bits of the first four bytes of a digest that do not belong to the bucket.
    shift: u32,
}

impl OverrideTable {
    /// Encodes overrides. No two may have the same client. Fails if there are too many plans or overrides, or if the name
    /// of a plan is too long.
    pub fn encode<'a>(
        plans: impl IntoIterator<Item = &'a str>,
        mut overrides: Vec<Override>,
    ) -> Result<Vec<u8>, Nack> {
        let mut bytes = vec![VERSION, 0];
        for (n, plan) in plans.into_iter().enumerate() {
            let too_many =
                |_| Nack::new("a table of overrides has at most 255 plans with names of 255 bytes");
            bytes[1] = u8::try_from(n + 1).map_err(too_many)?;
            bytes.push(u8::try_from(plan.len()).map_err(too_many)?);
            bytes.extend_from_slice(plan.as_bytes());
        }
        overrides.sort_unstable();
        bytes.reserve(overrides.len() * ENTRY);
        for Override { client, plan, until } in overrides {
            bytes.extend_from_slice(&client);
            bytes.push(plan);
            bytes.extend_from_slice(&until.to_le_bytes());
        }
        Ok(bytes)
    }

    /// Checks the bytes of a table, and indexes them.
    pub fn new(bytes: Arc<[u8]>) -> Result<Self, Nack> {
        let damaged = || Nack::new("the table of overrides is damaged");
        let (&version, mut rest) = bytes.split_first().ok_or_else(damaged)?;
        if version != VERSION {
            return Err(Nack::new(format_args!(
                "the overrides have the format {version}, and this sidecar knows only {VERSION}: restart the pod to update it"
            )));
        }
        let (&count, after) = rest.split_first().ok_or_else(damaged)?;
        rest = after;
        let mut plans = Vec::with_capacity(count.into());
        for _ in 0..count {
            let (&length, after) = rest.split_first().ok_or_else(damaged)?;
            let (name, after) = after.split_at_checked(length.into()).ok_or_else(damaged)?;
            plans.push(std::str::from_utf8(name).map_err(|_| damaged())?.to_owned());
            rest = after;
        }
        let (entries, remainder) = rest.as_chunks::<ENTRY>();
        if !remainder.is_empty() || !entries.is_sorted_by(|a, b| a[..16] < b[..16]) {
            return Err(damaged());
        }
        if entries.len() > MAX_ENTRIES {
            return Err(Nack::new(format_args!(
                "a limit has {} overrides: at most {MAX_ENTRIES} are allowed",
                entries.len()
            )));
        }
        if entries.iter().any(|entry| entry[16] >= count) {
            return Err(damaged());
        }
        let bits = (entries.len() / BUCKET).max(1).next_power_of_two().ilog2();
        // A shift by all bits would overflow, so that one bucket takes none of 31.
        let shift = (32 - bits).min(31);
        let mut buckets = vec![0; (u32::MAX >> shift) as usize + 2];
        for entry in entries {
            buckets[(prefix(entry) >> shift) as usize + 1] += 1;
        }
        for n in 1..buckets.len() {
            buckets[n] += buckets[n - 1];
        }
        let entries_at = bytes.len() - rest.len();
        Ok(Self { plans, entries_at, buckets: buckets.into(), shift, bytes })
    }

    /// Returns the names of the plans.
    #[must_use]
    pub fn plans(&self) -> &[String] {
        &self.plans
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the number of overrides.
    #[must_use]
    pub fn count(&self) -> usize {
        self.entries().len()
    }

    /// Iterates over the overrides.
    pub fn iter(&self) -> impl Iterator<Item = Override> {
        self.entries().iter().map(read)
    }

    /// Returns the override of a client.
    #[must_use]
    pub fn find(&self, client: &[u8]) -> Option<Override> {
        self.find_digest(client_digest(client))
    }

    /// Returns the override of the client with a digest.
    #[must_use]
    pub fn find_digest(&self, digest: ClientDigest) -> Option<Override> {
        let bucket = (prefix(&digest) >> self.shift) as usize;
        let range = self.buckets[bucket] as usize..self.buckets[bucket + 1] as usize;
        let entries = self.entries().get(range)?;
        let found = entries.binary_search_by(|entry| entry[..16].cmp(&digest)).ok()?;
        Some(read(&entries[found]))
    }

    fn entries(&self) -> &[[u8; ENTRY]] {
        self.bytes[self.entries_at..].as_chunks().0
    }
}

impl Override {
    /// Reports whether the override holds at a time in seconds since the Unix epoch.
    pub fn holds(&self, now: impl FnOnce() -> u64) -> bool {
        self.until == 0 || now() < u64::from(self.until)
    }
}

/// Returns the override in an entry.
fn read(entry: &[u8; ENTRY]) -> Override {
    let [client @ .., plan, a, b, c, d] = *entry;
    Override { client, plan, until: u32::from_le_bytes([a, b, c, d]) }
}

/// Returns the first four bytes of a digest.
fn prefix(digest: &[u8]) -> u32 {
    digest[..4].iter().fold(0, |all, &byte| all << 8 | u32::from(byte))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn table(overrides: Vec<Override>) -> OverrideTable {
        let bytes = OverrideTable::encode(["deny", "large"], overrides).unwrap();
        OverrideTable::new(bytes.into()).unwrap()
    }

    #[test]
    fn a_client_has_the_plan_of_its_override_until_that_ends() {
        let client = client_digest(b"acme");
        let acme = Override { client, plan: 1, until: 100 };
        let table = table(vec![acme, Override { client: client_digest(b"mallory"), plan: 0, until: 0 }]);
        assert_eq!((table.plans(), table.count()), (&["deny".to_owned(), "large".to_owned()][..], 2));
        let found = table.find(b"acme").unwrap();
        assert_eq!(found, acme);
        assert!(found.holds(|| 99) && !found.holds(|| 100));
        assert!(table.find(b"mallory").unwrap().holds(|| panic!("the time does not matter")));
        assert_eq!((table.find(b"acm"), table.find(b"")), (None, None));
    }

    #[test]
    fn a_table_without_overrides_has_none() {
        assert_eq!(table(Vec::new()).find(b"acme"), None);
    }

    #[test]
    fn damaged_bytes_are_an_error() {
        let overrides =
            [b"a", b"b", b"c"].map(|name| Override { client: client_digest(name), plan: 1, until: 7 });
        let bytes = OverrideTable::encode(["deny", "large"], overrides.to_vec()).unwrap();
        for end in 0..bytes.len() {
            let cut = OverrideTable::new(bytes[..end].into());
            let is_whole = (bytes.len() - end).is_multiple_of(ENTRY) && end >= bytes.len() - 3 * ENTRY;
            assert_eq!(cut.is_ok(), is_whole, "{end}");
        }
        let mut unknown = bytes.clone();
        let last = unknown.len() - 5;
        unknown[last] = 2;
        assert!(OverrideTable::new(unknown.into()).unwrap_err().0.contains("damaged"));
        let repeated =
            OverrideTable::encode(["deny"], vec![Override { plan: 0, ..overrides[0] }; 2]).unwrap();
        assert!(OverrideTable::new(repeated.into()).unwrap_err().0.contains("damaged"));
        assert!(OverrideTable::new([9, 0][..].into()).unwrap_err().0.contains("format 9"));
    }

    proptest! {
        /// Digests that begin alike fall into one bucket.
        #[test]
        fn a_table_finds_what_it_has_and_nothing_else(
            clients in proptest::collection::btree_map("[a-d]{1,4}", (0u8..2, any::<u32>()), 0..200),
            others in proptest::collection::vec("[a-d]{1,4}", 0..50),
            are_alike: bool,
        ) {
            let digest = |name: &str| {
                let mut digest = client_digest(name.as_bytes());
                if are_alike {
                    digest[..4].fill(7);
                }
                digest
            };
            let overrides: BTreeMap<_, _> = clients
                .iter()
                .map(|(name, (plan, until))| (name, Override { client: digest(name), plan: *plan, until: *until }))
                .collect();
            let table = table(overrides.values().copied().collect());
            prop_assert_eq!(table.count(), overrides.len());
            for name in clients.keys().chain(&others) {
                prop_assert_eq!(table.find_digest(digest(name)), overrides.get(name).copied());
            }
        }

        #[test]
        fn garbage_never_panics(mut bytes: Vec<u8>, version: bool) {
            if version && let Some(first) = bytes.first_mut() {
                *first = VERSION;
            }
            let _ = OverrideTable::new(bytes.into()).map(|table| table.find(b"a"));
        }
    }
}
