//! What one would write without a store: a fixed window by MULTI, INCRBY and PEXPIRE, by the same client library. Each
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
    /// Connects.
    pub(crate) async fn connect(url: &str) -> redis::RedisResult<Self> {
        let connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
        Ok(Self { connection })
    }

    /// Counts a request; whether it was admitted.
    pub(crate) async fn check(&self, scope: &str, key: u128, requests: u64) -> redis::RedisResult<bool> {
        let name = format!("plain:{scope}:{key:032x}");
        let mut transaction = redis::pipe();
        transaction.atomic().cmd("INCRBY").arg(&name).arg(1);
        let expire = transaction.cmd("PEXPIRE").arg(&name).arg(PERIOD.as_millis() as u64).arg("NX");
        let (count,): (u64,) = expire.ignore().query_async(&mut self.connection.clone()).await?;
        Ok(count <= requests)
    }
}
