//! `sluice simulate`: replays access logs against policies, and shows who would have been denied, how often and when.
//!
//! - [`log`]: the requests, from access logs.
//! - [`candidate`]: the policies of one file, which decide each request at its time.
//! - [`tally`]: what happened to whom; [`heavy`]: who is denied most among too many; [`series`]: when; [`demand`]: how much each
//!   client needs at most.
//! - [`report`]: the result, as a table, a page or JSON.

mod candidate;
mod demand;
mod heavy;
mod log;
mod report;
mod series;
mod tally;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sluice_crds::checks::installation::InstallationArgs;

use crate::output::{Format, print, print_json};
use candidate::Candidate;
use log::files::Requests;
use log::format::{Format as LogFormat, Hints};
use log::json::FieldName;
use report::{Report, UnreadableReport};

/// Number of requests between two updates of the progress bar.
const UPDATE_EVERY: u64 = 4_096;

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
    /// Exit with 2 if more than this part of the lines could not be read
    #[arg(long, value_name = "PERCENT")]
    max_unreadable: Option<f64>,
    /// Field of JSON logs with the time, method, target, client, status or a header, such as header:x-customer=user.id
    #[arg(long, value_name = "NAME=FIELD")]
    field: Vec<FieldName>,
    /// Write a page with charts to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Number of clients of each limit in the result
    #[arg(long, value_name = "NUMBER", default_value_t = 10)]
    clients: usize,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
    #[command(flatten)]
    installation: InstallationArgs,
}

/// Replays the logs and prints the result. Exits with 2 if too many lines could not be read.
pub(crate) async fn simulate(args: SimulateArgs) -> Result<ExitCode> {
    if args.policy.len() > 2 {
        bail!("--policy is given {} times: at most two files can be compared", args.policy.len());
    }
    let installation = (&args.installation).into();
    let mut requests = Requests::open(&args.logs, Hints { fields: args.field, format: args.format })?;
    let begin = requests.begin()?;
    let candidates = args.policy.iter().map(|file| Candidate::load(file, &installation, begin.unwrap_or(0)));
    let mut candidates = candidates.collect::<Result<Vec<_>>>()?;
    let progress = progress(requests.bytes);
    let (mut count, mut end, mut late, mut only) = (0u64, begin.unwrap_or(0), 0u64, [0u64; 4]);
    while let Some(logged) = requests.next()? {
        // Of those that are too late to be sorted.
        late += u64::from(logged.at < end);
        end = end.max(logged.at);
        let mut denied = 0;
        for (n, candidate) in candidates.iter_mut().enumerate() {
            let is_admitted = candidate.decide(&logged, end).await;
            denied |= usize::from(!is_admitted) << n;
        }
        only[denied] += 1;
        count += 1;
        if count.is_multiple_of(UPDATE_EVERY) {
            progress.set_position(requests.read());
        }
    }
    progress.finish_and_clear();
    let Some(begin) = begin else {
        if requests.unreadable.lines == 0 {
            bail!("no request could be read: the logs are empty");
        }
        let lines = report::text::unreadable(&UnreadableReport::all(requests.unreadable));
        bail!("no request could be read:\n{}", lines.trim_end());
    };
    let report = Report::new(report::Replayed {
        logs: args.logs.iter().map(|log| log.display().to_string()).collect(),
        requests: count,
        late,
        unreadable: requests.unreadable,
        incomplete: requests.incomplete,
        begin,
        end,
        denied: only,
        candidates: &candidates,
        clients: args.clients,
    });
    if let Some(file) = &args.html {
        let page = report::html::page(&report);
        std::fs::write(file, page).with_context(|| format!("cannot write {}", file.display()))?;
    }
    match args.output {
        Format::Json => print_json(&report)?,
        Format::Table => {
            let page =
                args.html.as_ref().map(|file| format!("\nThe page with charts is {}.\n", file.display()));

            print(&(report::text::text(&report) + &page.unwrap_or_default()))?;
        }
    }
    let is_too_much = args.max_unreadable.is_some_and(|most| report.unreadable_percent() > most);
    Ok(if is_too_much { ExitCode::from(2) } else { ExitCode::SUCCESS })
}

/// Shows progress on a terminal.
fn progress(bytes: u64) -> ProgressBar {
    if bytes == 0 {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(Some(bytes), ProgressDrawTarget::stderr());
    let template = "{wide_bar} {bytes}/{total_bytes}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
