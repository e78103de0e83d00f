//! Tests of the protocol from a batch to its responses.

use std::sync::Arc;

use proptest::prelude::*;
use redis::Value;
use sluice_limiter::{Algorithm, Period, Rate, Record, Requests};
use smallvec::smallvec;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{CallContext, KeyNames, Reply, encode, respond};
use crate::check::{CheckRequest, Counter, KeyHash, LimitSpec, Records, decide};
use crate::redis::batch::{Batch, Operation, PendingOperation};
use crate::redis::scripts::Script;

fn check(requests: u64, cost: u64) -> CheckRequest {
    let rate = |algorithm, requests| {
        let (requests, period) = (Requests::new(requests).unwrap(), Period::from_millis(1000).unwrap());
        Rate::new(requests, period, algorithm).unwrap()
    };
    let rates = vec![rate(Algorithm::SLIDING_WINDOW, requests), rate(Algorithm::FIXED_WINDOW, requests + 2)];
    let limit = Arc::new(LimitSpec::new("s", rates));
    smallvec![Counter { limit, key: KeyHash(1), cost }]
}

fn pending(check: CheckRequest) -> (PendingOperation, oneshot::Receiver<CheckResult>) {
    let (caller, receiver) = oneshot::channel();
    (PendingOperation { operation: Operation::check(check, caller), deadline: Instant::now() }, receiver)
}

type CheckResult = Result<crate::check::CheckResponse, crate::failure::StoreError>;

proptest! {
    /// Merged callers receive the responses that they would receive one after another.
    #[test]
    fn merged_callers_see_the_state_after_their_own_charge(
        requests in 0u64..30, cost in 0u64..4, before in 0u64..20, callers in 1usize..40,
    ) {
        let (check, now) = (check(requests, cost), 1_700_000_000_123_456);
        let stored: Records = check[0].limit.rates.iter()
            .map(|rate| Record { current: before, previous: 0, ..Record::empty(rate.tag(), now) }).collect();
        let mut state = vec![stored];
        let expected: Vec<_> = (0..callers).map(|_| decide(&check, &mut state, now)).collect();
        let admitted = expected.iter().filter(|response| response.admitted).count() as i64;

        let mut batch = Batch::new(Script::General);
        let mut receivers = Vec::new();
        for _ in 0..callers {
            let (operation, receiver) = pending(check.clone());
            receivers.push(receiver);
            batch.push(operation);
        }
        let mut values = vec![Value::Int(now as i64), Value::Int(admitted)];
        for record in &state[0] {
            values.extend([record.window, record.current, record.previous].map(|n| Value::Int(n as i64)));
        }
        respond(Reply::read(Value::Array(values)).unwrap(), batch, &names(1)).unwrap();
        let received: Vec<_> =
            receivers.iter_mut().map(|receiver| receiver.try_recv().unwrap().unwrap()).collect();
        prop_assert_eq!(received, expected);
    }

    /// No reply makes the store panic or leaves a caller without a response.
    #[test]
    fn every_caller_receives_a_response_to_any_reply(
        values in proptest::collection::vec(prop_oneof![any::<i64>(), 0i64..5, -9i64..0], 0..12), called: bool,
    ) {
        let (operation, mut receiver) = pending(check(5, 1));
        let mut batch = Batch::new(Script::General);
        batch.push(operation);
        if called {
            batch.arrange();
            let context = CallContext { names: &names(1), deadline: 1, asking: false };
            encode(&batch, context);
        }
        if let Ok(reply) = Reply::read(Value::Array(values.into_iter().map(Value::Int).collect())) {
            let _ = respond(reply, batch, &names(1));
            prop_assert!(receiver.try_recv().is_ok());
        }
    }
}

#[test]
fn a_key_is_named_once_in_a_call() {
    let (one, other) = (check(5, 1), check(5, 2));
    let mut batch = Batch::new(Script::General);
    for check in [&one, &other, &one] {
        assert!(batch.push(pending(check.clone()).0).is_none());
    }
    let elsewhere = smallvec![Counter { key: KeyHash(2), ..one[0].clone() }];
    assert!(batch.push(pending(elsewhere).0).is_none());
    let arguments = encode(&batch, CallContext { names: &names(4), deadline: 7, asking: false });
    assert_eq!((arguments.keys.len(), batch.len()), (2, 3));
}

#[test]
fn a_reply_of_another_form_is_invalid() {
    assert!(Reply::read(Value::Okay).is_err());
    assert!(Reply::read(Value::Array(vec![])).is_err());
    assert!(Reply::read(Value::Array(vec![Value::Int(-1)])).is_err());
    assert!(Reply::read(Value::Array(vec![Value::Okay])).is_err());
    for bytes in [&b""[..], b"hello", &[0xff; 7], &[1; 8]] {
        assert!(Reply::read(Value::BulkString(bytes.to_vec())).is_err(), "{bytes:?}");
    }
}

fn names(partitions: u16) -> KeyNames {
    KeyNames::new("s:", partitions)
}

/// Returns the reply of the script for a single check.
fn reply_of_single(numbers: &[i64]) -> Reply {
    let bytes = numbers.iter().flat_map(|number| number.to_le_bytes().into_iter().take(7));
    Reply::read(Value::BulkString(bytes.collect())).unwrap()
}

#[test]
fn a_batch_of_one_plain_check_is_sent_and_read_as_a_single_one() {
    let now = 1_700_000_000_123_456;
    let rates = check(5, 1)[0].limit.rates[..1].to_vec();
    let limit = Arc::new(LimitSpec::new("s", rates));
    let check: CheckRequest = smallvec![Counter { limit, key: KeyHash(1), cost: 1 }];
    let batch = || {
        let (operation, receiver) = pending(check.clone());
        let mut batch = Batch::new(Script::of(&check));
        batch.push(operation);
        assert!(batch.arrange().is_none());
        assert_eq!(batch.script(), Script::Single);
        assert!(batch.takes(Script::Plain), "more plain checks may join it");
        (batch, receiver)
    };

    let reply = reply_of_single(&[now]);
    assert!(reply.is_late());
    assert_eq!(reply.now, 1_700_000_000_123);

    let (one, mut receiver) = batch();
    assert!(respond(reply_of_single(&[now, 1, 2, 0]), one, &names(1)).unwrap().is_none());
    let response = receiver.try_recv().unwrap().unwrap();
    assert_eq!((response.admitted, response.decisions[0].remaining), (true, 3));

    let (one, mut receiver) = batch();
    let undecided = respond(reply_of_single(&[now, -1, 0, 0]), one, &names(1)).unwrap().unwrap();
    assert_eq!((undecided.script(), undecided.len()), (Script::General, 1));
    assert!(receiver.try_recv().is_err());
}
