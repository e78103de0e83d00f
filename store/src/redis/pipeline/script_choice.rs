//! The script for each operation: the plain one for a plain check, unless it recently left a check of the same
//! limit undecided. An edit of a policy may leave two records in a counter for a while; without this memory,
//! each check of such counters would need two calls.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::time::{Duration, Instant};

use crate::check::LimitSpec;
use crate::redis::batch::{Batch, Operation, ScriptKind};

/// Duration for which the general script decides all checks of a limit after an undecided one.
const GENERAL_FOR: Duration = Duration::from_secs(1);

/// Limits whose checks the general script decides for now, by their address. A wrong entry, because another
/// limit has taken the address, only affects the price of its checks.
#[derive(Debug, Default)]
pub(super) struct ScriptChoice {
    general_until: HashMap<usize, Instant>,
}

impl ScriptChoice {
    /// Returns the script that decides an operation.
    pub(super) fn script_of(&self, operation: &Operation, now: Instant) -> ScriptKind {
        let is_general = |limit| self.general_until.get(&address(limit)).is_some_and(|&until| now < until);
        match operation.plain_counter() {
            Some(counter) if !is_general(&counter.limit) => ScriptKind::Plain,
            _ => ScriptKind::General,
        }
    }

    /// Records a batch that the plain script left undecided.
    pub(super) fn record_undecided(&mut self, batch: &Batch, now: Instant) {
        self.general_until.retain(|_, until| now < *until);
        for counter in batch.entries().0.iter().flat_map(|entry| entry.counters()) {
            self.general_until.insert(address(&counter.limit), now + GENERAL_FOR);
        }
    }
}

fn address(limit: &Arc<LimitSpec>) -> usize {
    Arc::as_ptr(limit) as usize
}
