//! Polling with an upper bound. A test that reaches the bound is broken, not slow.

use std::time::{Duration, Instant};

/// Longest time that any step of a test may take on a busy machine.
pub const BOUND: Duration = Duration::from_secs(180);

/// Calls `poll` every 50 ms until it returns a value, and returns that value.
///
/// # Panics
/// When `poll` returns nothing within [`BOUND`]. `condition` describes what the test was waiting for.
pub async fn until<T>(condition: &str, mut poll: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = poll().await {
            return value;
        }
        assert!(start.elapsed() < BOUND, "gave up after {BOUND:?} waiting until {condition}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
