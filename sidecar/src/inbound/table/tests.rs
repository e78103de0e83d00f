use std::net::Ipv4Addr;

use futures::FutureExt as _;

use super::exchange::{Exchange, Waiting};
use super::*;

const NONE: Timeouts = Timeouts { body: None, http2_idle: None, upgrade_idle: None };
const SECOND: u64 = 1_000_000;

fn peer(n: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, n).into()
}

fn place(table: &Arc<ConnectionTable>) -> Place {
    table.place(peer(1)).now_or_never().flatten().expect("there is a place")
}

/// Returns why the sidecar ends a connection, if it does.
fn end(place: &Place) -> Option<EndReason> {
    place.activity.ended().now_or_never()
}

#[tokio::test]
async fn a_place_that_becomes_free_is_taken_by_the_one_that_waits() {
    let table = ConnectionTable::new(1, EndedStreams::default());
    let first = place(&table);
    let exchange = Exchange::begin(first.activity.clone());
    let waiting = tokio::spawn({
        let table = table.clone();
        async move { table.place(peer(2)).await.is_some() }
    });
    while !table.is_saturated() {
        tokio::task::yield_now().await;
    }
    assert_eq!(end(&first), None, "a request in flight is not evicted");
    drop(exchange);
    assert_eq!(first.activity.ended().await, EndReason::EvictedIdle);
    drop(first);
    assert!(waiting.await.unwrap() && !table.is_saturated());
}

#[tokio::test]
async fn connections_are_found_when_connections_end_in_any_order() {
    let table = ConnectionTable::new(5, EndedStreams::default());
    let mut places: Vec<_> = (0..5).map(|_| place(&table)).collect();
    places.remove(0);
    places.remove(2);
    places.push(place(&table));
    for place in &places {
        assert!(Arc::ptr_eq(&table.lock()[place.index].activity, &place.activity));
    }
    drop(places);
    assert!(table.lock().is_empty());
}

#[tokio::test]
async fn a_request_that_arrives_in_time_is_spared() {
    let table = ConnectionTable::new(1, EndedStreams::default());
    let idle = place(&table);
    let later = clock::now() + SECOND;
    assert!(table.make_room(clock::now()), "soon");
    assert_eq!(end(&idle), None, "a request may be on its way");
    assert!(table.make_room(later));
    assert_eq!(end(&idle), Some(EndReason::EvictedIdle));
    let exchange = Exchange::begin(idle.activity.clone());
    idle.activity.go_on();
    assert!(!table.make_room(later) && end(&idle).is_none());
    drop(exchange);
    assert!(table.make_room(later + SECOND));
    assert_eq!(end(&idle), Some(EndReason::EvictedIdle));
}

#[tokio::test]
async fn bodies_without_progress_time_out() {
    let table = ConnectionTable::new(4, EndedStreams::default());
    let timeouts = Timeouts { body: Some(Duration::from_secs(60)), ..NONE };
    let [slow, grpc, application, dripping] = [(); 4].map(|()| place(&table));
    let exchanges = [&slow, &grpc, &application, &dripping].map(|p| Exchange::begin(p.activity.clone()));
    let pending = std::task::Poll::<Option<Result<_, ()>>>::Pending;
    let mut waits = [(&slow, false), (&grpc, true), (&dripping, false)]
        .map(|(place, is_grpc)| Waiting::new(place.activity.clone(), is_grpc));
    for wait in &mut waits {
        wait.read(&pending);
    }
    let start = clock::now();
    table.sweep_at(start + 59 * SECOND, timeouts);
    assert_eq!([&slow, &grpc, &application, &dripping].map(end), [None; 4]);
    slow.activity.received(MIN_PROGRESS as usize);
    dripping.activity.received(MIN_PROGRESS as usize - 1);
    table.sweep_at(start + 61 * SECOND, timeouts);
    assert_eq!(
        [&slow, &grpc, &application, &dripping].map(end),
        [None, None, None, Some(EndReason::BodyTimeout)]
    );
    table.sweep_at(start + 122 * SECOND, timeouts);
    assert_eq!([&slow, &grpc, &application].map(end), [Some(EndReason::BodyTimeout), None, None]);
    drop((exchanges, waits));
}

#[tokio::test]
async fn a_client_that_reads_no_response_times_out() {
    let table = ConnectionTable::new(1, EndedStreams::default());
    let timeouts = Timeouts { body: Some(Duration::from_secs(60)), ..NONE };
    let place = place(&table);
    let start = clock::now();
    place.activity.write_blocked();
    assert!(place.activity.is_busy());
    table.sweep_at(start + 61 * SECOND, timeouts);
    assert_eq!(end(&place), Some(EndReason::BodyTimeout));
    place.activity.sent(1);
    assert!(!place.activity.is_busy());
}

#[tokio::test]
async fn idle_http_2_and_upgraded_connections_time_out() {
    let table = ConnectionTable::new(3, EndedStreams::default());
    let hour = Some(Duration::from_secs(3600));
    let [http1, http2, upgraded] = [Stage::Http1, Stage::Http2, Stage::Upgraded].map(|stage| {
        let place = place(&table);
        place.activity.set_stage(stage);
        place
    });
    let later = clock::now() + 3601 * SECOND;
    table.sweep_at(later, NONE);
    assert_eq!([&http1, &http2, &upgraded].map(end), [None; 3]);
    upgraded.activity.received(MIN_PROGRESS as usize);
    table.sweep_at(later, Timeouts { http2_idle: hour, upgrade_idle: hour, ..NONE });
    assert_eq!([&http1, &http2, &upgraded].map(end), [None, Some(EndReason::IdleTimeout), None]);
    table.sweep_at(later + 3601 * SECOND, Timeouts { upgrade_idle: hour, ..NONE });
    assert_eq!(end(&upgraded), Some(EndReason::UpgradeTimeout));
}

#[tokio::test]
async fn stalled_and_quiet_connections_make_room_only_after_a_while() {
    let table = ConnectionTable::new(2, EndedStreams::default());
    let (stalled, quiet) = (place(&table), place(&table));
    let _exchange = Exchange::begin(stalled.activity.clone());
    let mut wait = Waiting::new(stalled.activity.clone(), false);
    wait.read(&std::task::Poll::<Option<Result<_, ()>>>::Pending);
    quiet.activity.set_stage(Stage::Upgraded);
    let entries = table.lock();
    let now = entries.iter().map(|(_, entry)| entry.quiet_since()).max().unwrap();
    let harm = |n: usize, now| {
        let (candidate, can_go) = entries[n].candidate(n, now)?;
        can_go.then_some(candidate.harm)
    };
    assert_eq!([0, 1].map(|n| harm(n, now + SECOND)), [None; 2]);
    assert_eq!([0, 1].map(|n| harm(n, now + Harm::Stalled.makes_room_after())), [Some(Harm::Stalled), None]);
    assert_eq!(
        [0, 1].map(|n| harm(n, now + Harm::Quiet.makes_room_after())),
        [Some(Harm::Stalled), Some(Harm::Quiet)]
    );
}

#[tokio::test]
async fn a_client_that_drips_makes_room_and_one_that_reads_does_not() {
    let table = ConnectionTable::new(2, EndedStreams::default());
    let places = [place(&table), place(&table)];
    let _exchanges = [0, 1].map(|n| Exchange::begin(places[n].activity.clone()));
    for place in &places {
        place.activity.write_blocked();
    }
    let start = clock::now();
    for second in 1..=11 {
        for (place, bytes) in places.iter().zip([MIN_PROGRESS, MIN_RATE]) {
            place.activity.sent(bytes as usize);
            place.activity.write_blocked();
        }
        table.sweep_at(start + second * SECOND, NONE);
        assert!(table.make_room(start + second * SECOND) || second < 10);
    }
    assert_eq!([0, 1].map(|n| end(&places[n])), [Some(EndReason::EvictedStalled), None]);
}

#[tokio::test]
async fn a_client_is_not_slow_as_soon_as_its_application_answers() {
    let table = ConnectionTable::new(1, EndedStreams::default());
    let place = place(&table);
    let start = clock::now();
    let _exchange = Exchange::begin(place.activity.clone());
    for second in 1..=20 {
        table.sweep_at(start + second * SECOND, NONE);
    }
    place.activity.sent(MIN_PROGRESS as usize);
    place.activity.write_blocked();
    assert!(table.make_room(start + 20 * SECOND), "soon");
    assert_eq!(end(&place), None);
}

#[tokio::test]
async fn the_connections_with_the_most_unread_bytes_free_memory() {
    let table = ConnectionTable::new(3, EndedStreams::default());
    let [small, large, larger] = [0, 100 << 10, 400 << 10].map(|bytes| {
        let place = place(&table);
        place.activity.received(bytes);
        place
    });
    assert!(table.free(300 << 10) > 300 << 10);
    assert_eq!([&small, &large, &larger].map(end), [None, None, Some(EndReason::Memory)]);
    // The small one has just begun.
    table.free(u64::MAX);
    assert_eq!([&small, &large].map(end), [None, Some(EndReason::Memory)]);
    assert_eq!(table.free(1), 0);
}
