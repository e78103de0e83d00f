//! The answers of several servers that are asked at the same time, because some of them may not answer.

use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::time::{Instant, timeout_at};

use crate::fault_cause::FaultCause;

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
