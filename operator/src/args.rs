//! What the operator is told on its command line, by flags or by the environment.

use std::net::{IpAddr, SocketAddr};

use clap::{Parser, ValueEnum};

/// The operator of Sluice.
#[derive(Parser, Debug, Clone)]
#[command(name = "sluice-operator", version)]
pub struct Args {
    /// The namespace that the operator runs in.
    #[arg(long, env = "POD_NAMESPACE", default_value = "sluice-system")]
    pub namespace: String,
    /// The name of this replica's pod: the holder of the lease.
    #[arg(long, env = "POD_NAME", default_value = "sluice-operator")]
    pub pod_name: String,
    /// The address of this replica's pod, where sidecars reach the leader.
    #[arg(long, env = "POD_IP", default_value = "127.0.0.1")]
    pub pod_ip: IpAddr,

    /// Where admission listens (TLS). Called by the API server only.
    #[arg(long, env = "SLUICE_WEBHOOK_LISTEN", default_value = "0.0.0.0:9443")]
    pub webhook_listen: SocketAddr,
    /// Where sidecars get their stream (TLS, a reviewed token).
    #[arg(long, env = "SLUICE_CONTROL_LISTEN", default_value = "0.0.0.0:8443")]
    pub control_listen: SocketAddr,
    /// Where probes and metrics are served (plain, no secrets).
    #[arg(long, env = "SLUICE_ADMIN_LISTEN", default_value = "0.0.0.0:8080")]
    pub admin_listen: SocketAddr,

    /// The selectorless Service of the control port; its EndpointSlice is the leader's.
    #[arg(long, env = "SLUICE_CONTROL_SERVICE", default_value = "sluice-control")]
    pub control_service: String,
    /// The Service of the webhook.
    #[arg(long, env = "SLUICE_WEBHOOK_SERVICE", default_value = "sluice-webhook")]
    pub webhook_service: String,
    /// The name of both webhook configurations, whose `caBundle` the operator keeps.
    #[arg(long, env = "SLUICE_WEBHOOK_CONFIGURATION", default_value = "sluice")]
    pub webhook_configuration: String,
    /// Further names or addresses in the serving certificate, for whoever reaches the operator by those.
    #[arg(long, env = "SLUICE_CERTIFICATE_NAMES", value_delimiter = ',')]
    pub certificate_name: Vec<String>,

    /// The image of the sidecar.
    #[arg(long, env = "SLUICE_SIDECAR_IMAGE", default_value = "sluice-sidecar:0.1.0")]
    pub sidecar_image: String,
    /// The pull policy of the sidecar's image.
    #[arg(long, env = "SLUICE_SIDECAR_IMAGE_PULL_POLICY", default_value = "IfNotPresent")]
    pub sidecar_image_pull_policy: String,
    /// The sidecar's resources, as JSON of a container's `resources`.
    #[arg(
        long,
        env = "SLUICE_SIDECAR_RESOURCES",
        default_value = r#"{"requests":{"cpu":"10m","memory":"32Mi"},"limits":{"cpu":"1","memory":"128Mi"}}"#
    )]
    pub sidecar_resources: String,

    /// The store: `redis://HOST:PORT`, `redis+cluster://HOST:PORT,HOST:PORT` or
    /// `redis+sentinel://HOST:PORT,HOST:PORT/MASTER`, with `rediss` for TLS, and without a password.
    #[arg(long, env = "SLUICE_STORE_URL", default_value = "redis://sluice-redis.sluice-system.svc:6379")]
    pub store_url: String,
    /// The Secret of the store in the operator's namespace: `password`, and optionally `username`, `ca.crt` (the
    /// authority of its certificate), `tls.crt` and `tls.key` (what to show to it), `sentinel-username` and
    /// `sentinel-password`. Absent: the store asks for nothing.
    #[arg(long, env = "SLUICE_STORE_SECRET")]
    pub store_secret: Option<String>,
    /// Make that Secret if it is not there, with a random password and an ACL file: for the embedded Redis.
    #[arg(long, env = "SLUICE_STORE_EMBEDDED")]
    pub store_embedded: bool,
    /// How long a check may take, in milliseconds.
    #[arg(long, env = "SLUICE_STORE_LATENCY_BUDGET_MS", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub store_latency_budget_ms: u64,
    /// What every key in the store begins with.
    #[arg(long, env = "SLUICE_STORE_PREFIX", default_value = "sluice:")]
    pub store_prefix: String,

    /// Do not use a lease: this replica leads. For a single process outside of a cluster.
    #[arg(long, env = "SLUICE_NO_LEASE")]
    pub no_lease: bool,
    /// How logs are written.
    #[arg(long, env = "SLUICE_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// What is logged: `info`, or `warn,sluice_operator=debug`.
    #[arg(long, env = "SLUICE_LOG", default_value = "info")]
    pub log: String,
}

/// How logs are written.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// A line of text each.
    Text,
    /// A JSON object each.
    Json,
}

impl Args {
    /// Starts logging to the standard error.
    pub fn init_logging(&self) {
        let filter = tracing_subscriber::EnvFilter::try_new(&self.log).unwrap_or_else(|error| {
            eprintln!("--log {:?}: {error}; using `info`", self.log);
            tracing_subscriber::EnvFilter::new("info")
        });
        let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
        let _ = match self.log_format {
            LogFormat::Text => log.with_ansi(false).try_init(),
            LogFormat::Json => log.json().try_init(),
        };
    }

    /// The names that certificates of the operator are for.
    #[must_use]
    pub fn dns_names(&self) -> Vec<String> {
        [&self.control_service, &self.webhook_service]
            .into_iter()
            .flat_map(|service| {
                let base = format!("{service}.{}", self.namespace);
                [base.clone(), format!("{base}.svc"), format!("{base}.svc.cluster.local")]
            })
            .chain(self.certificate_name.iter().cloned())
            .collect()
    }

    /// Where sidecars reach the control port.
    #[must_use]
    pub fn control_url(&self) -> String {
        format!("https://{}.{}.svc:{}", self.control_service, self.namespace, self.control_listen.port())
    }
}
