//! Places under shared limits of requests at a time: which this process has taken in the store, given back when a request
//! has ended, and renewed as long as it has not.
//!
//! What is given back is written down in a table that one task empties, merged by limit and key: nobody who ends waits for
//! the store, and nothing is lost however many end at once.
//!
//! The store knows each process by a *holder*. Where it is in doubt whether a call was carried out, or whether places are
//! still believed, the limit goes on under a new holder. What is held under the old one is taken once more under a third, as
//! soon as there is room for that; then the old one gives back everything it may hold. So a place can be taken too long, and
//! never twice.

mod shared_limit;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use sluice_limiter::concurrency::MAX_CONCURRENT;
use sluice_store::{Counter, KeyHash, LimitSpec, Settlement, Store, StoreError, StoreHealth};
use smallvec::smallvec;
use tokio::sync::Notify;
use tokio::time::Instant;

pub(crate) use shared_limit::SharedLimit;
use shared_limit::{Lapse, holder_of};

/// How often it is looked for what is to be renewed, or to be told to a store that did not answer.
const LOOK: Duration = Duration::from_millis(500);
/// How many counters may have places of this process, or owe some. One each request in flight at most.
const MOST_ENTRIES: usize = 65_536;
/// How many counters the store is told of at a time; its own queue is for requests too.
const AT_A_TIME: usize = 256;
/// How long giving everything back at the end may take, and how often it is looked whether that is done.
const LAST: Duration = Duration::from_secs(2);
const LAST_LOOK: Duration = Duration::from_millis(5);

/// A holder's counter.
type Id = (u64, u128);

/// What this process has of a counter in a store.
#[derive(Debug)]
struct Entry {
    limit: Arc<SharedLimit>,
    spec: Arc<LimitSpec>,
    store: Arc<Store>,
    /// Checks without an answer yet.
    asked: u32,
    /// Places of requests that have not ended.
    held: u32,
    /// Places of requests that have ended, which the store does not know yet.
    owed: u32,
    /// The store may hold more for it than it has: everything is given back when it has ended.
    doubt: bool,
    lapse: Option<Lapse>,
    /// What is held is being taken under another holder.
    moving: bool,
    /// Not before.
    move_at: Instant,
    /// Until when the store believes what it was told last, by this process's clock.
    until: Instant,
}

impl Entry {
    fn new(limit: Arc<SharedLimit>, spec: Arc<LimitSpec>, store: Arc<Store>, until: Instant) -> Self {
        Self {
            limit,
            spec,
            store,
            asked: 0,
            held: 0,
            owed: 0,
            doubt: false,
            lapse: None,
            moving: false,
            move_at: Instant::now(),
            until,
        }
    }

    /// No request has to do with it any more.
    fn has_ended(&self) -> bool {
        self.asked == 0 && self.held == 0
    }
}

/// The places of this process. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Places(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    table: Mutex<Table>,
    /// There are some who owe.
    owe: Notify,
    /// Calls that the store has not answered.
    telling: AtomicUsize,
}

#[derive(Debug, Default)]
struct Table {
    entries: HashMap<Id, Entry>,
    /// Those that owe something.
    owe: Vec<Id>,
}

/// A place, asked for or taken. Dropped, it is given back.
#[derive(Debug)]
pub(crate) struct Place {
    inner: Arc<Inner>,
    id: Id,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The store has not answered.
    Asked,
    Held,
    /// The store did not answer.
    Doubt,
    Denied,
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// The store has said so.
    pub(crate) fn taken(&mut self) {
        self.state = State::Held;
        if let Some(entry) = self.inner.lock().entries.get_mut(&self.id) {
            entry.asked = entry.asked.saturating_sub(1);
            entry.held += 1;
            entry.limit.common.held.inc();
        }
    }

    /// The store has said that there is none.
    pub(crate) fn denied(&mut self) {
        self.state = State::Denied;
    }

    /// The store did not answer: it may have taken the place all the same.
    pub(crate) fn doubtful(&mut self) {
        self.state = State::Doubt;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut table = self.inner.lock();
        let Table { entries, owe } = &mut *table;
        let Some(entry) = entries.get_mut(&self.id) else { return };
        let mut owes = false;
        match self.state {
            State::Held => {
                entry.held = entry.held.saturating_sub(1);
                entry.limit.common.held.dec();
                entry.owed += 1;
                owes = entry.owed == 1;
            }
            State::Denied => entry.asked = entry.asked.saturating_sub(1),
            State::Asked | State::Doubt => {
                entry.asked = entry.asked.saturating_sub(1);
                entry.doubt = true;
                entry.limit.leave(&entry.spec);
            }
        }
        if entry.held == 0 {
            entry.lapse = None;
        }
        if entry.has_ended() && entry.owed == 0 && !entry.doubt && !entry.moving {
            entries.remove(&self.id);
        }
        if owes {
            owe.push(self.id);
            drop(table);
            self.inner.owe.notify_one();
        }
    }
}

/// What a store is to be told.
struct Call {
    id: Id,
    limit: Arc<SharedLimit>,
    spec: Arc<LimitSpec>,
    store: Arc<Store>,
    /// Places given back; all that there are if it is `None`.
    back: Option<u32>,
    /// Until when the store believes it then.
    until: Instant,
}

impl Call {
    fn new(id: Id, entry: &Entry, back: Option<u32>, until: Instant) -> Self {
        let Entry { limit, spec, store, .. } = entry;
        Self { id, limit: limit.clone(), spec: spec.clone(), store: store.clone(), back, until }
    }
}

/// Places to be taken under another holder.
struct Move {
    id: Id,
    spec: Arc<LimitSpec>,
    store: Arc<Store>,
    held: u32,
    /// Places that had ended before.
    owed: u32,
}

impl Places {
    /// A place to be asked for in a store, with the limit by which to ask; `None`: too many are held.
    pub(crate) fn ask(
        &self,
        limit: &Arc<SharedLimit>,
        key: KeyHash,
        store: &Arc<Store>,
    ) -> Option<(Place, Arc<LimitSpec>)> {
        let until = Instant::now() + limit.hold();
        let mut table = self.0.lock();
        let entries = &mut table.entries;
        let mut spec = limit.current.load_full();
        let other = |entry: &Entry| entry.doubt || !Arc::ptr_eq(&entry.store, store);
        if entries.get(&(holder_of(&spec), key.0)).is_some_and(other) {
            limit.leave(&spec);
            spec = limit.current.load_full();
        }
        let id = (holder_of(&spec), key.0);
        if entries.len() >= MOST_ENTRIES && !entries.contains_key(&id) {
            return None;
        }
        let new = || Entry::new(limit.clone(), spec.clone(), store.clone(), until);
        let entry = entries.entry(id).or_insert_with(new);
        entry.asked += 1;
        drop(table);
        Some((Place { inner: self.0.clone(), id, state: State::Asked }, spec))
    }

    /// Tells the store what is owed, and renews what is held, for ever.
    pub(crate) async fn keep(self) {
        let mut next = Instant::now() + LOOK;
        loop {
            // Who ends while the store is being told is told of together, the next time.
            let _ = tokio::time::timeout_at(next, self.0.owe.notified()).await;
            self.tell(self.owed()).await;
            if Instant::now() >= next {
                self.tell(self.due()).await;
                let moves = self.moves();
                join_all(moves.into_iter().map(|one| self.take_anew(one))).await;
                next = Instant::now() + LOOK;
            }
        }
    }

    /// What is owed, taken out of the table.
    fn owed(&self) -> Vec<Call> {
        let now = Instant::now();
        let mut table = self.0.lock();
        let Table { entries, owe } = &mut *table;
        let mut calls = Vec::with_capacity(owe.len());
        for id in owe.drain(..) {
            let ready = |entry: &&mut Entry| entry.owed > 0 && !entry.moving;
            let Some(entry) = entries.get_mut(&id).filter(ready) else { continue };
            let back = std::mem::take(&mut entry.owed);
            if !entry.has_ended() {
                calls.push(Call::new(id, entry, Some(back), now + entry.limit.hold()));
            } else if let Some(entry) = entries.remove(&id) {
                // A call that fails puts it back.
                calls.push(Call::new(id, &entry, (!entry.doubt).then_some(back), entry.until));
            }
        }
        self.0.telling.fetch_add(calls.len(), Ordering::AcqRel);
        calls
    }

    /// What is to be renewed, and what is still to be made certain.
    fn due(&self) -> Vec<Call> {
        let now = Instant::now();
        let mut calls = Vec::new();
        self.0.lock().entries.retain(|&id, entry| {
            if entry.moving {
                return true;
            }
            if entry.has_ended() {
                if entry.owed > 0 {
                    return true;
                }
                // The store forgets by itself what it was not told of in time.
                if entry.doubt && now < entry.until {
                    calls.push(Call::new(id, entry, None, entry.until));
                }
                return false;
            }
            let hold = entry.limit.hold();
            if entry.held > 0 && entry.until <= now && entry.lapse.is_none() {
                entry.lapse = Some(Lapse::of(&entry.limit.common));
                entry.doubt = true;
                entry.limit.leave(&entry.spec);
            }
            if entry.held > 0 && entry.until <= now + hold * 2 / 3 {
                calls.push(Call::new(id, entry, Some(0), now + hold));
            }
            true
        });
        self.0.telling.fetch_add(calls.len(), Ordering::AcqRel);
        calls
    }

    /// What is held in doubt, and can be taken anew.
    fn moves(&self) -> Vec<Move> {
        let now = Instant::now();
        let mut moves = Vec::new();
        for (&id, entry) in &mut self.0.lock().entries {
            let ready = entry.doubt && !entry.moving && entry.asked == 0 && entry.held > 0;
            if !ready || now < entry.move_at || entry.store.health() != StoreHealth::Healthy {
                continue;
            }
            let Some(spec) = entry.limit.other() else { continue };
            entry.moving = true;
            moves.push(Move { id, spec, store: entry.store.clone(), held: entry.held, owed: entry.owed });
            if moves.len() == AT_A_TIME {
                break;
            }
        }
        moves
    }

    /// Takes what is held under another holder, and gives back everything under the old one.
    async fn take_anew(&self, one: Move) {
        let Move { id, spec, store, held, owed } = one;
        let began = Instant::now();
        let counter = Counter { limit: spec.clone(), key: KeyHash(id.1), cost: u64::from(held) };
        let taken = store.check(smallvec![counter]).await;
        let old = {
            let mut table = self.0.lock();
            let Table { entries, owe } = &mut *table;
            let Some(entry) = entries.get_mut(&id) else { return };
            entry.moving = false;
            let moved = matches!(&taken, Ok(answer) if answer.admitted);
            let old = moved.then(|| Call::new(id, entry, None, began));
            if moved {
                entry.spec = spec;
                entry.doubt = false;
                entry.lapse = None;
                entry.until = began + entry.limit.hold();
                // What was owed before, the old holder gives back with the rest.
                entry.owed -= owed.min(entry.owed);
            } else {
                // An attempt of which nothing is known counts twice until it runs out.
                entry.move_at = began + if taken.is_ok() { LOOK } else { entry.limit.hold() };
            }
            if entry.owed > 0 {
                owe.push(id);
            }
            old
        };
        self.0.owe.notify_one();
        if let Some(old) = old {
            self.0.telling.fetch_add(1, Ordering::AcqRel);
            self.tell(vec![old]).await;
        }
    }

    async fn tell(&self, calls: Vec<Call>) {
        let mut calls = calls.into_iter();
        loop {
            let some: Vec<_> = calls.by_ref().take(AT_A_TIME).map(|call| self.call(call)).collect();
            if some.is_empty() {
                return;
            }
            join_all(some).await;
        }
    }

    async fn call(&self, call: Call) {
        let Call { id, limit, spec, store, back, until } = call;
        let delta = -back.map_or(MAX_CONCURRENT as i64, i64::from);
        let settlement = Settlement { limit: spec.clone(), key: KeyHash(id.1), charged: 0, delta };
        let result = store.settle(settlement).await;
        self.0.telling.fetch_sub(1, Ordering::AcqRel);
        let mut table = self.0.lock();
        let Table { entries, owe } = &mut *table;
        match (result, back) {
            (Ok(()), _) => {
                if let Some(entry) = entries.get_mut(&id) {
                    entry.until = entry.until.max(until);
                }
            }
            // Whether it is renewed in time is seen by the next look.
            (Err(_), Some(0)) => {}
            // It was not sent.
            (Err(StoreError::Overloaded), Some(back)) => {
                let entry = entries.entry(id).or_insert_with(|| Entry::new(limit, spec, store, until));
                entry.owed += back;
                owe.push(id);
            }
            (Err(_), _) => {
                let entry = entries.entry(id).or_insert_with(|| Entry::new(limit, spec, store, until));
                entry.doubt = true;
                entry.limit.leave(&entry.spec);
            }
        }
    }

    /// Waits until the last place has been given back, until `deadline`; then gives back all that are left.
    pub(crate) async fn leave(&self, deadline: Instant) {
        let ended = async {
            while self.0.lock().entries.values().any(|entry| !entry.has_ended()) {
                tokio::time::sleep(LAST_LOOK).await;
            }
        };
        let _ = tokio::time::timeout_at(deadline, ended).await;
        let left: Vec<Call> = {
            let mut table = self.0.lock();
            table.entries.drain().map(|(id, entry)| Call::new(id, &entry, None, entry.until)).collect()
        };
        self.0.telling.fetch_add(left.len(), Ordering::AcqRel);
        let told = async {
            self.tell(left).await;
            while self.0.telling.load(Ordering::Acquire) > 0 {
                tokio::time::sleep(LAST_LOOK).await;
            }
        };
        if tokio::time::timeout(LAST, told).await.is_err() {
            tracing::warn!("places could not be given back: others get them when their time is over");
        }
    }
}

#[cfg(test)]
mod tests;
