//! An installation whose serving certificate cert-manager issues, and its verification as `helm test` does it. The test
//! writes the Secret in place of cert-manager.

use std::path::PathBuf;
use std::process::Output;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::json;
use sluice_crds::RateLimitStore;
use sluice_tests::components::{ControlClient, Operator, Redis};
use sluice_tests::kubernetes::{ControlPlane, TestNamespace, wait_for_store};
use sluice_tests::process::{binary, free_port};
use sluice_tests::wait::until;

const SYSTEM: &str = "installation-system";
const SECRET: &str = "sluice-serving";

/// Writes the Secret with a certificate of a new authority, and returns the authority in PEM.
async fn issue(plane: &ControlPlane) -> String {
    let (authority_key, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let mut authority = CertificateParams::default();
    authority.distinguished_name.push(DnType::CommonName, format!("authority {}", free_port()));
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_pem = authority.self_signed(&authority_key).unwrap().pem();
    let issuer = Issuer::from_params(&authority, &authority_key);
    let certificate = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let certificate = certificate.signed_by(&key, &issuer).unwrap();
    let fields =
        [("ca.crt", authority_pem.clone()), ("tls.crt", certificate.pem()), ("tls.key", key.serialize_pem())];
    let data = fields.into_iter().map(|(name, text)| (name.to_owned(), ByteString(text.into_bytes())));
    let secret = Secret {
        metadata: ObjectMeta { name: Some(SECRET.into()), ..ObjectMeta::default() },
        type_: Some("kubernetes.io/tls".into()),
        data: Some(data.collect()),
        ..Secret::default()
    };
    let api: Api<Secret> = Api::namespaced(plane.client().await, SYSTEM);
    let params = PatchParams::apply("cert-manager").force();
    until("the Secret is written", async || api.patch(SECRET, &params, &Patch::Apply(&secret)).await.ok())
        .await;
    authority_pem
}

/// Waits until the operator has published an authority to the API server and to sidecars, and serves by it.
async fn wait_until_published(operator: &Operator, namespace: &TestNamespace, authority: &str) {
    let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(namespace.client.clone());
    until("the API server has the authority", async || {
        let mut object = webhooks.get("sluice").await.ok()?;
        let bundle = object.webhooks.as_mut()?.pop()?.client_config.ca_bundle?;
        (bundle.0 == authority.as_bytes()).then_some(())
    })
    .await;
    until("sidecars have the authority", async || {
        let map = namespace.api::<ConfigMap>().get("sluice-ca").await.ok()?;
        (map.data?.get("ca.crt")? == authority).then_some(())
    })
    .await;
    let directory = tempfile::tempdir().unwrap();
    let file: PathBuf = directory.path().join("ca.crt");
    std::fs::write(&file, authority).unwrap();
    let request =
        Request::get("/v1/stream").header("host", "control").body(Full::<Bytes>::default()).unwrap();
    let response = ControlClient::new(&operator.control_url, &file).send(request).await;
    assert_eq!(response.status(), StatusCode::UNAUTHORIZED, "no token");
}

/// Runs `sluice-operator verify`.
async fn verify(plane: &ControlPlane, timeout_seconds: u32) -> Output {
    let mut command = tokio::process::Command::new(binary("sluice-operator"));
    command.args(["--namespace", SYSTEM, "verify", "--timeout-seconds", &timeout_seconds.to_string()]);
    command.env("KUBECONFIG", plane.kubeconfig()).output().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_serves_with_the_certificate_of_cert_manager_and_follows_its_renewal() {
    let plane = ControlPlane::shared().await;
    let redis = Redis::start().await;
    let control_url = format!("https://127.0.0.1:{}", free_port());
    let arguments = [format!("--serving-secret={SECRET}")];
    let arguments = arguments.each_ref().map(String::as_str);
    // The operator waits for cert-manager.
    let start = Operator::start_with(plane, SYSTEM, &redis.url, &control_url, &arguments);
    let (operator, authority) = tokio::join!(start, issue(plane));
    let namespace = TestNamespace::create(plane.client().await, "installation").await;

    let too_early = verify(plane, 0).await;
    let text = String::from_utf8_lossy(&too_early.stderr).into_owned();
    assert!(!too_early.status.success() && text.contains("an invalid policy was not refused"), "{text}");

    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "sluice"},
        "webhooks": [{
            "name": "validate.sluice.dev", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"url": format!("{}/validate", operator.webhook_url)},
            "rules": [{
                "apiGroups": ["sluice.dev"], "apiVersions": ["v1alpha1"], "operations": ["CREATE", "UPDATE"],
                "resources": ["ratelimitpolicies"],
            }],
        }],
    });
    let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(plane.client().await);
    webhooks.create(&PostParams::default(), &serde_json::from_value(webhook).unwrap()).await.unwrap();
    wait_until_published(&operator, &namespace, &authority).await;
    let verified = verify(plane, 120).await;
    assert!(verified.status.success(), "{verified:?}");

    let renewed = issue(plane).await;
    assert_ne!(authority, renewed);
    wait_until_published(&operator, &namespace, &renewed).await;
    let verified = verify(plane, 120).await;
    assert!(verified.status.success(), "{verified:?}");

    drop(redis);
    wait_for_store(
        &Api::namespaced(plane.client().await, SYSTEM),
        "default",
        "Ready",
        "False ConnectionRefused",
    )
    .await;
    let broken = verify(plane, 0).await;
    let text = String::from_utf8_lossy(&broken.stderr).into_owned();
    assert!(!broken.status.success() && text.contains("the RateLimitStore default is not Ready"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_secret_of_the_embedded_redis_is_restored_when_it_is_deleted() {
    let plane = ControlPlane::shared().await;
    let system = "embedded-system";
    let control = format!("https://127.0.0.1:{}", free_port());
    let arguments = [
        "--store-embedded",
        "--store-secret=sluice-redis",
        "--store-access=managed",
        "--webhook-configuration=none",
    ];
    let _operator = Operator::start_with(plane, system, "rediss://127.0.0.1:1", &control, &arguments).await;
    let secrets: Api<Secret> = Api::namespaced(plane.client().await, system);
    let before =
        until("the operator has made the Secret", async || secrets.get("sluice-redis").await.ok()).await;
    // It must have seen it, to know what to restore.
    let stores: Api<RateLimitStore> = Api::namespaced(plane.client().await, system);
    until("the operator uses it", async || {
        let conditions = stores.get("default").await.ok()?.status?.conditions;
        let resolved = conditions.into_iter().find(|condition| condition.type_ == "ResolvedRefs")?;
        (resolved.status == "True").then_some(())
    })
    .await;
    secrets.delete("sluice-redis", &DeleteParams::default()).await.unwrap();
    let after = until("the Secret is there again", async || {
        secrets.get("sluice-redis").await.ok().filter(|after| after.metadata.uid != before.metadata.uid)
    })
    .await;
    assert_eq!((after.data, after.type_), (before.data, before.type_));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_in_a_dual_stack_cluster_has_an_endpoint_of_each_family() {
    let plane = ControlPlane::shared().await;
    let system = "dual-stack-system";
    let control = format!("https://127.0.0.1:{}", free_port());
    // Beside the IPv4 address that every operator of the tests has.
    let arguments = ["--pod-ip=2001:db8::7", "--webhook-configuration=none"];
    let _operator = Operator::start_with(plane, system, "redis://127.0.0.1:1", &control, &arguments).await;
    let slices: Api<EndpointSlice> = Api::namespaced(plane.client().await, system);
    let found = until("there are two EndpointSlices", async || {
        let slices = slices.list(&ListParams::default()).await.ok()?.items;
        (slices.len() == 2).then_some(slices)
    })
    .await;
    let mut addresses: Vec<_> = found
        .iter()
        .map(|slice| (slice.address_type.as_str(), slice.endpoints[0].addresses[0].as_str()))
        .collect();
    addresses.sort_unstable();
    assert_eq!(addresses, [("IPv4", "192.0.2.1"), ("IPv6", "2001:db8::7")]);
}
