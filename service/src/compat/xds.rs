//! The rules of an xDS server, over a stream of ADS in the state-of-the-world variant: each response has all resources, and is
//! accepted or refused as a whole.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use prost::Message as _;
use prost_types::value::Kind;
use prost_types::{Struct, Value};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::compat::compile::ConfigError;
use crate::compat::config::DomainConfig;
use crate::messages::{DiscoveryRequest, DiscoveryResponse, Node, RateLimitConfig, RpcStatus};

const METHOD: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
const RESOURCE: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";
/// `google.rpc.Code.INVALID_ARGUMENT`.
const INVALID_ARGUMENT: i32 = 3;
/// Pause before the second attempt. It doubles up to [`XdsServer::longest_pause`].
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Time after which a response is refused again that the server has sent again. Until it is answered, the server has nothing to send.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);
/// Time that an attempt to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which the system asks a server that is silent whether it is there, and how often. gRPC servers end connections with
/// more than a few pings of HTTP/2.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_RETRIES: u32 = 3;

/// An xDS server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XdsServer {
    /// `HOST:PORT`.
    pub address: String,
    /// The id under which the server knows this process.
    pub node: String,
    /// Further properties of this process.
    pub metadata: Vec<(String, String)>,
    /// Headers of the stream.
    pub headers: Vec<(String, String)>,
    /// TLS, unless the connection is in plain text.
    pub tls: Option<XdsTls>,
    /// Longest pause between two attempts to connect.
    pub longest_pause: Duration,
    /// Largest response, in bytes.
    pub max_message: usize,
}

/// The certificates for an xDS server. The files are read for each connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XdsTls {
    /// Files with the client certificate and its key, in PEM.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// File with authorities that may sign the server's certificate beside the public ones, in PEM.
    pub ca: Option<PathBuf>,
    /// The name in the server's certificate, if it is not its host.
    pub server_name: Option<String>,
}

/// The reason why a stream ended.
#[derive(Debug, thiserror::Error)]
enum XdsError {
    #[error("{0}: {1}")]
    File(String, std::io::Error),
    #[error("cannot connect: {}", chain(.0))]
    Connect(tonic::transport::Error),
    #[error("{0:?} is no valid header")]
    Header(String),
    #[error("the stream failed: {}: {}", .0.code(), .0.message())]
    Stream(#[from] Status),
    #[error("the server ended the stream")]
    Ended,
}

/// Writes an error with its causes, which name what the system said.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Follows the rules of a server. `apply` makes those of a response take effect, or says what is wrong with them. Never returns.
pub(crate) async fn follow(
    server: XdsServer,
    mut apply: impl FnMut(Result<Vec<(String, DomainConfig)>, ConfigError>) -> Result<(), ConfigError>,
) {
    let mut pause = FIRST_PAUSE;
    loop {
        let began = Instant::now();
        let ended = stream(&server, &mut apply).await;
        if let Err(error) = ended {
            tracing::warn!(server = server.address, %error, "no connection to the xDS server: the rules stay as they are");
        }
        // A server that has served for a while is not one that refuses.
        if began.elapsed() > server.longest_pause {
            pause = FIRST_PAUSE;
        }
        // Replicas do not connect at once.
        tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..=1.0))).await;
        pause = (pause * 2).min(server.longest_pause.max(FIRST_PAUSE));
    }
}

/// Opens a stream, and answers its responses until it ends. It begins without a version, because a server that has started again
/// may count from the beginning: the version that was accepted last would then say that nothing is new.
async fn stream(
    server: &XdsServer,
    apply: &mut impl FnMut(Result<Vec<(String, DomainConfig)>, ConfigError>) -> Result<(), ConfigError>,
) -> Result<(), XdsError> {
    let mut version = String::new();
    let channel = server.connect().await?;
    let (requests, received) = mpsc::channel(4);
    let first = server.request(&version, String::new(), None);
    let _ = requests.send(first).await;
    let mut request = Request::new(ReceiverStream::new(received));
    for (name, value) in &server.headers {
        let name: AsciiMetadataKey =
            name.to_ascii_lowercase().parse().map_err(|_| XdsError::Header(name.clone()))?;
        let value: AsciiMetadataValue = value.parse().map_err(|_| XdsError::Header(name.to_string()))?;
        request.metadata_mut().insert(name, value);
    }
    let mut grpc = Grpc::new(channel).max_decoding_message_size(server.max_message);
    grpc.ready().await.map_err(XdsError::Connect)?;
    let codec = ProstCodec::<DiscoveryRequest, DiscoveryResponse>::default();
    let responses = grpc.streaming(request, http::uri::PathAndQuery::from_static(METHOD), codec).await?;
    let mut responses: Streaming<DiscoveryResponse> = responses.into_inner();
    tracing::info!(server = server.address, node = server.node, "connected to the xDS server");
    // The version that was refused last, and why.
    let mut refused: Option<(String, String)> = None;
    while let Some(response) = responses.message().await? {
        let DiscoveryResponse { version_info, resources, type_url: _, nonce } = response;
        let refusal = match refused {
            // Servers of go-control-plane send again at once what was refused.
            Some((known, reason)) if known == version_info && !known.is_empty() => {
                tokio::time::sleep(REFUSED_PAUSE).await;
                Some(reason)
            }
            _ => apply(read(resources)).err().map(|error| {
                tracing::error!(version = version_info, %error, "the rules of the xDS server are refused: the previous ones stay");
                error.to_string()
            }),
        };
        if refusal.is_none() {
            version.clone_from(&version_info);
        }
        refused = refusal.clone().map(|reason| (version_info, reason));
        if requests.send(server.request(&version, nonce, refusal)).await.is_err() {
            break;
        }
    }
    Err(XdsError::Ended)
}

/// Reads the resources of a response.
fn read(resources: Vec<prost_types::Any>) -> Result<Vec<(String, DomainConfig)>, ConfigError> {
    let read = |(n, resource): (usize, prost_types::Any)| {
        let failed = |reason: String| ConfigError { file: format!("resource {n}"), reason };
        if resource.type_url != RESOURCE {
            return Err(failed(format!("has the type {:?} in place of {RESOURCE}", resource.type_url)));
        }
        let config = RateLimitConfig::decode(&*resource.value).map_err(|error| failed(error.to_string()))?;
        let name = if config.name.is_empty() {
            format!("resource {n}")
        } else {
            format!("resource {}", config.name)
        };
        Ok((name, config.into()))
    };
    resources.into_iter().enumerate().map(read).collect()
}

impl XdsServer {
    async fn connect(&self) -> Result<Channel, XdsError> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        // The forms that gRPC's own clients understand.
        let address = ["http://", "https://", "dns:///", "passthrough:///"]
            .iter()
            .fold(&*self.address, |address, scheme| address.trim_start_matches(scheme));
        let endpoint = Endpoint::from_shared(format!("{scheme}://{address}")).map_err(XdsError::Connect)?;
        let mut endpoint = endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_keepalive(Some(KEEPALIVE))
            .tcp_keepalive_interval(Some(KEEPALIVE))
            .tcp_keepalive_retries(Some(KEEPALIVE_RETRIES));
        if let Some(tls) = &self.tls {
            endpoint = endpoint.tls_config(tls.config()?).map_err(XdsError::Connect)?;
        }
        endpoint.connect().await.map_err(XdsError::Connect)
    }

    fn request(&self, version: &str, nonce: String, refusal: Option<String>) -> DiscoveryRequest {
        let text = |text: &String| Value { kind: Some(Kind::StringValue(text.clone())) };
        let fields = self.metadata.iter().map(|(key, value)| (key.clone(), text(value)));
        DiscoveryRequest {
            version_info: version.to_owned(),
            node: Some(Node { id: self.node.clone(), metadata: Some(Struct { fields: fields.collect() }) }),
            type_url: RESOURCE.to_owned(),
            response_nonce: nonce,
            error_detail: refusal.map(|message| RpcStatus { code: INVALID_ARGUMENT, message }),
        }
    }
}

impl XdsTls {
    fn config(&self) -> Result<ClientTlsConfig, XdsError> {
        let read = |file: &PathBuf| {
            std::fs::read(file).map_err(|error| XdsError::File(file.display().to_string(), error))
        };
        let mut config = ClientTlsConfig::new().with_webpki_roots();
        if let Some(ca) = &self.ca {
            config = config.ca_certificate(Certificate::from_pem(read(ca)?));
        }
        if let Some((certificate, key)) = &self.certificate {
            config = config.identity(Identity::from_pem(read(certificate)?, read(key)?));
        }
        if let Some(name) = &self.server_name {
            config = config.domain_name(name);
        }
        Ok(config)
    }
}
