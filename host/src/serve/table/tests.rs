use std::net::Ipv4Addr;

use tokio::time::advance;

use super::exchange::Exchange;
use super::*;

fn peer(n: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, n).into()
}

fn table(connections: usize, of_peer: usize, bytes: usize) -> Arc<Table> {
    Table::new(Maxima { connections, of_peer, strangers: None, bytes }, PortMetrics::default())
}

/// Reports whether a connection has ended for others.
async fn has_ended(place: &Place) -> bool {
    tokio::select! {
        biased;
        () = place.0.ended() => true,
        () = tokio::task::yield_now() => false,
    }
}

fn begin(place: &Place, is_complete: bool) -> Exchange {
    Exchange::begin(&place.0, is_complete, 0).0
}

#[tokio::test(start_paused = true)]
async fn the_connection_whose_end_does_the_least_harm_makes_room() {
    let table = table(4, 4, 0);
    let [busy, stalled, idle, new] = [
        table.place(peer(1)).await,
        table.place(peer(1)).await,
        table.place(peer(1)).await,
        table.place(peer(1)).await,
    ]
    .map(Option::unwrap);
    let _busy = begin(&busy, true);
    let _stalled = begin(&stalled, false);
    drop(begin(&idle, true));
    advance(Duration::from_secs(5)).await;
    for expected in [&new, &idle, &stalled] {
        let next = table.place(peer(2)).await.unwrap();
        assert!(has_ended(expected).await);
        // It stays, and is busy.
        std::mem::forget(begin(&next, true));
        std::mem::forget(next);
    }
    // Whoever is answered is not disturbed: the next one waits.
    let waits = tokio::time::timeout(Duration::from_secs(5), table.place(peer(2))).await;
    assert!(waits.is_err() && !has_ended(&busy).await);
}

#[tokio::test(start_paused = true)]
async fn a_peer_has_as_many_connections_as_it_may_and_its_own_make_room() {
    let table = table(100, 2, 0);
    let first = table.place(peer(1)).await.unwrap();
    let second = table.place(peer(1)).await.unwrap();
    let _other = table.place(peer(2)).await.unwrap();
    advance(Duration::from_secs(1)).await;
    let third = table.place(peer(1)).await.unwrap();
    assert!(has_ended(&first).await);
    drop(first);
    assert_eq!(table.metrics.connections.get(), 3);
    let _busy = [begin(&second, true), begin(&third, true)];
    assert!(table.place(peer(1)).await.is_none(), "both are answered");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_arrives_in_time_spares_its_connection() {
    let table = table(1, 1, 0);
    let idle = table.place(peer(1)).await.unwrap();
    drop(begin(&idle, true));
    advance(Duration::from_secs(1)).await;
    let next = table.place(peer(2)).await.unwrap();
    let busy = begin(&idle, true);
    assert!(!has_ended(&idle).await);
    assert_eq!(table.lock().places, 2);
    drop((busy, idle, next));
    let entries = table.lock();
    assert!(entries.places == 0 && entries.of_peer.is_empty() && entries.all.is_empty());
}

#[tokio::test(start_paused = true)]
async fn who_sends_slowly_gives_way_first_and_then_the_peer_that_holds_the_most() {
    let table = table(100, 100, 100);
    let slow = table.place(peer(1)).await.unwrap();
    let of_slow = begin(&slow, false);
    of_slow.take(40).unwrap();
    advance(Duration::from_secs(2)).await;
    let [light, heavy, other] =
        [table.place(peer(2)).await, table.place(peer(2)).await, table.place(peer(3)).await]
            .map(Option::unwrap);
    let [of_light, of_heavy, of_other] = [&light, &heavy, &other].map(|place| begin(place, false));
    of_light.take(10).unwrap();
    of_heavy.take(45).unwrap();
    of_other.take(35).unwrap();
    assert!(has_ended(&slow).await, "it has sent for 2 s");
    assert!(!has_ended(&heavy).await);
    of_other.take(15).unwrap();
    assert!(has_ended(&heavy).await, "its peer holds the most");
    // Nobody gives way to the one that holds the most.
    assert_eq!(of_other.take(60), Err(NoRoom));
    assert!(!has_ended(&light).await && !has_ended(&other).await);
    drop((of_slow, of_light, of_heavy, of_other));
    assert_eq!(table.bytes.load(Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_complete_does_not_give_way() {
    let table = table(100, 100, 100);
    let [complete, other] = [table.place(peer(1)).await, table.place(peer(2)).await].map(Option::unwrap);
    let of_complete = begin(&complete, false);
    of_complete.take(90).unwrap();
    of_complete.complete();
    advance(Duration::from_secs(9)).await;
    assert_eq!(begin(&other, false).take(20), Err(NoRoom));
    assert!(!has_ended(&complete).await);
    of_complete.send();
    drop(of_complete);
    assert_eq!(begin(&other, false).take(20), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_peer_has_no_more_connections_with_requests_that_are_not_complete() {
    let table = table(100, 4, 0);
    let mut places = Vec::new();
    for _ in 0..20 {
        if let Some(place) = table.place(peer(1)).await {
            std::mem::forget(begin(&place, false));
            places.push(place);
        }
        advance(Duration::from_secs(3)).await;
        let mut open = Vec::new();
        for place in places {
            if !has_ended(&place).await {
                open.push(place);
            }
        }
        places = open;
        assert!(places.len() <= 4, "{}", places.len());
    }
    assert!(places.iter().all(|place| place.0.has_place.load(Relaxed)));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_not_read_is_noticed_and_one_that_is_not_ready_is_not() {
    let table = table(9, 9, 0);
    let place = table.place(peer(1)).await.unwrap();
    let minute = Duration::from_secs(60);
    let exchange = begin(&place, true);
    exchange.set_unread(false, true);
    advance(minute / 2).await;
    assert!(!place.0.is_unread_for(minute));
    exchange.go();
    advance(minute / 2).await;
    assert!(!place.0.is_unread_for(minute), "it goes on");
    advance(minute / 2).await;
    assert!(place.0.is_unread_for(minute));
    exchange.set_unread(true, false);
    assert!(!place.0.is_unread_for(minute));
}
