//! What one would write without a store: fixed windows by MULTI, INCRBY and PEXPIRE, by the same client library. Each
//! caller waits for its own answer; the connection is shared and pipelines what comes together. Unlike the store it
//! counts denied requests too, and has no deadline.

use redis::aio::MultiplexedConnection;

use crate::keys::PERIOD;

/// Counts of plain Redis.
#[derive(Clone)]
pub(crate) struct PlainRedis {
    connection: MultiplexedConnection,
}

impl PlainRedis {
    /// Takes a connection.
    pub(crate) fn new(connection: MultiplexedConnection) -> Self {
        Self { connection }
    }

    /// Counts a request in so many windows; whether it was admitted by all.
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
