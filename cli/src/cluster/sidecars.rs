//! Finds the sidecars that a command asks.

use std::fmt::{self, Display, Formatter};
use std::net::SocketAddr;

use anyhow::{Context as _, Result, bail};
use futures::StreamExt as _;
use futures::stream;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kube::Api;
use kube::api::ListParams;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sluice_crds::{SERVICE_LABEL, SIDECAR_CONTAINER};
use sluice_host::logging::told;

use super::args::SidecarArgs;
use super::ask::{ask_address, ask_pod};
use crate::output::printable;

/// Number of pods that are asked at the same time.
const MAX_CONCURRENT: usize = 16;

/// The sidecars that a command asks.
pub(crate) enum Sidecars {
    /// Those of pods, by their names.
    Pods(Box<Api<Pod>>, Vec<String>),
    /// The one with this debug port.
    Address(SocketAddr),
}

/// The answer of one sidecar.
pub(crate) struct Answer<T> {
    /// The pod, or the address.
    pub(crate) source: String,
    pub(crate) result: Result<T>,
}

impl Sidecars {
    /// Finds the sidecars of the pods that run, and fails if there are none.
    pub(crate) async fn find(args: &SidecarArgs) -> Result<Self> {
        if let Some(address) = args.address {
            return Ok(Self::Address(address));
        }
        let (client, namespace) = args.cluster.connect().await?;
        let pods = Api::<Pod>::namespaced(client, &namespace);
        if let Some(name) = &args.pod {
            let name = name.strip_prefix("pod/").unwrap_or(name);
            return Ok(Self::Pods(Box::new(pods), vec![name.to_owned()]));
        }
        let mut params = ListParams::default();
        if let Some(selector) = &args.selector {
            params = params.labels(selector);
        }
        let found = pods.list(&params).await;
        let found = found.with_context(|| format!("cannot list the pods of namespace {namespace}"))?;
        let running = found.items.iter().filter(|pod| runs(pod) && (has_sidecar(pod) || is_of_service(pod)));
        let names: Vec<_> = running.filter_map(|pod| pod.metadata.name.clone()).collect();
        if names.is_empty() {
            let labels = args.selector.as_ref().map(|selector| format!(" with the labels {selector}"));
            let labels = labels.unwrap_or_default();
            bail!(
                "no running pod{labels} in namespace {namespace} has a sidecar. To add sidecars, run kubectl label namespace \
                 {namespace} sluice.dev/injection=enabled, and restart the workloads. For another namespace, pass -n"
            );
        }
        Ok(Self::Pods(Box::new(pods), names))
    }

    /// Asks all sidecars, several at a time, and returns the answers in the order of the names.
    pub(crate) async fn ask<Q, A>(&self, path: &str, question: Option<&Q>) -> Vec<Answer<A>>
    where
        Q: Serialize + Sync,
        A: DeserializeOwned,
    {
        match self {
            Self::Address(address) => {
                let result = ask_address(*address, path, question).await;
                vec![Answer { source: address.to_string(), result }]
            }
            Self::Pods(pods, names) => {
                let asked = names.iter().map(async |name| Answer {
                    source: format!("pod {name}"),
                    result: ask_pod(pods, name, path, question).await,
                });
                stream::iter(asked).buffered(MAX_CONCURRENT).collect().await
            }
        }
    }
}

/// The pods that did not answer, one in a line.
pub(crate) struct Silent<'a, T>(pub(crate) &'a [Answer<T>]);

impl<T> Display for Silent<'_, T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for answer in self.0 {
            if let Err(error) = &answer.result {
                writeln!(f, "{}: {}", answer.source, printable(&told(error.as_ref())))?;
            }
        }
        Ok(())
    }
}

fn runs(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    phase == Some("Running") && pod.metadata.deletion_timestamp.is_none()
}

/// Reports whether a pod is one of the service, whose pages are those of a sidecar.
fn is_of_service(pod: &Pod) -> bool {
    let labels = pod.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(SERVICE_LABEL.0)).is_some_and(|value| value == SERVICE_LABEL.1)
}

fn has_sidecar(pod: &Pod) -> bool {
    let Some(PodSpec { containers, init_containers, .. }) = &pod.spec else { return false };
    let mut all = containers.iter().chain(init_containers.iter().flatten());
    all.any(|container| container.name == SIDECAR_CONTAINER)
}
