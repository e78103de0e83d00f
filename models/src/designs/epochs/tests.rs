//! Epochs within bounds.

use super::*;
use crate::check::{holds, needs_each_rule};

fn epochs(partitions: usize, most: Faults) -> Epochs {
    Epochs { rules: Rules::all(), number: 2, processes: 2, partitions, most }
}

fn forgetful() -> Epochs {
    epochs(1, Faults { forgets: 2, lost_answers: 1, duplicates: 1, ..Faults::default() })
}

fn alarmed() -> Epochs {
    epochs(1, Faults { forgets: 1, false_alarms: 1, deaths: 1, duplicates: 1, ..Faults::default() })
}

fn two_partitions() -> Epochs {
    epochs(2, Faults { forgets: 1, ..Faults::default() })
}

fn failing_over() -> Epochs {
    epochs(1, Faults { failovers: 1, cuts: 1, ..Faults::default() })
}

fn resetting() -> Epochs {
    epochs(1, Faults { forgets: 1, resets: 1, cuts: 1, ..Faults::default() })
}

#[test]
fn what_is_forgotten_is_restored() {
    holds(&forgetful());
    holds(&alarmed());
    holds(&two_partitions());
    holds(&resetting());
}

#[test]
fn a_replica_that_lags_is_recognized() {
    holds(&failing_over());
}

#[test]
fn epochs_need_each_rule() {
    let in_losses = &[
        EpochRule::KnownAddsEarlier,
        EpochRule::FindingAdmitsNothing,
        EpochRule::WaitsForAssertions,
        EpochRule::IdleAsk,
    ];
    needs_each_rule(&[
        (forgetful(), in_losses),
        (alarmed(), &[EpochRule::MergedByMaximum, EpochRule::RecordNamesEpoch]),
        (failing_over(), &[EpochRule::CallSaysLeast]),
        (two_partitions(), &[EpochRule::OfPartition]),
        (resetting(), &[EpochRule::TotalNamesReset, EpochRule::ResetsAsserted]),
    ]);
}
