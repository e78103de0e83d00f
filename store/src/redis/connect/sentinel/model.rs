//! A model of sentinels, servers and processes, in which each of them fails at any time: as soon as nothing changes any more, all
//! processes use the same master, and each of them has left a working master only for one that says itself that it is a master.

use proptest::prelude::*;

use super::{Candidate, Opinion, candidates, replacements};

const SERVERS: u8 = 3;

/// A server as it answers to a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Server {
    Master,
    Replica,
    Away,
}

/// A change of the world, or a step of a process.
#[derive(Debug, Clone)]
enum Event {
    Server(u8, Server),
    /// A sentinel names a server, with an epoch that is so much newer.
    Sentinel(usize, u8, u64),
    /// Sentinels do not answer, or do again.
    Cut(usize, bool),
    /// A failover: the server becomes the master with a new epoch, which these sentinels learn, and the former one may go on.
    Failover(u8, Vec<bool>, bool),
    /// A process notices that its master is away, or asks the next sentinel.
    Step(usize),
}

#[derive(Debug, Clone)]
struct World {
    servers: Vec<Server>,
    /// The server that each sentinel names, its epoch, and whether the sentinel answers.
    sentinels: Vec<(u8, u64, bool)>,
    newest: u64,
}

#[derive(Debug, Clone, Default)]
struct Process {
    /// The server in use, and the epoch with which it was chosen.
    current: Option<(u8, Option<u64>)>,
    next: usize,
}

fn name(server: u8) -> String {
    format!("{server}:1")
}

fn server_of(candidate: &Candidate) -> u8 {
    candidate.address.split(':').next().unwrap().parse().unwrap()
}

impl World {
    fn opinions(&self, may_read_epochs: bool) -> Vec<Opinion> {
        let answering = self.sentinels.iter().enumerate().filter(|(_, (_, _, answers))| *answers);
        answering
            .map(|(sentinel, &(server, epoch, _))| Opinion {
                sentinel,
                master: name(server),
                epoch: may_read_epochs.then_some(epoch),
            })
            .collect()
    }

    /// Returns the first of these candidates that says that it is a master.
    fn first_master(&self, candidates: &[Candidate]) -> Option<(u8, Option<u64>)> {
        let is_master =
            |candidate: &&Candidate| self.servers[usize::from(server_of(candidate))] == Server::Master;
        candidates.iter().find(is_master).map(|candidate| (server_of(candidate), candidate.epoch))
    }

    fn change(&mut self, event: &Event) {
        match event {
            Event::Server(server, state) => self.servers[usize::from(*server)] = *state,
            Event::Sentinel(at, server, epoch) => {
                // The epoch of a sentinel never goes back.
                let epoch = self.sentinels[*at].1 + epoch;
                self.newest = self.newest.max(epoch);
                (self.sentinels[*at].0, self.sentinels[*at].1) = (*server, epoch);
            }
            Event::Cut(at, answers) => self.sentinels[*at].2 = *answers,
            Event::Failover(server, learn, former_goes_on) => {
                self.newest += 1;
                if !former_goes_on {
                    self.servers.fill(Server::Replica);
                }
                self.servers[usize::from(*server)] = Server::Master;
                for ((named, epoch, _), _) in
                    self.sentinels.iter_mut().zip(learn).filter(|(_, learns)| **learns)
                {
                    (*named, *epoch) = (*server, self.newest);
                }
            }
            Event::Step(_) => {}
        }
    }
}

impl Process {
    /// One interval: a process without a master searches for one, and another one asks the next sentinel. Returns the server that
    /// was left although it worked.
    fn step(&mut self, world: &World, may_read_epochs: bool) -> Option<(u8, Option<u64>)> {
        let works = |&(server, _): &(u8, _)| world.servers[usize::from(server)] == Server::Master;
        let Some(current) = self.current.filter(works) else {
            let last = self.current.map(|(server, _)| name(server));
            self.current = world.first_master(&candidates(&world.opinions(may_read_epochs), last.as_deref()));
            return None;
        };
        let (named, _, answers) = world.sentinels[self.next % world.sentinels.len()];
        self.next += 1;
        if !answers || named == current.0 {
            return None;
        }
        let named = candidates(&world.opinions(may_read_epochs), Some(&name(current.0)));
        let found = world.first_master(&replacements(&named, &name(current.0), current.1))?;
        self.current = Some(found);
        Some(current)
    }
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let state = prop_oneof![Just(Server::Master), Just(Server::Replica), Just(Server::Away)];
    let event = prop_oneof![
        2 => (0..SERVERS, state).prop_map(|(server, state)| Event::Server(server, state)),
        1 => (0..3usize, 0..SERVERS, 0..3u64).prop_map(|(at, server, epoch)| Event::Sentinel(at, server, epoch)),
        2 => (0..3usize, any::<bool>()).prop_map(|(at, answers)| Event::Cut(at, answers)),
        2 => (0..SERVERS, prop::collection::vec(any::<bool>(), 3), any::<bool>())
            .prop_map(|(server, learn, former)| Event::Failover(server, learn, former)),
        8 => (0..2usize).prop_map(Event::Step),
    ];
    prop::collection::vec(event, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn processes_agree_once_they_can_ask_the_same_sentinels(
        events in events(),
        may_read_epochs in any::<bool>(),
        turns in (0..3usize, 0..3usize),
    ) {
        let mut world = World {
            servers: vec![Server::Master, Server::Replica, Server::Replica],
            sentinels: vec![(0, 0, true); 3],
            newest: 0,
        };
        let mut processes =
            [turns.0, turns.1].map(|next| Process { next, ..Process::default() });
        for event in &events {
            world.change(event);
            if let Event::Step(at) = event {
                let left = processes[*at].step(&world, may_read_epochs);
                if let (Some((_, before)), Some((server, now))) = (left, processes[*at].current) {
                    prop_assert_eq!(world.servers[usize::from(server)], Server::Master, "it says that it is a master");
                    prop_assert!(before.zip(now).is_none_or(|(before, now)| now >= before), "an older master");
                }
            }
        }
        // All sentinels answer from now on, and nothing changes.
        for (_, _, answers) in &mut world.sentinels {
            *answers = true;
        }
        for _ in 0..=2 * world.sentinels.len() {
            for process in &mut processes {
                process.step(&world, may_read_epochs);
            }
        }
        let newest_in_use = processes.iter().filter_map(|process| process.current?.1).max();
        let used = processes.map(|process| process.current.map(|(server, _)| server));
        let named = candidates(&world.opinions(may_read_epochs), None);
        let masters: Vec<_> = named
            .iter()
            .filter(|candidate| world.servers[usize::from(server_of(candidate))] == Server::Master)
            .collect();
        match masters.as_slice() {
            // What works and is named by nobody stays in use.
            [] => {}
            [first, rest @ ..] => {
                // A process that works with a newer master leaves it for no older one. It logs that nobody names it.
                let is_older = first.epoch.zip(newest_in_use).is_some_and(|(first, in_use)| first < in_use);
                let decided = !is_older && rest.iter().all(|other| first.is_newer_than(other));
                if decided {
                    prop_assert_eq!(used[0], used[1], "{:?}", named);
                }
                // Where nothing decides, the one that works stays; but all are named.
                prop_assert!(used.iter().all(Option::is_some));
            }
        }
    }
}
