//! A service as a process: from its arguments or variables to its end by a signal.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_config::message::Replica;
use sluice_config::store_access::{StoreChoice, StoreChoices};
use sluice_host::logging::{self, InvalidLogFilter};
use sluice_host::signals::{Reloads, Signals};
use sluice_host::worker;
use tokio::task::spawn_blocking;

use crate::compat::compile::{CompileOptions, Compiled, ConfigError, compile};
use crate::compat::config::DomainConfig;
use crate::compat::files::{FollowedDirectory, READ_COST, READ_EVERY};
use crate::compat::settings::{Settings, SettingsError, Source};
use crate::compat::xds;
use crate::service::{Publication, Service, StartError};

/// Time after SIGTERM in which connections are still accepted, until the pod is removed from its endpoints.
const DRAIN_DELAY: Duration = Duration::from_secs(5);
/// Time after that in which calls can end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);

/// The reason why a process failed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A variable is not valid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The log filter is invalid.
    #[error(transparent)]
    Filter(#[from] InvalidLogFilter),
    /// The service did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The first configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The runtime or the signal handlers could not be created.
    #[error("cannot start: {0}")]
    System(#[from] std::io::Error),
}

/// Runs in place of ratelimit, by the variables that `get` returns, until a signal ends the process.
pub fn run(get: &dyn Fn(&str) -> Option<String>) -> Result<(), RunError> {
    let settings = Settings::read(get)?;
    let _last_lines = logging::init(settings.log.0, &settings.log.1)?;
    worker::runtime()?.block_on(serve(settings, DRAIN_DELAY, |_| std::future::pending()))
}

/// Runs a service until a signal arrives. `beside` publishes policies beside the rules of the settings.
///
/// # Errors
/// It cannot start.
pub async fn serve<F: Future<Output = ()>>(
    settings: Settings,
    drain_delay: Duration,
    beside: impl FnOnce(Publication) -> F,
) -> Result<(), RunError> {
    let Settings { options, store, source, compile, replicas, must_have_rules, log: _, ignored } = settings;
    ignored.iter().for_each(|line| tracing::info!("{line}"));
    let asks_for_certificates = options.tls.as_ref().is_some_and(|files| files.client_ca.is_some());
    warn(&store, asks_for_certificates || options.grpc.ip().is_loopback());
    let mut signals = Signals::new()?;
    let mut source = source.map(Followed::new);
    let service = Service::start(options).await?;
    let loader = Loader { publication: service.publication(StoreChoices::only(store)), compile, replicas };
    if let Some(source) = source.as_mut().filter(|_| must_have_rules) {
        source.load_first(&loader)?;
    }
    let beside = beside(loader.publication.clone());
    let following = async {
        match source {
            Some(source) => source.follow(loader).await,
            None => std::future::pending().await,
        }
    };
    let http = service.checks().map(tracing::field::display);
    tracing::info!(grpc = %service.grpc(), http, "listening");
    tokio::select! {
        () = signals.end() => {}
        () = following => {}
        () = beside => {}
    }
    tracing::info!(?drain_delay, grace = ?DRAIN_TIMEOUT, "draining");
    tokio::select! {
        () = service.shutdown(drain_delay, DRAIN_TIMEOUT) => tracing::info!("drained"),
        () = signals.end() => tracing::warn!("a second signal ended the drain"),
    }
    Ok(())
}

/// Says what an operator should know about the settings.
fn warn(store: &StoreChoice, is_protected: bool) {
    if !is_protected {
        tracing::warn!(
            "the gRPC port asks for no certificate: whoever reaches it may ask about all domains, as with ratelimit. \
             GRPC_CLIENT_TLS_CACERT names the authorities of those who may"
        );
    }
    match store {
        StoreChoice::Access(access) if access.key_secret == crate::compat::settings::unkeyed() => {
            tracing::warn!(
                "keys are hashed with a secret that anyone can compute: set SLUICE_KEY_SECRET to 16 random bytes in base64 (openssl rand \
                 -base64 16), the same for all replicas"
            );
        }
        StoreChoice::Memory => {
            tracing::warn!(
                "counters are in the memory of this process: with several replicas, each has its own"
            );
        }
        StoreChoice::Access(_) | StoreChoice::Unconfigured => {}
    }
}

/// Makes configurations take effect.
#[derive(Debug)]
pub struct Loader {
    /// Publishes them.
    pub publication: Publication,
    /// How rules are enforced.
    pub compile: CompileOptions,
    /// Number of replicas that share a limit while the store does not answer.
    pub replicas: u32,
}

impl Loader {
    /// Publishes rules that were read. Counts those that cannot be used.
    pub(crate) fn take(
        &self,
        read: Result<Vec<(String, DomainConfig)>, ConfigError>,
    ) -> Result<(), ConfigError> {
        read.inspect_err(|_| self.publication.rejected()).and_then(|configs| self.load(&configs))
    }

    /// Publishes the rules of all files or resources.
    ///
    /// # Errors
    /// One cannot be used. What is in force stays.
    pub fn load(&self, configs: &[(String, DomainConfig)]) -> Result<(), ConfigError> {
        let compiled = compile(configs, &self.compile).inspect_err(|_| self.publication.rejected())?;
        let Compiled { policies, rules, count, warnings } = compiled;
        if configs.is_empty() {
            tracing::warn!(
                "there are no rules: every question is admitted until the directory has a file with some"
            );
        }
        let nacked = self.publication.publish(&policies, rules);
        if let Some((uid, nack)) = nacked.into_iter().next() {
            return Err(ConfigError { file: uid, reason: nack.to_string() });
        }
        if self.replicas > 1 {
            // The order of replicas is not known. The last one has no request more than its part.
            let replica = Replica { index: self.replicas - 1, count: self.replicas };
            let all: BTreeMap<_, _> = policies.iter().map(|(uid, _)| (uid.clone(), replica)).collect();
            self.publication.set_replicas(&all);
        }
        warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        tracing::info!(domains = policies.len(), rules = count, "the configuration is in force");
        Ok(())
    }
}

/// A source that is followed.
#[derive(Debug)]
pub struct Followed(Kind);

#[derive(Debug)]
enum Kind {
    Files(FollowedDirectory),
    Xds(Box<xds::XdsServer>),
}

impl Followed {
    /// Begins to follow a source.
    #[must_use]
    pub fn new(source: Source) -> Self {
        match source {
            Source::Files(directory) => Self(Kind::Files(FollowedDirectory::new(directory))),
            Source::Xds(server) => Self(Kind::Xds(server)),
        }
    }

    /// Loads the rules of files.
    ///
    /// # Errors
    /// They cannot be used.
    fn load_first(&mut self, loader: &Loader) -> Result<(), ConfigError> {
        match &mut self.0 {
            Kind::Files(directory) => directory.changed().map_or(Ok(()), |read| loader.load(&read?)),
            Kind::Xds(_) => Ok(()),
        }
    }

    /// Takes changes over. Never returns.
    pub async fn follow(self, loader: Loader) {
        match self.0 {
            Kind::Files(mut directory) => {
                let (loader, name) = (Arc::new(loader), directory.name());
                let (files, mut reloads) = (loader.publication.files().clone(), Reloads::new());
                files.in_force(&name);
                loop {
                    let began = Instant::now();
                    let loader = loader.clone();
                    // Thousands of files take a while, in which probes are answered.
                    let reading = spawn_blocking(move || {
                        let read = directory.changed();
                        let took = began.elapsed();
                        (directory, read.map(|read| loader.take(read)), took)
                    });
                    let Ok((followed, loaded, took)) = reading.await else { return };
                    directory = followed;
                    match loaded {
                        Some(Ok(())) => files.in_force(&name),
                        Some(Err(error)) => files.rejected(&name, &error.to_string()),
                        None => {}
                    }
                    if reloads.within(READ_EVERY.max(took * READ_COST)).await {
                        directory.forget();
                    }
                }
            }
            Kind::Xds(server) => xds::follow(*server, |read| loader.take(read)).await,
        }
    }
}
