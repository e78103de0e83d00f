//! Real gateways ask `sluice serve` about each request, with the configurations of `examples/gateways`: Envoy over gRPC and over HTTP,
//! nginx, HAProxy and Caddy. `SLUICE_ENVOY` and `SLUICE_CADDY` are the paths of two of them, as bench/tools/install.sh prints them, and
//! `SLUICE_TRAEFIK` and `SLUICE_NGINX` may be those of Traefik and of a second nginx.

mod gateway;

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use futures::future::join_all;
use futures::stream::{self, StreamExt as _};
use http::{Method, Request, Version};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use sluice_service::messages::CheckRequest;
use sluice_tests::application::echo;
use sluice_tests::client::{KeepAlive, get, send};
use sluice_tests::components::Redis;
use sluice_tests::process::{Process, free_port};
use sluice_tests::wait::until;
use tokio::net::TcpStream;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic_prost::ProstCodec;

use self::gateway::{Gateway, Kind, Service, over_http3, sidecar};

/// Limits that look at what descriptors do not have: paths in all spellings, headers, cookies, the address.
const POLICY: &str = r#"
apiVersion: sluice.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: api, namespace: shop}
spec:
  enforcedBy: [Sidecar, Service]
  clientAddress: {trustedProxies: [127.0.0.9/32]}
  limits:
  - name: per-user
    matches: [{path: {prefix: /user}}]
    key: {parts: [{header: {name: x-user}}]}
    algorithm: {fixedWindow: {}}
    rates: [{requests: 3, per: 24h}]
  - name: exact
    matches: [{path: {exact: /exact}}]
    algorithm: {fixedWindow: {}}
    rates: [{requests: 100, per: 24h}]
  - name: spelled
    matches: [{path: {prefix: /spelled}}]
    key: {parts: [{header: {name: x-user}}]}
    algorithm: {fixedWindow: {}}
    rates: [{requests: 1, per: 24h}]
  - name: by-address
    matches: [{path: {prefix: /address}}]
    key: {parts: [{clientIP: {}}]}
    algorithm: {fixedWindow: {}}
    rates: [{requests: 2, per: 24h}]
  - name: by-host
    matches: [{hosts: [limited.example]}]
    algorithm: {fixedWindow: {}}
    rates: [{requests: 1, per: 24h}]
  - name: posts
    matches: [{path: {prefix: /posts}, methods: [POST]}]
    algorithm: {fixedWindow: {}}
    rates: [{requests: 1, per: 24h}]
  - name: never
    matches: [{path: {prefix: /pkg.Service}}]
    rates: [{requests: 0, per: 24h}]
  - name: bytes
    matches: [{path: {prefix: /bytes}}]
    algorithm: {fixedWindow: {}}
    rates: [{requests: 1000, per: 24h}]
    cost: {request: {bodyBytes: {}}}
  - name: long-denial
    matches: [{path: {prefix: /long}}]
    algorithm: {fixedWindow: {}}
    rates: [{requests: 1, per: 24h}]
    onLimit: {reject: {body: {template: {contentType: text/plain, text: LONG}}}}
  - name: in-flight-elsewhere
    matches: [{path: {prefix: /login}}]
    countWhen: {statusCodes: ["401"]}
    algorithm: {fixedWindow: {}}
    rates: [{requests: 1, per: 24h}]
"#;

async fn start(kind: Kind) -> (Redis, Service, Gateway) {
    let (redis, application) = (Redis::start().await, echo().await);
    let service = Service::start(POLICY, &redis).await;
    let gateway = Gateway::start(kind, &service, &application).await;
    (redis, service, gateway)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denial_is_the_policys_with_its_headers_and_body() {
    for kind in Kind::all() {
        let (_redis, _service, gateway) = start(kind).await;
        let user = |path: &'static str| {
            let gateway = &gateway;
            async move { get(&gateway.address, path, &[("x-user", "alice")]).await }
        };
        for left in [2, 1, 0] {
            let response = user("/user/orders?x=1").await;
            assert_eq!(response.status, 200, "{kind:?} {response:?}");
            if kind.reports() {
                let limit = response.header("ratelimit").unwrap_or_default();
                assert!(limit.contains(&format!(";r={left};")), "{kind:?} {response:?}");
            }
        }
        let denied = user("/user/orders").await;
        assert_eq!(denied.status, 429, "{kind:?} {denied:?}");
        assert!(denied.header("retry-after").is_some(), "{kind:?} {denied:?}");
        assert_eq!(denied.header("content-type"), Some("application/problem+json"), "{kind:?} {denied:?}");
        assert!(denied.body.contains("Limit per-user"), "{kind:?} {denied:?}");
        assert!(denied.header("ratelimit").is_some(), "{kind:?} {denied:?}");
        assert!(!denied.head.contains("x-sluice-"), "{kind:?} {denied:?}");
        assert_eq!(get(&gateway.address, "/user/orders", &[("x-user", "bob")]).await.status, 200, "{kind:?}");
        // Limits of a host, and of a method.
        let ask = async |head: &str| {
            let request = format!("{head}\r\nconnection: close\r\n\r\n");
            send(&gateway.address, request.as_bytes()).await.status
        };
        assert_eq!(ask("GET /h HTTP/1.1\r\nhost: Limited.example:81").await, 200, "{kind:?}");
        assert_eq!(ask("GET /h HTTP/1.1\r\nhost: limited.example").await, 429, "{kind:?}");
        assert_eq!(ask("GET /posts HTTP/1.1\r\nhost: a").await, 200, "{kind:?}");
        assert_eq!(ask("POST /posts HTTP/1.1\r\nhost: a\r\ncontent-length: 0").await, 200, "{kind:?}");
        assert_eq!(ask("POST /posts HTTP/1.1\r\nhost: a\r\ncontent-length: 0").await, 429, "{kind:?}");
        // The response decides about this limit, so sidecars enforce it.
        for _ in 0..3 {
            assert_eq!(ask("GET /login HTTP/1.1\r\nhost: a").await, 200, "{kind:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denial_is_the_same_over_http2_and_http3() {
    for kind in Kind::all() {
        let (_redis, _service, gateway) = start(kind).await;
        let connection = TcpStream::connect(&gateway.http2).await.unwrap();
        let (sender, driver) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(connection)).await.unwrap();
        tokio::spawn(driver);
        for method in [Method::GET, Method::POST] {
            let ask = async || {
                let request = Request::builder().method(&method).header("x-user", format!("{method}-2"));
                let request = request.uri(format!("http://{}/user", gateway.http2));
                let request = request.body(Full::new(Bytes::from_static(b"hello"))).unwrap();
                let (head, body) = sender.clone().send_request(request).await.unwrap().into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                (head, String::from_utf8_lossy(&body).into_owned())
            };
            for _ in 0..3 {
                assert_eq!(ask().await.0.status, 200, "{kind:?} {method}");
            }
            let (head, body) = ask().await;
            assert_eq!((head.status.as_u16(), head.version), (429, Version::HTTP_2), "{kind:?} {method}");
            assert!(head.headers.contains_key("retry-after"), "{kind:?} {head:?}");
            assert!(body.contains("Limit per-user"), "{kind:?} {method} {body}");
        }
        if kind != Kind::Caddy {
            continue;
        }
        let (_process, _folder, address) = over_http3(&gateway).await;
        for method in ["GET", "POST"] {
            let ask = async || {
                let request = format!(
                    "{method} /user HTTP/1.1\r\nhost: a\r\nx-user: {method}-3\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                );
                send(&address, request.as_bytes()).await
            };
            for _ in 0..3 {
                let admitted = ask().await;
                assert_eq!(admitted.status, 200, "{admitted:?}");
                assert!(admitted.body.to_lowercase().contains("via: 3.0 caddy"), "{admitted:?}");
            }
            let denied = ask().await;
            assert_eq!(denied.status, 429, "{denied:?}");
            assert!(denied.header("retry-after").is_some(), "{denied:?}");
            assert!(denied.body.contains("Limit per-user"), "{denied:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_grpc_is_denied_in_its_words_behind_envoy() {
    let (_redis, _service, gateway) = start(Kind::Envoy).await;
    let channel =
        Channel::from_shared(format!("http://{}", gateway.address)).unwrap().connect().await.unwrap();
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.unwrap();
    let codec = ProstCodec::<CheckRequest, CheckRequest>::default();
    let path = "/pkg.Service/Do".parse().unwrap();
    let denied = grpc.unary(tonic::Request::new(CheckRequest::default()), path, codec).await.unwrap_err();
    assert_eq!(denied.code(), tonic::Code::ResourceExhausted, "{denied:?}");
    assert!(denied.message().contains("Limit never") && !denied.details().is_empty(), "{denied:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_counter_for_all_gateways_and_a_sidecar_behind_which_nobody_counts_twice() {
    let (redis, application) = (Redis::start().await, echo().await);
    let service = Service::start(POLICY, &redis).await;
    let sidecar = sidecar(POLICY, &redis, &application, &service).await;
    let mut gateways = Vec::new();
    for kind in Kind::all() {
        gateways.push(Gateway::start(kind, &service, &sidecar.address).await);
    }
    // Through each gateway to the sidecar, and to the sidecar alone.
    let addresses: Vec<_> =
        gateways.iter().map(|gateway| gateway.address.clone()).chain([sidecar.address.clone()]).collect();
    let clients = (0..24).map(|n| {
        let mut client = KeepAlive::at(&addresses[n % addresses.len()], "/exact");
        async move {
            let mut statuses = Vec::new();
            for _ in 0..10 {
                statuses.push(client.get().await);
            }
            statuses
        }
    });
    let statuses: Vec<_> = join_all(clients).await.into_iter().flatten().collect();
    let count = |status| statuses.iter().filter(|&&one| one == status).count();
    assert_eq!((count(200), count(429)), (100, 140), "{statuses:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_header_of_a_client_changes_what_is_decided() {
    for kind in Kind::all() {
        let (_redis, service, gateway) = start(kind).await;
        let forged = "x-sluice-method: GET\r\nx-sluice-target: /free\r\nx-sluice-host: free.example\r\nx-sluice-address: 192.0.2.1\r\n\
                      x-forwarded-uri: /free\r\nx-forwarded-method: OPTIONS\r\nx-forwarded-host: free.example\r\nx-original-uri: /free\r\n\
                      x-envoy-original-path: /free\r\nx-sluice-body-length: 1\r\nX_Forwarded_Uri: /free\r\nX.Forwarded.Uri: /free\r\n\
                      sluice-namespace: other\r\nsluice-policy: other/none\r\nsluice-charged: 1.1.AAAA\r\n";
        let mut statuses = Vec::new();
        for n in 0..4 {
            let request = format!(
                "GET /address HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 192.0.2.{n}\r\n{forged}connection: close\r\n\r\n"
            );
            let response = send(&gateway.address, request.as_bytes()).await;
            statuses.push(response.status);
            assert!(
                !response.body.to_lowercase().contains("sluice-charged: 1.1.aaaa"),
                "{kind:?} {response:?}"
            );
        }
        assert_eq!(statuses, [200, 200, 429, 429], "{kind:?}");
        assert_eq!(service.errors().await, 0, "{kind:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_spelling_of_a_path_and_no_byte_evades() {
    let spellings = [
        "/spelled",
        "/spelled/",
        "/spelled?",
        "/%73pelled",
        "/spelled%2Fx",
        "/x/../spelled",
        "/spelled;a=1",
        "//spelled",
        "/./spelled",
        "/spelled?a=\"<>`",
        "/spelled/%ff",
        "/spelled/{a}|",
        "/SPELLED/../spelled",
    ];
    for kind in Kind::all() {
        let (_redis, service, gateway) = start(kind).await;
        for (n, spelling) in spellings.iter().enumerate() {
            let ask = async || {
                let request = format!(
                    "GET {spelling} HTTP/1.1\r\nhost: a\r\nx-user: u{n}\r\nconnection: close\r\n\r\n"
                );
                send(&gateway.address, request.as_bytes()).await.status
            };
            let (first, second) = (ask().await, ask().await);
            // What the gateway refuses itself evades nothing.
            assert!(
                first == 200 && second == 429 || first >= 400 && second >= 400,
                "{kind:?} {spelling} {first} {second}"
            );
        }
        // Two clients stay two.
        let ask = async |user: &[u8]| {
            let request = [
                &b"GET /spelled HTTP/1.1\r\nhost: a\r\nx-user: "[..],
                user,
                b"\r\nconnection: close\r\n\r\n",
            ];
            send(&gateway.address, &request.concat()).await.status
        };
        assert_eq!(
            [ask(b"caf\xe9").await, ask(b"caf\xff").await, ask(b"caf\xe9").await],
            [200, 200, 429],
            "{kind:?}"
        );
        // Heads of 24 KiB and of 64 KiB.
        for (number, length) in [(90, 250), (120, 540)] {
            let many: String =
                (0..number).map(|n| format!("x-header-{n}: {}\r\n", "x".repeat(length))).collect();
            let request = format!("GET /spelled HTTP/1.1\r\nhost: a\r\nx-user: large-{length}\r\n{many}\r\n");
            let ask = async || gateway.first_status(request.as_bytes()).await;
            let (first, second) = (ask().await, ask().await);
            // A gateway may refuse it, and even close the connection.
            let is_refused = |status: u16| status == 0 || status >= 400;
            assert!(
                first == 200 && second == 429 || is_refused(first) && is_refused(second),
                "{kind:?} {length} {first} {second}"
            );
        }
        assert_eq!(service.errors().await, 0, "{kind:?}");
    }
}

/// Limits that deny whatever meets them, and exempt nobody wrongly.
const SPELLED: &str = r#"
apiVersion: sluice.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: NAME, namespace: shop}
spec:
  enforcedBy: [Sidecar, Service]
  limits:
  - {name: path, matches: [{path: {exact: /login}}], rates: [{requests: 0, per: 1h}], onLimit: {reject: {statusCode: 429}}}
  - {name: prefix, matches: [{path: {prefix: /admin}}], rates: [{requests: 0, per: 1h}], onLimit: {reject: {statusCode: 429}}}
  - {name: method, matches: [{path: {exact: /method}, methods: [POST]}], rates: [{requests: 0, per: 1h}], onLimit: {reject: {statusCode: 429}}}
  - {name: query, matches: [{query: [{name: plan, exact: free}]}], rates: [{requests: 0, per: 1h}], onLimit: {reject: {statusCode: 429}}}
  - {name: cookie, matches: [{path: {exact: /cookie}, cookies: [{name: session, exact: abc}]}], rates: [{requests: 0, per: 1h}], onLimit: {reject: {statusCode: 429}}}
  - {name: header, matches: [{path: {exact: /header}, headers: [{name: x-api-key, exact: valid}]}], rates: [{requests: 0, per: 1h}], onLimit: {reject: {statusCode: 429}}}
  - {name: host, matches: [{path: {exact: /host}, hosts: [shop.example]}], rates: [{requests: 0, per: 1h}], onLimit: {reject: {statusCode: 429}}}
  - name: but-cookie
    matches: [{path: {exact: /but-cookie}}]
    except: [{cookies: [{name: session, exact: abc}]}]
    rates: [{requests: 0, per: 1h}]
    onLimit: {reject: {statusCode: 429}}
  - name: but-header
    matches: [{path: {exact: /but-header}}]
    except: [{headers: [{name: x-api-key, exact: valid}]}]
    rates: [{requests: 0, per: 1h}]
    onLimit: {reject: {statusCode: 429}}
"#;

/// Returns heads with the spellings of `tests/readings`.
fn spelled() -> Vec<Vec<u8>> {
    let text = include_str!("../readings/spellings.json");
    let parts: BTreeMap<String, Vec<String>> = serde_json::from_str(text).unwrap();
    let head = |method: &str, target: &str, lines: &str| {
        let host = if lines.split('\n').any(|line| line.starts_with("Host:")) { "" } else { "Host: a\n" };
        let head = format!("{method} {target} HTTP/1.1\n{host}{lines}\nContent-Length: 0\n\n");
        // A spelling is in octets.
        head.replace('\n', "\r\n").chars().map(|octet| octet as u8).collect::<Vec<_>>()
    };
    let mut heads = Vec::new();
    for (part, spellings) in &parts {
        for spelling in spellings {
            match &**part {
                "method" => heads.push(head(spelling, "/method", "X: y")),
                "path" => {
                    heads.push(head("POST", spelling, "X: y"));
                    heads.push(head("POST", &spelling.replacen("login", "admin/x", 1), "X: y"));
                }
                "query" => {
                    let target = spelling.strip_prefix("target:").map(str::to_owned);
                    let target = target.unwrap_or_else(|| format!("/query?{spelling}"));
                    heads.push(head("POST", &target, "X: y"));
                }
                "cookie" => {
                    let lines = format!("Cookie: {}", spelling.replace('\n', "\nCookie: "));
                    heads.push(head("POST", "/cookie", &lines));
                    heads.push(head("POST", "/but-cookie", &lines));
                }
                "header" => {
                    heads.push(head("POST", "/header", spelling));
                    heads.push(head("POST", "/but-header", spelling));
                }
                "host" => heads.push(head("POST", "/host", spelling)),
                // Requests that follow each other.
                "cached" => {}
                other => panic!("the part {other}"),
            }
        }
    }
    heads
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_the_application_receives_has_met_the_limits_at_the_gateway() {
    let (redis, application) = (Redis::start().await, echo().await);
    let service = Service::start(&SPELLED.replace("NAME", "api"), &redis).await;
    // It denies what should not have reached it, by what it has received.
    let behind = SPELLED.replace("NAME", "behind").replace("429", "451");
    let sidecar = sidecar(&behind, &redis, &application, &service).await;
    let heads = spelled();
    for kind in Kind::all() {
        let gateway = Gateway::start(kind, &service, &sidecar.address).await;
        let answers = stream::iter(&heads).map(async |head| (gateway.first_status(head).await, head));
        let answers: Vec<_> = answers.buffer_unordered(16).collect().await;
        let with = |status| answers.iter().filter(move |(one, _)| *one == status);
        let evaded: Vec<_> = with(451).map(|(_, head)| String::from_utf8_lossy(head)).collect();
        assert!(evaded.is_empty(), "{kind:?}: {evaded:#?}");
        // Most spellings are denied, and others reach the application.
        assert!(with(429).count() > 1000 && with(200).count() > 100, "{kind:?}");
    }
    assert_eq!(service.errors().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_a_proxy_reports_stands_behind_those_that_its_client_has_forged() {
    let (redis, application) = (Redis::start().await, echo().await);
    let policy = POLICY.replace("127.0.0.9/32", "127.0.0.1/32");
    for kind in Kind::all() {
        // Envoy reports its own address in place of 127.0.0.1, which would be one client behind two gateways.
        let policy = policy.replace("name: api", &format!("name: api-{}", kind.name()));
        let service = Service::start(&policy, &redis).await;
        let gateway = Gateway::start(kind, &service, &application).await;
        let mut statuses = Vec::new();
        for forged in 0..4 {
            let request = format!(
                "GET /address HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 192.0.2.{forged}\r\nx-forwarded-for: 203.0.113.1\r\n\
                 connection: close\r\n\r\n"
            );
            statuses.push(send(&gateway.address, request.as_bytes()).await.status);
        }
        assert_eq!(statuses, [200, 200, 429, 429], "{kind:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_body_is_uncounted_and_no_denial_is_too_long() {
    let redis = Redis::start().await;
    let application = echo().await;
    for kind in Kind::all() {
        let policy = POLICY.replace("[Sidecar, Service]", "[Service]").replace("LONG", &"x".repeat(3900));
        let service =
            Service::start(&policy.replace("name: api", &format!("name: api-{}", kind.name())), &redis).await;
        let gateway = Gateway::start(kind, &service, &application).await;
        let ask = async |request: &str| gateway.first_status(request.as_bytes()).await;
        let of = |length: usize| {
            format!(
                "POST /bytes HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n{}",
                "x".repeat(length)
            )
        };
        // Where a gateway does not show how long a body is, it must not pass uncounted.
        let (first, second) = (ask(&of(999)).await, ask(&of(2)).await);
        let without_length = if matches!(kind, Kind::Nginx | Kind::NginxMainline) { 429 } else { 411 };
        let expected = if kind.shows_length() { (200, 429) } else { (411, 411) };
        assert_eq!((first, second), expected, "{kind:?}");
        let chunked = "DELETE /bytes HTTP/1.1\r\nhost: a\r\nx-sluice-body-length: 0\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n";
        assert_eq!(ask(chunked).await, without_length, "{kind:?}");
        let long = "GET /long HTTP/1.1\r\nhost: a\r\n\r\n";
        assert_eq!([ask(long).await, ask(long).await], [200, 429], "{kind:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handshake_of_websockets_is_a_request() {
    // Envoy refuses those that its configuration does not allow.
    for kind in [Kind::Nginx, Kind::Haproxy, Kind::Caddy] {
        let (_redis, _service, gateway) = start(kind).await;
        let request = b"GET /spelled HTTP/1.1\r\nhost: a\r\nx-user: socket\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
            sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        let mut connection = KeepAlive::at(&gateway.address, "/spelled");
        let first = connection.get_with(&[("x-user", "socket")]).await;
        assert_eq!(first.status, 200, "{kind:?} {first:?}");
        assert_eq!(gateway.first_status(request).await, 429, "{kind:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_upload_does_not_reach_the_application_and_an_admitted_one_does() {
    for kind in Kind::all() {
        let (_redis, _service, gateway) = start(kind).await;
        let body = "x".repeat(1 << 20);
        let request = format!(
            "POST /posts HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        );
        let admitted = send(&gateway.address, request.as_bytes()).await;
        assert_eq!(admitted.status, 200, "{kind:?} {admitted:?}");
        assert!(admitted.body.to_lowercase().contains("content-length: 1048576"), "{kind:?} {admitted:?}");
        let head = format!("POST /posts HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", body.len());
        assert_eq!(gateway.first_status((head + &body).as_bytes()).await, 429, "{kind:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_service_is_away_each_gateway_does_what_its_page_says() {
    for kind in Kind::all() {
        let (_redis, service, gateway) = start(kind).await;
        let user = [("x-user", "alice")];
        assert_eq!(get(&gateway.address, "/user", &user).await.status, 200, "{kind:?}");
        drop(service);
        let mut statuses = Vec::new();
        for _ in 0..5 {
            statuses.push(get(&gateway.address, "/user", &user).await.status);
        }
        let expected = match kind {
            _ if kind.opens() => 200,
            Kind::Traefik => 500,
            _ => 502,
        };
        assert!(statuses.iter().all(|&status| status == expected), "{kind:?} {statuses:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_needs_the_response_is_refused_by_name_where_no_sidecar_enforces_it() {
    let (redis, application) = (Redis::start().await, echo().await);
    let service = Service::start(&POLICY.replace("[Sidecar, Service]", "[Service]"), &redis).await;
    for kind in Kind::all() {
        let gateway = Gateway::start(kind, &service, &application).await;
        let refused = get(&gateway.address, "/login", &[]).await;
        // nginx has one status, and Envoy takes 5xx for a failure.
        let expected =
            if matches!(kind, Kind::Nginx | Kind::NginxMainline | Kind::EnvoyHttp) { 429 } else { 500 };
        assert_eq!(refused.status, expected, "{kind:?} {refused:?}");
    }
    let what = "the log names the limit";
    until(what, async || service.log().contains("in-flight-elsewhere").then_some(())).await;
    let metrics = service.metrics().await;
    assert!(metrics.contains("sluice_authorizations_total"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs oauth2-proxy, whose build takes minutes: run `make interop`"]
async fn users_who_have_signed_on_at_oauth2_proxy_are_counted_behind_each_gateway() {
    let (redis, application) = (Redis::start().await, echo().await);
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    // The password is pw.
    std::fs::write(
        &users,
        "alice:{SHA}GpHWL3ymc5liWkNopqtdSjuqYHM=\nbob:{SHA}GpHWL3ymc5liWkNopqtdSjuqYHM=\n",
    )
    .unwrap();
    let address = format!("127.0.0.1:{}", free_port());
    let program =
        std::env::var("SLUICE_OAUTH2_PROXY").expect("SLUICE_OAUTH2_PROXY is its path: run `make interop`");
    let arguments = [
        format!("--http-address={address}"),
        format!("--htpasswd-file={}", users.display()),
        "--cookie-secret=0123456789abcdef0123456789abcdef".to_owned(),
    ];
    let others = "--provider=github --client-id=a --client-secret=b --email-domain=* --set-xauthrequest --reverse-proxy --upstream=static://202";
    let arguments: Vec<_> = arguments.into_iter().chain(others.split(' ').map(str::to_owned)).collect();
    let _proxy = Process::start(Path::new(&program), &arguments, &[], &folder.path().join("log"), "KILL");
    until("oauth2-proxy answers", async || {
        tokio::net::TcpStream::connect(&address).await.ok()?;
        (get(&address, "/ping", &[]).await.status == 200).then_some(())
    })
    .await;
    let policy = POLICY.replace(
        "matches: [{path: {prefix: /user}}]\n    key: {parts: [{header: {name: x-user}}]}",
        "matches: [{path: {prefix: /user}}]\n    key: {parts: [{header: {name: x-auth-request-user}}]}",
    );
    for kind in Kind::all() {
        let authorizer = format!("--authorizer=http://{address}/oauth2/auth");
        let more = [&*authorizer, "--authorizer-headers=x-auth-request-user"];
        // A counter for each kind.
        let policy = policy.replace("name: api", &format!("name: api-{}", kind.name()));
        let service = Service::start_with(&policy, &redis, &more).await;
        let gateway = Gateway::start(kind, &service, &application).await;
        let ask = async |token: &str| {
            let forged = [("authorization", token), ("x-auth-request-user", "mallory")];
            let response = get(&gateway.address, "/user", &forged).await;
            let seen = response.body.to_lowercase();
            assert!(!seen.contains("mallory"), "{kind:?} {seen}");
            assert!(response.status != 200 || seen.contains("x-auth-request-user: "), "{kind:?} {seen}");
            response.status
        };
        let (alice, bob) = ("Basic YWxpY2U6cHc=", "Basic Ym9iOnB3");
        let statuses = [
            ask(alice).await,
            ask(alice).await,
            ask(alice).await,
            ask(alice).await,
            ask(bob).await,
            ask("Basic eDp5").await,
        ];
        assert_eq!(statuses, [200, 200, 200, 429, 200, 401], "{kind:?}");
    }
}
