//! Reconciles all stores whenever one of them, a Secret or a report of a sidecar has changed: gives sidecars access to
//! them, and writes their status.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use serde_json::json;
use sluice_config::KeySecret;
use sluice_config::store_access::{StoreAccess, StoreChoice};
use sluice_crds::{CompiledStore, RateLimitStoreSpec, RateLimitStoreStatus};
use tokio::sync::Notify;

use crate::args::Args;
use crate::cluster::references::References;
use crate::cluster::stores::{Stores, api};
use crate::distribution::hub::Hub;
use crate::distribution::stores::HubStores;
use crate::object_key::{ObjectKey, StoreKey};
use crate::store::default_store;
use crate::store::fields::SecretFields;
use crate::store::own_connection::OwnConnection;
use crate::store::resolve::{Resolutions, Resolved, StoreRules, resolve, secret_of};
use crate::store::secrets::KEY_SECRET;
use crate::store::status::{Observed, status};

/// Interval at which all stores are reconciled even if nothing changes.
const REFRESH_EVERY: Duration = Duration::from_secs(30);
/// Delay before a failed reconcile is repeated.
const RETRY: Duration = Duration::from_secs(5);
/// Time in which changes are collected.
const SETTLE: Duration = Duration::from_millis(100);
/// Interval at which the health of the operator's own connection is read.
const OWN_HEALTH_EVERY: Duration = Duration::from_secs(1);

/// Reconciles stores.
pub struct StoreController {
    client: kube::Client,
    hub: Arc<Hub>,
    stores: Stores,
    references: References,
    changed: Arc<Notify>,
    rules: StoreRules,
    /// Spec of the installation's store; `None` for a store in the memory of each sidecar.
    spec: Option<RateLimitStoreSpec>,
    resolutions: Arc<Resolutions>,
}

/// The outcome of resolving all stores.
struct Resolving<'a> {
    objects: &'a BTreeMap<StoreKey, Arc<DynamicObject>>,
    resolved: BTreeMap<StoreKey, Resolved>,
}

impl StoreController {
    /// Returns a controller for the stores of the cluster, which publishes their resolutions.
    pub fn new(
        client: kube::Client,
        hub: Arc<Hub>,
        args: &Args,
        resolutions: Arc<Resolutions>,
    ) -> anyhow::Result<Self> {
        let changed = hub.store_reports_changed();
        Ok(Self {
            references: References::new(client.clone(), changed.clone()),
            stores: Stores::default(),
            rules: default_store::rules(args),
            spec: default_store::spec(args)?,
            client,
            hub,
            changed,
            resolutions,
        })
    }

    /// Reconciles for as long as the process lives.
    pub async fn run(&self) {
        let watching = self.stores.watch(self.client.clone(), || self.changed.notify_one());
        tokio::join!(watching, self.reconcile_all());
    }

    async fn reconcile_all(&self) {
        let mut key_secret = None;
        let mut access = BTreeMap::new();
        let mut own = OwnConnection::default();
        loop {
            let delay = match self.reconcile(&mut key_secret, &mut access, &mut own).await {
                Ok(()) => REFRESH_EVERY,
                Err(error) => {
                    tracing::warn!("the stores could not be reconciled, which is tried again: {error:#}");
                    RETRY
                }
            };
            let mut own_health = tokio::time::interval(OWN_HEALTH_EVERY);
            let own_changed = async {
                let before = own.health();
                while own.health() == before {
                    own_health.tick().await;
                }
            };
            tokio::select! {
                () = self.changed.notified() => tokio::time::sleep(SETTLE).await,
                () = own_changed => {}
                () = tokio::time::sleep(delay) => {}
            }
        }
    }

    /// Resolves all stores, publishes them, and writes their status. `access` has the last access to each store that
    /// could be used.
    async fn reconcile(
        &self,
        key_secret: &mut Option<KeySecret>,
        access: &mut BTreeMap<StoreKey, StoreAccess>,
        own: &mut OwnConnection,
    ) -> anyhow::Result<()> {
        let Some(objects) = self.stores.all() else { return Ok(()) };
        self.keep_default(&objects).await?;
        let key_secret = match key_secret {
            Some(known) => known.clone(),
            None => key_secret.insert(self.read_key_secret().await?).clone(),
        };
        let resolving = self.resolve_all(&objects, &key_secret);
        for (key, resolved) in &resolving.resolved {
            if let Resolved::Usable(usable) = resolved {
                access.insert(key.clone(), (**usable).clone());
            }
        }
        // What a store's sidecars use stays in use while its Secret is missing or wrong.
        access.retain(|key, _| match resolving.resolved.get(key) {
            Some(Resolved::NotAllowed) | None => false,
            Some(_) => true,
        });
        self.publish(&resolving, access);
        own.keep(access.get(&self.rules.default));
        self.resolutions.send_if_modified(|before| {
            let changed = before.as_ref() != Some(&resolving.resolved);
            *before = Some(resolving.resolved.clone());
            changed
        });
        self.write_all(&resolving, own).await
    }

    /// Creates the store of the installation, or sets its spec back to what the chart's values say.
    async fn keep_default(&self, objects: &BTreeMap<StoreKey, Arc<DynamicObject>>) -> anyhow::Result<()> {
        let Some(spec) = &self.spec else { return Ok(()) };
        match objects.get(&self.rules.default) {
            Some(object) if default_store::has_spec(object, spec) => Ok(()),
            _ => default_store::apply(self.client.clone(), &self.rules.default, spec).await,
        }
    }

    async fn read_key_secret(&self) -> anyhow::Result<KeySecret> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.rules.default.namespace);
        let fields = SecretFields::read(&api, KEY_SECRET).await?;
        let key = fields.text("key")?.with_context(|| format!("{fields} has no field `key`"))?;
        KeySecret::try_from(key).map_err(|error| anyhow::anyhow!("{fields}: {error}"))
    }

    fn resolve_all<'a>(
        &self,
        objects: &'a BTreeMap<StoreKey, Arc<DynamicObject>>,
        key_secret: &KeySecret,
    ) -> Resolving<'a> {
        let compiled: BTreeMap<_, Result<CompiledStore, Resolved>> = objects
            .iter()
            .filter(|(key, _)| !self.rules.is_ignored(key))
            .map(|(key, object)| {
                let object = serde_json::to_value(&**object).unwrap_or_default();
                (key.clone(), self.rules.compile(key, &object))
            })
            .collect();
        let secrets = compiled.iter().filter_map(|(key, store)| secret_of(key, store.as_ref().ok()?));
        self.references.watch_only(&secrets.collect::<BTreeSet<ObjectKey>>());
        let resolved = compiled.into_iter().map(|(key, store)| {
            let resolved = store.map_or_else(
                |refused| refused,
                |store| {
                    let secret = secret_of(&key, &store).map(|secret| {
                        let reference = self.references.get(&secret);
                        (secret, reference)
                    });
                    resolve(store, key_secret, secret, key == self.rules.default)
                },
            );
            (key, resolved)
        });
        Resolving { resolved: resolved.collect(), objects }
    }

    /// Gives sidecars access to the stores. Waits until all Secrets have been read and the store of the installation
    /// can be used: a new leader must not withdraw what sidecars have.
    fn publish(&self, resolving: &Resolving<'_>, access: &BTreeMap<StoreKey, StoreAccess>) {
        let is_pending = |resolved: &Resolved| *resolved == Resolved::Pending;
        if !self.hub.has_stores() && resolving.resolved.values().any(is_pending) {
            return;
        }
        let choice = |access: &StoreAccess| StoreChoice::Access(Box::new(access.clone()));
        let default = match (&self.spec, access.get(&self.rules.default)) {
            (None, _) => StoreChoice::Memory,
            (Some(_), Some(access)) => choice(access),
            (Some(_), None) => {
                tracing::warn!(
                    "sidecars receive no policies until the RateLimitStore {} can be used",
                    self.rules.default
                );
                return;
            }
        };
        let named = access.iter().filter(|(key, _)| **key != self.rules.default);
        let named = named.map(|(key, access)| (key.clone(), choice(access))).collect();
        self.hub.set_stores(HubStores { default, named });
    }

    async fn write_all(&self, resolving: &Resolving<'_>, own: &OwnConnection) -> anyhow::Result<()> {
        let mut failed = None;
        for (key, resolved) in &resolving.resolved {
            let Some(object) = resolving.objects.get(key) else { continue };
            let is_default = *key == self.rules.default;
            let previous: Option<RateLimitStoreStatus> =
                object.data.get("status").and_then(|status| serde_json::from_value(status.clone()).ok());
            let observed = Observed {
                key,
                generation: object.metadata.generation.unwrap_or_default(),
                resolved,
                operator_namespace: &self.rules.default.namespace,
                reports: &self.hub.store_reports((!is_default).then_some(key)),
                own: own.health().filter(|_| is_default),
                previous: previous.as_ref(),
            };
            let status = status(&observed, Timestamp::now());
            if previous.as_ref() != Some(&status)
                && let Err(error) = self.write(key, object, &status).await
            {
                failed = Some(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    async fn write(
        &self,
        key: &StoreKey,
        object: &DynamicObject,
        status: &RateLimitStoreStatus,
    ) -> anyhow::Result<()> {
        let patch = json!({
            "apiVersion": "sluice.dev/v1alpha1",
            "kind": "RateLimitStore",
            "metadata": {
                "name": key.name,
                "namespace": key.namespace,
                "resourceVersion": object.metadata.resource_version,
            },
            "status": status,
        });
        let params = PatchParams::apply("sluice-operator").force();
        let api = api(self.client.clone(), Some(&key.namespace));
        match api.patch_status(&key.name, &params, &Patch::Apply(&patch)).await {
            Ok(_) => {
                if let Some(ready) = status.conditions.last() {
                    tracing::info!(store = %key, "Ready is {}, {}: {}", ready.status, ready.reason, ready.message);
                }
                Ok(())
            }
            // The store was changed or deleted meanwhile, and the watch has noticed.
            Err(kube::Error::Api(status)) if status.code == 409 || status.code == 404 => Ok(()),
            Err(error) => {
                Err(error).with_context(|| format!("the status of the store {key} could not be written"))
            }
        }
    }
}
