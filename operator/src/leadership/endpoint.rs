//! The EndpointSlices of the control Service. The Service has no selector, so the leader alone decides where
//! it leads: one EndpointSlice for each family of the addresses of its pod, of which kube-proxy takes those that the Service
//! has.

use std::net::IpAddr;

use anyhow::Context as _;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use kube::api::{Api, ObjectMeta, Patch, PatchParams};

/// Points the control Service at this replica.
pub async fn take_over(
    client: kube::Client,
    namespace: &str,
    service: &str,
    ips: &[IpAddr],
    port: u16,
) -> anyhow::Result<()> {
    let api: Api<EndpointSlice> = Api::namespaced(client, namespace);
    let params = PatchParams::apply("sluice-operator").force();
    for (name, ip) in named(service, ips) {
        let slice = slice(service, &name, ip, port);
        api.patch(&name, &params, &Patch::Apply(&slice)).await.with_context(|| {
            format!("the EndpointSlice {name} of the control Service could not be written")
        })?;
    }
    Ok(())
}

/// Returns the names of the EndpointSlices, each with its address: the first one, and the first of the other family.
fn named(service: &str, ips: &[IpAddr]) -> Vec<(String, IpAddr)> {
    let first = ips.first();
    let other = first.and_then(|first| ips.iter().find(|ip| ip.is_ipv4() != first.is_ipv4()));
    let names = [service.to_owned(), format!("{service}-second")];
    names.into_iter().zip([first, other]).filter_map(|(name, ip)| Some((name, *ip?))).collect()
}

fn slice(service: &str, name: &str, ip: IpAddr, port: u16) -> EndpointSlice {
    EndpointSlice {
        metadata: ObjectMeta {
            name: Some(name.into()),
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
            let slices =
                named("control", &ips).into_iter().map(|(name, ip)| slice("control", &name, ip, 8443));
            slices.map(|slice| (slice.metadata.name.unwrap(), slice.address_type)).collect::<Vec<_>>()
        };
        let named = |name: &str, family: &str| (name.to_owned(), family.to_owned());
        assert_eq!(of(&["10.0.0.1"]), [named("control", "IPv4")]);
        assert_eq!(of(&["fd00::1"]), [named("control", "IPv6")]);
        assert_eq!(of(&["fd00::1", "10.0.0.1"]), [named("control", "IPv6"), named("control-second", "IPv4")]);
        assert_eq!(of(&["10.0.0.1", "10.0.0.2"]), [named("control", "IPv4")]);
    }
}
