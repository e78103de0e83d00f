//! Workloads that policies refer to. A workload says by its selector which pods are its own. Its kind is watched in a
//! namespace while a policy of the namespace refers to the kind.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::runtime::watcher;
use sluice_crds::policy::TargetKind;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use self::target::Target;
use crate::cluster::wanted::Wanted;
use crate::cluster::watch::{Change, follow};
use crate::object_key::PolicyKey;

pub mod target;

/// Number of workloads in a page of the first list. A workload may be large, and only its selector is kept.
const PAGE: u32 = 50;

/// A workload that a policy refers to.
#[derive(Debug, Clone, PartialEq)]
pub enum Found {
    /// The workloads of its kind have not been listed yet.
    Pending,
    /// It does not exist.
    Missing,
    /// It exists.
    Target(Arc<Target>),
}

/// The workloads that policies refer to.
pub struct Targets {
    client: kube::Client,
    shared: Arc<Shared>,
}

/// The part that the watches change.
struct Shared {
    state: Mutex<State>,
    /// Notified when a first list is complete.
    listed: Notify,
    /// Receives the policies that a change may affect.
    on_change: Box<dyn Fn(Vec<PolicyKey>) + Send + Sync>,
}

#[derive(Default)]
struct State {
    /// The kinds that each policy refers to.
    wanted: Wanted<PolicyKey, Kind>,
    tables: BTreeMap<Kind, Table>,
    /// Number of watches that were started.
    started: u64,
}

/// A kind in a namespace.
type Kind = (String, TargetKind);

/// The workloads of one kind in one namespace.
struct Table {
    /// The watch that fills the table. One that was ended may still report a change.
    id: u64,
    listed: bool,
    targets: BTreeMap<String, Arc<Target>>,
    watch: AbortHandle,
}

impl Drop for Table {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl Targets {
    /// Watches nothing yet. Passes the policies that a change may affect to `on_change`.
    pub fn new(client: kube::Client, on_change: impl Fn(Vec<PolicyKey>) + Send + Sync + 'static) -> Self {
        let shared =
            Shared { state: Mutex::default(), listed: Notify::new(), on_change: Box::new(on_change) };
        Self { client, shared: Arc::new(shared) }
    }

    /// Watches these kinds for a policy, and no others. Must be called within a tokio runtime.
    pub fn want(&self, policy: &PolicyKey, kinds: BTreeSet<TargetKind>) {
        let mut state = self.shared.lock();
        let kinds = kinds.into_iter().map(|kind| (policy.namespace.clone(), kind));
        if !state.wanted.set(policy, kinds.collect()) {
            return;
        }
        let State { wanted, tables, started } = &mut *state;
        let kinds = wanted.all();
        tables.retain(|kind, _| kinds.contains(kind));
        for kind in kinds {
            tables.entry(kind).or_insert_with_key(|kind| {
                *started += 1;
                self.start(kind, *started)
            });
        }
    }

    /// Waits until all workloads of the kinds that a policy refers to have been listed.
    pub async fn listed(&self, policy: &PolicyKey) {
        loop {
            let notified = self.shared.listed.notified();
            if self.shared.lock().is_listed(policy) {
                return;
            }
            notified.await;
        }
    }

    /// Returns what is known of a workload.
    #[must_use]
    pub fn find(&self, namespace: &str, kind: TargetKind, name: &str) -> Found {
        let state = self.shared.lock();
        match state.tables.get(&(namespace.to_owned(), kind)).filter(|table| table.listed) {
            None => Found::Pending,
            Some(table) => table.targets.get(name).cloned().map_or(Found::Missing, Found::Target),
        }
    }

    fn start(&self, kind: &Kind, id: u64) -> Table {
        let objects = api(self.client.clone(), &kind.0, kind.1);
        let (shared, kind) = (Arc::downgrade(&self.shared), kind.clone());
        let watch = tokio::spawn(async move {
            let stream = watcher::watcher(objects, watcher::Config::default().page_size(PAGE));
            follow(stream, |change| Shared::apply(&shared, &kind, id, change)).await;
        });
        Table { id, listed: false, targets: BTreeMap::new(), watch: watch.abort_handle() }
    }
}

impl Shared {
    fn apply(shared: &Weak<Self>, kind: &Kind, id: u64, change: Change<DynamicObject>) {
        let Some(shared) = shared.upgrade() else { return };
        let mut state = shared.lock();
        let Some(table) = state.tables.get_mut(kind).filter(|table| table.id == id) else { return };
        let is_change = match change {
            Change::Applied(object) => {
                let target = Arc::new(Target::read(kind.1, &object));
                table.targets.insert(object.name_any(), target.clone()) != Some(target)
            }
            Change::Deleted { name, .. } => table.targets.remove(&name).is_some(),
            Change::Listed => !std::mem::replace(&mut table.listed, true),
        };
        if !is_change || !table.listed {
            return;
        }
        let policies = state.wanted.owners_of(kind);
        drop(state);
        shared.listed.notify_waiters();
        (shared.on_change)(policies);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No statement that changes the state can panic halfway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_listed(&self, policy: &PolicyKey) -> bool {
        self.wanted.of(policy).all(|kind| self.tables.get(kind).is_some_and(|table| table.listed))
    }
}

/// Reads one workload once. It is listed by its name, so the right to list is enough.
pub async fn read(
    client: kube::Client,
    namespace: &str,
    kind: TargetKind,
    name: &str,
) -> kube::Result<Option<Target>> {
    let by_name = ListParams::default().fields(&format!("metadata.name={name}")).limit(1);
    let objects = api(client, namespace, kind).list(&by_name).await?;
    Ok(objects.iter().next().map(|object| Target::read(kind, object)))
}

fn api(client: kube::Client, namespace: &str, kind: TargetKind) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk(kind.group(), "v1", &format!("{kind:?}"));
    Api::namespaced_with(client, namespace, &ApiResource::from_gvk(&kind))
}
