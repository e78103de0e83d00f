//! Reads ratelimit's environment variables, and a few of Sluice's own beside them.

use std::fmt::Display;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use sluice_config::KeySecret;
use sluice_config::policy::OnStoreFailure;
use sluice_config::store_access::{StoreAccess, StoreChoice};
use sluice_engine::trace::TraceOptions;
use sluice_host::capacity;
use sluice_host::logging::LogFormat;
use sluice_host::serve::ConnectionAge;
use sluice_store::RedisOptions;
use sluice_store::redis::{ClientCertificate, Secret, StoreCredentials};

use crate::compat::compile::{AlgorithmName, CompileOptions};
use crate::compat::files::Directory;
use crate::compat::variables::{Use, VARIABLES};
use crate::compat::xds::{XdsServer, XdsTls};
use crate::rls::RlsOptions;
use crate::service::Options;
use crate::tls::TlsFiles;

/// A variable that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {reason}")]
pub struct SettingsError {
    name: String,
    reason: String,
}

/// Where rules come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// From files.
    Files(Directory),
    /// From an xDS server.
    Xds(Box<XdsServer>),
}

/// The settings of a process.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The options of the service.
    pub options: Options,
    /// Where counters are.
    pub store: StoreChoice,
    /// Where rules come from.
    pub source: Option<Source>,
    /// How rules are enforced.
    pub compile: CompileOptions,
    /// Number of replicas that share a limit while the store does not answer.
    pub replicas: u32,
    /// Whether the process ends if the rules of its first start cannot be used. Without it, it waits for others.
    pub must_have_rules: bool,
    /// Format and filter of the log.
    pub log: (LogFormat, String),
    /// Lines for the log about variables that have no effect.
    pub ignored: Vec<String>,
}

/// Reads variables.
struct Environment<'a>(&'a dyn Fn(&str) -> Option<String>);

fn failed(name: &str, reason: impl Display) -> SettingsError {
    SettingsError { name: name.to_owned(), reason: reason.to_string() }
}

impl Environment<'_> {
    /// Returns a variable that is set to something.
    fn text(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|value| !value.is_empty())
    }

    fn or(&self, name: &str, default: &str) -> String {
        self.text(name).unwrap_or_else(|| default.to_owned())
    }

    fn parsed<T: FromStr<Err: Display>>(&self, name: &str, default: T) -> Result<T, SettingsError> {
        self.text(name).map_or(Ok(default), |text| {
            text.parse().map_err(|error| failed(name, format!("{text:?}: {error}")))
        })
    }

    /// Reads a boolean as Go does.
    fn flag(&self, name: &str) -> Result<bool, SettingsError> {
        match self.text(name).as_deref() {
            None | Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(false),
            Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(true),
            Some(other) => Err(failed(name, format!("{other:?} is neither true nor false"))),
        }
    }

    fn duration(&self, name: &str, default: Duration) -> Result<Duration, SettingsError> {
        self.text(name).map_or(Ok(default), |text| {
            go_duration(&text).ok_or_else(|| {
                failed(name, format!("{text:?} is no duration: write for example 500ms, 1.5h or 1m30s"))
            })
        })
    }

    fn address(&self, host: &str, port: &str, default: u16) -> Result<SocketAddr, SettingsError> {
        let (name, port) = (self.or(host, "0.0.0.0"), self.parsed(port, default)?);
        resolve(&name, port).map_err(|error| failed(host, error))
    }

    fn read(&self, name: &str) -> Result<Option<String>, SettingsError> {
        let file = self.text(name);
        file.map(|file| {
            std::fs::read_to_string(&file).map_err(|error| failed(name, format!("{file}: {error}")))
        })
        .transpose()
    }
}

impl Settings {
    /// Reads the variables that `get` returns.
    ///
    /// # Errors
    /// A variable is not valid, or asks for something that the service does not do.
    pub fn read(get: &dyn Fn(&str) -> Option<String>) -> Result<Self, SettingsError> {
        let env = Environment(get);
        refuse(&env)?;
        let mut options = Options::new(env.address("GRPC_HOST", "GRPC_PORT", 8081)?);
        options.http = Some(env.address("HOST", "PORT", 8080)?);
        options.ratelimit_debug = Some(env.address("DEBUG_HOST", "DEBUG_PORT", 6070)?);
        options.admin = Some(env.parsed("SLUICE_ADMIN", SocketAddr::from(([0, 0, 0, 0], 8791)))?);
        options.debug = Some(env.parsed("SLUICE_DEBUG", SocketAddr::from(([127, 0, 0, 1], 8793)))?);
        if env.flag("USE_PROMETHEUS")? {
            let text = env.or("PROMETHEUS_ADDR", ":9090");
            let parts = text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
            let (host, port) = parts
                .ok_or_else(|| failed("PROMETHEUS_ADDR", format!("{text:?} is not of the form HOST:PORT")))?;
            let address = resolve(if host.is_empty() { "0.0.0.0" } else { host }, port)
                .map_err(|error| failed("PROMETHEUS_ADDR", error))?;
            let path = env.or("PROMETHEUS_PATH", "/metrics");
            if !path.starts_with('/') || path.contains(['{', '}', '*']) {
                return Err(failed("PROMETHEUS_PATH", format!("{path:?} is no path such as /metrics")));
            }
            options.prometheus = Some((address, path));
        }
        options.workers = env.parsed("SLUICE_WORKERS", capacity::workers())?.clamp(1, 256);
        let ConnectionAge { max, grace } = options.age;
        // As in Go's gRPC, 0 is for ever.
        let age = |name: &str, default: Option<Duration>| {
            let age = env.duration(name, default.unwrap_or_default())?;
            Ok(Some(age).filter(|age| !age.is_zero()))
        };
        options.age = ConnectionAge {
            max: age("GRPC_MAX_CONNECTION_AGE", max)?,
            grace: age("GRPC_MAX_CONNECTION_AGE_GRACE", grace)?,
        };
        if env.flag("GRPC_SERVER_USE_TLS")? {
            let file = |name: &str| env.text(name).map(PathBuf::from);
            let needed =
                |name: &str| file(name).ok_or_else(|| failed(name, "is needed with GRPC_SERVER_USE_TLS"));
            options.tls = Some(TlsFiles {
                certificate: needed("GRPC_SERVER_TLS_CERT")?,
                key: needed("GRPC_SERVER_TLS_KEY")?,
                client_ca: file("GRPC_CLIENT_TLS_CACERT"),
                is_client_optional: false,
                client_name: env.text("GRPC_CLIENT_TLS_SAN"),
            });
        }
        let headers = || {
            [
                env.or("LIMIT_LIMIT_HEADER", "RateLimit-Limit"),
                env.or("LIMIT_REMAINING_HEADER", "RateLimit-Remaining"),
                env.or("LIMIT_RESET_HEADER", "RateLimit-Reset"),
            ]
        };
        options.rls = RlsOptions {
            headers: env.flag("LIMIT_RESPONSE_HEADERS_ENABLED")?.then(headers),
            shadow: env.flag("SHADOW_MODE")?,
            quota: env.flag("QUOTA_MODE")?,
            metadata: env.flag("RESPONSE_DYNAMIC_METADATA")?,
        };
        let mut ignored = ignored(&env);
        options.tracing = tracing(&env, &mut ignored)?;
        options.answers_without_rules = env.flag("FORCE_START_WITHOUT_INITIAL_CONFIG")?;
        options.is_unhealthy_without_domains = env.flag("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED")?;
        let algorithm = env.or("SLUICE_ALGORITHM", "fixedWindow");
        let on_store_failure = env.or("SLUICE_ON_STORE_FAILURE", "Share");
        let compile = CompileOptions {
            algorithm: AlgorithmName::from_name(&algorithm).ok_or_else(|| {
                let names = AlgorithmName::ALL.map(AlgorithmName::as_str).join(", ");
                failed("SLUICE_ALGORITHM", format!("{algorithm:?} is none of {names}"))
            })?,
            on_store_failure: match &*on_store_failure {
                "Share" => OnStoreFailure::Share,
                "Allow" => OnStoreFailure::Allow,
                "Deny" => OnStoreFailure::Deny,
                other => {
                    return Err(failed(
                        "SLUICE_ON_STORE_FAILURE",
                        format!("{other:?} is none of Share, Allow, Deny"),
                    ));
                }
            },
            merges_domains: env.flag("MERGE_DOMAIN_CONFIG")?,
        };
        Ok(Self {
            options,
            store: store(&env)?,
            source: Some(source(&env)?),
            compile,
            replicas: env.parsed("SLUICE_REPLICAS", 1_u32)?.max(1),
            must_have_rules: false,
            log: log(&env)?,
            ignored,
        })
    }
}

/// Returns the address of a host, which may be a name.
fn resolve(host: &str, port: u16) -> Result<SocketAddr, String> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let mut found = (host, port).to_socket_addrs().map_err(|error| format!("{host:?}: {error}"))?;
    found.next().ok_or_else(|| format!("{host:?} has no address"))
}

/// Reads a duration in Go's words: numbers with units, such as `1.5h` or `1m30s`, or `0`.
fn go_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let (mut rest, mut seconds) = (text, 0.0);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let units =
            [("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
        let (unit, length) = units.into_iter().find(|(unit, _)| rest.starts_with(unit))?;
        seconds += number * length;
        rest = &rest[unit.len()..];
    }
    if text.is_empty() { None } else { Duration::try_from_secs_f64(seconds).ok() }
}

/// Refuses variables that would change what limits mean.
fn refuse(env: &Environment<'_>) -> Result<(), SettingsError> {
    for (name, used) in VARIABLES {
        let Use::Refused(reason) = used else { continue };
        // One that does not ask for anything changes nothing.
        if env.text(name).is_some() && !matches!(env.flag(name), Ok(false)) {
            return Err(failed(name, reason));
        }
    }
    Ok(())
}

/// Returns where spans are sent. Without a collector that can be used there are none, and the service works.
fn tracing(env: &Environment<'_>, ignored: &mut Vec<String>) -> Result<Option<TraceOptions>, SettingsError> {
    const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
    if !env.flag("TRACING_ENABLED")? {
        return Ok(None);
    }
    let protocol = env.or("TRACING_EXPORTER_PROTOCOL", "http");
    if protocol != "http" {
        ignored.push(format!(
            "TRACING_ENABLED has no effect: spans are sent by OTLP over http only, and TRACING_EXPORTER_PROTOCOL is {protocol:?}"
        ));
        return Ok(None);
    }
    let endpoint = ENDPOINTS.into_iter().find_map(|name| Some((name, env.text(name)?)));
    let (name, url) = endpoint.unwrap_or((ENDPOINTS[1], "http://localhost:4318".to_owned()));
    let collector = match url.parse() {
        Ok(collector) => collector,
        Err(error) => {
            ignored.push(format!("TRACING_ENABLED has no effect: {name}: {error}"));
            return Ok(None);
        }
    };
    let ratio = env.or("TRACING_SAMPLING_RATE", "1");
    let ratio = ratio.parse().map_err(|error| failed("TRACING_SAMPLING_RATE", error))?;
    Ok(Some(TraceOptions { program: env.or("TRACING_SERVICE_NAME", "RateLimit"), collector, ratio }))
}

fn ignored(env: &Environment<'_>) -> Vec<String> {
    let ignored = VARIABLES.into_iter().filter_map(|(name, used)| match used {
        Use::Ignored(reason) if env.text(name).is_some() => Some(format!("{name} has no effect: {reason}")),
        Use::Ignored(_) | Use::Honoured(_) | Use::Refused(_) => None,
    });
    ignored.collect()
}

fn log(env: &Environment<'_>) -> Result<(LogFormat, String), SettingsError> {
    let is_json = env.or("LOG_FORMAT", "text").eq_ignore_ascii_case("json");
    let format = if is_json { LogFormat::Json } else { LogFormat::Text };
    let level = match &*env.or("LOG_LEVEL", "INFO").to_ascii_lowercase() {
        "warning" => "warn".to_owned(),
        "fatal" | "panic" => "error".to_owned(),
        level @ ("trace" | "debug" | "info" | "warn" | "error") => level.to_owned(),
        other => {
            return Err(failed("LOG_LEVEL", format!("{other:?} is none of trace, debug, info, warn, error")));
        }
    };
    let filter = env.text("SLUICE_LOG").unwrap_or_else(|| format!("{level},h2=error"));
    Ok((format, filter))
}

fn source(env: &Environment<'_>) -> Result<Source, SettingsError> {
    match &*env.or("CONFIG_TYPE", "FILE") {
        "FILE" => {
            let root = PathBuf::from(env.or("RUNTIME_ROOT", "/srv/runtime_data/current"));
            let folder =
                root.join(env.or("RUNTIME_SUBDIRECTORY", "")).join(env.or("RUNTIME_APPDIRECTORY", "config"));
            let ignores_dot_files = env.flag("RUNTIME_IGNOREDOTFILES")?;
            Ok(Source::Files(Directory { path: folder, ignores_dot_files }))
        }
        "GRPC_XDS_SOTW" => {
            let pairs = |name: &str, separator: char| -> Vec<(String, String)> {
                let text = env.or(name, "");
                let pairs = text.split(',').filter_map(|pair| pair.split_once(separator));
                pairs.map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned())).collect()
            };
            let file = |name: &str| env.text(name).map(PathBuf::from);
            let tls = env.flag("CONFIG_GRPC_XDS_SERVER_USE_TLS")?.then(|| XdsTls {
                certificate: file("CONFIG_GRPC_XDS_CLIENT_TLS_CERT")
                    .zip(file("CONFIG_GRPC_XDS_CLIENT_TLS_KEY")),
                ca: file("CONFIG_GRPC_XDS_SERVER_TLS_CACERT"),
                server_name: env.text("CONFIG_GRPC_XDS_SERVER_TLS_SAN"),
            });
            Ok(Source::Xds(Box::new(XdsServer {
                address: env.or("CONFIG_GRPC_XDS_SERVER_URL", "localhost:18000"),
                node: env.or("CONFIG_GRPC_XDS_NODE_ID", "default"),
                metadata: pairs("CONFIG_GRPC_XDS_NODE_METADATA", '='),
                headers: pairs("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", ':'),
                tls,
                longest_pause: env.duration("XDS_CLIENT_BACKOFF_MAX_INTERVAL", Duration::from_secs(10))?,
                max_message: env.parsed("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", 64 << 20)?,
            })))
        }
        other => Err(failed("CONFIG_TYPE", format!("{other:?} is neither FILE nor GRPC_XDS_SOTW"))),
    }
}

/// Returns the password and the user of `PASSWORD` or `USER:PASSWORD`.
fn credentials(text: Option<&str>) -> (Option<String>, Option<Secret>) {
    match text.map(|text| text.split_once(':').unwrap_or(("", text))) {
        None => (None, None),
        Some((user, password)) => {
            (Some(user.to_owned()).filter(|user| !user.is_empty()), Some(Secret::new(password)))
        }
    }
}

fn store(env: &Environment<'_>) -> Result<StoreChoice, SettingsError> {
    match &*env.or("BACKEND_TYPE", "redis") {
        "redis" => {}
        "memory" => return Ok(StoreChoice::Memory),
        other => return Err(failed("BACKEND_TYPE", format!("{other:?} is neither redis nor memory"))),
    }
    let url = env
        .text("REDIS_URL")
        .ok_or_else(|| failed("REDIS_URL", "is not set: name the Redis, such as redis:6379"))?;
    let of_url = |error: &dyn Display| failed("REDIS_URL", error);
    let with_tls = env.flag("REDIS_TLS")? || url.starts_with("rediss://");
    let scheme = if with_tls { "rediss" } else { "redis" };
    let bare: Vec<&str> = url
        .split(',')
        .map(|one| one.trim().trim_start_matches("rediss://").trim_start_matches("redis://"))
        .collect();
    let socket_type = env.or("REDIS_SOCKET_TYPE", if url.starts_with('/') { "unix" } else { "tcp" });
    let full = match (&*env.or("REDIS_TYPE", "SINGLE").to_ascii_uppercase(), &*socket_type) {
        ("SINGLE", "unix") => format!("unix://{url}"),
        ("SINGLE", _) => format!("{scheme}://{}", bare[0]),
        ("CLUSTER", _) => format!("{scheme}+cluster://{}", bare.join(",")),
        ("SENTINEL", _) => match &bare[..] {
            [master, sentinels @ ..] if !sentinels.is_empty() => {
                format!("{scheme}+sentinel://{}/{master}", sentinels.join(","))
            }
            _ => {
                return Err(of_url(
                    &"for REDIS_TYPE=SENTINEL, write the name of the master and then the sentinels: mymaster,host:26379",
                ));
            }
        },
        (other, _) => {
            return Err(failed("REDIS_TYPE", format!("{other:?} is none of SINGLE, SENTINEL, CLUSTER")));
        }
    };
    let redis = RedisOptions::from_url(&full).map_err(|error| of_url(&error))?;
    let (username, password) = credentials(env.text("REDIS_AUTH").as_deref());
    // These mean nothing without sentinels and TLS.
    let has_sentinels = env.or("REDIS_TYPE", "").eq_ignore_ascii_case("SENTINEL");
    let sentinel = Some("REDIS_SENTINEL_AUTH").filter(|_| has_sentinels);
    let (sentinel_username, sentinel_password) =
        credentials(sentinel.and_then(|name| env.text(name)).as_deref());
    let read = |name| if with_tls { env.read(name) } else { Ok(None) };
    let certificate = read("REDIS_TLS_CLIENT_CERT")?.zip(read("REDIS_TLS_CLIENT_KEY")?);
    let redis = redis
        .with_credentials(StoreCredentials {
            username,
            password,
            sentinel_username,
            sentinel_password,
            ca: read("REDIS_TLS_CACERT")?,
            client_certificate: certificate.map(|(certificate, key)| ClientCertificate { certificate, key }),
        })
        .map_err(|error| of_url(&error))?;
    let redis = RedisOptions {
        latency_budget: env.duration("SLUICE_LATENCY_BUDGET", redis.latency_budget)?,
        // Keys have braces of their own, which choose the slot in a cluster.
        prefix: env.or("CACHE_KEY_PREFIX", &redis.prefix).replace(['{', '}'], ""),
        ..redis
    };
    redis.check().map_err(|error| of_url(&error))?;
    let key_secret = match env.text("SLUICE_KEY_SECRET") {
        Some(text) => KeySecret::try_from(text).map_err(|error| failed("SLUICE_KEY_SECRET", error))?,
        None => unkeyed(),
    };
    Ok(StoreChoice::Access(Box::new(StoreAccess { redis, key_secret })))
}

/// Returns the secret of services that are given none. It is the same for all replicas, and anyone can compute it.
pub(crate) fn unkeyed() -> KeySecret {
    let digest = Sha256::digest("sluice-service without SLUICE_KEY_SECRET");
    KeySecret::new(std::array::from_fn(|n| digest[n]))
}
