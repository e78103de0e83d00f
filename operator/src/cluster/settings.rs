//! The settings of the installation that take effect without a restart, in a ConfigMap.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::Api;
use kube::runtime::watcher;
use sluice_config::policy::Mode;

use crate::cluster::watch::{Change, follow};

/// Field of the ConfigMap that holds the mode of the installation: `Enforce` or `Shadow`.
const ENFORCEMENT: &str = "enforcement";

/// Watches the ConfigMap of this name and passes on the mode of the installation: once when it is known, and then
/// whenever the ConfigMap changes. Without the ConfigMap, or without the field, it is `Enforce`. A value that is
/// neither leaves the mode as it was.
pub async fn watch(
    client: kube::Client,
    namespace: &str,
    name: &str,
    mut on_change: impl FnMut(Mode) + Send,
) {
    let api: Api<ConfigMap> = Api::namespaced(client, namespace);
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut mode = Mode::Enforce;
    follow(watcher::watcher(api, config), |change| {
        match change {
            Change::Applied(object) => match mode_of(&object) {
                Ok(new) => mode = new,
                Err(value) => tracing::warn!(
                    "{ENFORCEMENT} in the ConfigMap {namespace}/{name} is {value:?} and must be Enforce or Shadow: \
                     it stays {mode:?}"
                ),
            },
            Change::Deleted { .. } => mode = Mode::Enforce,
            Change::Listed => {}
        }
        on_change(mode);
    })
    .await;
}

fn mode_of(settings: &ConfigMap) -> Result<Mode, &str> {
    match settings.data.as_ref().and_then(|data| data.get(ENFORCEMENT)).map(|value| value.trim()) {
        None | Some("Enforce") => Ok(Mode::Enforce),
        Some("Shadow") => Ok(Mode::Shadow),
        Some(other) => Err(other),
    }
}
