//! How to reach the operator: HTTPS, its own authority, and a token. Authority and token are read anew at every
//! connect, because both rotate in their files.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, HOST};
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// How long connecting and the head of an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where the operator is and how to be believed there.
#[derive(Debug, Clone)]
pub struct Operator {
    authority: String,
    server_name: ServerName<'static>,
    ca_file: PathBuf,
    token_file: PathBuf,
}

/// A URL that is not an operator's.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no operator's URL: https://HOST:PORT is needed")]
pub struct NoOperator(String);

/// Why the operator did not answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreached {
    #[error("cannot read {file}: {error}")]
    File { file: PathBuf, error: io::Error },
    #[error("{0} holds no usable certificate of an authority")]
    Authority(PathBuf),
    #[error("the token in {0} is not one")]
    Token(PathBuf),
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    #[error("no answer: {0}")]
    CheckResponse(#[from] hyper::Error),
    #[error("no answer within {PATIENCE:?}")]
    Late,
}

impl Operator {
    /// From its URL and the files that hold the authority's certificates and the token.
    pub fn new(url: &str, ca_file: PathBuf, token_file: PathBuf) -> Result<Self, NoOperator> {
        let refuse = || NoOperator(url.to_owned());
        let uri: Uri = url.parse().map_err(|_| refuse())?;
        let (Some("https"), Some(authority), "/") = (uri.scheme_str(), uri.authority(), uri.path()) else {
            return Err(refuse());
        };
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let server_name = host.try_into().map_err(|_: InvalidDnsNameError| refuse())?;
        let authority = format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(443));
        Ok(Self { authority, server_name, ca_file, token_file })
    }

    /// Sends a request on a connection of its own.
    pub(crate) async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, Unreached> {
        let token = read(&self.token_file)?;
        let bearer = HeaderValue::from_bytes(&[b"Bearer ", token.trim_ascii()].concat());
        let mut bearer = bearer.map_err(|_| Unreached::Token(self.token_file.clone()))?;
        bearer.set_sensitive(true);
        request.headers_mut().insert(AUTHORIZATION, bearer);
        if let Ok(host) = HeaderValue::from_str(&self.authority) {
            request.headers_mut().insert(HOST, host);
        }
        let tls = TlsConnector::from(Arc::new(self.tls()?));
        let asking = async {
            let stream = TcpStream::connect(&self.authority).await.map_err(Unreached::Connect)?;
            let stream = tls.connect(self.server_name.clone(), stream).await.map_err(Unreached::Connect)?;
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection);
            Ok(sender.send_request(request).await?)
        };
        tokio::time::timeout(PATIENCE, asking).await.unwrap_or(Err(Unreached::Late))
    }

    fn tls(&self) -> Result<ClientConfig, Unreached> {
        let mut roots = RootCertStore::empty();
        let pem = read(&self.ca_file)?;
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let certificate = certificate.map_err(|_| Unreached::Authority(self.ca_file.clone()))?;
            roots.add(certificate)?;
        }
        if roots.is_empty() {
            return Err(Unreached::Authority(self.ca_file.clone()));
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        Ok(config.with_root_certificates(roots).with_no_client_auth())
    }
}

fn read(file: &PathBuf) -> Result<Vec<u8>, Unreached> {
    std::fs::read(file).map_err(|error| Unreached::File { file: file.clone(), error })
}
