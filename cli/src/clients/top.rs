//! `sluice top`: the clients that limits deny most.

use std::collections::HashMap;

use anyhow::{Result, bail};
use clap::Args;
use sluice_config::client_pages::{TOP, Top, TopClient, TopLimit};

use crate::cluster::args::SidecarArgs;
use crate::cluster::sidecars::{Sidecars, Silent};
use crate::output::{Format, count, print, print_json, table};

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
                    let since = super::seconds(limit.seconds.max(1) as f64);
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
