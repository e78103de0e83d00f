//! Forwards a request that holds slots or permits, in a task of its own, which goes on when the client leaves.

use std::pin::Pin;

use http::{Response, StatusCode};
use sluice_limiter::adaptive::SampleOutcome;
use tokio::sync::oneshot;

use crate::upstream::abandoned::Abandoned;
use crate::upstream::forward::{ForwardError, Forwarded, sample_outcome};
use crate::upstream::in_flight::InFlightGuard;
use crate::upstream::request_body::StallGuard;
use crate::upstream::response_body::ResponseBody;
use sluice_engine::{Charges, Held, Slot};

/// Runs an exchange with the application, up to the head of the response. What the request holds is released when
/// the response has ended. `exchange` has its slots, and returns those that no upgraded connection keeps.
pub(crate) async fn run<F>(exchange: F, held: Held, in_flight: InFlightGuard, stall: StallGuard) -> Forwarded
where
    F: Future<Output = (Forwarded, Vec<Slot>)> + Send + 'static,
{
    let (answer, receiver) = oneshot::channel();
    // In memory of its own: a task is moved several times before it runs.
    tokio::spawn(run_to_the_end(Box::pin(exchange), held, in_flight, stall, answer));
    // The task has no result if the process is about to end.
    receiver.await.unwrap_or(Err(ForwardError::Stopped))
}

async fn run_to_the_end<F>(
    mut exchange: Pin<Box<F>>,
    mut held: Held,
    in_flight: InFlightGuard,
    stall: StallGuard,
    mut answer: oneshot::Sender<Forwarded>,
) where
    F: Future<Output = (Forwarded, Vec<Slot>)>,
{
    let mut abandoned = None;
    let finished = tokio::select! {
        biased;
        finished = exchange.as_mut() => Some(finished),
        () = answer.closed() => {
            abandoned = Abandoned::now(held.abandoned_for);
            match &abandoned {
                Some(abandoned) => abandoned.wait_for(exchange).await,
                None => None,
            }
        }
    };
    let Some((forwarded, slots)) = finished else {
        // The application has not answered in all that time, if it had the whole request and any time.
        let is_slow = abandoned.is_some() && !stall.is_broken();
        held.forwarded(if is_slow { SampleOutcome::Dropped } else { SampleOutcome::Ignored });
        return;
    };
    held.slots = slots;
    let forwarded = release_at_end(forwarded, held, in_flight, stall);
    if let Err(Ok(response)) = answer.send(forwarded) {
        // The body is read to its end when it is dropped.
        response.into_body().abandon(abandoned);
    }
}

/// Reports a result to the adaptive limits and to the charges that it corrects, and makes the response release what the request holds.
pub(crate) fn release_at_end(
    forwarded: Forwarded,
    mut held: Held,
    in_flight: InFlightGuard,
    stall: StallGuard,
) -> Forwarded {
    held.forwarded(sample_outcome(&forwarded));
    if !held.charges.is_empty() {
        match &forwarded {
            Ok(response) => {
                held.charges.head(response.status(), response.headers());
                if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                    // Nothing of what follows is a response: it ends here as one that is broken off.
                    held.charges = Charges::default();
                }
            }
            Err(error) => held.charges.no_response(error.no_response()),
        }
    }
    forwarded.map(|response: Response<ResponseBody>| {
        response.map(|body| body.hold_until_end(in_flight, held, stall))
    })
}
