//! The service account by which the pods of the service are known.

use std::collections::BTreeMap;

use sluice_crds::SERVICE_LABEL;

/// The service account of the installation's service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceAccount {
    /// Namespace of its pods, which is the operator's.
    pub namespace: String,
    /// Name of the ServiceAccount, and of the Service.
    pub name: String,
}

impl ServiceAccount {
    /// Reports whether a pod of a namespace with these labels is one of the service's.
    #[must_use]
    pub fn has_pod(&self, namespace: &str, labels: &BTreeMap<String, String>) -> bool {
        self.namespace == namespace
            && labels.get(SERVICE_LABEL.0).is_some_and(|value| value == SERVICE_LABEL.1)
    }
}
