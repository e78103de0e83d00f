//! An operator that sends the events of a test, over TLS.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use sluice_config::PolicyHash;
use sluice_config::message::Report;
use sluice_engine::session::Operator as Client;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

pub(crate) struct Operator {
    pub(crate) url: String,
    pub(crate) files: tempfile::TempDir,
    pub(crate) sessions: UnboundedReceiver<Session>,
    /// The reports, with the names of their sessions.
    pub(crate) reports: UnboundedReceiver<(String, Report)>,
    /// Number of connections that it has accepted.
    pub(crate) connections: Arc<AtomicUsize>,
}

/// A session that a sidecar opened. Dropping it ends the session.
pub(crate) struct Session {
    pub(crate) name: String,
    pub(crate) last_event_id: Option<String>,
    pub(crate) authorization: String,
    events: UnboundedSender<String>,
}

impl Session {
    pub(crate) fn raw(&self, text: impl Into<String>) {
        self.events.send(text.into()).unwrap();
    }

    pub(crate) fn event(&self, kind: &str, id: &str, data: &serde_json::Value) {
        self.raw(format!("event: {kind}\nid: {id}\ndata: {data}\n\n"));
    }

    pub(crate) fn credentials(&self, id: &str) {
        self.event("credentials", id, &credentials());
    }

    /// Sends the whole map of policies.
    pub(crate) fn policies(&self, id: &str, policies: &[(&str, &str)]) {
        self.event("policies", id, &message(true, policies));
    }
}

/// Returns access to a store in the sidecar's memory.
pub(crate) fn credentials() -> serde_json::Value {
    serde_json::json!({"version": 1, "stores": {"default": "memory"}})
}

pub(crate) fn message(full: bool, policies: &[(&str, &str)]) -> serde_json::Value {
    let published = policies.iter().map(|&(uid, json)| {
        // The JSON of an event has no line breaks, which the test's JSON may have.
        let policy: serde_json::Value = serde_json::from_str(json).unwrap();
        let hash = PolicyHash::of(&policy.to_string());
        (uid.to_owned(), serde_json::json!({"hash": hash, "policy": policy}))
    });
    let policies: serde_json::Map<_, _> = published.collect();
    serde_json::json!({"version": 1, "full": full, "policies": policies, "later": "unknown"})
}

impl Operator {
    pub(crate) async fn start() -> Self {
        let ca_key = KeyPair::generate().unwrap();
        let mut ca = CertificateParams::new(Vec::new()).unwrap();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca_pem = ca.self_signed(&ca_key).unwrap().pem();
        let issuer = Issuer::new(ca, ca_key);
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(vec!["localhost".into()]).unwrap().signed_by(&key, &issuer).unwrap();
        let provider = Arc::new(tokio_rustls::rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
            )
            .unwrap();
        let files = tempfile::tempdir().unwrap();
        std::fs::write(files.path().join("ca.crt"), ca_pem).unwrap();
        std::fs::write(files.path().join("token"), "secret-token\n").unwrap();
        std::fs::create_dir(files.path().join("state")).unwrap();

        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
        let (open, sessions) = mpsc::unbounded_channel();
        let (report, reports) = mpsc::unbounded_channel();
        let names = Arc::new(AtomicUsize::new(0));
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let connections = Arc::<AtomicUsize>::default();
        let accepted = connections.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                accepted.fetch_add(1, Ordering::SeqCst);
                let (acceptor, open, report, names) =
                    (acceptor.clone(), open.clone(), report.clone(), names.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = service_fn(move |request| {
                        respond(request, open.clone(), report.clone(), names.clone())
                    });
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .with_upgrades()
                        .await;
                });
            }
        });
        Self { url, files, sessions, reports, connections }
    }

    pub(crate) fn client(&self) -> Client {
        let file = |name| -> PathBuf { self.files.path().join(name) };
        Client::new(&self.url, file("ca.crt"), file("token")).unwrap()
    }

    pub(crate) async fn session(&mut self) -> Session {
        self.sessions.recv().await.unwrap()
    }

    pub(crate) async fn report(&mut self) -> Report {
        self.report_of_session().await.1
    }

    pub(crate) async fn report_of_session(&mut self) -> (String, Report) {
        self.reports.recv().await.unwrap()
    }
}

/// Sends the events of a session, and passes its reports on.
async fn carry(
    request: Request<Incoming>,
    name: String,
    mut events: UnboundedReceiver<String>,
    report: UnboundedSender<(String, Report)>,
) {
    let Ok(upgraded) = hyper::upgrade::on(request).await else { return };
    let (reader, mut writer) = tokio::io::split(TokioIo::new(upgraded));
    let mut lines = BufReader::new(reader).lines();
    let sending = async {
        while let Some(event) = events.recv().await {
            if writer.write_all(event.as_bytes()).await.and(writer.flush().await).is_err() {
                break;
            }
        }
        let _ = writer.shutdown().await;
    };
    let receiving = async {
        while let Ok(Some(line)) = lines.next_line().await {
            let _ = report.send((name.clone(), serde_json::from_str(&line).unwrap()));
        }
    };
    tokio::select! {
        () = sending => {}
        () = receiving => {}
    }
}

type Body = Full<Bytes>;

async fn respond(
    request: Request<Incoming>,
    open: UnboundedSender<Session>,
    report: UnboundedSender<(String, Report)>,
    names: Arc<AtomicUsize>,
) -> Result<Response<Body>, Infallible> {
    let header = |name| request.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    let mut response = Response::new(Full::default());
    match (request.method().clone(), request.uri().path()) {
        (Method::GET, "/v1/stream") => {
            assert_eq!(header("upgrade").as_deref(), Some("sluice-session"));
            let name = format!("stream-{}", names.fetch_add(1, Ordering::SeqCst));
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            for (field, value) in
                [("sluice-stream", name.as_str()), ("connection", "upgrade"), ("upgrade", "sluice-session")]
            {
                response.headers_mut().insert(field, value.parse().unwrap());
            }
            let (events, receive) = mpsc::unbounded_channel::<String>();
            let authorization = header("authorization").unwrap();
            let last_event_id = header("last-event-id");
            tokio::spawn(carry(request, name.clone(), receive, report));
            let _ = open.send(Session { name, last_event_id, authorization, events });
        }
        other => panic!("{other:?}"),
    }
    Ok(response)
}
