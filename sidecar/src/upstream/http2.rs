//! One request over an HTTP/2 connection to the application.
//!
//! It uses the h2 crate directly: the client of hyper passes each request through a channel to another task, and runs one more
//! task for each response.

use std::error::Error;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Reason, SendStream};
use http::{Request, Response};
use http_body::Body as _;
use tokio_util::task::AbortOnDropHandle;

use crate::upstream::application::body::ApplicationBody;
use crate::upstream::request_body::RequestBody;

/// Sends a request and waits for the head of its response. Dropping the future resets the stream.
///
/// # Errors
/// The application reset the stream, or the connection ended.
pub(super) async fn exchange(
    sender: &mut SendRequest<Bytes>,
    request: Request<RequestBody>,
) -> Result<Response<ApplicationBody>, h2::Error> {
    let (parts, body) = request.into_parts();
    let is_end = body.is_end_stream();
    let (response, stream) = sender.send_request(Request::from_parts(parts, ()), is_end)?;
    let response = if is_end {
        drop(stream);
        response.await?
    } else {
        let mut sending = Box::pin(send_body(body, stream));
        if futures::poll!(sending.as_mut()).is_ready() {
            response.await?
        } else {
            // The application may respond before it has read the body, and read on afterwards.
            let sending = AbortOnDropHandle::new(tokio::spawn(sending));
            let response = response.await?;
            drop(sending.detach());
            response
        }
    };
    Ok(response.map(ApplicationBody::http2))
}

/// Sends the body of a request until it ends, or until the application needs no more of it.
async fn send_body(mut body: RequestBody, mut stream: SendStream<Bytes>) {
    loop {
        let frame = poll_fn(|cx| match stream.poll_reset(cx) {
            Poll::Ready(_) => Poll::Ready(Err(())),
            Poll::Pending => Pin::new(&mut body).poll_frame(cx).map(Ok),
        });
        let sent = match frame.await {
            Err(()) => return,
            Ok(None) => return drop(stream.send_data(Bytes::new(), true)),
            Ok(Some(Err(error))) => return stream.send_reset(reset_reason(&error)),
            Ok(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) => send_data(&mut stream, data, body.is_end_stream()).await,
                Err(frame) => match frame.into_trailers() {
                    Ok(trailers) => return drop(stream.send_trailers(trailers)),
                    // There are no other frames.
                    Err(_) => Ok(()),
                },
            },
        };
        if sent.is_err() || body.is_end_stream() {
            return;
        }
    }
}

/// The stream takes no more data.
struct Closed;

/// Waits until the application takes at least a byte, and sends a part of a body. The whole window would keep other streams of
/// the connection waiting.
async fn send_data(stream: &mut SendStream<Bytes>, data: Bytes, is_end: bool) -> Result<(), Closed> {
    if !data.is_empty() {
        stream.reserve_capacity(1);
        while stream.capacity() == 0 {
            match poll_fn(|cx| stream.poll_capacity(cx)).await {
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Err(Closed),
            }
        }
    }
    stream.send_data(data, is_end).map_err(|_| Closed)
}

/// Returns the reason for which the client reset its own stream, or that its body is broken.
fn reset_reason(error: &hyper::Error) -> Reason {
    let mut source = error.source();
    while let Some(error) = source {
        if let Some(reset) = error.downcast_ref::<h2::Error>() {
            return reset.reason().unwrap_or(Reason::INTERNAL_ERROR);
        }
        source = error.source();
    }
    Reason::INTERNAL_ERROR
}
