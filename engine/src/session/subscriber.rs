//! Follows the operator: opens a session, applies its events, reports the results, and starts again when it
//! ends.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, HeaderName, UPGRADE};
use http::{HeaderValue, Request, StatusCode, Uri};
use http_body_util::Full;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use sluice_config::message::{
    CREDENTIALS_EVENT, LIVE_EVENT, POLICIES_EVENT, Policies, REFUSED_EVENT, RESETS_EVENT, Report, Resets,
    SESSION_HEADER, SESSION_PROTOCOL, STREAM_PATH, ShadowDenied, TokenKeys, VERSION,
};
use sluice_config::policy::BlobHash;
use tokio::io::{AsyncReadExt as _, split};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::publish::publisher::Publisher;
use crate::session::backoff::Backoff;
use crate::session::blobs::{self, BlobError};
use crate::session::last_good::LastGood;
use crate::session::operator::{Operator, OperatorError};
use crate::session::received::Received;
use crate::session::report::Reporter;
use crate::session::resets::ResetOrders;
use crate::session::sse::{Event, Parser, SseError};

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// A session without any bytes for this long is dead: the operator sends comments more often.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time in which all content that the policies of an event refer to must arrive.
const CONTENT_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes that are read at once.
const CHUNK: usize = 8 << 10;
/// Interval at which the health of the store is reported, if it has changed.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which the clients that limits in Shadow would have denied are reported.
const SHADOW_DENIED_INTERVAL: Duration = Duration::from_secs(15);

/// Keeps the sidecar's configuration up to date with the operator.
#[derive(Debug)]
pub struct Subscriber {
    operator: Operator,
    publisher: Publisher,
    unreachable: Unreachable,
    last_good: LastGood,
    received: Received,
    resets: ResetOrders,
    /// The clients that limits in Shadow would have denied, and the time at which they were read.
    shadow_denied: Option<(Instant, ShadowDenied)>,
    /// The keys that tokens of callers are verified with.
    token_keys: watch::Sender<Option<TokenKeys>>,
    /// ID of the last event that was applied.
    applied: Option<String>,
}

/// Returns the ports of the applications that accept no connection.
struct Unreachable(Box<dyn Fn() -> Vec<u16> + Send + Sync>);

impl fmt::Debug for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Unreachable")
    }
}

/// The result of applying an event.
struct AppliedEvent {
    /// Whether there is a result for the operator.
    has_result: bool,
    /// The reason why not all content was fetched.
    failure: Option<BlobError>,
}

/// The reason why a session ended or was not opened.
#[derive(Debug, thiserror::Error)]
enum SessionEnd {
    #[error(transparent)]
    Unreachable(#[from] OperatorError),
    #[error("the operator responded with status {0}")]
    Status(StatusCode),
    #[error("the operator's response does not name the session")]
    Unnamed,
    #[error("the operator closed the session")]
    Closed,
    #[error("no data received for {SILENCE_TIMEOUT:?}")]
    Silent,
    #[error("the connection failed: {0}")]
    Connection(#[from] io::Error),
    #[error("the connection did not change to the protocol of sessions: {0}")]
    Upgrade(#[from] hyper::Error),
    #[error("the operator refused a report: {0}")]
    Refused(String),
    #[error(transparent)]
    Format(#[from] SseError),
    #[error("cannot parse an event of type {kind:?}: {error}")]
    Event { kind: String, error: serde_json::Error },
    #[error("cannot fetch content that a policy refers to: {0}")]
    Blob(#[from] BlobError),
}

impl Subscriber {
    /// Creates a subscriber, and publishes the configuration that `state_dir` keeps from before a restart. `unreachable` returns
    /// the ports of the applications that accept no connection, for the reports.
    pub fn new(
        operator: Operator,
        publisher: Publisher,
        unreachable: impl Fn() -> Vec<u16> + Send + Sync + 'static,
        state_dir: Option<PathBuf>,
    ) -> Self {
        let last_good = LastGood::new(state_dir);
        let mut received = Received::default();
        if let Some((policies, credentials, replicas)) = last_good.read() {
            if let Some(replicas) = replicas {
                received.replicas(replicas, &publisher);
            }
            for hash in received.missing_blobs(&policies) {
                if let Some(bytes) = last_good.read_blob(&hash) {
                    received.blob(bytes);
                }
            }
            received.policies(policies);
            received.credentials(credentials);
            received.apply(&publisher);
            tracing::info!("applied the policies from before the restart");
        }
        let token_keys = watch::Sender::new(received.token_keys().cloned());
        Self {
            operator,
            publisher,
            unreachable: Unreachable(Box::new(unreachable)),
            last_good,
            received,
            resets: ResetOrders::default(),
            shadow_denied: None,
            token_keys,
            applied: None,
        }
    }

    /// Returns the keys that tokens of callers are verified with, once the operator has sent some.
    #[must_use]
    pub fn token_keys(&self) -> watch::Receiver<Option<TokenKeys>> {
        self.token_keys.subscribe()
    }

    /// Follows one session after another. Never returns.
    pub async fn run(mut self) {
        let mut backoff = Backoff::default();
        loop {
            match self.open().await {
                Ok((session, connection)) => {
                    backoff.connected();
                    let Err(reason) = self.receive(session, connection, &mut backoff).await;
                    tracing::warn!(%reason, "the session with the operator ended");
                }
                Err(reason) => tracing::warn!(%reason, "cannot open a session with the operator"),
            }
            tokio::time::sleep(backoff.next()).await;
        }
    }

    /// Opens a session that continues after the last event that was applied. Returns its name and its connection.
    async fn open(&self) -> Result<(String, TokioIo<Upgraded>), SessionEnd> {
        let mut request = Request::new(Full::new(Bytes::new()));
        *request.uri_mut() = Uri::from_static(STREAM_PATH);
        request.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
        request.headers_mut().insert(UPGRADE, HeaderValue::from_static(SESSION_PROTOCOL));
        if let Some(id) = self.applied.as_ref().and_then(|id| HeaderValue::from_str(id).ok()) {
            request.headers_mut().insert(LAST_EVENT_ID, id);
        }
        let response = self.operator.send(request).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(SessionEnd::Status(response.status()));
        }
        let name = response.headers().get(SESSION_HEADER).and_then(|name| name.to_str().ok());
        let name = name.ok_or(SessionEnd::Unnamed)?.to_owned();
        Ok((name, TokioIo::new(hyper::upgrade::on(response).await?)))
    }

    async fn receive(
        &mut self,
        session: String,
        connection: TokioIo<Upgraded>,
        backoff: &mut Backoff,
    ) -> Result<Infallible, SessionEnd> {
        tracing::info!(session, "connected to the operator");
        self.resets.begin_session();
        let (mut reader, writer) = split(connection);
        let reporter = Reporter::start(writer);
        let (mut parser, mut bytes) = (Parser::default(), BytesMut::new());
        let mut report_interval = tokio::time::interval(REPORT_INTERVAL);
        let mut last_received = Instant::now();
        loop {
            bytes.clear();
            bytes.reserve(CHUNK);
            let read = tokio::select! {
                read = reader.read_buf(&mut bytes) => read?,
                () = self.resets.has_results() => {
                    reporter.report(self.report());
                    continue;
                }
                // The first tick is immediate: a session that continues another may have no events, but the
                // operator needs a report for it.
                _ = report_interval.tick() => {
                    if last_received.elapsed() > SILENCE_TIMEOUT {
                        return Err(SessionEnd::Silent);
                    }
                    if self.publisher.has_published() {
                        self.resets.carry_out(&self.publisher);
                        reporter.report(self.report());
                    }
                    continue;
                }
            };
            if read == 0 {
                return Err(SessionEnd::Closed);
            }
            last_received = Instant::now();
            let mut events = Vec::new();
            parser.read(&bytes, &mut events)?;
            for event in events {
                let applied = self.apply_with_content(event, &session).await?;
                last_received = Instant::now();
                if applied.has_result {
                    reporter.report(self.report());
                }
                match applied.failure {
                    None if applied.has_result => backoff.succeeded(),
                    None => {}
                    Some(failure) => {
                        // The next session sends all policies again.
                        self.applied = None;
                        return Err(failure.into());
                    }
                }
            }
        }
    }

    /// Applies an event, and fetches the content that its policies refer to. Policies that need none do not wait for it,
    /// unless there are no policies yet: a pod must not start with only some of them. Policies without their content are
    /// nacked.
    async fn apply_with_content(&mut self, event: Event, session: &str) -> Result<AppliedEvent, SessionEnd> {
        if event.kind != POLICIES_EVENT {
            return Ok(AppliedEvent { has_result: self.apply(event, None)?, failure: None });
        }
        let mut message: Policies = parse(&event)?;
        let missing = self.received.missing_blobs(&message);
        if !missing.is_empty() && self.publisher.has_published() {
            let (ready, waiting) = self.received.split(message);
            message = waiting;
            self.received.policies(ready);
            self.received.apply(&self.publisher);
        }
        let fetched = tokio::time::timeout(CONTENT_TIMEOUT, self.fetch_blobs(session, missing)).await;
        let failure = fetched.unwrap_or(Err(BlobError::Slow)).err();
        Ok(AppliedEvent { has_result: self.apply(event, Some(message))?, failure })
    }

    /// Fetches content that the sidecar does not have.
    async fn fetch_blobs(&mut self, session: &str, missing: BTreeSet<BlobHash>) -> Result<(), BlobError> {
        for hash in missing {
            if let Some(bytes) = self.last_good.read_blob(&hash) {
                self.received.blob(bytes);
                continue;
            }
            match blobs::fetch(&self.operator, session, &hash, self.received.room()).await {
                Ok(bytes) => {
                    self.last_good.write_blob(&hash, &bytes);
                    self.received.blob(bytes);
                }
                Err(BlobError::TooLong) => self.received.refuse_blob(hash),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Applies an event, with its policies if it has some. Reports whether there is a result for the operator.
    fn apply(&mut self, event: Event, policies: Option<Policies>) -> Result<bool, SessionEnd> {
        match event.kind.as_str() {
            POLICIES_EVENT => policies.into_iter().for_each(|policies| self.received.policies(policies)),
            CREDENTIALS_EVENT => match serde_json::from_str(&event.data) {
                Ok(credentials) => {
                    self.received.credentials(credentials);
                    let keys = self.received.token_keys();
                    self.token_keys.send_if_modified(|known| {
                        let has_changed = known.as_ref() != keys;
                        if has_changed {
                            *known = keys.cloned();
                        }
                        has_changed
                    });
                }
                // A later operator may know more topologies. Its policies still apply.
                Err(error) => {
                    tracing::error!(%error, "cannot parse the access to the store: update this sidecar");
                    self.received.malformed_credentials();
                }
            },
            LIVE_EVENT => {
                match serde_json::from_str(&event.data) {
                    Ok(replicas) => {
                        self.received.replicas(replicas, &self.publisher);
                        if self.publisher.has_published() {
                            self.keep();
                        }
                    }
                    // Exact replica counts matter less than policies, so the session goes on.
                    Err(error) => tracing::warn!(%error, "cannot parse replica counts"),
                }
                // Replica counts are not confirmed.
                return Ok(false);
            }
            RESETS_EVENT => {
                match serde_json::from_str::<Resets>(&event.data) {
                    Ok(message) => {
                        self.resets.receive(message.resets);
                        if self.publisher.has_published() {
                            self.resets.carry_out(&self.publisher);
                        }
                    }
                    Err(error) => tracing::warn!(%error, "cannot parse resets"),
                }
                // The results are reported when they are there.
                return Ok(false);
            }
            REFUSED_EVENT => return Err(SessionEnd::Refused(parse(&event)?)),
            // An event of a later version.
            _ => return Ok(false),
        }
        if !self.received.apply(&self.publisher) {
            return Ok(false);
        }
        self.applied = event.id.filter(|id| !id.is_empty()).or_else(|| self.applied.take());
        self.keep();
        Ok(true)
    }

    /// Keeps the active configuration for a restart.
    fn keep(&self) {
        if let Some((policies, credentials, replicas)) = self.received.last_good() {
            self.last_good.write(&policies, &credentials, replicas);
            self.last_good.keep_blobs(|hash| self.received.has_blob(hash));
        }
    }

    fn report(&mut self) -> Report {
        let is_fresh = |(read, _): &(Instant, ShadowDenied)| read.elapsed() < SHADOW_DENIED_INTERVAL;
        if !self.shadow_denied.as_ref().is_some_and(is_fresh) {
            self.shadow_denied = Some((Instant::now(), self.publisher.current().shadow_denied()));
        }
        let shadow_denied = self.shadow_denied.as_ref().map(|(_, denied)| denied.clone()).unwrap_or_default();
        let policies = self.received.report();
        let states = self.publisher.store_states();
        let stores = states.into_iter().map(|(name, state)| (name, state.report())).collect();
        Report {
            version: VERSION,
            policies,
            stores,
            shadow_denied,
            resets: self.resets.report(),
            unreachable: (self.unreachable.0)(),
        }
    }
}

/// Parses the data of an event.
fn parse<T: DeserializeOwned>(event: &Event) -> Result<T, SessionEnd> {
    serde_json::from_str(&event.data).map_err(|error| SessionEnd::Event { kind: event.kind.clone(), error })
}
