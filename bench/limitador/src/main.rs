//! The `limitador` crate, driven by lines on standard input, each answered by one line, so that its rounds lie between
//! Sluice's. It ends with its input.
//!
//! - `memory CLIENTS REQUESTS` answers `storage|limiter THREADS CHECKS SEED` with `NANOSECONDS ADMITTED`: the
//!   nanoseconds of a check in each thread.
//! - `redis async|cached URL CLIENTS REQUESTS` answers `CALLERS CHECKS SEED` with `NANOSECONDS ADMITTED`: of all checks
//!   together.
//! - `fill` answers `KEYS` with `done`, when the memory storage holds so many keys more.
//!
//! Whatever can be made before is: the limit, and for each check either its counters (`storage`, `redis`: the crate's
//! storage alone) or its context (`limiter`: with the choice of the limit and its variable, as a server would).

mod memory;
#[path = "../../src/random.rs"]
mod random;
mod redis;

use std::collections::HashMap;
use std::fmt::Display;
use std::io::BufRead as _;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use limitador::counter::Counter;
use limitador::limit::{Context, Limit};

/// As long as the other side's period, in seconds.
const PERIOD: u64 = 86_400;
const NAMESPACE: &str = "bench";

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["memory", clients, requests] => {
            let peer = memory::Peer::new(clients.parse()?, requests.parse()?)?;
            serve(|line| match line[..] {
                [way, threads, checks, seed] => {
                    peer.run(way.parse()?, threads.parse()?, checks.parse()?, seed.parse()?)
                }
                _ => bail!("storage|limiter THREADS CHECKS SEED is expected"),
            })
        }
        ["redis", kind, url, clients, requests] => {
            // The cached one writes between the rounds too.
            let runtime = match kind {
                "cached" => {
                    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?
                }
                _ => tokio::runtime::Builder::new_current_thread().enable_all().build()?,
            };
            let peer =
                runtime.block_on(redis::Peer::connect(kind, url, clients.parse()?, requests.parse()?))?;
            serve(|line| match line[..] {
                [callers, checks, seed] => {
                    runtime.block_on(peer.run(callers.parse()?, checks.parse()?, seed.parse()?))
                }
                _ => bail!("CALLERS CHECKS SEED is expected"),
            })
        }
        ["fill"] => {
            let mut filled = 0;
            let storage = memory::storage(1 << 32);
            serve(|line| {
                let more: u64 = line.first().context("a number is expected")?.parse()?;
                memory::fill(&storage, filled..filled + more)?;
                filled += more;
                Ok("done".to_owned())
            })
        }
        _ => bail!("usage: memory CLIENTS REQUESTS | redis async|cached URL CLIENTS REQUESTS | fill"),
    }
}

fn serve(mut answer: impl FnMut(Vec<&str>) -> anyhow::Result<String>) -> anyhow::Result<()> {
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        println!("{}", answer(line?.split_whitespace().collect())?);
    }
    Ok(())
}

/// Its errors cannot go from thread to thread; their words can.
fn words(error: impl Display) -> anyhow::Error {
    anyhow::anyhow!("{error}")
}

/// So many requests in a period, of each client.
fn limit(requests: u64) -> anyhow::Result<Limit> {
    let variable = "client".try_into().map_err(words)?;
    Ok(Limit::new(NAMESPACE, requests, PERIOD, [], [variable]))
}

/// What a client's request is known by.
fn context(client: u64) -> Context<'static> {
    HashMap::from([("client".to_owned(), format!("{client:x}"))]).into()
}

/// The counters of a client's request.
fn counters(limit: &Arc<Limit>, client: u64) -> anyhow::Result<Vec<Counter>> {
    let counter = Counter::new(limit.clone(), &context(client)).map_err(words)?;
    let counter = counter.context("the limit does not apply")?;
    Ok(vec![counter])
}
