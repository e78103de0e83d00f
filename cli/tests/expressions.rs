//! The conditions in CEL of `examples/expressions.yaml`, as `sluice check` and `sluice run` read and enforce them.

use std::path::Path;
use std::process::Command;

use tempfile::NamedTempFile;

use crate::process::{Run, SLUICE, get_with};

/// Returns the example, which trusts the tests as its load balancer. The windows are so long that none ends.
fn example() -> String {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/expressions.yaml");
    let text = std::fs::read_to_string(example).unwrap();
    text.replace("10.20.30.0/28", "127.0.0.1/32").replace("per: 1m", "per: 24h")
}

fn file(text: &str) -> NamedTempFile {
    let file = NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

/// Sends requests of one client until one is denied. Returns how many were admitted, at most 30.
async fn admitted(run: &Run, client: u8, target: &str, headers: &str) -> usize {
    for n in 0..30 {
        let headers = format!("x-forwarded-for: 198.51.100.{client}\r\n{headers}");
        let response = get_with(run.address, target, &headers).await;
        match response.split(' ').nth(1).unwrap() {
            "200" => {}
            "429" => return n,
            other => panic!("{other}"),
        }
    }
    30
}

async fn metric(run: &Run, line: &str) -> Option<String> {
    let text = get_with(run.admin, "/metrics", "").await;
    text.lines().find_map(|found| found.strip_prefix(line)).map(|value| value.trim().to_owned())
}

#[tokio::test]
async fn conditions_select_requests_and_an_error_counts_for_the_limit() {
    let file = file(&example());
    let run = Run::start(file.path(), &["--store", "memory"]).await;
    assert_eq!(admitted(&run, 1, "/search?page=101", "").await, 2);
    assert_eq!(admitted(&run, 2, "/search?page=100", "").await, 5);
    assert_eq!(admitted(&run, 3, "/search", "").await, 5);
    assert_eq!(admitted(&run, 4, "/other?page=101", "").await, 5);
    let errors = "sluice_expression_errors_total{policy_namespace=\"default\",policy=\"expressions\",limit=\"deep-pages\"}";
    assert_eq!(metric(&run, errors).await.as_deref(), Some("0"));
    // Neither a page that is no number nor one that is named twice evades the limit.
    assert_eq!(admitted(&run, 5, "/search?page=x", "").await, 2);
    assert_eq!(admitted(&run, 6, "/search?page=1&page=101", "").await, 2);
    assert_eq!(metric(&run, errors).await.as_deref(), Some("6"));

    let internal = "x-internal: 1\r\ncookie: session=a\r\n";
    assert_eq!(admitted(&run, 7, "/", internal).await, 20);
    assert_eq!(admitted(&run, 8, "/", "x-internal: 1\r\n").await, 5);
    assert_eq!(admitted(&run, 9, "/", &format!("x-internal: 1\r\n{internal}")).await, 5, "named twice");
    // An error in the condition of a tier that admits more is no reason to admit more.
    assert_eq!(admitted(&run, 10, "/", "x-internal: 1\r\ncookie: Session=a\r\n").await, 5);
    assert_eq!(metric(&run, "sluice_panics_total").await.as_deref(), Some("0"));
}

#[test]
fn a_condition_is_checked_with_its_policy() {
    for (from, to, expected) in [
        ("> 100", "> '100'", "spec.limits[0].when: compares an int with a string"),
        (
            "request.query.page)",
            "request.querry.page)",
            "spec.limits[0].when: has an unknown name \"request.querry.page\"",
        ),
        ("request.cookies", "request.cookie", "spec.limits[1].tiers[0].when: has no list, request.headers"),
        ("== \"1\" &&", "== \"1\" &", "spec.limits[1].tiers[0].when: is not valid CEL at line 1, column 39"),
        (
            "has(request.query.page) &&",
            "request.path.matches('[') &&",
            "spec.limits[0].when: is not a valid regular expression",
        ),
    ] {
        let text = example();
        assert!(text.contains(from));
        let file = file(&text.replacen(from, to, 1));
        let output = Command::new(SLUICE).arg("check").arg(file.path()).output().unwrap();
        let printed = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && printed.contains(expected), "{expected}: {printed}");
        assert_eq!(printed.lines().count(), 1, "{printed}");
    }
}
