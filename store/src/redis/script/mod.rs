//! The Redis scripts and their protocol. A batch goes in; the script's arguments go out to the server; its reply
//! comes in and becomes the responses to the batch's callers.
//!
//! - [`key_names`]: the names of keys in Redis.
//! - [`mod@encode`]: a batch as the arguments of its script.
//! - [`call`]: the call of a script.
//! - [`decode`]: the script's reply as the states of counters, and the responses that follow from them.
//!
//! The scripts are in `lua/`.

mod call;
mod decode;
mod encode;
mod key_names;
#[cfg(test)]
mod tests;

pub(crate) use self::decode::respond;
pub(crate) use call::{ScriptArguments, Scripts, is_no_script, send};
pub(crate) use decode::{Reply, read_time};
pub(crate) use encode::{CallContext, encode};
pub(crate) use key_names::KeyNames;
