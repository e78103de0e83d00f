//! Brings one server up to date: its library and its users. A server that is up to date is only read.

use std::collections::BTreeMap;

use redis::aio::MultiplexedConnection;

use super::nodes::{Node, connect, run, strings, text};
use super::report::{Problem, Role};
use super::users::ManagedUser;
use crate::eviction::Eviction;
use crate::fault_cause::FaultCause;
use crate::redis::library::{self, Library};
use crate::redis::options::RedisOptions;

/// The users of a server as they were set last: their rules, and the line of `ACL LIST` that these became.
pub(super) type KnownUsers = BTreeMap<String, (Vec<String>, String)>;

/// Memory of a server, as it reports it.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Memory in use and its maximum, in bytes, if a maximum is set.
    pub(super) used: Option<(u64, u64)>,
    pub(super) eviction: Eviction,
    /// Number of keys that the server has evicted since it started.
    pub(super) evicted: Option<u64>,
}

/// Brings a server up to date. Returns what it says about its memory; nothing if it is a Sentinel.
pub(super) async fn provision(
    node: &Node,
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
