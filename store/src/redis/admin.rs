//! Administration of a managed store: one user for each namespace, and the function library, on every server. Users are
//! not replicated by Redis, so each server is administered by itself: masters, replicas and sentinels. One that is up to date is only read.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use futures::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};
use sha2::{Digest as _, Sha256};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::cluster_view::{ClusterView, most_credible};
use super::connect::{
    ConnectPlan, Sentinels, ServerFailure, Target, TargetTemplate, loggable, open, read_view,
};
use super::library;
use super::library::Library;
use super::options::{Calls, OptionsError, RedisOptions, Secret, Topology};
use super::partitions::Partitions;
use super::script::send;
use crate::eviction::Eviction;
use crate::fault_cause::FaultCause;

/// Longest time for all servers.
const LONGEST_PASS: Duration = Duration::from_secs(60);
/// Time for which an eviction is reported.
const RECENT: Duration = Duration::from_secs(600);

/// Administers a store with the credentials of an administrator.
pub struct Administrator {
    options: RedisOptions,
    plan: ConnectPlan,
    /// The hash slots that have counters, in order.
    used: Vec<u16>,
    /// Knowledge about each server, by its address.
    known: Mutex<BTreeMap<String, KnownState>>,
}

/// Knowledge about a server from the pass before.
#[derive(Default)]
struct KnownState {
    /// The users as they were set last.
    users: KnownUsers,
    /// Number of keys that the server had evicted.
    evicted: Option<u64>,
    /// Time at which that number was seen to have grown.
    last_eviction: Option<Instant>,
}

impl Administrator {
    /// Prepares to administer a store. `options` have the credentials of its administrator.
    pub fn new(options: RedisOptions) -> Result<Self, OptionsError> {
        let plan = options.validate()?;
        let mut used: Vec<u16> = Partitions::new(options.partitions).slots().collect();
        used.sort_unstable();
        Ok(Self { options, plan, used, known: Mutex::default() })
    }

    /// Brings all servers up to date: sets these users and removes others of the same installation, and loads the
    /// library. Returns a report for each server, or the reason why they cannot be found.
    pub async fn provision(&self, users: &[ManagedUser]) -> Result<Vec<ServerReport>, Problem> {
        let slow = Problem { cause: FaultCause::Slow, command: "" };
        timeout(LONGEST_PASS, self.pass(users)).await.unwrap_or(Err(slow))
    }

    async fn pass(&self, users: &[ManagedUser]) -> Result<Vec<ServerReport>, Problem> {
        let nodes = find_nodes(&self.plan, &self.used).await?;
        let mut known = self.known.lock().await;
        known.retain(|address, _| nodes.iter().any(|node| node.target.address == *address));
        let servers = nodes.into_iter().map(|node| {
            let before = known.remove(&node.target.address).unwrap_or_default();
            self.provision_one(node, before, users)
        });
        let mut reports = Vec::new();
        for (report, server) in join_all(servers).await {
            known.insert(report.address.clone(), server);
            reports.push(report);
        }
        Ok(reports)
    }

    /// Changes settings of all masters and replicas. What a server rejects is logged.
    pub async fn set(&self, settings: &[(&str, String)]) {
        let mut command = redis::cmd("CONFIG");
        command.arg("SET");
        for (name, value) in settings {
            command.arg(name).arg(value);
        }
        for node in find_nodes(&self.plan, &self.used)
            .await
            .into_iter()
            .flatten()
            .filter(|node| node.role != Role::Sentinel)
        {
            let set = async {
                let mut connection = connect(&node.target).await?;
                run(&mut connection, "CONFIG SET", &command).await
            };
            if let Err(problem) = set.await {
                tracing::warn!(
                    address = node.target.address,
                    "settings could not be changed: {}",
                    problem.cause
                );
            }
        }
    }

    async fn provision_one(
        &self,
        node: AdministeredNode,
        mut known: KnownState,
        users: &[ManagedUser],
    ) -> (ServerReport, KnownState) {
        let result = provision(&node, &mut known.users, &self.options, users).await;
        let (problem, memory) = match result {
            Ok(memory) => (None, memory.unwrap_or_default()),
            Err(problem) => (Some(problem), Memory::default()),
        };
        if memory.evicted.zip(known.evicted).is_some_and(|(now, before)| now > before) {
            known.last_eviction = Some(Instant::now());
        }
        known.evicted = memory.evicted.or(known.evicted);
        let report = ServerReport {
            address: node.target.address.clone(),
            role: node.role,
            problem,
            memory: memory.used,
            eviction: memory.eviction,
            has_evicted: known.last_eviction.is_some_and(|last| last.elapsed() < RECENT),
        };
        (report, known)
    }
}

/// Longest reply of a server.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// A server.
struct AdministeredNode {
    target: Target,
    role: Role,
}

/// Connects to a server.
async fn connect(target: &Target) -> Result<MultiplexedConnection, Problem> {
    // As if attempts had failed before: nobody waits for this one.
    open(target, 1).await.map_err(|cause| Problem { cause, command: "" })
}

/// Sends a command. `name` is the command without its arguments.
async fn run(
    connection: &mut MultiplexedConnection,
    name: &'static str,
    command: &Cmd,
) -> Result<Value, Problem> {
    match timeout(REPLY_TIMEOUT, send(connection, command)).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => {
            tracing::debug!(error = loggable(&error), name, "a command of the administrator failed");
            Err(Problem { cause: ServerFailure::from_error(&error).cause, command: name })
        }
        Err(_) => Err(Problem { cause: FaultCause::Slow, command: name }),
    }
}

/// Finds all servers. `used` are the hash slots that have counters.
async fn find_nodes(plan: &ConnectPlan, used: &[u16]) -> Result<Vec<AdministeredNode>, Problem> {
    match plan {
        ConnectPlan::Standalone(target) => standalone(target, &target.template()).await,
        ConnectPlan::Sentinel(sentinels) => behind_sentinels(sentinels).await,
        ConnectPlan::Cluster { seeds, template } => of_cluster(seeds, template, used).await,
    }
}

/// A single server, and the replicas that it reports.
async fn standalone(target: &Target, template: &TargetTemplate) -> Result<Vec<AdministeredNode>, Problem> {
    let mut connection = connect(target).await?;
    let mut info = redis::cmd("INFO");
    info.arg("replication");
    let text = text(run(&mut connection, "INFO", &info).await?);
    let field =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    if field("role") == Some("slave") {
        return Err(Problem { cause: FaultCause::ReadOnlyReplica, command: "INFO" });
    }
    let (host, port) = crate::redis::connect::split(&target.address).unwrap_or_default();
    let mut nodes: Vec<_> = node(template, host, port, Role::Master).into_iter().collect();
    for n in 0.. {
        let Some(replica) = field(&format!("slave{n}")) else { break };
        let part = |name: &str| replica.split(',').find_map(|part| part.strip_prefix(name));
        if let (Some(host), Some(port)) = (part("ip="), part("port=").and_then(|port| port.parse().ok())) {
            nodes.extend(node(template, host, port, Role::Replica));
        }
    }
    Ok(nodes)
}

/// The sentinels, the master, and the replicas that the sentinels of this master know.
async fn behind_sentinels(sentinels: &Sentinels) -> Result<Vec<AdministeredNode>, Problem> {
    let mut nodes = Vec::new();
    for sentinel in sentinels.targets() {
        let (host, port) = crate::redis::connect::split(&sentinel.address).unwrap_or_default();
        nodes.extend(node(&sentinel.template(), host, port, Role::Sentinel));
    }
    let found = sentinels.master(REPLY_TIMEOUT).await;
    let master =
        found.map_err(|failed| Problem { cause: failed.failure.cause, command: "SENTINEL MASTER" })?;
    let (host, port) = crate::redis::connect::split(&master.target.address).unwrap_or_default();
    nodes.extend(node(sentinels.template(), host, port, Role::Master));
    let mut replicas = Err(Problem { cause: FaultCause::NoRoute, command: "SENTINEL REPLICAS" });
    for sentinel in master.sentinels.iter().filter_map(|&at| sentinels.targets().get(at)) {
        if replicas.is_err() {
            replicas = known_replicas(sentinel, sentinels).await;
        }
    }
    nodes.extend(replicas?);
    Ok(nodes)
}

/// The replicas that a sentinel knows.
async fn known_replicas(sentinel: &Target, sentinels: &Sentinels) -> Result<Vec<AdministeredNode>, Problem> {
    let mut connection = connect(sentinel).await?;
    let mut command = redis::cmd("SENTINEL");
    command.arg("REPLICAS").arg(sentinels.name());
    let Value::Array(servers) = run(&mut connection, "SENTINEL REPLICAS", &command).await? else {
        return Err(Problem { cause: FaultCause::InvalidReply, command: "SENTINEL REPLICAS" });
    };
    let mut nodes = Vec::new();
    for server in &servers {
        let fields = strings(server);
        let field =
            |name: &str| fields.iter().position(|field| field == name).and_then(|at| fields.get(at + 1));
        if let (Some(host), Some(port)) = (field("ip"), field("port").and_then(|port| port.parse().ok())) {
            nodes.extend(node(sentinels.template(), host, port, Role::Replica));
        }
    }
    Ok(nodes)
}

/// All servers of a cluster, by the view with which processes would begin. `used` are the hash slots that have counters.
async fn of_cluster(
    seeds: &[Target],
    template: &TargetTemplate,
    used: &[u16],
) -> Result<Vec<AdministeredNode>, Problem> {
    let mut problem = Problem { cause: FaultCause::NoRoute, command: "" };
    let mut views = Vec::new();
    for read in join_all(seeds.iter().map(view_of)).await {
        match read {
            Ok(view) => views.push(view),
            Err(failed) => problem = failed,
        }
    }
    let view = most_credible(&views, |view| view, used).ok_or(problem)?;
    let nodes = |role, address: &str| {
        let (host, port) = crate::redis::connect::split(address)?;
        node(template, host, port, role)
    };
    let masters = view.masters().filter_map(|address| nodes(Role::Master, address));
    Ok(masters.chain(view.replicas().filter_map(|address| nodes(Role::Replica, address))).collect())
}

/// Reads what a server says about its cluster.
async fn view_of(seed: &Target) -> Result<ClusterView, Problem> {
    let mut connection = connect(seed).await?;
    let view = read_view(&mut connection, seed, REPLY_TIMEOUT).await;
    view.map_err(|failure| Problem { cause: failure.cause, command: "CLUSTER SLOTS" })
}

fn node(template: &TargetTemplate, host: &str, port: u16, role: Role) -> Option<AdministeredNode> {
    Some(AdministeredNode { target: template.target(host, port)?, role })
}

/// Returns the text of a reply.
fn text(reply: Value) -> String {
    match reply {
        Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Value::SimpleString(text) => text,
        Value::VerbatimString { text, .. } => text,
        _ => String::new(),
    }
}

/// Returns the strings in a reply, those in nested lists too.
fn strings(reply: &Value) -> Vec<String> {
    match reply {
        Value::BulkString(bytes) => vec![String::from_utf8_lossy(bytes).into_owned()],
        Value::SimpleString(text) => vec![text.clone()],
        Value::Array(values) => values.iter().flat_map(strings).collect(),
        _ => Vec::new(),
    }
}

/// Role of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It holds counters.
    Master,
    /// It follows a master.
    Replica,
    /// It knows the master.
    Sentinel,
}

/// The result of administering one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerReport {
    /// `HOST:PORT`.
    pub address: String,
    /// Role of the server.
    pub role: Role,
    /// The reason why it is not up to date, if it is not.
    pub problem: Option<Problem>,
    /// Memory in use and its maximum, in bytes, if a maximum is set.
    pub memory: Option<(u64, u64)>,
    /// Whether the server evicts counters.
    pub eviction: Eviction,
    /// Whether the server has evicted keys in the last ten minutes.
    pub has_evicted: bool,
}

/// The reason why a server is not up to date.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The kind of the failure.
    pub cause: FaultCause,
    /// The command that failed, without its arguments; empty if there is no connection.
    pub command: &'static str,
}

/// The users of a server as they were set last: their rules, and the line of `ACL LIST` that these became.
type KnownUsers = BTreeMap<String, (Vec<String>, String)>;

/// Memory of a server, as it reports it.
#[derive(Debug, Default)]
struct Memory {
    /// Memory in use and its maximum, in bytes, if a maximum is set.
    used: Option<(u64, u64)>,
    eviction: Eviction,
    /// Number of keys that the server has evicted since it started.
    evicted: Option<u64>,
}

/// Brings a server up to date. Returns what it says about its memory; nothing if it is a Sentinel.
async fn provision(
    node: &AdministeredNode,
    known: &mut KnownUsers,
    options: &RedisOptions,
    users: &[ManagedUser],
) -> Result<Option<Memory>, Problem> {
    if node.role == Role::Sentinel && !options.has_sentinel_password() {
        return Ok(None);
    }
    let mut connection = connect(&node.target).await?;
    let functions = match node.role {
        Role::Master => load_library(&mut connection).await?,
        // The master may not have sent them yet.
        Role::Replica => with_current(functions(&mut connection).await?),
        Role::Sentinel => Vec::new(),
    };
    set_users(&mut connection, known, options, users, node.role, &functions).await?;
    match node.role {
        Role::Sentinel => Ok(None),
        Role::Master | Role::Replica => memory(&mut connection).await.map(Some),
    }
}

/// Loads the library unless the server has it. Returns the functions of all releases.
async fn load_library(connection: &mut MultiplexedConnection) -> Result<Vec<String>, Problem> {
    let library = Library::current();
    let found = functions(connection).await?;
    if library.functions().iter().all(|function| found.contains(function)) {
        return Ok(found);
    }
    let mut load = redis::cmd("FUNCTION");
    load.arg("LOAD").arg("REPLACE").arg(library.source());
    run(connection, "FUNCTION LOAD", &load).await?;
    Ok(with_current(found))
}

/// Adds the functions of this release.
fn with_current(mut functions: Vec<String>) -> Vec<String> {
    functions.extend(Library::current().functions().iter().cloned());
    functions.sort_unstable();
    functions.dedup();
    functions
}

/// Returns the functions of all releases that a server has. Sidecars of a former release use those of their own.
async fn functions(connection: &mut MultiplexedConnection) -> Result<Vec<String>, Problem> {
    let mut list = redis::cmd("FUNCTION");
    list.arg("LIST").arg("LIBRARYNAME").arg(format!("{}*", library::PREFIX));
    let reply = run(connection, "FUNCTION LIST", &list).await?;
    let is_function = |text: &String| text.starts_with(library::PREFIX) && text.matches('_').count() == 2;
    let mut found: Vec<_> = strings(&reply).into_iter().filter(is_function).collect();
    found.sort_unstable();
    Ok(found)
}

/// Sets the users that differ, and removes those that are not wanted.
async fn set_users(
    connection: &mut MultiplexedConnection,
    known: &mut KnownUsers,
    options: &RedisOptions,
    users: &[ManagedUser],
    role: Role,
    functions: &[String],
) -> Result<(), Problem> {
    let prefix = ManagedUser::name_prefix(options);
    let present = list(connection, &prefix).await?;
    let mut changed = false;
    let mut wanted = KnownUsers::new();
    for user in users {
        let (name, rules) = (user.name(options), user.rules(options, role, functions));
        let is_set =
            known.get(&name).is_some_and(|(set, line)| *set == rules && present.get(&name) == Some(line));
        if !is_set {
            changed = true;
            let mut command = redis::cmd("ACL");
            command.arg("SETUSER").arg(&name).arg(&rules);
            run(connection, "ACL SETUSER", &command).await?;
        }
        wanted.insert(name, (rules, String::new()));
    }
    for name in present.keys().filter(|name| !wanted.contains_key(*name)) {
        let mut command = redis::cmd("ACL");
        command.arg("DELUSER").arg(name);
        run(connection, "ACL DELUSER", &command).await?;
    }
    let present = if changed { list(connection, &prefix).await? } else { present };
    for (name, (_, line)) in &mut wanted {
        line.clone_from(present.get(name).unwrap_or(&String::new()));
    }
    *known = wanted;
    Ok(())
}

/// Returns the lines of `ACL LIST` of this installation's users, by their names.
async fn list(
    connection: &mut MultiplexedConnection,
    prefix: &str,
) -> Result<BTreeMap<String, String>, Problem> {
    let mut command = redis::cmd("ACL");
    command.arg("LIST");
    let lines = strings(&run(connection, "ACL LIST", &command).await?);
    let of_ours = lines.into_iter().filter_map(|line| {
        let name = line.strip_prefix("user ")?.split(' ').next()?.to_owned();
        name.starts_with(prefix).then_some((name, line))
    });
    Ok(of_ours.collect())
}

/// Reads what a server says about its memory.
async fn memory(connection: &mut MultiplexedConnection) -> Result<Memory, Problem> {
    let memory = info(connection, "memory").await?;
    let stats = info(connection, "stats").await?;
    match (number(&memory, "used_memory"), number(&memory, "maxmemory")) {
        (Some(used), Some(max)) => Ok(Memory {
            used: (max > 0).then_some((used, max)),
            eviction: Eviction::read(&memory),
            evicted: number(&stats, "evicted_keys"),
        }),
        _ => Err(Problem { cause: FaultCause::InvalidReply, command: "INFO" }),
    }
}

/// Reads a section of INFO.
async fn info(connection: &mut MultiplexedConnection, section: &str) -> Result<String, Problem> {
    let mut command = redis::cmd("INFO");
    command.arg(section);
    Ok(text(run(connection, "INFO", &command).await?))
}

/// Returns a number in a section of INFO.
fn number(info: &str, name: &str) -> Option<u64> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?.trim().parse().ok()
}

/// A user that may touch the keys of one namespace only, or those of [all](Self::ALL_NAMESPACES).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagedUser {
    /// The namespace.
    pub namespace: String,
    /// Passwords that are accepted; the first is the one in use. At least one.
    pub passwords: Vec<Secret>,
}

impl ManagedUser {
    /// The namespace of a user that may touch the keys of all namespaces: a pattern that matches each.
    pub const ALL_NAMESPACES: &str = "*";

    /// Returns the beginning of the names of all users of an installation. Its end keeps apart installations of which one's
    /// prefix begins with the other's.
    fn name_prefix(options: &RedisOptions) -> String {
        format!("{}@", options.prefix)
    }

    /// Returns the name of the user.
    #[must_use]
    pub fn name(&self, options: &RedisOptions) -> String {
        format!("{}{}", Self::name_prefix(options), self.namespace)
    }

    /// Returns the options with which the user connects, given those of the administrator.
    #[must_use]
    pub fn options(&self, admin: &RedisOptions) -> RedisOptions {
        let (username, password) = (Some(self.name(admin)), self.passwords.first().cloned());
        let topology = match &admin.topology {
            Topology::Sentinel { master, .. } if admin.has_sentinel_password() => Topology::Sentinel {
                master: master.clone(),
                username: username.clone(),
                password: password.clone(),
            },
            other => other.clone(),
        };
        RedisOptions { topology, username, password, calls: Calls::Functions, ..admin.clone() }
    }

    /// Returns the rules of the user on a server of this role, where it may call these functions.
    fn rules(&self, options: &RedisOptions, role: Role, functions: &[String]) -> Vec<String> {
        let mut rules: Vec<String> = vec!["reset".into(), "on".into()];
        rules.extend(self.passwords.iter().map(|password| format!("#{}", sha256(password.expose()))));
        rules.extend(["resetchannels", "-@all"].map(str::to_owned));
        if role == Role::Sentinel {
            rules.extend(["+sentinel|get-master-addr-by-name", "+sentinel|master"].map(str::to_owned));
            return rules;
        }
        rules.push(format!("~{}{}/*", options.prefix, self.namespace));
        rules.extend(functions.iter().map(|function| format!("+fcall|{function}")));
        // What the functions use, and SETRANGE, by which a connection is probed.
        rules.extend(["+time", "+get", "+mget", "+set", "+setrange"].map(str::to_owned));
        match &options.topology {
            Topology::Standalone { database: 0 } => {}
            Topology::Standalone { .. } => rules.push("+select".into()),
            Topology::Sentinel { .. } => rules.push("+role".into()),
            Topology::Cluster => rules.extend(["+cluster|slots", "+asking"].map(str::to_owned)),
        }
        rules
    }

    /// Returns the line of the user in an ACL file of a standalone server.
    #[must_use]
    pub fn acl_line(&self, options: &RedisOptions, functions: &[String]) -> String {
        let rules = self.rules(options, Role::Master, functions);
        format!("user {} {}", self.name(options), rules.join(" "))
    }
}

/// Returns the hash of a password, as an ACL holds it.
#[must_use]
fn sha256(password: &str) -> String {
    Sha256::digest(password).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
