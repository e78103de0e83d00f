//! Leadership: one replica holds the Lease and owns the endpoint of the control Service. It alone serves
//! sessions and writes status. A replica that loses the Lease must end its process.
//!
//! A replica takes over the Lease when its record has not changed for the whole lease duration, measured by
//! the replica's own monotonic clock. No two machines' clocks are compared.
//!
//! The control Service has no selector, so the leader alone decides where it leads: one EndpointSlice for each family of the addresses of
//! its pod, of which kube-proxy takes those that the Service has. An annotation names the leader.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use sluice_host::logging::told;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::cluster::watch::{Change, follow};

/// Time for which a new leader keeps the previous conditions, unless all pods have reported before.
pub(crate) const LEADER_GRACE: Duration = Duration::from_secs(60);

/// Name of the Lease.
pub const LEASE: &str = "sluice-operator";
/// Time without a renewal after which other replicas may take the Lease.
const DURATION: Duration = Duration::from_secs(15);
/// Interval between attempts to acquire a Lease that does not change.
const ACQUIRE_EVERY: Duration = Duration::from_millis(500);
/// Interval between looks whether another replica has taken the Lease, or the control Service.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Longest time in which the Lease is released.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between renewals.
const RENEW_EVERY: Duration = Duration::from_secs(4);
/// Time without a successful renewal after which the leader gives up. Shorter than [`DURATION`], so that the
/// leader has stopped before another replica leads.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);

/// The Lease as one replica uses it.
pub struct Leadership {
    api: Api<Lease>,
    /// Holder identity of this replica.
    pub identity: String,
}

impl Leadership {
    /// Creates an identity for this process. It differs after a restart of the pod's container.
    pub fn new(client: kube::Client, namespace: &str, pod_name: &str) -> Self {
        let identity = format!("{pod_name}_{:08x}", rand::random::<u32>());
        Self { api: Api::namespaced(client, namespace), identity }
    }

    /// Waits until this replica holds the Lease. It tries at once when the Lease changes.
    pub async fn acquire(&self) {
        let changed = Notify::new();
        let only = watcher::Config::default().fields(&format!("metadata.name={LEASE}"));
        let watching = follow(watcher::watcher(self.api.clone(), only), |change| {
            if change == Change::Listed {
                tracing::debug!("the lease is watched");
            }
            changed.notify_one();
        });
        let watching = async {
            watching.await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = watching => {}
            () = self.acquire_when_free(&changed) => {}
        }
    }

    async fn acquire_when_free(&self, changed: &Notify) {
        let mut seen: Option<(Option<String>, Instant)> = None;
        loop {
            match self.try_acquire(&mut seen).await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!("the lease could not be acquired, trying again: {}", told(error.as_ref()));
                }
            }
            let _ = timeout(ACQUIRE_EVERY, changed.notified()).await;
        }
    }

    /// Reports whether another replica takes the Lease within a time.
    pub async fn is_taken(&self, within: Duration) -> bool {
        let taken = async {
            loop {
                let lease = self.api.get_opt(LEASE).await.ok().flatten();
                let holder = lease.and_then(|lease| lease.spec?.holder_identity).unwrap_or_default();
                if !holder.is_empty() && holder != self.identity {
                    return;
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        timeout(within, taken).await.is_ok()
    }

    /// Takes the Lease if it is free or stale. `seen` is the version found last and the time since which it
    /// is unchanged.
    async fn try_acquire(&self, seen: &mut Option<(Option<String>, Instant)>) -> anyhow::Result<bool> {
        let Some(lease) = self.api.get_opt(LEASE).await? else {
            let lease = Lease {
                metadata: ObjectMeta { name: Some(LEASE.into()), ..ObjectMeta::default() },
                spec: Some(self.spec(None)),
            };
            return was_written(self.api.create(&PostParams::default(), &lease).await);
        };
        let version = lease.metadata.resource_version.clone();
        let free =
            lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).is_none_or(str::is_empty);
        let stale = match seen {
            Some((old, since)) if *old == version => since.elapsed() >= DURATION,
            _ => {
                *seen = Some((version, Instant::now()));
                false
            }
        };
        if !free && !stale {
            return Ok(false);
        }
        let lease = Lease { spec: Some(self.spec(lease.spec.as_ref())), ..lease };
        was_written(self.api.replace(LEASE, &PostParams::default(), &lease).await)
    }

    /// Renews the Lease until that fails for too long, and returns the reason. The caller must end the
    /// process.
    pub async fn hold(&self) -> anyhow::Error {
        let mut renewed = Instant::now();
        loop {
            tokio::time::sleep(RENEW_EVERY).await;
            match tokio::time::timeout_at(renewed + RENEW_DEADLINE, self.renew()).await {
                Ok(Ok(true)) => renewed = Instant::now(),
                Ok(Ok(false)) => return anyhow::anyhow!("another replica has taken the lease"),
                Ok(Err(error)) => {
                    tracing::warn!("the lease could not be renewed, trying again: {}", told(error.as_ref()));
                }
                Err(_) => tracing::warn!("the lease could not be renewed: the API server does not respond"),
            }
            if renewed.elapsed() >= RENEW_DEADLINE {
                return anyhow::anyhow!("the lease could not be renewed for {} s", RENEW_DEADLINE.as_secs());
            }
        }
    }

    async fn renew(&self) -> anyhow::Result<bool> {
        let lease = self.api.get(LEASE).await?;
        if lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()) != Some(&self.identity) {
            return Ok(false);
        }
        let lease = Lease { spec: Some(self.spec(lease.spec.as_ref())), ..lease };
        was_written(self.api.replace(LEASE, &PostParams::default(), &lease).await)
    }

    /// Releases the Lease, so that another replica can lead without waiting for it to expire. An API server that does not respond
    /// delays the end of the process for a moment only.
    pub async fn release(&self) {
        let releasing = async {
            loop {
                match self.try_release().await {
                    // The last renewal was still on its way.
                    Err(kube::Error::Api(status)) if status.code == 409 => {}
                    result => return result,
                }
            }
        };
        match timeout(RELEASE_TIMEOUT, releasing).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!("the lease could not be released and will expire: {}", told(&error));
            }
            Err(_) => {
                tracing::warn!(
                    "the lease could not be released and will expire: the API server does not respond"
                );
            }
        }
    }

    async fn try_release(&self) -> kube::Result<()> {
        let mut lease = self.api.get(LEASE).await?;
        let held = lease.spec.as_mut().filter(|spec| spec.holder_identity.as_deref() == Some(&self.identity));
        if let Some(spec) = held {
            spec.holder_identity = Some(String::new());
            self.api.replace(LEASE, &PostParams::default(), &lease).await?;
        }
        Ok(())
    }

    /// Returns the spec that this replica writes over `old`.
    fn spec(&self, old: Option<&LeaseSpec>) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        let mine = old.filter(|spec| spec.holder_identity.as_deref() == Some(&self.identity));
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(DURATION.as_secs() as i32),
            acquire_time: mine.and_then(|spec| spec.acquire_time.clone()).or_else(|| Some(now.clone())),
            renew_time: Some(now),
            lease_transitions: Some(
                old.map_or(0, |spec| spec.lease_transitions.unwrap_or(0) + i32::from(mine.is_none())),
            ),
            ..LeaseSpec::default()
        }
    }
}

/// Reports whether a write succeeded, rather than being overtaken by another replica.
fn was_written(result: kube::Result<Lease>) -> anyhow::Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Annotation with the holder identity of the replica that the control Service leads to.
const LEADER_ANNOTATION: &str = "sluice.dev/leader";

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
