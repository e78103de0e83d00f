//! CPU time of the service for questions of gateways: descriptors at `rls`, and whole heads of a dozen headers at `authz` and `auth`, with
//! counters in memory; and Envoy that asks at either.

use std::net::SocketAddr;

use anyhow::Context as _;
use bytes::{BufMut as _, Bytes, BytesMut};
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::comparison::{Comparison, Contender, Round};
use super::programs::{Filter, envoy_asking};
use super::traffic::Protocol;
use crate::parts::proxy::load::{read_response, upstream};
use crate::parts::proxy::proxies::{ADMIT, Program, Proxy, free_address};
use crate::report::row::{Aim, Row};
use crate::report::verification::Verification;
use crate::support::cores::Cores;
use crate::support::rounds::interleave_all;

const ROUNDS: u64 = 7;
const CONNECTIONS: usize = 32;
const CLIENTS: usize = 1_000;
/// Questions of a round.
const QUESTIONS: usize = 20_000;
const RLS: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const AUTHZ: &str = "/envoy.service.auth.v3.Authorization/Check";

/// A question of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Door {
    Rls,
    /// About the policy of this name.
    Authz(&'static str),
    Auth,
}

const DOORS: [Door; 4] = [Door::Rls, Door::Authz("one"), Door::Auth, Door::Authz("twenty")];

/// A policy with one limit for both kinds of questions, one with twenty that each request meets, and one for Envoy's.
fn policies() -> String {
    let policy = |name: &str, limits: &str| {
        format!(
            "apiVersion: sluice.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {{name: {name}, namespace: bench}}\nspec:\n  enforcedBy: [Service]\n  limits:\n{limits}"
        )
    };
    let limit = |name: &str, key: &str, matches: &str| {
        format!(
            "  - name: {name}\n    matches: [{matches}]\n    rates: [{{requests: 1000000000, per: 1h}}]\n    key: {{parts: [{{header: {{name: {key}}}, descriptorKey: user}}]}}\n"
        )
    };
    let envoy =
        format!("{{path: {{prefix: {ADMIT}}}}}, {{rls: {{domain: bench, entries: [{{key: admit}}]}}}}");
    let envoy = limit("envoy", "x-api-key", &envoy).replace("descriptorKey: user", "descriptorKey: admit");
    let one = limit("one", "x-client", "{path: {prefix: /}}, {rls: {domain: bench, entries: [{key: user}]}}");
    let twenty: String = (0..20)
        .map(|n| {
            limit(&format!("l{n}"), "x-client", "{path: {prefix: /}}").replace(", descriptorKey: user", "")
        })
        .collect();
    [policy("one", &one), policy("twenty", &twenty), policy("envoy", &envoy)].join("---\n")
}

/// Measures all doors in the same rounds.
pub(crate) async fn measure(cores: Cores) -> anyhow::Result<Vec<Row>> {
    let (service, grpc) = start(cores).await?;
    let rounds = interleave_all(ROUNDS, DOORS.len(), async |door, _| {
        let before = service.processes.cpu()?;
        match DOORS[door] {
            Door::Rls => ask_grpc(grpc, RLS, descriptor).await?,
            Door::Authz(policy) => ask_grpc(grpc, AUTHZ, move |client| head(client, policy)).await?,
            Door::Auth => ask_http(service.address).await?,
        }
        Ok(service.processes.cpu_since(&before)?.as_secs_f64() * 1e6 / QUESTIONS as f64)
    });
    let rounds = rounds.await?;
    let verification = Verification::default();
    let pairs = |ours: usize, peer: usize| -> Vec<_> {
        rounds.iter().map(|round| (round[ours], round[peer])).collect()
    };
    let row = |what, ours, peer, name, aim| {
        Row::compared(what, "us/question", &pairs(ours, peer), name, &verification)
            .with_aim(Aim::RatioAtMost(aim))
    };
    let mut rows = vec![
        row("gateways: a head of 1 KB at authz, CPU of the service", 1, 0, "a descriptor at rls", 1.3),
        row("gateways: a head of 1 KB at auth, CPU of the service", 2, 0, "a descriptor at rls", 1.3),
        row(
            "gateways: authz, a policy of twenty limits that all count, CPU of the service",
            3,
            1,
            "one limit",
            2.0,
        ),
    ];
    rows.extend(behind_envoy(cores, &service, grpc).await?);
    Ok(rows)
}

/// A title, a unit and a value of the table.
type Value = (&'static str, &'static str, fn(&Round) -> f64);

/// Compares Envoy that shows requests with Envoy that describes them, which ask the same service.
async fn behind_envoy(cores: Cores, service: &Proxy, grpc: SocketAddr) -> anyhow::Result<Vec<Row>> {
    let upstream = upstream().await?;
    let start = async |name, filter| {
        let envoy = envoy_asking(cores, upstream, grpc, (filter, "10s")).await?;
        anyhow::Ok(Contender::path(name, envoy, Vec::new(), &service.processes))
    };
    let contenders =
        [start("Envoy and authz", Filter::Authz).await?, start("Envoy and rls", Filter::Ratelimit).await?];
    let (protocol, path) = (Protocol::Http1, ADMIT);
    let comparison =
        Comparison { contenders: &contenders, protocol, path, clients: CLIENTS, requests: QUESTIONS };
    let compared = comparison.measure().await?;
    let values: [Value; 3] = [
        ("CPU of Envoy and the service", "us/request", |round| round.cpu),
        ("50 % of responses within", "ms", |round| round.p50),
        ("99 % of responses within", "ms", |round| round.p99),
    ];
    let row = |(title, unit, value)| {
        compared.row(format!("gateways: Envoy and authz, {title}"), unit, value, [0, 1])
    };
    Ok(values.map(row).into())
}

/// Starts `sluice serve` with one worker. Returns it with its gRPC port.
async fn start(cores: Cores) -> anyhow::Result<(Proxy, SocketAddr)> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("policy.yaml");
    std::fs::write(&file, policies())?;
    let (address, grpc) = (free_address(), free_address());
    let arguments = vec![
        "serve".to_owned(),
        format!("--policy={}", file.display()),
        format!("--http={address}"),
        format!("--grpc={grpc}"),
        format!("--admin={}", free_address()),
        "--workers=1".to_owned(),
        "--store=memory".to_owned(),
    ];
    let file = sluice_tests::process::binary("sluice");
    let program = Program { name: "sluice", file, arguments, signal: "KILL" };
    Ok((Proxy::start(cores, program, address, folder).await?, grpc))
}

/// A field of a message.
fn field(number: u8, value: &[u8]) -> Vec<u8> {
    let mut length = value.len();
    let mut out = vec![number << 3 | 2];
    while length > 127 {
        out.push((length & 127) as u8 | 128);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(value);
    out
}

fn descriptor(client: &str) -> Vec<u8> {
    let entry = [field(1, b"user"), field(2, client.as_bytes())].concat();
    [field(1, b"bench"), field(2, &field(1, &entry))].concat()
}

/// The headers of a browser, about 1 KB.
fn headers(client: &str) -> Vec<(String, String)> {
    let long = |name: &str, length: usize| (name.to_owned(), "x".repeat(length));
    let mut all = vec![("x-client".to_owned(), client.to_owned())];
    all.extend(
        [
            ("user-agent", 110),
            ("accept", 80),
            ("accept-language", 30),
            ("accept-encoding", 25),
            ("referer", 60),
        ]
        .map(|(name, length)| long(name, length)),
    );
    all.extend(
        [
            ("cookie", 300),
            ("x-request-id", 36),
            ("x-forwarded-proto", 5),
            ("sec-fetch-site", 11),
            ("sec-fetch-mode", 8),
            ("traceparent", 55),
        ]
        .map(|(name, length)| long(name, length)),
    );
    all
}

fn head(client: &str, policy: &str) -> Vec<u8> {
    let pair = |key: &str, value: &str| [field(1, key.as_bytes()), field(2, value.as_bytes())].concat();
    let mut http = [field(2, b"GET"), field(4, b"/orders/7?page=2"), field(5, b"shop.example")].concat();
    for (name, value) in headers(client) {
        http.extend(field(3, &pair(&name, &value)));
    }
    let source = field(1, &field(1, &field(2, b"192.0.2.7")));
    let named = field(10, &pair("sluice.dev/policy", &format!("bench/{policy}")));
    field(1, &[field(1, &source), field(4, &field(2, &http)), named].concat())
}

/// Asks over one connection with several streams, as Envoy does.
async fn ask_grpc(
    address: SocketAddr,
    path: &'static str,
    message: impl Fn(&str) -> Vec<u8> + Copy + Send + 'static,
) -> anyhow::Result<()> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    let driver = tokio::spawn(connection);
    let ask = |first: usize| {
        let mut sender: SendRequest<Full<Bytes>> = sender.clone();
        tokio::spawn(async move {
            for number in (first..QUESTIONS).step_by(CONNECTIONS) {
                let message = message(&format!("client-{}", number % CLIENTS));
                let mut frame = BytesMut::with_capacity(message.len() + 5);
                frame.put_u8(0);
                frame.put_u32(u32::try_from(message.len())?);
                frame.extend_from_slice(&message);
                let request = Request::post(format!("http://bench{path}"))
                    .header("content-type", "application/grpc")
                    .header("te", "trailers")
                    .header("grpc-timeout", "10S")
                    .body(Full::new(frame.freeze()))?;
                sender.ready().await?;
                let response = sender.send_request(request).await?;
                anyhow::ensure!(response.status() == StatusCode::OK, "{}", response.status());
                let answer = response.into_body().collect().await?;
                let status = answer.trailers().and_then(|trailers| trailers.get("grpc-status"));
                anyhow::ensure!(status.context("no status of gRPC")? == "0", "{status:?}");
            }
            Ok(())
        })
    };
    let tasks: Vec<_> = (0..CONNECTIONS).map(ask).collect();
    for task in tasks {
        task.await??;
    }
    drop(sender);
    driver.abort();
    Ok(())
}

/// Asks over several connections, as nginx does.
async fn ask_http(address: SocketAddr) -> anyhow::Result<()> {
    let ask = |first: usize| {
        tokio::spawn(async move {
            let mut stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let mut buffer = vec![0; 64 << 10];
            for number in (first..QUESTIONS).step_by(CONNECTIONS) {
                let mut request = "GET /v1/auth/nginx/bench/one HTTP/1.1\r\nhost: bench\r\nx-sluice-method: GET\r\nx-sluice-target: /orders/7?page=2\r\nx-sluice-host: shop.example\r\nx-sluice-address: 192.0.2.7\r\n".to_owned();
                for (name, value) in headers(&format!("client-{}", number % CLIENTS)) {
                    request.push_str(&format!("{name}: {value}\r\n"));
                }
                request.push_str("\r\n");
                stream.write_all(request.as_bytes()).await?;
                let status = read_response(&mut stream, &mut buffer).await?;
                anyhow::ensure!(status == 200, "a question was answered with {status}");
            }
            Ok(())
        })
    };
    let tasks: Vec<_> = (0..CONNECTIONS).map(ask).collect();
    for task in tasks {
        task.await??;
    }
    Ok(())
}
