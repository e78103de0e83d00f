use proptest::prelude::*;

use super::*;
use crate::testing::{any_rate, rate, sliding};
use crate::{Algorithm, Alignment, Bound};

proptest! {
    #[test]
    fn a_decoded_record_equals_the_encoded_one(
        rate in any_rate(), window in 0u64..1 << 47,
        counts in proptest::collection::vec(0..=MAX_COUNT, 61..80),
        over in 0u64..1 << 46, lasted in 0u64..1 << 39,
    ) {
        let mut record = Record { window, current: counts[0], ..Record::empty(rate.tag(), 0) };
        if record.tag.is_log() {
            record.current = 0;
            record.tail = counts.clone();
            record.tail.sort_by(|a, b| b.cmp(a));
            record.window = record.tail[0];
        } else {
            if !has_one_count(record.tag.kind(), record.tag) {
                record.previous = counts[1];
            }
            for (to, from) in record.tail.iter_mut().zip(&counts[2..]) {
                *to = *from;
            }
        }
        if rate.soft.is_some() && over > 0 {
            record.overrun = Overrun { since: over, last: over + lasted };
        }
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        let length = bytes.len();
        record.encode(&mut bytes);
        prop_assert_eq!(Record::decode_all(&bytes), Ok(vec![record.clone(), record.clone()]));
        for cut in 1..length {
            // A cut may fall exactly between the record and its overrun, which leaves a valid record.
            let cut = Record::decode_all(&bytes[..cut]);
            prop_assert!(cut == Err(RecordError::Truncated) || record.overrun.since > 0);
        }
    }

    #[test]
    fn any_bytes_are_records_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        let _ = Record::decode_all(&bytes);
    }
}

#[test]
fn a_small_count_takes_one_byte() {
    let mut bytes = Vec::new();
    Record::empty(rate(1, 60_000, Algorithm::SLIDING_WINDOW).tag(), 1).encode(&mut bytes);
    assert_eq!(bytes.len(), 14);
}

#[test]
fn an_edit_of_the_period_or_the_algorithm_changes_the_tag() {
    let windows = |sub_windows| sliding(sub_windows, Bound::Guaranteed);
    let tags = [
        rate(1, 60_000, Algorithm::SLIDING_WINDOW).tag(),
        rate(1, 60_001, Algorithm::SLIDING_WINDOW).tag(),
        rate(1, 60_000, Algorithm::FIXED_WINDOW).tag(),
        rate(1, 60_000, Algorithm::FixedWindow(Alignment::Spread)).tag(),
        rate(1, 60_000, windows(60)).tag(),
        rate(1, 60_000, windows(30)).tag(),
    ];
    for (n, tag) in tags.iter().enumerate() {
        assert!(tag.get() & 7 == 0 && tag.get() < 1 << 48 && !tags[..n].contains(tag));
    }
    assert_eq!(rate(1, 60_000, windows(1)).tag(), tags[0], "the bound does not change the tag");
}
