//! Logs, to standard error: one line an event, as text or as JSON.

use tracing_subscriber::EnvFilter;

/// How a line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For machines.
    Json,
}

/// A filter that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("the log filter {filter:?} cannot be read ({error}): write info, debug, or info,sluice_store=debug")]
pub struct BadFilter {
    filter: String,
    error: tracing_subscriber::filter::ParseError,
}

/// Begins to log. Only the first call in a process counts.
pub fn init(format: LogFormat, filter: &str) -> Result<(), BadFilter> {
    let parsed = EnvFilter::try_new(filter);
    let parsed = parsed.map_err(|error| BadFilter { filter: filter.to_owned(), error })?;
    let builder = tracing_subscriber::fmt().with_env_filter(parsed).with_writer(std::io::stderr);
    let _ = match format {
        LogFormat::Text => builder.with_ansi(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    Ok(())
}
