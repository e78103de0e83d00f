//! The values in Redis. The scripts read the same bytes: the differential tests of the store compare them.

use sluice_limiter::{MAX_COUNT, Record};

use crate::target::Target;

/// The check.
pub const TARGET: Target = Target {
    name: "record",
    check,
    seeds: &[
        // Two windows with a period of a minute, an overrun behind it, a log, and holders.
        "\u{1}\u{42}\u{53}\u{7}\0\0\u{1}\u{2}\u{3}\0\0\0\u{5}\u{6}",
        "\u{6}\u{20}\u{53}\u{7}\0\0\u{1}\u{2}\u{3}\0\0\0\u{1}\0\u{1}\u{2}\u{3}\0\0\0",
    ],
    words: &["\0", "\0\0\0\0\0\0", "\u{1}", "\u{6}", "\u{7}", "\u{7f}\u{7f}", "\u{8}\u{2}", "\u{40}"],
};

fn check(bytes: &[u8]) {
    let Ok(records) = Record::decode_all(bytes) else { return };
    let mut encoded = Vec::new();
    records.iter().for_each(|record| record.encode(&mut encoded));
    // A count may be stored wider than needed, and one above the maximum becomes the maximum. So the bytes may differ, but
    // only once.
    let read_again =
        Record::decode_all(&encoded).unwrap_or_else(|error| panic!("{bytes:?} became {encoded:?}: {error}"));
    let mut encoded_again = Vec::new();
    read_again.iter().for_each(|record| record.encode(&mut encoded_again));
    assert_eq!(encoded, encoded_again, "{bytes:?}");
    assert!(encoded.len() <= bytes.len(), "{bytes:?} became {encoded:?}");
    for (before, after) in records.iter().zip(&read_again) {
        assert_eq!(
            (before.tag, before.window, before.tail.len()),
            (after.tag, after.window, after.tail.len())
        );
        assert_eq!(before.current.min(MAX_COUNT), after.current, "{bytes:?}");
    }
}
