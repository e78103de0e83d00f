//! `sluice serve`: answers gateways and applications on this machine, by the policies of a file and the rules of a directory.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::ArgGroup;
use serde::Deserialize as _;
use serde::de::IntoDeserializer as _;
use sluice_config::message::Replica;
use sluice_config::policy::OnStoreFailure;
use sluice_crds::policy::Enforcer;
use sluice_engine::Publisher;
use sluice_engine::trace::TraceArgs;
use sluice_host::duration::duration;
use sluice_host::listen::{address, loopback_address};
use sluice_host::logging::{self, LogFormat};
use sluice_host::worker;
use sluice_service::authorizer::AuthorizerArgs;
use sluice_service::compat::compile::{AlgorithmName, CompileOptions};
use sluice_service::compat::files::Directory;
use sluice_service::compat::settings::{Settings, Source};
use sluice_service::rls::RlsOptions;
use sluice_service::tls::TlsFiles;
use sluice_service::{Options, Publication};

use crate::run::StoreArgs;
use crate::run::policy_file::{NamedPolicy, PolicyArgs, PolicyFiles};

/// The arguments of `sluice serve`.
#[derive(Debug, clap::Args)]
#[command(group(ArgGroup::new("limits").args(["policy", "ratelimit_config"]).required(true).multiple(true)))]
pub(crate) struct ServeArgs {
    /// File with the policies that have Service in spec.enforcedBy, or folder with such files; may be repeated. They are read again
    /// whenever they change
    #[arg(short = 'f', long, env = "SLUICE_POLICY", value_name = "FILE")]
    policy: Vec<PathBuf>,
    #[command(flatten)]
    policy_args: PolicyArgs,
    /// Directory with the rules of envoyproxy/ratelimit in YAML; it is read again whenever a file changes
    #[arg(long, env = "SLUICE_RATELIMIT_CONFIG", value_name = "DIRECTORY")]
    ratelimit_config: Option<PathBuf>,
    /// Let several files of this directory have rules for one domain
    #[arg(long, env = "SLUICE_MERGE_DOMAINS", requires = "ratelimit_config")]
    merge_domains: bool,
    /// Address of the gRPC port, which Envoy asks (envoy.service.ratelimit.v3 and envoy.service.auth.v3)
    #[arg(long, env = "SLUICE_GRPC", value_name = "IP:PORT", value_parser = address, default_value = "127.0.0.1:8081")]
    grpc: SocketAddr,
    /// Address of the HTTP port, which applications (/v1/check) and gateways (/v1/auth) ask, and which answers Envoy's questions in
    /// JSON (/json)
    #[arg(long, env = "SLUICE_HTTP", value_name = "IP:PORT", value_parser = address, default_value = "127.0.0.1:8080")]
    http: SocketAddr,
    /// Address of /livez, /readyz, /startupz and /metrics
    #[arg(long, env = "SLUICE_ADMIN", value_name = "IP:PORT", value_parser = address, default_value = "127.0.0.1:8792")]
    admin: SocketAddr,
    /// Address of the debug port, which sluice top, peek and status ask [default: none]
    #[arg(long, env = "SLUICE_DEBUG", value_name = "IP:PORT", value_parser = loopback_address)]
    debug: Option<SocketAddr>,
    #[command(flatten)]
    store: StoreArgs,
    /// Algorithm that counts: fixedWindow, as in ratelimit, slidingWindowCounter, slidingWindowLog or tokenBucket
    #[arg(long, env = "SLUICE_ALGORITHM", value_name = "NAME", default_value = "fixedWindow", value_parser = algorithm)]
    algorithm: AlgorithmName,
    /// Decision while the store does not answer: Share, by the part of the limit that this process has; Allow or Deny
    #[arg(long, env = "SLUICE_ON_STORE_FAILURE", value_name = "DECISION", default_value = "Share", value_parser = on_store_failure)]
    on_store_failure: OnStoreFailure,
    /// Number of processes that share the limits while the store does not answer
    #[arg(long, env = "SLUICE_REPLICAS", value_name = "NUMBER", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    replicas: u32,
    /// Time for which gateways wait at /v1/auth, and at envoy.service.auth.v3 without a deadline: three quarters of it are for the store
    #[arg(long, env = "SLUICE_AUTH_TIMEOUT", value_name = "DURATION", default_value = "200ms", value_parser = duration)]
    auth_timeout: Duration,
    #[command(flatten)]
    authorizer: AuthorizerArgs,
    /// Deny nothing, and count what would have been denied
    #[arg(long, env = "SLUICE_SHADOW")]
    shadow: bool,
    /// Add the headers RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset to responses
    #[arg(long, env = "SLUICE_HEADERS")]
    headers: bool,
    /// File with the certificate of the gRPC and the HTTP port in PEM, which is read again when it changes
    #[arg(long, env = "SLUICE_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// File with its private key, in PEM
    #[arg(long, env = "SLUICE_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// File with the certificate authorities of callers, in PEM. With it, a caller needs a certificate
    #[arg(long, env = "SLUICE_TLS_CLIENT_CA", value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
    #[command(flatten)]
    tracing: TraceArgs,
    /// Number of worker threads, each of which uses up to one CPU core
    #[arg(long, env = "SLUICE_WORKERS", value_name = "NUMBER", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    workers: u16,
    /// Time after SIGTERM during which connections are still accepted
    #[arg(long, env = "SLUICE_DRAIN_DELAY", value_name = "DURATION", default_value = "0s")]
    #[arg(value_parser = duration)]
    drain_delay: Duration,
    /// Format of the log on standard error
    #[arg(long, env = "SLUICE_LOG_FORMAT", value_name = "FORMAT", value_enum, default_value = "text")]
    log_format: LogFormat,
    /// Log level or filter, such as debug or info,sluice_store=debug
    #[arg(long, env = "SLUICE_LOG", value_name = "FILTER", default_value = "info,h2=error")]
    log: String,
}

/// Runs until a signal arrives.
pub(crate) fn serve(args: ServeArgs) -> anyhow::Result<()> {
    sluice_host::guard::abort_on_other_panics();
    let _last_lines = logging::init(args.log_format, &args.log)?;
    let ServeArgs {
        policy,
        policy_args,
        ratelimit_config,
        merge_domains,
        grpc,
        http,
        admin,
        debug,
        store,
        algorithm,
        on_store_failure,
        replicas,
        auth_timeout,
        authorizer,
        shadow,
        headers,
        tls_cert,
        tls_key,
        tls_client_ca,
        tracing,
        workers,
        drain_delay,
        log_format,
        log,
    } = args;
    let mut options = Options::new(grpc);
    options.checks = Some(http);
    options.is_of_one_user = true;
    options.admin = Some(admin);
    options.debug = debug;
    options.auth_timeout = auth_timeout;
    options.authorizer = authorizer;
    options.workers = usize::from(workers);
    options.tracing = tracing.options("sluice-service");
    options.tls = tls_cert.zip(tls_key).map(|(certificate, key)| TlsFiles {
        certificate,
        key,
        client_ca: tls_client_ca,
        is_client_optional: false,
        client_name: None,
    });
    let names = ["RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"].map(str::to_owned);
    options.rls = RlsOptions { headers: headers.then_some(names), shadow, ..RlsOptions::default() };
    let settings = Settings {
        options,
        store: store.choice()?,
        source: ratelimit_config.map(|path| Source::Files(Directory { path, ignores_dot_files: false })),
        compile: CompileOptions { algorithm, on_store_failure, merges_domains: merge_domains },
        replicas,
        must_have_rules: true,
        log: (log_format, log),
        ignored: Vec::new(),
    };
    let opened = (!policy.is_empty())
        .then(|| PolicyFiles::open(policy, &policy_args, Enforcer::Service))
        .transpose()?;
    let misfit = opened.as_ref().and_then(|(_, policies)| Publisher::misfits(policies).into_iter().next());
    if let (Some((name, nack)), Some((file, _))) = (misfit, &opened) {
        anyhow::bail!("{}: {name}: {nack}", file.name());
    }
    let beside = move |publication| async move {
        match opened {
            Some((file, policies)) => follow(file, policies, publication, replicas).await,
            None => std::future::pending().await,
        }
    };
    Ok(worker::runtime().context("cannot start")?.block_on(sluice_service::run::serve(
        settings,
        drain_delay,
        beside,
    ))?)
}

/// Publishes the policies of a file, and every valid edit of it. Never returns.
async fn follow(file: PolicyFiles, policies: Vec<NamedPolicy>, publication: Publication, replicas: u32) {
    let publish = |policies: &[NamedPolicy]| {
        // No policy is nacked here: all of them are applicable.
        let _ = publication.publish_policies(policies);
        if replicas > 1 {
            // The order of replicas is not known. The last one has no request more than its part.
            let replica = Replica { index: replicas - 1, count: replicas };
            publication.set_replicas(&policies.iter().map(|(name, _)| (name.clone(), replica)).collect());
        }
        tracing::info!(file = file.name(), policies = policies.len(), "policies applied");
    };
    publish(&policies);
    file.follow(publication.files(), publish).await;
}

fn algorithm(name: &str) -> Result<AlgorithmName, String> {
    let names = AlgorithmName::ALL.map(AlgorithmName::as_str).join(", ");
    AlgorithmName::from_name(name).ok_or_else(|| format!("write one of {names}"))
}

fn on_store_failure(name: &str) -> Result<OnStoreFailure, serde::de::value::Error> {
    OnStoreFailure::deserialize(name.into_deserializer())
}
