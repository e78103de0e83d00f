//! `sluice peek`: what a client has left.

use std::fmt::Write as _;

use anyhow::{Result, bail};
use clap::Args;
use sluice_config::client_pages::{NamedClient, PEEK, PeekQuestion, Peeked};

use super::lines;
use crate::cluster::args::SidecarArgs;
use crate::cluster::sidecars::Sidecars;
use crate::output::{Format, print, print_json};

/// Arguments of `sluice peek`.
#[derive(Debug, Args)]
pub(crate) struct PeekArgs {
    #[command(flatten)]
    sidecars: SidecarArgs,
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
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Prints the state of a client's counter, as the first pod that enforces the policy reads it.
pub(crate) async fn peek(mut args: PeekArgs) -> Result<()> {
    if args.sidecars.address.is_none()
        && let Some((namespace, _)) = args.policy.split_once('/')
    {
        args.sidecars.cluster.namespace = Some(namespace.to_owned());
    }
    let sidecars = Sidecars::find(&args.sidecars).await?;
    let policy = match (&sidecars, args.policy.contains('/')) {
        (_, true) => args.policy.clone(),
        (Sidecars::Pods(pods, _), false) => {
            format!("{}/{}", pods.namespace().unwrap_or("default"), args.policy)
        }
        (Sidecars::Address(_), false) => args.policy.clone(),
    };
    let client = match args.key {
        Some(hash) => NamedClient::Hash(hash),
        None => NamedClient::Values(args.values),
    };
    let question = PeekQuestion { policy, limit: args.limit, client };
    let answers = sidecars.ask::<_, Peeked>(PEEK, Some(&question)).await;
    let Some((source, peeked)) =
        answers.iter().find_map(|answer| Some((&answer.source, answer.result.as_ref().ok()?)))
    else {
        // All pods without the policy say the same.
        let errors =
            answers.iter().filter_map(|answer| Some((&answer.source, answer.result.as_ref().err()?)));
        let errors: Vec<_> = errors.map(|(source, error)| (source, format!("{error:#}"))).collect();
        let other = errors.iter().find(|(_, error)| !error.starts_with("this pod enforces no policy"));
        match (other, &errors[..]) {
            (Some((source, error)), _) | (None, [(source, error)]) => bail!("{source}: {error}"),
            (None, several) => bail!("none of {} pods enforces policy {}", several.len(), question.policy),
        }
    };
    match args.output {
        Format::Json => print_json(peeked),
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
            let _ = writeln!(out, "source  {source}");
            print(&out)
        }
    }
}
