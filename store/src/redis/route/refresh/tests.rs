//! Tests of the verdicts. The hash slots 0 to 8 are used, and the masters A, B and C have three of them each.

use redis::Value;

use super::*;

const USED: [u16; 9] = [0, 1, 2, 3, 4, 5, 6, 7, 8];

/// Returns a view in which these masters have consecutive hash slots, as many as named.
fn view(masters: &[(&str, u16)]) -> ClusterView {
    let text = |text: &str| Value::BulkString(text.into());
    let mut first = 0;
    let rows = masters.iter().map(|&(id, count)| {
        let server = Value::Array(vec![text(id), Value::Int(6379), text(id)]);
        let row = vec![Value::Int(first.into()), Value::Int((first + count - 1).into()), server];
        first += count;
        Value::Array(row)
    });
    ClusterView::read(&Value::Array(rows.collect()), "").unwrap()
}

fn reading(member: Option<&str>, masters: &[(&str, u16)]) -> Reading {
    Reading { from: "h:1".into(), member: member.map(str::to_owned), has_left: false, view: view(masters) }
}

fn last(masters: &[(&str, u16)], answering: &[&str]) -> LastMap {
    let view = view(masters);
    LastMap {
        owners: view.owners(&USED).into_iter().map(|(slot, master)| (slot, master.id.clone())).collect(),
        answering: answering.iter().map(|&id| id.to_owned()).collect(),
        ids: masters.iter().map(|&(id, _)| id).chain(["R"]).map(str::to_owned).collect(),
    }
}

const ALL: [(&str, u16); 3] = [("A", 3), ("B", 3), ("C", 3)];

#[test]
fn a_view_that_loses_slots_or_takes_most_of_them_is_doubtful() {
    let map = last(&ALL, &["A", "B", "C"]);
    for (masters, verdict) in [
        (&ALL[..], Verdict::Sound),
        // One replica was promoted, or slots have moved.
        (&[("A", 3), ("B", 3), ("D", 3)], Verdict::Sound),
        (&[("A", 5), ("B", 1), ("C", 3)], Verdict::Sound),
        (&[("A", 1), ("B", 1), ("C", 1)], Verdict::Doubtful),
        (&[("A", 9)], Verdict::Doubtful),
        (&[("A", 3), ("B", 3)], Verdict::Doubtful),
        (&[("X", 9)], Verdict::Strange),
        (&[], Verdict::Strange),
    ] {
        assert_eq!(map.judge(&view(masters), &USED), verdict, "{masters:?}");
    }
    // Slots of masters that do not answer may go to anybody.
    let down = last(&ALL, &["A"]);
    assert_eq!(down.judge(&view(&[("A", 3), ("D", 3), ("E", 3)]), &USED), Verdict::Sound);
    assert_eq!(down.judge(&view(&[("A", 9)]), &USED), Verdict::Sound);
    // The only master has died, and its replica was promoted.
    assert_eq!(last(&[("A", 9)], &[]).judge(&view(&[("R", 9)]), &USED), Verdict::Sound);
    assert_eq!(LastMap::default().judge(&view(&[("X", 9)]), &USED), Verdict::Sound);
}

#[test]
fn a_doubtful_view_needs_a_second_master() {
    let map = last(&ALL, &["A", "B", "C"]);
    let taken = [("A", 9)];
    let (alone, other) = (reading(Some("A"), &taken), reading(Some("B"), &taken));
    let (seed, right) = (reading(None, &taken), reading(Some("B"), &ALL));
    for (readings, chosen) in [
        (vec![&alone], None),
        (vec![&alone, &alone], None),
        (vec![&alone, &seed], None),
        (vec![&seed, &seed], None),
        (vec![&alone, &other], Some(&alone)),
        (vec![&alone, &right], Some(&right)),
        (vec![], None),
    ] {
        let readings: Vec<_> = readings.into_iter().cloned().collect();
        assert_eq!(map.choose(&readings, &USED), chosen);
    }
    // It has left, and knows only itself: few slots are taken from others, and it is not believed.
    let left = Reading { has_left: true, ..reading(None, &[("A", 3), ("B", 3), ("C", 3)]) };
    assert_eq!(map.choose(&[left], &USED), None);
    let single = last(&[("A", 9)], &["A"]);
    let gone = reading(Some("A"), &[("A", 3)]);
    assert_eq!(single.choose(std::slice::from_ref(&gone), &USED), Some(&gone));
    let strange = reading(None, &[("X", 9)]);
    assert_eq!(map.choose(&[strange.clone(), strange], &USED), None);
}

#[test]
fn a_process_begins_with_the_view_that_most_servers_share() {
    let own = reading(None, &[("X", 9)]);
    let (empty, some, all) = (reading(None, &[]), reading(None, &[("A", 8)]), reading(None, &ALL));
    for (readings, chosen) in [
        (vec![&empty, &some, &all], Some(&all)),
        (vec![&own, &all, &all], Some(&all)),
        (vec![&own, &all], Some(&own)),
        (vec![&own, &some, &some], Some(&some)),
        (vec![&empty, &empty, &all], Some(&all)),
        (vec![&empty], Some(&empty)),
        (vec![], None),
    ] {
        let readings: Vec<_> = readings.into_iter().cloned().collect();
        assert_eq!(first(&readings, &USED), chosen);
    }
}
