use super::*;
use crate::testing::{check, rate};
use crate::{Algorithm, MAX_PERIOD_MS, Rate};

const START: u64 = 1_126_000_020_000_000;

fn concurrent(slots: u64, holder: u64) -> Rate {
    rate(slots, 30_000, Algorithm::Concurrency { holder: Holder::new(holder).unwrap() })
}

#[test]
fn slots_are_taken_and_returned() {
    let (one, two) = (concurrent(3, 1), concurrent(3, 2));
    let (record, first) = check(&one, None, START, 2);
    let (record, second) = check(&two, Some(record), START + 1, 1);
    let (record, third) = check(&two, Some(record), START + 2, 1);
    assert!(first.admitted && second.admitted && !third.admitted);
    assert_eq!((second.remaining, third.retry_after), (0, Some(RETRY_AFTER_MICROS)));
    let record = one.settle(record, START + 3, START, -1);
    let (record, fourth) = check(&two, Some(record), START + 4, 1);
    assert!(fourth.admitted);
    // A holder cannot return more slots than it holds.
    let record = one.settle(record, START + 5, START, -100);
    assert_eq!(one.used(&record, START + 5), 2);
    assert_eq!(check(&one, Some(record), START + 6, 5).1.retry_after, None, "five never fit");
}

#[test]
fn a_slot_lease_that_is_not_renewed_expires() {
    let (one, two) = (concurrent(1, 1), concurrent(1, 2));
    let (record, _) = check(&one, None, START, 1);
    let ttl = 30_000_000;
    assert!(!check(&two, Some(record.clone()), START + ttl - 1, 1).1.admitted);
    assert!(check(&two, Some(record.clone()), START + ttl, 1).1.admitted);
    let (rolled, at) = one.roll(Some(record), START + ttl - 1);
    let renewed = one.settle(rolled, at, START, 0);
    assert!(!check(&two, Some(renewed.clone()), START + 2 * ttl - 1001, 1).1.admitted);
    // A lease from a clock that was a year ahead does not last longer than the longest.
    let back = START - MAX_PERIOD_MS * 1000;
    let (record, denied) = check(&two, Some(renewed), back, 1);
    assert!(!denied.admitted && check(&two, Some(record), back + MAX_SLOT_LEASE_MS * 1000, 1).1.admitted);
}

#[test]
fn a_full_record_admits_only_holders_that_it_lists() {
    let mut record = None;
    for holder in 1..=MAX_HOLDERS as u64 {
        let (next, decision) = check(&concurrent(5000, holder), record, START, 1);
        assert!(decision.admitted);
        record = Some(next);
    }
    assert!(!check(&concurrent(5000, 5000), record.clone(), START, 1).1.admitted);
    assert!(check(&concurrent(5000, 7), record, START, 1).1.admitted, "a listed holder takes another slot");
}
