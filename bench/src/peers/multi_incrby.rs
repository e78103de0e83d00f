//! The usual way to count in Redis without a script: fixed windows by MULTI, INCRBY and PEXPIRE. Each caller
//! waits for its own reply; the shared connection pipelines concurrent calls. Unlike the store it counts
//! denied requests too, and has no deadline.

use redis::aio::MultiplexedConnection;

use crate::support::keys::PERIOD;

/// The peer's name in the table.
pub(crate) const NAME: &str = "MULTI/INCRBY/PEXPIRE";

/// A connection that counts.
#[derive(Clone)]
pub(crate) struct MultiIncrby {
    connection: MultiplexedConnection,
}

impl MultiIncrby {
    pub(crate) fn new(connection: MultiplexedConnection) -> Self {
        Self { connection }
    }

    /// Counts a request in each of `windows` and reports whether all admit it.
    pub(crate) async fn check(
        &self,
        scope: &str,
        key: u128,
        requests: u64,
        windows: usize,
    ) -> redis::RedisResult<bool> {
        let mut transaction = redis::pipe();
        transaction.atomic();
        for window in 0..windows {
            let name = format!("plain:{scope}:{window}:{key:032x}");
            transaction.cmd("INCRBY").arg(&name).arg(1);
            transaction.cmd("PEXPIRE").arg(&name).arg(PERIOD.as_millis() as u64).arg("NX").ignore();
        }
        let counts: Vec<u64> = transaction.query_async(&mut self.connection.clone()).await?;
        Ok(counts.iter().all(|&count| count <= requests))
    }
}
