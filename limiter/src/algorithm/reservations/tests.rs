use super::*;
use crate::testing::{check, rate};
use crate::{Algorithm, Rate};

const START: u64 = 1_126_000_020_000_123;

fn ledger(id: u64) -> Rate {
    rate(MAX_COUNT, 60_000, Algorithm::Reservations { id: Holder::new(id).unwrap() })
}

fn id(number: u64) -> Holder {
    Holder::new(number).unwrap()
}

fn take_oldest(record: &mut Record, now: u64) -> Option<Reserved> {
    let oldest = record.reservation(None, now)?;
    record.take_reservation(oldest.id, now)
}

#[test]
fn a_reservation_is_taken_once_by_its_id_or_else_the_oldest() {
    let (record, _) = check(&ledger(1), None, START, 1000);
    let (record, _) = check(&ledger(2), Some(record), START + 1, 200);
    let (mut record, decision) = check(&ledger(3), Some(record), START + 2, 30);
    assert!(decision.admitted);
    assert_eq!((MAX_COUNT - decision.remaining, ledger(1).view(&record, 0).leaves), (1230, 3));
    let second = record.take_reservation(id(2), START + 3);
    assert_eq!(second, Some(Reserved { id: id(2), cost: 200, charged: START + 1 }));
    assert_eq!(record.take_reservation(id(2), START + 3), None);
    assert_eq!(record.reservation(Some(id(3)), START + 3).map(|one| one.cost), Some(30));
    let oldest = Reserved { id: id(1), cost: 1000, charged: START };
    assert_eq!(take_oldest(&mut record, START + 3), Some(oldest));
    assert_eq!(take_oldest(&mut record, START + 3).map(|one| one.cost), Some(30));
    assert_eq!(take_oldest(&mut record, START + 3), None);
    assert!(record.is_blank());
}

#[test]
fn a_reservation_that_nobody_settles_expires() {
    let (record, _) = check(&ledger(1), None, START, 1000);
    let end = (START / 1000 + 60_000) * 1000;
    assert_eq!(record.expires_at(), end / 1000 + 1);
    let mut before = record.clone();
    assert!(before.take_reservation(id(1), end - 1).is_some());
    let mut after = record;
    assert_eq!(after.take_reservation(id(1), end), None);
    // One from a clock that was years ahead ends after the longest period.
    let (record, _) = check(&ledger(1), None, START + 5 * MAX_PERIOD_MS * 1000, 7);
    let (record, _) = ledger(1).roll(Some(record), START);
    assert_eq!(record.window, START / 1000 + MAX_PERIOD_MS);
}

#[test]
fn a_full_ledger_forgets_the_oldest_and_denies_nothing() {
    let mut record = None;
    for n in 1..=MAX_RESERVATIONS as u64 + 1 {
        let (next, decision) = check(&ledger(n), record, START + n, 1);
        assert!(decision.admitted);
        record = Some(next);
    }
    let mut record = record.unwrap();
    assert_eq!(ledger(1).used(&record, START), MAX_RESERVATIONS as u64);
    assert_eq!(record.take_reservation(id(1), START + 2000), None);
    assert_eq!(take_oldest(&mut record, START + 2000).map(|one| one.charged), Some(START + 2));
}
