//! The script for each operation. A check of a shape that the small scripts know goes to them, unless they
//! recently left a check of one of its limits undecided: after an edit of a policy, counters may hold further
//! records for a while, and without this memory each of their checks would need two calls.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::time::{Duration, Instant};

use crate::check::{Counter, LimitSpec};
use crate::redis::batch::{Batch, Operation};
use crate::redis::scripts::Script;

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
    pub(super) fn script_of(&self, operation: &Operation, now: Instant) -> Script {
        let counters = operation.counters();
        let is_general = |counter: &Counter| {
            self.general_until.get(&address(&counter.limit)).is_some_and(|&until| now < until)
        };
        if counters.iter().any(is_general) { Script::General } else { Script::of(counters) }
    }

    /// Records a batch of undecided checks.
    pub(super) fn record_undecided(&mut self, batch: &Batch, now: Instant) {
        self.general_until.retain(|_, until| now < *until);
        for counter in batch.entries().0.iter().flat_map(Operation::counters) {
            self.general_until.insert(address(&counter.limit), now + GENERAL_FOR);
        }
    }
}

fn address(limit: &Arc<LimitSpec>) -> usize {
    Arc::as_ptr(limit) as usize
}
