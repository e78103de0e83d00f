//! Logs, on standard error: one line for each event, as text or JSON.

use tracing_subscriber::EnvFilter;

/// The format of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Plain text.
    Text,
    /// One JSON object.
    Json,
}

/// A log filter that cannot be parsed.
#[derive(Debug, thiserror::Error)]
#[error("invalid log filter {filter:?} ({error}): write for example info, debug, or info,sluice_store=debug")]
pub struct InvalidLogFilter {
    filter: String,
    error: tracing_subscriber::filter::ParseError,
}

/// Starts to log. Only the first call in a process has an effect.
pub fn init(format: LogFormat, filter: &str) -> Result<(), InvalidLogFilter> {
    let parsed = EnvFilter::try_new(filter);
    let parsed = parsed.map_err(|error| InvalidLogFilter { filter: filter.to_owned(), error })?;
    let builder = tracing_subscriber::fmt().with_env_filter(parsed).with_writer(std::io::stderr);
    let _ = match format {
        LogFormat::Text => builder.with_ansi(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    Ok(())
}
