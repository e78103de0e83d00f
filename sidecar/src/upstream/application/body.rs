//! The body of a response as the application sends it, and the error that ends an exchange with the application.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{Reason, RecvStream};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

/// The error that ended an exchange with the application.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExchangeError {
    #[error("{0}")]
    Http1(#[source] hyper::Error),
    /// hyper finds the reason of a stream's reset in the source, and resets the client's stream for the same reason.
    #[error("{0}")]
    Http2(#[source] h2::Error),
}

impl ExchangeError {
    /// Reports whether the application sent something that is not HTTP.
    pub(crate) fn is_parse(&self) -> bool {
        match self {
            Self::Http1(error) => error.is_parse(),
            Self::Http2(_) => false,
        }
    }
}

/// The body of a response as the application sends it.
#[derive(Debug)]
pub(crate) enum ApplicationBody {
    Http1(Incoming),
    Http2 {
        stream: RecvStream,
        /// Whether only trailers can follow.
        data_ended: bool,
    },
}

impl ApplicationBody {
    pub(in crate::upstream) fn http2(stream: RecvStream) -> Self {
        Self::Http2 { stream, data_ended: false }
    }
}

impl Body for ApplicationBody {
    type Data = Bytes;
    type Error = ExchangeError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ExchangeError>>> {
        match self.get_mut() {
            Self::Http1(body) => Pin::new(body).poll_frame(cx).map_err(ExchangeError::Http1),
            Self::Http2 { stream, data_ended } => poll_stream(stream, data_ended, cx).map(|result| {
                let error = match result.transpose()? {
                    Ok(frame) => return Some(Ok(frame)),
                    Err(error) => error,
                };
                // The application needs no more of the request (RFC 9113, 8.1). Its response is complete.
                let is_early_end = error.reason() == Some(Reason::NO_ERROR);
                (!is_early_end).then(|| Err(ExchangeError::Http2(error)))
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(body) => body.is_end_stream(),
            Self::Http2 { stream, .. } => stream.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http1(body) => body.size_hint(),
            // The head has the length, if the application knows it.
            Self::Http2 { .. } => SizeHint::default(),
        }
    }
}

/// Reads the next frame of a stream, and lets the application send as much again.
fn poll_stream(
    stream: &mut RecvStream,
    data_ended: &mut bool,
    cx: &mut Context<'_>,
) -> Poll<Result<Option<Frame<Bytes>>, h2::Error>> {
    if !*data_ended {
        if let Some(data) = ready!(stream.poll_data(cx)).transpose()? {
            stream.flow_control().release_capacity(data.len())?;
            return Poll::Ready(Ok(Some(Frame::data(data))));
        }
        *data_ended = true;
    }
    stream.poll_trailers(cx).map_ok(|trailers| trailers.map(Frame::trailers))
}
