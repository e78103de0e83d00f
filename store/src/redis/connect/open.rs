//! One attempt to connect, and the delay before the next one.

use std::time::Duration;

use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use tokio::time::timeout;

use super::fault::ServerFailure;
use super::target::Target;
use crate::failure::StoreFault;

/// Duration of the first attempt, without and with a TLS handshake. Each failed attempt doubles it: with an
/// open circuit no check waits for an attempt, and a slow name server must not keep the store unreachable.
pub(super) const ATTEMPT: Duration = Duration::from_millis(100);
const ATTEMPT_TLS: Duration = Duration::from_secs(1);
const LONGEST_ATTEMPT: Duration = Duration::from_secs(5);

const FIRST_BACKOFF: Duration = Duration::from_millis(20);
const LONGEST_BACKOFF: Duration = Duration::from_secs(5);

/// Connects to a server. `failed` is the number of attempts that failed before.
pub(crate) async fn open(target: &Target, failed: u32) -> Result<MultiplexedConnection, StoreFault> {
    try_open(target, failed).await.map_err(|failure| failure.fault)
}

/// Connects to a server and reports more about a failure than [`open`].
pub(super) async fn try_open(target: &Target, failed: u32) -> Result<MultiplexedConnection, ServerFailure> {
    let attempt = if target.tls { ATTEMPT_TLS } else { ATTEMPT };
    let attempt = attempt.saturating_mul(1 << failed.min(16)).min(LONGEST_ATTEMPT);
    // Timeouts of calls are handled here; those of the client library would race with them.
    let config =
        AsyncConnectionConfig::new().set_connection_timeout(Some(attempt)).set_response_timeout(None);
    match timeout(attempt, target.client.get_multiplexed_async_connection_with_config(&config)).await {
        Ok(Ok(connection)) => Ok(connection),
        Ok(Err(error)) => {
            tracing::debug!(address = target.address, %error, "cannot connect to Redis");
            Err(ServerFailure::from_error(&error))
        }
        Err(_) => Err(StoreFault::Unreachable.into()),
    }
}

/// Returns the delay before the next attempt: random, up to a bound that doubles with each failed attempt
/// ("full jitter", AWS Architecture Blog, "Exponential Backoff And Jitter", 2015).
pub(crate) fn backoff(failed: u32) -> Duration {
    let bound = FIRST_BACKOFF.saturating_mul(1 << failed.min(16)).min(LONGEST_BACKOFF);
    rand::random_range(Duration::ZERO..=bound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_between_attempts_grow_to_a_bound() {
        for failed in 0..40 {
            let bound = Duration::from_millis(20 << failed.min(8)).min(LONGEST_BACKOFF);
            assert!((0..100).all(|_| backoff(failed) <= bound));
        }
    }
}
