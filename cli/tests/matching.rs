//! The conditions of `examples/matching.yaml`, as `sluice run` enforces them.

use std::path::Path;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::process::{Run, get_with};

/// Sends a request and returns its status.
async fn status(run: &Run, method: &str, target: &str, headers: &str) -> u16 {
    let mut stream = TcpStream::connect(run.address).await.unwrap();
    let host = if headers.contains("\r\nhost: ") { "" } else { "host: a\r\n" };
    let request = format!("{method} {target} HTTP/1.1\r\n{host}{headers}connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    response.split(' ').nth(1).unwrap().parse().unwrap()
}

/// Starts the example, which trusts the tests as its load balancer. The windows are so long that none ends.
async fn start() -> Run {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/matching.yaml");
    let text = std::fs::read_to_string(example).unwrap();
    let text = text.replace("10.20.30.0/28", "127.0.0.1/32").replace("per: 1m", "per: 1h");
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(file.path(), text).unwrap();
    Run::start(file.path(), &["--store", "memory"]).await
}

/// Sends requests of one client until one is denied. Returns how many were admitted, at most 50.
async fn admitted(run: &Run, client: u8, requests: &[(&str, &str, &str)]) -> usize {
    for n in 0..50 {
        let (method, target, headers) = requests[n % requests.len()];
        let headers = format!("x-forwarded-for: 198.51.100.{client}\r\n{headers}");
        match status(run, method, target, &headers).await {
            200 => {}
            429 => return n,
            other => panic!("{method} {target}: {other}"),
        }
    }
    50
}

#[tokio::test]
async fn each_limit_counts_the_requests_that_its_conditions_name() {
    let run = start().await;
    let orders =
        [("PUT", "/v1/orders/1", ""), ("DELETE", "/v1/orders/2/", ""), ("PATCH", "/V1/orders/x;a=b?c", "")];
    assert_eq!(admitted(&run, 1, &orders).await, 3);
    assert_eq!(
        admitted(&run, 2, &[("GET", "/v1/orders/1", ""), ("PUT", "/v1/orders/1/items", "")]).await,
        20
    );
    let exports =
        [("GET", "/v1/reports/7?format=csv", ""), ("GET", "/v1/reports?range=year&%66ormat=%63sv", "")];
    assert_eq!(admitted(&run, 3, &exports).await, 2);
    let small = [
        ("GET", "/v1/reports?format=csv&range=day", ""),
        ("GET", "/v1/reports?format=html", ""),
        ("GET", "/v1/reports", ""),
    ];
    assert_eq!(admitted(&run, 4, &small).await, 20);
    assert_eq!(
        admitted(&run, 5, &[("GET", "/catalogue/1", ""), ("GET", "/catalogue", "cookie: a=b\r\n")]).await,
        4
    );
    assert_eq!(admitted(&run, 6, &[("GET", "/catalogue/1", "cookie: a=b; session=x\r\n")]).await, 20);
    let payments = [
        ("POST", "/shop.Checkout/Pay", "content-type: application/grpc-web\r\n"),
        ("POST", "/shop.Checkout/Pay", "content-type: application/json\r\n"),
    ];
    assert_eq!(admitted(&run, 7, &payments).await, 1);
    assert_eq!(
        admitted(&run, 8, &[("POST", "/shop.Checkout/Refund", ""), ("POST", "/shop.CheckoutX/Pay", "")])
            .await,
        20
    );
}

#[tokio::test]
async fn hosts_below_a_name_are_counted_together_and_the_name_itself_is_not() {
    let run = start().await;
    let partners =
        [("GET", "/", "host: a.partners.example\r\n"), ("GET", "/", "host: B.C.Partners.example.:80\r\n")];
    assert_eq!(admitted(&run, 1, &partners).await, 5);
    let others = [("GET", "/", "host: partners.example\r\n"), ("GET", "/", "host: xpartners.example\r\n")];
    assert_eq!(admitted(&run, 2, &others).await, 20);
}

#[tokio::test]
async fn exempt_requests_are_not_counted_and_nothing_else_passes_as_exempt() {
    let run = start().await;
    assert_eq!(admitted(&run, 1, &[("GET", "/healthz", "")]).await, 50);
    let disguised = [
        ("POST", "/healthz", ""),
        ("HEAD", "/healthz", ""),
        ("GET", "/healthz/../pay", ""),
        ("GET", "/pay/..%2fhealthz", ""),
        ("GET", "/pay/%2e%2e/healthz", ""),
    ];
    assert_eq!(admitted(&run, 2, &disguised).await, 20);
    for _ in 0..50 {
        let response = get_with(run.address, "/", "x-forwarded-for: 203.0.113.9\r\n").await;
        assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    }
    // A client that claims to be in the office is not: the proxy appends the address that it sees.
    let claims = "x-forwarded-for: 203.0.113.9, 198.51.100.3\r\n";
    let mut admitted = 0;
    while status(&run, "GET", "/", claims).await == 200 {
        admitted += 1;
    }
    assert_eq!(admitted, 20);
}

/// A client that sends many parameters must not choose which limits are left out.
#[tokio::test]
async fn a_request_that_meets_too_many_limits_is_refused() {
    let limit = |n: usize| {
        format!(
            "  - name: l{n}\n    matches: [{{query: [{{name: t{n}, exact: x}}]}}]\n    rates: [{{requests: 100, per: 24h}}]\n"
        )
    };
    let policy = |name: &str, limits: std::ops::Range<usize>| {
        let limits: String = limits.map(limit).collect();
        format!(
            "apiVersion: sluice.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {{name: {name}}}\nspec:\n  limits:\n{limits}"
        )
    };
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(file.path(), format!("{}---\n{}", policy("a", 0..32), policy("b", 32..40))).unwrap();
    let run = Run::start(file.path(), &["--store", "memory"]).await;
    let target = |count: usize| {
        let pairs: Vec<_> = (40 - count..40).map(|n| format!("t{n}=x")).collect();
        format!("/?{}", pairs.join("&"))
    };
    assert_eq!(status(&run, "GET", &target(32), "").await, 200);
    assert_eq!(status(&run, "GET", &target(33), "").await, 400);
    // Of a name 16 values are read.
    assert_eq!(status(&run, "GET", &format!("/?{}", "t1=y&".repeat(16)), "").await, 200);
    let metrics = get_with(run.admin, "/metrics", "").await;
    assert!(metrics.contains("sluice_refused_requests_total{reason=\"limits\"} 1"), "{metrics}");
}
