//! The comparisons of a mutant: on a server of its own, with sections of random batches that all mutants share.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::OnceLock;
use std::time::Duration;

use redis::{Connection, ConnectionLike, RedisResult, Value};
use sluice_store::redis::Script;

use super::super::comparison::{Sources, load, run};
use super::super::world::{ALL, Focus, World};
use super::generate::Mutant;
use crate::support::Redis;

/// Batches that begin with an empty server.
pub(crate) struct Section {
    focus: Focus,
    seed: u64,
    /// Its commands, in their order, as the comparison sends them for the scripts themselves. They are recorded when a mutant first
    /// needs them. Most mutants differ in the first piece.
    pieces: OnceLock<Vec<Piece>>,
}

impl Section {
    /// Returns a section of a focus, whose sections have the numbers from 0 on.
    pub(crate) fn new(focus: Focus, number: u64) -> Self {
        Self { focus, seed: SEED + number, pieces: OnceLock::new() }
    }

    /// Reports whether a mutant has needed it.
    pub(crate) fn is_recorded(&self) -> bool {
        self.pieces.get().is_some()
    }
}

/// Commands that are sent at once.
#[derive(Default)]
struct Piece {
    commands: Vec<u8>,
    /// Where the hash of which script stands in the commands.
    hashes: Vec<(usize, Script)>,
    /// The replies to the scripts themselves. A mutant with the same replies needs no further comparison.
    replies: Vec<u8>,
}

/// Whether a mutant is caught must not depend on luck. Each section of a focus has the next seed.
const SEED: u64 = 1;
/// The number of checks in a section.
const CHECKS_PER_SECTION: u64 = 300;
/// The number of pipelines in a piece.
const PIPELINES_PER_PIECE: usize = 24;
/// A command behind all others of a piece, and the reply to it.
const END: &[u8] = b"*2\r\n$4\r\nECHO\r\n$22\r\nthe piece ends with it\r\n";
const END_REPLY: &[u8] = b"$22\r\nthe piece ends with it\r\n";
/// Mutants that a server loads before it is told to forget all scripts.
const KEPT_MUTANTS: u32 = 50;
/// A mutant whose replies take longer is caught. Those of the scripts themselves take less than a second, also on
/// a busy machine.
const LONGEST_REPLY: Duration = Duration::from_secs(10);

/// Returns the focuses whose batches use a part of a script.
fn focuses_of(file: &str) -> &'static [Focus] {
    use Focus::{
        Block, Concurrency, Damaged, Everyday, FixedClock, FixedFirstRequest, FixedSpread, Gcra, Guaranteed,
        Huge, Keys, Large, LeakyBucket, Log, Plain, Reservations, Runs, Shared, Soft, SubWindows,
        TokenBucket, TwoWindows, WarmUp, Widths,
    };
    match file {
        "registry.lua" => &[Keys, Plain, Runs, Everyday, TwoWindows],
        "single.lua" | "plain.lua" => &[Keys, Plain, Widths, TwoWindows, FixedClock, Everyday, Damaged, Huge],
        "runs.lua" => &[Keys, Runs, Shared, Everyday, TwoWindows, FixedClock, Widths],
        "window.lua" => &[
            Plain,
            TwoWindows,
            SubWindows,
            Guaranteed,
            FixedClock,
            FixedFirstRequest,
            FixedSpread,
            Everyday,
            Soft,
            Shared,
            Damaged,
            Huge,
            Widths,
        ],
        "log.lua" => &[Log, Large, Damaged],
        "gcra.lua" => &[TokenBucket, Gcra, LeakyBucket, Damaged],
        "warm_up.lua" => &[WarmUp, Damaged],
        "block.lua" => &[Block, Damaged],
        "concurrency.lua" => &[Concurrency, Large, Damaged],
        "reservations.lua" => &[Reservations, Damaged],
        _ => &ALL,
    }
}

/// The outcome of a mutant.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It is not valid Lua, and so it is no mutant.
    Invalid,
    /// The focus, the number of checks and the difference.
    Caught(Focus, u64, String),
    Survived,
}

impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid => write!(out, "not valid"),
            Self::Caught(focus, checks, difference) => {
                write!(out, "caught by {focus:?} within {checks} checks ({difference:.80})")
            }
            Self::Survived => write!(out, "not caught"),
        }
    }
}

/// Records the pipelines that pass through it.
struct Recorder<'a> {
    connection: &'a mut Connection,
    pipelines: Vec<Vec<u8>>,
}

impl ConnectionLike for Recorder<'_> {
    fn req_packed_command(&mut self, command: &[u8]) -> RedisResult<Value> {
        self.connection.req_packed_command(command)
    }

    fn req_packed_commands(&mut self, commands: &[u8], from: usize, count: usize) -> RedisResult<Vec<Value>> {
        self.pipelines.push(commands.to_vec());
        self.connection.req_packed_commands(commands, from, count)
    }

    fn get_db(&self) -> i64 {
        self.connection.get_db()
    }

    fn check_connection(&mut self) -> bool {
        self.connection.check_connection()
    }

    fn is_open(&self) -> bool {
        self.connection.is_open()
    }
}

/// A server that compares one mutant after the other.
pub(crate) struct Hunter<'a> {
    sources: Sources<'a>,
    hashes: [String; Script::ALL.len()],
    /// The order in which sections are tried: the next mutant is often caught by the same one.
    order: Vec<usize>,
    redis: Redis,
    connection: Connection,
    stream: TcpStream,
    /// The number of mutants since the server forgot all scripts.
    loaded: u32,
}

impl<'a> Hunter<'a> {
    pub(crate) fn new(sources: Sources<'a>, sections: usize) -> Self {
        let redis = Redis::start(&[]);
        let (mut connection, stream) = connect(&redis);
        let hashes = sources.map(|source| load(source, &mut connection).unwrap());
        Self { sources, hashes, order: (0..sections).collect(), redis, connection, stream, loaded: 0 }
    }

    /// Compares the scripts themselves, and returns what was sent.
    fn record(&mut self, Section { focus, seed, .. }: &Section) -> Vec<Piece> {
        let mut recorder = Recorder { connection: &mut self.connection, pipelines: vec![] };
        run(&mut World::new(*seed, *focus), self.sources, &mut recorder, CHECKS_PER_SECTION)
            .unwrap_or_else(|difference| panic!("seed {seed} {focus:?}: {difference}"));
        let pipelines = recorder.pipelines;
        let mut pieces: Vec<_> =
            pipelines.chunks(PIPELINES_PER_PIECE).map(|some| self.piece(some.concat())).collect();
        for piece in &mut pieces {
            piece.replies = self.send(piece, None).unwrap();
        }
        pieces
    }

    /// Finds the hashes in commands.
    fn piece(&self, mut commands: Vec<u8>) -> Piece {
        let length = self.hashes[0].len();
        let script_at =
            |bytes: &[u8]| Script::ALL.into_iter().find(|&one| self.hash(one).as_bytes() == bytes);
        let places = commands.windows(length).enumerate();
        let hashes = places.filter_map(|(at, bytes)| Some((at, script_at(bytes)?))).collect();
        commands.extend_from_slice(END);
        Piece { commands, hashes, replies: vec![] }
    }

    /// Compares a mutant with the reference until the first difference, in sections of focuses that use the
    /// changed part. If `is_brief`, it takes only the first section of each focus.
    pub(crate) fn hunt(&mut self, mutant: &Mutant, sections: &[Section], is_brief: bool) -> Outcome {
        self.loaded += 1;
        if self.loaded > KEPT_MUTANTS {
            self.forget_scripts();
        }
        let changed = mutant.source();
        let Ok(hash) = load(&changed, &mut self.connection) else { return Outcome::Invalid };
        let mut sources = self.sources;
        sources[mutant.script as usize] = &changed;
        let focuses = focuses_of(mutant.file);
        let mut checks = 0;
        for turn in 0..self.order.len() {
            let section = &sections[self.order[turn]];
            if !focuses.contains(&section.focus) || is_brief && section.seed > SEED {
                continue;
            }
            checks += CHECKS_PER_SECTION;
            match self.replies_equal(section, (mutant.script, &hash)) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => {
                    self.restart();
                    self.order[..=turn].rotate_right(1);
                    return Outcome::Caught(section.focus, checks, format!("no reply: {error}"));
                }
            }
            let mut world = World::new(section.seed, section.focus);
            let result = run(&mut world, sources, &mut self.connection, CHECKS_PER_SECTION);
            if let Err(difference) = result {
                self.order[..=turn].rotate_right(1);
                if !self.connection.check_connection() {
                    self.restart();
                }
                return Outcome::Caught(section.focus, checks, difference);
            }
        }
        Outcome::Survived
    }

    /// Sends a section with the hash of a mutant, until a reply differs from that to the script itself.
    fn replies_equal(&mut self, section: &Section, mutant: (Script, &str)) -> io::Result<bool> {
        for piece in section.pieces.get_or_init(|| self.record(section)) {
            if self.send(piece, Some(mutant))? != piece.replies {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sends a piece, with the hash of a mutant, and returns the replies.
    fn send(&mut self, piece: &Piece, mutant: Option<(Script, &str)>) -> io::Result<Vec<u8>> {
        let mut commands = piece.commands.clone();
        for &(at, script) in &piece.hashes {
            let hash =
                mutant.filter(|mutant| mutant.0 == script).map_or(self.hash(script), |mutant| mutant.1);
            commands[at..at + hash.len()].copy_from_slice(hash.as_bytes());
        }
        self.stream.write_all(&commands)?;
        let (mut replies, mut length) = (vec![0; piece.replies.len() + (1 << 16)], 0);
        while !replies[..length].ends_with(END_REPLY) {
            if length == replies.len() {
                replies.resize(2 * length, 0);
            }
            match self.stream.read(&mut replies[length..])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                more => length += more,
            }
        }
        replies.truncate(length);
        Ok(replies)
    }

    fn hash(&self, script: Script) -> &str {
        &self.hashes[script as usize]
    }

    fn forget_scripts(&mut self) {
        let _: () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut self.connection).unwrap();
        for source in self.sources {
            load(source, &mut self.connection).unwrap();
        }
        self.loaded = 0;
    }

    /// Starts the server again, after a mutant has ended it or keeps it busy.
    fn restart(&mut self) {
        self.redis.restart();
        (self.connection, self.stream) = connect(&self.redis);
        self.forget_scripts();
    }
}

fn connect(redis: &Redis) -> (Connection, TcpStream) {
    let connection = redis.connection();
    connection.set_read_timeout(Some(LONGEST_REPLY)).unwrap();
    let stream = TcpStream::connect(("127.0.0.1", redis.port)).unwrap();
    stream.set_read_timeout(Some(LONGEST_REPLY)).unwrap();
    (connection, stream)
}
