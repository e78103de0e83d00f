//! The call of a script: by its hash, and with its source if the server does not know it. EVAL needs no
//! right to SCRIPT LOAD, and it also serves a server that was restarted or whose scripts were flushed. Where an
//! administrator maintains a library, the scripts are called as its functions.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};

use crate::redis::library::Library;
use crate::redis::options::Calls;
use crate::redis::scripts::Script;

/// The names by which scripts are called.
#[derive(Debug)]
pub(crate) enum Scripts {
    /// The hashes of the scripts.
    Hashes([String; Script::ALL.len()]),
    /// The functions of the library.
    Functions(&'static Library),
}

/// The arguments of one script call.
#[derive(Debug)]
pub(crate) struct ScriptArguments {
    pub(super) script: Script,
    /// Keys that the call touches, each once.
    pub(crate) keys: Vec<String>,
    /// The only other argument.
    pub(super) payload: Vec<u8>,
}

impl ScriptArguments {
    /// Arguments without an operation. The deadline of the general script lies thousands of years ahead. A proxy needs a key to
    /// know the server.
    pub(crate) fn empty(script: Script, key: Option<&str>) -> Self {
        let payload = match script {
            Script::Single | Script::Plain | Script::Runs => Vec::new(),
            Script::General => pack(&[u64::from(u32::MAX) << 20]),
        };
        Self { script, keys: key.map(str::to_owned).into_iter().collect(), payload }
    }
}

impl Scripts {
    pub(crate) fn new(calls: Calls) -> Self {
        match calls {
            Calls::Scripts => Self::Hashes(
                Script::ALL.map(|script| redis::Script::new(script.source()).get_hash().to_owned()),
            ),
            Calls::Functions => Self::Functions(Library::current()),
        }
    }

    /// Calls a script and returns its reply.
    pub(crate) async fn call(
        &self,
        connection: &mut MultiplexedConnection,
        arguments: &ScriptArguments,
    ) -> RedisResult<Value> {
        match send(connection, &self.by_name(arguments)).await {
            Err(error) if is_no_script(&error) => send(connection, &Self::with_source(arguments)).await,
            other => other,
        }
    }

    /// Returns the command that calls a script by its hash or as a function.
    pub(crate) fn by_name(&self, arguments: &ScriptArguments) -> Cmd {
        match self {
            Self::Hashes(hashes) => command("EVALSHA", &hashes[arguments.script as usize], arguments),
            Self::Functions(library) => command("FCALL", library.function(arguments.script), arguments),
        }
    }

    /// Returns the command that calls a script by its source, after which the server knows the script.
    pub(crate) fn with_source(arguments: &ScriptArguments) -> Cmd {
        command("EVAL", arguments.script.source(), arguments)
    }
}

/// Reports whether the server does not know the script.
pub(crate) fn is_no_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// Sends one command. An error reply becomes an error.
pub(crate) async fn send(connection: &mut MultiplexedConnection, command: &Cmd) -> RedisResult<Value> {
    match connection.send_packed_command(command).await? {
        Value::ServerError(error) => Err(error.into()),
        value => Ok(value),
    }
}

fn command(name: &str, script: &str, arguments: &ScriptArguments) -> Cmd {
    let ScriptArguments { script: _, keys, payload } = arguments;
    let size = script.len() + payload.len() + keys.iter().map(String::len).sum::<usize>();
    let mut command = Cmd::with_capacity(keys.len() + 4, size + 32);
    command.arg(name).arg(script).arg(keys.len());
    for key in keys {
        command.arg(key);
    }
    command.arg(&payload[..]);
    command
}

/// Encodes integers as a MessagePack array (<https://github.com/msgpack/msgpack/blob/master/spec.md>).
pub(super) fn pack(numbers: &[u64]) -> Vec<u8> {
    let mut out = Vec::with_capacity(5 + numbers.len() * 5);
    out.push(0xdd);
    out.extend_from_slice(&(numbers.len() as u32).to_be_bytes());
    for &n in numbers {
        match n {
            0..=0x7f => out.push(n as u8),
            0x80..=0xffff => {
                out.push(0xcd);
                out.extend_from_slice(&(n as u16).to_be_bytes());
            }
            0x1_0000..=0xffff_ffff => {
                out.push(0xce);
                out.extend_from_slice(&(n as u32).to_be_bytes());
            }
            _ => {
                out.push(0xcf);
                out.extend_from_slice(&n.to_be_bytes());
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_takes_the_shortest_form_that_holds_it() {
        assert_eq!(pack(&[]), [0xdd, 0, 0, 0, 0]);
        assert_eq!(pack(&[0, 127, 128]), [0xdd, 0, 0, 0, 3, 0, 127, 0xcd, 0, 128]);
        assert_eq!(pack(&[65_535])[5..], [0xcd, 255, 255]);
        assert_eq!(pack(&[65_536])[5..], [0xce, 0, 1, 0, 0]);
        assert_eq!(pack(&[u64::from(u32::MAX)])[5..], [0xce, 255, 255, 255, 255]);
        assert_eq!(pack(&[1 << 40])[5..], [0xcf, 0, 0, 1, 0, 0, 0, 0, 0]);
    }
}
