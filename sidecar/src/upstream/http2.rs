//! One request over an HTTP/2 connection to the application.
//!
//! It uses the h2 crate directly: the client of hyper passes each request through a channel to another task, and runs one more
//! task for each response.
//!
//! - [`dedicated`]: the connection of one client.

pub(crate) mod dedicated;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::client::ResponseFuture;
use http::{Request, Response};
use http_body::{Body as _, Frame};
use tokio_util::task::AbortOnDropHandle;

use crate::http2::header_blocks::{LongBlocks, MAX_LIST, list_size};
use crate::http2::interim;
use crate::http2::receive::{StreamBody, StreamError};
use crate::http2::send::{send_body, send_body_from};
use crate::http2::stalled::StalledStreams;
use crate::inbound::client_body::ClientBodyError;
use crate::upstream::application::body::ApplicationBody;
use crate::upstream::http2::dedicated::Opened;
use crate::upstream::request_body::RequestBody;

/// Size of the head of an informational response that passes, in bytes. It waits in memory for a client that does not read.
const MAX_INTERIM: usize = 8 << 10;

/// A request without a response.
pub(super) struct Failed {
    pub(super) error: StreamError,
    /// The body, if the application has not processed the request and all of the body is still there.
    pub(super) again: Option<RequestBody>,
}

/// Sends a request and waits for the head of its response. Dropping the future resets the stream.
///
/// # Errors
/// The application reset the stream, or the connection ended.
pub(super) async fn exchange(
    opened: &mut Opened,
    head: Request<()>,
    mut body: RequestBody,
    stalled: &Arc<StalledStreams>,
) -> Result<Response<ApplicationBody>, Failed> {
    let is_end = body.is_end_stream();
    let (response, stream) = match opened.sender.send_request(head, is_end) {
        Ok(sent) => sent,
        Err(error) => {
            // Nothing was sent, which another connection mends unless the request itself is wrong.
            let is_of_connection = error.is_io() || error.is_remote() || error.is_library();
            return Err(Failed { error: error.into(), again: is_of_connection.then_some(body) });
        }
    };
    let mut response = Head { response, long_blocks: opened.long_blocks.clone() };
    if is_end {
        return poll_fn(|cx| response.poll(cx)).await.map_err(|error| Failed::with(error, Some(body)));
    }
    // The application may refuse the request before the client has sent any of its body.
    let first = poll_fn(|cx| match response.poll(cx) {
        Poll::Ready(response) => Poll::Ready(First::Response(response)),
        Poll::Pending => Pin::new(&mut body).poll_frame(cx).map(First::Frame),
    });
    match first.await {
        First::Response(Ok(response)) => {
            let stalled = stalled.clone();
            Ok(with_upload(response, async move { send_body(body, stream, &stalled).await }))
        }
        First::Response(Err(error)) => Err(Failed::with(error, Some(body))),
        First::Frame(frame) => {
            let whole = match &frame {
                Some(Ok(frame)) if body.is_end_stream() => frame.data_ref().cloned(),
                _ => None,
            };
            let again = whole.map(|whole| RequestBody::Whole(Some(whole)));
            let stalled = stalled.clone();
            let mut sending = Box::pin(async move { send_body_from(frame, body, stream, &stalled).await });
            let response = if futures::poll!(sending.as_mut()).is_ready() {
                poll_fn(|cx| response.poll(cx)).await
            } else {
                // The application may respond before it has read the body, and read on afterwards.
                let upload = AbortOnDropHandle::new(tokio::spawn(sending));
                poll_fn(|cx| response.poll(cx)).await.map(|response| keep(response, upload))
            };
            response.map_err(|error| Failed::with(error, again))
        }
    }
}

/// Sends the body of a request while its response is read.
fn with_upload(
    response: Response<ApplicationBody>,
    sending: impl Future<Output = ()> + Send + 'static,
) -> Response<ApplicationBody> {
    keep(response, AbortOnDropHandle::new(tokio::spawn(sending)))
}

/// Makes an upload end with a response that is broken off.
fn keep(
    mut response: Response<ApplicationBody>,
    sending: AbortOnDropHandle<()>,
) -> Response<ApplicationBody> {
    match response.body_mut() {
        ApplicationBody::Http2 { body, upload } if !body.is_end_stream() => *upload = Some(sending),
        ApplicationBody::Http1(_) | ApplicationBody::Http2 { .. } => drop(sending.detach()),
    }
    response
}

/// The first event of a request with a body.
enum First {
    Response(Result<Response<ApplicationBody>, StreamError>),
    Frame(Option<Result<Frame<Bytes>, ClientBodyError>>),
}

impl Failed {
    /// Creates the failure of a request that was sent. `body` is what it needs to be sent again.
    fn with(error: StreamError, body: Option<RequestBody>) -> Self {
        let again = body.filter(|_| error.is_unprocessed());
        Self { error, again }
    }
}

/// The head of a response.
struct Head {
    response: ResponseFuture,
    long_blocks: LongBlocks,
}

impl Head {
    /// Waits for the head, and passes on informational responses before it.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Response<ApplicationBody>, StreamError>> {
        while let Poll::Ready(Some(response)) = self.response.poll_informational(cx) {
            let response = response?;
            if list_size(response.headers()) <= MAX_INTERIM {
                interim::offer(response);
            }
        }
        let response = ready!(Pin::new(&mut self.response).poll(cx))?;
        if list_size(response.headers()) > MAX_LIST {
            return Poll::Ready(Err(StreamError::LongHead));
        }
        Poll::Ready(Ok(response.map(|stream| {
            // The head has the length, if the application knows it.
            let body = StreamBody::new(stream, None, self.long_blocks.clone());
            ApplicationBody::Http2 { body, upload: None }
        })))
    }
}
