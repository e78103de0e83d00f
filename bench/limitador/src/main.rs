//! The `limitador` crate as a child process of sluice-bench: it reads commands from standard input, one a
//! line, and answers each with a line, so that its rounds can alternate with Sluice's. It exits when its
//! input closes.
//!
//! - `redis async|cached URL CLIENTS REQUESTS` answers `CALLERS CHECKS SEED` with `NANOSECONDS ADMITTED`, the
//!   nanoseconds of all checks together.
//! - `fill` answers `KEYS` with `done` once the memory storage holds that many more keys.
//!
//! Everything that can be prepared is prepared: the limit, and for each check its counters. The crate's storage alone is called.

mod limits;
mod memory;
#[path = "../../src/support/random.rs"]
mod random;
mod redis;

use std::io::BufRead as _;

use anyhow::{Context as _, bail};

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["redis", kind, url, clients, requests] => {
            // The cached storage also writes between rounds, in a thread of its own.
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
                _ => bail!("expected CALLERS CHECKS SEED"),
            })
        }
        ["fill"] => {
            let mut filled = 0;
            let storage = memory::storage(1 << 32);
            serve(|line| {
                let count: u64 = line.first().context("expected KEYS")?.parse()?;
                memory::fill(&storage, filled..filled + count)?;
                filled += count;
                Ok("done".to_owned())
            })
        }
        _ => bail!("usage: redis async|cached URL CLIENTS REQUESTS | fill"),
    }
}

fn serve(mut answer: impl FnMut(Vec<&str>) -> anyhow::Result<String>) -> anyhow::Result<()> {
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        println!("{}", answer(line?.split_whitespace().collect())?);
    }
    Ok(())
}
