use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

#[test]
fn a_new_leader_goes_on_with_the_time_that_the_status_records() {
    let changed = epoch_since(3, None, at(1000));
    assert_eq!((changed.epoch, changed.since.0), (3, at(1000)));
    // Another leader reads it from the status.
    assert_eq!(epoch_since(3, Some(&changed), at(1200)), changed);
    assert!(accepts_previous(&changed, at(1299)));
    assert!(!accepts_previous(&changed, at(1300)));
    // The number has changed while there was no leader.
    assert_eq!(epoch_since(4, Some(&changed), at(2000)).since.0, at(2000));
    // The clock of the leader before was ahead.
    assert_eq!(epoch_since(3, Some(&changed), at(900)).since.0, at(900));
}
