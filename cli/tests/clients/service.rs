//! The commands about clients, as they ask the service about the rules of envoyproxy/ratelimit.

use std::net::SocketAddr;

use sluice_config::policy::OnStoreFailure;
use sluice_config::store_access::{StoreChoice, StoreChoices};
use sluice_service::compat::compile::{AlgorithmName, CompileOptions};
use sluice_service::compat::config::DomainConfig;
use sluice_service::run::Loader;
use sluice_service::{Options, Service};

use super::{ask, send, sluice};

const RULES: &str = "
domain: shop
descriptors:
- key: user
  rate_limit: {unit: year, requests_per_unit: 2}
- key: user
  value: mallory
  rate_limit: {unit: year, requests_per_unit: 0}
- key: internal
  rate_limit: {unlimited: true}
";

async fn start() -> Service {
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let mut options = Options::new(any);
    (options.http, options.debug) = (Some(any), Some(any));
    let service = Service::start(options).await.unwrap();
    let publication = service.publication(StoreChoices::only(StoreChoice::Memory));
    let compile = CompileOptions {
        algorithm: AlgorithmName::FixedWindow,
        on_store_failure: OnStoreFailure::Share,
        merges_domains: false,
    };
    let config = DomainConfig::from_yaml(RULES).unwrap();
    Loader { publication, compile, replicas: 1 }.load(&[("shop.yaml".to_owned(), config)]).unwrap();
    service
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_limited_and_what_descriptors_would_meet() {
    let service = start().await;
    let [http, debug] = service.pages() else { panic!("{:?}", service.pages()) };
    let question = r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "alice"}]}]}"#;
    for _ in 0..5 {
        send(*http, "/json", question).await;
    }
    let top = ask(*debug, &["top"]).await;
    assert!(top.lines().nth(1).unwrap().starts_with("@rls/shop user Reject 3 "), "{top}");
    let peeked = ask(*debug, &["peek", "@rls/shop", "user", "alice"]).await;
    assert!(peeked.contains("0 of 2 left"), "{peeked}");

    let explain = |descriptors: &'static [&'static str]| {
        let debug = *debug;
        async move {
            let mut arguments = vec!["explain", "--domain", "shop"];
            descriptors.iter().for_each(|descriptor| arguments.extend(["--descriptor", descriptor]));
            ask(debug, &arguments).await
        }
    };
    let denied = explain(&["user=alice", "internal=x"]).await;
    assert!(
        denied.contains("@rls/shop user\nclient user=alice\n") && denied.contains("0 of 2 left"),
        "{denied}"
    );
    assert!(denied.contains("does not apply: the rule for internal=x is unlimited"), "{denied}");
    assert!(denied.ends_with("\nThe request would be denied by @rls/shop user.\n"), "{denied}");
    let admitted = explain(&["user=bob", "user=bob,path=/x"]).await;
    assert!(
        admitted.contains("does not apply: no rule of the domain is for user=bob, path=/x"),
        "{admitted}"
    );
    assert!(admitted.ends_with("\nThe request would be admitted.\n"), "{admitted}");
    let never = explain(&["user=mallory"]).await;
    assert!(never.contains("denies the request: the rule for user=mallory admits no request"), "{never}");
    // Nothing was counted.
    assert!(explain(&["user=bob"]).await.contains("2 of 2 left"));

    let address = debug.to_string();
    let unknown = ["explain", "--domain", "shopp", "--descriptor", "user=a", "--address", &address];
    let (ok, _, errors) = sluice(&unknown).await;
    assert!(
        !ok && errors.contains(
            r#"there are no rules and no limits for the domain "shopp", so requests pass: the domains with rules are shop"#
        ),
        "{errors}"
    );
    let malformed = ["explain", "--domain", "shop", "--descriptor", "user", "--address", &address];
    assert!(sluice(&malformed).await.2.contains("write KEY=VALUE,KEY=VALUE"));
}
