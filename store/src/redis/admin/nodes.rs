//! Finds the servers of a store: masters, replicas and sentinels.

use std::time::Duration;

use futures::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};
use tokio::time::timeout;

use super::report::{Problem, Role};
use crate::fault_cause::FaultCause;
use crate::redis::cluster_view::{ClusterView, most_credible};
use crate::redis::connect::ConnectPlan;
use crate::redis::connect::{Sentinels, ServerFailure, Target, TargetTemplate, loggable, open, read_view};
use crate::redis::script::send;

/// Longest reply of a server.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// A server.
pub(super) struct Node {
    pub(super) target: Target,
    pub(super) role: Role,
}

/// Connects to a server.
pub(super) async fn connect(target: &Target) -> Result<MultiplexedConnection, Problem> {
    // As if attempts had failed before: nobody waits for this one.
    open(target, 1).await.map_err(|cause| Problem { cause, command: "" })
}

/// Sends a command. `name` is the command without its arguments.
pub(super) async fn run(
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
pub(super) async fn find_nodes(plan: &ConnectPlan, used: &[u16]) -> Result<Vec<Node>, Problem> {
    match plan {
        ConnectPlan::Standalone(target) => standalone(target, &target.template()).await,
        ConnectPlan::Sentinel(sentinels) => behind_sentinels(sentinels).await,
        ConnectPlan::Cluster { seeds, template } => of_cluster(seeds, template, used).await,
    }
}

/// A single server, and the replicas that it reports.
async fn standalone(target: &Target, template: &TargetTemplate) -> Result<Vec<Node>, Problem> {
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
async fn behind_sentinels(sentinels: &Sentinels) -> Result<Vec<Node>, Problem> {
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
async fn known_replicas(sentinel: &Target, sentinels: &Sentinels) -> Result<Vec<Node>, Problem> {
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
async fn of_cluster(seeds: &[Target], template: &TargetTemplate, used: &[u16]) -> Result<Vec<Node>, Problem> {
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

fn node(template: &TargetTemplate, host: &str, port: u16, role: Role) -> Option<Node> {
    Some(Node { target: template.target(host, port)?, role })
}

/// Returns the text of a reply.
pub(super) fn text(reply: Value) -> String {
    match reply {
        Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Value::SimpleString(text) => text,
        Value::VerbatimString { text, .. } => text,
        _ => String::new(),
    }
}

/// Returns the strings in a reply, those in nested lists too.
pub(super) fn strings(reply: &Value) -> Vec<String> {
    match reply {
        Value::BulkString(bytes) => vec![String::from_utf8_lossy(bytes).into_owned()],
        Value::SimpleString(text) => vec![text.clone()],
        Value::Array(values) => values.iter().flat_map(strings).collect(),
        _ => Vec::new(),
    }
}
