//! A service in this process, with its counters in memory and a clock that the test moves, and a caller.

pub(crate) mod checks;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use sluice_config::policy::OnStoreFailure;
use sluice_config::store_access::{StoreChoice, StoreChoices};
use sluice_service::compat::compile::{AlgorithmName, CompileOptions};
use sluice_service::compat::config::DomainConfig;
use sluice_service::messages::{Entry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse};
use sluice_service::run::Loader;
use sluice_service::{Options, Service};
use sluice_store::Clock;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

/// A time in the middle of a minute, an hour and a day: 12:30:30 on some day, in microseconds.
pub(crate) const NOON: u64 = (20_000 * 86_400 + 45_030) * 1_000_000;

/// Rules as tests enforce them.
pub(crate) const RULES: CompileOptions = CompileOptions {
    algorithm: AlgorithmName::FixedWindow,
    on_store_failure: OnStoreFailure::Share,
    merges_domains: false,
};

/// A service and its clock.
pub(crate) struct Running {
    pub(crate) service: Service,
    pub(crate) loader: Loader,
    pub(crate) clock: Clock,
}

/// Starts a service with these options and rules.
pub(crate) async fn start_with(
    change: impl FnOnce(&mut Options),
    compile: CompileOptions,
    yaml: &[&str],
) -> Running {
    let clock = Clock::manual(0);
    clock.advance_micros(NOON);
    let mut options = Options::new("127.0.0.1:0".parse().unwrap());
    options.clock = clock.clone();
    change(&mut options);
    let service = Service::start(options).await.unwrap();
    let publication = service.publication(StoreChoices::only(StoreChoice::Memory));
    let loader = Loader { publication, compile, replicas: 1 };
    loader.load(&configs(yaml)).unwrap();
    Running { service, loader, clock }
}

/// Starts a service with these rules.
pub(crate) async fn start(yaml: &str) -> Running {
    start_with(|_| {}, RULES, &[yaml]).await
}

/// Reads files of rules.
pub(crate) fn configs(yaml: &[&str]) -> Vec<(String, DomainConfig)> {
    let read = |(n, yaml): (usize, &&str)| (format!("{n}.yaml"), DomainConfig::from_yaml(yaml).unwrap());
    yaml.iter().enumerate().map(read).collect()
}

/// A caller.
#[derive(Clone)]
pub(crate) struct Caller(Grpc<Channel>);

impl Caller {
    /// Connects to a service.
    pub(crate) async fn connect(running: &Running) -> Self {
        let channel = Channel::from_shared(format!("http://{}", running.service.grpc()))
            .unwrap()
            .connect()
            .await
            .unwrap();
        Self(Grpc::new(channel))
    }

    /// Connects to an address.
    pub(crate) async fn to(address: std::net::SocketAddr) -> Self {
        Self(Grpc::new(Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()))
    }

    /// Asks over a connection that exists.
    pub(crate) fn over(channel: Channel) -> Self {
        Self(Grpc::new(channel))
    }

    /// Asks a question.
    pub(crate) async fn ask(&mut self, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        self.ask_within(request, Duration::from_secs(10)).await
    }

    /// Asks a question with a deadline.
    pub(crate) async fn ask_within(
        &mut self,
        request: RateLimitRequest,
        timeout: Duration,
    ) -> Result<RateLimitResponse, Status> {
        let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit".parse().unwrap();
        self.0.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let mut request = Request::new(request);
        request.set_timeout(timeout);
        let codec = ProstCodec::<RateLimitRequest, RateLimitResponse>::default();
        self.0.unary(request, path, codec).await.map(tonic::Response::into_inner)
    }

    /// Asks about descriptors, and returns the answer in words, see [`words`].
    pub(crate) async fn words(&mut self, domain: &str, descriptors: &[RateLimitDescriptor]) -> String {
        words(&self.ask(question(domain, descriptors)).await.unwrap())
    }
}

/// A question about descriptors.
pub(crate) fn question(domain: &str, descriptors: &[RateLimitDescriptor]) -> RateLimitRequest {
    RateLimitRequest { domain: domain.to_owned().into(), descriptors: descriptors.to_vec(), hits_addend: 0 }
}

/// A descriptor with these pairs.
pub(crate) fn of(pairs: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry {
        key: Bytes::from((*key).to_owned()),
        value: Bytes::from((*value).to_owned()),
    };
    RateLimitDescriptor { entries: pairs.iter().map(entry).collect(), ..RateLimitDescriptor::default() }
}

/// Returns an answer in words: `ok` or `over`, and for each descriptor what remains of which number, such as `ok 2/3`.
pub(crate) fn words(response: &RateLimitResponse) -> String {
    let code = |code| if code == 2 { "over" } else { "ok" };
    let mut text = format!("{}:", code(response.overall_code));
    for status in &response.statuses {
        text += &format!(" {}", code(status.code));
        if let Some(limit) = &status.current_limit {
            text += &format!(" {}/{}", status.limit_remaining, limit.requests_per_unit);
        }
    }
    text
}

/// Returns the values of a metric, by its labels.
pub(crate) fn metric(running: &Running, name: &str) -> BTreeMap<String, String> {
    let text = running.service.metrics();
    let lines = text.lines().filter_map(|line| line.strip_prefix(name)?.rsplit_once(' '));
    lines.map(|(labels, value)| (labels.to_owned(), value.to_owned())).collect()
}
