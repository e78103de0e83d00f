//! Runs kubectl, Helm and other programs in the repository's root directory.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use crate::process::repository_root;

/// Runs a program with `input` on its standard input. Returns whether it succeeded, and its output including
/// errors.
///
/// # Panics
/// When the program cannot be started.
#[must_use]
pub fn run(program: &str, arguments: &[&str], input: &str) -> (bool, String) {
    let mut child = Command::new(program)
        .args(arguments)
        .current_dir(repository_root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| {
            panic!("cannot start {program}: {error}. Is a node running? See `make e2e`.")
        });
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("the program reads its input");
    let Output { status, stdout, stderr } = child.wait_with_output().expect("the program ends");
    let text = String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr);
    eprintln!("$ {program} {}\n{text}", arguments.join(" "));
    (status.success(), text)
}

/// Runs kubectl and returns its output.
///
/// # Panics
/// When it fails.
pub fn kubectl(arguments: &str) -> String {
    let (ok, text) = run("kubectl", &arguments.split(' ').collect::<Vec<_>>(), "");
    assert!(ok, "kubectl {arguments}: {text}");
    text
}

/// Reports whether sidecars are native ones here: Services see their ports from Kubernetes 1.33 on. Before, the sidecar is an
/// ordinary container, and pods of Jobs have none.
///
/// # Panics
/// When the API server does not tell its version.
#[must_use]
pub fn has_native_sidecars() -> bool {
    let version: serde_json::Value =
        serde_json::from_str(&kubectl("get --raw /version")).expect("a version as JSON");
    let minor = version["minor"].as_str().unwrap_or_default().trim_end_matches('+');
    minor.parse::<u32>().expect("a number") >= 33
}

/// Applies manifests. Returns whether the API server accepted them, and kubectl's output.
#[must_use]
pub fn try_apply(manifests: &str) -> (bool, String) {
    run("kubectl", &["apply", "-f", "-"], manifests)
}

/// Applies manifests.
///
/// # Panics
/// When the API server rejects them.
pub fn apply(manifests: &str) {
    let (ok, text) = try_apply(manifests);
    assert!(ok, "{text}");
}
