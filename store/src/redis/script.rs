//! The one script, and how it is called: by its hash, and with its text when the server does not know it (EVAL needs
//! no right to SCRIPT LOAD, and a flushed or restarted server is served by the same call).

use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, RedisResult, ServerErrorKind, Value};

/// The script that decides a batch of checks; its head says what goes in and what comes out.
pub const CHECK_LUA: &str = include_str!("check.lua");

/// The script with its hash.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) hash: String,
}

/// What one call asks.
#[derive(Debug, Default)]
pub(super) struct Request {
    /// The keys, each once.
    pub(super) keys: Vec<String>,
    /// The script's one argument.
    pub(super) payload: Vec<u8>,
}

impl Script {
    pub(super) fn new() -> Self {
        Self { hash: redis::Script::new(CHECK_LUA).get_hash().to_owned() }
    }

    pub(super) async fn call(
        &self,
        connection: &mut MultiplexedConnection,
        request: &Request,
    ) -> RedisResult<Value> {
        match send(connection, &command("EVALSHA", &self.hash, request)).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                send(connection, &command("EVAL", CHECK_LUA, request)).await
            }
            other => other,
        }
    }
}

/// One command, its error reply as an error.
pub(super) async fn send(connection: &mut MultiplexedConnection, command: &Cmd) -> RedisResult<Value> {
    match connection.send_packed_command(command).await? {
        Value::ServerError(error) => Err(error.into()),
        value => Ok(value),
    }
}

/// EVALSHA with the hash, or EVAL with the text.
pub(super) fn command(name: &str, script: &str, request: &Request) -> Cmd {
    let size = script.len() + request.payload.len() + request.keys.iter().map(String::len).sum::<usize>();
    let mut command = Cmd::with_capacity(request.keys.len() + 4, size + 32);
    command.arg(name).arg(script).arg(request.keys.len());
    for key in &request.keys {
        command.arg(key);
    }
    command.arg(&request.payload[..]);
    command
}

/// Whole numbers as a MessagePack array (<https://github.com/msgpack/msgpack/blob/master/spec.md>).
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
    fn numbers_take_the_shortest_form_that_holds_them() {
        assert_eq!(pack(&[]), [0xdd, 0, 0, 0, 0]);
        assert_eq!(pack(&[0, 127, 128]), [0xdd, 0, 0, 0, 3, 0, 127, 0xcd, 0, 128]);
        assert_eq!(pack(&[65_535])[5..], [0xcd, 255, 255]);
        assert_eq!(pack(&[65_536])[5..], [0xce, 0, 1, 0, 0]);
        assert_eq!(pack(&[u64::from(u32::MAX)])[5..], [0xce, 255, 255, 255, 255]);
        assert_eq!(pack(&[1 << 40])[5..], [0xcf, 0, 0, 1, 0, 0, 0, 0, 0]);
    }
}
