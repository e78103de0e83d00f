//! The proxies, each with one worker and the limits in `bench/peers/`. All but nginx send the limit and what
//! remains of it in headers of their responses.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use sluice_tests::process::binary;

use super::traffic::Protocol;
use crate::parts::proxy::proxies::{Program, Proxy, configure, free_address};
use crate::support::cores::Cores;
use crate::support::paths::{peer_file, program};

/// Starts the sidecar with twenty limits of this consistency, and the store of these arguments.
pub(super) async fn sluice(
    cores: Cores,
    upstream: SocketAddr,
    consistency: &str,
    store: &[&str],
) -> anyhow::Result<Proxy> {
    let policies = std::fs::read_to_string(peer_file("sluice-20-limits.yaml"))?;
    Proxy::start_sluice_in(cores, upstream, &policies.replace("@CONSISTENCY@", consistency), store).await
}

/// Starts HAProxy with stick tables.
pub(super) async fn haproxy(cores: Cores, upstream: SocketAddr) -> anyhow::Result<Proxy> {
    let (folder, address) = (tempfile::tempdir()?, free_address());
    let values = [("@LISTEN@", address.to_string()), ("@UPSTREAM@", upstream.to_string())];
    let file = configure("haproxy.cfg", &values, folder.path())?;
    let arguments = ["-db", "-f", &file.display().to_string()].map(str::to_owned).into();
    let haproxy = Program { name: "haproxy", file: program("haproxy")?, arguments, signal: "KILL" };
    Proxy::start(cores, haproxy, address, folder).await
}

/// Starts Envoy with local_ratelimit, for an upstream of this protocol.
pub(super) async fn envoy_local(
    cores: Cores,
    upstream: SocketAddr,
    protocol: Protocol,
) -> anyhow::Result<Proxy> {
    let options = match protocol {
        Protocol::Http1 => "http_protocol_options",
        Protocol::Http2 => "http2_protocol_options",
    };
    envoy(cores, upstream, "envoy-local.yaml", &[("@UPSTREAM_PROTOCOL@", options.to_owned())]).await
}

/// A filter of Envoy that asks a service. A question without an answer in time is seen as a response with 500.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Filter {
    /// By descriptors.
    Ratelimit,
    /// By the head of the request.
    Authz,
}

impl Filter {
    fn text(self, timeout: &str) -> String {
        let grpc = "grpc_service: {envoy_grpc: {cluster_name: ratelimit}";
        let (name, config) = match self {
            Self::Ratelimit => (
                "ratelimit",
                format!(
                    "ratelimit.v3.RateLimit, domain: bench, timeout: {timeout}, failure_mode_deny: true, \
                     enable_x_ratelimit_headers: DRAFT_VERSION_03, rate_limit_service: {{transport_api_version: V3, {grpc}}}}}"
                ),
            ),
            Self::Authz => (
                "ext_authz",
                format!(
                    "ext_authz.v3.ExtAuthz, transport_api_version: V3, status_on_error: {{code: 500}}, {grpc}, timeout: {timeout}, \
                     initial_metadata: [{{key: sluice-policy, value: bench/envoy}}]}}"
                ),
            ),
        };
        let kind = "type.googleapis.com/envoy.extensions.filters.http";
        format!("{{name: envoy.filters.http.{name}, typed_config: {{\"@type\": {kind}.{config}}}}}")
    }
}

/// Starts Envoy that asks the service at an address by a filter, and waits so long for its answer.
pub(super) async fn envoy_asking(
    cores: Cores,
    upstream: SocketAddr,
    service: SocketAddr,
    (filter, timeout): (Filter, &str),
) -> anyhow::Result<Proxy> {
    let values = [("@RATELIMIT_PORT@", service.port().to_string()), ("@FILTER@", filter.text(timeout))];
    envoy(cores, upstream, "envoy-ratelimit.yaml", &values).await
}

async fn envoy(
    cores: Cores,
    upstream: SocketAddr,
    template: &str,
    more: &[(&str, String)],
) -> anyhow::Result<Proxy> {
    let (folder, address) = (tempfile::tempdir()?, free_address());
    let mut values =
        vec![("@LISTEN_PORT@", address.port().to_string()), ("@UPSTREAM_PORT@", upstream.port().to_string())];
    values.extend_from_slice(more);
    let file = configure(template, &values, folder.path())?;
    // Hot restarts share memory with any other Envoy of this machine.
    let arguments =
        ["-c", &file.display().to_string(), "--concurrency", "1", "-l", "error", "--disable-hot-restart"]
            .map(str::to_owned)
            .into();
    let envoy = Program { name: "envoy", file: installed("SLUICE_BENCH_ENVOY")?, arguments, signal: "KILL" };
    Proxy::start(cores, envoy, address, folder).await
}

/// A program that answers Envoy by the environment of `ratelimit.env`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Service {
    /// Sluice's.
    Sluice,
    /// envoyproxy/ratelimit.
    Ratelimit,
}

/// Starts a service with the limits of `ratelimit/config/bench.yaml` and its counters in a Redis, `HOST:PORT`. There may be more
/// domains, each with ten limits.
pub(super) async fn service(
    cores: Cores,
    program_of: Service,
    redis: &str,
    more_domains: usize,
) -> anyhow::Result<Proxy> {
    let (folder, address) = (tempfile::tempdir()?, free_address());
    let config = folder.path().join("ratelimit/config");
    std::fs::create_dir_all(&config)?;
    std::fs::copy(peer_file("ratelimit/config/bench.yaml"), config.join("bench.yaml"))?;
    for domain in 0..more_domains {
        let mut text = format!("domain: other-{domain}\ndescriptors:\n");
        for limit in 0..10 {
            let _ = writeln!(
                text,
                "- key: key-{limit}\n  rate_limit: {{unit: hour, requests_per_unit: {}}}",
                limit + 1
            );
        }
        std::fs::write(config.join(format!("other-{domain}.yaml")), text)?;
    }
    let values = [
        ("@ROOT@", folder.path().display().to_string()),
        ("@REDIS@", redis.to_owned()),
        ("@GRPC_PORT@", address.port().to_string()),
        ("@HTTP_PORT@", free_address().port().to_string()),
        ("@DEBUG_PORT@", free_address().port().to_string()),
        ("@ADMIN_PORT@", free_address().port().to_string()),
        ("@CLIENTS_PORT@", free_address().port().to_string()),
    ];
    let environment = std::fs::read_to_string(configure("ratelimit.env", &values, folder.path())?)?;
    let lines = environment.lines().filter(|line| !line.starts_with('#')).map(str::to_owned);
    let (name, file) = match program_of {
        Service::Sluice => ("sluice-service", binary("sluice-service")),
        Service::Ratelimit => ("ratelimit", installed("SLUICE_BENCH_RATELIMIT")?),
    };
    let arguments = lines.chain([file.display().to_string()]).collect();
    let started = Program { name, file: program("env")?, arguments, signal: "KILL" };
    Proxy::start(cores, started, address, folder).await
}

/// Returns the path of a program that `run.sh` has installed and named in a variable.
fn installed(variable: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os(variable).filter(|path| !path.is_empty());
    Ok(path.with_context(|| format!("{variable} is not set: its program has not been installed"))?.into())
}
