//! Overrides: the plans of single clients, thousands of them in one table. The operator builds the table from lines of
//! text, sidecars fetch it once by its hash, and a look-up takes the same time however large the table is.
//!
//! - [`table`]: the table, its bytes, and look-ups.

pub mod table;

pub use table::{ClientDigest, MAX_ENTRIES, Override, OverrideTable, client_digest};

/// Name of the plan that admits nothing, which every limit has.
pub const DENY: &str = "deny";
/// Name of the plan that admits everything, which every limit has.
pub const UNLIMITED: &str = "unlimited";
