//! HTTPS to the operator, with the operator's own certificate authority and the pod's token. The authority is read
//! for every connection and the token for every request, because both rotate in their files.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, HOST};
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, ServerName};
use rustls::{ClientConfig, RootCertStore};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Time from the start of a connection in which the head of the response must arrive.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Idle time after which the kernel probes whether the operator's end still exists, and the interval between two probes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Time after which a connection ends whose other end acknowledges neither probes nor data.
const DEAD_AFTER: Duration = Duration::from_secs(25);

/// The operator: its address, and how both sides authenticate.
#[derive(Debug, Clone)]
pub struct Operator {
    authority: String,
    server_name: ServerName<'static>,
    ca_file: PathBuf,
    token_file: PathBuf,
}

/// A URL that cannot be an operator's.
#[derive(Debug, thiserror::Error)]
#[error("invalid URL of the operator {0:?}: write https://HOST:PORT")]
pub struct InvalidOperatorUrl(String);

/// The reason why a request to the operator failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OperatorError {
    #[error("cannot read {file}: {error}")]
    File { file: PathBuf, error: io::Error },
    #[error("{0} contains no valid CA certificate")]
    Authority(PathBuf),
    #[error("the token in {0} contains characters that do not fit into a header")]
    Token(PathBuf),
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    #[error("no response: {0}")]
    Response(#[from] hyper::Error),
    #[error("no response within {TIMEOUT:?}")]
    Timeout,
}

impl Operator {
    /// Creates an operator from its URL, `https://HOST:PORT`, and the files of the CA certificates and the
    /// token.
    pub fn new(url: &str, ca_file: PathBuf, token_file: PathBuf) -> Result<Self, InvalidOperatorUrl> {
        let invalid = || InvalidOperatorUrl(url.to_owned());
        let uri: Uri = url.parse().map_err(|_| invalid())?;
        let (Some("https"), Some(authority), "/") = (uri.scheme_str(), uri.authority(), uri.path()) else {
            return Err(invalid());
        };
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let server_name = host.try_into().map_err(|_: InvalidDnsNameError| invalid())?;
        let authority = format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(443));
        Ok(Self { authority, server_name, ca_file, token_file })
    }

    /// Sends a request on a new connection.
    pub(crate) async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, OperatorError> {
        let token = read(&self.token_file)?;
        let bearer = HeaderValue::from_bytes(&[b"Bearer ", token.trim_ascii()].concat());
        let mut bearer = bearer.map_err(|_| OperatorError::Token(self.token_file.clone()))?;
        bearer.set_sensitive(true);
        request.headers_mut().insert(AUTHORIZATION, bearer);
        if let Ok(host) = HeaderValue::from_str(&self.authority) {
            request.headers_mut().insert(HOST, host);
        }
        let sending = async { Ok(self.connect().await?.send_request(request).await?) };
        tokio::time::timeout(TIMEOUT, sending).await.unwrap_or(Err(OperatorError::Timeout))
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, OperatorError> {
        let tls = TlsConnector::from(Arc::new(self.tls()?));
        let stream = TcpStream::connect(&self.authority).await.map_err(OperatorError::Connect)?;
        notice_a_dead_end(&stream).map_err(OperatorError::Connect)?;
        let stream = tls.connect(self.server_name.clone(), stream).await.map_err(OperatorError::Connect)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection.with_upgrades());
        Ok(sender)
    }

    fn tls(&self) -> Result<ClientConfig, OperatorError> {
        let mut roots = RootCertStore::empty();
        let pem = read(&self.ca_file)?;
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let certificate = certificate.map_err(|_| OperatorError::Authority(self.ca_file.clone()))?;
            roots.add(certificate)?;
        }
        if roots.is_empty() {
            return Err(OperatorError::Authority(self.ca_file.clone()));
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        Ok(config.with_root_certificates(roots).with_no_client_auth())
    }
}

/// Makes the kernel end a connection whose other end is gone without a word, such as that of a node that has died. The operator's
/// comments are less frequent: each wakes it.
fn notice_a_dead_end(stream: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(DEAD_AFTER))?;
    Ok(())
}

fn read(file: &PathBuf) -> Result<Vec<u8>, OperatorError> {
    std::fs::read(file).map_err(|error| OperatorError::File { file: file.clone(), error })
}
