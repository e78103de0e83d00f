//! Clients by templates of paths and by expressions in `examples/path-keys.yaml`, as `sluice run` tells them apart.

use std::path::Path;

use crate::process::{Run, get_with};

/// Starts the example, with windows so long that none ends.
async fn start() -> Run {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/path-keys.yaml");
    let text = std::fs::read_to_string(example).unwrap().replace("per: 1m", "per: 24h");
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(file.path(), text).unwrap();
    Run::start(file.path(), &["--store", "memory"]).await
}

/// Sends requests for these paths. Returns the limit that denies each, or nothing.
async fn denied_by(run: &Run, paths: &[&str], header: &str) -> Vec<String> {
    let mut all = Vec::new();
    for path in paths {
        let response = get_with(run.address, path, header).await;
        let by = response.split("\"violated-policies\":[\"").nth(1).and_then(|rest| rest.split('"').next());
        all.push(by.unwrap_or_default().to_owned());
    }
    all
}

#[tokio::test]
async fn each_tenant_has_its_counter_and_so_has_each_route() {
    let run = start().await;
    let acme = [
        "/tenants/acme/orders",
        "/tenants/ACME/orders/1",
        "/tenants//acme/orders/2/",
        "/tenants/%61cme/orders",
    ];
    assert_eq!(denied_by(&run, &acme, "").await, ["", "", "", "per-tenant"]);
    let others = [
        "/tenants/b/orders/1",
        "/tenants/c/orders/1",
        "/tenants/d/orders/1",
        "/tenants/e/orders/1",
        "/tenants/f/orders/1",
    ];
    assert_eq!(denied_by(&run, &others, "").await, ["", "", "", "", ""]);
    // Two of acme, and these five.
    assert_eq!(denied_by(&run, &["/tenants/g/orders/1", "/tenants/g/orders"], "").await, ["per-route", ""]);
    // No template: neither limit applies.
    assert_eq!(
        denied_by(&run, &["/tenants/acme", "/tenants/acme/orders/1/items", "/"], "").await,
        ["", "", ""]
    );
}

#[tokio::test]
async fn an_expression_tells_clients_apart() {
    let run = start().await;
    let twice = ["/", "/", "/"];
    assert_eq!(denied_by(&run, &twice, "x-stage: test\r\n").await, ["", "", "per-stage"]);
    assert_eq!(denied_by(&run, &twice[..1], "x-env: TEST\r\n").await, ["per-stage"], "one client");
    assert_eq!(denied_by(&run, &twice, "x-env: other\r\n").await, ["", "", "per-stage"]);
    assert_eq!(denied_by(&run, &twice, "").await, ["", "", ""], "an empty text is missing");
    let repeated = "x-env: a\r\nx-env: b\r\n";
    assert_eq!(denied_by(&run, &twice, repeated).await, ["", "", "per-stage"], "an error leaves no limit");
}
