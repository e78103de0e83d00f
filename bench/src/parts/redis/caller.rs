//! A child process with one caller, like the sidecar of a quiet pod.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use redis::Value;
use redis::aio::MultiplexedConnection;
use sluice_store::{LimitSpec, RedisStore};

use crate::support::captured_call::CapturedCall;
use crate::support::child::serve;
use crate::support::keys::{UNREACHABLE, check, counter, key, limit};
use crate::support::random::Random;
use crate::support::redis_server::{connect, patient_store};

pub(super) const PROCESSES: u64 = 64;
pub(super) const CLIENTS: u64 = 100_000;
pub(super) const SCOPE: &str = "bench/policy/limit";

/// Serves two commands, where MODE is `store`, `script` (one script call a check) or `ping`:
/// - `prepare MODE` answers `ready`;
/// - `MODE CHECKS ROUND` answers `CAPTURES ADMITTED`, where CAPTURES is the number of additional checks that
///   were made to capture a script call.
pub(crate) fn run(address: &str, number: &str) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let number: u64 = number.parse()?;
    let mut caller = runtime.block_on(Caller::connect(address))?;
    serve(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        runtime.block_on(async {
            match words[..] {
                ["prepare", mode] => {
                    if mode == "script" {
                        caller.capture().await?;
                    }
                    Ok("ready".to_owned())
                }
                [mode, checks, round] => {
                    let random = Random::new(round.parse::<u64>()? * PROCESSES + number + 1);
                    let admitted = match mode {
                        "store" => caller.call_store(checks.parse()?, random).await?,
                        "script" => caller.call_script(checks.parse()?, random).await?,
                        _ => caller.ping(checks.parse()?).await?,
                    };
                    Ok(format!("{} {admitted}", std::mem::take(&mut caller.captures)))
                }
                _ => bail!("unexpected command {line:?}"),
            }
        })
    })
}

struct Caller {
    address: String,
    limit: Arc<LimitSpec>,
    store: RedisStore,
    /// For script calls without the store.
    connection: MultiplexedConnection,
    call: Option<CapturedCall>,
    captures: u64,
}

impl Caller {
    async fn connect(address: &str) -> anyhow::Result<Self> {
        let url = format!("redis://{address}");
        Ok(Self {
            address: address.to_owned(),
            limit: limit(SCOPE, UNREACHABLE)?,
            store: patient_store(&url).await?,
            connection: connect(&url).await?,
            call: None,
            captures: 0,
        })
    }

    async fn capture(&mut self) -> anyhow::Result<()> {
        self.call = Some(CapturedCall::capture(&self.address, &counter(&self.limit, key(0))).await?);
        self.captures += 1;
        Ok(())
    }

    async fn call_store(&self, checks: u64, mut random: Random) -> anyhow::Result<u64> {
        let mut admitted = 0;
        for _ in 0..checks {
            let response = self.store.check(check(&self.limit, key(random.below(CLIENTS)))).await?;
            admitted += u64::from(response.admitted);
        }
        Ok(admitted)
    }

    /// A reply of more than one value is a decision. The time alone means that the call is too old, which
    /// happens on a very busy machine: then a new call is captured.
    async fn call_script(&mut self, checks: u64, mut random: Random) -> anyhow::Result<u64> {
        let mut admitted = 0;
        for _ in 0..checks {
            let name = self.store.key(&counter(&self.limit, key(random.below(CLIENTS))));
            for _ in 0..2 {
                let call = self.call.as_ref().context("`prepare script` is missing")?.with_key(&name);
                let reply: Value = call.query_async(&mut self.connection).await?;
                if matches!(reply, Value::Array(values) if values.len() > 1) {
                    admitted += 1;
                    break;
                }
                self.capture().await?;
            }
        }
        Ok(admitted)
    }

    async fn ping(&mut self, calls: u64) -> anyhow::Result<u64> {
        for _ in 0..calls {
            redis::cmd("PING").query_async::<Value>(&mut self.connection).await?;
        }
        Ok(0)
    }
}
