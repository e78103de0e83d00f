//! Spans of requests through `sluice run`, as an OpenTelemetry collector receives them.

use sluice_tests::client::{Response, get, send};
use sluice_tests::collector::{Collector, Span};
use sluice_tests::process::{Process, binary, free_port};
use sluice_tests::wait::until;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// The span of the client in every request with a trace.
const CLIENT_SPAN: &str = "00f067aa0ba902b7";

const POLICY: &str = "
apiVersion: sluice.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: checkout, namespace: shop}
spec:
  selector: {matchLabels: {app: a}}
  limits:
  - name: per-client
    key: {parts: [{header: {name: x-client}}]}
    rates: [{requests: 2, per: 1h}]
  - name: smooth
    matches: [{path: {exact: /smooth}}]
    rates: [{requests: 20, per: 1m}]
    algorithm: {leakyBucket: {maxWait: 10s}}
";

/// Starts an application that answers with the `traceparent` and `tracestate` that it received, or breaks its response off.
async fn application() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                let (mut head, mut line) = (String::new(), String::new());
                while stream.read_line(&mut line).await.is_ok_and(|size| size > 2) {
                    head += &line;
                    line.clear();
                }
                let header = |name: &str| {
                    let value = head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
                    value.unwrap_or("none").to_owned()
                };
                let body = format!("{} {}", header("traceparent"), header("tracestate"));
                if head.starts_with("GET /silent ") {
                    // Until the client leaves.
                    let _ = stream.read_line(&mut line).await;
                    return;
                }
                let missing = if head.starts_with("GET /broken ") { 10 } else { 0 };
                let response = format!(
                    "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len() + missing
                );
                let _ = stream.get_mut().write_all(response.as_bytes()).await;
            });
        }
    });
    address
}

/// A collector and `sluice run`.
struct Traced {
    collector: Option<Collector>,
    collector_port: u16,
    sluice: Process,
    address: String,
    admin: String,
    directory: TempDir,
}

impl Traced {
    async fn start(more_arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let policy = directory.path().join("policy.yaml");
        std::fs::write(&policy, POLICY).unwrap();
        let [port, admin, collector_port] = [(); 3].map(|()| free_port());
        let mut arguments = vec![
            "run".to_owned(),
            format!("--policy={}", policy.display()),
            format!("--upstream=http://{}", application().await),
            format!("--listen=127.0.0.1:{port}"),
            format!("--admin=127.0.0.1:{admin}"),
            format!("--trace-collector=http://127.0.0.1:{collector_port}"),
        ];
        arguments.extend(more_arguments.iter().map(|&argument| argument.to_owned()));
        let attributes = [("OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=checkout-1".to_owned())];
        let log = directory.path().join("sluice.log");
        let sluice = Process::start(&binary("sluice"), &arguments, &attributes, &log, "TERM");
        let (address, admin) = (format!("127.0.0.1:{port}"), format!("127.0.0.1:{admin}"));
        let collector = Some(Collector::start(collector_port).await);
        let mut this = Self { collector, collector_port, sluice, address, admin, directory };
        until("sluice listens", async || {
            assert!(this.sluice.is_running(), "{}", this.sluice.output());
            (get(&this.admin, "/readyz", &[]).await.status == 200).then_some(())
        })
        .await;
        this
    }

    /// Sends a request of a sampled trace, which ends in this number.
    async fn get(&self, path: &str, client: &str, trace: u32) -> Response {
        let parent = format!("00-{}-{CLIENT_SPAN}-01", trace_id(trace));
        get(&self.address, path, &[("x-client", client), ("traceparent", &parent), ("tracestate", "a=b")])
            .await
    }

    /// Waits for a number of spans of a trace, and returns that of the request and the others.
    async fn spans(&self, trace: &str, count: usize) -> (Span, Vec<Span>) {
        let collector = self.collector.as_ref().unwrap();
        let spans = until("the collector has the spans", async || {
            let of_trace = collector.spans_of(trace);
            (of_trace.len() >= count).then_some(of_trace)
        })
        .await;
        assert_eq!(spans.len(), count, "{spans:#?}");
        let (mut request, parts): (Vec<_>, _) =
            spans.into_iter().partition(|span| span.field("Kind") == "Server");
        assert_eq!(request.len(), 1, "{request:#?}");
        (request.remove(0), parts)
    }

    async fn metric(&self, name: &str) -> u64 {
        let text = get(&self.admin, "/metrics", &[]).await.body;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).unwrap();
        value.parse().unwrap()
    }

    async fn spans_with(&self, outcome: &str) -> u64 {
        self.metric(&format!("sluice_spans_total{{outcome=\"{outcome}\"}}")).await
    }
}

fn trace_id(number: u32) -> String {
    format!("4bf92f3577b34da6a3ce929d{number:08x}")
}

#[tokio::test]
async fn a_collector_receives_the_spans_of_sampled_requests() {
    let traced = Traced::start(&[]).await;

    // Admitted: the application continues the trace.
    let response = traced.get("/orders/5?card=secret", "alice", 1).await;
    assert_eq!(response.status, 200);
    let (span, parts) = traced.spans(&trace_id(1), 2).await;
    assert_eq!(response.body, format!("00-{}-{}-01 a=b", trace_id(1), span.field("ID")));
    assert_eq!((span.field("Name"), span.field("Parent ID")), ("GET", CLIENT_SPAN));
    assert_eq!(span.field("Status code"), "Unset");
    for (name, value) in [
        ("http.request.method", "Str(GET)"),
        ("http.response.status_code", "Int(200)"),
        ("network.protocol.version", "Str(1.1)"),
        ("sluice.decision", "Str(admitted)"),
    ] {
        assert_eq!(span.attribute(name), Some(value), "{name}");
    }
    for (name, value) in [("service.name", "Str(sluice-sidecar)"), ("k8s.pod.name", "Str(checkout-1)")] {
        assert_eq!(span.resource.get(name).map(String::as_str), Some(value), "{:?}", span.resource);
    }
    assert_eq!((parts[0].field("Name"), parts[0].field("Parent ID")), ("sluice.decide", span.field("ID")));

    // Denied: the span names the limit.
    assert_eq!(traced.get("/", "alice", 2).await.status, 200);
    assert_eq!(traced.get("/", "alice", 3).await.status, 429);
    let (span, _) = traced.spans(&trace_id(3), 2).await;
    for (name, value) in [
        ("http.response.status_code", "Int(429)"),
        ("sluice.decision", "Str(denied)"),
        ("sluice.policy_namespace", "Str(shop)"),
        ("sluice.policy", "Str(checkout)"),
        ("sluice.limit", "Str(per-client)"),
    ] {
        assert_eq!(span.attribute(name), Some(value), "{name}");
    }

    // The delay of a leaky bucket is a part of its own.
    assert_eq!(traced.get("/smooth", "bob", 4).await.status, 200);
    assert_eq!(traced.get("/smooth", "bob", 5).await.status, 200);
    let (_, parts) = traced.spans(&trace_id(5), 3).await;
    let names: Vec<_> = parts.iter().map(|part| part.field("Name")).collect();
    assert!(names.contains(&"sluice.delay"), "{names:?}");

    // Broken off.
    assert_eq!(traced.get("/broken", "carol", 6).await.status, 200);
    let (span, _) = traced.spans(&trace_id(6), 2).await;
    assert_eq!(
        (span.attribute("error.type"), span.field("Status code")),
        (Some("Str(response_cut)"), "Error")
    );

    // The client leaves before there is a response.
    let parent = format!("00-{}-{CLIENT_SPAN}-01", trace_id(10));
    let mut leaver = TcpStream::connect(&traced.address).await.unwrap();
    let request =
        format!("GET /silent HTTP/1.1\r\nhost: a\r\nx-client: frank\r\ntraceparent: {parent}\r\n\r\n");
    leaver.write_all(request.as_bytes()).await.unwrap();
    until("the request is decided", async || {
        (!traced.collector.as_ref().unwrap().spans_of(&trace_id(10)).is_empty()).then_some(())
    })
    .await;
    drop(leaver);
    let (span, _) = traced.spans(&trace_id(10), 2).await;
    assert_eq!(span.attribute("error.type"), Some("Str(no_response)"));
    assert_eq!(span.attribute("http.response.status_code"), None);

    // Not sampled, without a trace, with two, and malformed: the headers are forwarded as they are.
    let unsampled = format!("00-{}-{CLIENT_SPAN}-00", trace_id(7));
    let response = get(&traced.address, "/", &[("x-client", "dave"), ("traceparent", &unsampled)]).await;
    assert_eq!(response.body, format!("{unsampled} none"));
    assert_eq!(get(&traced.address, "/", &[("x-client", "dave")]).await.body, "none none");
    let malformed = [("x-client", "erin"), ("traceparent", "00-zz-zz-01"), ("tracestate", "a=b")];
    assert_eq!(get(&traced.address, "/", &malformed).await.body, "00-zz-zz-01 a=b");
    let sampled = format!("00-{}-{CLIENT_SPAN}-01", trace_id(8));
    let two = [("x-client", "erin"), ("traceparent", sampled.as_str()), ("traceparent", sampled.as_str())];
    assert_eq!(get(&traced.address, "/", &two).await.body, format!("{sampled} none"));

    // Clients cannot invent names of spans.
    let parent = format!("00-{}-{CLIENT_SPAN}-01", trace_id(9));
    let request =
        format!("INVENTED / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntraceparent: {parent}\r\n\r\n");
    assert_eq!(send(&traced.address, request.as_bytes()).await.status, 200);
    let (span, _) = traced.spans(&trace_id(9), 2).await;
    assert_eq!((span.field("Name"), span.attribute("http.request.method")), ("HTTP", Some("Str(_OTHER)")));

    let log = traced.collector.as_ref().unwrap().log();
    for absent in ["secret", "orders", "alice", &trace_id(7), &trace_id(8)] {
        assert!(!log.contains(absent), "{absent}");
    }
    for outcome in ["failed", "dropped"] {
        assert_eq!(traced.spans_with(outcome).await, 0, "{outcome}");
    }
    assert_eq!(traced.metric("sluice_requests_without_spans_total").await, 0);
}

#[tokio::test]
async fn requests_without_a_trace_begin_one_and_are_served_without_the_collector() {
    let mut traced = Traced::start(&["--trace-ratio=1"]).await;
    let new = get(&traced.address, "/", &[("x-client", "alice"), ("tracestate", "a=b")]).await;
    let parts: Vec<_> = new.body.split(['-', ' ']).collect();
    let ["00", trace, span, "01", "none"] = parts[..] else { panic!("{}", new.body) };
    let (request, _) = traced.spans(trace, 2).await;
    assert_eq!((request.field("ID"), request.field("Parent ID")), (span, ""));

    traced.collector = None;
    assert_eq!(traced.get("/", "bob", 1).await.status, 200);
    until("the spans have failed", async || (traced.spans_with("failed").await > 0).then_some(())).await;
    assert_eq!(traced.get("/", "bob", 2).await.status, 200);
    let log = || std::fs::read_to_string(traced.directory.path().join("sluice.log")).unwrap();
    assert_eq!(log().matches("cannot send spans to the collector").count(), 1, "{}", log());

    traced.collector = Some(Collector::start(traced.collector_port).await);
    traced.get("/", "carol", 3).await;
    traced.spans(&trace_id(3), 2).await;
    let log = || std::fs::read_to_string(traced.directory.path().join("sluice.log")).unwrap();
    until("the recovery is logged", async || log().contains("takes spans again").then_some(())).await;

    // However many clients ask for spans, a pod records a bounded number.
    for _ in 0..10 {
        let requests = (0..100).map(|_| traced.get("/", "dave", 4));
        futures::future::join_all(requests).await;
        if traced.metric("sluice_requests_without_spans_total").await > 0 {
            return;
        }
    }
    panic!("all requests had spans");
}
