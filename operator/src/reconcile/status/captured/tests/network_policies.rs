//! NetworkPolicies.

use super::*;

/// Reports which of the NetworkPolicies, each with its rules, block the sidecar.
fn blocking(policies: &[Value]) -> Vec<String> {
    let shop = policies.iter().fold(Shop::with_sidecar(), Shop::network_policy);
    let (reason, message) = shop.captured();
    let blocked: Vec<_> = message.split("NetworkPolicy ").skip(1).map(|text| text[..4].to_owned()).collect();
    assert_eq!(reason == reasons::BLOCKED_BY_NETWORK_POLICY, !blocked.is_empty(), "{message}");
    blocked
}

fn from(app: &str) -> Value {
    json!([{"podSelector": {"matchLabels": {"app": app}}}])
}

#[test]
fn a_network_policy_with_the_number_of_the_application_is_mended_by_the_command() {
    let rules = json!([{"ports": [{"port": 9090}]}, {"from": from("a"), "ports": [{"port": 8080}]}]);
    let shop = || Shop::with_sidecar().network_policy(&rules);
    let message = "NetworkPolicy np-0 allows clients of port 8080, but blocks port 8790, on which the sidecars \
         receive their requests. Run `kubectl -n shop patch networkpolicy np-0 --type=json -p \
         '[{\"op\":\"add\",\"path\":\"/spec/ingress/1/ports/-\",\"value\":{\"port\":8790,\"protocol\":\"TCP\"}}]'`.";
    assert_eq!(shop().captured(), (reasons::BLOCKED_BY_NETWORK_POLICY, message.into()));
    mend(shop(), |shop| &mut shop.network_policies[0]);
}

#[test]
fn a_network_policy_that_allows_both_ports_or_none_does_not_block() {
    for rules in [
        json!([]),
        json!(null),
        json!([{}]),
        json!([{"from": from("a")}]),
        json!([{"ports": []}]),
        json!([{"ports": [{"protocol": "TCP"}]}]),
        json!([{"ports": [{"port": "http"}]}]),
        json!([{"ports": [{"port": 9090}]}]),
        json!([{"ports": [{"port": 8080, "endPort": 8800}]}]),
        json!([{"ports": [{"port": 8080, "protocol": "UDP"}]}]),
        json!([{"ports": [{"port": 8080}, {"port": 8790}]}]),
    ] {
        assert!(blocking(std::slice::from_ref(&rules)).is_empty(), "{rules}");
    }
    for rules in [
        json!([{"ports": [{"port": 8000, "endPort": 8100}]}]),
        json!([{"ports": [{"port": 8080}, {"port": 8790, "protocol": "UDP"}]}]),
    ] {
        assert_eq!(blocking(std::slice::from_ref(&rules)), ["np-0"], "{rules}");
    }
}

#[test]
fn another_rule_opens_the_sidecar_for_the_clients_that_it_includes() {
    let application = |from: &Value| json!([{"from": from, "ports": [{"port": 8080}]}]);
    let sidecar = |from: &Value| json!([{"from": from, "ports": [{"port": 8790}]}]);
    let everybody = json!([]);
    let two = json!([{"podSelector": {"matchLabels": {"app": "b"}}}, {"podSelector": {"matchLabels": {"app": "a"}}}]);
    let all_pods = json!([{"podSelector": {}}]);
    let all_namespaces = json!([{"namespaceSelector": {}}]);
    let block = json!([{"ipBlock": {"cidr": "10.0.0.0/8"}}]);
    for clients in [&everybody, &two, &all_pods, &all_namespaces, &from("a")] {
        let blocked = blocking(&[application(&from("a")), sidecar(clients)]);
        assert!(blocked.is_empty(), "{clients}: {blocked:?}");
    }
    for (clients, others) in [
        (&everybody, &from("a")),
        (&two, &from("a")),
        (&all_namespaces, &all_pods),
        (&block, &all_namespaces),
        (&from("a"), &block),
    ] {
        assert_eq!(blocking(&[application(clients), sidecar(others)]), ["np-0"], "{clients} {others}");
    }
}

#[test]
fn a_network_policy_for_other_pods_or_for_egress_does_not_block() {
    let ports = json!([{"ports": [{"port": 8080}]}]);
    for spec in [
        json!({"podSelector": {"matchLabels": {"app": "other"}}, "ingress": ports}),
        json!({"podSelector": {}, "policyTypes": ["Egress"], "ingress": ports}),
    ] {
        let network_policies = vec![json!({"metadata": {"name": "np"}, "spec": spec})];
        let shop = Shop { network_policies, ..Shop::with_sidecar() };
        assert_eq!(shop.captured().0, reasons::ALL_TRAFFIC);
    }
}
