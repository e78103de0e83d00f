//! A body as the bytes of a stream.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use bytes::Bytes;
use h2::{FlowControl, Reason, SendStream};
use http_body::{Body, Frame};

use crate::http2::stalled::StalledStreams;

/// A body that goes from one side of the proxy to a stream of the other.
pub(crate) trait Relayed: Body<Data = Bytes> + Unpin {
    /// Returns the handle of the stream that the body comes from, if it comes from one.
    fn source(&mut self) -> Option<FlowControl>;

    /// Reports whether the body goes on to be sent when the client has left.
    fn outlives_client(&self) -> bool;

    /// Returns the reason for which an error of the body resets the stream that it goes to.
    fn reason(error: &Self::Error) -> Reason;
}

/// Sends a body until it ends, or until the receiver needs no more of it. While the receiver does not read, the stream is one of
/// `stalled`, which may end it.
pub(crate) async fn send_body<B: Relayed>(
    mut body: B,
    mut stream: SendStream<Bytes>,
    stalled: &StalledStreams,
) {
    if let Ok(frame) = next(&mut body, &mut stream).await {
        send_body_from(frame, body, stream, stalled).await;
    }
}

/// Sends a body of which a frame has been read.
pub(crate) async fn send_body_from<B: Relayed>(
    mut frame: Option<Result<Frame<Bytes>, B::Error>>,
    mut body: B,
    mut stream: SendStream<Bytes>,
    stalled: &StalledStreams,
) {
    loop {
        let sent = match frame {
            None => return drop(stream.send_data(Bytes::new(), true)),
            Some(Err(error)) => return stream.send_reset(B::reason(&error)),
            Some(Ok(frame)) => send_frame(&mut body, &mut stream, frame, stalled).await,
        };
        if sent.is_err() || body.is_end_stream() {
            return;
        }
        match next(&mut body, &mut stream).await {
            Ok(next) => frame = next,
            Err(Ended) => return,
        }
    }
}

/// Reads the next frame of a body, unless the receiver resets the stream before.
async fn next<B: Relayed>(
    body: &mut B,
    stream: &mut SendStream<Bytes>,
) -> Result<Option<Result<Frame<Bytes>, B::Error>>, Ended> {
    poll_fn(|cx| match stream.poll_reset(cx) {
        Poll::Ready(_) => Poll::Ready(Err(Ended)),
        Poll::Pending => Pin::new(&mut *body).poll_frame(cx).map(Ok),
    })
    .await
}

/// The stream takes no more.
#[derive(Debug)]
struct Ended;

/// Sends a frame of a body, of data only as much as the receiver takes: more would be out of reach for what ends stalled streams.
async fn send_frame<B: Relayed>(
    body: &mut B,
    stream: &mut SendStream<Bytes>,
    frame: Frame<Bytes>,
    stalled: &StalledStreams,
) -> Result<(), Ended> {
    let mut data = match frame.into_data() {
        Ok(data) => data,
        Err(frame) => {
            // There are no other frames.
            let Ok(trailers) = frame.into_trailers() else { return Ok(()) };
            let _ = stream.send_trailers(trailers);
            return Err(Ended);
        }
    };
    loop {
        if !data.is_empty() {
            stream.reserve_capacity(data.len());
            if stream.capacity() == 0 {
                wait(body, stream, data.len(), stalled).await?;
            }
        }
        let piece = data.split_to(stream.capacity().min(data.len()));
        let is_end = data.is_empty() && body.is_end_stream();
        stream.send_data(piece, is_end).map_err(|_| Ended)?;
        if data.is_empty() {
            return Ok(());
        }
    }
}

/// Waits until the receiver takes data.
async fn wait<B: Relayed>(
    body: &mut B,
    stream: &mut SendStream<Bytes>,
    pending: usize,
    stalled: &StalledStreams,
) -> Result<(), Ended> {
    let mut stall = stalled.begin(pending, body.source(), body.outlives_client());
    let capacity = poll_fn(|cx| {
        if stall.is_shed(cx) {
            return Poll::Ready(Err(Reason::ENHANCE_YOUR_CALM));
        }
        match stream.poll_capacity(cx) {
            Poll::Ready(Some(Ok(0))) | Poll::Pending => Poll::Pending,
            Poll::Ready(Some(Ok(_))) => Poll::Ready(Ok(true)),
            Poll::Ready(Some(Err(_)) | None) => Poll::Ready(Ok(false)),
        }
    });
    match capacity.await {
        Ok(true) => Ok(()),
        Ok(false) => Err(Ended),
        Err(reason) => {
            stream.send_reset(reason);
            Err(Ended)
        }
    }
}
