//! Heads of requests that gateways show: any bytes have an answer, and nothing but the gateway's configuration is an error.

use std::sync::OnceLock;

use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use prost::Message as _;
use sluice_config::PreparedPolicy;
use sluice_config::prepared::Blobs;
use sluice_config::store_access::{StoreChoice, StoreChoices};
use sluice_crds::Installation;
use sluice_crds::manifest::load;
use sluice_service::messages::{CheckRequest, HttpResponse};
use sluice_service::{Options, Service};
use tokio::runtime::Runtime;

use crate::target::Target;

const POLICY: &str = "
apiVersion: sluice.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: p, namespace: n}
spec:
  enforcedBy: [Sidecar, Service]
  clientAddress: {trustedProxies: [10.0.0.0/8]}
  limits:
  - name: a
    matches: [{path: {prefix: /a}, hosts: [b.example]}]
    rates: [{requests: 3, per: 1h}]
    key: {parts: [{header: {name: x}}, {cookie: {name: c}}, {clientIP: {}}]}
    onLimit: {mark: {header: x-over}}
  - name: all
    rates: [{requests: 1000000, per: 1h}]
";

/// The check. Input that begins with a slash is the path of a question at `auth` and the lines of its headers; other input is a message
/// at `authz`.
pub const TARGET: Target = Target {
    name: "heads",
    check,
    seeds: &[
        "/v1/auth/nginx/n/-\nx-sluice-method: GET\nx-sluice-target: /a?b\nx-sluice-host: b.example\nx-sluice-address: ::1\nx: y",
        "/v1/auth/caddy/n/p\nx-forwarded-method: PUT\nx-forwarded-uri: //a/../b\nx-forwarded-host: b\nx-forwarded-for: 10.0.0.1, 10.0.0.2",
        "/v1/auth/envoy/n/-/a;b?c\nhost: b.example\nx-sluice-address: 192.0.2.1\nx-over: z",
        "\n\u{39}\"\u{24}\u{12}\u{22}\u{12}\u{3}GET\u{22}\u{2}/a*\u{9}b.example\u{1a}\u{6}\n\u{1}x\u{12}\u{1}y\u{52}\u{11}\n\u{a}sluice.dev\u{12}\u{3}n/p",
    ],
    words: &[
        "/v1/auth/",
        "nginx",
        "traefik",
        "caddy",
        "haproxy",
        "envoy",
        "/n/-",
        "/n/p",
        "x-sluice-method: ",
        "x-sluice-target: ",
        "x-sluice-host: ",
        "x-sluice-address: ",
        "x-sluice-body-length: ",
        "x-forwarded-for: ",
        "x-forwarded-uri: ",
        "\n",
        ", ",
        "*",
        "%2f",
        "\u{0}",
        "\u{12}\u{3}GET",
        "\u{22}\u{2}/a",
    ],
};

/// A service that is never asked over the network.
fn service() -> &'static (Runtime, Service) {
    static SERVICE: OnceLock<(Runtime, Service)> = OnceLock::new();
    SERVICE.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let service = runtime.block_on(async {
            let mut options = Options::new(([127, 0, 0, 1], 0).into());
            options.is_of_one_user = true;
            let service = Service::start(options).await.expect("a service");
            let publication = service.publication(StoreChoices::only(StoreChoice::Memory));
            let loaded = load(POLICY, &Installation::default()).expect("a policy");
            let policies: Vec<_> = loaded
                .policies
                .into_iter()
                .map(|policy| {
                    let prepared = PreparedPolicy::with_blobs(&policy.compiled.to_json(), &Blobs::default());
                    ("n/p".to_owned(), prepared.expect("a policy").into())
                })
                .collect();
            assert!(publication.publish_policies(&policies).is_empty());
            service
        });
        (runtime, service)
    })
}

fn check(bytes: &[u8]) {
    let (runtime, service) = service();
    if bytes.starts_with(b"/") {
        let mut lines = bytes.split(|&byte| byte == b'\n');
        let Ok(request) = Request::get(lines.next().unwrap_or_default()).body(()) else { return };
        let (mut head, ()) = request.into_parts();
        let header = |line: &[u8]| {
            let colon = line.windows(2).position(|two| two == b": ")?;
            let name = HeaderName::from_bytes(&line[..colon]).ok()?;
            Some((name, HeaderValue::from_bytes(&line[colon + 2..]).ok()?))
        };
        head.headers = HeaderMap::with_capacity(8);
        for (name, value) in lines.filter_map(header).take(64) {
            head.headers.append(name, value);
        }
        let response = runtime.block_on(service.auth(head));
        assert_eq!(response.headers()["cache-control"], "no-store", "{response:?}");
        assert_ne!(response.status(), StatusCode::INTERNAL_SERVER_ERROR, "{response:?}");
        assert_ne!(response.status(), StatusCode::SWITCHING_PROTOCOLS, "{response:?}");
        return;
    }
    let Ok(request) = CheckRequest::decode(bytes) else { return };
    let names_policies = request.attributes.as_ref().is_some_and(|all| !all.context_extensions.is_empty());
    match runtime.block_on(service.authorize(request)) {
        Ok(answer) => match answer.http_response {
            Some(HttpResponse::DeniedResponse(denied)) => {
                assert_ne!(answer.status.unwrap_or_default().code, 0);
                assert!(denied.status.is_some_and(|status| status.code >= 400), "{denied:?}");
            }
            Some(HttpResponse::OkResponse(_)) => assert_eq!(answer.status.unwrap_or_default().code, 0),
            None => panic!("{answer:?}"),
        },
        Err(error) => assert!(names_policies, "a client's head is an error: {error}"),
    }
}
