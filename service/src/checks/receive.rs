//! The bodies of questions as they arrive.

use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use futures::StreamExt as _;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};
use http_body_util::LengthLimitError;
use serde::de::DeserializeOwned;
use sluice_host::serve::table::NoRoom;
use sluice_host::serve::turns::Turn;
use sluice_host::serve::{BodyError, cause};

use crate::checks::json::Object;
use crate::checks::problem::Problem;
use crate::work::Whose;

/// Longest body, in bytes.
const MAX_BODY: usize = 1 << 20;
/// Bytes of a body that takes long to be read, as its answer to be written: other requests must not wait for that.
pub(super) const LARGE: usize = 16 << 10;
/// Most bytes of a body that are received although nobody looks at it, and the longest time for that.
const MAX_DISCARDED: usize = 1 << 16;
const DISCARD: Duration = Duration::from_secs(5);

/// Receives a body that is not asked for, up to a bound, and keeps nothing of it. Over HTTP/2 an answer before its end resets the
/// stream, which curl and others report as a failure of the connection, without the answer.
pub(super) async fn discard(body: Body) {
    let mut frames = body.into_data_stream();
    let received = async {
        let mut left = MAX_DISCARDED;
        while let Some(Ok(frame)) = frames.next().await
            && let Some(rest) = left.checked_sub(frame.len())
        {
            left = rest;
        }
    };
    // A caller who sends no more has the answer then.
    let _ = tokio::time::timeout(DISCARD, received).await;
}

/// Receives a body, of a caller who may ask.
pub(super) async fn receive(body: Body) -> Result<Bytes, Problem> {
    to_bytes(body, MAX_BODY).await.map_err(|error| {
        if cause::<LengthLimitError>(&error).is_some() {
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is longer than {MAX_BODY} bytes"))
        } else if let Some(BodyError::NoRoom(_)) = cause(&error) {
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, NoRoom.to_string())
        } else if let Some(BodyError::TimedOut) = cause(&error) {
            Problem::new(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time")
        } else {
            Problem::new(StatusCode::BAD_REQUEST, "the body did not arrive as a whole")
        }
    })
}

/// Does work about a large body on a thread beside those that serve, for as long as it has its turn.
pub(super) async fn apart<T: Send + 'static>(
    turn: Turn<Whose>,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let work = move || {
        // Also if nobody waits for it any more.
        let _turn = turn;
        work()
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime shuts down.
            Err(_) => std::future::pending().await,
        },
    }
}

/// Reads a body. What is wrong is told with its field.
pub(super) fn parse<T: DeserializeOwned>(headers: &HeaderMap, body: &[u8]) -> Result<T, Problem> {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case("application/json") {
        // A page in a browser could send any other type to a port of this machine.
        return Err(Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "the body is JSON: send content-type: application/json",
        ));
    }
    let mut from = serde_json::Deserializer::from_slice(body);
    let parsed = serde_path_to_error::deserialize::<_, Object<T>>(&mut from).map_err(|error| {
        let field = pointer(error.path());
        let detail = format!("the body is not valid: {}", in_words_of_json(&error.into_inner()));
        if field.is_empty() {
            Problem::new(StatusCode::BAD_REQUEST, detail)
        } else {
            Problem::of_field(field, detail)
        }
    })?;
    from.end()
        .map_err(|error| Problem::new(StatusCode::BAD_REQUEST, format!("the body is not valid: {error}")))?;
    Ok(parsed.0)
}

/// Returns an error in the words of JSON.
fn in_words_of_json(error: &serde_json::Error) -> String {
    error
        .to_string()
        .replace("a sequence", "an array")
        .replace("invalid type: sequence", "invalid type: array")
        .replace("a map", "an object")
        .replace("invalid type: map", "invalid type: object")
        .replace("floating point `", "number `")
        .replace("expected u64", "expected an integer of at least 0")
        .replace("expected u32", "expected an integer of at least 0")
        .replace("expected f64", "expected a number")
}

/// Returns a path as a JSON pointer.
fn pointer(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    let segment = |segment: &Segment| match segment {
        Segment::Seq { index } => format!("/{index}"),
        Segment::Map { key } => format!("/{}", key.replace('~', "~0").replace('/', "~1")),
        Segment::Enum { .. } | Segment::Unknown => String::new(),
    };
    path.iter().map(segment).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::stream;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_body_of_a_refused_caller_is_received_up_to_a_bound() {
        const FRAME: usize = 1 << 10;
        for (sent, received) in [(0, 0), (3, 3), (64, 64), (1_000, 65)] {
            let taken = Arc::<AtomicUsize>::default();
            let frames = stream::iter(0..sent).map({
                let taken = taken.clone();
                move |_| {
                    taken.fetch_add(1, Ordering::Relaxed);
                    Ok::<_, std::io::Error>(Bytes::from_static(&[0; FRAME]))
                }
            });
            discard(Body::from_stream(frames)).await;
            assert_eq!(taken.load(Ordering::Relaxed), received);
        }
        // A caller who does not send it is answered all the same.
        discard(Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>())).await;
    }
}
