//! Whether a server's view of the cluster is believed. A server that has left its cluster goes on answering: with an empty
//! map, or with a cluster of its own.

use std::collections::{BTreeMap, BTreeSet};

use crate::redis::cluster_view::{ClusterView, most_credible};

/// A view, and the server that has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reading {
    /// `HOST:PORT` of the server.
    pub(super) from: String,
    /// Its id, if it is a master of the last map that still knows other ones.
    pub(super) member: Option<String>,
    /// Whether it is a master of the last map that knows no other server of it: it has left, or its address is a stranger's.
    pub(super) has_left: bool,
    pub(super) view: ClusterView,
}

/// The map in use.
#[derive(Debug, Default)]
pub(super) struct LastMap {
    /// The id of the master of each hash slot that is used.
    pub(super) owners: BTreeMap<u16, String>,
    /// The ids of masters that still answer.
    pub(super) answering: Vec<String>,
    /// The ids of all servers, replicas included.
    pub(super) ids: BTreeSet<String>,
}

/// The verdict about a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It can be adopted.
    Sound,
    /// It is adopted only if a second master of the last map says the same.
    Doubtful,
    /// It has no server of the last map.
    Strange,
}

impl LastMap {
    /// Judges a view. `used` are the hash slots that matter.
    pub(super) fn judge(&self, view: &ClusterView, used: &[u16]) -> Verdict {
        if self.ids.is_empty() {
            return Verdict::Sound;
        }
        if self.ids.is_disjoint(view.ids()) {
            return Verdict::Strange;
        }
        let now = view.owners(used);
        let loses = self.owners.keys().any(|slot| !now.contains_key(slot));
        let is_taken = |(slot, owner): &(&u16, &String)| {
            self.answering.contains(owner) && now.get(slot).is_some_and(|master| master.id != **owner)
        };
        let taken = self.owners.iter().filter(is_taken).count();
        if loses || taken * 2 >= used.len() { Verdict::Doubtful } else { Verdict::Sound }
    }

    /// Returns the first of these readings that may be adopted: it is sound, or a second master says the same, or there is no
    /// second master.
    pub(super) fn choose<'a>(&self, readings: &'a [Reading], used: &[u16]) -> Option<&'a Reading> {
        let is_alone = |member: &String| self.owners.values().all(|id| id == member);
        let says_the_same = |one: &Reading, other: &Reading| one.view.owners(used) == other.view.owners(used);
        readings.iter().find(|reading| match (self.judge(&reading.view, used), &reading.member) {
            (Verdict::Sound, _) => !reading.has_left,
            (Verdict::Doubtful, Some(member)) => {
                let is_second = |other: &Reading| {
                    other.member.as_ref().is_some_and(|other| other != member)
                        && says_the_same(reading, other)
                };
                is_alone(member) || readings.iter().any(is_second)
            }
            (Verdict::Doubtful, None) | (Verdict::Strange, _) => false,
        })
    }
}

/// Returns the reading that a process begins with, when it has no map yet.
pub(super) fn first<'a>(readings: &'a [Reading], used: &[u16]) -> Option<&'a Reading> {
    most_credible(readings, |reading| &reading.view, used)
}

#[cfg(test)]
mod tests;
