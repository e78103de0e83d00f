//! The Redis script and its protocol. A batch goes in; the script's arguments go out to the server; its reply
//! comes in and becomes the responses to the batch's callers.
//!
//! - [`key_names`]: the names of keys in Redis.
//! - [`encode`]: a batch as the arguments of the script.
//! - [`call`]: the call of the script.
//! - [`decode`]: the script's reply as the states of counters.
//! - [`respond`]: the responses to a batch's callers, computed from these states.
//!
//! `check.lua` is the script. Its head describes the arguments and the reply.

mod call;
mod decode;
mod encode;
mod key_names;
mod respond;
#[cfg(test)]
mod tests;

pub use call::CHECK_LUA;
pub(crate) use call::{Script, ScriptArguments, command, send};
pub(crate) use decode::{Reply, read_time};
pub(crate) use encode::encode;
pub(crate) use key_names::KeyNames;
pub(crate) use respond::respond;
