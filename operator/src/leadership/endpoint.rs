//! The EndpointSlice of the control Service. The Service has no selector, so the leader alone decides where
//! it leads.

use std::net::IpAddr;

use anyhow::Context as _;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use kube::api::{Api, ObjectMeta, Patch, PatchParams};

/// Points the control Service at this replica.
pub async fn take_over(
    client: kube::Client,
    namespace: &str,
    service: &str,
    ip: IpAddr,
    port: u16,
) -> anyhow::Result<()> {
    let slice = EndpointSlice {
        metadata: ObjectMeta {
            name: Some(service.into()),
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
    };
    let api: Api<EndpointSlice> = Api::namespaced(client, namespace);
    let params = PatchParams::apply("sluice-operator").force();
    api.patch(service, &params, &Patch::Apply(&slice)).await.with_context(|| {
        format!("the EndpointSlice {service} of the control Service could not be written")
    })?;
    Ok(())
}
