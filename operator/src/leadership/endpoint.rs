//! The EndpointSlices of the control Service. The Service has no selector, so the leader alone decides where
//! it leads: one EndpointSlice for each family of the addresses of its pod, of which kube-proxy takes those that the Service
//! has. An annotation names the leader.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use kube::api::{Api, ObjectMeta, Patch, PatchParams};

/// Annotation with the holder identity of the replica that the control Service leads to.
const LEADER_ANNOTATION: &str = "sluice.dev/leader";
/// Interval between looks whether the control Service leads to another replica.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The control Service, as one replica uses it.
pub struct ControlService<'a> {
    /// Client of the API server.
    pub client: kube::Client,
    /// Namespace of the Service, and its name.
    pub service: (&'a str, &'a str),
    /// Addresses of the replica's pod.
    pub ips: &'a [IpAddr],
    /// Its control port.
    pub port: u16,
    /// Holder identity of the replica.
    pub identity: &'a str,
}

impl ControlService<'_> {
    /// Points the control Service at this replica.
    pub async fn take_over(&self) -> anyhow::Result<()> {
        let params = PatchParams::apply("sluice-operator").force();
        for (name, ip) in named(self.service.1, self.ips) {
            let slice = slice(self.service.1, &name, ip, self.port, self.identity);
            self.api().patch(&name, &params, &Patch::Apply(&slice)).await.with_context(|| {
                format!("the EndpointSlice {name} of the control Service could not be written")
            })?;
        }
        Ok(())
    }

    /// Waits until the control Service leads to another replica, at most for a time.
    pub async fn is_taken(&self, within: Duration) {
        let Some((name, _)) = named(self.service.1, self.ips).pop() else { return };
        let taken = async {
            loop {
                let slice = self.api().get_opt(&name).await.ok().flatten();
                let leader = slice.and_then(|slice| slice.metadata.annotations?.remove(LEADER_ANNOTATION));
                if leader.is_some_and(|leader| leader != self.identity) {
                    return;
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        let _ = tokio::time::timeout(within, taken).await;
    }

    fn api(&self) -> Api<EndpointSlice> {
        Api::namespaced(self.client.clone(), self.service.0)
    }
}

/// Returns the names of the EndpointSlices, each with its address: the first one, and the first of the other family.
fn named(service: &str, ips: &[IpAddr]) -> Vec<(String, IpAddr)> {
    let first = ips.first();
    let other = first.and_then(|first| ips.iter().find(|ip| ip.is_ipv4() != first.is_ipv4()));
    let names = [service.to_owned(), format!("{service}-second")];
    names.into_iter().zip([first, other]).filter_map(|(name, ip)| Some((name, *ip?))).collect()
}

fn slice(service: &str, name: &str, ip: IpAddr, port: u16, leader: &str) -> EndpointSlice {
    EndpointSlice {
        metadata: ObjectMeta {
            name: Some(name.into()),
            annotations: Some([(LEADER_ANNOTATION.to_owned(), leader.to_owned())].into()),
            labels: Some(
                [
                    ("kubernetes.io/service-name".to_owned(), service.to_owned()),
                    ("endpointslice.kubernetes.io/managed-by".to_owned(), "sluice-operator".to_owned()),
                ]
                .into(),
            ),
            ..ObjectMeta::default()
        },
        address_type: if ip.is_ipv4() { "IPv4" } else { "IPv6" }.into(),
        endpoints: vec![Endpoint {
            addresses: vec![ip.to_string()],
            conditions: Some(EndpointConditions { ready: Some(true), ..EndpointConditions::default() }),
            ..Endpoint::default()
        }],
        ports: Some(vec![EndpointPort {
            name: Some("control".into()),
            port: Some(i32::from(port)),
            protocol: Some("TCP".into()),
            ..EndpointPort::default()
        }]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_family_of_the_pod_has_an_endpoint_slice() {
        let of = |ips: &[&str]| {
            let ips: Vec<IpAddr> = ips.iter().map(|ip| ip.parse().unwrap()).collect();
            let slices = named("control", &ips)
                .into_iter()
                .map(|(name, ip)| slice("control", &name, ip, 8443, "sluice-operator-0_1"));
            slices.map(|slice| (slice.metadata.name.unwrap(), slice.address_type)).collect::<Vec<_>>()
        };
        let named = |name: &str, family: &str| (name.to_owned(), family.to_owned());
        assert_eq!(of(&["10.0.0.1"]), [named("control", "IPv4")]);
        assert_eq!(of(&["fd00::1"]), [named("control", "IPv6")]);
        assert_eq!(of(&["fd00::1", "10.0.0.1"]), [named("control", "IPv6"), named("control-second", "IPv4")]);
        assert_eq!(of(&["10.0.0.1", "10.0.0.2"]), [named("control", "IPv4")]);
    }
}
