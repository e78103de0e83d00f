//! Commands about single clients, most of which ask the sidecars: `sluice top`, who is limited, and `sluice peek`, what a client has left.
//!
//! - [`reset`]: gives a client its whole quota back.
//! - [`explain`]: which limits a request would meet.

pub(crate) mod explain;
pub(crate) mod reset;

use std::collections::HashMap;
use std::fmt::Write as _;

use anyhow::{Result, anyhow, bail};
use clap::Args;
use sluice_config::client_pages::{
    CounterState, NamedClient, PEEK, PeekQuestion, Peeked, TOP, Top, TopClient, TopLimit,
};
use sluice_engine::Engine;
use sluice_host::logging::told;

use crate::cluster::{SidecarArgs, Sidecars, Silent};
use crate::output::{Format, count, print, print_json, table};

/// Returns lines about what a client has left.
fn lines(state: &CounterState) -> Vec<String> {
    let CounterState::Rates(rates) = state else {
        return state.unknown().map(|reason| format!("unknown: {reason}")).into_iter().collect();
    };
    let line = |rate: &sluice_config::client_pages::RateState| {
        let left = format!("{} {} of {} left", rate.rule, rate.remaining, rate.limit);
        match (rate.blocked_seconds, rate.reset_seconds) {
            (Some(blocked), _) => format!("{left}, blocked for {}", seconds(blocked)),
            (None, Some(reset)) if reset > 0.0 => format!("{left}, all free in {}", seconds(reset)),
            (None, _) => left,
        }
    };
    rates.iter().map(line).collect()
}

/// Writes a time as Kubernetes does, with its two largest units: `1h5m`, `12s`, `300ms`.
pub(crate) fn seconds(seconds: f64) -> String {
    let millis = (seconds * 1000.0).ceil();
    if millis < 1000.0 {
        return format!("{millis}ms");
    }
    let whole = seconds.ceil() as u64;
    let units = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let mut rest = whole;
    let parts = units.iter().map(|&(unit, name)| {
        let count = rest / unit;
        rest %= unit;
        (count, name)
    });
    let parts: Vec<_> = parts.skip_while(|&(count, _)| count == 0).take(2).collect();
    parts.iter().filter(|&&(count, _)| count > 0).map(|(count, name)| format!("{count}{name}")).collect()
}

/// Arguments that name a client of a limit.
#[derive(Debug, Args)]
pub(crate) struct ClientArgs {
    #[command(flatten)]
    pub(crate) sidecars: SidecarArgs,
    /// Policy, or NAMESPACE/POLICY
    policy: String,
    /// Limit of the policy
    limit: String,
    /// Values of the parts of the client's key, in the order of the policy; after -- if one begins with a hyphen
    #[arg(value_name = "VALUE")]
    values: Vec<String>,
    /// Hash of the client's key, as sluice top prints it, instead of the values
    #[arg(long, value_name = "KEY", conflicts_with = "values", allow_hyphen_values = true)]
    key: Option<String>,
}

/// Arguments of `sluice peek`.
#[derive(Debug, Args)]
pub(crate) struct PeekArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

impl ClientArgs {
    /// Returns the question about the client of a policy.
    fn question(&self, policy: String) -> PeekQuestion {
        let client = match &self.key {
            Some(hash) => NamedClient::Hash(hash.clone()),
            None => NamedClient::Values(self.values.clone()),
        };
        PeekQuestion { policy, limit: self.limit.clone(), client }
    }

    /// Returns the state of the client's counter, as an engine of this process reads it.
    pub(crate) async fn look_in(&self, engine: &Engine) -> Result<Peeked> {
        engine.peek(&self.question(self.policy.clone())).await.map_err(|error| anyhow!(error))
    }

    /// Returns the state of the client's counter, as the first pod that enforces the policy reads it, and the pod.
    pub(crate) async fn look(&mut self) -> Result<(String, Peeked)> {
        if self.sidecars.address.is_none()
            && let Some((namespace, _)) = self.policy.split_once('/')
        {
            self.sidecars.cluster.namespace = Some(namespace.to_owned());
        }
        let sidecars = Sidecars::find(&self.sidecars).await?;
        let policy = match (&sidecars, self.policy.contains('/')) {
            (_, true) => self.policy.clone(),
            (Sidecars::Pods(pods, _), false) => {
                format!("{}/{}", pods.namespace().unwrap_or("default"), self.policy)
            }
            (Sidecars::Address(_), false) => self.policy.clone(),
        };
        let question = self.question(policy);
        let answers = sidecars.ask::<_, Peeked>(PEEK, Some(&question)).await;
        let mut errors = Vec::new();
        for answer in answers {
            match answer.result {
                Ok(peeked) => return Ok((answer.source, peeked)),
                Err(error) => errors.push((answer.source, told(error.as_ref()))),
            }
        }
        // All pods without the policy say the same.
        let other = errors.iter().find(|(_, error)| !error.starts_with("this pod enforces no policy"));
        match (other, &errors[..]) {
            (Some((source, error)), _) | (None, [(source, error)]) => bail!("{source}: {error}"),
            (None, several) => bail!("none of {} pods enforces policy {}", several.len(), question.policy),
        }
    }
}

/// Prints the state of a client's counter.
pub(crate) async fn peek(mut args: PeekArgs) -> Result<()> {
    let (source, peeked) = args.client.look().await?;
    match args.output {
        Format::Json => print_json(&peeked),
        Format::Table => {
            // Writing to a string cannot fail.
            let mut out = String::new();
            let _ = writeln!(out, "policy  {}", peeked.policy);
            let _ = writeln!(out, "limit   {}", peeked.limit);
            let _ = writeln!(out, "key     {}", peeked.key);
            if let Some(exception) = &peeked.exception {
                let _ = writeln!(out, "rates   of {exception}");
            }
            for line in lines(&peeked.state) {
                let _ = writeln!(out, "state   {line}");
            }
            if let Some(reserved) = &peeked.reserved {
                let _ = writeln!(
                    out,
                    "open    reservations of {}, the last of which expires in {:.0} s",
                    reserved.cost, reserved.expire_seconds
                );
            }
            let _ = writeln!(out, "source  {source}");
            print(&out)
        }
    }
}

/// Flags of `sluice top`.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    sidecars: SidecarArgs,
    /// Only this policy
    #[arg(long, value_name = "POLICY")]
    policy: Option<String>,
    /// Only limits of this name
    #[arg(long, value_name = "LIMIT")]
    limit: Option<String>,
    /// Number of clients of each limit
    #[arg(long, value_name = "NUMBER", default_value_t = 10)]
    clients: usize,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Prints the clients that the pods have denied most, added up over the pods.
pub(crate) async fn top(args: &TopArgs) -> Result<()> {
    let answers = Sidecars::find(&args.sidecars).await?.ask::<(), Top>(TOP, None).await;
    sluice_host::logging::say_part(&Silent(&answers));
    let answered: Vec<_> = answers.into_iter().filter_map(|answer| answer.result.ok()).collect();
    if answered.is_empty() {
        bail!("no sidecar answered: see the reasons above");
    }
    let pods = answered.len();
    let mut top = merge(answered);
    top.limits.retain(|limit| {
        let name = limit.policy.split_once('/').map_or(limit.policy.as_str(), |(_, name)| name);
        args.policy.as_ref().is_none_or(|policy| *policy == limit.policy || policy == name)
            && args.limit.as_ref().is_none_or(|only| *only == limit.limit)
    });
    top.limits.iter_mut().for_each(|limit| limit.clients.truncate(args.clients));
    match args.output {
        Format::Json => print_json(&top),
        Format::Table => {
            if top.limits.is_empty() {
                let asked = count(pods as u64, "sidecar");
                let is_filtered = args.policy.is_some() || args.limit.is_some();
                let limits = if is_filtered { " by these limits" } else { "" };
                return print(&format!(
                    "No client was denied{limits} in the last 5 to 10 minutes, by the lists of {asked}.\n"
                ));
            }
            let rows = top.limits.iter().flat_map(|limit| {
                limit.clients.iter().map(|client| {
                    let denied = match client.error {
                        0 => client.denied.to_string(),
                        error => format!("{}-{}", client.denied.saturating_sub(error), client.denied),
                    };
                    let since = seconds(limit.seconds.max(1) as f64);
                    [&limit.policy, &limit.limit, &limit.effect, &denied, &since, &client.client, &client.key]
                        .map(String::clone)
                })
            });
            let header = ["POLICY", "LIMIT", "EFFECT", "DENIED", "IN", "CLIENT", "KEY"].map(str::to_owned);
            print(&table(std::iter::once(header).chain(rows)))
        }
    }
}

/// Adds up what several pods have denied.
fn merge(tops: Vec<Top>) -> Top {
    let mut limits: Vec<TopLimit> = Vec::new();
    for limit in tops.into_iter().flat_map(|top| top.limits) {
        match limits.iter_mut().find(|known| known.policy == limit.policy && known.limit == limit.limit) {
            Some(known) => {
                known.seconds = known.seconds.max(limit.seconds);
                known.clients.extend(limit.clients);
            }
            None => limits.push(limit),
        }
    }
    for limit in &mut limits {
        let mut clients: HashMap<String, TopClient> = HashMap::new();
        for client in limit.clients.drain(..) {
            match clients.get_mut(&client.key) {
                Some(known) => {
                    known.denied = known.denied.saturating_add(client.denied);
                    known.error = known.error.saturating_add(client.error);
                }
                None => {
                    clients.insert(client.key.clone(), client);
                }
            }
        }
        limit.clients = clients.into_values().collect();
        limit.clients.sort_by(|a, b| b.denied.cmp(&a.denied).then_with(|| a.key.cmp(&b.key)));
    }
    limits.sort_by(|a, b| (&a.policy, &a.limit).cmp(&(&b.policy, &b.limit)));
    Top { limits }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_their_two_largest_units() {
        let cases = [
            (0.2, "200ms"),
            (0.9995, "1s"),
            (1.0, "1s"),
            (59.1, "1m"),
            (61.0, "1m1s"),
            (3_700.0, "1h1m"),
            (90_000.0, "1d1h"),
        ];
        for (time, text) in cases {
            assert_eq!(seconds(time), text);
        }
    }

    fn top(limit: &str, clients: &[(&str, u64, u64)]) -> Top {
        let client = |&(key, denied, error): &(&str, u64, u64)| TopClient {
            key: key.to_owned(),
            client: format!("header a={key}"),
            denied,
            error,
        };
        let clients = clients.iter().map(client).collect();
        let limit = TopLimit {
            policy: "shop/a".into(),
            limit: limit.into(),
            effect: "Reject".into(),
            seconds: 9,
            clients,
        };
        Top { limits: vec![limit] }
    }

    #[test]
    fn denials_of_a_client_are_added_up_over_the_pods() {
        let merged = merge(vec![
            top("b", &[("x", 5, 0), ("y", 3, 1)]),
            top("a", &[("x", 1, 0)]),
            top("b", &[("y", 4, 0), ("z", 5, 0)]),
        ]);
        assert_eq!(merged.limits[0], top("a", &[("x", 1, 0)]).limits[0]);
        assert_eq!(merged.limits[1], top("b", &[("y", 7, 1), ("x", 5, 0), ("z", 5, 0)]).limits[0]);
    }
}
