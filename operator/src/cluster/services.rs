//! The table of Services. Their targets decide whether traffic bypasses the sidecars.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt as _;
use kube::api::Api;
use kube::runtime::watcher;

use crate::cluster::watch::{Change, NamespaceChange, follow};

/// A Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Name of the Service.
    pub name: String,
    /// Labels of the pods that the Service selects. A Service without a selector selects no pods.
    pub selector: BTreeMap<String, String>,
    /// Ports of the Service.
    pub ports: Vec<ServicePort>,
}

/// A port of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePort {
    /// Number of the port.
    pub port: i32,
    /// Name or number of the targeted port in the pods.
    pub target: IntOrString,
}

/// Services by namespace and name.
type Table = BTreeMap<String, BTreeMap<String, Arc<Service>>>;

/// All Services.
#[derive(Clone, Default)]
pub struct Services {
    table: Arc<RwLock<Table>>,
}

impl Services {
    /// Keeps the table up to date and passes on the namespace of every change.
    pub async fn watch(&self, client: kube::Client, mut on_change: impl FnMut(NamespaceChange<'_>) + Send) {
        let api: Api<core::Service> = Api::all(client);
        follow(watcher::watcher(api, watcher::Config::default()), |change| match change {
            Change::Applied(object) => {
                let namespace = object.namespace().unwrap_or_default();
                let service = Arc::new(read(&object));
                let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
                let services = table.entry(namespace.clone()).or_default();
                let old = services.insert(service.name.clone(), service.clone());
                drop(table);
                if old.as_ref() != Some(&service) {
                    on_change(NamespaceChange::Changed(&namespace));
                }
            }
            Change::Deleted { namespace, name, .. } => {
                let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
                if let Some(services) = table.get_mut(&namespace) {
                    services.remove(&name);
                }
                drop(table);
                on_change(NamespaceChange::Changed(&namespace));
            }
            Change::Listed => on_change(NamespaceChange::Listed),
        })
        .await;
    }

    /// Returns the Services of a namespace, ordered by name.
    #[must_use]
    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<Service>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.get(namespace).into_iter().flat_map(BTreeMap::values).cloned().collect()
    }
}

fn read(object: &core::Service) -> Service {
    let spec = object.spec.clone().unwrap_or_default();
    Service {
        name: object.name_any(),
        selector: spec.selector.unwrap_or_default(),
        ports: spec
            .ports
            .unwrap_or_default()
            .into_iter()
            .map(|port| ServicePort {
                port: port.port,
                target: port.target_port.unwrap_or(IntOrString::Int(port.port)),
            })
            .collect(),
    }
}
