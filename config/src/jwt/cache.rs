//! Verified tokens, in bounded memory: two generations, of which the older is forgotten when the newer is full. A token that
//! is used moves to the newer. Tokens that are not valid are remembered for a second in places of their own, so that nobody
//! can displace the others by them, and several limits do not verify one request several times.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Number of independent parts, so that threads seldom wait for each other.
const SHARDS: usize = 8;
/// Largest number of tokens in a generation of a part. All parts together keep at most 4096.
const GENERATION: usize = 256;

/// Number of refused tokens that a part remembers.
const REFUSED: usize = 16;

/// The claims of a verified token that limits need.
#[derive(Debug)]
pub(super) struct Verified {
    /// Time from which the token is no longer valid, in seconds since the Unix epoch.
    pub(super) expires: u64,
    /// The claims, in the order in which they were asked for.
    pub(super) claims: Box<[Claim]>,
}

/// A claim of a token.
#[derive(Debug)]
pub(super) enum Claim {
    /// It is not there, or empty.
    Absent,
    /// It is a text that identifies a client.
    Text(Box<str>),
    /// It is there, and too long or of a type that identifies nobody.
    Unusable,
}

/// The cache. Its keys are hashes with secrets that nobody knows.
#[derive(Debug, Default)]
pub(super) struct Cache {
    secrets: [RandomState; 2],
    shards: [Mutex<Generations>; SHARDS],
}

#[derive(Debug, Default)]
struct Generations {
    newer: HashMap<u128, Arc<Verified>>,
    older: HashMap<u128, Arc<Verified>>,
    /// Tokens that were refused, each with the second in which that was.
    refused: [(u128, u64); REFUSED],
}

impl Cache {
    /// Returns the key of a token.
    pub(super) fn key(&self, token: &[u8]) -> u128 {
        let [high, low] = [0, 1].map(|n: usize| self.secrets[n].hash_one(token));
        u128::from(high) << 64 | u128::from(low)
    }

    /// Returns a token that is valid at a time, in seconds since the Unix epoch.
    pub(super) fn get(&self, key: u128, now: u64) -> Option<Arc<Verified>> {
        let mut shard = self.shard(key);
        if let Some(found) = shard.newer.get(&key) {
            return (now < found.expires).then(|| found.clone());
        }
        let found = shard.older.remove(&key).filter(|found| now < found.expires)?;
        shard.insert(key, found.clone());
        Some(found)
    }

    /// Reports whether a token was refused in this second.
    pub(super) fn is_refused(&self, key: u128, now: u64) -> bool {
        self.shard(key).refused[place(key)] == (key, now)
    }

    /// Remembers a token that was refused.
    pub(super) fn refuse(&self, key: u128, now: u64) {
        self.shard(key).refused[place(key)] = (key, now);
    }

    pub(super) fn insert(&self, key: u128, verified: Arc<Verified>) {
        self.shard(key).insert(key, verified);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let shards = self.shards.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner));
        shards.map(|shard| shard.newer.len() + shard.older.len()).sum()
    }

    fn shard(&self, key: u128) -> MutexGuard<'_, Generations> {
        // No statement that changes a generation can panic halfway.
        self.shards[key as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the place of a refused token in its part.
fn place(key: u128) -> usize {
    (key >> 64) as usize % REFUSED
}

impl Generations {
    fn insert(&mut self, key: u128, verified: Arc<Verified>) {
        if self.newer.len() >= GENERATION {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(key, verified);
    }
}
