//! Resets of single clients, as the operator orders them. Each is carried out once, and tried again until it succeeds or
//! the order is withdrawn.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_config::message::{ResetOrder, ResetReport, ResetStep, ResetUid};
use sluice_store::KeyHash;
use tokio::sync::Notify;

use crate::limit::index::LimitIndex;
use crate::limit::snapshot::Snapshot;
use crate::publish::publisher::Publisher;

/// Largest number of resets. The operator orders fewer at a time.
const MAX_RESETS: usize = 1024;

/// The resets that are ordered at present. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct ResetOrders(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    orders: Mutex<BTreeMap<ResetUid, Ordered>>,
    /// Notified when there is a result.
    results: Notify,
}

/// One order.
#[derive(Debug)]
struct Ordered {
    order: ResetOrder,
    /// The last result, or `None` before the first.
    result: Option<ResetReport>,
    /// Whether it is being carried out now.
    is_running: bool,
    /// Whether the present session has ordered it.
    is_ordered: bool,
}

impl Ordered {
    fn is_waiting(&self) -> bool {
        self.is_ordered && !self.is_running && !self.is_finished()
    }

    fn is_finished(&self) -> bool {
        match self.order.step {
            ResetStep::Remove => matches!(self.result, Some(ResetReport::Removed { .. })),
            ResetStep::Forget { .. } => matches!(self.result, Some(ResetReport::Forgotten { .. })),
        }
    }
}

impl ResetOrders {
    /// Replaces the orders. The results of those that stay the same are kept.
    pub(crate) fn receive(&self, orders: BTreeMap<ResetUid, ResetOrder>) {
        let mut all = self.lock();
        let mut before = std::mem::take(&mut *all);
        for (uid, order) in orders.into_iter().take(MAX_RESETS) {
            let known = before.remove(&uid).filter(|known| known.order == order);
            let (result, is_running) = known.map_or((None, false), |known| (known.result, known.is_running));
            all.insert(uid, Ordered { order, result, is_running, is_ordered: true });
        }
    }

    /// Begins a session, which may have withdrawn orders: none is carried out until it is received again. The results are
    /// kept until then.
    pub(crate) fn begin_session(&self) {
        self.lock().values_mut().for_each(|ordered| ordered.is_ordered = false);
    }

    /// Starts the resets that are neither finished nor being carried out.
    pub(crate) fn carry_out(&self, publisher: &Publisher) {
        let mut all = self.lock();
        for (uid, ordered) in all.iter_mut().filter(|(_, one)| one.is_waiting()) {
            ordered.is_running = true;
            let (orders, uid, order) = (self.clone(), uid.clone(), ordered.order.clone());
            let snapshot = publisher.current();
            tokio::spawn(async move {
                let result = carry_out(&snapshot, &order).await;
                let result = result.unwrap_or_else(|reason| ResetReport::Failed { reason });
                if let Some(ordered) = orders.lock().get_mut(&uid).filter(|ordered| ordered.order == order) {
                    ordered.result = Some(result);
                    ordered.is_running = false;
                }
                orders.0.results.notify_one();
            });
        }
    }

    /// Waits until there is a result that may not have been reported.
    pub(crate) async fn has_results(&self) {
        self.0.results.notified().await;
    }

    /// Returns the results.
    pub(crate) fn report(&self) -> BTreeMap<ResetUid, ResetReport> {
        let all = self.lock();
        let ordered = all.iter().filter(|(_, ordered)| ordered.is_ordered);
        ordered.filter_map(|(uid, ordered)| Some((uid.clone(), ordered.result.clone()?))).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ResetUid, Ordered>> {
        // No statement that changes the orders can panic halfway.
        self.0.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Carries out a step.
pub(crate) async fn carry_out(snapshot: &Snapshot, order: &ResetOrder) -> Result<ResetReport, String> {
    let key: KeyHash = order.key.parse().map_err(|error| format!("{:?}: {error}", order.key))?;
    let index = find(snapshot, order)?;
    let limit = snapshot.limit(index);
    if limit.adaptive.is_some() {
        return Err(format!("limit {} adapts to the load of the pod and has no counters", order.limit));
    }
    let limiter = snapshot.limiter(index);
    match order.step {
        ResetStep::Remove => {
            let failed = |error| format!("the counter could not be removed: {error}");
            let at = limiter.reset_in_store(&limit.base().plan, key).await.map_err(failed)?;
            // A reservation that is settled later must not give back what was never charged to the new counter.
            limiter.reset_in_store(&limit.ledger(), key).await.map_err(failed)?;
            Ok(ResetReport::Removed { at })
        }
        ResetStep::Forget { removed_at } => {
            let plans: Vec<_> = limit.plans().into_iter().chain([Arc::new(limit.ledger())]).collect();
            limiter.forget(&plans, key, removed_at);
            Ok(ResetReport::Forgotten { removed_at })
        }
    }
}

fn find(snapshot: &Snapshot, order: &ResetOrder) -> Result<LimitIndex, String> {
    let mut policies = (0..).zip(&*snapshot.policies);
    let (p, policy) = policies
        .find(|(_, policy)| {
            policy.prepared.name == order.policy && policy.prepared.namespace == order.namespace
        })
        .ok_or_else(|| format!("policy {} is not active yet", order.policy))?;
    let mut limits = (0..).zip(&policy.prepared.limits);
    let (l, _) = limits
        .find(|(_, limit)| limit.name == order.limit)
        .ok_or_else(|| format!("policy {} has no limit {}", order.policy, order.limit))?;
    Ok(LimitIndex { policy: p, limit: l, rates: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(step: ResetStep) -> BTreeMap<ResetUid, ResetOrder> {
        let [namespace, policy, limit, key] = ["n", "p", "l", "q83vEjRWeJCrze8SNFZ4kA"].map(str::to_owned);
        [("r".to_owned(), ResetOrder { namespace, policy, limit, key, step })].into()
    }

    fn finish(orders: &ResetOrders, result: &ResetReport) {
        orders.lock().get_mut("r").unwrap().result = Some(result.clone());
    }

    #[test]
    fn a_result_belongs_to_the_order_that_it_is_of() {
        let orders = ResetOrders::default();
        let forget = |removed_at| order(ResetStep::Forget { removed_at });
        orders.receive(forget(5));
        let forgotten = ResetReport::Forgotten { removed_at: 5 };
        finish(&orders, &forgotten);
        orders.begin_session();
        assert!(orders.report().is_empty());
        // A new session may send the same order again.
        orders.receive(forget(5));
        assert_eq!(orders.report(), [("r".to_owned(), forgotten)].into());
        assert!(orders.lock()["r"].is_finished());
        for other in [forget(6), order(ResetStep::Remove)] {
            orders.receive(other);
            assert!(orders.report().is_empty() && !orders.lock()["r"].is_finished());
            finish(&orders, &ResetReport::Failed { reason: "no".into() });
            assert!(!orders.lock()["r"].is_finished(), "it is tried again");
        }
        assert!(orders.lock()["r"].is_waiting());
        orders.begin_session();
        assert!(!orders.lock()["r"].is_waiting(), "it may have been withdrawn");
        orders.receive(BTreeMap::new());
        assert!(orders.report().is_empty() && orders.lock().is_empty());
    }
}
