//! Notices requests that arrive through a proxy that a policy does not trust. All clients of such a proxy are one
//! client for the policy.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use crate::client_address::AddressHeader;
use crate::message::UntrustedProxy;

/// The lead of forwarded requests over others with which a proxy is reported. A few clients that send the header
/// themselves do not reach it, because the other requests reduce it.
const REPORTED_LEAD: u32 = 100;

/// Notices requests from peers that are not trusted, and that report a client's address all the same.
#[derive(Debug, Default)]
pub(super) struct UntrustedProxyDetector {
    /// The number of forwarded requests more than others, from 0 to [`REPORTED_LEAD`]. Concurrent requests may
    /// count as one.
    lead: AtomicU32,
    proxy: Mutex<Option<UntrustedProxy>>,
}

impl UntrustedProxyDetector {
    /// Counts a request, given the header in which a peer that is not trusted reports a client. Writes nothing
    /// while all requests are alike.
    pub(super) fn observe(&self, peer: IpAddr, header: Option<AddressHeader>) {
        let lead = self.lead.load(Relaxed);
        match header {
            Some(_) if lead == REPORTED_LEAD => {}
            Some(header) => {
                self.lead.store(lead + 1, Relaxed);
                if lead + 1 == REPORTED_LEAD {
                    self.set(Some(UntrustedProxy { peer: peer.to_canonical(), header }));
                }
            }
            None if lead == 0 => {}
            None => {
                self.lead.store(lead - 1, Relaxed);
                if lead == 1 {
                    self.set(None);
                }
            }
        }
    }

    /// Returns the proxy through which most requests arrive, if it is not trusted.
    pub(super) fn proxy(&self) -> Option<UntrustedProxy> {
        self.proxy.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, proxy: Option<UntrustedProxy>) {
        *self.proxy.lock().unwrap_or_else(PoisonError::into_inner) = proxy;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_reported_while_most_requests_come_through_it() {
        let detector = UntrustedProxyDetector::default();
        let peer: IpAddr = "::ffff:10.1.2.3".parse().unwrap();
        let forwarded = Some(AddressHeader::XForwardedFor);
        for _ in 0..1_000 {
            detector.observe(peer, forwarded);
            detector.observe(peer, None);
        }
        assert_eq!(detector.proxy(), None);
        for _ in 0..REPORTED_LEAD {
            detector.observe(peer, forwarded);
        }
        let proxy =
            UntrustedProxy { peer: "10.1.2.3".parse().unwrap(), header: AddressHeader::XForwardedFor };
        assert_eq!(detector.proxy(), Some(proxy.clone()));
        for _ in 1..REPORTED_LEAD {
            detector.observe(peer, None);
        }
        assert_eq!(detector.proxy(), Some(proxy));
        detector.observe(peer, None);
        assert_eq!(detector.proxy(), None);
    }
}
