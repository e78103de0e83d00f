//! Services: whether one leads traffic past the sidecars is theirs to say.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt as _;
use kube::api::Api;
use kube::runtime::watcher;

use crate::cluster::follow::{Change, follow};

/// A Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// The labels of its pods; without any it selects none.
    pub selector: BTreeMap<String, String>,
    /// Its ports.
    pub ports: Vec<ServicePort>,
}

/// A port of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePort {
    /// Its name, if it has one.
    pub name: Option<String>,
    /// Its number.
    pub port: i32,
    /// Where it leads: the name or the number of a pod's port.
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
    /// Follows the watch; says the namespace of every change.
    pub async fn watch(&self, client: kube::Client, mut changed: impl FnMut(Option<&str>) + Send) {
        let api: Api<core::Service> = Api::all(client);
        follow(watcher::watcher(api, watcher::Config::default()), |change| match change {
            Change::Applied(object) => {
                let namespace = object.namespace().unwrap_or_default();
                let service = Arc::new(read(&object));
                let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
                let old =
                    table.entry(namespace.clone()).or_default().insert(service.name.clone(), service.clone());
                drop(table);
                if old.as_ref() != Some(&service) {
                    changed(Some(&namespace));
                }
            }
            Change::Gone { namespace, name, .. } => {
                let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
                if let Some(services) = table.get_mut(&namespace) {
                    services.remove(&name);
                }
                drop(table);
                changed(Some(&namespace));
            }
            Change::Synced => changed(None),
        })
        .await;
    }

    /// The Services of a namespace, by name.
    #[must_use]
    pub fn of(&self, namespace: &str) -> Vec<Arc<Service>> {
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
                target: port.target_port.unwrap_or(IntOrString::Int(port.port)),
                name: port.name,
                port: port.port,
            })
            .collect(),
    }
}
