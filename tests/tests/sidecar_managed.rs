//! A managed store with a real operator: users of namespaces, repair, rotation, and an empty restart under load.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{Api, DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use redis::aio::MultiplexedConnection;
use serde_json::{Value, json};
use sluice_crds::{RateLimitPolicy, RateLimitStore};
use sluice_tests::client::get;
use sluice_tests::components::{ControlClient, Operator, Redis, Sidecar};
use sluice_tests::kubernetes::{ControlPlane, TestNamespace, wait_for_store};
use sluice_tests::process::free_port;
use sluice_tests::wait::until;

const SYSTEM: &str = "managed-system";
/// An administrator with the rights that it needs. The default user is the test's.
const ACL: &str = "user default on nopass ~* &* +@all\nuser admin on >secret resetkeys resetchannels -@all +acl|setuser \
                   +acl|deluser +acl|list +function|load +function|list +info\n";

async fn start_operator(plane: &ControlPlane, redis: &Redis, control: &str, epoch: &str) -> Operator {
    let epoch = format!("--store-password-epoch={epoch}");
    let more = ["--store-secret=administrator", "--store-access=managed", &epoch];
    Operator::start_with(plane, SYSTEM, &redis.url, control, &more).await
}

fn policy(requests: i64) -> Value {
    json!({
        "selector": {"matchLabels": {"app": "a"}},
        "limits": [{"name": "l", "key": {"parts": [{"header": {"name": "x-client"}}]}, "rates": [{"requests": requests, "per": "24h"}]}],
    })
}

/// Starts a pod with a policy in a namespace of its own.
async fn tenant(plane: &ControlPlane, operator: &Operator, name: &str) -> (TestNamespace, Sidecar) {
    let namespace = TestNamespace::create(plane.client().await, name).await;
    namespace.apply("p", policy(5)).await.expect("a policy");
    let pod = namespace.pod("one", true, json!({"app": "a"})).await;
    let sidecar = Sidecar::start(&namespace, &pod, operator).await;
    (namespace, sidecar)
}

async fn admitted(sidecar: &Sidecar, client: &str, requests: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..requests {
        let response = get(&sidecar.address, "/", &[("x-client", client)]).await;
        assert!(response.status == 200 || response.status == 429, "{}", response.status);
        admitted += usize::from(response.status == 200);
    }
    admitted
}

async fn run(connection: &mut MultiplexedConnection, words: &[&str]) -> redis::Value {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command.query_async(connection).await.expect("Redis answers")
}

async fn users(connection: &mut MultiplexedConnection) -> Vec<String> {
    let list = run(connection, &["ACL", "LIST"]).await;
    redis::from_redis_value::<Vec<String>>(list).expect("a list of users")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_keeps_a_managed_store_as_it_should_be() {
    let plane = ControlPlane::shared().await;
    let directory = tempfile::tempdir().expect("a directory");
    let acl = directory.path().join("users.acl");
    std::fs::write(&acl, ACL).expect("the directory is writable");
    let mut redis = Redis::start_with(&["--aclfile", &acl.display().to_string()]).await;
    let client = plane.client().await;
    let object = serde_json::from_value(json!({"metadata": {"name": SYSTEM}})).expect("a namespace");
    let _ = Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &object).await;
    let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
    let secret = Secret {
        metadata: ObjectMeta { name: Some("administrator".into()), ..ObjectMeta::default() },
        data: Some([("username".into(), bytes("admin")), ("password".into(), bytes("secret"))].into()),
        ..Secret::default()
    };
    Api::<Secret>::namespaced(client.clone(), SYSTEM)
        .create(&PostParams::default(), &secret)
        .await
        .expect("a Secret");
    let control = format!("https://127.0.0.1:{}", free_port());
    let operator = start_operator(plane, &redis, &control, "0").await;
    let store: Api<RateLimitStore> = Api::namespaced(client, SYSTEM);
    wait_for_store(&store, "default", "Ready", "True Ready").await;

    // Each namespace has a user, and counts under its own keys.
    let (shop, in_shop) = tenant(plane, &operator, "shop").await;
    let (mall, in_mall) = tenant(plane, &operator, "mall").await;
    for (namespace, sidecar) in [(&shop, &in_shop), (&mall, &in_mall)] {
        namespace.wait_for("p", "StoreHealthy", "True Healthy").await;
        assert_eq!(admitted(sidecar, "alice", 7).await, 5, "{}", sidecar.process.output());
    }
    let mut connection = redis.connection().await.expect("Redis answers");
    let mut keys = redis.keys().await;
    keys.sort();
    let owner = |key: &String| key.split('/').next().unwrap_or_default().to_owned();
    let mut expected = [format!("sluice:{}", mall.name), format!("sluice:{}", shop.name)];
    expected.sort();
    assert_eq!(keys.iter().map(owner).collect::<Vec<_>>(), expected);
    let rules = users(&mut connection).await;
    let user_of = |rules: &[String], namespace: &TestNamespace| {
        let name = format!("user sluice:@{} ", namespace.name);
        rules.iter().find(|rule| rule.starts_with(&name)).cloned()
    };
    let before = user_of(&rules, &shop).expect("the namespace has a user");
    // A status whose numbers alone have changed is written later.
    until("both namespaces are counted", async || {
        let message = wait_for_store(&store, "default", "Provisioned", "True Provisioned").await;
        (message == "1 server has the library and the users of 2 namespaces.").then_some(())
    })
    .await;

    // What is deleted comes back, and counts go on.
    run(&mut connection, &["FUNCTION", "FLUSH"]).await;
    until("the sidecar counts in the store again", async || {
        (admitted(&in_shop, "bob", 1).await, redis.keys().await.len() == 3).1.then_some(())
    })
    .await;
    run(&mut connection, &["ACL", "DELUSER", &format!("sluice:@{}", shop.name)]).await;
    until("the user is back", async || user_of(&users(&mut connection.clone()).await, &shop)).await;
    shop.wait_for("p", "StoreHealthy", "True Healthy").await;
    assert_eq!(admitted(&in_mall, "alice", 2).await, 0, "the other namespace noticed nothing");

    // New passwords, while the old ones are accepted for some time.
    drop(operator);
    let operator = start_operator(plane, &redis, &control, "1").await;
    let after = until("the user has both passwords", async || {
        let rule = user_of(&users(&mut connection.clone()).await, &shop)?;
        (rule.matches(" #").count() == 2).then_some(rule)
    })
    .await;
    let hash = before.split(' ').find(|word| word.starts_with('#')).expect("a hash");
    assert!(after.contains(hash), "{before}\n{after}");
    shop.wait_for("p", "Programmed", "True Programmed").await;
    shop.wait_for("p", "StoreHealthy", "True Healthy").await;
    assert_eq!(admitted(&in_shop, "alice", 2).await, 0, "the counts stay");

    // The leader after the next one knows from the status when the passwords were changed: here, an hour ago.
    let recorded = async || store.get_status("default").await.expect("a store").status?.passwords;
    let passwords = until("the status has the epoch", recorded).await;
    assert_eq!(passwords.epoch, 1);
    drop(operator);
    let long_ago = json!({"status": {"passwords": {"epoch": 1, "since": "2026-01-01T00:00:00Z"}}});
    let patch = Patch::Merge(&long_ago);
    store.patch_status("default", &PatchParams::default(), &patch).await.expect("a changed status");
    let operator = start_operator(plane, &redis, &control, "1").await;
    until("the old password is not accepted any more", async || {
        let rule = user_of(&users(&mut connection.clone()).await, &shop)?;
        (rule.matches(" #").count() == 1 && !rule.contains(hash)).then_some(())
    })
    .await;
    let passwords = until("the status has the epoch", recorded).await;
    assert_eq!(passwords.since.0.to_string(), "2026-01-01T00:00:00Z");
    shop.wait_for("p", "StoreHealthy", "True Healthy").await;

    // A restart without data: within the local quota until the users and the library are back, then exact.
    redis.restart().await;
    until("the sidecars count in the store again", async || {
        admitted(&in_shop, "carol", 1).await;
        let keys = redis.keys().await;
        keys.iter().any(|key| key.contains(&shop.name)).then_some(())
    })
    .await;
    wait_for_store(&store, "default", "Ready", "True Ready").await;
    assert_eq!(admitted(&in_shop, "dave", 8).await, 5);

    exhaust_memory(&redis, &shop, &operator, (&mall, &in_mall), &store).await;

    // A namespace without policies loses its user.
    mall.api::<RateLimitPolicy>().delete("p", &DeleteParams::default()).await.expect("the policy is deleted");
    let mut connection = redis.connection().await.expect("Redis answers");
    until("the user is gone", async || user_of(&users(&mut connection).await, &mall).is_none().then_some(()))
        .await;

    // The status says what the administrator lacks.
    run(&mut connection, &["ACL", "SETUSER", "admin", "-acl|setuser"]).await;
    run(&mut connection, &["ACL", "DELUSER", &format!("sluice:@{}", shop.name)]).await;
    let message = wait_for_store(&store, "default", "Provisioned", "False PartlyProvisioned").await;
    assert!(message.contains("at ACL SETUSER: its user lacks a right"), "{message}");
    run(&mut connection, &["ACL", "SETUSER", "admin", "+acl|setuser"]).await;
    wait_for_store(&store, "default", "Ready", "True Ready").await;
    for log in [operator.process.output(), in_shop.process.output()] {
        assert!(!log.contains("secret\""), "{log}");
    }
}

/// Plays a tenant who takes the credentials from the session of its own pod and fills Redis. The other tenant is limited
/// by its share meanwhile, and exactly afterwards.
async fn exhaust_memory(
    redis: &Redis,
    shop: &TestNamespace,
    operator: &Operator,
    (mall, in_mall): (&TestNamespace, &Sidecar),
    store: &Api<RateLimitStore>,
) {
    let mut admin = redis.connection().await.expect("Redis answers");
    run(&mut admin, &["CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", "100mb"]).await;
    let thief = shop.pod("thief", true, json!({"app": "a"})).await;
    let control = ControlClient::new(&operator.control_url, operator.ca_file());
    let mut session =
        control.connect(&shop.token(&thief, "sluice.dev").await, None).await.expect("a session");
    let credentials = loop {
        let event = session.event().await.expect("the session goes on");
        let Some(data) = event.strip_prefix("event: credentials\ndata: ") else { continue };
        let message: Value = serde_json::from_str(data).expect("a message");
        let redis = message["stores"]["default"]["access"]["redis"].clone();
        if redis["username"].is_string() {
            break redis;
        }
    };
    let text = |field: &str| credentials[field].as_str().expect("a text").to_owned();
    assert_eq!(text("username"), format!("sluice:@{}", shop.name));
    let address = redis.url.trim_start_matches("redis://");
    let url = format!(
        "redis://{}:{}@{address}",
        text("username").replace(':', "%3a").replace('@', "%40"),
        text("password")
    );
    let client = redis::Client::open(url).expect("a URL");
    let mut tenant = client.get_multiplexed_async_connection().await.expect("the tenant connects");
    let mut own = Vec::new();
    loop {
        let key = format!("sluice:{}/x/{}", shop.name, own.len());
        let mut fill = redis::cmd("SETRANGE");
        fill.arg(&key).arg(20 << 20).arg("x");
        own.push(key);
        if fill.query_async::<i64>(&mut tenant).await.is_err() {
            break;
        }
        assert!(own.len() < 20, "Redis has a maximum");
    }
    let reason = async || mall.condition("p", "StoreHealthy").await.map(|(reason, _)| reason);
    until("the other tenant's store is reported as degraded", async || {
        admitted(in_mall, "eve", 1).await;
        (reason().await? == "False Degraded").then_some(())
    })
    .await;
    wait_for_store(store, "default", "Ready", "False MemoryFull").await;
    // It is limited by its share, which for one pod is the whole limit, and not unlimited.
    assert!(admitted(in_mall, "frank", 9).await <= 5);
    for key in own {
        run(&mut admin, &["DEL", &key]).await;
    }
    mall.wait_for("p", "StoreHealthy", "True Healthy").await;
    wait_for_store(store, "default", "Ready", "True Ready").await;
    assert_eq!(admitted(in_mall, "grace", 9).await, 5, "exact again");
    run(&mut admin, &["CONFIG", "SET", "maxmemory", "0"]).await;
    shop.delete_pod("thief").await;
}
