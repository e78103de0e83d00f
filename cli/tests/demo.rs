//! The demonstration, with its own policy and with other limits.

use std::path::Path;
use std::process::Command;

/// Runs it in an empty folder, and returns its output.
fn demo(policy: Option<&Path>) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.arg("demo").current_dir(folder.path());
    if let Some(policy) = policy {
        command.arg("--policy").arg(policy);
    }
    let done = command.output().expect("sluice starts");
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{text}\n{}", String::from_utf8_lossy(&done.stderr));
    text
}

#[test]
fn the_demo_admits_the_limit_of_its_policy() {
    let policy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/demo.yaml");
    let text = demo(Some(&policy));
    assert!(text.ends_with("5 of 6 requests were admitted.\n"), "{text}");
}

#[test]
fn the_demo_follows_the_limit_of_its_policy() {
    let original = include_str!("../../examples/demo.yaml");
    let directory = tempfile::tempdir().unwrap();
    for requests in [1, 3, 12] {
        let policy = directory.path().join(format!("{requests}.yaml"));
        let edited = original.replace("requests: 5", &format!("requests: {requests}"));
        assert_ne!(edited, original);
        std::fs::write(&policy, edited).unwrap();
        let text = demo(Some(&policy));
        assert!(text.contains(&format!("{requests} of {} requests were admitted.", requests + 1)), "{text}");
    }
}

#[test]
fn the_binary_alone_has_a_policy() {
    let text = demo(None);
    assert!(text.contains("    kind: RateLimitPolicy\n"), "{text}");
    assert!(text.ends_with("5 of 6 requests were admitted.\n"), "{text}");
}
