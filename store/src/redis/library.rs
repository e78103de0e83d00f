//! All scripts as a function library (<https://redis.io/docs/latest/develop/programmability/functions-intro/>). Its name
//! and those of its functions contain a hash of the content, so libraries of several releases exist side by side.

use std::fmt::Write as _;
use std::sync::LazyLock;

use super::scripts::Script;

/// Beginning of the names of all releases' libraries.
pub(crate) const PREFIX: &str = "sluice_";

/// Bounds of a call, so that nobody blocks the server for long. The largest calls of this crate stay far below.
const MAX_KEYS: usize = 1_024;
const MAX_ARGUMENT: usize = 128 << 10;

/// Refuses plain checks whose number is not that of the keys. Each takes memory for its reply.
const PLAIN_GUARD: &str = "local checks = 0\n\
                           for at = 21, #ARGV[1], 26 do checks = checks + struct.unpack('<I2', ARGV[1], at) end\n\
                           if checks ~= #KEYS then return redis.error_reply('ERR not one key for each check') end\n";

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
        let sources = Script::ALL.map(Script::source).concat();
        let hash = redis::Script::new(&sources).get_hash().chars().take(16).collect::<String>();
        let name = format!("{PREFIX}{hash}");
        let functions = Script::ALL.map(|script| format!("{name}_{script:?}").to_lowercase());
        let mut source = format!("#!lua name={name}\n");
        for (script, function) in Script::ALL.into_iter().zip(&functions) {
            let body = script.source();
            let guard = if script == Script::Plain { PLAIN_GUARD } else { "" };
            let _ = writeln!(
                source,
                "redis.register_function('{function}', function(KEYS, ARGV)\n\
                 if #KEYS > {MAX_KEYS} or #ARGV ~= 1 or #ARGV[1] > {MAX_ARGUMENT} then\n\
                 return redis.error_reply('ERR more than {MAX_KEYS} keys or {MAX_ARGUMENT} bytes of arguments')\nend\n\
                 {guard}{body}\nend)"
            );
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
