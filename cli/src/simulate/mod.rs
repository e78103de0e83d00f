//! `sluice simulate`: replays access logs against policies, and shows who would have been denied, how often and when.
//!
//! - [`log`]: the requests, from access logs.
//! - [`tally`]: what happened to whom, and when; who is denied most among too many, and how much each client needs at most.
//! - [`routes`]: on which paths.
//! - [`replay`]: all requests of the logs, decided by the policies of one file or two, each request at its time.
//! - [`proposal`]: numbers that spare clients, in a policy that a further replay confirms.
//! - [`report`]: the result, as a table, a page or JSON.

mod log;
mod proposal;
mod replay;
mod report;
mod routes;
mod tally;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use sluice_crds::checks::installation::InstallationArgs;
use sluice_crds::manifest::Source;

use crate::input::read;
use crate::output::{Format, print, print_json};
use log::format::{Hints, LogFormat};
use log::json::FieldName;
use replay::Replay;
use report::Report;
use report::proposal::Proposal;

/// Arguments of `sluice simulate`.
#[derive(Debug, Args)]
pub(crate) struct SimulateArgs {
    /// File with RateLimitPolicy objects; may be given twice to compare two files
    #[arg(long, value_name = "FILE", required = true)]
    policy: Vec<PathBuf>,
    /// Access logs, also compressed with gzip or zstd; - reads standard input
    #[arg(required = true, value_name = "LOG")]
    logs: Vec<PathBuf>,
    /// Format of the logs, if it is not recognized: a name such as combined, or a format string of nginx or Apache httpd
    #[arg(long, value_name = "FORMAT")]
    format: Option<LogFormat>,
    /// Exit with 1 if more than this part of the lines could not be read
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    max_unreadable: Option<f64>,
    /// Field of JSON logs with the time, method, target, client, status or a header, such as header:x-customer=user.id
    #[arg(long, value_name = "NAME=FIELD")]
    field: Vec<FieldName>,
    /// Print the policy in Shadow, with numbers that deny nothing to this part of the clients of each limit, such as 99.9
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    suggest: Option<f64>,
    /// Write a page with charts to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Number of clients of each limit, and of paths, in the result
    #[arg(long, value_name = "NUMBER", default_value_t = 10)]
    clients: usize,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
    #[command(flatten)]
    installation: InstallationArgs,
}

/// Replays the logs and prints the result. Exits with 1 if too many lines could not be read.
pub(crate) async fn simulate(args: SimulateArgs) -> Result<ExitCode> {
    if args.policy.len() > 2 {
        bail!("--policy is given {} times: at most two files can be compared", args.policy.len());
    }
    if args.suggest.is_some() {
        if args.policy.len() > 1 {
            bail!("--suggest changes one file: give --policy once");
        }
        let is_read_once = |log: &&PathBuf| {
            log.as_os_str() == "-" || std::fs::metadata(log).is_ok_and(|metadata| !metadata.is_file())
        };
        if let Some(log) = args.logs.iter().find(is_read_once) {
            let name = log.display();
            bail!("--suggest reads the logs more than once, and {name} is no file: write it to one first");
        }
    }
    let policies = args.policy.iter().map(|file| {
        let name = file.display().to_string();
        let text = read(file).with_context(|| name.clone())?;
        Ok(Source { name, text })
    });
    let policies = policies.collect::<Result<Vec<_>>>()?;
    let replay = Replay {
        logs: &args.logs,
        hints: &Hints { fields: args.field, format: args.format },
        installation: &(&args.installation).into(),
        clients: args.clients,
    };
    let replayed = replay.run(&policies).await?;
    if replayed.requests == 0 {
        bail!("no request could be read{}", report::text::nothing(replayed));
    }
    let logs: Vec<_> = args.logs.iter().map(|log| log.display().to_string()).collect();
    let mut suggested = None;
    if let (Some(percent), [policy]) = (args.suggest, &policies[..]) {
        let confirmed = proposal::propose(&replay, policy, &replayed, percent).await?;
        suggested = Some(Proposal::new(&logs, &replayed, confirmed, percent, args.clients));
    }
    let report = Report::new(logs, replayed, suggested, args.clients);
    if let Some(file) = &args.html {
        let page = report::html::page(&report);
        std::fs::write(file, page).with_context(|| format!("cannot write {}", file.display()))?;
    }
    match (args.output, &report.suggested) {
        (Format::Json, _) => print_json(&report)?,
        (Format::Table, Some(proposal)) => print(&proposal.policy)?,
        (Format::Table, None) => {
            let page =
                args.html.as_ref().map(|file| format!("\nThe page with charts is {}.\n", file.display()));

            print(&(report::text::text(&report) + &page.unwrap_or_default()))?;
        }
    }
    let unreadable = report.unreadable_percent();
    if let Some(most) = args.max_unreadable.filter(|most| unreadable > *most) {
        sluice_host::logging::say(&format!(
            "{unreadable:.2} % of the lines could not be read: --max-unreadable allows {most} %"
        ));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads a part in percent.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim_end_matches('%').trim().parse::<f64>().ok();
    number.filter(|number| (0.0..=100.0).contains(number)).ok_or("write a number from 0 to 100".to_owned())
}
