//! Serves an HTTP/1 connection.

use std::convert::Infallible;
use std::error::Error;
use std::pin::pin;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::TokioIo;

use crate::inbound::client_stream::ClientStream;
use crate::inbound::head_timeout::{HeadTimeout, HeadTimeouts};
use crate::inbound::table::activity::Activity;
use crate::metrics::ended::EndReason;
use sluice_host::capacity::MAX_BUFFER;
use sluice_host::drain::DrainWatch;

/// Serves a connection until it ends, is upgraded, is idle for too long, or the sidecar stops or evicts it. While
/// the sidecar drains, a header of the next response ends the connection. Returns the reason if the sidecar ended it.
pub(crate) async fn serve<S, B>(
    stream: ClientStream,
    service: S,
    timeouts: HeadTimeouts,
    drain: &mut DrainWatch,
    activity: &Activity,
) -> hyper::Result<Option<EndReason>>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Send,
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
    S::Future: Send + 'static,
{
    let head_timeout = HeadTimeout::new(timeouts, stream.head_in_progress());
    let mut expired = head_timeout.expired();
    let connection = http1::Builder::new()
        .timer(head_timeout)
        .header_read_timeout(timeouts.head)
        .max_buf_size(MAX_BUFFER)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut connection = pin!(connection);
    let mut stopping = pin!(drain.stopping_after_yield());
    let mut shutting_down = false;
    loop {
        tokio::select! {
            biased;
            ended = connection.as_mut() => return ended.map(|()| None),
            // The connection waits for a head, so closing it loses no request.
            () = &mut expired => return Ok(None),
            reason = activity.ended() => {
                // The connection was polled before, so a request that has arrived is in flight now.
                if !reason.spares_requests() || !activity.is_busy() {
                    return Ok(Some(reason));
                }
                activity.go_on();
            }
            () = &mut stopping, if !shutting_down => {
                shutting_down = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}
