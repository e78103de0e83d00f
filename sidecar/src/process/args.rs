//! The command line. Every argument can also be set by an environment variable.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Parser, Subcommand};

use crate::process::options::Route;
use crate::upstream::address::InvalidUpstream;
use sluice_engine::StartupPolicy;
use sluice_engine::trace::TraceArgs;
use sluice_host::duration::duration;
use sluice_host::listen::{address, loopback_address};
use sluice_host::logging::LogFormat;

/// The data plane of Sluice: enforces the rate limits of a pod in front of its application.
#[derive(Debug, Clone, Parser)]
#[command(name = "sluice-sidecar", version, subcommand_negates_reqs = true)]
pub struct Args {
    /// Command to run in place of the sidecar
    #[command(subcommand)]
    pub command: Option<Command>,
    /// A listener and the application behind it, such as 0.0.0.0:8790=127.0.0.1:8080. Can be repeated, or
    /// list several separated by commas
    #[arg(
        long = "proxy",
        env = "SLUICE_PROXY",
        value_name = "LISTEN=UPSTREAM",
        value_delimiter = ',',
        required = true
    )]
    pub proxies: Vec<Route>,
    /// Addresses of the pod, separated by commas. An application whose address is 127.0.0.1 is looked for there too,
    /// and on ::1 if one of them is an IPv6 address
    #[arg(long, env = "SLUICE_POD_ADDRESSES", value_name = "IP", value_delimiter = ',')]
    pub pod_addresses: Vec<IpAddr>,
    /// Address of the admin port, which serves /livez, /readyz, /startupz and /metrics
    #[arg(long, env = "SLUICE_ADMIN", value_name = "IP:PORT", value_parser = address, default_value = "0.0.0.0:8791")]
    pub admin: SocketAddr,
    /// Address of the debug port, which sluice top, peek, explain and status ask. Without it there is none
    #[arg(long, env = "SLUICE_DEBUG", value_name = "IP:PORT", value_parser = loopback_address)]
    pub debug: Option<SocketAddr>,
    /// URL of the operator
    #[arg(long, env = "SLUICE_OPERATOR", default_value = "https://sluice-control.sluice-system.svc:8443")]
    pub operator: String,
    /// File with the certificate authority of the operator, in PEM. Read at every connect
    #[arg(long, env = "SLUICE_CA_FILE", default_value = "/var/run/sluice/ca/ca.crt")]
    pub ca_file: PathBuf,
    /// File with the service-account token that identifies this pod. Read at every connect
    #[arg(long, env = "SLUICE_TOKEN_FILE", default_value = "/var/run/sluice/token/token")]
    pub token_file: PathBuf,
    /// Directory that keeps the last good policies for a restart. It must be memory-backed, because the file
    /// contains the password of the store
    #[arg(long, env = "SLUICE_STATE_DIR")]
    pub state_dir: Option<PathBuf>,
    /// Time that /startupz waits for the first policies
    #[arg(long, env = "SLUICE_STARTUP_WAIT", default_value = "10s", value_parser = duration)]
    pub startup_wait: Duration,
    /// Treatment of requests before the first policies: forward them without limits, or deny them with the
    /// status 503
    #[arg(long, env = "SLUICE_STARTUP_POLICY", value_enum, ignore_case = true, default_value = "forward")]
    pub startup_policy: StartupPolicy,
    /// Tell in responses what only operators need: the store's failure (x-sluice-store-failure), and why the
    /// application did not respond. Only for debugging: the public could read it too
    #[arg(long, env = "SLUICE_DEBUG_HEADERS")]
    pub debug_headers: bool,
    /// Time after SIGTERM in which connections are still accepted, until the pod is removed from its
    /// endpoints
    #[arg(long, env = "SLUICE_DRAIN_DELAY", default_value = "5s", value_parser = duration)]
    pub drain_delay: Duration,
    /// Time after that in which requests in flight can end
    #[arg(long, env = "SLUICE_DRAIN_TIMEOUT", default_value = "25s", value_parser = duration)]
    pub drain_timeout: Duration,
    /// Number of workers [default: the CPU quota of the cgroup, rounded up; 2 without a quota]
    #[arg(long, env = "SLUICE_WORKERS", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub workers: Option<u16>,
    /// Maximum number of concurrent connections of all workers; for more, the longest idle ones make
    /// room [default: one for each 160 KiB of the cgroup's memory limit, from 512 to 10,000]
    #[arg(long, env = "SLUICE_MAX_CONNECTIONS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_connections: Option<u32>,
    /// Time in which a client must send the head of a request, from its first byte
    #[arg(long, env = "SLUICE_HEADER_TIMEOUT", default_value = "10s", value_parser = duration)]
    pub header_timeout: Duration,
    /// Time in which a client must send or read the next 256 bytes of a body. gRPC requests may be silent. 0s: for
    /// ever
    #[arg(long, env = "SLUICE_BODY_TIMEOUT", default_value = "60s", value_parser = duration)]
    pub body_timeout: Duration,
    /// Time that an HTTP/1 connection may be idle before a request
    #[arg(long, env = "SLUICE_IDLE_TIMEOUT", default_value = "75s", value_parser = duration)]
    pub idle_timeout: Duration,
    /// Time that an HTTP/2 connection may be without requests. 0s: for ever
    #[arg(long, env = "SLUICE_HTTP2_IDLE_TIMEOUT", default_value = "5m", value_parser = duration)]
    pub http2_idle_timeout: Duration,
    /// Time that an upgraded connection, such as a WebSocket, may be silent. 0s: for ever
    #[arg(long, env = "SLUICE_UPGRADE_IDLE_TIMEOUT", default_value = "0s", value_parser = duration)]
    pub upgrade_idle_timeout: Duration,
    /// Tracing
    #[command(flatten)]
    pub tracing: TraceArgs,
    /// Format of the logs
    #[arg(long, env = "SLUICE_LOG_FORMAT", value_enum, default_value = "text")]
    pub log_format: LogFormat,
    /// Log filter, such as info or info,sluice_store=debug. The default leaves out what any client can cause
    #[arg(long, env = "SLUICE_LOG", default_value = "info,h2=error")]
    pub log: String,
}

/// A command of the binary other than to run a sidecar.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Make the running sidecar end its connections while it still accepts new ones. To be called first when
    /// the pod is terminated
    Drain {
        /// State directory of the running sidecar
        #[arg(long, env = "SLUICE_STATE_DIR")]
        state_dir: PathBuf,
    },
}

impl FromStr for Route {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (listen, upstream) =
            text.split_once('=').ok_or_else(|| format!("{text:?} is not of the form LISTEN=UPSTREAM"))?;
        let listen = address(listen.trim()).map_err(|error| format!("{listen:?}: {error}"))?;
        let upstream = upstream.trim().parse().map_err(|error: InvalidUpstream| error.to_string())?;
        Ok(Self { listen, upstream })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drain_requires_only_the_state_directory() {
        let command = |list: &[&str]| Some(Args::try_parse_from(list).ok()?.command);
        let drain = Command::Drain { state_dir: "/state".into() };
        assert_eq!(command(&["sluice-sidecar", "drain", "--state-dir=/state"]), Some(Some(drain)));
        assert_eq!(command(&["sluice-sidecar", "drain"]), None);
        assert_eq!(command(&["sluice-sidecar", "--proxy=127.0.0.1:1=a:1"]), Some(None));
    }

    #[test]
    fn proxies_can_be_repeated_or_separated_by_commas() {
        let args = |list: &[&str]| Args::try_parse_from([&["sluice-sidecar"], list].concat());
        let proxies =
            args(&["--proxy", "0.0.0.0:8790=127.0.0.1:80,[::]:8792=a:81", "--proxy", "127.0.0.1:1=b:2"]);
        assert_eq!(proxies.unwrap().proxies.len(), 3);
        for bad in
            [&["--proxy", "a:8790=a:80"][..], &[], &["--proxy", "0.0.0.0:1=a"], &["--proxy", "0.0.0.0:1"]]
        {
            assert!(args(bad).is_err(), "{bad:?}");
        }
    }
}
