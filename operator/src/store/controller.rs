//! Reconciles all stores whenever one of them, a Secret or a report of a sidecar has changed: gives sidecars access to
//! them, and writes their status.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DynamicObject};
use sluice_config::KeySecret;
use sluice_crds::policy::ContentKind;
use sluice_crds::store::Access;
use sluice_crds::{CompiledStore, RateLimitStore, RateLimitStoreSpec, RateLimitStoreStatus, Violation};
use sluice_host::logging::told;
use sluice_store::redis::admin::ManagedUser;
use sluice_store::redis::library::Library;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::args::Args;
use crate::certificates::secret::Certificates;
use crate::cluster::references::{Content, ContentKey, Reference, References};
use crate::cluster::watch::Untyped;
use crate::conditions::{MIN_INTERVAL, Writes, part, write_status};
use crate::distribution::hub::Hub;
use crate::distribution::stores::{HubStores, StoreSource};
use crate::names::{ObjectKey, StoreKey};
use crate::store::default_store::{self, KEY_SECRET, PASSWORD_ROOT};
use crate::store::embedded::{self, ServerCertificate};
use crate::store::managed::{CERTIFICATE_WINDOW, ManagedStores, OwnConnection, WantedStore};
use crate::store::resolve::{Resolutions, Resolved, StoreRules, Usable, read_secret, resolve, secret_of};
use crate::store::status::{ObservedStore, status};

/// Interval at which all stores are reconciled even if nothing changes.
const REFRESH_EVERY: Duration = Duration::from_secs(30);
/// Delay before a failed reconcile is repeated.
const RETRY: Duration = Duration::from_secs(5);
/// Interval between checks whether the certificate of the embedded Redis is due for renewal.
const CERTIFICATE_EVERY: Duration = Duration::from_secs(600);
/// Shortest interval between reconciles for reports of sidecars. While many connect, each of them changes a number of the status.
const REPORTS_EVERY: Duration = Duration::from_secs(2);
/// Time in which changes are collected.
const SETTLE: Duration = Duration::from_millis(100);
/// Maximum number of stores of a namespace.
const MAX_STORES: usize = 16;
/// Longest time for which a new leader waits for the stores of tenants.
const MAX_WAIT: Duration = Duration::from_secs(10);
/// Interval between reconciles until the stores are known.
const FIRST: Duration = Duration::from_secs(1);
/// Interval at which the health of the operator's own connection is read.
const OWN_HEALTH_EVERY: Duration = Duration::from_secs(1);

/// Reconciles stores.
pub struct StoreController {
    client: kube::Client,
    hub: Arc<Hub>,
    stores: Untyped,
    references: References<()>,
    changed: Arc<Notify>,
    rules: StoreRules,
    /// Spec of the installation's store; `None` for a store in the memory of each sidecar.
    spec: Option<RateLimitStoreSpec>,
    /// Whether that store is the embedded Redis.
    is_embedded: bool,
    certificates: Certificates,
    resolutions: Arc<Resolutions>,
}

/// Stores as the API server has them, and as they are resolved.
type StoreObjects = BTreeMap<StoreKey, Arc<DynamicObject>>;
type ResolvedStores = BTreeMap<StoreKey, Resolved>;

/// State that lasts from one reconcile to the next.
struct ReconcileState {
    secrets: Option<RootSecrets>,
    /// The stores as they could be used last.
    usable: BTreeMap<StoreKey, Usable>,
    managed: ManagedStores,
    own: OwnConnection,
    /// Time at which the controller started.
    started: Instant,
    /// The Secret of the embedded Redis, as it was last.
    embedded_secret: Option<Arc<Content>>,
    /// The certificate of the embedded Redis.
    certificate: Option<String>,
    /// Time at which another certificate was seen in its Secret than before.
    certificate_changed: Instant,
    /// Time at which it was checked whether that certificate is due for renewal.
    certificate_checked: Option<Instant>,
    /// When the status of each store was written last.
    writes: Writes,
    /// Whether the status of a store was not written, because its numbers alone have changed.
    deferred: bool,
}

/// The secrets of the installation, which never change.
#[derive(Clone)]
struct RootSecrets {
    /// Secret that keys are hashed with.
    key: KeySecret,
    /// Secret that passwords are derived from.
    password_root: Vec<u8>,
}

impl StoreController {
    /// Returns a controller for the stores of the cluster, which publishes their resolutions.
    pub fn new(
        client: kube::Client,
        hub: Arc<Hub>,
        args: &Args,
        certificates: Certificates,
        resolutions: Arc<Resolutions>,
    ) -> anyhow::Result<Self> {
        let changed = Arc::<Notify>::default();
        Ok(Self {
            references: References::new(client.clone(), {
                let changed = changed.clone();
                move |_| changed.notify_one()
            }),
            stores: Untyped::default(),
            rules: default_store::rules(args),
            spec: default_store::spec(args)?,
            is_embedded: args.store_embedded,
            certificates,
            client,
            hub,
            changed,
            resolutions,
        })
    }

    /// Reconciles for as long as the process lives.
    pub async fn run(&self) {
        let watching = self.stores.watch::<RateLimitStore>(self.client.clone(), || self.changed.notify_one());
        let (reports, changed) = (self.hub.store_reports.clone(), self.changed.clone());
        let reporting = async {
            loop {
                reports.notified().await;
                changed.notify_one();
                tokio::time::sleep(REPORTS_EVERY).await;
            }
        };
        tokio::join!(watching, reporting, self.reconcile_all());
    }

    async fn reconcile_all(&self) {
        let mut state = ReconcileState {
            secrets: None,
            usable: BTreeMap::new(),
            managed: ManagedStores::new(self.changed.clone()),
            own: OwnConnection::default(),
            started: Instant::now(),
            embedded_secret: None,
            certificate: None,
            certificate_changed: Instant::now(),
            certificate_checked: None,
            writes: Writes::default(),
            deferred: false,
        };
        let mut published = self.hub.version.subscribe();
        loop {
            let delay = match self.reconcile(&mut state).await {
                Ok(()) if !self.hub.has_stores.is_set() => FIRST,
                Ok(()) if state.deferred => MIN_INTERVAL,
                Ok(()) => REFRESH_EVERY,
                Err(error) => {
                    tracing::warn!(
                        "the stores could not be reconciled, which is tried again: {}",
                        told(error.as_ref())
                    );
                    RETRY
                }
            };
            let mut own_health = tokio::time::interval(OWN_HEALTH_EVERY);
            let own_changed = async {
                let before = state.own.health();
                while state.own.health() == before {
                    own_health.tick().await;
                }
            };
            tokio::select! {
                () = self.changed.notified() => {}
                // A policy may be the first one of its namespace. The hub lives as long as this.
                _ = published.changed() => {}
                () = own_changed => {}
                () = tokio::time::sleep(delay) => {}
            }
            tokio::time::sleep(SETTLE).await;
            published.mark_unchanged();
        }
    }

    /// Resolves all stores, publishes them, and writes their status.
    async fn reconcile(&self, state: &mut ReconcileState) -> anyhow::Result<()> {
        let Some(objects) = self.stores.all() else { return Ok(()) };
        self.keep_default(&objects).await?;
        let secrets = match &state.secrets {
            Some(known) => known.clone(),
            None => state.secrets.insert(self.read_secrets().await?).clone(),
        };
        let resolved = self.resolve_all(&objects, &secrets.key);
        self.keep_embedded_secret(state).await?;
        for (key, one) in &resolved {
            if let Resolved::Usable(usable) = one {
                state.usable.insert(key.clone(), (**usable).clone());
            }
        }
        // What a store's sidecars use stays in use while its Secret is missing or wrong.
        state.usable.retain(|key, _| match resolved.get(key) {
            Some(Resolved::NotAllowed) | None => false,
            Some(_) => true,
        });
        let managed = state.usable.iter().filter(|(_, usable)| usable.kind == Access::Managed);
        let wanted = managed.map(|(key, usable)| WantedStore {
            key,
            is_default: *key == self.rules.default,
            access: &usable.access,
            password_epoch: usable.password_epoch,
            recorded: objects
                .get(key)
                .and_then(|object| part::<RateLimitStoreStatus>(object, "status")?.passwords),
        });
        // Before, users of namespaces whose policies have not been read yet would be removed.
        if self.hub.has_policies.is_set() {
            state.managed.keep(wanted, &secrets.password_root, &self.hub);
        }
        self.publish(&resolved, state);
        let default = state.usable.get(&self.rules.default);
        let shared = default.filter(|usable| usable.kind == Access::Shared);
        state.own.keep(shared.map(|usable| &usable.access));
        self.resolutions.send_if_modified(|before| {
            let changed = before.as_ref() != Some(&resolved);
            *before = Some(resolved.clone());
            changed
        });
        let written = self.write_all(&objects, &resolved, state).await;
        self.update_embedded(&resolved, state).await?;
        written
    }

    /// Returns the Secret of the embedded Redis, if there is one.
    fn embedded_secret(&self) -> Option<ObjectKey> {
        let secret = self.spec.as_ref()?.secret_ref.as_ref().filter(|_| self.is_embedded)?;
        Some(ObjectKey::new(&self.rules.default.namespace, &secret.name))
    }

    /// Creates the Secret of the embedded Redis again when it was deleted. With another password nobody could log in to the
    /// Redis that runs.
    async fn keep_embedded_secret(&self, state: &mut ReconcileState) -> anyhow::Result<()> {
        let Some(secret) = self.embedded_secret() else { return Ok(()) };
        match self.references.get(&content_key(&secret)) {
            Reference::Found(content) => state.embedded_secret = Some(content),
            Reference::NotFound => {
                if let Some(content) = &state.embedded_secret {
                    embedded::restore(self.client.clone(), &secret.namespace, content).await?;
                }
            }
            Reference::Pending | Reference::NotPermitted | Reference::Unreadable(_) | Reference::TooMany => {}
        }
        Ok(())
    }

    /// Writes the users and the library into the Secret of the embedded Redis, for its next start.
    async fn update_embedded(
        &self,
        resolved: &ResolvedStores,
        state: &mut ReconcileState,
    ) -> anyhow::Result<()> {
        let key = &self.rules.default;
        let (true, Some(Resolved::Usable(usable))) = (self.is_embedded, resolved.get(key)) else {
            return Ok(());
        };
        let Some(secret) = self.embedded_secret() else { return Ok(()) };
        let Reference::Found(secret) = self.references.get(&content_key(&secret)) else { return Ok(()) };
        let Some(users) = state.managed.provisioned(key).and_then(|provisioned| provisioned.users) else {
            return Ok(());
        };
        let line = |user: &ManagedUser| user.acl_line(&usable.access.redis, Library::current().functions());
        let lines: Vec<_> = users.values().map(line).collect();
        let present = embedded::certificate_of(&secret);
        if state.certificate != present {
            state.certificate.clone_from(&present);
            state.certificate_changed = Instant::now();
            state.managed.load_certificate(key, embedded::certificate_settings());
        }
        let is_loading = state.certificate_changed.elapsed() < CERTIFICATE_WINDOW;
        let trusted = embedded::authorities(&self.certificates.trusted.borrow(), &secret, is_loading);
        let is_checked = state.certificate_checked.is_some_and(|at| at.elapsed() < CERTIFICATE_EVERY);
        let issued = if is_checked && present.is_some() {
            None
        } else {
            state.certificate_checked = Some(Instant::now());
            let names = embedded::names(&key.namespace);
            self.certificates.issue(&names, present.as_deref()).await?.1
        };
        let certificate = ServerCertificate { trusted, issued };
        embedded::update(self.client.clone(), &key.namespace, &secret, &lines, &certificate).await
    }

    /// Creates the store of the installation, or sets its spec back to what the chart's values say. A store that cannot be
    /// changed stays as it is.
    async fn keep_default(&self, objects: &StoreObjects) -> anyhow::Result<()> {
        let (Some(spec), key) = (&self.spec, &self.rules.default) else { return Ok(()) };
        match objects.get(key) {
            Some(object) if default_store::has_spec(object, spec) => Ok(()),
            Some(object) => {
                if let Err(error) = default_store::replace(self.client.clone(), key, object, spec).await {
                    tracing::warn!("the chart's values do not take effect: {}", told(error.as_ref()));
                }
                Ok(())
            }
            None => default_store::create(self.client.clone(), key, spec).await,
        }
    }

    async fn read_secrets(&self) -> anyhow::Result<RootSecrets> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.rules.default.namespace);
        let fields = read_secret(&api, KEY_SECRET).await?;
        let field =
            |name: &str| fields.text(name)?.with_context(|| format!("{fields} has no field `{name}`"));
        let key = KeySecret::try_from(field("key")?).map_err(|error| anyhow::anyhow!("{fields}: {error}"))?;
        let root = STANDARD.decode(field(PASSWORD_ROOT)?.trim()).ok().filter(|root| root.len() >= 32);
        let password_root = root
            .with_context(|| format!("`{PASSWORD_ROOT}` in {fields} must be at least 32 bytes in base64"))?;
        Ok(RootSecrets { key, password_root })
    }

    fn resolve_all(&self, objects: &StoreObjects, key_secret: &KeySecret) -> ResolvedStores {
        let compiled: BTreeMap<_, Result<CompiledStore, Resolved>> = objects
            .iter()
            .filter(|(key, _)| !self.rules.is_ignored(key))
            .map(|(key, object)| {
                let of_namespace = StoreKey::new(&key.namespace, "")..key.clone();
                if objects.range(of_namespace).count() >= MAX_STORES {
                    let message =
                        format!("is one of more than {MAX_STORES} stores of its namespace: delete some");
                    let violation = Violation::new("metadata.name", message);
                    return (key.clone(), Err(Resolved::Invalid(vec![violation])));
                }
                let object = serde_json::to_value(&**object).unwrap_or_default();
                (key.clone(), self.rules.compile(key, &object))
            })
            .collect();
        let secrets = compiled.iter().filter_map(|(key, store)| secret_of(key, store.as_ref().ok()?));
        self.references.want(&(), secrets.map(|secret| content_key(&secret)).collect());
        let resolved = compiled.into_iter().map(|(key, store)| {
            let resolved = store.map_or_else(
                |refused| refused,
                |store| {
                    let secret = secret_of(&key, &store).map(|secret| {
                        let reference = self.references.get(&content_key(&secret));
                        (secret, reference)
                    });
                    resolve(store, key_secret, secret, key == self.rules.default)
                },
            );
            (key, resolved)
        });
        resolved.collect()
    }

    /// Gives sidecars access to the stores. Waits until all Secrets have been read and the store of the installation
    /// can be used: a new leader must not withdraw what sidecars have.
    fn publish(&self, resolved: &ResolvedStores, state: &ReconcileState) {
        // The installation's store is waited for. Others are for a short time, so that no tenant keeps sidecars waiting.
        let waits = |key: &StoreKey| {
            let is_first = !self.hub.has_stores.is_set();
            is_first && (*key == self.rules.default || state.started.elapsed() < MAX_WAIT)
        };
        let is_pending =
            |(key, resolved): (&StoreKey, &Resolved)| *resolved == Resolved::Pending && waits(key);
        if resolved.iter().any(is_pending) {
            return;
        }
        let mut sources = BTreeMap::new();
        for (key, usable) in &state.usable {
            let source = match usable.kind {
                Access::Shared => Some(StoreSource::Shared(Box::new(usable.access.clone()))),
                Access::Managed => state.managed.source(key),
            };
            match source {
                Some(source) => drop(sources.insert(key.clone(), source)),
                // Its servers are being prepared.
                None if waits(key) => return,
                None => {}
            }
        }
        let default = match (&self.spec, sources.remove(&self.rules.default)) {
            (None, _) => StoreSource::Memory,
            (Some(_), Some(source)) => source,
            (Some(_), None) if self.hub.has_stores.is_set() => return,
            (Some(_), None) => {
                tracing::warn!(
                    "sidecars receive no policies until the RateLimitStore {} can be used",
                    self.rules.default
                );
                return;
            }
        };
        let is_unresolved = |(key, resolved): (&StoreKey, &Resolved)| match resolved {
            Resolved::Pending | Resolved::Invalid(_) | Resolved::Unusable(_) => {
                (!state.usable.contains_key(key)).then(|| key.clone())
            }
            Resolved::Usable(_) | Resolved::NotAllowed => None,
        };
        let unresolved = resolved.iter().filter_map(is_unresolved).collect();
        self.hub.set_stores(HubStores { default, named: sources, unresolved });
    }

    async fn write_all(
        &self,
        objects: &StoreObjects,
        resolved: &ResolvedStores,
        state: &mut ReconcileState,
    ) -> anyhow::Result<()> {
        let mut failed = None;
        state.deferred = false;
        state.writes.retain(|key| resolved.contains_key(key));
        for (key, resolved) in resolved {
            let Some(object) = objects.get(key) else { continue };
            let is_default = *key == self.rules.default;
            let previous: Option<RateLimitStoreStatus> = part(object, "status");
            let provisioned = state.managed.provisioned(key);
            let recorded = || previous.as_ref().and_then(|previous| previous.passwords.clone());
            let passwords = match state.usable.get(key).map(|usable| usable.kind) {
                Some(Access::Shared) => None,
                // A new leader does not manage the store from its first reconcile on.
                Some(Access::Managed) | None => state.managed.passwords(key).or_else(recorded),
            };
            let observed = ObservedStore {
                generation: object.metadata.generation.unwrap_or_default(),
                resolved,
                operator_namespace: &self.rules.default.namespace,
                reports: &self.hub.store_reports((!is_default).then_some(key)),
                own: state.own.health().filter(|_| is_default),
                own_eviction: state.own.eviction().filter(|_| is_default),
                provisioned: provisioned.as_ref(),
                passwords,
                previous: previous.as_ref(),
                leader_for: state.started.elapsed(),
            };
            let status = status(&observed, Timestamp::now());
            if previous.as_ref() == Some(&status) {
                continue;
            }
            // Sidecars come and go together.
            let is_minor = previous.as_ref().map(without_numbers) == Some(without_numbers(&status));
            if is_minor && state.writes.wait(key, Instant::now()).is_some() {
                state.deferred = true;
                continue;
            }
            state.writes.written(key, Instant::now());
            match write_status::<RateLimitStore>(&self.client, object, &status).await {
                Ok(Some(_)) => {
                    if let Some(ready) = status.conditions.last() {
                        tracing::info!(store = %key, "Ready is {}, {}: {}", ready.status, ready.reason, ready.message);
                    }
                }
                // It was changed or deleted meanwhile, and the watch has noticed.
                Ok(None) => {}
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

/// Returns a status without what changes with every sidecar.
fn without_numbers(status: &RateLimitStoreStatus) -> RateLimitStoreStatus {
    let mut status = RateLimitStoreStatus { sidecars: None, ..status.clone() };
    status.conditions.iter_mut().for_each(|condition| condition.message.clear());
    status
}

/// Returns the reference to a Secret.
fn content_key(secret: &ObjectKey) -> ContentKey {
    ContentKey { kind: ContentKind::Secret, object: secret.clone() }
}
