//! A session with the operator, scripted by the test. It plays sidecars that nack a policy, hang, or report a
//! wrong hash.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use serde::de::DeserializeOwned;
use sluice_config::message::{
    Policies, PolicyReport, Report, ResetReport, SESSION_HEADER, SESSION_PROTOCOL, StoreReport, VERSION,
};
use sluice_config::policy::DEFAULT_STORE;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf, split};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Mutex;
use tokio_rustls::client::TlsStream;

/// Why no response arrives.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;
/// A connection to the control port.
type Connection = hyper::client::conn::http1::SendRequest<Full<Bytes>>;

/// A client of the operator's control port, with an address of its own: the operator limits the failures of each source.
#[derive(Clone)]
pub struct ControlClient {
    address: SocketAddr,
    source: Ipv4Addr,
    tls: Arc<rustls::ClientConfig>,
}

impl ControlClient {
    /// Creates a client of the control URL that trusts one CA.
    ///
    /// # Panics
    /// When the file holds no valid certificate, or the URL no address.
    #[must_use]
    pub fn new(control_url: &str, ca_file: &Path) -> Self {
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(ca_file).expect("the CA's file") {
            roots.add(certificate.expect("a certificate")).expect("a CA certificate");
        }
        let tls = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        static CLIENTS: AtomicU16 = AtomicU16::new(1);
        let [high, low] = CLIENTS.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let address = control_url.trim_start_matches("https://").parse().expect("an address");
        Self { address, source: Ipv4Addr::new(127, 7, high, low), tls: Arc::new(tls) }
    }

    /// Opens a connection on which nothing has been said yet.
    ///
    /// # Errors
    /// The connection cannot be had.
    pub async fn dial(&self) -> Result<TlsStream<TcpStream>, Failure> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((self.source, 0).into())?;
        let tcp = socket.connect(self.address).await?;
        tcp.set_nodelay(true)?;
        let name = ServerName::try_from("127.0.0.1")?;
        Ok(tokio_rustls::TlsConnector::from(self.tls.clone()).connect(name, tcp).await?)
    }

    /// Opens a connection.
    async fn open(&self) -> Result<Connection, Failure> {
        let tls = self.dial().await?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(tls)).await?;
        tokio::spawn(connection.with_upgrades());
        Ok(sender)
    }

    /// Sends a request on a connection of its own.
    ///
    /// # Panics
    /// When no response arrives.
    pub async fn send(&self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        self.try_send(request).await.expect("a response")
    }

    /// Sends a request on a connection of its own, which may end before the response.
    ///
    /// # Errors
    /// No response arrives.
    pub async fn try_send(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Failure> {
        Ok(self.open().await?.send_request(request).await?)
    }

    /// Opens a session.
    ///
    /// # Errors
    /// The status code with which the operator rejected it.
    ///
    /// # Panics
    /// When no response arrives, or it does not name the session.
    pub async fn connect(&self, token: &str, last_event_id: Option<&str>) -> Result<Session, StatusCode> {
        self.try_connect(token, last_event_id).await.expect("a response")
    }

    /// Opens a session, or returns the status code with which the operator rejected it.
    ///
    /// # Errors
    /// When no response arrives.
    ///
    /// # Panics
    /// When the response does not name the session.
    pub async fn try_connect(
        &self,
        token: &str,
        last_event_id: Option<&str>,
    ) -> Result<Result<Session, StatusCode>, Failure> {
        let mut request = Request::get("/v1/stream")
            .header("host", "control")
            .header("connection", "upgrade")
            .header("upgrade", SESSION_PROTOCOL)
            .header("authorization", format!("Bearer {token}"));
        if let Some(id) = last_event_id {
            request = request.header("last-event-id", id);
        }
        let response = self.open().await?.send_request(request.body(Full::default())?).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Ok(Err(response.status()));
        }
        let name = response.headers()[SESSION_HEADER].to_str().expect("the session's name").to_owned();
        let (events, reports) = split(TokioIo::new(hyper::upgrade::on(response).await?));
        let (control, buffer) = (self.clone(), Vec::new());
        Ok(Ok(Session { control, events: events.into(), buffer, name, reports: reports.into() }))
    }
}

/// An open session.
pub struct Session {
    control: ControlClient,
    /// Only of the one that waits for events. The lock makes it fit to be shared.
    events: Mutex<ReadHalf<TokioIo<Upgraded>>>,
    /// Bytes that have arrived of the next events.
    buffer: Vec<u8>,
    name: String,
    reports: Mutex<WriteHalf<TokioIo<Upgraded>>>,
}

impl Session {
    /// Waits for the next event. Returns nothing when the session has ended.
    pub async fn event(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|two| two == b"\n\n") {
                let event: Vec<u8> = self.buffer.drain(..end + 2).collect();
                // A comment, which only keeps the connection alive.
                if event.starts_with(b":") {
                    continue;
                }
                return String::from_utf8(event).ok();
            }
            if self.buffer.is_empty() {
                // A session that waits takes no memory.
                self.buffer = Vec::new();
            }
            let read = self.events.get_mut().read_buf(&mut self.buffer).await.ok()?;
            (read > 0).then_some(())?;
        }
    }

    /// Waits for the next event with policies and returns it with its id.
    ///
    /// # Panics
    /// When the session ends.
    pub async fn policies(&mut self) -> (Policies, String) {
        loop {
            let event = self.event().await.expect("the session goes on");
            let data = event.lines().find_map(|line| line.strip_prefix("data: ")).unwrap_or_default();
            if event.starts_with("event: policies\n") {
                let policies = serde_json::from_str(data).expect("an event with policies");
                let id = event.lines().find_map(|line| line.strip_prefix("id: ")).unwrap_or_default();
                return (policies, id.to_owned());
            }
        }
    }

    /// Fetches content by its hash in this session. Returns the status code and the body.
    ///
    /// # Panics
    /// When no whole response arrives.
    pub async fn fetch(&self, hash: &str) -> (StatusCode, Bytes) {
        let request = Request::get(format!("/v1/blobs/{hash}")).header("host", "control");
        let request = request.header(SESSION_HEADER, &self.name).body(Full::default()).expect("a request");
        let response = self.control.send(request).await;
        let status = response.status();
        (status, response.into_body().collect().await.expect("a body").to_bytes())
    }

    /// Waits for the next event of a kind and returns its message.
    ///
    /// # Panics
    /// When the session ends.
    pub async fn message<T: DeserializeOwned>(&mut self, kind: &str) -> T {
        loop {
            let event = self.event().await.expect("the session goes on");
            if event.starts_with(&format!("event: {kind}\n")) {
                let data = event.lines().find_map(|line| line.strip_prefix("data: ")).unwrap_or_default();
                return serde_json::from_str(data).expect("a message of this kind");
            }
        }
    }

    /// Sends a report, with the health of the installation's store.
    ///
    /// # Panics
    /// When the session has ended.
    pub async fn report(
        &self,
        policies: impl IntoIterator<Item = (String, PolicyReport)>,
        store: StoreReport,
    ) {
        self.send(policies.into_iter().collect(), store, BTreeMap::new(), Vec::new()).await;
    }

    /// Sends a report if the session still lasts.
    pub async fn try_report(
        &self,
        policies: impl IntoIterator<Item = (String, PolicyReport)>,
        store: StoreReport,
    ) {
        // The stream tells the caller that the session has ended.
        let _ = self.try_send(policies.into_iter().collect(), store, BTreeMap::new(), Vec::new()).await;
    }

    /// Sends a report, with the ports of applications that are not reached.
    ///
    /// # Panics
    /// When the session has ended.
    pub async fn report_unreachable(
        &self,
        policies: impl IntoIterator<Item = (String, PolicyReport)>,
        ports: &[u16],
    ) {
        self.send(policies.into_iter().collect(), StoreReport::HEALTHY, BTreeMap::new(), ports.to_vec())
            .await;
    }

    /// Reports the results of resets, and no policies.
    ///
    /// # Panics
    /// When the session has ended.
    pub async fn report_resets(&self, resets: impl IntoIterator<Item = (String, ResetReport)>) {
        self.send(BTreeMap::new(), StoreReport::HEALTHY, resets.into_iter().collect(), Vec::new()).await;
    }

    async fn send(
        &self,
        policies: BTreeMap<String, PolicyReport>,
        store: StoreReport,
        resets: BTreeMap<String, ResetReport>,
        unreachable: Vec<u16>,
    ) {
        self.try_send(policies, store, resets, unreachable).await.expect("the session goes on");
    }

    async fn try_send(
        &self,
        policies: BTreeMap<String, PolicyReport>,
        store: StoreReport,
        resets: BTreeMap<String, ResetReport>,
        unreachable: Vec<u16>,
    ) -> Result<(), Failure> {
        let stores = [(DEFAULT_STORE.to_owned(), store)].into();
        let report = Report { version: VERSION, policies, stores, resets, unreachable, ..Report::default() };
        self.try_send_line(serde_json::to_string(&report)?).await
    }

    /// Sends a line, which need not be a report.
    ///
    /// # Errors
    /// The session has ended.
    pub async fn try_send_line(&self, line: String) -> Result<(), Failure> {
        let mut reports = self.reports.lock().await;
        reports.write_all((line + "\n").as_bytes()).await?;
        Ok(reports.flush().await?)
    }
}
