//! A child process that holds nothing but keys, so that its resident memory is theirs.

use sluice_store::{Clock, KeyHash, MemoryStore};

use crate::support::child::serve;
use crate::support::keys::{PERIOD, UNREACHABLE, counter, key, limit};

/// Number of keys that the store must be able to hold.
pub(super) const KEYS: u64 = 2_000_000;

/// Serves a store. The command N creates that many new keys, `keys` answers with the number of keys held, and `expire` advances
/// the clock until all of them have expired.
pub(crate) fn run() -> anyhow::Result<()> {
    let mut created = 0;
    let mut new_keys = |count: u64| {
        created += count;
        (created - count..created).map(key)
    };
    let clock = Clock::manual(1 << 40);
    let store = MemoryStore::new(2 * KEYS as usize, clock.clone());
    let limit = limit("bench/policy/limit", UNREACHABLE)?;
    let mut counter = counter(&limit, 0);
    serve(|line| {
        match line {
            "keys" => return Ok(store.keys().to_string()),
            "expire" => clock.advance(2 * PERIOD.as_millis() as u64),
            number => new_keys(number.parse()?).for_each(|key| {
                counter.key = KeyHash(key);
                let _ = store.check(std::slice::from_ref(&counter));
            }),
        }
        Ok("done".to_owned())
    })
}
