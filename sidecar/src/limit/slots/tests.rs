//! Places, with a store that is asked for real.

use prometheus_client::metrics::gauge::Gauge;
use sluice_limiter::{Period, Requests};
use sluice_store::{Clock, MemoryStore};

use super::*;

const KEY: KeyHash = KeyHash(7);

struct Stage {
    places: Places,
    limit: Arc<SharedLimit>,
    store: Arc<Store>,
}

impl Stage {
    fn new(max: u64) -> Self {
        let store = MemoryStore::new(100, Clock::manual(60_000_000));
        let (max, hold) = (Requests::new(max).unwrap(), Period::from_millis(30_000).unwrap());
        let limit = SharedLimit::new("n/p/l", max, hold, Gauge::default(), None).unwrap();
        Self { places: Places::default(), limit, store: Arc::new(Store::Memory(store)) }
    }

    fn ask(&self) -> (Place, Arc<LimitSpec>) {
        self.places.ask(&self.limit, KEY, &self.store).unwrap()
    }

    fn take(&self) -> Option<Place> {
        let (mut place, spec) = self.ask();
        let Store::Memory(store) = &*self.store else { return None };
        if store.check(&[Counter { limit: spec, key: KEY, cost: 1 }]).admitted {
            place.taken();
            return Some(place);
        }
        place.denied();
        None
    }

    fn holder(&self) -> u64 {
        holder_of(&self.limit.current.load())
    }

    async fn empty(&self) {
        self.places.tell(self.places.owed()).await;
        assert_eq!(self.entries(), 0);
    }

    /// A check of which the process does not hear.
    fn doubt(&self) {
        let (mut place, spec) = self.ask();
        let Store::Memory(store) = &*self.store else { return };
        assert!(store.check(&[Counter { limit: spec, key: KEY, cost: 1 }]).admitted);
        place.doubtful();
    }

    async fn take_anew(&self) -> usize {
        let moves = self.places.moves();
        let number = moves.len();
        join_all(moves.into_iter().map(|one| self.places.take_anew(one))).await;
        number
    }

    fn entries(&self) -> usize {
        self.places.0.lock().entries.len()
    }
}

#[tokio::test(start_paused = true)]
async fn what_has_ended_is_told_together_and_never_forgotten() {
    let stage = Stage::new(3);
    let held: Vec<_> = std::iter::from_fn(|| stage.take()).collect();
    assert_eq!((held.len(), stage.limit.common.held.get()), (3, 3));
    drop(held);
    assert!(stage.take().is_none(), "the store does not know yet");
    assert!(stage.places.due().is_empty(), "and a look around does not lose it");
    let calls = stage.places.owed();
    assert_eq!(calls.iter().map(|call| call.back).collect::<Vec<_>>(), [Some(3)]);
    assert_eq!((stage.entries(), stage.limit.common.held.get()), (0, 0));
    stage.places.tell(calls).await;
    assert_eq!(std::iter::from_fn(|| stage.take()).map(std::mem::forget).count(), 3);
}

#[tokio::test(start_paused = true)]
async fn what_is_held_is_renewed_in_time() {
    let stage = Stage::new(3);
    let held = stage.take();
    for _ in 0..10 {
        tokio::time::advance(Duration::from_secs(9)).await;
        assert!(stage.places.due().is_empty());
        tokio::time::advance(Duration::from_secs(2)).await;
        let calls = stage.places.due();
        assert_eq!(calls.iter().map(|call| call.back).collect::<Vec<_>>(), [Some(0)]);
        stage.places.tell(calls).await;
    }
    assert!(!stage.limit.has_lapsed());
    // Nobody tells the store any more.
    tokio::time::advance(Duration::from_secs(30)).await;
    let holder = stage.holder();
    let _ = stage.places.due();
    assert!(stage.limit.has_lapsed() && stage.holder() != holder);
    let edited = SharedLimit::new(
        "n/p/l",
        stage.limit.rate().requests,
        stage.limit.rate().period,
        Gauge::default(),
        Some(&stage.limit),
    );
    assert!(edited.as_ref().is_some_and(|limit| limit.has_lapsed()), "a new snapshot knows");
    drop(held);
    assert!(!stage.limit.has_lapsed());
}

#[tokio::test(start_paused = true)]
async fn a_place_in_doubt_is_given_back_when_those_taken_with_it_have_ended() {
    let stage = Stage::new(3);
    let held = stage.take();
    let before = stage.holder();
    stage.doubt();
    assert_ne!(stage.holder(), before, "the limit goes on under another holder");
    assert_eq!(std::iter::from_fn(|| stage.take()).map(drop).count(), 1, "of three one is lost");
    drop(held);
    stage.places.tell(stage.places.owed()).await;
    assert_eq!(stage.entries(), 0);
    let all: Vec<_> = std::iter::from_fn(|| stage.take()).collect();
    assert_eq!(all.len(), 3);
    drop(all);
    stage.empty().await;
    // Alone it is given back by the next look, for as long as the store may know of it.
    let (mut alone, _) = stage.places.ask(&stage.limit, KeyHash(8), &stage.store).unwrap();
    alone.doubtful();
    drop(alone);
    let calls = stage.places.due();
    assert_eq!(calls.iter().map(|call| call.back).collect::<Vec<_>>(), [None]);
    assert!(stage.places.due().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_is_held_in_doubt_is_taken_anew_when_there_is_room() {
    let stage = Stage::new(4);
    let held = [stage.take(), stage.take()];
    stage.doubt();
    assert_eq!(
        stage.take_anew().await,
        1,
        "two are held, one is in doubt, one is free: no room for two more"
    );
    assert_eq!((stage.take_anew().await, stage.places.moves().len()), (0, 0), "not again at once");
    let [one, two] = held;
    drop(one);
    stage.places.tell(stage.places.owed()).await;
    tokio::time::advance(LOOK).await;
    assert_eq!(stage.take_anew().await, 1);
    let others: Vec<_> = std::iter::from_fn(|| stage.take()).collect();
    assert_eq!(others.len(), 3, "the doubtful one is free, the one that is held is not");
    drop(others);
    stage.places.tell(stage.places.owed()).await;
    drop(two);
    stage.empty().await;
    let all: Vec<_> = std::iter::from_fn(|| stage.take()).collect();
    assert_eq!(all.len(), 4);
}

#[tokio::test(start_paused = true)]
async fn who_ends_while_places_are_taken_anew_gives_back_one() {
    let stage = Stage::new(9);
    let [one, two, three] = [stage.take(), stage.take(), stage.take()];
    stage.doubt();
    drop(one);
    let moves = stage.places.moves();
    drop(two);
    assert!(stage.places.owed().is_empty() && stage.places.due().is_empty(), "nothing is told meanwhile");
    for one in moves {
        stage.places.take_anew(one).await;
    }
    stage.places.tell(stage.places.owed()).await;
    let others: Vec<_> = std::iter::from_fn(|| stage.take()).collect();
    assert_eq!(others.len(), 8);
    drop(others);
    drop(three);
    stage.empty().await;
}

#[tokio::test(start_paused = true)]
async fn what_could_not_be_renewed_is_counted_again() {
    let stage = Stage::new(3);
    let held = stage.take();
    tokio::time::advance(Duration::from_secs(30)).await;
    let calls = stage.places.due();
    assert!(stage.limit.has_lapsed());
    drop(calls);
    // The store has forgotten, or not: it makes no difference.
    assert_eq!(stage.take_anew().await, 1);
    assert!(!stage.limit.has_lapsed());
    let others: Vec<_> = std::iter::from_fn(|| stage.take()).collect();
    assert_eq!(others.len(), 2);
    drop((held, others));
    stage.empty().await;
}
