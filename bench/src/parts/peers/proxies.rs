//! CPU time of proxies that count in their own memory. Each has the measured core; clients and upstream have
//! the other.

use super::bare;
use super::comparison::{Comparison, Contender};
use super::programs::{envoy_local, haproxy, sluice};
use super::traffic::{Http2Upstream, Protocol};
use crate::parts::proxy::load::upstream;
use crate::parts::proxy::proxies::{ADMIT, DENY, Proxy};
use crate::report::row::{Aim, Row};
use crate::support::cores::Cores;

const STORE: [&str; 1] = ["--store=memory"];
const NGINX: &str = "nginx limit_req";
const HAPROXY: &str = "HAProxy, stick table";
const ENVOY: &str = "Envoy, local_ratelimit";
const BARE: &str = "hyper alone, without limits";

/// Aims for the ratio to nginx and to Envoy, by the path.
const AIMS: [(Protocol, &str, &str, f64); 4] = [
    (Protocol::Http1, ADMIT, NGINX, 1.15),
    (Protocol::Http1, DENY, NGINX, 1.05),
    (Protocol::Http2, ADMIT, ENVOY, 0.6),
    (Protocol::Http2, DENY, ENVOY, 0.6),
];

/// Measures HTTP/1 and HTTP/2, admitted and denied.
pub(super) async fn measure(cores: Cores) -> anyhow::Result<Vec<Row>> {
    let mut rows = measure_http1(cores).await?;
    rows.extend(measure_http2(cores).await?);
    Ok(rows)
}

async fn measure_http1(cores: Cores) -> anyhow::Result<Vec<Row>> {
    let upstream = upstream().await?;
    let contenders = [
        Contender::alone("Sluice", sluice(cores, upstream, "Strict", &STORE).await?),
        Contender::alone(NGINX, Proxy::start_nginx(cores, upstream).await?),
        Contender::alone(HAPROXY, haproxy(cores, upstream).await?),
        Contender::alone(ENVOY, envoy_local(cores, upstream, Protocol::Http1).await?),
        Contender::alone(BARE, bare::start(cores, upstream, Protocol::Http1).await?),
    ];
    compare(&contenders, Protocol::Http1, 1_000, 20_000).await
}

async fn measure_http2(cores: Cores) -> anyhow::Result<Vec<Row>> {
    let upstream = Http2Upstream::start().await?;
    let contenders = [
        Contender::alone("Sluice", sluice(cores, upstream.address, "Strict", &STORE).await?),
        Contender::alone(ENVOY, envoy_local(cores, upstream.address, Protocol::Http2).await?),
        Contender::alone(BARE, bare::start(cores, upstream.address, Protocol::Http2).await?),
    ];
    compare(&contenders, Protocol::Http2, 1, 30_000).await
}

/// Compares the first contender with each of the others.
async fn compare(
    contenders: &[Contender],
    protocol: Protocol,
    clients: usize,
    requests: usize,
) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (path, status) in [(ADMIT, "200"), (DENY, "429")] {
        let compared = Comparison { contenders, protocol, path, clients, requests }.measure().await?;
        let version = if protocol == Protocol::Http1 { "HTTP/1" } else { "HTTP/2" };
        for (index, peer) in contenders.iter().enumerate().skip(1) {
            let what = format!("proxy CPU, 20 limits: {version}, {status}");
            let row = compared.row(what, "us/request", |round| round.cpu, [0, index]);
            let aim = AIMS.iter().find(|aim| (aim.0, aim.1, aim.2) == (protocol, path, peer.name));
            rows.push(match aim {
                Some(&(.., bound)) => row.with_aim(Aim::RatioAtMost(bound)),
                None => row,
            });
        }
    }
    Ok(rows)
}
