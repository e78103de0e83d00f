//! From the operator to the sidecar: one stream of events, and reports of what became of them.
//!
//! - [`operator`]: how it is reached.
//! - [`sse`]: events out of bytes.
//! - [`known`]: what was said, and what of it is in force.
//! - [`report`]: what the operator is told. [`backoff`]: when to try again.
//!
//! Without the operator the sidecar keeps what it has; [`crate::config::last_good`] keeps it for a restart.

mod backoff;
mod known;
mod operator;
mod report;
mod sse;

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, HeaderName};
use http::{HeaderValue, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use sluice_config::message::{
    CREDENTIALS_EVENT, LIVE_EVENT, POLICIES_EVENT, Report, STREAM_HEADER, STREAM_PATH, StoreReport, VERSION,
};

use self::backoff::Backoff;
use self::known::Known;
use self::operator::Unreached;
pub use self::operator::{NoOperator, Operator};
use self::report::Reporter;
use self::sse::{BadStream, Event, Parser};
use crate::config::last_good::LastGood;
use crate::config::publisher::Publisher;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// A stream that says nothing for this long is dead: the operator sends comments more often.
const SILENCE: Duration = Duration::from_secs(30);
/// How often the store's health is looked at.
const HEALTH: Duration = Duration::from_secs(1);

/// Follows the operator's stream.
#[derive(Debug)]
pub struct Subscriber {
    operator: Operator,
    publisher: Publisher,
    last_good: LastGood,
    known: Known,
    /// The last event that took effect.
    applied: Option<String>,
}

/// Why a stream ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error(transparent)]
    Unreached(#[from] Unreached),
    #[error("the operator answered {0}")]
    Status(StatusCode),
    #[error("the operator did not name the stream")]
    Nameless,
    #[error("the operator ended it")]
    Closed,
    #[error("nothing came for {SILENCE:?}")]
    Silence,
    #[error("it broke: {0}")]
    Broken(#[from] hyper::Error),
    #[error(transparent)]
    Bad(#[from] BadStream),
    #[error("an event {kind:?} cannot be read: {error}")]
    Event { kind: String, error: serde_json::Error },
}

impl Subscriber {
    /// Puts into force what was in force before a restart, if `state_dir` holds it.
    pub fn new(operator: Operator, publisher: Publisher, state_dir: Option<PathBuf>) -> Self {
        let last_good = LastGood::new(state_dir);
        let mut known = Known::default();
        if let Some((policies, credentials, live)) = last_good.read() {
            if let Some(live) = live {
                known.live(live, &publisher);
            }
            known.policies(policies);
            known.credentials(credentials);
            known.put_in_force(&publisher);
            tracing::info!("what was in force before the restart is in force again");
        }
        Self { operator, publisher, last_good, known, applied: None }
    }

    /// Follows the stream, and again whenever it ends. Never returns.
    pub async fn run(mut self) {
        let mut backoff = Backoff::default();
        loop {
            let ended = self.follow(&mut backoff).await;
            tracing::warn!(reason = %ended, "the operator's stream ended");
            tokio::time::sleep(backoff.next()).await;
        }
    }

    async fn follow(&mut self, backoff: &mut Backoff) -> Ended {
        match self.open().await {
            Ok((stream, body)) => {
                backoff.established();
                match self.listen(stream, body, backoff).await {
                    Ok(never) => match never {},
                    Err(ended) => ended,
                }
            }
            Err(ended) => ended,
        }
    }

    async fn open(&self) -> Result<(String, Incoming), Ended> {
        let mut request = Request::new(Full::new(Bytes::new()));
        *request.uri_mut() = Uri::from_static(STREAM_PATH);
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        if let Some(id) = self.applied.as_ref().and_then(|id| HeaderValue::from_str(id).ok()) {
            request.headers_mut().insert(LAST_EVENT_ID, id);
        }
        let response = self.operator.send(request).await?;
        if response.status() != StatusCode::OK {
            return Err(Ended::Status(response.status()));
        }
        let stream = response.headers().get(STREAM_HEADER).and_then(|name| name.to_str().ok());
        let stream = stream.ok_or(Ended::Nameless)?.to_owned();
        Ok((stream, response.into_body()))
    }

    async fn listen(
        &mut self,
        stream: String,
        mut body: Incoming,
        backoff: &mut Backoff,
    ) -> Result<std::convert::Infallible, Ended> {
        tracing::info!(stream, "following the operator");
        let reporter = Reporter::start(self.operator.clone());
        let mut parser = Parser::default();
        let mut health = tokio::time::interval(HEALTH);
        let mut silent_since = tokio::time::Instant::now();
        // A stream that goes on where another ended may have nothing to say: what is in force counts for it, too.
        if self.publisher.has_published() {
            reporter.report(self.report(&stream));
        }
        loop {
            let frame = tokio::select! {
                frame = body.frame() => frame,
                _ = health.tick() => {
                    if silent_since.elapsed() > SILENCE {
                        return Err(Ended::Silence);
                    }
                    if self.publisher.has_published() {
                        reporter.report(self.report(&stream));
                    }
                    continue;
                }
            };
            silent_since = tokio::time::Instant::now();
            let Ok(bytes) = frame.ok_or(Ended::Closed)??.into_data() else { continue };
            let mut events = Vec::new();
            parser.read(&bytes, &mut events)?;
            for event in events {
                if self.apply(event)? {
                    backoff.succeeded();
                    reporter.report(self.report(&stream));
                }
            }
        }
    }

    /// Lets an event take effect; says whether there is anything to report.
    fn apply(&mut self, event: Event) -> Result<bool, Ended> {
        let unreadable = |error| Ended::Event { kind: event.kind.clone(), error };
        match event.kind.as_str() {
            POLICIES_EVENT => self.known.policies(serde_json::from_str(&event.data).map_err(unreadable)?),
            CREDENTIALS_EVENT => {
                self.known.credentials(serde_json::from_str(&event.data).map_err(unreadable)?);
            }
            LIVE_EVENT => {
                match serde_json::from_str(&event.data) {
                    Ok(live) => self.known.live(live, &self.publisher),
                    // Policies are worth more than to know exactly who shares them.
                    Err(error) => {
                        tracing::warn!(%error, "who shares the policies cannot be read");
                        return Ok(false);
                    }
                }
                if self.publisher.has_published() {
                    self.keep();
                }
                // Nothing of it is confirmed.
                return Ok(false);
            }
            // Of a later version.
            _ => return Ok(false),
        }
        if !self.known.put_in_force(&self.publisher) {
            return Ok(false);
        }
        self.applied = event.id.filter(|id| !id.is_empty()).or_else(|| self.applied.take());
        self.keep();
        Ok(true)
    }

    /// For a restart.
    fn keep(&self) {
        if let Some((policies, credentials, live)) = self.known.last_good() {
            self.last_good.write(&policies, &credentials, live);
        }
    }

    fn report(&self, stream: &str) -> Report {
        let store: StoreReport = self.publisher.store_state().report();
        Report { version: VERSION, stream: stream.to_owned(), policies: self.known.report(), store }
    }
}
