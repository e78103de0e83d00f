//! The storage in memory.

use std::ops::Range;
use std::sync::Arc;

use limitador::storage::CounterStorage;
use limitador::storage::in_memory::InMemoryStorage;

use crate::limits::{counters, limit, to_anyhow};

/// Creates a storage with room for `keys`.
pub(crate) fn storage(keys: u64) -> InMemoryStorage {
    InMemoryStorage::new(keys)
}

/// Creates the keys of some clients.
pub(crate) fn fill(storage: &InMemoryStorage, clients: Range<u64>) -> anyhow::Result<()> {
    let limit = Arc::new(limit(1_000_000_000)?);
    clients.into_iter().try_for_each(|client| {
        storage.check_and_update(&mut counters(&limit, client)?, 1).map_err(to_anyhow)?;
        Ok(())
    })
}
