//! Questions of gateways: any bytes have an answer or an error, and a limit is never exceeded.

use std::sync::{Arc, OnceLock};

use http::HeaderMap;
use prost::Message as _;
use sluice_config::policy::OnStoreFailure;
use sluice_config::store_access::{StoreChoice, StoreChoices};
use sluice_service::compat::compile::{AlgorithmName, CompileOptions};
use sluice_service::compat::config::DomainConfig;
use sluice_service::messages::{OK, OVER_LIMIT, RateLimitRequest};
use sluice_service::run::Loader;
use sluice_service::work::Whose;
use sluice_service::{Options, Service};
use tokio::runtime::Runtime;

use crate::target::Target;

const RULES: &str = "
domain: shop
descriptors:
- {key: user, rate_limit: {unit: day, requests_per_unit: 3}}
- {key: none, rate_limit: {unit: day, requests_per_unit: 0}}
- {key: path, value: /a/*/b, rate_limit: {unit: hour, requests_per_unit: 5}}
- {key: seen, rate_limit: {unit: hour, requests_per_unit: 1}, shadow_mode: true}
- {key: quota, rate_limit: {unit: hour, requests_per_unit: 1}, quota_mode: true}
- {key: open, rate_limit: {unlimited: true}}
";

/// The check.
pub const TARGET: Target = Target {
    name: "descriptors",
    check,
    seeds: &[
        "\n\u{4}shop\u{12}\u{b}\n\t\n\u{4}user\u{12}\u{1}a",
        "\n\u{4}shop\u{12}\u{f}\n\t\n\u{4}user\u{12}\u{1}a\u{12}\u{2}\u{8}\u{5}\u{12}\u{a}\n\u{8}\n\u{4}none\u{12}\0\u{18}\u{7}",
        "\n\u{4}shop\u{12}\u{12}\n\u{c}\n\u{4}path\u{12}\u{4}/a/b\u{1a}\u{2}\u{8}\u{3} \u{1}",
    ],
    words: &[
        "\n\u{4}shop",
        "\u{12}\u{b}\n\t\n\u{4}user\u{12}\u{1}a",
        "\u{12}\u{b}\n\t\n\u{4}seen\u{12}\u{1}a",
        "\n\u{4}none",
        "\n\u{5}quota",
        "\n\u{4}open",
        "\u{1a}\u{2}\u{8}\0",
        "\u{1a}\u{2}\u{8}\u{7f}",
        "\u{12}\u{4}\u{8}\u{2}\u{10}\u{4}",
        " \u{1}",
        "\0",
        "\u{7f}",
        "\u{18}\u{1}",
    ],
};

/// A service that is never asked over the network.
fn service() -> &'static (Runtime, Service) {
    static SERVICE: OnceLock<(Runtime, Service)> = OnceLock::new();
    SERVICE.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let service = runtime.block_on(async {
            let service = Service::start(Options::new(([127, 0, 0, 1], 0).into())).await.expect("a service");
            let publication = service.publication(StoreChoices::only(StoreChoice::Memory));
            let compile = CompileOptions {
                algorithm: AlgorithmName::FixedWindow,
                on_store_failure: OnStoreFailure::Deny,
                merges_domains: false,
            };
            let config = DomainConfig::from_yaml(RULES).expect("rules");
            Loader { publication, compile, replicas: 1 }.load(&[("shop".to_owned(), config)]).expect("rules");
            service
        });
        (runtime, service)
    })
}

fn check(bytes: &[u8]) {
    let Ok(request) = RateLimitRequest::decode(bytes) else { return };
    let (runtime, service) = service();
    let door = Arc::clone(service.door());
    let Ok(response) = runtime.block_on(door.answer(&request, &HeaderMap::new(), Whose::LOCAL, None)) else {
        return;
    };
    assert_eq!(response.statuses.len(), request.descriptors.len());
    let denies = response.statuses.iter().any(|status| status.code == OVER_LIMIT);
    assert_eq!(response.overall_code, if denies { OVER_LIMIT } else { OK }, "{response:?}");
    for status in &response.statuses {
        if let Some(limit) = &status.current_limit {
            assert!(status.limit_remaining <= limit.requests_per_unit, "{status:?}");
        }
    }
}
