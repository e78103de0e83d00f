//! The delay between attempts to connect. A server that comes back is found within a second, and thousands of
//! clients together neither keep it from starting nor arrive at the same moment.

use std::time::Duration;

use crate::failure::StoreFault;
use crate::fault_cause::FaultCause;

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

#[cfg(test)]
mod tests {
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
}
