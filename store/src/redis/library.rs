//! All scripts as a function library (<https://redis.io/docs/latest/develop/programmability/functions-intro/>). Its name
//! and those of its functions contain a hash of the content, so libraries of several releases exist side by side.

use std::fmt::Write as _;
use std::sync::LazyLock;

use sluice_limiter::{MAX_COUNT, MAX_PERIOD_MS};

use super::batch::MAX_WAITING;
use super::scripts::Script;
use crate::check::{MAX_COUNTERS, MAX_RATES};

/// Beginning of the names of all releases' libraries.
pub(crate) const PREFIX: &str = "sluice_";

/// Maximum number of records that one call touches. A batch has fewer, but a check is never split.
const MAX_RECORDS: usize = MAX_COUNTERS * MAX_RATES;
/// Bounds of a call, so that nobody blocks the server for long. The largest calls of this crate stay below.
const MAX_KEYS: usize = MAX_RECORDS;
const MAX_ARGUMENT: usize = 64 << 10;

/// The functions that refuse arguments out of range.
const BOUNDS: &str = include_str!("script/lua/bounds.lua");

/// Lets the general script read the numbers that were checked, instead of decoding its argument again.
const CHECKED: &str = "local numbers\nlocal checked = {unpack = function() return numbers end}\n";

/// The library.
#[derive(Debug)]
pub struct Library {
    name: String,
    functions: [String; Script::ALL.len()],
    source: String,
}

impl Library {
    /// Returns the library of this release.
    #[must_use]
    pub fn current() -> &'static Self {
        static LIBRARY: LazyLock<Library> = LazyLock::new(Library::new);
        &LIBRARY
    }

    fn new() -> Self {
        let preamble = preamble();
        let content = preamble.clone() + &Script::ALL.map(body).concat();
        let hash = redis::Script::new(&content).get_hash().chars().take(16).collect::<String>();
        let name = format!("{PREFIX}{hash}");
        let functions = Script::ALL.map(|script| format!("{name}_{script:?}").to_lowercase());
        let mut source = format!("#!lua name={name}\n{preamble}");
        for (script, function) in Script::ALL.into_iter().zip(&functions) {
            let body = body(script);
            let _ =
                writeln!(source, "redis.register_function('{function}', function(KEYS, ARGV)\n{body}\nend)");
        }
        Self { name, functions, source }
    }

    /// Returns the name of the library.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the source, as FUNCTION LOAD takes it.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns the names of all functions.
    #[must_use]
    pub fn functions(&self) -> &[String] {
        &self.functions
    }

    /// Returns the name of the function that runs a script.
    pub(crate) fn function(&self, script: Script) -> &str {
        &self.functions[script as usize]
    }
}

/// Returns what all functions use.
fn preamble() -> String {
    format!(
        "local MAX_CALLERS, MAX_COUNT, MAX_COUNTERS = {MAX_WAITING}, {MAX_COUNT}, {MAX_COUNTERS}\n\
         local MAX_PERIOD, MAX_RATES, MAX_RECORDS = {MAX_PERIOD_MS}, {MAX_RATES}, {MAX_RECORDS}\n{BOUNDS}{CHECKED}"
    )
}

/// Returns the body of the function that runs a script.
fn body(script: Script) -> String {
    let refuse = match script {
        Script::Single | Script::Plain => "refuse_plain(KEYS, ARGV[1])",
        Script::Runs => "refuse_runs(KEYS, ARGV[1])",
        Script::General => "refuse_general(KEYS, numbers)",
    };
    let (decode, checked) = match script {
        Script::General => ("numbers = cmsgpack.unpack(ARGV[1])\n", "local cmsgpack = checked\n"),
        _ => Default::default(),
    };
    format!(
        "if #KEYS > {MAX_KEYS} or #ARGV ~= 1 or #ARGV[1] > {MAX_ARGUMENT} then\n\
         return redis.error_reply('ERR more than {MAX_KEYS} keys or {MAX_ARGUMENT} bytes of arguments')\nend\n\
         {decode}local refusal = {refuse}\nif refusal then return redis.error_reply(refusal) end\n{checked}{}",
        script.source()
    )
}
