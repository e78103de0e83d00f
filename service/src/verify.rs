//! Asks a service from outside whether it answers, as gateways reach it.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use sluice_host::duration::duration;
use tonic::transport::{Certificate, Channel, ClientTlsConfig};
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

/// Interval between two attempts.
const RETRY: Duration = Duration::from_secs(1);

/// The arguments of the command.
#[derive(Debug, Clone, Args)]
pub struct VerifyArgs {
    /// The service, as gateways reach it
    #[arg(long, value_name = "HOST:PORT")]
    pub address: String,
    /// File with the authority of its certificate, in PEM. Without it, the service speaks no TLS
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// Time in which it must answer
    #[arg(long, default_value = "60s", value_parser = duration)]
    pub timeout: Duration,
}

/// The reason why a service does not answer.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The authority cannot be read.
    #[error("cannot read {file}: {error}")]
    File {
        /// The file.
        file: String,
        /// The error of the system.
        error: std::io::Error,
    },
    /// The address or the authority is wrong.
    #[error("cannot ask {0}: {1}")]
    Address(String, String),
    /// It has not answered in time.
    #[error("{address} has not answered within {timeout:?}: {reason}")]
    Silent {
        /// The address.
        address: String,
        /// The time.
        timeout: Duration,
        /// The last failure.
        reason: String,
    },
    /// The runtime could not be created.
    #[error("cannot start: {0}")]
    System(#[from] std::io::Error),
}

/// Asks for the health of a service until it is serving.
///
/// # Errors
/// It is not, in the time that it has.
pub fn run(args: &VerifyArgs) -> Result<(), VerifyError> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(verify(args))
}

async fn verify(args: &VerifyArgs) -> Result<(), VerifyError> {
    let VerifyArgs { address, ca_file, timeout } = args;
    let wrong = |error: tonic::transport::Error| VerifyError::Address(address.clone(), error.to_string());
    let scheme = if ca_file.is_some() { "https" } else { "http" };
    let url = format!("{scheme}://{address}");
    let mut endpoint = Channel::from_shared(url)
        .map_err(|error| VerifyError::Address(address.clone(), error.to_string()))?
        .timeout(*timeout);
    if let Some(file) = ca_file {
        let pem = std::fs::read(file)
            .map_err(|error| VerifyError::File { file: file.display().to_string(), error })?;
        let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem));
        endpoint = endpoint.tls_config(tls).map_err(wrong)?;
    }
    let mut reason = "no attempt".to_owned();
    let asking = async {
        loop {
            match ask(&endpoint).await {
                Ok(()) => return,
                Err(failure) => reason = failure,
            }
            tokio::time::sleep(RETRY).await;
        }
    };
    if tokio::time::timeout(*timeout, asking).await.is_err() {
        return Err(VerifyError::Silent { address: address.clone(), timeout: *timeout, reason });
    }
    let _ = writeln!(std::io::stdout(), "{address} answers gateways");
    Ok(())
}

async fn ask(endpoint: &tonic::transport::Endpoint) -> Result<(), String> {
    let channel = endpoint.connect().await.map_err(|error| chain(&error))?;
    let question = HealthCheckRequest { service: String::new() };
    let answer = HealthClient::new(channel).check(question).await.map_err(|status| status.to_string())?;
    let is_serving = answer.into_inner().status == ServingStatus::Serving as i32;
    is_serving.then_some(()).ok_or_else(|| "it is not serving: it has no policies yet, or it ends".to_owned())
}

/// Returns an error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}
