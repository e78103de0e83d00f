//! The command line of the operator. Every flag can also be set by an environment variable.

use std::net::{IpAddr, SocketAddr};

use clap::{Parser, Subcommand, ValueEnum};
use sluice_config::trace_options::{CollectorUrl, SampleRatio};
use sluice_crds::Installation;
use sluice_crds::checks::installation::InstallationArgs;
use sluice_host::listen::address;
use sluice_store::redis::MAX_PARTITIONS;

use crate::injection::config::{LogFilter, StartupPolicy};
use crate::names::ServiceAccount;

pub use sluice_host::logging::LogFormat;

/// The operator of Sluice.
#[derive(Parser, Debug, Clone)]
#[command(name = "sluice-operator", version)]
pub struct Args {
    /// Command to run in place of the operator.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Namespace of the operator.
    #[arg(long, env = "POD_NAMESPACE", default_value = "sluice-system")]
    pub namespace: String,
    /// Name of this replica's pod, used as the holder of the lease.
    #[arg(long, env = "POD_NAME", default_value = "sluice-operator")]
    pub pod_name: String,
    /// Addresses of this replica's pod, on which sidecars reach the leader: one, or one of each family.
    #[arg(long = "pod-ip", env = "POD_IPS", value_delimiter = ',', default_value = "127.0.0.1")]
    pub pod_ips: Vec<IpAddr>,

    /// Listen address of the admission webhook (TLS). Only the API server calls it.
    #[arg(long, env = "SLUICE_WEBHOOK_LISTEN", value_parser = address, default_value = "[::]:9443")]
    pub webhook_listen: SocketAddr,
    /// Listen address of the control port (TLS), to which sidecars connect with a service-account token.
    #[arg(long, env = "SLUICE_CONTROL_LISTEN", value_parser = address, default_value = "[::]:8443")]
    pub control_listen: SocketAddr,
    /// Listen address of probes and metrics (plain HTTP; serves no secrets).
    #[arg(long, env = "SLUICE_ADMIN_LISTEN", value_parser = address, default_value = "[::]:8080")]
    pub admin_listen: SocketAddr,

    /// ServiceAccount of the service that gateways ask, in the operator's namespace. Empty: the installation has no service.
    #[arg(long, env = "SLUICE_SERVICE_ACCOUNT", default_value = "")]
    pub service_account: String,
    /// Issue the certificate of the service, and keep it in the Secret `sluice-service-tls`.
    #[arg(long, env = "SLUICE_SERVICE_CERTIFICATE")]
    pub service_certificate: bool,

    /// Service of the control port. It has no selector; the leader writes its EndpointSlice.
    #[arg(long, env = "SLUICE_CONTROL_SERVICE", default_value = "sluice-control")]
    pub control_service: String,
    /// Service of the admission webhook.
    #[arg(long, env = "SLUICE_WEBHOOK_SERVICE", default_value = "sluice-webhook")]
    pub webhook_service: String,
    /// Name of both webhook configurations. The operator keeps their `caBundle` up to date.
    #[arg(long, env = "SLUICE_WEBHOOK_CONFIGURATION", default_value = "sluice")]
    pub webhook_configuration: String,
    /// ConfigMap in the operator's namespace with the settings that take effect without a restart. Its field
    /// `enforcement` is `Enforce` or, to turn all policies to Shadow, `Shadow`.
    #[arg(long, env = "SLUICE_SETTINGS_CONFIG_MAP", default_value = "sluice-settings")]
    pub settings_config_map: String,
    /// Further DNS names or IP addresses to include in the serving certificate.
    #[arg(long, env = "SLUICE_CERTIFICATE_NAMES", value_delimiter = ',')]
    pub certificate_name: Vec<String>,

    /// Secret in the operator's namespace with the serving certificate of the webhook and of the control port, which
    /// cert-manager maintains: `tls.crt`, `tls.key` and `ca.crt`. By default the operator has an authority of its own.
    #[arg(long, env = "SLUICE_SERVING_SECRET")]
    pub serving_secret: Option<String>,

    /// Image of the sidecar.
    #[arg(long, env = "SLUICE_SIDECAR_IMAGE", default_value = "sluice-sidecar:0.1.0")]
    pub sidecar_image: String,
    /// Pull policy of the sidecar's image.
    #[arg(long, env = "SLUICE_SIDECAR_IMAGE_PULL_POLICY", default_value = "IfNotPresent")]
    pub sidecar_image_pull_policy: String,
    /// Resource requests and limits of the sidecar, as the JSON of a container's `resources`.
    #[arg(
        long,
        env = "SLUICE_SIDECAR_RESOURCES",
        default_value = r#"{"requests":{"cpu":"10m","memory":"32Mi"},"limits":{"cpu":"1","memory":"128Mi"}}"#
    )]
    pub sidecar_resources: String,
    /// Requests, and equal limits, of sidecars in pods whose own requests equal their limits (QoS class Guaranteed), as JSON
    /// with `cpu` and `memory`. The cpu must not be a whole number.
    #[arg(
        long,
        env = "SLUICE_SIDECAR_GUARANTEED_RESOURCES",
        default_value = r#"{"cpu":"200m","memory":"128Mi"}"#
    )]
    pub sidecar_guaranteed_resources: String,

    /// Log filter of sidecars, such as `info` or `info,sluice_store=debug`. The annotation `sluice.dev/log-level` of a pod
    /// replaces it.
    #[arg(long, env = "SLUICE_SIDECAR_LOG", default_value = "info")]
    pub sidecar_log: LogFilter,
    /// Format of the logs of sidecars. The annotation `sluice.dev/log-format` of a pod replaces it.
    #[arg(long, env = "SLUICE_SIDECAR_LOG_FORMAT", default_value = "text")]
    pub sidecar_log_format: LogFormat,
    /// Let the platform assign the user of sidecars, as OpenShift does. Otherwise it is 65532.
    #[arg(long, env = "SLUICE_SIDECAR_PLATFORM_USER")]
    pub sidecar_platform_user: bool,
    /// Treatment of requests before a sidecar has policies: `Forward` them without limits, or `Deny` them.
    #[arg(long, env = "SLUICE_SIDECAR_STARTUP_POLICY", ignore_case = true, default_value = "Forward")]
    pub sidecar_startup_policy: StartupPolicy,
    /// Let sidecars tell in responses why the store or the application did not answer. Only for debugging: the
    /// public could read it too.
    #[arg(long, env = "SLUICE_SIDECAR_DEBUG_HEADERS")]
    pub sidecar_debug_headers: bool,
    /// OpenTelemetry collector that receives the spans of sidecars in OTLP over HTTP, such as
    /// `http://otel-collector.observability:4318`. Without it there are no spans.
    #[arg(long, env = "SLUICE_SIDECAR_TRACE_COLLECTOR")]
    pub sidecar_trace_collector: Option<CollectorUrl>,
    /// Part of the requests without a trace that begin one, from 0 to 1. Requests with a trace are sampled as their client
    /// says.
    #[arg(long, env = "SLUICE_SIDECAR_TRACE_RATIO", default_value = "0")]
    pub sidecar_trace_ratio: SampleRatio,

    /// Settings for all policies.
    #[command(flatten)]
    pub installation: InstallationArgs,
    /// Quotas of policies.
    #[command(flatten)]
    pub quotas: Quotas,

    /// URL of the installation's store: `redis://HOST:PORT`, `redis+cluster://HOST:PORT,HOST:PORT` or
    /// `redis+sentinel://HOST:PORT,HOST:PORT/MASTER`. Use `rediss` for TLS. Do not include a password. The operator
    /// makes the RateLimitStore `default` from it.
    #[arg(long, env = "SLUICE_STORE_URL", default_value = "redis://sluice-redis.sluice-system.svc:6379")]
    pub store_url: String,
    /// Secret with the credentials of the store, in the operator's namespace. Fields: `password`, and
    /// optionally `username`, `ca.crt` (authority of the store's certificate), `tls.crt` and `tls.key`
    /// (client certificate), `sentinel-username` and `sentinel-password`. Not needed if the store requires no
    /// authentication.
    #[arg(long, env = "SLUICE_STORE_SECRET")]
    pub store_secret: Option<String>,
    /// How far the store keeps namespaces apart: `Shared`, or `Managed` if the Secret has an administrator of the store.
    #[arg(long, env = "SLUICE_STORE_ACCESS", ignore_case = true, default_value = "Shared")]
    pub store_access: StoreAccess,
    /// Number of the passwords of a managed store. With another number, all namespaces get new ones.
    #[arg(long, env = "SLUICE_STORE_PASSWORD_EPOCH", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(i64).range(0..=1_000_000_000))]
    pub store_password_epoch: i64,
    /// Let namespaces have stores of their own.
    #[arg(long, env = "SLUICE_TENANT_STORES")]
    pub tenant_stores: bool,
    /// Create the Secret of the store if it does not exist, with a random password and an ACL file. Used for
    /// the embedded Redis.
    #[arg(long, env = "SLUICE_STORE_EMBEDDED")]
    pub store_embedded: bool,
    /// Maximum duration of a check in the store, in milliseconds.
    #[arg(
        long,
        env = "SLUICE_STORE_LATENCY_BUDGET_MS",
        default_value_t = 50,
        value_parser = clap::value_parser!(u64).range(1..=10_000)
    )]
    pub store_latency_budget_ms: u64,
    /// Prefix of every key in the store.
    #[arg(long, env = "SLUICE_STORE_PREFIX", default_value = "sluice:")]
    pub store_prefix: String,
    /// Number of hash tags over which the keys in the store are spread. For a Redis Cluster, 16 to 32 for
    /// each master. All users of a Redis must use the same number. With another number, all counters start at
    /// zero.
    #[arg(
        long,
        env = "SLUICE_STORE_PARTITIONS",
        default_value_t = 64,
        value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_PARTITIONS))
    )]
    pub store_partitions: u16,

    /// Lead without a lease. Only for a single process outside a cluster.
    #[arg(long, env = "SLUICE_NO_LEASE")]
    pub no_lease: bool,
    /// Format of the logs.
    #[arg(long, env = "SLUICE_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// Log filter, such as `info` or `warn,sluice_operator=debug`.
    #[arg(long, env = "SLUICE_LOG", default_value = "info")]
    pub log: String,
}

/// A command of the binary other than to run the operator.
#[derive(Subcommand, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Verify an installation from inside the cluster, and change nothing.
    Verify {
        /// Time in which the installation must become ready, in seconds.
        #[arg(long, default_value_t = 120)]
        timeout_seconds: u64,
    },
}

/// Quotas of policies.
#[derive(clap::Args, Debug, Clone)]
pub struct Quotas {
    /// Maximum number of policies in a namespace.
    #[arg(long, env = "SLUICE_MAX_POLICIES_PER_NAMESPACE", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub max_policies_per_namespace: u32,
    /// Maximum number of limits of all policies of a pod.
    #[arg(long, env = "SLUICE_MAX_LIMITS_PER_POD", default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub max_limits_per_pod: u32,
    /// Maximum size of all policies of a pod in bytes, as compiled JSON.
    #[arg(long, env = "SLUICE_MAX_BYTES_PER_POD", default_value_t = 1 << 20)]
    #[arg(value_parser = clap::value_parser!(u32).range(1_024..=4_194_304))]
    pub max_bytes_per_pod: u32,
    /// Text that follows "ask" in a refusal, such as: the platform team in #platform
    #[arg(long, env = "SLUICE_QUOTA_CONTACT", default_value = "the administrators of Sluice")]
    pub quota_contact: String,
}

/// How far a store keeps namespaces apart.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreAccess {
    /// All sidecars use one user.
    Shared,
    /// Each namespace has a user, which the operator maintains.
    Managed,
}

impl Args {
    /// Returns the settings for all policies.
    pub fn installation(&self) -> Installation {
        let contact = self.quotas.quota_contact.clone();
        Installation { contact, ..Installation::from(&self.installation) }
    }

    /// Returns the service of the installation, if it has one.
    pub fn service(&self) -> Option<ServiceAccount> {
        let (namespace, name) = (self.namespace.clone(), self.service_account.clone());
        (!name.is_empty()).then_some(ServiceAccount { namespace, name })
    }

    /// Returns the names in the serving certificate.
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

    /// Returns the URL on which sidecars reach the control port.
    pub fn control_url(&self) -> String {
        format!("https://{}.{}.svc:{}", self.control_service, self.namespace, self.control_listen.port())
    }
}
