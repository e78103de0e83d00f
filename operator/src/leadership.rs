//! One replica leads: it holds the Lease, owns the EndpointSlice of the control Service, serves streams and writes
//! status. Whoever loses the Lease ends the process: nothing of it may go on.
//!
//! A lease is taken over when its record has not changed for its whole duration by the taker's own monotonic clock:
//! no two machines' clocks are compared.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use tokio::time::Instant;

/// The name of the Lease.
pub const LEASE: &str = "sluice-operator";
const DURATION: Duration = Duration::from_secs(15);
const RENEW_EVERY: Duration = Duration::from_secs(4);
const RENEW_DEADLINE: Duration = Duration::from_secs(10);

/// The Lease, for one replica.
pub struct Leadership {
    api: Api<Lease>,
    me: String,
}

impl Leadership {
    /// For the replica `me`; a name of its own for each start of a pod's container.
    #[must_use]
    pub fn new(client: kube::Client, namespace: &str, me: &str) -> Self {
        let me = format!("{me}_{:08x}", rand::random::<u32>());
        Self { api: Api::namespaced(client, namespace), me }
    }

    /// Waits until the Lease is this replica's.
    pub async fn acquire(&self) {
        let mut seen: Option<(Option<String>, Instant)> = None;
        loop {
            match self.try_acquire(&mut seen).await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => tracing::warn!("lease: {error:#}"),
            }
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
    }

    async fn try_acquire(&self, seen: &mut Option<(Option<String>, Instant)>) -> anyhow::Result<bool> {
        let Some(lease) = self.api.get_opt(LEASE).await? else {
            let lease = Lease {
                metadata: ObjectMeta { name: Some(LEASE.into()), ..ObjectMeta::default() },
                spec: Some(self.spec(None)),
            };
            return self.won(self.api.create(&PostParams::default(), &lease).await);
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
        self.won(self.api.replace(LEASE, &PostParams::default(), &lease).await)
    }

    fn won(&self, result: kube::Result<Lease>) -> anyhow::Result<bool> {
        match result {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Renews until it cannot, and then returns: the caller ends the process.
    pub async fn hold(&self) -> anyhow::Error {
        let mut renewed = Instant::now();
        loop {
            tokio::time::sleep(RENEW_EVERY).await;
            match tokio::time::timeout_at(renewed + RENEW_DEADLINE, self.renew()).await {
                Ok(Ok(true)) => renewed = Instant::now(),
                Ok(Ok(false)) => return anyhow::anyhow!("the lease is another replica's now"),
                Ok(Err(error)) => tracing::warn!("lease: {error:#}"),
                Err(_) => tracing::warn!("lease: the API server does not answer"),
            }
            if renewed.elapsed() >= RENEW_DEADLINE {
                return anyhow::anyhow!("the lease could not be renewed for {} s", RENEW_DEADLINE.as_secs());
            }
        }
    }

    async fn renew(&self) -> anyhow::Result<bool> {
        let lease = self.api.get(LEASE).await?;
        if lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()) != Some(&self.me) {
            return Ok(false);
        }
        let lease = Lease { spec: Some(self.spec(lease.spec.as_ref())), ..lease };
        self.won(self.api.replace(LEASE, &PostParams::default(), &lease).await)
    }

    /// Gives the Lease back, so that another replica need not wait for it to lapse.
    pub async fn release(&self) {
        let result = async {
            let mut lease = self.api.get(LEASE).await?;
            if let Some(spec) =
                lease.spec.as_mut().filter(|spec| spec.holder_identity.as_deref() == Some(&self.me))
            {
                spec.holder_identity = Some(String::new());
                self.api.replace(LEASE, &PostParams::default(), &lease).await?;
            }
            Ok::<_, kube::Error>(())
        };
        if let Err(error) = result.await {
            tracing::warn!("the lease could not be given back: {error}");
        }
    }

    fn spec(&self, old: Option<&LeaseSpec>) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        let mine = old.filter(|spec| spec.holder_identity.as_deref() == Some(&self.me));
        LeaseSpec {
            holder_identity: Some(self.me.clone()),
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

/// Points the control Service at this replica.
pub async fn take_endpoint(
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
    api.patch(service, &params, &Patch::Apply(&slice))
        .await
        .context("the EndpointSlice of the control Service")?;
    Ok(())
}
