//! One attempt to connect.

use std::io;
use std::time::Duration;

use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::fault::{ServerFailure, cause_of_io, loggable};
use super::target::Target;
use crate::fault_cause::FaultCause;

/// Longest first attempt, without and with a TLS handshake. Checks wait for it.
pub(super) const ATTEMPT: Duration = Duration::from_millis(100);
const ATTEMPT_TLS: Duration = Duration::from_secs(1);

/// Longest later attempt. The circuit is open, so no check waits for it. A server that hangs, or that many
/// clients reach at the same time, serves a client that waits sooner than one that connects again.
const LATER_ATTEMPT: Duration = Duration::from_secs(2);
const LATER_ATTEMPT_TLS: Duration = Duration::from_secs(5);

/// Longest time in which a server that was away accepts a TCP connection. Where packets to it are dropped, the
/// kernel would send the first one again only after 1 s, 3 s and 7 s.
const ACCEPT: Duration = Duration::from_millis(500);

/// Maximum number of a host's addresses that are tried.
const MAX_ADDRESSES: usize = 8;

/// Connects to a server. `failed` is the number of attempts that failed before.
pub(crate) async fn open(target: &Target, failed: u32) -> Result<MultiplexedConnection, FaultCause> {
    try_open(target, failed).await.map_err(|failure| failure.cause)
}

/// Connects to a server and reports more about a failure than [`open`].
pub(super) async fn try_open(target: &Target, failed: u32) -> Result<MultiplexedConnection, ServerFailure> {
    let attempt = match (failed, target.tls) {
        (0, false) => ATTEMPT,
        (0, true) => ATTEMPT_TLS,
        (_, false) => LATER_ATTEMPT,
        (_, true) => LATER_ATTEMPT_TLS,
    };
    if (failed > 0 || target.socket().is_some())
        && let Err(error) = is_back(target, attempt).await
    {
        tracing::debug!(address = target.address, %error, "Redis is away");
        return Err(match target.socket() {
            Some(_) => ServerFailure::of_socket(&error),
            None => cause_of_io(&error).into(),
        });
    }
    // Timeouts of calls are handled here; those of the client library would race with them.
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(attempt))
        .set_response_timeout(None)
        .set_dns_resolver(target.resolver.clone());
    let client = match &target.login {
        None => target.client.clone(),
        // The file is logged when it is read.
        Some(login) => login.client(&target.client).await.map_err(|_| FaultCause::AuthenticationFailed)?,
    };
    let connecting = client.get_multiplexed_async_connection_with_config(&config);
    let failure = match timeout(attempt, connecting).await {
        Ok(Ok(connection)) => return Ok(connection),
        Ok(Err(error)) => {
            tracing::debug!(address = target.address, error = loggable(&error), "cannot connect to Redis");
            ServerFailure::from_error(&error)
        }
        Err(_) => FaultCause::NoRoute.into(),
    };
    // A server that does not use TLS waits for the end of a line that never comes.
    if target.tls && failure.cause == FaultCause::NoRoute && is_back(target, attempt).await.is_ok() {
        return Err(FaultCause::TlsSilent.into());
    }
    Err(failure)
}

/// Checks that a server that was away accepts a TCP connection: at one of its addresses, and without a handshake.
/// `lookup` is the longest time that the lookup of its host name is waited for.
async fn is_back(target: &Target, lookup: Duration) -> io::Result<()> {
    if let Some(path) = target.socket() {
        return timeout(ACCEPT, UnixStream::connect(path)).await?.map(drop);
    }
    let addresses = timeout(lookup, target.addresses()).await??;
    let mut connecting = JoinSet::new();
    for address in addresses.into_iter().take(MAX_ADDRESSES) {
        connecting.spawn(async move { timeout(ACCEPT, TcpStream::connect(address)).await?.map(drop) });
    }
    let mut last = Err(io::ErrorKind::NotFound.into());
    while let Some(connected) = connecting.join_next().await {
        last = connected.unwrap_or_else(|ended| Err(io::Error::other(ended)));
        if last.is_ok() {
            break;
        }
    }
    last
}
