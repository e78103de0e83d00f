//! Whose work is next. Each caller has a queue, the queues take turns, and no caller has more work in hand than it leaves to others: so
//! one that floods waits for itself, and one that does not hardly waits.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::quality::RandomState;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

/// The work that is in hand, and that waits. Clones share it.
#[derive(Debug)]
pub struct Turns<K>(Arc<Shared<K>>);

impl<K> Clone for Turns<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

#[derive(Debug)]
struct Shared<K> {
    capacity: usize,
    room: usize,
    state: Mutex<TurnState<K>>,
}

#[derive(Debug)]
struct TurnState<K> {
    in_hand: usize,
    waiting: usize,
    /// Number of the next work that waits.
    next: u64,
    callers: HashMap<K, Caller<K>, RandomState>,
    /// Callers with work that waits, in turn.
    order: VecDeque<K>,
    /// Whether the next work waits for more room than there is. Nothing overtakes it.
    is_blocked: bool,
}

#[derive(Debug)]
struct Caller<K> {
    in_hand: usize,
    waiting: usize,
    /// By the order in which it came.
    queue: BTreeMap<u64, Waiting<K>>,
}

impl<K> Default for Caller<K> {
    fn default() -> Self {
        Self { in_hand: 0, waiting: 0, queue: BTreeMap::new() }
    }
}

#[derive(Debug)]
struct Waiting<K> {
    weight: usize,
    begin: oneshot::Sender<Turn<K>>,
}

/// The work cannot be done in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there is too much work before it")]
pub struct TooLate;

/// The right to do work of a weight. It ends when it is dropped.
#[derive(Debug)]
pub struct Turn<K>(Held<K>);

#[derive(Debug)]
struct Held<K> {
    turns: Turns<K>,
    caller: K,
    weight: usize,
    release: fn(&mut Self),
}

impl<K> Drop for Held<K> {
    fn drop(&mut self) {
        (self.release)(self);
    }
}

impl<K: Eq + Hash + Clone> Turns<K> {
    /// Creates turns for work of the weight `capacity` at a time, while work of at most the weight `room` waits.
    #[must_use]
    pub fn new(capacity: usize, room: usize) -> Self {
        let (callers, order) = (HashMap::default(), VecDeque::new());
        let state = TurnState { in_hand: 0, waiting: 0, next: 0, callers, order, is_blocked: false };
        let state = Mutex::new(state);
        Self(Arc::new(Shared { capacity, room, state }))
    }

    fn lock(&self) -> MutexGuard<'_, TurnState<K>> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a caller's work at once, if it is its turn. What weighs more than can be in hand counts as if it weighed that.
    #[must_use]
    pub fn begin_at_once(&self, caller: &K, weight: usize) -> Option<Turn<K>> {
        let mut state = self.lock();
        self.try_begin(&mut state, caller, weight.min(self.0.capacity))
    }

    fn try_begin(&self, state: &mut TurnState<K>, caller: &K, weight: usize) -> Option<Turn<K>> {
        let waits = state.callers.get(caller).is_some_and(|caller| !caller.queue.is_empty());
        let free = self.0.capacity - state.in_hand;
        let may_begin = !waits && !state.is_blocked && state.may_begin(caller, weight, free);
        may_begin.then(|| self.begin(state, caller.clone(), weight))
    }

    /// Waits for the turn of a caller's work, as [`Turns::begin_at_once`] begins it.
    ///
    /// # Errors
    /// The turn does not come before the deadline, or too much work waits already: of all callers, or of this one, which leaves as much
    /// room to others as it takes.
    pub async fn turn(&self, caller: &K, weight: usize, deadline: Instant) -> Result<Turn<K>, TooLate> {
        let weight = weight.min(self.0.capacity);
        let (number, begins) = {
            let mut state = self.lock();
            let state = &mut *state;
            if let Some(turn) = self.try_begin(state, caller, weight) {
                return Ok(turn);
            }
            let (own, in_hand) =
                state.callers.get(caller).map_or((0, 0), |caller| (caller.waiting, caller.in_hand));
            let room = self.0.room - state.waiting;
            if weight > room || own > 0 && own + weight > room - weight {
                return Err(TooLate);
            }
            state.waiting += weight;
            let waits = state.callers.get(caller).is_some_and(|caller| !caller.queue.is_empty());
            if !waits {
                state.order.push_back(caller.clone());
                // It waits for nothing but room, so nothing overtakes it.
                state.is_blocked |= in_hand == 0;
            }
            let number = state.next;
            state.next += 1;
            let (begin, begins) = oneshot::channel();
            let caller = state.callers.entry(caller.clone()).or_default();
            caller.waiting += weight;
            caller.queue.insert(number, Waiting { weight, begin });
            (number, begins)
        };
        let _leaving = Leaving { turns: self, caller, number };
        match timeout_at(deadline, begins).await {
            Ok(Ok(turn)) => Ok(turn),
            Ok(Err(_)) | Err(_) => Err(TooLate),
        }
    }

    fn begin(&self, state: &mut TurnState<K>, caller: K, weight: usize) -> Turn<K> {
        state.in_hand += weight;
        state.callers.entry(caller.clone()).or_default().in_hand += weight;
        Turn(Held { turns: self.clone(), caller, weight, release: Self::release })
    }

    fn release(held: &mut Held<K>) {
        let mut state = held.turns.lock();
        state.in_hand -= held.weight;
        if let Some(caller) = state.callers.get_mut(&held.caller) {
            caller.in_hand -= held.weight;
            if caller.in_hand == 0 && caller.queue.is_empty() {
                state.callers.remove(&held.caller);
            }
        }
        held.turns.go_on(state);
    }

    /// Begins all work that may begin.
    fn go_on(&self, mut state: MutexGuard<'_, TurnState<K>>) {
        let begun = self.next(&mut state);
        drop(state);
        // A turn that nobody waits for any more ends at once.
        begun.into_iter().for_each(|(begin, turn)| drop(begin.send(turn)));
    }

    /// Takes all work out of its queue that may begin.
    fn next(&self, state: &mut TurnState<K>) -> Vec<(oneshot::Sender<Turn<K>>, Turn<K>)> {
        let mut begun = Vec::new();
        let mut passed = 0;
        state.is_blocked = false;
        while passed < state.order.len() && !state.is_blocked {
            let Some(caller) = state.order.pop_front() else { break };
            let free = self.0.capacity - state.in_hand;
            let weight =
                state.callers.get(&caller).and_then(|one| Some(one.queue.first_key_value()?.1.weight));
            let Some(weight) = weight else { continue };
            if !state.may_begin(&caller, weight, free) {
                state.is_blocked = state.callers.get(&caller).is_some_and(|one| one.in_hand == 0);
                if state.is_blocked {
                    state.order.push_front(caller);
                } else {
                    state.order.push_back(caller);
                    passed += 1;
                }
                continue;
            }
            passed = 0;
            let one = state.callers.entry(caller.clone()).or_default();
            let next = one.queue.pop_first();
            one.waiting -= weight;
            if !one.queue.is_empty() {
                state.order.push_back(caller.clone());
            }
            if let Some((_, Waiting { weight, begin })) = next {
                state.waiting -= weight;
                begun.push((begin, self.begin(state, caller, weight)));
            }
        }
        begun
    }

    /// Returns the weight of the work that waits.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.lock().waiting
    }
}

impl<K: Eq + Hash> TurnState<K> {
    /// Reports whether a caller's work may begin: it has nothing in hand, or leaves as much to others as it has.
    fn may_begin(&self, caller: &K, weight: usize, free: usize) -> bool {
        let own = self.callers.get(caller).map_or(0, |caller| caller.in_hand);
        weight <= free && (own == 0 || own + weight <= free - weight)
    }
}

/// Work whose wait ends.
struct Leaving<'a, K: Eq + Hash + Clone> {
    turns: &'a Turns<K>,
    caller: &'a K,
    number: u64,
}

impl<K: Eq + Hash + Clone> Drop for Leaving<'_, K> {
    fn drop(&mut self) {
        let mut guard = self.turns.lock();
        let state = &mut *guard;
        let Some(caller) = state.callers.get_mut(self.caller) else { return };
        // It has had its turn otherwise.
        let Some(left) = caller.queue.remove(&self.number) else { return };
        caller.waiting -= left.weight;
        state.waiting -= left.weight;
        if caller.queue.is_empty() {
            state.order.retain(|waiting| waiting != self.caller);
            if caller.in_hand == 0 {
                state.callers.remove(self.caller);
            }
        }
        // Others may have waited for it.
        self.turns.go_on(guard);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt as _;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(1)
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_floods_leaves_room_for_others() {
        let turns = Turns::new(8, 100);
        let mut held = Vec::new();
        let mut waiting = Vec::new();
        for _ in 0..20 {
            let mut turn = Box::pin(turns.turn(&"flood", 1, soon()));
            match turn.as_mut().now_or_never() {
                Some(turn) => held.push(turn.unwrap()),
                None => waiting.push(turn),
            }
        }
        assert_eq!((held.len(), turns.waiting()), (4, 16));
        let other = turns.turn(&"other", 1, soon()).now_or_never();
        assert!(matches!(other, Some(Ok(_))), "it does not wait");
        drop(other);
        // A turn that ends is the next one's of the same caller.
        held.clear();
        let begun: Vec<_> = waiting.iter_mut().filter_map(|turn| turn.as_mut().now_or_never()).collect();
        assert_eq!(begun.len(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn queues_take_turns_and_nothing_overtakes_what_weighs_much() {
        let turns = Turns::new(4, 100);
        let first = turns.turn(&0, 4, soon()).await.unwrap();
        let mut large = Box::pin(turns.turn(&1, 3, soon()));
        let mut small = Box::pin(turns.turn(&2, 2, soon()));
        assert!(large.as_mut().now_or_never().is_none() && small.as_mut().now_or_never().is_none());
        drop(first);
        let held = large.as_mut().now_or_never().unwrap().unwrap();
        assert!(small.as_mut().now_or_never().is_none(), "there is no room for both");
        let mut late = Box::pin(turns.turn(&3, 1, soon()));
        assert!(late.as_mut().now_or_never().is_none(), "it does not overtake");
        drop(held);
        assert!(small.as_mut().now_or_never().is_some() && late.as_mut().now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_is_too_late_leaves_no_trace() {
        let turns = Turns::new(1, 2);
        let held = turns.turn(&0, 9, soon()).await.unwrap();
        assert_eq!(turns.turn(&1, 1, soon()).await.err(), Some(TooLate));
        assert_eq!(turns.waiting(), 0);
        let both = [1, 2].map(|caller| {
            let turns = turns.clone();
            let mut turn = Box::pin(async move { turns.turn(&caller, 1, soon()).await });
            assert!(turn.as_mut().now_or_never().is_none());
            turn
        });
        assert_eq!(turns.turn(&3, 1, soon()).now_or_never().unwrap().err(), Some(TooLate), "no room to wait");
        drop(both);
        drop(held);
        let state = turns.lock();
        assert!(state.callers.is_empty() && state.order.is_empty(), "{state:?}");
        assert_eq!((state.in_hand, state.waiting), (0, 0));
    }

    #[tokio::test]
    async fn a_turn_that_nobody_waits_for_any_more_is_given_on() {
        let turns = Turns::new(1, 9);
        let held = turns.turn(&0, 1, soon()).await.unwrap();
        let mut left = Box::pin(turns.turn(&1, 1, soon()));
        let mut next = Box::pin(turns.turn(&2, 1, soon()));
        assert!(left.as_mut().now_or_never().is_none() && next.as_mut().now_or_never().is_none());
        drop(held);
        drop(left);
        assert!(next.as_mut().now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_leaves_others_room_to_wait() {
        let turns = Turns::new(1, 8);
        let _held = turns.turn(&0, 1, soon()).await.unwrap();
        let mut waiting = Vec::new();
        for _ in 0..8 {
            let mut turn = Box::pin(turns.turn(&1, 1, soon()));
            match turn.as_mut().now_or_never() {
                None => waiting.push(turn),
                Some(refused) => assert_eq!(refused.err(), Some(TooLate)),
            }
        }
        assert_eq!(turns.waiting(), 4);
        assert!(turns.turn(&2, 1, soon()).now_or_never().is_none(), "it waits");
    }

    #[tokio::test(start_paused = true)]
    async fn those_behind_work_that_is_too_late_go_on() {
        let turns = Turns::new(10, 100);
        let held = turns.turn(&0, 6, soon()).await.unwrap();
        let mut large = Box::pin(turns.turn(&1, 8, soon()));
        assert!(large.as_mut().now_or_never().is_none());
        let mut small = Box::pin(turns.turn(&2, 1, soon()));
        assert!(small.as_mut().now_or_never().is_none(), "it does not overtake");
        drop(large);
        assert!(small.as_mut().now_or_never().is_some());
        drop(held);
    }
}
