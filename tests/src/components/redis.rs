//! A Redis server on loopback, without persistence.

use std::path::Path;

use tempfile::TempDir;

use crate::process::{Process, free_port};
use crate::wait::until;

/// A running Redis server.
#[derive(Debug)]
pub struct Redis {
    _process: Process,
    _directory: TempDir,
    /// URL of the server: `redis://127.0.0.1:PORT`.
    pub url: String,
}

impl Redis {
    /// Starts a server and waits until it answers.
    ///
    /// # Panics
    /// When redis-server is not installed.
    pub async fn start() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let port = free_port();
        let arguments: Vec<String> =
            ["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir"]
                .into_iter()
                .map(str::to_owned)
                .chain([directory.path().display().to_string()])
                .collect();
        let log = directory.path().join("redis.log");
        let process = Process::start(Path::new("/usr/bin/redis-server"), &arguments, &[], &log, "KILL");
        let redis =
            Self { _process: process, _directory: directory, url: format!("redis://127.0.0.1:{port}") };
        until("Redis answers", async || {
            let mut connection = redis.connection().await.ok()?;
            ::redis::cmd("PING").query_async::<String>(&mut connection).await.ok()
        })
        .await;
        redis
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// When the server does not accept it.
    pub async fn connection(&self) -> ::redis::RedisResult<::redis::aio::MultiplexedConnection> {
        ::redis::Client::open(self.url.as_str())?.get_multiplexed_async_connection().await
    }

    /// Returns the names of all keys.
    ///
    /// # Panics
    /// When Redis does not answer.
    pub async fn keys(&self) -> Vec<String> {
        let mut connection = self.connection().await.expect("Redis answers");
        ::redis::cmd("KEYS").arg("*").query_async(&mut connection).await.expect("Redis answers")
    }
}
