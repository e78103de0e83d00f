//! Gateways that show the head of a request: over gRPC at `authz`, and over HTTP at `auth`.

use std::collections::BTreeMap;

use prost_types::value::Kind;
use sluice_service::messages::{
    Address, AttributeContext, CheckRequest, CheckResponse, ContextExtensionsEntry, HeaderValue,
    HeaderValueOption, Headers, HeadersEntry, HttpRequest, HttpResponse, Peer, Request, SocketAddress,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::Status;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic_prost::ProstCodec;

use crate::support::checks::{Checked, start_with};

const POLICIES: &str = "
apiVersion: sluice.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: api, namespace: shop}
spec:
  enforcedBy: [Service]
  clientAddress: {trustedProxies: [192.0.2.1/32]}
  limits:
  - name: per-user
    matches: [{path: {prefix: /user}}]
    key: {parts: [{header: {name: x-user}}]}
    rates: [{requests: 2, per: 1h}]
    algorithm: {fixedWindow: {}}
    onLimit: {reject: {statusCode: 503, headers: [{name: x-why, value: limited}], body: {template: {text: '${message}', contentType: text/plain}}}}
  - name: by-address
    matches: [{path: {exact: /address}}]
    key: {parts: [{clientIP: {}}]}
    rates: [{requests: 1, per: 1h}]
    algorithm: {fixedWindow: {}}
  - name: calls
    matches: [{path: {prefix: /pkg.Service}}]
    rates: [{requests: 1, per: 1h}]
    algorithm: {fixedWindow: {}}
  - name: bytes
    matches: [{path: {exact: /upload}}]
    rates: [{requests: 1000, per: 1h}]
    algorithm: {fixedWindow: {}}
    cost: {request: {bodyBytes: {}}}
  - name: tunnels
    matches: [{methods: [CONNECT]}]
    rates: [{requests: 1, per: 1h}]
    algorithm: {fixedWindow: {}}
  - name: failures
    matches: [{path: {exact: /login}}]
    countWhen: {statusCodes: ['401']}
    rates: [{requests: 1, per: 1h}]
---
apiVersion: sluice.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: both, namespace: shop}
spec:
  enforcedBy: [Sidecar, Service]
  limits:
  - name: marking
    matches: [{path: {exact: /marked}}]
    rates: [{requests: 1, per: 1h}]
    algorithm: {fixedWindow: {}}
    onLimit: {mark: {header: x-over}}
  - name: failures
    matches: [{path: {exact: /marked}}]
    countWhen: {statusCodes: ['401']}
    rates: [{requests: 1, per: 1h}]
  - name: counted
    matches: [{path: {exact: /marked}}]
    rates: [{requests: 100, per: 1h}]
---
apiVersion: sluice.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: single, namespace: other}
spec:
  enforcedBy: [Service]
  ambiguousPaths: Reject
  limits: [{name: all, rates: [{requests: 2, per: 1h}], algorithm: {fixedWindow: {}}}]
";

/// A head as Envoy shows it, with headers as they came.
#[derive(Clone)]
struct Shown {
    method: &'static str,
    path: &'static str,
    host: &'static str,
    protocol: &'static str,
    headers: Vec<(&'static str, &'static [u8])>,
    address: &'static str,
    extensions: BTreeMap<&'static str, &'static str>,
    metadata: Vec<(&'static str, &'static str)>,
}

fn shown(path: &'static str) -> Shown {
    Shown {
        method: "GET",
        path,
        host: "shop.example",
        protocol: "HTTP/1.1",
        headers: Vec::new(),
        address: "198.51.100.7",
        extensions: BTreeMap::from([("sluice.dev/namespace", "shop")]),
        metadata: Vec::new(),
    }
}

impl Shown {
    fn with(mut self, name: &'static str, value: &'static [u8]) -> Self {
        self.headers.push((name, value));
        self
    }

    fn message(&self, is_raw: bool) -> CheckRequest {
        let bytes = |text: &'static str| bytes::Bytes::from_static(text.as_bytes());
        let mut http = HttpRequest {
            method: bytes(self.method),
            path: bytes(self.path),
            host: bytes(self.host),
            protocol: self.protocol.to_owned(),
            ..HttpRequest::default()
        };
        let all = [(":method", self.method.as_bytes()), (":path", self.path.as_bytes())];
        let all = all.into_iter().chain(self.headers.iter().copied());
        if is_raw {
            let one = |(key, value): (&'static str, &'static [u8])| HeaderValue {
                key: key.into(),
                raw_value: value.into(),
                ..HeaderValue::default()
            };
            http.header_map = Some(Headers { headers: all.map(one).collect() });
        } else {
            let entry = |(key, value): (&'static str, &'static [u8])| HeadersEntry {
                key: key.into(),
                value: value.into(),
            };
            http.headers = all.map(entry).collect();
        }
        let socket = SocketAddress { address: self.address.to_owned() };
        let address = Address { socket_address: Some(socket) };
        let extensions = self.extensions.iter().map(|(key, value)| ContextExtensionsEntry {
            key: (*key).to_owned(),
            value: (*value).to_owned(),
        });
        CheckRequest {
            attributes: Some(AttributeContext {
                source: Some(Peer { address: Some(address) }),
                request: Some(Request { http: Some(http) }),
                context_extensions: extensions.collect(),
            }),
        }
    }
}

struct Envoy(Grpc<Channel>);

impl Envoy {
    async fn connect(running: &Checked) -> Self {
        let url = format!("http://{}", running.service.grpc());
        Self(Grpc::new(Channel::from_shared(url).unwrap().connect().await.unwrap()))
    }

    async fn try_ask(&mut self, shown: &Shown, is_raw: bool) -> Result<CheckResponse, Status> {
        self.0.ready().await.unwrap();
        let mut request = tonic::Request::new(shown.message(is_raw));
        request.set_timeout(std::time::Duration::from_secs(10));
        for (name, value) in &shown.metadata {
            request.metadata_mut().insert(*name, value.parse().unwrap());
        }
        let path = "/envoy.service.auth.v3.Authorization/Check".parse().unwrap();
        let codec = ProstCodec::<CheckRequest, CheckResponse>::default();
        self.0.unary(request, path, codec).await.map(tonic::Response::into_inner)
    }

    async fn ask(&mut self, shown: &Shown) -> CheckResponse {
        self.try_ask(shown, true).await.unwrap()
    }

    /// Returns the status of a denial, or 200.
    async fn status(&mut self, shown: &Shown) -> i32 {
        match self.ask(shown).await.http_response.unwrap() {
            HttpResponse::DeniedResponse(denied) => denied.status.unwrap().code,
            HttpResponse::OkResponse(_) => 200,
        }
    }
}

fn pairs(options: &[HeaderValueOption]) -> Vec<(String, String)> {
    let header = |option: &HeaderValueOption| option.header.clone().unwrap();
    let text = |bytes: bytes::Bytes| String::from_utf8(bytes.into()).unwrap();
    options.iter().map(|option| (text(header(option).key), header(option).value)).collect()
}

fn value<'a>(pairs: &'a [(String, String)], name: &str) -> Option<&'a str> {
    pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denial_has_status_headers_and_body_of_the_policy_and_what_was_decided_is_metadata() {
    let running = start_with(POLICIES, |_| {}).await;
    let mut envoy = Envoy::connect(&running).await;
    let alice = shown("/user/7?a=b").with("x-user", b"alice");
    for left in ["1", "0"] {
        let answer = envoy.ask(&alice).await;
        assert_eq!(answer.status.unwrap().code, 0);
        let Some(HttpResponse::OkResponse(ok)) = answer.http_response else { panic!("{left}") };
        let headers = pairs(&ok.response_headers_to_add);
        assert_eq!(value(&headers, "x-ratelimit-remaining"), Some(left), "{headers:?}");
        assert!(ok.headers.is_empty() && ok.headers_to_remove.is_empty(), "no sidecar is behind it: {ok:?}");
    }
    let answer = envoy.ask(&alice).await;
    let fields = answer.dynamic_metadata.clone().unwrap().fields;
    let text = |name: &str| match &fields[name].kind {
        Some(Kind::StringValue(text)) => text.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!([text("decision"), text("policy"), text("limit")], ["denied", "shop/api", "per-user"]);
    assert_ne!(answer.status.unwrap().code, 0);
    let Some(HttpResponse::DeniedResponse(denied)) = answer.http_response else { panic!("no denial") };
    let headers = pairs(&denied.headers);
    assert_eq!(denied.status.unwrap().code, 503);
    assert_eq!(
        (value(&headers, "x-why"), value(&headers, "content-type")),
        (Some("limited"), Some("text/plain"))
    );
    assert_eq!(value(&headers, "retry-after"), Some("1770"));
    assert!(denied.body.contains("Limit per-user"), "{}", denied.body);
    assert_eq!(envoy.status(&shown("/user/7").with("x-user", b"bob")).await, 200);
    // A client of gRPC.
    let call = || Shown {
        method: "POST",
        protocol: "HTTP/2",
        ..shown("/pkg.Service/Do").with("content-type", b"application/grpc")
    };
    assert_eq!(envoy.status(&call()).await, 200);
    let Some(HttpResponse::DeniedResponse(denied)) = envoy.ask(&call()).await.http_response else {
        panic!("no denial")
    };
    let headers = pairs(&denied.headers);
    assert_eq!(value(&headers, "grpc-status"), Some("8"), "{headers:?}");
    assert!(denied.body.is_empty() && value(&headers, "grpc-status-details-bin").is_some(), "{headers:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_is_read_as_a_sidecar_reads_it() {
    let running = start_with(POLICIES, |_| {}).await;
    let mut envoy = Envoy::connect(&running).await;
    // Bytes stay apart, and what the filter has joined is read too.
    for (user, status) in
        [(&b"caf\xe9"[..], 200), (b"caf\xff", 200), (b"caf\xe9", 200), (b"caf\xe9", 503), (b"caf\xff", 200)]
    {
        assert_eq!(envoy.status(&shown("/user").with("x-user", user)).await, status, "{user:?}");
    }
    let joined = envoy.try_ask(&shown("/user").with("x-user", b"caf\xff"), false).await.unwrap();
    assert!(matches!(joined.http_response, Some(HttpResponse::DeniedResponse(_))), "{joined:?}");
    // The address is the gateway's word, and proxies that the policy trusts report on.
    let from = |address: &'static str, forwarded: &'static [u8]| Shown {
        address,
        ..shown("/address").with("x-forwarded-for", forwarded)
    };
    assert_eq!(envoy.status(&from("198.51.100.7", b"203.0.113.1")).await, 200);
    assert_eq!(envoy.status(&from("198.51.100.7", b"203.0.113.2")).await, 429);
    assert_eq!(envoy.status(&from("192.0.2.1", b"203.0.113.1")).await, 200);
    assert_eq!(envoy.status(&from("192.0.2.1", b"203.0.113.1")).await, 429);
    // Spellings, a tunnel, an absolute target, and what no sidecar forwards.
    for (head, status) in [
        (Shown { method: "CONNECT", path: "", host: "a.example:443", ..shown("") }, 200),
        (Shown { method: "CONNECT", path: "", host: "a.example:443", ..shown("") }, 429),
        (Shown { method: "OPTIONS", ..shown("*") }, 200),
        (Shown { method: "M-SEARCH", ..shown("/none") }, 200),
        (Shown { method: "a b", ..shown("/none") }, 400),
        (Shown { method: "", ..shown("/none") }, 400),
        (shown("none"), 400),
        (Shown { host: "a b", ..shown("/none") }, 400),
        (shown("/none").with("host", b"other.example"), 400),
        (shown("/none").with("content-length", b"x"), 400),
        (shown("/none").with("x\0", b""), 431),
        (shown("/none").with("x", b"\n"), 431),
        (shown("/none?a=\"<>`"), 200),
    ] {
        assert_eq!(envoy.status(&head).await, status, "{} {:?}", head.method, head.path);
    }
    let upload = |length| Shown { method: "POST", ..shown("/upload").with("content-length", length) };
    assert_eq!([envoy.status(&upload(b"999")).await, envoy.status(&upload(b"2")).await], [200, 429]);
    let chunked = || Shown { method: "DELETE", ..shown("/upload") };
    assert_eq!(envoy.status(&chunked()).await, 411, "its length is not known");
    let mut many = shown("/none");
    many.headers = vec![("x", b"y"); 257];
    assert_eq!(envoy.status(&many).await, 431);
    // Nothing at all.
    let mut nothing = shown("");
    nothing.host = "";
    assert_eq!(envoy.status(&nothing).await, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn marks_replace_those_of_clients_and_limits_on_outcomes_are_left_to_sidecars() {
    let running = start_with(POLICIES, |_| {}).await;
    let mut envoy = Envoy::connect(&running).await;
    let forged =
        || shown("/marked").with("x-over", b"forged").with("X_Over", b"forged").with("sluice-charged", b"x");
    for over in [None, Some("both/marking")] {
        let Some(HttpResponse::OkResponse(ok)) = envoy.ask(&forged()).await.http_response else {
            panic!("denied")
        };
        let set = pairs(&ok.headers);
        assert_eq!(value(&set, "x-over"), over, "{ok:?}");
        assert!(value(&set, "sluice-charged").is_some_and(|mark| mark.contains('.')), "{ok:?}");
        let removed = |name: &str| ok.headers_to_remove.iter().any(|one| one == name);
        assert_eq!(
            (removed("x-over"), removed("x_over"), removed("sluice-charged")),
            (over.is_none(), true, false),
            "{ok:?}"
        );
    }
    // Where no sidecar is behind the gateway, such a request is denied, and the metadata says why.
    let answer = envoy.ask(&shown("/login")).await;
    let Some(HttpResponse::DeniedResponse(denied)) = &answer.http_response else { panic!("{answer:?}") };
    assert_eq!(denied.status.unwrap().code, 500);
    let limit = &answer.dynamic_metadata.as_ref().unwrap().fields["limit"].kind;
    assert_eq!(limit, &Some(Kind::StringValue("failures".to_owned())));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gateways_configuration_names_what_applies_and_no_client() {
    let running = start_with(POLICIES, |options| options.is_of_one_user = false).await;
    let mut envoy = Envoy::connect(&running).await;
    let named =
        |extensions: &[(&'static str, &'static str)], metadata: &[(&'static str, &'static str)]| Shown {
            extensions: extensions.iter().copied().collect(),
            metadata: metadata.to_vec(),
            ..shown("/").with("sluice-namespace", b"other")
        };
    let (namespace, policy) = ("sluice.dev/namespace", "sluice.dev/policy");
    for (head, code) in [
        (named(&[], &[]), tonic::Code::InvalidArgument),
        (named(&[(policy, "single")], &[]), tonic::Code::InvalidArgument),
        (named(&[(namespace, "shop"), (policy, "other/single")], &[]), tonic::Code::InvalidArgument),
        (named(&[(namespace, "other"), (policy, "none")], &[]), tonic::Code::NotFound),
    ] {
        assert_eq!(envoy.try_ask(&head, true).await.unwrap_err().code(), code, "{:?}", head.extensions);
    }
    assert_eq!(envoy.status(&named(&[(namespace, "other")], &[])).await, 200);
    assert_eq!(envoy.status(&named(&[(policy, "other/single")], &[])).await, 200);
    assert_eq!(envoy.status(&named(&[], &[("sluice-namespace", "other")])).await, 429);
    let by_metadata = named(&[], &[("sluice-namespace", "other"), ("sluice-policy", "single")]);
    assert_eq!(envoy.status(&by_metadata).await, 429);
    assert_eq!(envoy.status(&named(&[(namespace, "shop")], &[])).await, 200, "others have limits");
    // A path that a policy of the namespace refuses is the client's, and no error.
    let ambiguous = Shown { path: "//x", ..named(&[(namespace, "other")], &[]) };
    assert_eq!(envoy.status(&ambiguous).await, 400);
    let metrics = running.service.metrics();
    let count = |answer: &str| {
        let line = format!("sluice_authorizations_total{{door=\"authz\",answer=\"{answer}\"}} ");
        metrics.lines().find_map(|text| text.strip_prefix(&*line)?.parse::<u64>().ok())
    };
    assert_eq!(
        [count("admitted"), count("denied"), count("error")],
        [Some(3), Some(3), Some(4)],
        "{metrics}"
    );
}

/// Asks the door `auth`, and returns the head and the body of the answer.
async fn ask(running: &Checked, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(running.address()).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_ascii_lowercase(), body.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_gateway_is_asked_by_the_headers_that_it_sets_itself() {
    let running = start_with(POLICIES, |_| {}).await;
    let own = "x-sluice-method: GET\r\nx-sluice-target: /user/1\r\nx-sluice-host: a\r\nx-sluice-address: 198.51.100.7\r\n";
    let forwarded = "x-forwarded-method: GET\r\nx-forwarded-uri: /user/1\r\nx-forwarded-host: a\r\nx-forwarded-for: 1.1.1.1, 198.51.100.7\r\n";
    let envoy = "x-sluice-address: 198.51.100.7\r\n";
    for (gateway, rest, headers) in [
        ("nginx", "", own),
        ("haproxy", "", own),
        ("traefik", "", forwarded),
        ("caddy", "", forwarded),
        ("envoy", "/user/1?a", envoy),
    ] {
        let request = |user: &str, headers: &str| {
            format!(
                "GET /v1/auth/{gateway}/shop/-{rest} HTTP/1.1\r\nhost: a\r\nconnection: close\r\nx-user: {user}\r\nauthorization: Basic eDp5\r\n\
                 expect: 100-continue\r\nupgrade: websocket\r\n{headers}\r\n"
            )
        };
        let user = format!("u-{gateway}");
        for _ in 0..2 {
            let (head, _) = ask(&running, &request(&user, headers)).await;
            assert!(
                head.starts_with("http/1.1 200 ") && head.contains("cache-control: no-store"),
                "{gateway} {head}"
            );
        }
        let (head, body) = ask(&running, &request(&user, headers)).await;
        assert!(
            head.contains("cache-control: no-store") && head.contains("retry-after: 1770"),
            "{gateway} {head}"
        );
        if gateway == "nginx" {
            assert!(head.starts_with("http/1.1 403 ") && body.is_empty(), "{head}");
            assert!(
                head.contains("x-sluice-status: 503") && head.contains("x-sluice-body: limit per-user"),
                "{head}"
            );
        } else {
            // Envoy takes 5xx for a failure.
            let status = if gateway == "envoy" { 429 } else { 503 };
            let is_denied = head.starts_with(&format!("http/1.1 {status} "));
            assert!(is_denied && body.contains("Limit per-user"), "{gateway} {head}");
        }
        // What it sets is missing, or there twice.
        let first = headers.split("\r\n").next().unwrap();
        for wrong in [String::new(), format!("{headers}{first}\r\n")] {
            if gateway == "envoy" || !wrong.is_empty() || !headers.is_empty() {
                let (head, body) = ask(&running, &request(&user, &wrong)).await;
                assert!(
                    head.starts_with("http/1.1 400 ") && body.contains("docs/gateways.md"),
                    "{gateway} {wrong} {head}"
                );
            }
        }
    }
    // Names that are not there, and paths that are none.
    for (path, status) in [
        ("/v1/auth/nginx/nowhere/-", 200),
        ("/v1/auth/nginx/shop/none", 404),
        ("/v1/auth/nginx/shop", 404),
        ("/v1/auth/apache/shop/-", 404),
        ("/v1/auth/nginx/shop/-/user", 404),
        ("/v1/auth/nginx/-/api", 400),
        ("/v1/auth/nginx/-/-", 200),
        ("/v1/auth/nginx/sh%6fp/-", 404),
    ] {
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\nx-user: names\r\n{own}\r\n");
        let (head, _) = ask(&running, &request).await;
        assert!(head.starts_with(&format!("http/1.1 {status} ")), "{path} {head}");
    }
}

/// An authorizer: who shows a name as the token is that user.
async fn authorizer() -> String {
    use axum::response::IntoResponse as _;
    let answer = async |headers: http::HeaderMap| {
        assert!(
            headers.contains_key("sluice-authorizing") && !headers.contains_key("x-signed-on"),
            "{headers:?}"
        );
        let of = |name: &str| headers[name].to_str().unwrap();
        assert_eq!([of("x-forwarded-method"), of("x-forwarded-uri")], ["GET", "/by-user?a=b"]);
        assert_eq!([of("x-forwarded-host"), of("x-real-ip")], ["shop.example", "198.51.100.7"]);
        match headers.get("authorization").map(|token| token.to_str().unwrap()) {
            Some("down") => http::StatusCode::BAD_GATEWAY.into_response(),
            Some("slow") => std::future::pending().await,
            Some(name) => {
                (http::StatusCode::ACCEPTED, [("x-signed-on", name.to_owned()), ("x-other", "no".to_owned())])
                    .into_response()
            }
            None => {
                (http::StatusCode::UNAUTHORIZED, [("www-authenticate", "Basic")], "sign on").into_response()
            }
        }
    };
    let router = axum::Router::new().route("/oauth2/auth", axum::routing::get(answer));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}/oauth2/auth")
}

const BY_USER: &str = "
apiVersion: sluice.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: api, namespace: shop}
spec:
  enforcedBy: [Service]
  limits:
  - name: per-user
    matches: [{path: {prefix: /by-user}}]
    key: {parts: [{header: {name: x-signed-on}}], onMissing: Shared}
    rates: [{requests: 2, per: 1h}]
    algorithm: {fixedWindow: {}}
";

#[tokio::test(flavor = "multi_thread")]
async fn limits_see_who_the_authorizer_has_found_and_nobody_that_a_client_names() {
    let url = authorizer().await;
    let start = async |is_last: bool, fails_open: bool| {
        start_with(BY_USER, |options| {
            options.authorizer.authorizer = Some(url.parse().unwrap());
            options.authorizer.authorizer_headers = vec!["x-signed-on".parse().unwrap()];
            options.authorizer.authorizer_last = is_last;
            options.authorizer.authorizer_fail_open = fails_open;
        })
        .await
    };
    let running = start(false, false).await;
    let mut envoy = Envoy::connect(&running).await;
    let by = |token: &'static [u8]| {
        shown("/by-user?a=b")
            .with("authorization", token)
            .with("x-signed-on", b"forged")
            .with("X_Signed_On", b"forged")
    };
    for status in [200, 200, 429] {
        let answer = envoy.ask(&by(b"alice")).await.http_response.unwrap();
        match answer {
            HttpResponse::OkResponse(ok) => {
                assert_eq!(
                    (status, pairs(&ok.headers)),
                    (200, vec![("x-signed-on".to_owned(), "alice".to_owned())])
                );
                assert_eq!(ok.headers_to_remove, ["x_signed_on"]);
            }
            HttpResponse::DeniedResponse(denied) => assert_eq!(denied.status.unwrap().code, status),
        }
    }
    assert_eq!(envoy.status(&by(b"bob")).await, 200, "another user");
    let Some(HttpResponse::DeniedResponse(denied)) = envoy.ask(&shown("/by-user?a=b")).await.http_response
    else {
        panic!("admitted")
    };
    let headers = pairs(&denied.headers);
    assert_eq!(
        (denied.status.unwrap().code, &*denied.body, value(&headers, "www-authenticate")),
        (401, "sign on", Some("Basic"))
    );
    assert_eq!(envoy.status(&by(b"down")).await, 503);
    assert_eq!(envoy.status(&by(b"alice").with("sluice-authorizing", b"1")).await, 508);
    let short = Shown { metadata: vec![("grpc-timeout", "1S")], ..by(b"slow") };
    assert_eq!(envoy.status(&short).await, 503, "its time is a part of the question's");

    // After the limits, what it refuses stays charged.
    let running = start(true, false).await;
    let mut envoy = Envoy::connect(&running).await;
    for (token, status) in [(&b"down"[..], 503), (b"alice", 200), (b"alice", 429)] {
        assert_eq!(envoy.status(&by(token)).await, status);
    }

    let running = start(false, true).await;
    let mut envoy = Envoy::connect(&running).await;
    let Some(HttpResponse::OkResponse(ok)) = envoy.ask(&by(b"down")).await.http_response else {
        panic!("denied")
    };
    assert!(ok.headers.is_empty(), "{ok:?}");
    assert!(ok.headers_to_remove.iter().any(|name| name == "x-signed-on"), "{ok:?}");
    let metrics = running.service.metrics();
    assert!(metrics.contains("sluice_authorizer_answers_total{answer=\"failed\"} 1"), "{metrics}");
}
