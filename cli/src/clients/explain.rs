//! `sluice explain`: which limits a request would meet, as which client, and why not the others.

use std::fmt::{Display, Formatter, Write as _};
use std::net::IpAddr;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use sluice_config::client_pages::{
    CounterState, DescriptorQuestion, EXPLAIN, EXPLAIN_DESCRIPTORS, ExplainQuestion, ExplainedLimit,
    Explanation, LimitResult,
};
use sluice_config::policy::OnStoreFailure;

use super::lines;
use crate::cluster::{SidecarAnswer, SidecarArgs, Sidecars};
use crate::output::{Format, print, print_json};

/// Arguments of `sluice explain`.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    sidecars: SidecarArgs,
    /// Target of the request: path and query, such as /orders?page=2
    #[arg(required_unless_present_any = ["domain", "descriptor"])]
    target: Option<String>,
    /// Method of the request
    #[arg(short = 'X', long, value_name = "METHOD", default_value = "GET")]
    request: String,
    /// Header, such as "x-customer: acme"; may be repeated. The host is localhost unless a header host is given
    #[arg(short = 'H', long, value_name = "NAME: VALUE")]
    header: Vec<String>,
    /// Address of the peer that connects to the pod: the client, or a proxy [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    peer: Option<IpAddr>,
    /// Domain of a gateway's question, which the service answers, in place of a request
    #[arg(long, value_name = "NAME", requires = "descriptor", conflicts_with_all = ["target", "request", "header", "peer"])]
    domain: Option<String>,
    /// Descriptor of that question, such as user=alice,path=/orders; may be repeated
    #[arg(long, value_name = "KEY=VALUE,...", requires = "domain")]
    descriptor: Vec<String>,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// A question, and its name in the output.
enum Question {
    Request(ExplainQuestion),
    Descriptors(DescriptorQuestion),
}

impl Question {
    fn new(args: &ExplainArgs) -> Result<Self> {
        if let Some(domain) = args.domain.clone() {
            let descriptors = args.descriptor.iter().map(|text| pairs(text)).collect::<Result<_>>()?;
            return Ok(Self::Descriptors(DescriptorQuestion { domain, descriptors }));
        }
        let header = |text: &String| {
            let (name, value) =
                text.split_once(':').with_context(|| format!("--header {text:?}: write NAME: VALUE"))?;
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        };
        Ok(Self::Request(ExplainQuestion {
            method: args.request.clone(),
            target: args.target.clone().unwrap_or_default(),
            headers: args.header.iter().map(header).collect::<Result<_>>()?,
            peer: args.peer,
        }))
    }

    async fn ask(&self, sidecars: &Sidecars) -> Option<SidecarAnswer<Explanation>> {
        match self {
            Self::Request(question) => sidecars.ask(EXPLAIN, Some(question)).await.pop(),
            Self::Descriptors(question) => sidecars.ask(EXPLAIN_DESCRIPTORS, Some(question)).await.pop(),
        }
    }
}

impl Display for Question {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Request(question) => write!(f, "{} {}", question.method, question.target),
            Self::Descriptors(question) => write!(f, "domain {}", question.domain),
        }
    }
}

/// Reads the pairs of a descriptor.
fn pairs(text: &str) -> Result<Vec<(String, String)>> {
    let pair = |pair: &str| {
        let (key, value) = pair
            .split_once('=')
            .with_context(|| format!("--descriptor {text:?}: write KEY=VALUE,KEY=VALUE"))?;
        Ok((key.to_owned(), value.to_owned()))
    };
    text.split(',').map(pair).collect()
}

/// Prints what the limits of one pod would do about a request. Nothing is counted.
pub(crate) async fn explain(args: ExplainArgs) -> Result<()> {
    let question = Question::new(&args)?;
    let mut sidecars = Sidecars::find(&args.sidecars).await?;
    if let Sidecars::Pods(_, names) = &mut sidecars {
        if names.len() > 1 && args.sidecars.selector.is_none() {
            bail!(
                "{} pods run a sidecar, and may have different limits: choose one with --pod, or with -l and labels of its \
                 workload; the first is {}",
                names.len(),
                names[0]
            );
        }
        names.truncate(1);
    }
    let answer = question.ask(&sidecars).await;
    let answer = answer.context("no sidecar has answered")?;
    let explanation = answer.result.with_context(|| answer.source.clone())?;
    if args.output == Format::Json {
        return print_json(&explanation);
    }
    // Writing to a string cannot fail.
    let mut out = String::new();
    let _ = writeln!(out, "{question} at {}", answer.source);
    if explanation.limits.is_empty() && explanation.refused.is_none() {
        let _ = writeln!(out, "The sidecar enforces no limits.");
    }
    for limit in &explanation.limits {
        let _ = writeln!(out, "\n{} {}", limit.policy, limit.limit);
        match &limit.result {
            LimitResult::DoesNotApply { reason } => {
                let _ = writeln!(out, "  does not apply: {reason}");
            }
            LimitResult::Denies { reason } => {
                let _ = writeln!(out, "  {}: {reason}", denies(&limit.effect));
            }
            LimitResult::Counts { key, client, exception, cost, state } => {
                let _ = writeln!(out, "  client  {client}");
                let _ = writeln!(out, "  key     {key}");
                if let Some(exception) = exception {
                    let _ = writeln!(out, "  as      {exception}");
                }
                let _ = writeln!(out, "  charge  {cost}");
                let elsewhere = if limit.needs_exchange { ", not at authz and auth" } else { "" };
                let _ = writeln!(out, "  effect  {}{elsewhere}", limit.effect);
                for line in lines(state) {
                    let _ = writeln!(out, "  state   {line}");
                }
            }
        }
    }
    let _ = writeln!(out, "\n{}", verdict(&explanation));
    print(&out)
}

/// Says what the limits together do about the request.
fn verdict(explanation: &Explanation) -> String {
    if let Some(refused) = &explanation.refused {
        return format!("The request would be refused, without counting: {refused}");
    }
    let (mut is_unknown, mut denials) = (false, Vec::new());
    let enforced = |limit: &&ExplainedLimit| matches!(limit.effect.as_str(), "Reject" | "Queue");
    for limit in explanation.limits.iter().filter(enforced) {
        let name = format!("{} {}", limit.policy, limit.limit);
        match &limit.result {
            LimitResult::DoesNotApply { .. } => {}
            LimitResult::Denies { .. } => denials.push(name),
            LimitResult::Counts { cost, state: CounterState::Rates(rates), .. } => {
                if rates.iter().any(|rate| !rate.has_room || *cost > 1 && rate.remaining < *cost) {
                    let waits =
                        if limit.effect == "Queue" { ", unless it can wait in the queue" } else { "" };
                    denials.push(name + waits);
                }
            }
            LimitResult::Counts { state: CounterState::Unknown(_), .. } => is_unknown = true,
            LimitResult::Counts { state: CounterState::NoStore { on_store_failure, .. }, .. } => {
                match on_store_failure {
                    OnStoreFailure::Allow => {}
                    OnStoreFailure::Share => is_unknown = true,
                    OnStoreFailure::Deny => {
                        denials.push(format!(
                            "{name}, because the store does not answer (onStoreFailure: Deny)"
                        ));
                    }
                }
            }
        }
    }
    match (&denials[..], is_unknown) {
        ([], false) => "The request would be admitted.".to_owned(),
        ([], true) => "Not all counters are known, so the request may be admitted or denied.".to_owned(),
        (denials, _) => format!("The request would be denied by {}.", denials.join(" and ")),
    }
}

fn denies(effect: &str) -> &'static str {
    match effect {
        "Mark" => "marks the request",
        "Shadow" => "would deny the request",
        _ => "denies the request",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_store_the_policy_decides() {
        let explained = |on_store_failure| {
            let state = CounterState::NoStore { error: "it is down".to_owned(), on_store_failure };
            let result = LimitResult::Counts {
                key: "k".to_owned(),
                client: "c".to_owned(),
                exception: None,
                cost: 1,
                state,
            };
            let limit = ExplainedLimit {
                policy: "shop/p".to_owned(),
                limit: "l".to_owned(),
                effect: "Reject".to_owned(),
                needs_exchange: false,
                result,
            };
            verdict(&Explanation { refused: None, limits: vec![limit] })
        };
        let denied = "The request would be denied by shop/p l, because the store does not answer (onStoreFailure: Deny).";
        assert_eq!(explained(OnStoreFailure::Deny), denied);
        assert_eq!(explained(OnStoreFailure::Allow), "The request would be admitted.");
        assert!(explained(OnStoreFailure::Share).starts_with("Not all counters are known"));
    }
}
