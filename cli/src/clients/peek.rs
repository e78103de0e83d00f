//! `sluice peek`: what a client has left.

use std::fmt::Write as _;

use anyhow::{Result, anyhow, bail};
use clap::Args;
use sluice_config::client_pages::{NamedClient, PEEK, PeekQuestion, Peeked};
use sluice_engine::Engine;
use sluice_host::logging::told;

use super::lines;
use crate::cluster::args::SidecarArgs;
use crate::cluster::sidecars::Sidecars;
use crate::output::{Format, print, print_json};

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
