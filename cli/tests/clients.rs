//! `sluice top`, `peek`, `explain` and `status`, as they ask `sluice run`. The tests on a real node ask pods.

mod service;

use std::net::SocketAddr;

use serde_json::Value;
use tempfile::NamedTempFile;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::process::{Run, get_with};

/// Windows so long that none ends.
const POLICY: &str = "
apiVersion: sluice.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: checkout, namespace: shop}
spec:
  selector: {matchLabels: {app: checkout}}
  limits:
  - name: per-customer
    key: {parts: [{header: {name: x-customer}, public: true}, {method: {}}]}
    rates: [{requests: 2, per: 48h}]
  - name: admin
    matches: [{path: {prefix: /admin}}]
    rates: [{requests: 3, per: 48h}]
";

/// Starts `sluice run` with this policy, and returns the address of its debug port.
async fn start() -> (Run, SocketAddr) {
    let answer = |_: &str| "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_owned();
    start_before(answer).await
}

async fn start_before(answer: fn(&str) -> String) -> (Run, SocketAddr) {
    start_with(answer, &[]).await
}

async fn start_with(answer: fn(&str) -> String, environment: &[(&str, &str)]) -> (Run, SocketAddr) {
    let (run, debug, file) = start_with_file(answer, environment).await;
    // A policy file that has gone is told.
    file.keep().unwrap();
    (run, debug)
}

async fn start_with_file(
    answer: fn(&str) -> String,
    environment: &[(&str, &str)],
) -> (Run, SocketAddr, NamedTempFile) {
    let file = NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(file.path(), POLICY).unwrap();
    let arguments = ["--store", "memory", "--debug", "127.0.0.1:0"];
    let run = Run::start_before(answer, file.path(), &arguments, environment).await;
    let debug = run.debug.unwrap();
    (run, debug, file)
}

/// Posts a body over HTTP/1.
async fn send(address: SocketAddr, path: &str, body: &str) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let length = body.len();
    let head =
        format!("POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all((head + body).as_bytes()).await.unwrap();
    stream.read_to_end(&mut Vec::new()).await.unwrap();
}

/// Runs a command, and returns whether it succeeded, its output, and its errors.
async fn sluice(arguments: &[&str]) -> (bool, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    let output = command.args(arguments).env("KUBECONFIG", "/nonexistent").output().await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

/// Runs a command that succeeds, and returns its output without repeated spaces.
async fn ask(debug: SocketAddr, arguments: &[&str]) -> String {
    let address = debug.to_string();
    let (ok, output, errors) = sluice(&[arguments, &["--address", &address]].concat()).await;
    assert!(ok && errors.is_empty(), "{output}{errors}");
    let line = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ") + "\n";
    output.lines().map(line).collect()
}

#[tokio::test]
async fn who_is_limited_what_a_client_has_left_and_what_a_request_would_meet() {
    let (run, debug) = start().await;
    assert_eq!(
        ask(debug, &["top"]).await,
        "No client was denied in the last 5 to 10 minutes, by the lists of 1 sidecar.\n"
    );
    for _ in 0..5 {
        get_with(run.address, "/", "x-customer: acme\r\n").await;
    }
    get_with(run.address, "/admin", "x-customer: bob\r\n").await;

    let top = ask(debug, &["top"]).await;
    let row = top.lines().nth(1).unwrap();
    assert!(top.starts_with("POLICY LIMIT EFFECT DENIED IN CLIENT KEY\n"), "{top}");
    assert!(row.starts_with("shop/checkout per-customer Reject 3 "), "{top}");
    assert!(row.contains(" header x-customer=acme, method=hidden "), "{top}");
    assert_eq!(
        ask(debug, &["top", "--limit", "admin"]).await,
        "No client was denied by these limits in the last 5 to 10 minutes, by the lists of 1 sidecar.\n"
    );
    let json: Value =
        serde_json::from_str(&ask(debug, &["top", "--policy", "checkout", "-o", "json"]).await).unwrap();
    let key = json["limits"][0]["clients"][0]["key"].as_str().unwrap();
    assert!(row.ends_with(key), "{top}");

    let by_values = ask(debug, &["peek", "shop/checkout", "per-customer", "acme", "GET"]).await;
    assert!(by_values.contains(&format!("key {key}\n")), "{by_values}");
    let state = "state Limit per-customer admits 2 requests per 2 days. 0 of 2 left, all free in ";
    assert!(by_values.contains(state), "{by_values}");
    // The reset may pass a second between two looks.
    let by_key = ask(debug, &["peek", "-n", "shop", "checkout", "per-customer", "--key", key]).await;
    assert!(by_key.contains(&format!("key {key}\n")) && by_key.contains(state), "{by_key}");

    let explained = ask(debug, &["explain", "-H", "x-customer: bob", "/admin/users?page=2"]).await;
    assert!(explained.contains("client header x-customer=bob, method=hidden\n"), "{explained}");
    assert!(explained.contains("1 of 2 left") && explained.contains("2 of 3 left"), "{explained}");
    assert!(explained.ends_with("\nThe request would be admitted.\n"), "{explained}");
    let explained = ask(debug, &["explain", "-H", "x-customer: acme", "/"]).await;
    assert!(
        explained.contains("shop/checkout admin\ndoes not apply: no entry of matches applies: the request does not fulfil matches[0].path\n"),
        "{explained}"
    );
    assert!(
        explained.ends_with("\nThe request would be denied by shop/checkout per-customer.\n"),
        "{explained}"
    );

    let status = ask(debug, &["status"]).await;
    assert!(status.contains(&format!("{debug} shop/checkout ")), "{status}");
    assert!(status.ends_with(" default healthy\n"), "{status}");
}

#[tokio::test]
async fn errors_say_what_is_wrong_in_a_line() {
    let (_run, debug) = start().await;
    let address = debug.to_string();
    let cases: [(&[&str], &str); 7] = [
        (&["peek", "shop/other", "l", "x"], "this pod enforces no policy shop/other"),
        (&["peek", "shop/checkout", "l", "x"], "has no limit l: its limits are per-customer, admin"),
        (
            &["peek", "shop/checkout", "per-customer", "x"],
            "has 2 parts, header x-customer, method: give a value for each",
        ),
        (
            &["peek", "shop/checkout", "admin", "x"],
            "has no parts, because all clients share one counter: give no value",
        ),
        (&["peek", "shop/checkout", "admin", "--key", "x"], "not the hash of a key"),
        (&["explain", "orders"], "does not begin with a slash"),
        (&["explain", "-H", "x-customer", "/"], "--header \"x-customer\": write NAME: VALUE"),
    ];
    for (arguments, expected) in cases {
        let (ok, output, errors) = sluice(&[arguments, &["--address", &address]].concat()).await;
        assert!(!ok && output.is_empty(), "{output}");
        assert!(errors.contains(expected) && errors.lines().count() == 1, "{arguments:?}: {errors}");
    }
    for command in [&["top"][..], &["status"], &["explain", "/"], &["peek", "p", "l"]] {
        let (ok, _, errors) = sluice(command).await;
        assert!(!ok && errors.starts_with("cannot read the kubeconfig"), "{errors}");
    }
}

#[tokio::test]
async fn a_denial_is_logged_with_what_operators_may_read() {
    let (mut run, _) = start().await;
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let headers = format!("x-customer: acme\r\ntraceparent: 00-{trace}-00f067aa0ba902b7-01\r\n");
    for path in ["/", "/", "/secret?token=1"] {
        get_with(run.address, path, &headers).await;
    }
    let line = run.logged("a request was denied").await;
    for part in [
        "policy=\"shop/checkout\" limit=\"per-customer\" client=\"header x-customer=acme, method=hidden\" key=",
        &format!("trace=\"{trace}\" left_out=0"),
    ] {
        assert!(line.contains(part), "{line}");
    }
    assert!(!line.contains("secret") && !line.contains("path="), "{line}");
    // Others, so that only the limit for this path denies.
    for customer in ["a", "b", "c", "d"] {
        get_with(run.address, "/admin/users/7", &format!("x-customer: {customer}\r\n")).await;
    }
    let line = run.logged("limit=\"admin\"").await;
    assert!(line.contains(" client=\"all clients\" ") && line.contains(" path=\"/admin\" "), "{line}");
    assert!(!line.contains("trace="), "{line}");
}

#[tokio::test]
async fn the_log_filter_of_the_documentation_leaves_out_denials_and_nothing_else() {
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operations.md")).unwrap();
    let (_, rest) = page.split_once("To leave denials out, set the [log level](install.md) `").unwrap();
    let (filter, _) = rest.split_once('`').unwrap();
    let answer = |_: &str| "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_owned();
    let (run, _) = start_with(answer, &[("SLUICE_LOG", filter)]).await;
    let mut last = String::new();
    for _ in 0..3 {
        last = get_with(run.address, "/", "x-customer: acme\r\n").await;
    }
    assert!(last.starts_with("HTTP/1.1 429 "), "{last}");
    let log = run.end().await;
    assert!(log.contains(" INFO ") && !log.contains("was denied"), "{filter}: {log}");
}

#[tokio::test]
async fn an_edit_that_is_rejected_is_told_by_status_until_the_file_is_in_force() {
    let answer = |_: &str| "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_owned();
    let (mut run, debug, file) = start_with_file(answer, &[]).await;
    let address = debug.to_string();
    let status = async || sluice(&["status", "--address", &address]).await;
    assert!(status().await.0);
    let json = async || -> Value {
        let (_, output, _) = sluice(&["status", "-o", "json", "--address", &address]).await;
        serde_json::from_str(&output).unwrap()
    };
    let well = json().await;
    assert_eq!((&well["ready"], &well["problems"]), (&true.into(), &Value::Array(Vec::new())));
    assert_eq!(well["sidecars"][0]["policy"], "shop/checkout", "{well}");
    std::fs::write(file.path(), POLICY.replace("requests: 2", "requests: many")).unwrap();
    run.logged("edit rejected").await;
    let rejected = json().await;
    assert_eq!(rejected["ready"], false);
    assert!(rejected["problems"][0].as_str().unwrap().contains("an edit was rejected"), "{rejected}");
    let (ok, output, _) = status().await;
    assert!(!ok && output.contains("healthy"), "{output}");
    for part in
        [" has differed from what is in force since 2", "an edit was rejected", "yaml:10: ", "requests"]
    {
        assert!(output.contains(part), "{part}: {output}");
    }
    std::fs::write(file.path(), POLICY).unwrap();
    run.logged("policies applied").await;
    assert!(status().await.0);
}

#[tokio::test]
async fn requests_that_the_application_does_not_answer_are_logged_with_their_trace() {
    let trace = |n: u8| format!("4bf92f3577b34da6a3ce929d0e0e47{n:02x}");
    let header = |n| format!("traceparent: 00-{}-00f067aa0ba902b7-01\r\n", trace(n));
    let (mut run, _) = start_before(|_| "no HTTP\r\n\r\n".to_owned()).await;
    let answer = get_with(run.address, "/secret?token=1", &header(1)).await;
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    let line = run.logged("the application sent no response").await;
    for part in [" WARN ", "upstream=", "error=", &format!("trace=\"{}\" left_out=0", trace(1))] {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert!(!line.contains("secret"), "{line}");

    let (mut run, _) = start().await;
    run.end_application().await;
    for headers in [&header(2), ""] {
        let answer = get_with(run.address, "/secret?token=1", headers).await;
        assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    }
    let line = run.logged("cannot connect to the application").await;
    for part in [" WARN ", "upstream=", "error=", &format!("trace=\"{}\" left_out=0", trace(2))] {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert!(!line.contains("secret"), "{line}");
    let line = run.logged("cannot connect to the application").await;
    assert!(!line.contains("trace="), "the request had none: {line}");
}
