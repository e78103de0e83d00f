//! Finds out whether one address leads to several servers: a proxy before the shards of a cluster may send each call to the
//! server of its first key, so that the keys of one call, or of two, are on different servers.

use std::time::Duration;

use futures::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisResult, Value};
use tokio::time::timeout;

use super::fault::ServerFailure;
use crate::fault_cause::FaultCause;
use crate::redis::script::{KeyNames, send};

/// Writes the second key. A proxy sends the call to the server of the first one.
const WRITE: &str = "return redis.call('SET', KEYS[2], '1', 'PX', 10000)";

/// Lets the second key expire. The user has no right to DEL.
const EXPIRE: &str = "return redis.call('SET', KEYS[2], '', 'PX', 1)";

/// Reads the second key.
const READ: &str = "return redis.call('GET', KEYS[2])";

/// Number of calls that read the key by other first keys with the same tag. Of two servers, of which one has a tenth of the keys,
/// all of these lead to one in one case of a thousand. Their names are always the same, so that another attempt finds the same.
const READS: usize = 64;

/// Number of other tags by which the key is read.
const OTHER_TAGS: usize = 16;

/// Checks that an address leads to one server: a key is written by a call with one first key, and read by calls with others.
pub(super) async fn verify_one_server(
    connection: &MultiplexedConnection,
    names: &KeyNames,
    within: Duration,
) -> Result<(), ServerFailure> {
    let tags: Vec<u32> = names.partitions.tags().collect();
    let Some(&tag) = tags.first() else { return Ok(()) };
    let name = |tag: u32, what: &str| format!("{}probe:{{{tag}}}:{what}", names.prefix);
    // No other process writes it.
    let written = name(tag, &format!("written:{:x}", rand::random::<u64>()));
    let call = |script: &str, first: String| {
        let mut command = redis::cmd("EVAL");
        command.arg(script).arg(2).arg(first).arg(&written);
        answer(connection.clone(), command)
    };
    // Of the other partitions, some that lie evenly among them.
    let step = tags.len().div_ceil(OTHER_TAGS).max(1);
    let others: Vec<_> = tags.iter().skip(1).step_by(step).copied().collect();
    let all = async {
        call(WRITE, name(tag, "first")).await?;
        let same = join_all((0..READS).map(|n| call(READ, name(tag, &format!("same{n}"))))).await;
        let others = join_all(others.into_iter().map(|other| call(READ, name(other, "other")))).await;
        // Without it, the key expires some seconds later.
        let _ = call(EXPIRE, name(tag, "first")).await;
        Ok((same, others))
    };
    let (same, others) = match timeout(within, all).await {
        Ok(Ok(read)) => read,
        Ok(Err(error)) => return accept_missing_right(ServerFailure::from_error(&error)),
        Err(_) => return Err(FaultCause::Slow.into()),
    };
    for (replies, cause) in [(same, FaultCause::TagsSpread), (others, FaultCause::SeveralShards)] {
        for reply in replies {
            match reply {
                Ok(Value::Nil) => return Err(cause.into()),
                Ok(_) => {}
                Err(error) => return accept_missing_right(ServerFailure::from_error(&error)),
            }
        }
    }
    Ok(())
}

async fn answer(mut connection: MultiplexedConnection, command: Cmd) -> RedisResult<Value> {
    send(&mut connection, &command).await
}

/// A user may have no right to EVAL if the server knows the scripts already. Then the shards are not known.
fn accept_missing_right(failure: ServerFailure) -> Result<(), ServerFailure> {
    if failure.cause == FaultCause::NotPermitted { Ok(()) } else { Err(failure) }
}
