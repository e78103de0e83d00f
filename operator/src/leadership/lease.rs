//! The Lease of the leader. Replicas that wait for it watch it.
//!
//! A replica takes over the Lease when its record has not changed for the whole lease duration, measured by
//! the replica's own monotonic clock. No two machines' clocks are compared.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::runtime::watcher;
use sluice_host::logging::told;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::cluster::watch::{Change, follow};

/// Name of the Lease.
pub const LEASE: &str = "sluice-operator";
/// Time without a renewal after which other replicas may take the Lease.
const DURATION: Duration = Duration::from_secs(15);
/// Interval between attempts to acquire a Lease that does not change.
const ACQUIRE_EVERY: Duration = Duration::from_millis(500);
/// Interval between looks whether another replica has taken the Lease.
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
    identity: String,
}

impl Leadership {
    /// Creates an identity for this process. It differs after a restart of the pod's container.
    #[must_use]
    pub fn new(client: kube::Client, namespace: &str, pod_name: &str) -> Self {
        let identity = format!("{pod_name}_{:08x}", rand::random::<u32>());
        Self { api: Api::namespaced(client, namespace), identity }
    }

    /// Returns the holder identity of this replica.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.identity
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
