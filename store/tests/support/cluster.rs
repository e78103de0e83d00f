//! A Redis Cluster for a test: three masters with one replica each.

#![allow(unreachable_pub, dead_code, reason = "shared by several tests, none of which uses all of it")]

use std::process::Command;

use redis::{Connection, RedisResult, Value};
use sluice_store::{Counter, RedisStore};
use tempfile::TempDir;

use crate::support::{Redis, quiet_port, until};

/// Six servers, of which the first three start as masters.
pub struct Cluster {
    pub servers: Vec<Redis>,
    _dirs: Vec<TempDir>,
}

/// A server in the reply to `CLUSTER NODES`.
#[derive(Debug, Clone)]
pub struct Row {
    pub id: String,
    pub port: u16,
    pub master: bool,
    pub failed: bool,
    pub linked: bool,
    pub slots: Vec<(u16, u16)>,
}

impl Cluster {
    /// Starts a cluster with additional arguments for every server.
    pub fn start(arguments: &[&str]) -> Self {
        let (servers, dirs) = start_each(|_| arguments.iter().map(|&argument| argument.to_owned()).collect());
        let ports: Vec<u16> = servers.iter().map(|server| server.port).collect();
        Self { servers, _dirs: dirs }.created(&[], &ports)
    }

    /// Starts a cluster over TLS, and returns its TLS ports. The plain ports are only for the test. `files`
    /// are arguments of redis-cli.
    pub fn start_with_tls(arguments: &[String], files: &[String]) -> (Self, Vec<u16>) {
        let ports: Vec<u16> = (0..6).map(|_| quiet_port()).collect();
        let (servers, dirs) = start_each(|n| {
            let mut all = arguments.to_vec();
            let own =
                ["--tls-port", &ports[n].to_string(), "--tls-cluster", "yes", "--tls-replication", "yes"];
            all.extend(own.map(str::to_owned));
            all
        });
        let cluster = Self { servers, _dirs: dirs };
        (cluster.created(files, &ports), ports)
    }

    /// Joins the servers to a cluster once more, after a reset.
    pub fn again(self) -> Self {
        let ports: Vec<u16> = self.servers.iter().map(|server| server.port).collect();
        self.created(&[], &ports)
    }

    /// Joins the servers to a cluster.
    fn created(self, files: &[String], ports: &[u16]) -> Self {
        let mut create = Command::new("redis-cli");
        create.args(files).args(["--cluster", "create"]);
        create.args(ports.iter().map(|port| format!("127.0.0.1:{port}")));
        let output = create.args(["--cluster-replicas", "1", "--cluster-yes"]).output().unwrap();
        assert!(output.status.success(), "redis-cli: {}", String::from_utf8_lossy(&output.stdout));
        let cluster = self;
        until("all servers agree and all replicas are in sync", || {
            cluster.servers.iter().all(|server| {
                let info: String = redis::cmd("CLUSTER").arg("INFO").query(&mut server.connection()).unwrap();
                let rows = rows(&mut server.connection());
                let masters = rows.iter().filter(|row| row.master);
                let slots: u32 = masters.flat_map(|row| &row.slots).map(|(a, b)| u32::from(b - a) + 1).sum();
                let role: Value = redis::cmd("ROLE").query(&mut server.connection()).unwrap();
                let in_sync = match &role {
                    Value::Array(cells) => cells.iter().any(|cell| {
                        *cell == Value::BulkString("master".into())
                            || *cell == Value::BulkString("connected".into())
                    }),
                    _ => false,
                };
                info.contains("cluster_state:ok")
                    && rows.len() == 6
                    && rows.iter().filter(|row| row.master).count() == 3
                    && slots == 16_384
                    && in_sync
            })
        });
        cluster
    }

    /// Returns the URL with all servers.
    pub fn url(&self) -> String {
        let servers: Vec<_> =
            self.servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
        format!("redis+cluster://{}", servers.join(","))
    }

    /// Returns the index of the server that owns a hash slot, as reported by the server at `source`.
    pub fn owner_of(&self, slot: u16, source: usize) -> usize {
        let rows = rows(&mut self.servers[source].connection());
        let owner = rows
            .iter()
            .find(|row| row.slots.iter().any(|&(first, last)| (first..=last).contains(&slot)))
            .unwrap_or_else(|| panic!("no server owns hash slot {slot}: {rows:?}"));
        self.index(owner.port)
    }

    pub fn index(&self, port: u16) -> usize {
        self.servers.iter().position(|server| server.port == port).unwrap()
    }

    /// Returns the hash slot of a counter's key.
    pub fn slot(&self, store: &RedisStore, counter: &Counter) -> u16 {
        self.slot_at(0, store, counter)
    }

    /// Returns the hash slot of a counter's key, as reported by this server.
    pub fn slot_at(&self, server: usize, store: &RedisStore, counter: &Counter) -> u16 {
        let mut command = redis::cmd("CLUSTER");
        command.arg("KEYSLOT").arg(store.key(counter)).query(&mut self.servers[server].connection()).unwrap()
    }

    /// Returns the id of a server.
    pub fn id(&self, server: usize) -> String {
        redis::cmd("CLUSTER").arg("MYID").query(&mut self.servers[server].connection()).unwrap()
    }

    /// Sends `CLUSTER SETSLOT` to a server.
    pub fn set_slot(&self, server: usize, slot: u16, state: &str, id: &str) -> RedisResult<()> {
        let mut command = redis::cmd("CLUSTER");
        command.arg("SETSLOT").arg(slot).arg(state).arg(id);
        command.query(&mut self.servers[server].connection())
    }

    /// Moves up to `count` keys of a hash slot from one server to another. Returns how many it moved.
    pub fn migrate(&self, slot: u16, from: usize, to: usize, count: usize) -> usize {
        let mut connection = self.servers[from].connection();
        let mut command = redis::cmd("CLUSTER");
        let keys: Vec<String> =
            command.arg("GETKEYSINSLOT").arg(slot).arg(count).query(&mut connection).unwrap();
        if !keys.is_empty() {
            let mut migrate = redis::cmd("MIGRATE");
            migrate
                .arg("127.0.0.1")
                .arg(self.servers[to].port)
                .arg("")
                .arg(0)
                .arg(5000)
                .arg("KEYS")
                .arg(&keys);
            // A key may have expired since.
            let _: String = migrate.query(&mut connection).unwrap();
        }
        keys.len()
    }
}

fn start_each(arguments: impl Fn(usize) -> Vec<String>) -> (Vec<Redis>, Vec<TempDir>) {
    let start = |n| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_string_lossy().into_owned();
        let mut all = vec!["--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--dir", &path];
        all.extend(["--cluster-require-full-coverage", "no", "--cluster-replica-validity-factor", "0"]);
        all.extend(["--repl-diskless-sync-delay", "0"]);
        let more = arguments(n);
        all.extend(more.iter().map(String::as_str));
        (Redis::start_restartable(&all), dir)
    };
    (0..6).map(start).unzip()
}

/// Returns the servers of the cluster, as this one reports them.
pub fn rows(connection: &mut Connection) -> Vec<Row> {
    let text: String = redis::cmd("CLUSTER").arg("NODES").query(connection).unwrap();
    text.lines()
        .map(|line| {
            let cells: Vec<_> = line.split(' ').collect();
            let address = cells[1].split(['@', ',']).next().unwrap();
            let slots = cells[8..].iter().filter(|cell| !cell.starts_with('[')).map(|cell| {
                let (first, last) = cell.split_once('-').unwrap_or((cell, cell));
                (first.parse().unwrap(), last.parse().unwrap())
            });
            Row {
                id: cells[0].to_owned(),
                port: address.rsplit(':').next().unwrap().parse().unwrap(),
                master: cells[2].contains("master"),
                failed: cells[2].contains("fail"),
                linked: cells[7] == "connected",
                slots: slots.collect(),
            }
        })
        .collect()
}
