//! One attempt to connect, and the delay before the next one: a server that comes back is found within a second, and thousands of
//! clients together neither keep it from starting nor arrive at the same moment. Several servers are asked at the same time, because some
//! of them may not answer.

use std::io;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use super::fault::{ServerFailure, cause_of_io, loggable};
use super::target::Target;
use crate::failure::StoreFault;
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

const FIRST: Duration = Duration::from_millis(20);

/// Longest delay while the server is away. An attempt is a TCP connection that the server's kernel refuses, so
/// it costs the server nothing.
const LONGEST_AWAY: Duration = Duration::from_millis(800);

/// Longest delay while the server answers but rejects the client, or makes no sense: each attempt costs it a
/// connection and a failed login, and somebody has to change something first.
const LONGEST_REJECTED: Duration = Duration::from_secs(5);

/// Returns the delay before the next attempt after `failed` failed ones, the last with this fault. It is random
/// between a half and the whole of a bound that doubles up to a maximum ("equal jitter", AWS Architecture Blog,
/// "Exponential Backoff And Jitter", 2015). With full jitter the longest delay would be the same and attempts
/// would be a third more frequent.
pub(crate) fn backoff(failed: u32, cause: FaultCause) -> Duration {
    let longest = match cause.fault() {
        // The operator loads it soon.
        _ if cause == FaultCause::FunctionMissing => LONGEST_AWAY,
        StoreFault::Unreachable | StoreFault::Slow | StoreFault::ReadOnly => LONGEST_AWAY,
        StoreFault::Refused
        | StoreFault::Nonsense
        | StoreFault::WrongType
        | StoreFault::Unconfigured
        | StoreFault::Unknown => LONGEST_REJECTED,
    };
    let bound = FIRST.saturating_mul(1 << failed.min(16)).min(longest);
    rand::random_range(bound / 2..=bound)
}

/// Returns the answers, in the order of their arrival: of all servers, or of the first one and those that answer in the time
/// `others` after it. The error is that of a server if none gives an answer.
pub(crate) async fn gather<T>(
    asked: Vec<impl Future<Output = Result<T, FaultCause>>>,
    others: Option<Duration>,
) -> Result<Vec<T>, FaultCause> {
    let mut asked: FuturesUnordered<_> = asked.into_iter().collect();
    let (mut answers, mut cause, mut until) = (Vec::new(), FaultCause::NoRoute, None);
    loop {
        let answer = match until {
            None => asked.next().await,
            Some(until) => timeout_at(until, asked.next()).await.unwrap_or_default(),
        };
        match answer {
            Some(Ok(answer)) => {
                answers.push(answer);
                until = until.or(others.map(|others| Instant::now() + others));
            }
            Some(Err(other)) => cause = cause.or_more_specific(other),
            None if answers.is_empty() => return Err(cause),
            None => return Ok(answers),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    #[test]
    fn delays_grow_to_a_bound_that_is_longer_if_the_server_rejects_the_client() {
        for (cause, longest) in [
            (FaultCause::NoRoute, 800),
            (FaultCause::NotPermitted, 5_000),
            (FaultCause::FunctionMissing, 800),
        ] {
            for failed in 0..40 {
                let bound = Duration::from_millis((20 << failed.min(16)).min(longest));
                assert!((0..100).all(|_| (bound / 2..=bound).contains(&backoff(failed, cause))));
            }
        }
    }

    /// 5,000 clients lose their server at the same moment, and it stays away for a minute.
    #[test]
    fn attempts_of_many_clients_are_spread_and_none_waits_for_a_second() {
        const CLIENTS: usize = 5_000;
        let mut attempts = [0; 601];
        for _ in 0..CLIENTS {
            let (mut now, mut failed) = (Duration::ZERO, 0);
            while now < Duration::from_secs(60) {
                attempts[now.as_millis() as usize / 100] += 1;
                let delay = backoff(failed, FaultCause::NoRoute);
                assert!(delay < Duration::from_secs(1));
                (now, failed) = (now + delay, failed + 1);
            }
        }
        // The first attempts are close together, and cost the kernel one refused connection each.
        let tenths = &attempts[20..600];
        let per_second = tenths.iter().sum::<usize>() * 10 / tenths.len();
        assert!((CLIENTS..2 * CLIENTS).contains(&per_second), "{per_second} attempts a second");
        let busiest = tenths.iter().max().unwrap();
        assert!(*busiest < CLIENTS * 3 / 10, "{busiest} attempts in 100 ms");
    }

    #[tokio::test(start_paused = true)]
    async fn others_are_waited_for_a_moment_or_for_as_long_as_they_take() {
        let ask = |millis: u64, answer: Result<u64, FaultCause>| async move {
            sleep(Duration::from_millis(millis)).await;
            answer
        };
        let moment = Some(Duration::from_millis(100));
        let three = || vec![ask(500, Ok(500)), ask(10, Ok(10)), ask(50, Ok(50))];
        assert_eq!(gather(three(), moment).await, Ok(vec![10, 50]));
        assert_eq!(gather(three(), None).await, Ok(vec![10, 50, 500]));
        let silent = vec![ask(1, Err(FaultCause::NotPermitted)), ask(2, Err(FaultCause::NoRoute))];
        assert_eq!(gather(silent, moment).await, Err(FaultCause::NotPermitted));
    }
}
