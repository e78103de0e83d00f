//! Calls that a server redirects to another one, or that have to be repeated. A redirected call had no
//! effect. Its callers keep their deadlines.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::cluster::{Cluster, Groups};
use super::multi_slot;
use crate::check::Counter;
use crate::failure::{StoreError, StoreFault};
use crate::redis::batch::{Batch, BatchGroup};
use crate::redis::connect::{Redirect, split};
use crate::redis::pipeline::{QueueItem, RedirectHandler, RepeatedBatch, ScriptCall};

/// Delay of a call that no server accepts at the moment.
const PAUSE: Duration = Duration::from_millis(5);

/// Number of consecutive redirections without a delay. Two servers may redirect a call to each other as long
/// as they disagree about a hash slot.
const MAX_REDIRECTS: u32 = 3;

impl RedirectHandler for Cluster {
    fn refresh_soon(&self) {
        self.refresh.notify_one();
    }

    fn redirect(self: Arc<Self>, redirect: Redirect, from: &str, call: ScriptCall) {
        let slot = call.group.slot();
        let (batch, redirects) = (call.batch, call.redirects + 1);
        let item = |batch, asking| {
            let group = BatchGroup::of_slot(slot);
            QueueItem::Repeated(Box::new(RepeatedBatch { group, batch, asking, redirects }))
        };
        let pause = if redirects > MAX_REDIRECTS { PAUSE } else { Duration::ZERO };
        match redirect {
            Redirect::Moved(address) => {
                self.refresh_soon();
                self.change(|map| {
                    if let Some(node) = self.server(map, &complete(&address, from)) {
                        map.owners.insert(slot, node);
                    }
                });
                self.push_later(slot, vec![item(batch, false)], pause);
            }
            Redirect::Ask(address) => {
                self.mark_moving(slot);
                let mut target = None;
                self.change(|map| target = self.server(map, &complete(&address, from)));
                match target {
                    // The new server only accepts a call on several keys once all of them have arrived.
                    Some(node) if batch.len() == 1 && pause.is_zero() => node.push(item(batch, true)),
                    _ => self.send_singly(slot, batch, redirects, pause),
                }
            }
            Redirect::TryAgain => {
                self.mark_moving(slot);
                self.send_singly(slot, batch, redirects, PAUSE);
            }
            Redirect::Down => {
                self.refresh_soon();
                self.push_later(slot, vec![item(batch, false)], PAUSE);
            }
        }
    }
}

impl Cluster {
    /// Sends a batch again with one call per entry, and per counter where an entry has several: while a hash
    /// slot moves, its keys may be on two servers.
    fn send_singly(self: &Arc<Self>, slot: u16, batch: Batch, redirects: u32, pause: Duration) {
        let deadline = batch.first_deadline();
        let mut singles = Vec::new();
        for single in batch.into_singles() {
            match single.into_check() {
                Err(batch) => {
                    let group = BatchGroup::of_slot(slot);
                    let redirected = RepeatedBatch { group, batch, asking: false, redirects };
                    singles.push(QueueItem::Repeated(Box::new(redirected)));
                }
                Ok((check, callers)) => {
                    let check = Arc::new(check);
                    for caller in callers {
                        let (cluster, check) = (self.clone(), check.clone());
                        self.runtime.spawn(async move {
                            let group =
                                |counter: &Counter| BatchGroup::of_key(slot, &counter.limit, counter.key);
                            let groups: Groups = check.iter().map(group).collect();
                            let deadline = deadline.unwrap_or_else(Instant::now);
                            // The caller may have given up.
                            let _ = caller.send(multi_slot::check(&cluster, &check, &groups, deadline).await);
                        });
                    }
                }
            }
        }
        self.push_later(slot, singles, pause);
    }

    /// Queues items after a pause for the server that owns the hash slot by then.
    fn push_later(self: &Arc<Self>, slot: u16, items: Vec<QueueItem>, pause: Duration) {
        let push = move |cluster: &Self, items: Vec<QueueItem>| match cluster.owner(slot) {
            Some(node) => items.into_iter().for_each(|item| node.push(item)),
            None => {
                let error = StoreError::Unavailable(StoreFault::Unreachable);
                items.into_iter().for_each(|item| item.fail(&error));
            }
        };
        if pause.is_zero() {
            return push(self, items);
        }
        let cluster = self.clone();
        self.runtime.spawn(async move {
            sleep(pause).await;
            push(&cluster, items);
        });
    }
}

/// Completes an address without a host by the host of the server that sent it.
fn complete(address: &str, from: &str) -> String {
    match (split(address), split(from)) {
        (Some(("" | "?", port)), Some((host, _))) => format!("{host}:{port}"),
        _ => address.to_owned(),
    }
}
