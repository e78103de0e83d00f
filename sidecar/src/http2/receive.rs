//! The bytes of a stream as a body.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{FlowControl, Reason, RecvStream};
use http_body::{Body, Frame, SizeHint};

use crate::http2::header_blocks::{LongBlocks, MAX_LIST, list_size};

/// The error that ended a stream.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StreamError {
    #[error("{0}")]
    H2(#[from] h2::Error),
    #[error("its trailers are longer than {} KiB", MAX_LIST >> 10)]
    LongTrailers,
    #[error("the head of its response is longer than {} KiB", MAX_LIST >> 10)]
    LongHead,
}

impl StreamError {
    /// Returns the reason for which the other side's stream is reset.
    pub(crate) fn reason(&self) -> Reason {
        match self {
            // What is broken off is no success.
            Self::H2(error) => {
                error.reason().filter(|reason| *reason != Reason::NO_ERROR).unwrap_or(Reason::INTERNAL_ERROR)
            }
            Self::LongTrailers | Self::LongHead => Reason::INTERNAL_ERROR,
        }
    }

    /// Reports whether the peer has refused the stream, and may accept the next one on the same connection.
    pub(crate) fn is_refused(&self) -> bool {
        let Self::H2(error) = self else { return false };
        error.is_remote() && error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM)
    }

    /// Reports whether the peer has not processed the request at all (RFC 9113, 8.7).
    pub(crate) fn is_unprocessed(&self) -> bool {
        let Self::H2(error) = self else { return false };
        self.is_refused() || error.is_remote() && error.is_go_away()
    }
}

/// The body that a peer sends on a stream. The peer may send as much again as is read.
#[derive(Debug)]
pub(crate) struct StreamBody {
    stream: RecvStream,
    long_blocks: LongBlocks,
    /// The length that the head tells.
    length: Option<u64>,
    /// Whether only trailers can follow.
    data_ended: bool,
}

impl StreamBody {
    /// Creates the body of a message with this `Content-Length`, on a connection with these long header blocks.
    pub(crate) fn new(stream: RecvStream, length: Option<u64>, long_blocks: LongBlocks) -> Self {
        Self { stream, long_blocks, length, data_ended: false }
    }

    /// Returns the handle that tells how many bytes of the stream are unread.
    pub(crate) fn flow_control(&mut self) -> FlowControl {
        self.stream.flow_control().clone()
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Frame<Bytes>>, StreamError>> {
        if !self.data_ended {
            if let Some(data) = ready!(self.stream.poll_data(cx)).transpose()? {
                self.stream.flow_control().release_capacity(data.len())?;
                return Poll::Ready(Ok(Some(Frame::data(data))));
            }
            self.data_ended = true;
        }
        let Some(trailers) = ready!(self.stream.poll_trailers(cx))? else { return Poll::Ready(Ok(None)) };
        if self.long_blocks.contains(self.stream.stream_id().as_u32()) || list_size(&trailers) > MAX_LIST {
            return Poll::Ready(Err(StreamError::LongTrailers));
        }
        Poll::Ready(Ok(Some(Frame::trailers(trailers))))
    }
}

impl Body for StreamBody {
    type Data = Bytes;
    type Error = StreamError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StreamError>>> {
        self.get_mut().poll(cx).map(Result::transpose)
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map(SizeHint::with_exact).unwrap_or_default()
    }
}
