//! The plans of single clients in `examples/overrides.yaml`, as `sluice check` and `sluice run` read and enforce them.

use std::path::Path;
use std::process::Command;

use tempfile::NamedTempFile;

use crate::process::{Run, SLUICE, get_with};

/// Returns the example. Its shortest windows are so long that none ends.
fn example() -> String {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/overrides.yaml");
    std::fs::read_to_string(example).unwrap().replace("per: 1m", "per: 24h")
}

fn file(text: &str) -> NamedTempFile {
    let file = NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

async fn status(run: &Run, customer: &str) -> String {
    let response = get_with(run.address, "/", &format!("x-api-key: {customer}\r\n")).await;
    response.split(' ').nth(1).unwrap().to_owned()
}

/// Sends requests until one is denied. Returns how many were admitted, at most 30.
async fn admitted(run: &Run, customer: &str) -> usize {
    for n in 0..30 {
        match status(run, customer).await.as_str() {
            "200" => {}
            "429" => return n,
            other => panic!("{other}"),
        }
    }
    30
}

/// Returns the exit status of `sluice check` and what it prints.
fn check(text: &str) -> (bool, String) {
    let file = file(text);
    let output = Command::new(SLUICE).arg("check").arg(file.path()).output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8(printed).unwrap().replace(&file.path().display().to_string(), "FILE");
    (output.status.success(), printed)
}

#[tokio::test]
async fn each_client_has_the_plan_of_its_line_and_others_have_the_base_rate() {
    let file = file(&example());
    let run = Run::start(file.path(), &["--store", "memory"]).await;
    for (customer, expected) in [
        ("acme", 20),
        ("initech", 3),
        ("hooli", 30),
        ("globex", 5),
        ("pied-piper", 20),
        ("mallory", 0),
        ("anyone", 5),
        ("", 5),
        ("# This ended long ago.", 5),
    ] {
        assert_eq!(admitted(&run, customer).await, expected, "{customer}");
    }
    let denied = get_with(run.address, "/", "x-api-key: acme\r\n").await;
    assert!(denied.contains("Limit per-customer (plan large) admits 20 requests per day. "), "{denied}");
    let denied = get_with(run.address, "/", "x-api-key: mallory\r\n").await;
    assert!(denied.contains("Limit per-customer admits no such requests."), "{denied}");
}

#[tokio::test]
async fn a_changed_line_takes_effect_and_resets_nothing_and_a_bad_line_changes_nothing() {
    let file = file(&example());
    let mut run = Run::start(file.path(), &["--store", "memory"]).await;
    run.logged("policies applied").await;
    assert_eq!(admitted(&run, "initech").await, 3);
    std::fs::write(file.path(), example().replace("initech: small", "initech: large")).unwrap();
    run.logged("policies applied").await;
    assert_eq!(admitted(&run, "initech").await, 17, "20 less those that were counted before");
    std::fs::write(file.path(), example().replace("initech: small", "initech: enormous")).unwrap();
    let line = run.logged("names a plan").await;
    assert!(line.contains("line 3 in `plans` of the ConfigMap customers"), "{line}");
    assert_eq!(admitted(&run, "mallory").await, 0, "the last good lines hold");
}

#[test]
fn lines_are_checked_with_their_policy() {
    let (success, printed) = check(&example());
    assert!(success && !printed.contains("warning"), "{printed}");
    assert!(
        printed.contains("per-customer 5/24h by header x-api-key [large 20/24h, small 3/24h]"),
        "{printed}"
    );
    let (success, printed) = check(&example().replace("mallory: deny", "mallory = deny"));
    let expected = "FILE:44: data.plans: line 10 in `plans` of the ConfigMap customers has no plan: write `CLIENT: PLAN`, \
                    with a space after the colon\n";
    assert!(!success && printed == expected, "{printed}");
    let (policy, _) = example().split_once("---").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    let (success, printed) = check(&policy);
    let expected = "FILE:20: warning: spec.limits[0].overridesFrom: `plans` of the ConfigMap customers is not in this file, \
                    so it is not checked\n";
    assert!(success && printed.starts_with(expected), "{printed}");
}

#[tokio::test]
async fn a_hundred_thousand_clients_have_a_line_each() {
    let lines: String =
        (0..100_000).map(|n| format!("    tenant-{n}: {}\n", ["large", "small"][n % 2])).collect();
    let run_file = file(&example().replace("    acme: large\n", &lines));
    let run = Run::start(run_file.path(), &["--store", "memory"]).await;
    assert_eq!(admitted(&run, "tenant-77776").await, 20);
    assert_eq!(admitted(&run, "tenant-77777").await, 3);
    assert_eq!(admitted(&run, "tenant-100000").await, 5);
}
