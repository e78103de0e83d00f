//! `Expect: 100-continue` over HTTP/1 (RFC 9110, 10.1.1): the body of a request waits until the application asks for it.
//!
//! hyper sends 100 to the client when the body is first read. So the body is read when the application has sent 100, or nothing
//! for as long as clients themselves wait. An application that answers from the head alone, with 401 or 413, receives no body.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::task::AtomicWaker;
use http::header::EXPECT;
use http::{HeaderMap, Request, StatusCode};
use tokio::time::{Sleep, sleep};

/// Time that an application has to answer from the head. Clients wait about as long.
const PATIENCE: Duration = Duration::from_secs(1);

const WAITING: u8 = 0;
const WANTED: u8 = 1;
/// The application has answered with an error, which the client is still to receive.
const REFUSED: u8 = 2;
const ENDED: u8 = 3;

/// Whether the application wants the body of a request.
#[derive(Debug, Default)]
pub(crate) struct Expectation {
    state: AtomicU8,
    changed: AtomicWaker,
}

impl Expectation {
    /// Observes what the application answers to a request, if its client waits for that.
    pub(crate) fn of<B>(request: &mut Request<B>) -> Option<Arc<Self>> {
        if !is_expected(request.headers()) {
            return None;
        }
        let expectation = Arc::new(Self::default());
        let observer = expectation.clone();
        hyper::ext::on_informational(request, move |response| {
            if response.status() == StatusCode::CONTINUE {
                observer.change(WANTED);
            }
        });
        Some(expectation)
    }

    /// Notes the head of the response. An error means that the application does not want the body any more.
    pub(crate) fn responded(&self, status: StatusCode) {
        self.change(if status.as_u16() < 400 { WANTED } else { REFUSED });
    }

    /// Notes that the exchange has ended: a body that was not wanted is not read any more.
    pub(crate) fn end(&self) {
        self.change(ENDED);
    }

    /// Reports whether the application has not asked for the body.
    pub(crate) fn is_unwanted(&self) -> bool {
        self.state.load(Ordering::Acquire) != WANTED
    }

    fn change(&self, to: u8) {
        // The first decision counts, and the end of a refusal.
        let change = |state| (state == WAITING || state == REFUSED && to == ENDED).then_some(to);
        if self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).is_ok() {
            self.changed.wake();
        }
    }
}

/// Reports whether a client sends its body only when it is asked for it.
pub(crate) fn is_expected(headers: &HeaderMap) -> bool {
    headers.get(EXPECT).is_some_and(|expect| expect.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

/// Waits until a body may be read.
#[derive(Debug)]
pub(crate) struct WantedBody {
    expectation: Arc<Expectation>,
    /// Begins when the body is first asked for.
    patience: Option<Pin<Box<Sleep>>>,
}

impl WantedBody {
    pub(crate) fn new(expectation: Arc<Expectation>) -> Self {
        Self { expectation, patience: None }
    }

    /// Waits for the decision: whether the body is read.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        self.expectation.changed.register(cx.waker());
        let patience = self.patience.get_or_insert_with(|| Box::pin(sleep(PATIENCE)));
        if patience.as_mut().poll(cx).is_ready() {
            self.expectation.change(WANTED);
        }
        match self.expectation.state.load(Ordering::Acquire) {
            WAITING | REFUSED => Poll::Pending,
            state => Poll::Ready(state == WANTED),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::future::poll_fn;
    use http::HeaderValue;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_body_is_read_when_it_is_wanted_or_nobody_says_anything() {
        let wanted = async |decide: fn(&Expectation)| {
            let expectation = Arc::new(Expectation::default());
            let mut body = WantedBody::new(expectation.clone());
            assert!(futures::poll!(poll_fn(|cx| body.poll(cx))).is_pending() && expectation.is_unwanted());
            decide(&expectation);
            // The first decision counts.
            expectation.change(ENDED);
            poll_fn(|cx| body.poll(cx)).await
        };
        assert!(wanted(|expectation| expectation.change(WANTED)).await);
        assert!(!wanted(Expectation::end).await);
        assert!(!wanted(|expectation| expectation.responded(StatusCode::UNAUTHORIZED)).await);
        assert!(wanted(|expectation| expectation.responded(StatusCode::OK)).await);
        let mut silent = WantedBody::new(Arc::default());
        let begin = tokio::time::Instant::now();
        assert!(poll_fn(|cx| silent.poll(cx)).await);
        assert_eq!(begin.elapsed().as_secs(), PATIENCE.as_secs());
    }

    #[test]
    fn only_one_expectation_is_known() {
        let request = |expect: Option<&'static str>| {
            let mut request = Request::new(());
            let expect = expect.map(|expect| (EXPECT, HeaderValue::from_static(expect)));
            request.headers_mut().extend(expect);
            Expectation::of(&mut request).is_some()
        };
        assert!(request(Some("100-Continue")) && !request(Some("200-ok")) && !request(None));
    }
}
