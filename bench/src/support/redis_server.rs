//! A Redis process on the measured core.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Value};
use sluice_store::redis::Calls;
use sluice_store::redis::library::Library;
use sluice_store::{RedisOptions, RedisStore, Store as _, StoreHealth};
use sluice_tests::process::{Process, free_port};
use sluice_tests::wait::until;
use tempfile::TempDir;

use super::cores::Cores;
use super::paths::{peer_file, program};
use super::procfs::Processes;

/// A running Redis.
pub(crate) struct RedisServer {
    /// `redis://127.0.0.1:PORT`.
    pub(crate) url: String,
    pub(crate) processes: Processes,
    process: Process,
    cores: Cores,
    port: u16,
    folder: TempDir,
}

impl RedisServer {
    /// Starts Redis on a free port.
    pub(crate) async fn start(cores: Cores) -> anyhow::Result<Self> {
        let (folder, port) = (tempfile::tempdir()?, free_port());
        let process = start(cores, &folder, port)?;
        let url = format!("redis://127.0.0.1:{port}");
        wait_until_it_answers(&url).await;
        let processes = Processes::started("redis-server")?;
        Ok(Self { url, processes, process, cores, port, folder })
    }

    /// Kills the process.
    pub(crate) fn kill(&mut self) {
        self.process.stop();
    }

    /// Starts an empty Redis on the same port.
    pub(crate) async fn restart(&mut self) -> anyhow::Result<()> {
        self.process = start(self.cores, &self.folder, self.port)?;
        wait_until_it_answers(&self.url).await;
        self.processes = Processes::started("redis-server")?;
        Ok(())
    }

    /// Opens a connection.
    pub(crate) async fn connection(&self) -> anyhow::Result<MultiplexedConnection> {
        connect(&self.url).await
    }

    /// Starts a store for this Redis.
    pub(crate) async fn store(&self) -> anyhow::Result<Arc<RedisStore>> {
        Ok(Arc::new(patient_store(&self.url).await?))
    }

    /// Loads the function library, and starts a store that calls it.
    pub(crate) async fn store_of_functions(&self) -> anyhow::Result<Arc<RedisStore>> {
        self.command(&["FUNCTION", "LOAD", "REPLACE", Library::current().source()]).await?;
        Ok(Arc::new(patient_store_of(&self.url, Calls::Functions).await?))
    }

    /// Runs a command.
    pub(crate) async fn command(&self, words: &[&str]) -> anyhow::Result<Value> {
        let mut command = redis::cmd(words.first().context("the command is empty")?);
        command.arg(&words[1..]);
        Ok(command.query_async(&mut self.connection().await?).await?)
    }

    /// Returns a field of INFO.
    pub(crate) async fn info(&self, section: &str, field: &str) -> anyhow::Result<String> {
        let mut connection = self.connection().await?;
        let text: String = redis::cmd("INFO").arg(section).query_async(&mut connection).await?;
        let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        Ok(line.with_context(|| format!("INFO {section} has no {field}"))?.to_owned())
    }

    /// Returns the number of script calls since CONFIG RESETSTAT.
    pub(crate) async fn script_calls(&self) -> anyhow::Result<u64> {
        self.calls("evalsha").await
    }

    /// Returns the number of calls of a command since CONFIG RESETSTAT. Fails if there was none.
    pub(crate) async fn calls(&self, command: &str) -> anyhow::Result<u64> {
        let line = self.info("commandstats", &format!("cmdstat_{command}")).await?;
        let calls = line.split(',').find_map(|field| field.strip_prefix("calls="));
        Ok(calls.context("commandstats has no calls")?.parse()?)
    }
}

/// Starts a store with the longest latency budget there is, 10 s, because the parts measure work and not
/// waiting. Waits until the store is healthy.
pub(crate) async fn patient_store(url: &str) -> anyhow::Result<RedisStore> {
    patient_store_of(url, Calls::Scripts).await
}

async fn patient_store_of(url: &str, calls: Calls) -> anyhow::Result<RedisStore> {
    let mut options = RedisOptions::from_url(url)?;
    options.latency_budget = Duration::from_secs(10);
    options.calls = calls;
    let store = RedisStore::start(options)?;
    wait_until_healthy(&store).await;
    Ok(store)
}

/// Waits until a store is healthy.
pub(crate) async fn wait_until_healthy(store: &RedisStore) {
    until("the store is healthy", async || (store.health() == StoreHealth::Healthy).then_some(())).await;
}

/// Opens a connection without timeouts.
pub(crate) async fn connect(url: &str) -> anyhow::Result<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
    Ok(redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await?)
}

fn start(cores: Cores, folder: &TempDir, port: u16) -> anyhow::Result<Process> {
    let arguments = [
        peer_file("redis.conf").display().to_string(),
        "--port".to_owned(),
        port.to_string(),
        "--dir".to_owned(),
        folder.path().display().to_string(),
    ];
    cores.start(&program("redis-server")?, &arguments, &folder.path().join("redis.log"), "KILL")
}

async fn wait_until_it_answers(url: &str) {
    until("Redis answers", async || {
        let mut connection = connect(url).await.ok()?;
        redis::cmd("PING").query_async::<Value>(&mut connection).await.ok()
    })
    .await;
}
