//! Informational responses (RFC 9110, 15.2) on their way from the application to the client, before the response itself.
//!
//! A request is one future, so what its innermost part receives while it is polled belongs to the request whose task polls it.

use std::cell::RefCell;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Response, StatusCode};

/// Number of informational responses that pass for one request. Each waits in memory for the client.
const MAX_INTERIM: usize = 32;

thread_local! {
    /// The informational responses that were received while the current future is polled; `None` where nobody takes them.
    static RECEIVED: RefCell<Option<Vec<Response<()>>>> = const { RefCell::new(None) };
}

/// Hands an informational response to the client of the request that this task works for.
pub(crate) fn offer(response: Response<()>) {
    // It belongs to HTTP/1.
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return;
    }
    RECEIVED.with_borrow_mut(|received| {
        if let Some(received) = received {
            received.push(response);
        }
    });
}

/// Passes on the informational responses of one request.
#[derive(Debug)]
pub(crate) struct Passing {
    left: usize,
}

impl Passing {
    pub(crate) fn new() -> Self {
        Self { left: MAX_INTERIM }
    }

    /// Polls the future that works for the request, and sends what it is offered meanwhile.
    pub(crate) fn poll<F: Future>(
        &mut self,
        future: Pin<&mut F>,
        cx: &mut Context<'_>,
        mut send: impl FnMut(Response<()>),
    ) -> Poll<F::Output> {
        let scope = Scope::begin();
        let polled = future.poll(cx);
        for response in scope.end() {
            if let Some(left) = self.left.checked_sub(1) {
                self.left = left;
                send(response);
            }
        }
        polled
    }
}

/// The time in which a future is polled. What was collected for an outer future is put back even if the inner one panics.
struct Scope {
    before: Option<Vec<Response<()>>>,
    is_open: bool,
}

impl Scope {
    fn begin() -> Self {
        // An empty list takes no memory.
        Self { before: RECEIVED.replace(Some(Vec::new())), is_open: true }
    }

    fn end(mut self) -> Vec<Response<()>> {
        self.is_open = false;
        RECEIVED.replace(self.before.take()).unwrap_or_default()
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        if self.is_open {
            RECEIVED.set(self.before.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;

    use super::*;

    fn interim(status: u16) -> Response<()> {
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        response
    }

    async fn collect(future: impl Future<Output = ()>, mut to: impl FnMut(u16)) {
        let (mut future, mut passing) = (pin!(future), Passing::new());
        poll_fn(|cx| passing.poll(future.as_mut(), cx, |response| to(response.status().as_u16()))).await;
    }

    #[tokio::test]
    async fn what_a_future_is_offered_belongs_to_the_innermost_that_collects() {
        let (mut outer, mut inner) = (Vec::new(), Vec::new());
        let innermost = async {
            tokio::task::yield_now().await;
            offer(interim(103));
            offer(interim(101));
        };
        let future = async {
            offer(interim(100));
            collect(innermost, |status| inner.push(status)).await;
            offer(interim(102));
        };
        collect(future, |status| outer.push(status)).await;
        assert_eq!((outer, inner), (vec![100, 102], vec![103]));
        // Nobody takes it.
        offer(interim(100));
        assert!(RECEIVED.with_borrow(Option::is_none));
    }

    #[tokio::test]
    async fn their_number_is_bounded() {
        let mut count = 0;
        collect(async { (0..100).for_each(|_| offer(interim(103))) }, |_| count += 1).await;
        assert_eq!(count, MAX_INTERIM);
    }
}
