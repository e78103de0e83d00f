//! The annotation of a pod that notes what the webhook has changed in it. The API server asks the webhook again when others
//! have changed the pod after it, and nothing else tells what the pod was before.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use serde::{Deserialize, Serialize};
use sluice_crds::INJECTED_ANNOTATION;

/// Maximum length of an annotation that is read, in bytes. Those of the webhook have some hundred.
const MAX_LENGTH: usize = 4096;

/// The changes of a pod by the webhook.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Note {
    /// The names that moved to the sidecar, with the port of the application that had each.
    pub captured: BTreeMap<String, u16>,
    /// Amounts of the pod itself that include the sidecar's.
    #[serde(default)]
    pub resources: ResourceRequirements,
}

impl Note {
    /// Reads the note of a pod. One that is not the webhook's is none.
    #[must_use]
    pub fn read(pod: &Pod) -> Option<Self> {
        let text = pod.metadata.annotations.as_ref()?.get(INJECTED_ANNOTATION)?;
        (text.len() <= MAX_LENGTH).then(|| serde_json::from_str(text).ok())?
    }
}
