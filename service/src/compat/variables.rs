//! The environment variables of ratelimit, and what becomes of each. The table in the documentation is made from this one.

/// The fate of a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// It does here what it does there, or as described.
    Honoured(&'static str),
    /// It has no effect, and a line in the log says so if it is set.
    Ignored(&'static str),
    /// The process does not start if it is set to something other than its default, because limits would not be what they were.
    Refused(&'static str),
}

use Use::{Honoured, Ignored, Refused};

const STATSD: Use = Ignored("metrics are read by Prometheus: see USE_PROMETHEUS");
const PER_SECOND: Use = Ignored("limits by the second count in the Redis of all others");
const MEMCACHE: Use =
    Ignored("there is no memcache: counters are in Redis, or in memory with BACKEND_TYPE=memory");
const RESOURCE: Use = Ignored("what describes the process in spans is in OTEL_RESOURCE_ATTRIBUTES");
const POOL: Use = Ignored("checks of all callers share few connections, and a call takes many checks along");

/// All variables of ratelimit, in the order of its settings.
pub const VARIABLES: [(&str, Use); 108] = [
    ("HOST", Honoured("Address of the HTTP port")),
    ("PORT", Honoured("The HTTP port: `/healthcheck` and `/json`")),
    ("DEBUG_HOST", Honoured("Address of the debug port")),
    ("DEBUG_PORT", Honoured("The debug port: `/rlconfig`. There is no profiler")),
    ("GRPC_UDS", Refused("there are no Unix sockets for gRPC: set GRPC_HOST and GRPC_PORT")),
    ("GRPC_HOST", Honoured("Address of the gRPC port")),
    ("GRPC_PORT", Honoured("The gRPC port")),
    (
        "GRPC_MAX_CONNECTION_AGE",
        Honoured(
            "Age at which connections end; 0 for never. Default: 5 minutes, so that gateways use new replicas; 24 hours there",
        ),
    ),
    (
        "GRPC_MAX_CONNECTION_AGE_GRACE",
        Honoured("Time for calls in flight then; 0 for any. Default: 30 seconds"),
    ),
    ("GRPC_SERVER_USE_TLS", Honoured("Whether the gRPC port speaks TLS")),
    ("GRPC_SERVER_TLS_CERT", Honoured("File with its certificate, which is read again when it changes")),
    ("GRPC_SERVER_TLS_KEY", Honoured("File with the key, likewise")),
    (
        "GRPC_CLIENT_TLS_CACERT",
        Honoured("File with the authorities of callers, likewise. With it, a caller needs a certificate"),
    ),
    (
        "GRPC_CLIENT_TLS_SAN",
        Honoured("The name that a caller's certificate must have: a DNS name, an address or a URI"),
    ),
    ("LOG_LEVEL", Honoured("Level of the log: trace, debug, info, warn or error. Default: info; WARN there")),
    ("LOG_FORMAT", Honoured("Format of the log: json, or else text")),
    ("CONFIG_TYPE", Honoured("FILE or GRPC_XDS_SOTW")),
    (
        "FORCE_START_WITHOUT_INITIAL_CONFIG",
        Honoured(
            "Whether questions are answered before the first rules have come, with an error. Without it, callers wait",
        ),
    ),
    ("CONFIG_GRPC_XDS_NODE_ID", Honoured("Id of the node")),
    ("CONFIG_GRPC_XDS_NODE_METADATA", Honoured("Metadata of the node: `key=value,key=value`")),
    ("CONFIG_GRPC_XDS_SERVER_URL", Honoured("Address of the xDS server")),
    (
        "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL",
        Ignored(
            "the next attempt is after 100 ms, and then after twice the time, up to XDS_CLIENT_BACKOFF_MAX_INTERVAL",
        ),
    ),
    (
        "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS",
        Honoured("Headers for the xDS server: `name:value,name:value`"),
    ),
    ("CONFIG_GRPC_XDS_SERVER_USE_TLS", Honoured("Whether the xDS server speaks TLS")),
    (
        "CONFIG_GRPC_XDS_CLIENT_TLS_CERT",
        Honoured("File with the client certificate, which is read for each connection"),
    ),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", Honoured("File with its key, likewise")),
    (
        "CONFIG_GRPC_XDS_SERVER_TLS_CACERT",
        Honoured("File with authorities of the xDS server beside the public ones, likewise"),
    ),
    ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", Honoured("The name that the xDS server's certificate must have")),
    ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", Ignored("the first attempt is after 100 ms")),
    ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", Honoured("Longest time between two attempts. Default: 10 seconds")),
    ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", Ignored("the time between two attempts doubles")),
    ("XDS_CLIENT_BACKOFF_JITTER", Ignored("the time between two attempts is always random")),
    ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", Honoured("Largest response of the xDS server. Default: 64 MiB")),
    ("USE_DOG_STATSD", STATSD),
    ("USE_DOG_STATSD_MOGRIFIERS", STATSD),
    ("USE_STATSD", STATSD),
    ("STATSD_HOST", STATSD),
    ("STATSD_PORT", STATSD),
    ("EXTRA_TAGS", STATSD),
    ("STATS_FLUSH_INTERVAL", STATSD),
    ("DISABLE_STATS", STATSD),
    ("USE_PROMETHEUS", Honoured("Whether metrics are served at PROMETHEUS_ADDR too")),
    ("PROMETHEUS_ADDR", Honoured("Address of metrics, such as `:9090`")),
    ("PROMETHEUS_PATH", Honoured("Path of metrics")),
    ("PROMETHEUS_MAPPER_YAML", Ignored("metrics have labels, so nothing is mapped")),
    ("RUNTIME_ROOT", Honoured("Directory of the rules")),
    ("RUNTIME_SUBDIRECTORY", Honoured("Folder in it")),
    ("RUNTIME_APPDIRECTORY", Honoured("Folder in that one, with the files")),
    (
        "RUNTIME_IGNOREDOTFILES",
        Honoured("Whether files whose names begin with a dot are left out. Those with two dots always are"),
    ),
    ("RUNTIME_WATCH_ROOT", Ignored("files, links and folders are followed in any case")),
    ("EXPIRATION_JITTER_MAX_SECONDS", Ignored("counters expire with their windows")),
    ("LOCAL_CACHE_SIZE_IN_BYTES", Ignored("there is no cache of denials, because hits can be given back")),
    ("NEAR_LIMIT_RATIO", Ignored("there is no metric for nearly used limits")),
    ("CACHE_KEY_PREFIX", Honoured("Prefix of the keys in Redis, without braces. Default: `sluice:`")),
    ("BACKEND_TYPE", Honoured("redis, or memory for a single replica. There is no memcache")),
    ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", Ignored("a denied request never counts")),
    ("LIMIT_RESPONSE_HEADERS_ENABLED", Honoured("Whether answers have headers")),
    ("LIMIT_LIMIT_HEADER", Honoured("Name of the header with the limit")),
    ("LIMIT_REMAINING_HEADER", Honoured("Name of the header with what remains")),
    ("LIMIT_RESET_HEADER", Honoured("Name of the header with the seconds until there is more")),
    (
        "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
        Honoured("Whether the service is unhealthy without any domain"),
    ),
    ("REDIS_SOCKET_TYPE", Honoured("tcp or unix")),
    ("REDIS_TYPE", Honoured("SINGLE, SENTINEL or CLUSTER")),
    (
        "REDIS_URL",
        Honoured(
            "Address of Redis. For SENTINEL, the name of the master and then the sentinels; for CLUSTER, some nodes",
        ),
    ),
    ("REDIS_POOL_SIZE", POOL),
    ("REDIS_AUTH", Honoured("`PASSWORD` or `USER:PASSWORD`")),
    ("REDIS_TLS", Honoured("Whether Redis speaks TLS")),
    ("REDIS_TLS_CLIENT_CERT", Honoured("File with the client certificate")),
    ("REDIS_TLS_CLIENT_KEY", Honoured("File with its key")),
    ("REDIS_TLS_CACERT", Honoured("File with the authorities of Redis. Default: the public ones")),
    (
        "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION",
        Refused("the name in the certificate of Redis is always verified"),
    ),
    ("REDIS_PIPELINE_WINDOW", POOL),
    ("REDIS_PIPELINE_LIMIT", POOL),
    ("REDIS_PERSECOND", PER_SECOND),
    ("REDIS_PERSECOND_SOCKET_TYPE", PER_SECOND),
    ("REDIS_PERSECOND_TYPE", PER_SECOND),
    ("REDIS_PERSECOND_URL", PER_SECOND),
    ("REDIS_PERSECOND_POOL_SIZE", PER_SECOND),
    ("REDIS_PERSECOND_AUTH", PER_SECOND),
    ("REDIS_PERSECOND_TLS", PER_SECOND),
    ("REDIS_SENTINEL_AUTH", Honoured("`PASSWORD` or `USER:PASSWORD` for the sentinels")),
    ("REDIS_PERSECOND_SENTINEL_AUTH", PER_SECOND),
    ("REDIS_PERSECOND_PIPELINE_WINDOW", PER_SECOND),
    ("REDIS_PERSECOND_PIPELINE_LIMIT", PER_SECOND),
    (
        "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION",
        Ignored("without Redis the service still answers, so it stays healthy"),
    ),
    (
        "REDIS_TIMEOUT",
        Ignored("a check takes at most SLUICE_LATENCY_BUDGET, and three quarters of the caller's deadline"),
    ),
    ("REDIS_PERSECOND_TIMEOUT", PER_SECOND),
    ("REDIS_POOL_ON_EMPTY_BEHAVIOR", POOL),
    ("REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", PER_SECOND),
    ("MEMCACHE_HOST_PORT", MEMCACHE),
    ("MEMCACHE_MAX_IDLE_CONNS", MEMCACHE),
    ("MEMCACHE_SRV", MEMCACHE),
    ("MEMCACHE_SRV_REFRESH", MEMCACHE),
    ("MEMCACHE_TLS", MEMCACHE),
    ("MEMCACHE_TLS_CLIENT_CERT", MEMCACHE),
    ("MEMCACHE_TLS_CLIENT_KEY", MEMCACHE),
    ("MEMCACHE_TLS_CACERT", MEMCACHE),
    ("MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", MEMCACHE),
    ("SHADOW_MODE", Honoured("Whether nothing is denied")),
    ("QUOTA_MODE", Honoured("Whether denials are only told in the metadata of answers")),
    ("RESPONSE_DYNAMIC_METADATA", Honoured("Whether answers have metadata")),
    ("MERGE_DOMAIN_CONFIG", Honoured("Whether several files may have rules for one domain")),
    (
        "TRACING_ENABLED",
        Honoured(
            "Whether calls have spans. They go to OTEL_EXPORTER_OTLP_ENDPOINT, at most 200 calls a second. Default: http://localhost:4318",
        ),
    ),
    ("TRACING_SERVICE_NAME", Honoured("The name of the service in spans")),
    ("TRACING_SERVICE_NAMESPACE", RESOURCE),
    ("TRACING_SERVICE_INSTANCE_ID", RESOURCE),
    ("TRACING_EXPORTER_PROTOCOL", Honoured("http. With grpc there are no spans")),
    (
        "TRACING_SAMPLING_RATE",
        Honoured(
            "Part of the calls without a trace that have spans. Calls with a trace are sampled as their caller says",
        ),
    ),
];

/// Returns what becomes of a variable; `None` if ratelimit has none of this name.
#[must_use]
pub fn use_of(name: &str) -> Option<Use> {
    VARIABLES.iter().find(|(known, _)| *known == name).map(|(_, used)| *used)
}
