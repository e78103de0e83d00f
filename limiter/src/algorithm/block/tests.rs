use proptest::prelude::*;

use crate::{Period, Rate, Record, Requests};

const START: u64 = 1_800_000_000_000_000;

fn block(after: u64, within: u64, lasts: u64) -> Rate {
    let millis = |millis| Period::from_millis(millis).unwrap();
    Rate::block(Requests::new(after).unwrap(), millis(within), millis(lasts)).unwrap()
}

/// A client whose every request its limit denies.
struct Client {
    rate: Rate,
    record: Option<Record>,
}

impl Client {
    /// Sends a request that the other rates of the limit deny. Reports whether it was blocked, and how long it has to wait because
    /// of the block.
    fn denied(&mut self, now: u64) -> (bool, Option<u64>) {
        let (record, at) = self.rate.roll(self.record.take(), now);
        let room = self.rate.has_room(&record, at, 1);
        let record = self.rate.charge_denied(record, at, 1);
        let decision = self.rate.decision(&record, at, 1, room, false);
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        assert_eq!(Record::decode_all(&bytes).unwrap(), std::slice::from_ref(&record));
        self.record = Some(record);
        assert_eq!(decision.admitted, room);
        (!room, decision.retry_after)
    }

    fn is_blocked(&self, now: u64) -> bool {
        let (record, at) = self.rate.roll(self.record.clone(), now);
        !self.rate.has_room(&record, at, 1)
    }
}

#[test]
fn the_denial_that_begins_a_block_has_its_wait() {
    let mut client = Client { rate: block(3, 1_000, 60_000), record: None };
    assert_eq!(client.denied(START), (false, None));
    assert_eq!(client.denied(START + 1), (false, None));
    assert_eq!(client.denied(START + 2), (false, Some(60_000_000 - 2)));
    assert_eq!(client.denied(START + 1_000_000), (true, Some(59_000_000)));
    assert!(client.is_blocked(START + 59_999_999));
    assert!(!client.is_blocked(START + 60_000_000));
    assert_eq!(client.denied(START + 60_000_000), (false, None), "it begins with none");
}

#[test]
fn a_block_needs_one_to_a_thousand_denials() {
    let lasts = Period::from_millis(1).unwrap();
    for after in [0, 1001] {
        let error = Rate::block(Requests::new(after).unwrap(), lasts, lasts).unwrap_err();
        assert_eq!(error.to_string(), format!("a client is blocked after 1 to 1000 denials, not {after}"));
    }
    let mut client = Client { rate: block(1, 1, 5), record: None };
    assert_eq!(client.denied(START), (false, Some(5_000)));
}

#[test]
fn a_clock_that_was_ahead_blocks_for_one_block_at_most() {
    let mut client = Client { rate: block(2, 1_000, 60_000), record: None };
    let ahead = START + 1_000_000_000_000;
    client.denied(ahead);
    client.denied(ahead);
    assert!(client.is_blocked(ahead));
    assert_eq!(client.denied(START), (true, Some(60_000_000)));
    assert!(!client.is_blocked(START + 60_000_000));
    let mut client = Client { rate: block(2, 1_000, 60_000), record: None };
    client.denied(ahead);
    assert_eq!(client.denied(START), (false, Some(60_000_000)), "a denial of the future counts as now");
}

#[test]
fn an_edit_keeps_the_block_and_shortens_it() {
    let mut client = Client { rate: block(1, 1_000, 60_000), record: None };
    client.denied(START);
    client.rate = block(9, 5_000, 3_600_000);
    assert_eq!(client.denied(START), (true, Some(60_000_000)));
    client.rate = block(9, 5_000, 1_000);
    assert_eq!(client.denied(START), (true, Some(1_000_000)));
}

#[test]
fn a_block_is_described_for_people() {
    let rate = block(10, 60_000, 900_000);
    assert_eq!(rate.description(), "blocks a client for 15 minutes after 10 denied requests within 1 minute");
    assert_eq!(rate.notes(), ["block for 15m after 10 denials within 1m"]);
    assert_eq!(
        block(1, 1, 2).description().split(" after ").nth(1),
        Some("1 denied request within 1 millisecond")
    );
}

proptest! {
    #[test]
    fn a_client_is_blocked_as_the_definition_says(
        after in 1u64..6,
        within in 1u64..40,
        lasts in 1u64..60,
        steps in proptest::collection::vec(0u64..30_000, 1..200),
    ) {
        let mut client = Client { rate: block(after, within, lasts), record: None };
        let (mut now, mut denials, mut blocked_until) = (START, Vec::<u64>::new(), 0);
        for step in steps {
            now += step;
            let millis = now / 1000;
            let is_blocked = millis < blocked_until;
            if !is_blocked {
                denials.push(millis);
                if denials.iter().filter(|&&denial| denial + within > millis).count() as u64 >= after {
                    blocked_until = millis + lasts;
                    denials.clear();
                }
            }
            let wait = (millis < blocked_until).then(|| blocked_until * 1000 - now);
            prop_assert_eq!(client.denied(now), (is_blocked, wait));
            if let Some(wait) = wait {
                prop_assert!(client.is_blocked(now + wait - 1) && !client.is_blocked(now + wait));
            }
        }
    }
}
