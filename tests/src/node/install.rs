//! Installs Sluice on the node as the README describes.

use crate::node::command::run;

/// Namespace of the installation.
pub const SYSTEM: &str = "sluice-system";

/// Installs Sluice from the images that were loaded onto the node. Later calls in the same process do
/// nothing.
///
/// # Panics
/// When the installation does not become ready.
pub fn install() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| upgrade(&["--wait", "--timeout", "5m"]));
}

/// Installs or upgrades Sluice with further arguments for Helm, such as values.
///
/// # Panics
/// When Helm fails.
pub fn upgrade(more_arguments: &[&str]) {
    let tag = std::env::var("SLUICE_E2E_TAG").expect("SLUICE_E2E_TAG: run `make e2e`");
    upgrade_to("charts/sluice", &tag, more_arguments);
}

/// Installs the previous version: its chart, with images that have its tag.
///
/// # Panics
/// When Helm fails.
pub fn install_previous() {
    let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name}: run `make e2e`"));
    let (chart, tag) = (variable("SLUICE_E2E_PREVIOUS_CHART"), variable("SLUICE_E2E_PREVIOUS_TAG"));
    upgrade_to(&chart, &tag, &["--wait", "--timeout", "5m"]);
}

fn upgrade_to(chart: &str, tag: &str, more_arguments: &[&str]) {
    let tag =
        ["operator.image.tag", "sidecar.image.tag", "service.image.tag"].map(|name| format!("{name}={tag}"));
    let arguments = [
        "upgrade",
        "--install",
        "sluice",
        chart,
        "--namespace",
        SYSTEM,
        "--create-namespace",
        "--set",
        &tag[0],
        "--set",
        &tag[1],
        "--set",
        &tag[2],
        "--set",
        "redis.image.repository=sluice.local/redis",
        "--set",
        "redis.image.tag=test",
        // On a busy machine the default of 50 ms would leave checks to `onStoreFailure`.
        "--set",
        "redis.latencyBudget=10s",
        // The counters are on the node that no test drains or kills.
        "--set",
        "redis.nodeSelector.kubernetes\\.io/hostname=node1",
    ];
    let (ok, text) = run("helm", &[&arguments, more_arguments].concat(), "");
    assert!(ok, "{text}");
}
