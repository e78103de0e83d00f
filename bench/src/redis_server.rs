//! A Redis on a core of its own, as both sides use it.

use anyhow::Context as _;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Value};
use sluice_store::{RedisOptions, RedisStore, StoreHealth};
use sluice_tests::process::{Process, free_port};
use sluice_tests::wait::until;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

use crate::cores::Cores;
use crate::procfs::Processes;

/// A Redis that runs.
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
    /// Starts one.
    pub(crate) async fn start(cores: Cores) -> anyhow::Result<Self> {
        let (folder, port) = (tempfile::tempdir()?, free_port());
        let process = start(cores, &folder, port)?;
        let url = format!("redis://127.0.0.1:{port}");
        answers(&url).await;
        let processes = Processes::started("redis-server")?;
        Ok(Self { url, processes, process, cores, port, folder })
    }

    /// Ends it by KILL.
    pub(crate) fn kill(&mut self) {
        self.process.stop();
    }

    /// Starts it again, empty, where it was.
    pub(crate) async fn restart(&mut self) -> anyhow::Result<()> {
        self.process = start(self.cores, &self.folder, self.port)?;
        answers(&self.url).await;
        self.processes = Processes::started("redis-server")?;
        Ok(())
    }

    /// A connection.
    pub(crate) async fn connection(&self) -> anyhow::Result<MultiplexedConnection> {
        connect(&self.url).await
    }

    /// A store that is connected. Its checks may wait for as long as a store allows: what is measured is work.
    pub(crate) async fn store(&self) -> anyhow::Result<Arc<RedisStore>> {
        let mut options = RedisOptions::new(&self.url);
        options.latency_budget = Duration::from_secs(10);
        let store = Arc::new(RedisStore::start(options)?);
        until("the store is healthy", async || (store.health() == StoreHealth::Healthy).then_some(())).await;
        Ok(store)
    }

    /// Sends a command whose answer is not read.
    pub(crate) async fn tell(&self, words: &[&str]) -> anyhow::Result<Value> {
        let mut command = redis::cmd(words.first().context("no command")?);
        command.arg(&words[1..]);
        Ok(command.query_async(&mut self.connection().await?).await?)
    }

    /// A field of INFO.
    pub(crate) async fn info(&self, section: &str, field: &str) -> anyhow::Result<String> {
        let mut connection = self.connection().await?;
        let text: String = redis::cmd("INFO").arg(section).query_async(&mut connection).await?;
        let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        Ok(line.with_context(|| format!("INFO {section} has no {field}"))?.to_owned())
    }

    /// How many calls of the script there were since CONFIG RESETSTAT, and how many microseconds they took.
    pub(crate) async fn script_calls(&self) -> anyhow::Result<(u64, u64)> {
        let line = self.info("commandstats", "cmdstat_evalsha").await?;
        let field = |name: &str| {
            let found = line.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
            anyhow::Ok(found.with_context(|| format!("commandstats has no {name}"))?.parse::<u64>()?)
        };
        Ok((field("calls")?, field("usec")?))
    }
}

/// A connection that waits as long as it takes: what is measured is work.
pub(crate) async fn connect(url: &str) -> anyhow::Result<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
    Ok(redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await?)
}

fn start(cores: Cores, folder: &TempDir, port: u16) -> anyhow::Result<Process> {
    let arguments = [
        crate::peer_file("redis.conf").display().to_string(),
        "--port".to_owned(),
        port.to_string(),
        "--dir".to_owned(),
        folder.path().display().to_string(),
    ];
    cores.start(&crate::program("redis-server")?, &arguments, &folder.path().join("redis.log"), "KILL")
}

async fn answers(url: &str) {
    until("Redis answers", async || {
        let mut connection = connect(url).await.ok()?;
        redis::cmd("PING").query_async::<Value>(&mut connection).await.ok()
    })
    .await;
}
