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
    let tag = ["operator.image.tag", "sidecar.image.tag"].map(|name| format!("{name}={tag}"));
    let arguments = [
        "upgrade",
        "--install",
        "sluice",
        "charts/sluice",
        "--namespace",
        SYSTEM,
        "--create-namespace",
        "--set",
        &tag[0],
        "--set",
        &tag[1],
        "--set",
        "redis.image.repository=sluice.local/redis",
        "--set",
        "redis.image.tag=test",
        // On a busy machine the default of 50 ms would leave checks to `onStoreFailure`.
        "--set",
        "redis.latencyBudget=2s",
    ];
    let (ok, text) = run("helm", &[&arguments, more_arguments].concat(), "");
    assert!(ok, "{text}");
}
