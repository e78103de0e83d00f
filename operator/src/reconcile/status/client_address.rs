//! The condition ClientAddress: sidecars see the addresses of clients, and not those of proxies in front of them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use sluice_config::CompiledPolicy;
use sluice_config::client_address::AddressHeader;
use sluice_config::policy::CompiledLimit;
use sluice_crds::conditions::{reasons, types};

use crate::conditions::Finding;
use crate::distribution::session::Confirmation;
use crate::reconcile::facts::{Observed, Outcome};
use crate::reconcile::status::text::{MAX_NAMED, list, part_of};

#[cfg(test)]
mod tests;

/// Results that the reports of sidecars can have.
const REPORTED: [(&str, &str); 3] =
    [("True", reasons::KNOWN), ("False", reasons::UNTRUSTED_PROXY), ("False", reasons::UNREADABLE_ADDRESS)];

/// Returns the condition, or `None` if no limit depends on the client's address.
pub(super) fn client_address(observed: &Observed<'_>) -> Option<Finding> {
    let Outcome::Published { policy, enforced_by, .. } = observed.outcome else { return None };
    if !enforced_by.sidecar {
        // A gateway says the address.
        return None;
    }
    let depends = |limit: &CompiledLimit| {
        limit.key.iter().any(|part| part.source.is_client_address())
            || limit.reads_address(&policy.expressions)
    };
    if !policy.limits.iter().any(depends) {
        return None;
    }
    Some(observed.or_before(by_reports(observed, policy), types::CLIENT_ADDRESS, &REPORTED))
}

fn by_reports(observed: &Observed<'_>, policy: &CompiledPolicy) -> Finding {
    let pods = &observed.facts.pods;
    let reported = pods.iter().filter(|pod| pod.confirmation == Confirmation::Applied).count();
    if reported == 0 {
        let message = "No sidecar has reported on this version of the policy yet.";
        return Finding::new("Unknown", reasons::NO_REPORTS, message);
    }
    let proxies: Vec<_> = pods.iter().filter_map(|pod| pod.findings.untrusted_proxy.as_ref()).collect();
    let unreadable = pods.iter().filter(|pod| pod.findings.unreadable_addresses).count();
    let Some(first) = proxies.first() else {
        if unreadable > 0 {
            return Finding::new(
                "False",
                reasons::UNREADABLE_ADDRESS,
                unreadable_message(unreadable, reported),
            );
        }
        let message = "Requests arrive from clients or through trusted proxies.";
        return Finding::new("True", reasons::KNOWN, message);
    };
    let peers: BTreeSet<IpAddr> = proxies.iter().map(|proxy| proxy.peer).collect();
    let header = match first.header {
        AddressHeader::XForwardedFor => "X-Forwarded-For",
        AddressHeader::Forwarded => "Forwarded",
        // No request has it.
        AddressHeader::ProxyProtocol => "the PROXY protocol",
    };
    let message = format!(
        "{} most requests with the header {header} from {}, which the policy does not trust, so limits by clientIP \
         count all clients behind such a peer as one, and clientCIDRs are compared with that peer. If these are your proxies, trust their networks: {}",
        part_of(proxies.len(), reported, "pod", "receives", "receive"),
        list(peers.iter().map(IpAddr::to_string)),
        mend(observed, policy, first.header, &peers)
    );
    Finding::new("False", reasons::UNTRUSTED_PROXY, message)
}

fn unreadable_message(unreadable: usize, reported: usize) -> String {
    format!(
        "{} requests for which a trusted proxy reports something else than an address, such as `unknown`, so limits by clientIP count them for that proxy. Let the proxy append the address of its peer. sluice_unreadable_addresses_total counts them.",
        part_of(unreadable, reported, "pod", "receives", "receive")
    )
}

/// Returns the command that adds these peers to the trusted proxies.
fn mend(
    observed: &Observed<'_>,
    policy: &CompiledPolicy,
    header: AddressHeader,
    peers: &BTreeSet<IpAddr>,
) -> String {
    let trusted = policy.client_address.iter().flat_map(|address| address.trusted_proxies.iter().copied());
    let added = peers.iter().take(MAX_NAMED).map(|&peer| IpNet::from(peer));
    let networks: Vec<IpNet> = trusted.chain(added).collect();
    let patch = serde_json::json!({
        "spec": {"clientAddress": {"trustedProxies": networks, "header": header}}
    });
    let (namespace, name) = (&observed.key.namespace, &observed.key.name);
    format!("kubectl -n {namespace} patch ratelimitpolicies.sluice.dev {name} --type merge -p '{patch}'")
}
