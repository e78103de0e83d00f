//! The memory store. Its clock is not real.

use std::sync::Arc;

use sluice_store::{Clock, MemoryStore};

use super::Subject;

struct Memory {
    store: [Arc<MemoryStore>; 1],
    clock: Clock,
}

fn start() -> Memory {
    let clock = Clock::manual(1_750_000_000_000);
    Memory { store: [Arc::new(MemoryStore::new(10_000, clock.clone()))], clock }
}

impl Subject for Memory {
    type Store = MemoryStore;

    fn clients(&self) -> &[Arc<MemoryStore>] {
        &self.store
    }

    fn pass(&self, micros: i64) -> bool {
        // A step back is one around all numbers.
        self.clock.advance_micros(micros as u64);
        true
    }
}

super::passes_the_contract!(start());
