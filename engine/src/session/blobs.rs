//! Fetches content that policies refer to, by its hash.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use sluice_config::message::{BLOBS_PATH, MAX_BLOB, SESSION_HEADER};
use sluice_config::policy::BlobHash;

use crate::session::operator::{Operator, OperatorError};

/// Time in which the whole content must arrive.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The reason why content was not fetched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BlobError {
    #[error(transparent)]
    Unreachable(#[from] OperatorError),
    #[error("the operator responded with status {0}")]
    Status(StatusCode),
    #[error("it has more bytes than there is room for")]
    TooLong,
    #[error("the connection failed: {0}")]
    Connection(Box<dyn std::error::Error + Send + Sync>),
    #[error("it did not arrive within {TIMEOUT:?}")]
    Slow,
    #[error("it was changed in transit: it arrived with the hash {0}")]
    Changed(BlobHash),
}

/// Fetches content of at most `room` bytes in a session.
pub(crate) async fn fetch(
    operator: &Operator,
    session: &str,
    hash: &BlobHash,
    room: usize,
) -> Result<Arc<[u8]>, BlobError> {
    let fetching = fetch_any(operator, session, hash, room.min(MAX_BLOB));
    tokio::time::timeout(TIMEOUT, fetching).await.unwrap_or(Err(BlobError::Slow))
}

async fn fetch_any(
    operator: &Operator,
    session: &str,
    hash: &BlobHash,
    room: usize,
) -> Result<Arc<[u8]>, BlobError> {
    let mut request = Request::new(Full::new(Bytes::new()));
    // A hash consists of digits.
    if let Ok(uri) = Uri::try_from(format!("{BLOBS_PATH}{hash}")) {
        *request.uri_mut() = uri;
    }
    // A session's name came in a header.
    if let Ok(session) = HeaderValue::from_str(session) {
        request.headers_mut().insert(SESSION_HEADER, session);
    }
    let response = operator.send(request).await?;
    if response.status() != StatusCode::OK {
        return Err(BlobError::Status(response.status()));
    }
    let body = Limited::new(response.into_body(), room).collect().await.map_err(|error| {
        if error.is::<LengthLimitError>() { BlobError::TooLong } else { BlobError::Connection(error) }
    })?;
    let bytes = body.to_bytes();
    let arrived = BlobHash::of(&bytes);
    if arrived != *hash {
        return Err(BlobError::Changed(arrived));
    }
    Ok(Arc::from(&*bytes))
}
