//! A Redis server on loopback.

use std::path::Path;

use tempfile::TempDir;

use crate::process::{Process, free_port};
use crate::wait::until;

/// A running Redis server.
#[derive(Debug)]
pub struct Redis {
    process: Process,
    directory: TempDir,
    arguments: Vec<String>,
    /// URL of the server: `redis://127.0.0.1:PORT`.
    pub url: String,
}

impl Redis {
    /// Starts a server without persistence and waits until it answers.
    ///
    /// # Panics
    /// When redis-server is not installed.
    pub async fn start() -> Self {
        Self::start_with(&["--appendonly", "no"]).await
    }

    /// Starts a server with further arguments and waits until it answers. Dropping it kills it.
    ///
    /// # Panics
    /// When redis-server is not installed.
    pub async fn start_with(more_arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (port, folder) = (free_port(), directory.path().display().to_string());
        let arguments = ["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir", &folder];
        let arguments: Vec<String> =
            arguments.iter().chain(more_arguments).map(|&argument| argument.to_owned()).collect();
        let process = spawn(&arguments, &directory);
        let redis = Self { process, directory, arguments, url: format!("redis://127.0.0.1:{port}") };
        redis.wait_until_it_answers().await;
        redis
    }

    /// Kills the server, starts it again and waits until it answers.
    pub async fn restart(&mut self) {
        self.process.stop();
        self.process = spawn(&self.arguments, &self.directory);
        self.wait_until_it_answers().await;
    }

    async fn wait_until_it_answers(&self) {
        until("Redis answers", async || {
            let mut connection = self.connection().await.ok()?;
            ::redis::cmd("PING").query_async::<String>(&mut connection).await.ok()
        })
        .await;
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// When the server does not accept it.
    pub async fn connection(&self) -> ::redis::RedisResult<::redis::aio::MultiplexedConnection> {
        ::redis::Client::open(self.url.as_str())?.get_multiplexed_async_connection().await
    }

    /// Returns the names of all keys, except those of registries, which count the keys of a limit.
    ///
    /// # Panics
    /// When Redis does not answer.
    pub async fn keys(&self) -> Vec<String> {
        let mut connection = self.connection().await.expect("Redis answers");
        let keys: Vec<String> =
            ::redis::cmd("KEYS").arg("*").query_async(&mut connection).await.expect("Redis answers");
        keys.into_iter().filter(|key| !key.ends_with(":keys")).collect()
    }
}

fn spawn(arguments: &[String], directory: &TempDir) -> Process {
    let log = directory.path().join("redis.log");
    Process::start(Path::new("/usr/bin/redis-server"), arguments, &[], &log, "KILL")
}
