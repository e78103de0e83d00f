//! Values about as large as they may be.

use rand::Rng;
use sluice_limiter::{Algorithm, Period, Rate, Record, Requests};
use sluice_store::LimitSpec;

use super::state::World;
use super::state::encode;

/// The greatest size of a value that the scripts read.
pub(super) const MAX_BYTES: usize = 1 << 20;
/// The greatest number of records in a value that the scripts read.
pub(super) const MAX_RECORDS: usize = 64;
/// The greatest number of instants of a log.
const MAX_INSTANTS: usize = 10_000;

const LOG: Algorithm = Algorithm::SlidingWindowLog { min_interval: 0 };

impl World {
    /// Returns a value with a log of about the greatest number of instants, or one of about the greatest size or number of
    /// records.
    pub(super) fn large_value(&mut self, limit: &LimitSpec) -> Vec<u8> {
        let own = limit.rates[0];
        let instants = MAX_INSTANTS - 1 + self.rng.random_range(0..3);
        if self.rng.random_bool(0.7) {
            let log = if own.tag().is_log() { own } else { another(LOG) };
            return encode(&[self.log(&log, instants)]);
        }
        if self.rng.random_bool(0.5) {
            let records = MAX_RECORDS - 1 + self.rng.random_range(0..3);
            let window = another(Algorithm::SLIDING_WINDOW);
            return encode(&vec![Record::empty(window.tag(), self.now); records]);
        }
        // Logs take 14 bytes and 6 for each instant, windows 13 or 14.
        let log = another(LOG);
        let mut records = vec![self.log(&log, MAX_INSTANTS); 17];
        records.push(self.log(&log, 4700));
        let long = 6 + self.rng.random_range(0..3);
        for n in 0..9 {
            let window = if n < long { Algorithm::SLIDING_WINDOW } else { Algorithm::FIXED_WINDOW };
            records.push(Record::empty(another(window).tag(), self.now));
        }
        let bytes = encode(&records);
        assert_eq!(bytes.len(), MAX_BYTES - 7 + long, "a value of about the greatest size");
        bytes
    }

    /// Returns a log whose instants all still count.
    fn log(&self, rate: &Rate, instants: usize) -> Record {
        let mut record = Record::empty(rate.tag(), self.now);
        record.window = self.now / 1000;
        record.tail = vec![record.window; instants];
        record
    }
}

/// Returns a rate that no limit has.
fn another(algorithm: Algorithm) -> Rate {
    Rate::new(Requests::new(5).unwrap(), Period::from_millis(77_777).unwrap(), algorithm).unwrap()
}
