//! The body of a request as the client sends it.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::{FlowControl, Reason};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use crate::http2::receive::{StreamBody, StreamError};

/// The body of a request as the client sends it.
#[derive(Debug)]
pub(crate) enum ClientBody {
    Http1(Incoming),
    Http2(StreamBody),
}

/// The client broke off its request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientBodyError {
    #[error("{0}")]
    Http1(#[source] hyper::Error),
    #[error("{0}")]
    Http2(#[source] StreamError),
    #[error("the application did not want the body")]
    NotWanted,
}

impl ClientBodyError {
    /// Returns the reason for which the request's stream to the application is reset.
    pub(crate) fn reason(&self) -> Reason {
        match self {
            Self::Http1(_) | Self::NotWanted => Reason::INTERNAL_ERROR,
            Self::Http2(error) => error.reason(),
        }
    }
}

impl ClientBody {
    /// Returns the handle that tells how many bytes are unread, over HTTP/2.
    pub(crate) fn flow_control(&mut self) -> Option<FlowControl> {
        match self {
            Self::Http1(_) => None,
            Self::Http2(body) => Some(body.flow_control()),
        }
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = ClientBodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ClientBodyError>>> {
        match self.get_mut() {
            Self::Http1(body) => Pin::new(body).poll_frame(cx).map_err(ClientBodyError::Http1),
            Self::Http2(body) => Pin::new(body).poll_frame(cx).map_err(ClientBodyError::Http2),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(body) => body.is_end_stream(),
            Self::Http2(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http1(body) => body.size_hint(),
            Self::Http2(body) => body.size_hint(),
        }
    }
}
