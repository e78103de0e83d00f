//! Conformance of HTTP/2, by h2spec. `SLUICE_H2SPEC` is its path, as tests/node/h2spec.sh prints it.

use tokio::process::Command;

use crate::support::*;

#[tokio::test]
async fn all_tests_of_h2spec_pass() {
    let Some(h2spec) = std::env::var_os("SLUICE_H2SPEC").filter(|path| !path.is_empty()) else {
        println!("skipped: SLUICE_H2SPEC is not set");
        return;
    };
    let sidecar = sidecar_with(responding(1024).await, &[]);
    let port = sidecar.addresses()[0].port().to_string();
    let output =
        Command::new(h2spec).args(["--host", "127.0.0.1", "--port", &port, "--timeout", "10"]).output();
    let output = output.await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("145 passed, 0 skipped, 0 failed"), "{text}");
}
