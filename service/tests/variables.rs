//! ratelimit's environment variables.

use std::collections::BTreeMap;
use std::path::PathBuf;

use sluice_config::store_access::StoreChoice;
use sluice_service::compat::compile::AlgorithmName;
use sluice_service::compat::settings::{Settings, Source};
use sluice_service::compat::variables::{Use, VARIABLES, use_of};

/// The variables of envoyproxy/ratelimit at 3fb702589d36, from its settings.
const OF_RATELIMIT: &str = include_str!("recorded/variables.txt");

fn read(pairs: &[(&str, &str)]) -> Result<Settings, String> {
    let all: BTreeMap<_, _> = [("REDIS_URL", "redis:6379"), ("REDIS_SOCKET_TYPE", "tcp")]
        .into_iter()
        .chain(pairs.iter().copied())
        .collect();
    Settings::read(&|name| all.get(name).map(|value| (*value).to_owned())).map_err(|error| error.to_string())
}

#[test]
fn something_becomes_of_each_variable() {
    let known: Vec<_> = OF_RATELIMIT.lines().collect();
    let unknown: Vec<_> = known.iter().filter(|name| use_of(name).is_none()).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    let invented: Vec<_> = VARIABLES.iter().filter(|(name, _)| !known.contains(name)).collect();
    assert!(invented.is_empty(), "{invented:?}");
}

#[test]
fn the_documentation_has_them() {
    let file: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "docs", "ratelimit.md"].iter().collect();
    let page = std::fs::read_to_string(&file).unwrap();
    let (before, rest) = page.split_once("<!-- variables -->\n").unwrap();
    let (_, after) = rest.split_once("<!-- end of variables -->").unwrap();
    let mut table = "| Variable | |\n|---|---|\n".to_owned();
    for (name, used) in VARIABLES {
        let text = match used {
            Use::Honoured(text) => text.to_owned(),
            Use::Ignored(reason) => format!("No effect: {reason}"),
            Use::Refused(reason) => format!("Refused: {reason}"),
        };
        table += &format!("| `{name}` | {text} |\n");
    }
    let expected = format!("{before}<!-- variables -->\n{table}<!-- end of variables -->{after}");
    if std::env::var_os("SLUICE_WRITE_DOCS").is_some() {
        std::fs::write(&file, &expected).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), expected, "run this test with SLUICE_WRITE_DOCS=1");
}

#[test]
fn variables_that_change_what_limits_mean_are_refused_and_others_are_told() {
    for (pair, expected) in [
        (
            ("GRPC_UDS", "/run/a.sock"),
            "GRPC_UDS: there are no Unix sockets for gRPC: set GRPC_HOST and GRPC_PORT",
        ),
        (
            ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "true"),
            "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION: the name in the certificate of Redis is always verified",
        ),
        (("BACKEND_TYPE", "memcache"), "BACKEND_TYPE: \"memcache\" is neither redis nor memory"),
        (("CONFIG_TYPE", "HTTP"), "CONFIG_TYPE: \"HTTP\" is neither FILE nor GRPC_XDS_SOTW"),
        (("SHADOW_MODE", "yes"), "SHADOW_MODE: \"yes\" is neither true nor false"),
        (("GRPC_PORT", "70000"), "GRPC_PORT: \"70000\": number too large to fit in target type"),
        (("GRPC_SERVER_USE_TLS", "true"), "GRPC_SERVER_TLS_CERT: is needed with GRPC_SERVER_USE_TLS"),
        (
            ("SLUICE_ALGORITHM", "gcra"),
            "SLUICE_ALGORITHM: \"gcra\" is none of fixedWindow, slidingWindowCounter, slidingWindowLog, tokenBucket",
        ),
        (("SLUICE_KEY_SECRET", "x"), "SLUICE_KEY_SECRET: the key secret is not valid base64"),
        (
            ("REDIS_TYPE", "SENTINEL"),
            "REDIS_URL: for REDIS_TYPE=SENTINEL, write the name of the master and then the sentinels: mymaster,host:26379",
        ),
        (("PROMETHEUS_ADDR", "9090"), ""),
        (
            ("GRPC_MAX_CONNECTION_AGE", "5 minutes"),
            "GRPC_MAX_CONNECTION_AGE: \"5 minutes\" is no duration: write for example 500ms, 1.5h or 1m30s",
        ),
        (("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "F"), ""),
        (("MEMCACHE_MAX_IDLE_CONNS", "2"), ""),
        (("REDIS_TLS_CACERT", "/nowhere"), ""),
        (("REDIS_SENTINEL_AUTH", "secret"), ""),
        (("CACHE_KEY_PREFIX", "{limits}:"), ""),
        (("LOG_FORMAT", "console"), ""),
        (("HOST", "localhost"), ""),
    ] {
        match read(&[pair]) {
            Ok(_) => assert_eq!(expected, "", "{pair:?}"),
            Err(error) => assert_eq!(error, expected),
        }
    }
    let settings = read(&[
        ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "false"),
        ("USE_STATSD", "true"),
        ("TRACING_SERVICE_INSTANCE_ID", "1"),
    ])
    .unwrap();
    assert_eq!(settings.ignored.len(), 2, "{:?}", settings.ignored);
    assert!(settings.ignored[0].starts_with("USE_STATSD has no effect: "));
}

#[test]
fn durations_are_written_as_in_go_and_0_is_for_ever() {
    for (text, seconds) in [
        ("0", None),
        ("0s", None),
        ("1.5h", Some(5400.0)),
        ("1m30s", Some(90.0)),
        ("500us", Some(0.0005)),
        ("", Some(300.0)),
    ] {
        let settings =
            read(&[("GRPC_MAX_CONNECTION_AGE", text), ("GRPC_MAX_CONNECTION_AGE_GRACE", "0")]).unwrap();
        let age = settings.options.age;
        assert_eq!((age.max.map(|age| age.as_secs_f64()), age.grace), (seconds, None), "{text}");
    }
    let settings = read(&[
        ("GRPC_HOST", "localhost"),
        ("USE_PROMETHEUS", "true"),
        ("PROMETHEUS_ADDR", "localhost:9"),
        ("PROMETHEUS_PATH", "/m"),
    ])
    .unwrap();
    assert!(settings.options.grpc.ip().is_loopback());
    assert!(settings.options.prometheus.unwrap().0.ip().is_loopback());
}

#[test]
fn spans_are_sent_where_the_variables_of_opentelemetry_say() {
    let collector = |pairs: &[(&str, &str)]| {
        let settings = read(&[&[("TRACING_ENABLED", "true")], pairs].concat())?;
        let tracing = settings
            .options
            .tracing
            .map(|tracing| format!("{} {} {}", tracing.program, tracing.collector, tracing.ratio));
        Ok::<_, String>(tracing.ok_or(settings.ignored.join("\n")))
    };
    assert!(read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:1")]).unwrap().options.tracing.is_none());
    for (pairs, expected) in [
        (&[][..], Ok("RateLimit http://localhost:4318/v1/traces 1")),
        (
            &[
                ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://otel:4318"),
                ("TRACING_SERVICE_NAME", "limits"),
                ("TRACING_SAMPLING_RATE", "0.1"),
            ],
            Ok("limits http://otel:4318/v1/traces 0.1"),
        ),
        (
            &[("TRACING_EXPORTER_PROTOCOL", "grpc")],
            Err(
                "TRACING_ENABLED has no effect: spans are sent by OTLP over http only, and TRACING_EXPORTER_PROTOCOL is \"grpc\"",
            ),
        ),
    ] {
        assert_eq!(collector(pairs).unwrap().as_deref().map_err(|error| &**error), expected);
    }
    let told = collector(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "https://otel:4318")]).unwrap().unwrap_err();
    assert!(told.starts_with("TRACING_ENABLED has no effect: OTEL_EXPORTER_OTLP_ENDPOINT: "), "{told}");
    assert_eq!(
        collector(&[("TRACING_SAMPLING_RATE", "2")]).unwrap_err(),
        "TRACING_SAMPLING_RATE: \"2\" is not a number from 0 to 1"
    );
}

#[test]
fn the_variables_of_envoy_gateway_are_honoured() {
    let settings = read(&[
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", "envoy-gateway:18001"),
        ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/certs/tls.crt"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/certs/tls.key"),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/certs/ca.crt"),
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", "/certs/tls.crt"),
        ("GRPC_SERVER_TLS_KEY", "/certs/tls.key"),
        ("GRPC_CLIENT_TLS_CACERT", "/certs/ca.crt"),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ("USE_PROMETHEUS", "true"),
        ("PROMETHEUS_ADDR", ":19001"),
        ("USE_STATSD", "false"),
        ("LOG_LEVEL", "info"),
    ])
    .unwrap();
    let Some(Source::Xds(server)) = &settings.source else { panic!("{:?}", settings.source) };
    assert_eq!((&*server.address, &*server.node), ("envoy-gateway:18001", "envoy-ratelimit"));
    let tls = server.tls.as_ref().unwrap();
    assert_eq!(tls.ca.as_deref(), Some("/certs/ca.crt".as_ref()));
    assert!(tls.certificate.is_some() && settings.options.answers_without_rules);
    let options = &settings.options;
    assert_eq!(options.tls.as_ref().unwrap().client_ca.as_deref(), Some("/certs/ca.crt".as_ref()));
    let (address, path) = options.prometheus.clone().unwrap();
    assert_eq!((address.to_string(), path), ("0.0.0.0:19001".to_owned(), "/metrics".to_owned()));
    assert_eq!(options.grpc.port(), 8081);
    assert_eq!(settings.compile.algorithm, AlgorithmName::FixedWindow);
}

#[test]
fn redis_is_reached_in_each_of_ratelimits_ways() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    for (pairs, expected) in [
        (&[("REDIS_URL", "r:1")][..], r#""endpoints":[{"host":"r","port":1}]"#),
        (&[("REDIS_URL", "redis://u:p@r:1/2")], r#""database":2"#),
        (&[("REDIS_TYPE", "CLUSTER"), ("REDIS_URL", "a:1,b:2")], r#""topology":"cluster""#),
        (
            &[("REDIS_TYPE", "sentinel"), ("REDIS_URL", "main,a:1,b:2"), ("REDIS_SENTINEL_AUTH", "s")],
            r#""master":"main""#,
        ),
        (&[("REDIS_TLS", "true")], r#""tls":{"#),
        (&[("REDIS_AUTH", "user:pa:ss")], r#""username":"user","password":"pa:ss""#),
        (&[("REDIS_AUTH", "secret")], r#""password":"secret""#),
        (&[("CACHE_KEY_PREFIX", "shop:")], r#""prefix":"shop:""#),
        (&[("REDIS_URL", "/run/redis.sock"), ("REDIS_SOCKET_TYPE", "unix")], "/run/redis.sock"),
    ] {
        let settings = read(pairs).unwrap_or_else(|error| panic!("{pairs:?}: {error}"));
        let StoreChoice::Access(access) = settings.store else { panic!("{pairs:?}") };
        let json = serde_json::to_string(&access).unwrap();
        assert!(json.contains(expected), "{pairs:?} {json}");
    }
    assert!(matches!(read(&[("BACKEND_TYPE", "memory")]).unwrap().store, StoreChoice::Memory));
}
