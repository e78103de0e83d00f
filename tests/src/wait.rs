//! Wait for a condition, with a generous bound: a test that needs the bound is broken, not slow.

use std::time::{Duration, Instant};

/// How long anything may take on a busy machine.
pub const BOUND: Duration = Duration::from_secs(180);

/// Asks until there is an answer.
///
/// # Panics
/// When there is none within [`BOUND`].
pub async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(start.elapsed() < BOUND, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
