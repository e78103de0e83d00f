//! The application behind a listener: its address, and in a pod the other addresses at which it may listen.
//!
//! An application in a pod may listen on 127.0.0.1, on the addresses of its pod, or on `::1`, and only a connection shows
//! where. The addresses are tried in this order, and what answered is remembered until it refuses. Connections never come
//! from an address of the loopback that applications trust.

pub(crate) mod body;
pub(crate) mod stream;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use crate::upstream::address::Upstream;

/// Time without an answer, although requests come, after which an application counts as unreachable.
const UNREACHABLE_AFTER: Duration = Duration::from_secs(60);

/// An address at which the application may listen, and the one that connections to it come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) to: SocketAddr,
    /// The address of the pod, for IPv6. Connections to IPv4 addresses of the pod come from its loopback network.
    pub(crate) from: Option<Ipv6Addr>,
    /// Whether the address is the pod's own.
    pub(crate) is_own: bool,
}

/// The application behind a listener.
#[derive(Debug)]
pub(crate) struct Application {
    upstream: Upstream,
    /// Empty if the application has a name, which is looked up at each connect.
    candidates: Box<[Candidate]>,
    /// Index of the candidate that answered last.
    current: AtomicUsize,
    silence: Silence,
    started: Instant,
}

impl Application {
    /// Creates an application. `pod` are the addresses of the pod, in which it may listen if its own is 127.0.0.1.
    pub(crate) fn new(upstream: Upstream, pod: &[IpAddr]) -> Self {
        let candidates = upstream.address().map(|address| candidates(address, pod)).unwrap_or_default();
        Self {
            upstream,
            candidates: candidates.into(),
            current: AtomicUsize::new(0),
            silence: Silence::default(),
            started: Instant::now(),
        }
    }

    pub(crate) fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    /// Iterates over the candidates: the one that answered last, then the others in their order.
    pub(crate) fn candidates(&self) -> impl Iterator<Item = (usize, Candidate)> + '_ {
        let current = self.current.load(Ordering::Relaxed);
        let others = (0..self.candidates.len()).filter(move |index| *index != current);
        std::iter::once(current).chain(others).filter_map(|index| Some((index, *self.candidates.get(index)?)))
    }

    /// Notes that a connection was opened to a candidate.
    pub(crate) fn answered(&self, index: usize) {
        if self.current.load(Ordering::Relaxed) != index {
            self.current.store(index, Ordering::Relaxed);
            if let Some(candidate) = self.candidates.get(index) {
                tracing::info!(address = %candidate.to, "the application answers");
            }
        }
        self.silence.end();
    }

    /// Notes that no connection could be opened.
    pub(crate) fn did_not_answer(&self) {
        if self.silence.go_on(self.started.elapsed()) {
            let tried: Vec<_> = self.candidates.iter().map(|candidate| candidate.to.to_string()).collect();
            let tried = if tried.is_empty() { self.upstream.to_string() } else { tried.join(", ") };
            tracing::warn!(
                "the application has accepted no connection for a minute, although requests come; tried: {tried}"
            );
        }
    }

    fn is_unreachable(&self) -> bool {
        self.silence.is_long()
    }

    /// Returns the port of the application, if its address is known.
    fn port(&self) -> Option<u16> {
        self.upstream.address().map(|address| address.port())
    }
}

/// Returns where an application may listen whose address is this one.
fn candidates(address: SocketAddr, pod: &[IpAddr]) -> Vec<Candidate> {
    let own = |to: IpAddr, from| Candidate { to: SocketAddr::new(to, address.port()), from, is_own: true };
    let mut candidates = vec![Candidate { to: address, from: None, is_own: false }];
    if !address.ip().is_loopback() || address.is_ipv6() {
        return candidates;
    }
    let ipv6 = pod.iter().find_map(|own| match own {
        IpAddr::V6(own) => Some(*own),
        IpAddr::V4(_) => None,
    });
    candidates.extend(pod.iter().map(|to| own(*to, ipv6.filter(|_| to.is_ipv6()))));
    // Without an address of its own, the connection would come from ::1, which applications trust.
    candidates.extend(ipv6.map(|ipv6| own(Ipv6Addr::LOCALHOST.into(), Some(ipv6))));
    candidates
}

/// How long nothing has answered, in milliseconds since the start. 0 stands for no silence.
#[derive(Debug, Default)]
struct Silence {
    since: AtomicU64,
    is_long: AtomicU64,
}

impl Silence {
    /// Notes a failure at this time. Reports whether the silence has just become long.
    fn go_on(&self, now: Duration) -> bool {
        let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX).max(1);
        let since = match self.since.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => now,
            Err(since) => since,
        };
        let is_long = u128::from(now.saturating_sub(since)) >= UNREACHABLE_AFTER.as_millis();
        is_long && self.is_long.swap(1, Ordering::Relaxed) == 0
    }

    fn end(&self) {
        if self.since.load(Ordering::Relaxed) != 0 {
            self.since.store(0, Ordering::Relaxed);
            self.is_long.store(0, Ordering::Relaxed);
        }
    }

    fn is_long(&self) -> bool {
        self.is_long.load(Ordering::Relaxed) != 0
    }
}

/// The applications of all listeners.
#[derive(Debug, Clone, Default)]
pub struct Applications(Arc<[Arc<Application>]>);

impl Applications {
    pub(crate) fn new(applications: impl Iterator<Item = Application>) -> Self {
        Self(applications.map(Arc::new).collect())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Application>> {
        self.0.iter()
    }

    /// Returns the ports of the applications that have accepted no connection for a minute although requests come.
    #[must_use]
    pub fn unreachable(&self) -> Vec<u16> {
        let unreachable = self.0.iter().filter(|application| application.is_unreachable());
        unreachable.filter_map(|application| application.port()).collect()
    }
}

impl Collector for Applications {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let help = "Captured ports whose application has accepted no connection for a minute, although requests came";
        let unreachable = self.0.iter().filter(|application| application.is_unreachable()).count();
        encoder
            .encode_descriptor("unreachable_applications", help, None, MetricType::Gauge)?
            .encode_gauge(&i64::try_from(unreachable).unwrap_or(i64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(pod: &[&str], upstream: &str) -> Vec<String> {
        let pod: Vec<IpAddr> = pod.iter().map(|address| address.parse().unwrap()).collect();
        let application = Application::new(upstream.parse().unwrap(), &pod);
        application.candidates().map(|(_, candidate)| candidate.to.to_string()).collect()
    }

    #[test]
    fn an_application_may_listen_on_the_loopback_or_on_the_addresses_of_its_pod() {
        let both = ["10.0.0.5", "fd00::5"];
        assert_eq!(tried(&both, "127.0.0.1:80"), ["127.0.0.1:80", "10.0.0.5:80", "[fd00::5]:80", "[::1]:80"]);
        // Without an IPv6 address of the pod, a connection to ::1 would come from ::1.
        assert_eq!(tried(&["10.0.0.5"], "127.0.0.1:80"), ["127.0.0.1:80", "10.0.0.5:80"]);
        assert_eq!(tried(&["fd00::5"], "127.0.0.1:80"), ["127.0.0.1:80", "[fd00::5]:80", "[::1]:80"]);
        // Whoever names another address means it.
        assert_eq!(tried(&both, "10.0.0.9:80"), ["10.0.0.9:80"]);
        assert_eq!(tried(&[], "127.0.0.1:80"), ["127.0.0.1:80"]);
        assert_eq!(tried(&both, "example.com:80"), Vec::<String>::new());
    }

    #[test]
    fn what_answered_last_is_tried_first() {
        let application = Application::new(
            "127.0.0.1:80".parse().unwrap(),
            &["10.0.0.5".parse().unwrap(), "fd00::5".parse().unwrap()],
        );
        application.answered(2);
        let order: Vec<_> = application.candidates().map(|(index, _)| index).collect();
        assert_eq!(order, [2, 0, 1, 3]);
        let from: Vec<_> = application.candidates().map(|(_, candidate)| candidate.from).collect();
        let own = Some("fd00::5".parse().unwrap());
        assert_eq!(from, [own, None, None, own]);
    }

    #[test]
    fn an_application_is_unreachable_after_a_minute_without_an_answer() {
        let silence = Silence::default();
        let at = Duration::from_secs;
        assert!(!silence.go_on(at(10)) && !silence.go_on(at(69)) && !silence.is_long());
        assert!(silence.go_on(at(70)), "told once");
        assert!(!silence.go_on(at(71)) && silence.is_long());
        silence.end();
        assert!(!silence.is_long() && !silence.go_on(at(72)) && !silence.go_on(at(131)));
        assert!(silence.go_on(at(132)));
    }
}
