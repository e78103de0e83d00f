//! Slots within bounds.

use super::*;
use crate::check::{holds, needs_each_rule};

const NONE: Faults = Faults { requests: 4, forgets: 0, resets: 0, losses: 0, time: 0, renewals: 1, moves: 1 };

fn slots(most: Faults) -> Slots {
    Slots { rules: Rules::all(), number: 2, processes: 2, most }
}

fn losing() -> Slots {
    slots(Faults { forgets: 1, ..NONE })
}

fn without_answers() -> Slots {
    slots(Faults { losses: 1, renewals: 0, ..NONE })
}

fn resetting() -> Slots {
    slots(Faults { resets: 1, ..NONE })
}

fn expiring() -> Slots {
    slots(Faults { requests: 3, losses: 1, time: 2, ..NONE })
}

#[test]
fn slots_that_are_lost_are_counted_again() {
    holds(&losing());
}

#[test]
fn calls_without_an_answer_give_no_slot_twice() {
    holds(&without_answers());
}

#[test]
fn slots_that_expire_are_taken_again() {
    holds(&expiring());
}

#[test]
fn slots_that_are_reset_stay_free() {
    holds(&resetting());
}

#[test]
fn slots_need_each_rule() {
    let more = Faults { requests: 5, losses: 1, renewals: 0, ..NONE };
    needs_each_rule(&[
        (losing(), &[SlotRule::TellsLeast]),
        (without_answers(), &[SlotRule::MovesFirst]),
        (Slots { number: 3, processes: 1, ..slots(more) }, &[SlotRule::NewHolder]),
        (slots(Faults { requests: 2, ..NONE }), &[SlotRule::InOrder]),
        (resetting(), &[SlotRule::EndOfReset, SlotRule::SinceFirst]),
    ]);
}

#[test]
#[ignore = "make models"]
fn slots_that_are_lost_with_calls_are_counted_again() {
    holds(&slots(Faults { forgets: 1, losses: 1, ..NONE }));
}
