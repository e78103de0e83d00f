//! Shards: parts of the store's keys, each behind one lock.
//!
//! - [`shard`]: a shard.
//! - [`hot`]: the counter of a shard that is checked again and again, outside of the lock.
//! - [`cell_table`]: the hash table of a shard's cells.
//! - [`spill`]: records that do not fit into a cell.

mod cell_table;
mod hot;
mod shard;
mod spill;

#[cfg(test)]
pub(super) use cell_table::CellTable;
pub(super) use cell_table::SHARD_BITS;
#[cfg(test)]
pub(super) use hot::HOT_MICROS;
pub(super) use hot::Hot;
pub(super) use shard::{Shard, StoredCounter};
