//! Rules from an xDS server: a real stream of ADS, over mTLS and in plain text.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;

use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use prost::Message as _;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use sluice_config::store_access::{StoreChoice, StoreChoices};
use sluice_service::compat::settings::Source;
use sluice_service::compat::xds::{XdsServer, XdsTls};
use sluice_service::messages::{
    ConfigDescriptor, ConfigRateLimit, DiscoveryRequest, DiscoveryResponse, RateLimitConfig,
};
use sluice_service::run::{Followed, Loader};
use tokio::sync::mpsc;
use tokio_stream::wrappers::{TcpListenerStream, UnboundedReceiverStream};
use tonic::body::Body;
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::transport::server::ServerTlsConfig;
use tonic::transport::{Certificate, Identity, Server};
use tonic::{Status, Streaming};
use tonic_prost::ProstCodec;

use crate::support::{Caller, RULES, Running, metric, of, start};

const RESOURCE: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// A stream that a client has opened.
struct Opened {
    requests: Streaming<DiscoveryRequest>,
    responses: mpsc::UnboundedSender<Result<DiscoveryResponse, Status>>,
    headers: http::HeaderMap,
}

impl Opened {
    async fn request(&mut self) -> DiscoveryRequest {
        let next = tokio::time::timeout(Duration::from_secs(60), self.requests.message());
        next.await.expect("a request").unwrap().unwrap()
    }

    fn send(&self, version: &str, configs: &[RateLimitConfig]) {
        let resources = configs
            .iter()
            .map(|config| prost_types::Any { type_url: RESOURCE.to_owned(), value: config.encode_to_vec() });
        self.responses
            .send(Ok(DiscoveryResponse {
                version_info: version.to_owned(),
                resources: resources.collect(),
                type_url: RESOURCE.to_owned(),
                nonce: format!("nonce-{version}"),
            }))
            .unwrap();
    }
}

/// An xDS server that passes each stream to the test.
#[derive(Clone)]
struct Ads(mpsc::UnboundedSender<Opened>);

impl StreamingService<DiscoveryRequest> for Ads {
    type Response = DiscoveryResponse;
    type ResponseStream = UnboundedReceiverStream<Result<DiscoveryResponse, Status>>;
    type Future = Ready<Result<tonic::Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: tonic::Request<Streaming<DiscoveryRequest>>) -> Self::Future {
        let (metadata, _, requests) = request.into_parts();
        let (responses, received) = mpsc::unbounded_channel();
        let _ = self.0.send(Opened { requests, responses, headers: metadata.into_headers() });
        ready(Ok(tonic::Response::new(UnboundedReceiverStream::new(received))))
    }
}

impl NamedService for Ads {
    const NAME: &'static str = "envoy.service.discovery.v3.AggregatedDiscoveryService";
}

impl tower::Service<Request<Body>> for Ads {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let ads = self.clone();
        Box::pin(async move { Ok(Grpc::new(ProstCodec::default()).streaming(ads, request).await) })
    }
}

/// Starts a server, which accepts connections until it is aborted.
async fn serve(
    address: SocketAddr,
    tls: Option<ServerTlsConfig>,
) -> (SocketAddr, mpsc::UnboundedReceiver<Opened>, tokio::task::JoinHandle<Result<(), tonic::transport::Error>>)
{
    let (streams, opened) = mpsc::unbounded_channel();
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut server = Server::builder();
    if let Some(tls) = tls {
        server = server.tls_config(tls).unwrap();
    }
    let serving = server.add_service(Ads(streams)).serve_with_incoming(TcpListenerStream::new(listener));
    (address, opened, tokio::spawn(serving))
}

fn config(domain: &str, requests_per_unit: u32, unit: i32) -> RateLimitConfig {
    let rate_limit = Some(ConfigRateLimit { unit, requests_per_unit, ..ConfigRateLimit::default() });
    let descriptor = ConfigDescriptor { key: "user".into(), rate_limit, ..ConfigDescriptor::default() };
    RateLimitConfig {
        name: format!("{domain}-config"),
        domain: domain.to_owned(),
        descriptors: vec![descriptor],
    }
}

fn follow(running: &Running, server: XdsServer) -> tokio::task::JoinHandle<()> {
    let publication = running.service.publication(StoreChoices::only(StoreChoice::Memory));
    let loader = Loader { publication, compile: RULES, replicas: 1 };
    tokio::spawn(Followed::new(Source::Xds(Box::new(server))).follow(loader))
}

fn server(address: SocketAddr) -> XdsServer {
    XdsServer {
        address: address.to_string(),
        node: "envoy-ratelimit".to_owned(),
        metadata: vec![("zone".to_owned(), "a".to_owned())],
        headers: vec![("X-Tenant".to_owned(), "shop".to_owned())],
        tls: None,
        longest_pause: Duration::from_secs(1),
        max_message: 1 << 20,
    }
}

async fn next(opened: &mut mpsc::UnboundedReceiver<Opened>) -> Opened {
    tokio::time::timeout(Duration::from_secs(60), opened.recv()).await.expect("a stream").unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_are_accepted_or_refused_as_a_whole_and_a_new_stream_begins_without_a_version() {
    let (address, mut opened, serving) = serve("127.0.0.1:0".parse().unwrap(), None).await;
    let running = start("domain: before").await;
    let _following = follow(&running, server(address));
    let mut caller = Caller::connect(&running).await;
    let mut stream = next(&mut opened).await;
    assert_eq!(stream.headers["x-tenant"], "shop");
    let first = stream.request().await;
    let node = first.node.unwrap();
    assert_eq!((&*first.version_info, &*first.type_url, &*node.id), ("", RESOURCE, "envoy-ratelimit"));
    assert!(format!("{:?}", node.metadata).contains("zone"));

    stream.send("1", &[config("shop", 5, 2), config("mail", 7, 3)]);
    let ack = stream.request().await;
    assert_eq!((&*ack.version_info, &*ack.response_nonce, ack.error_detail), ("1", "nonce-1", None));
    assert_eq!(caller.words("shop", &[of(&[("user", "a")])]).await, "ok: ok 4/5");
    assert_eq!(caller.words("mail", &[of(&[("user", "a")])]).await, "ok: ok 6/7");

    stream.send("2", &[config("shop", 9, 2), config("mail", 7, 0)]);
    let nack = stream.request().await;
    assert_eq!((&*nack.version_info, &*nack.response_nonce), ("1", "nonce-2"));
    let reason = nack.error_detail.unwrap().message;
    assert!(reason.starts_with("resource mail-config: descriptors[0].rate_limit.unit: "), "{reason}");
    assert_eq!(caller.words("shop", &[of(&[("user", "a")])]).await, "ok: ok 3/5", "the previous rules stay");

    stream.responses.send(Err(Status::unavailable("a rollout"))).unwrap();
    let mut stream = next(&mut opened).await;
    // A server that has started again may use a version again for other rules.
    assert_eq!(stream.request().await.version_info, "");
    stream.send("1", &[config("shop", 9, 2)]);
    assert_eq!(stream.request().await.version_info, "1");
    assert_eq!(caller.words("shop", &[of(&[("user", "a")])]).await, "ok: ok 6/9");
    assert_eq!(
        caller.words("mail", &[of(&[("user", "a")])]).await,
        "ok: ok",
        "a domain that is not sent is gone"
    );

    // The server goes away, and another one takes its address.
    serving.abort();
    // Its address is free when it has ended.
    let _ = serving.await;
    drop((stream, opened));
    assert_eq!(caller.words("shop", &[of(&[("user", "a")])]).await, "ok: ok 5/9");
    let (_, mut opened, _serving) = serve(address, None).await;
    assert_eq!(next(&mut opened).await.request().await.version_info, "");
}

/// Envoy Gateway makes this of two rules for the addresses of a range, together and each by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_level_that_is_listed_for_each_rule_is_one_level() {
    let (address, mut opened, _serving) = serve("127.0.0.1:0".parse().unwrap(), None).await;
    let running = start("domain: before").await;
    let _following = follow(&running, server(address));
    let mut stream = next(&mut opened).await;
    stream.request().await;
    let rule = |key: &str, value: &str, requests_per_unit| {
        let rate_limit = ConfigRateLimit { unit: 4, requests_per_unit, ..ConfigRateLimit::default() };
        ConfigDescriptor {
            key: key.to_owned(),
            value: value.to_owned(),
            rate_limit: Some(rate_limit),
            ..ConfigDescriptor::default()
        }
    };
    let range =
        |below| ConfigDescriptor { rate_limit: None, descriptors: vec![below], ..rule("range", "10/8", 0) };
    let together = rule("range", "10/8", 100);
    let lists = [
        vec![together.clone(), range(rule("address", "", 10)), range(rule("query", "", 5))],
        vec![range(rule("address", "", 10)), together.clone(), range(rule("query", "", 5))],
    ];
    let mut caller = Caller::connect(&running).await;
    for (n, descriptors) in lists.into_iter().enumerate() {
        let domain = format!("shop-{n}");
        let config = RateLimitConfig { name: domain.clone(), domain: domain.clone(), descriptors };
        stream.send(&n.to_string(), &[config]);
        assert_eq!(stream.request().await.error_detail, None);
        let descriptors = [
            of(&[("range", "10/8")]),
            of(&[("range", "10/8"), ("address", "10.0.0.1")]),
            of(&[("range", "10/8"), ("query", "x")]),
        ];
        assert_eq!(caller.words(&domain, &descriptors).await, "ok: ok 99/100 ok 9/10 ok 4/5");
    }
    let config = RateLimitConfig {
        domain: "shop".to_owned(),
        descriptors: vec![together.clone(), together],
        ..RateLimitConfig::default()
    };
    stream.send("2", &[config]);
    let reason = stream.request().await.error_detail.unwrap().message;
    assert!(reason.contains("\"range_10/8\" is there twice"), "{reason}");
}

/// Envoy Gateway sends again at once what was refused, for as long as the policy is not mended.
#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_is_sent_again_is_refused_again_without_being_loaded() {
    let (address, mut opened, _serving) = serve("127.0.0.1:0".parse().unwrap(), None).await;
    let running = start("domain: before").await;
    let _following = follow(&running, server(address));
    let mut stream = next(&mut opened).await;
    stream.request().await;
    for _ in 0..3 {
        stream.send("1", &[config("mail", 7, 0)]);
        let nack = stream.request().await;
        assert_eq!((&*nack.version_info, &*nack.response_nonce), ("", "nonce-1"));
        let reason = nack.error_detail.unwrap().message;
        assert!(reason.starts_with("resource mail-config: descriptors[0].rate_limit.unit: "), "{reason}");
    }
    assert_eq!(metric(&running, "sluice_ratelimit_config_loads_total")[r#"{outcome="rejected"}"#], "1");
    stream.send("2", &[config("mail", 7, 2)]);
    assert_eq!(stream.request().await.version_info, "2");
    // What was refused once may be right later.
    stream.send("1", &[config("mail", 8, 2)]);
    assert_eq!(stream.request().await.version_info, "1");
    let mut caller = Caller::connect(&running).await;
    assert_eq!(caller.words("mail", &[of(&[("user", "a")])]).await, "ok: ok 7/8");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_is_no_configuration_is_refused() {
    let (address, mut opened, _serving) = serve("127.0.0.1:0".parse().unwrap(), None).await;
    let running = start("domain: before").await;
    let _following = follow(&running, server(address));
    let mut stream = next(&mut opened).await;
    stream.request().await;
    for (version, type_url, value, expected) in [
        ("1", "type.googleapis.com/envoy.config.cluster.v3.Cluster", vec![], "resource 0: has the type"),
        ("2", RESOURCE, vec![0x0a, 0xff], "resource 0: "),
    ] {
        let resources = vec![prost_types::Any { type_url: type_url.to_owned(), value }];
        let response =
            DiscoveryResponse { version_info: version.into(), resources, ..DiscoveryResponse::default() };
        stream.responses.send(Ok(response)).unwrap();
        let reason = stream.request().await.error_detail.unwrap().message;
        assert!(reason.starts_with(expected), "{reason}");
    }
}

/// Writes certificates of an authority for a server and a client into a folder.
fn certificates(folder: &std::path::Path) -> (Certificate, Identity, XdsTls) {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let issue = |name: &str| {
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
        (certificate.pem(), key.serialize_pem())
    };
    let write = |name: &str, text: &str| -> PathBuf {
        let file = folder.join(name);
        std::fs::write(&file, text).unwrap();
        file
    };
    let ca = authority.pem();
    let (certificate, key) = issue("envoy-gateway");
    let (client, client_key) = issue("envoy-ratelimit");
    let tls = XdsTls {
        certificate: Some((write("tls.crt", &client), write("tls.key", &client_key))),
        ca: Some(write("ca.crt", &ca)),
        server_name: Some("envoy-gateway".to_owned()),
    };
    (Certificate::from_pem(ca), Identity::from_pem(certificate, key), tls)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stream_can_be_over_mutual_tls_with_certificates_that_are_replaced() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let folder = tempfile::tempdir().unwrap();
    let (ca, identity, tls) = certificates(folder.path());
    let with_tls = ServerTlsConfig::new().identity(identity).client_ca_root(ca);
    let (address, mut opened, serving) = serve("127.0.0.1:0".parse().unwrap(), Some(with_tls)).await;
    let running = start("domain: before").await;
    let _following = follow(&running, XdsServer { tls: Some(tls), ..server(address) });
    let mut stream = next(&mut opened).await;
    assert_eq!(stream.request().await.version_info, "");
    stream.send("1", &[config("shop", 5, 2)]);
    assert_eq!(stream.request().await.version_info, "1");
    // Another authority, with certificates in the same files.
    serving.abort();
    // Its address is free when it has ended.
    let _ = serving.await;
    drop((stream, opened));
    let (ca, identity, _) = certificates(folder.path());
    let with_tls = ServerTlsConfig::new().identity(identity).client_ca_root(ca);
    let (_, mut opened, _serving) = serve(address, Some(with_tls)).await;
    assert_eq!(next(&mut opened).await.request().await.version_info, "");
}
