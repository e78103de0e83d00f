//! The body of a response as the application sends it, and the error that ends an exchange with the application.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::{FlowControl, Reason};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio_util::task::AbortOnDropHandle;

use crate::http2::receive::{StreamBody, StreamError};

/// The error that ended an exchange with the application.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExchangeError {
    #[error("{0}")]
    Http1(#[source] hyper::Error),
    #[error("{0}")]
    Http2(#[source] StreamError),
    #[error("it switched to another protocol, for which the request did not ask")]
    SwitchedUnasked,
}

impl ExchangeError {
    /// Reports whether the application sent something that is not HTTP.
    pub(crate) fn is_parse(&self) -> bool {
        match self {
            Self::Http1(error) => error.is_parse(),
            Self::SwitchedUnasked => true,
            Self::Http2(_) => false,
        }
    }

    /// Returns the reason for which the client's stream is reset.
    pub(crate) fn reason(&self) -> Reason {
        match self {
            Self::Http1(_) | Self::SwitchedUnasked => Reason::INTERNAL_ERROR,
            Self::Http2(error) => error.reason(),
        }
    }
}

/// The body of a response as the application sends it.
#[derive(Debug)]
pub(crate) enum ApplicationBody {
    Http1(Incoming),
    Http2 {
        body: StreamBody,
        /// Sends the rest of the request. It goes on when the response has ended, and ends when the response is broken off.
        upload: Option<AbortOnDropHandle<()>>,
    },
}

impl ApplicationBody {
    /// Returns the handle that tells how many bytes are unread, over HTTP/2.
    pub(in crate::upstream) fn flow_control(&mut self) -> Option<FlowControl> {
        match self {
            Self::Http1(_) => None,
            Self::Http2 { body, .. } => Some(body.flow_control()),
        }
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
            Self::Http2 { body, upload } => {
                let frame = Pin::new(&mut *body).poll_frame(cx).map_err(ExchangeError::Http2);
                if upload.is_some() && (matches!(frame, Poll::Ready(None)) || body.is_end_stream()) {
                    // The application may read on afterwards.
                    upload.take().map(AbortOnDropHandle::detach);
                }
                frame
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(body) => body.is_end_stream(),
            Self::Http2 { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http1(body) => body.size_hint(),
            Self::Http2 { body, .. } => body.size_hint(),
        }
    }
}
