//! Makes room when the memory budget is exceeded: returns freed memory to the system, then evicts the connections
//! that occupy the most, until reading can go on.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, interval, sleep};

use crate::inbound::table::ConnectionTable;
use crate::memory::{BUDGET, release_free};

/// Interval at which it is checked whether evicted connections have ended, and how often.
const ROUND: Duration = Duration::from_millis(5);
const MAX_ROUNDS: u32 = 200;
/// Number of times in succession that only the end of evicted connections is waited for.
const MAX_WAITS: u32 = 2;
/// Connections may be evicted that occupy this many times the excess, and so many bytes more.
const MAX_FREED_FACTOR: u64 = 4;
const MAX_FREED_MORE: u64 = 64 << 20;
/// Interval at which freed memory is returned to the system.
const RELEASE_INTERVAL: Duration = Duration::from_secs(2);
/// Minimum interval between two warnings.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// Evicts connections until the memory is within the budget. If far more should have become free than was needed,
/// something else occupies the memory, such as the counters of a memory store, and the budget is raised.
async fn make_room(table: &ConnectionTable) {
    let (mut freed, mut limit, mut waits) = (0, None, 0);
    loop {
        release_free();
        let excess = BUDGET.excess();
        if excess == 0 {
            return;
        }
        let evicted = table.free(excess);
        freed += evicted;
        let limit = *limit.get_or_insert(excess * MAX_FREED_FACTOR + MAX_FREED_MORE);
        waits = if evicted == 0 { waits + 1 } else { 0 };
        if evicted == 0 && !table.has_ending() || freed > limit || waits > MAX_WAITS {
            BUDGET.raise();
            return;
        }
        // What they occupy is free only when they have ended.
        for _ in 0..MAX_ROUNDS {
            sleep(ROUND).await;
            if !table.has_ending() {
                break;
            }
        }
    }
}

/// Keeps the memory of the process within its budget. Never returns.
pub(super) async fn relieve(table: Arc<ConnectionTable>) {
    let mut release = interval(RELEASE_INTERVAL);
    let mut warned: Option<Instant> = None;
    loop {
        tokio::select! {
            biased;
            () = BUDGET.exceeded() => {}
            _ = release.tick() => {
                release_free();
                continue;
            }
        }
        if warned.is_none_or(|warned| warned.elapsed() >= WARNING_INTERVAL) {
            warned = Some(Instant::now());
            let resident = BUDGET.resident();
            tracing::warn!(resident, "the memory budget is exceeded, closing the largest connections");
        }
        make_room(&table).await;
        BUDGET.resume();
    }
}
