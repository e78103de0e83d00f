//! Checks of applications over HTTP: what they charge, and what is wrong with them.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::checks::{Checked as Running, id, send};

fn customer(key: &str, cost: u64) -> Value {
    json!({"policy": "shop/checkout", "limit": "per-customer", "key": [key], "cost": cost})
}

#[tokio::test(flavor = "multi_thread")]
async fn n_is_n_and_a_denial_is_an_answer() {
    let running = Running::start(|_| {}).await;
    for left in [4, 3, 2] {
        let answer = running.check(customer("alice", 1)).await;
        assert_eq!((&answer["allowed"], &answer["limits"][0]["remaining"]), (&json!(true), &json!(left)));
    }
    // What does not fit charges nothing, and what does fit is charged.
    let denied = running.check(customer("alice", 3)).await;
    let limit = json!({
        "policy": "shop/checkout", "limit": "per-customer", "allowed": false, "quota": 5, "periodSeconds": 3600,
        "remaining": 2, "resetSeconds": 1770, "retryAfterSeconds": 1770
    });
    assert_eq!(denied, json!({"allowed": false, "limits": [limit]}));
    assert_eq!(running.check(customer("alice", 2)).await["allowed"], true);
    assert_eq!(running.check(customer("alice", 0)).await["allowed"], false, "a cost of 0 needs 1");
    assert_eq!(running.check(customer("bob", 0)).await["limits"][0]["remaining"], 5);
    let never = running.check(customer("bob", 6)).await;
    let limit = &never["limits"][0];
    assert_eq!((limit.get("retryAfterSeconds"), &limit["neverFits"]), (None, &json!(true)), "{never}");
    let (status, head, _) = send(
        running.address(),
        "/v1/check?status=429",
        &customer("alice", 1).to_string(),
        "application/json",
    )
    .await;
    assert!(status == 429 && head.to_ascii_lowercase().contains("retry-after: 1770"), "{head}");
    running.clock.advance_micros(1_770_000_000);
    assert_eq!(running.check(customer("alice", 5)).await["allowed"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limits_of_a_check_are_charged_together_and_many_checks_are_answered_each_for_itself() {
    let running = Running::start(|_| {}).await;
    let both = |key: &str, cost: u64| {
        json!({
            "policy": "shop/checkout", "cost": cost,
            "limits": [{"limit": "per-customer", "key": [key]}, {"limit": "everyone"}]
        })
    };
    assert_eq!(running.check(both("alice", 5)).await["allowed"], true);
    let denied = running.check(both("bob", 3)).await;
    assert_eq!(
        (&denied["limits"][0]["allowed"], &denied["limits"][1]["allowed"]),
        (&json!(true), &json!(false))
    );
    assert_eq!(running.left("shop/checkout", "per-customer", &["bob"]).await, 5, "nothing was charged");
    let many = running
        .check(json!({"checks": [both("bob", 1), both("alice", 1), both("carol", 1), both("dan", 1)]}))
        .await;
    let allowed: Vec<_> =
        many["results"].as_array().unwrap().iter().map(|one| one["allowed"].clone()).collect();
    assert_eq!(allowed, [true, false, true, false].map(Value::from));
    // One that is wrong is told, and none is charged.
    let wrong =
        json!({"checks": [customer("erin", 1), {"policy": "shop/checkout", "limit": "per-customer"}]});
    assert_eq!(running.problem("/v1/check", wrong).await, (422, "/checks/1/key".to_owned()));
    assert_eq!(running.left("shop/checkout", "per-customer", &["erin"]).await, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_checked_as_a_proxy_would_see_it_and_shares_the_counters_of_names() {
    let running = Running::start(|_| {}).await;
    let request = |url: &str, headers: Value| json!({"request": {"url": url, "headers": headers, "clientAddress": "192.0.2.7"}});
    let answer =
        running.check(request("https://shop.example/orders/7", json!({"X-Customer": "alice"}))).await;
    let names: Vec<_> = answer["limits"].as_array().unwrap().iter().map(|one| one["limit"].clone()).collect();
    assert_eq!(names, ["per-customer", "everyone", "all"]);
    assert_eq!(running.left("shop/checkout", "per-customer", &["alice"]).await, 4);
    let of_policy = |url: &str, policy: &str| json!({"request": {"url": url}, "policy": policy});
    assert_eq!(
        running.check(of_policy("/nothing", "shop/checkout")).await,
        json!({"allowed": true, "limits": []})
    );
    for (shadow, left) in [(None, 0), (Some(true), 0)] {
        let answer = running.check(of_policy("/watched", "shop/checkout")).await;
        let limit = &answer["limits"][0];
        assert_eq!(
            (&answer["allowed"], limit.get("shadowDenied").and_then(Value::as_bool)),
            (&json!(true), shadow)
        );
        assert_eq!(limit["remaining"], left, "{answer}");
    }
    let spiky = |port: &str| json!({"request": {"method": "POST", "url": format!("http://Shop.example{port}/spiky"), "clientAddress": "192.0.2.7"}, "namespace": "shop"});
    for port in ["", ":80", ":8443"] {
        assert_eq!(running.check(spiky(port)).await["allowed"], true);
    }
    assert_eq!(running.check(spiky("")).await["allowed"], false);
    let named = json!({"policy": "shop/checkout", "limit": "spiky", "key": ["192.0.2.7", "SHOP.example:9"]});
    assert_eq!(running.check(named).await["allowed"], false, "the same client under names");
    // What a dual-stack socket calls the client.
    let mapped =
        json!({"policy": "shop/checkout", "limit": "spiky", "key": ["::ffff:192.0.2.7", "shop.example."]});
    assert_eq!(running.check(mapped).await["allowed"], false, "the same client under names");
    let other =
        json!({"policy": "shop/checkout", "limit": "spiky", "key": ["::ffff:192.0.2.8", "shop.example"]});
    assert_eq!(running.check(other).await["allowed"], true, "another client of IPv4");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_a_request_announces_costs_its_length() {
    let running = Running::start(|_| {}).await;
    let upload = |headers: Value| json!({"policy": "shop/uploads", "request": {"method": "POST", "url": "/upload", "headers": headers}});
    for (headers, left) in [
        (json!({"content-length": "600"}), 400),
        (json!({}), 400),
        (json!({"Transfer-Encoding": "chunked"}), 399),
        (json!({"Content-Length": "399"}), 0),
    ] {
        let answer = running.check(upload(headers.clone())).await;
        assert_eq!(
            (&answer["allowed"], &answer["limits"][0]["remaining"]),
            (&json!(true), &json!(left)),
            "{headers} {answer}"
        );
    }
    assert_eq!(running.check(upload(json!({"content-length": "1"}))).await["allowed"], false);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_told_with_its_field_and_charges_nothing() {
    let running = Running::start(|_| {}).await;
    let long = "x".repeat(65_536);
    let headers: serde_json::Map<_, _> = (0..25_000).map(|n| (format!("x-{n}"), json!("a"))).collect();
    for (body, status, field) in [
        (json!({}), 400, "/policy"),
        (json!({"policy": "shop/nothing", "limit": "a"}), 404, "/policy"),
        (json!({"policy": "checkout", "limit": "a"}), 404, "/policy"),
        (json!({"policy": "shop/checkout"}), 400, "/limit"),
        (json!({"policy": "shop/checkout", "limit": "nothing"}), 404, "/limit"),
        (json!({"policy": "shop/checkout", "limit": "per-customer"}), 422, "/key"),
        (json!({"policy": "shop/checkout", "limit": "per-customer", "key": ["a", "b"]}), 422, "/key"),
        (json!({"policy": "shop/checkout", "limit": "per-customer", "key": [""]}), 422, "/key"),
        (json!({"policy": "shop/checkout", "limit": "spiky", "key": ["no address", "a"]}), 422, "/key"),
        (json!({"policy": "shop/checkout", "limit": "per-customer", "key": [long]}), 400, "/key/0"),
        (customer("a", (1 << 40) + 1), 400, "/cost"),
        (json!({"policy": "shop/checkout", "limit": "per-customer", "key": ["a"], "cost": -1}), 400, "/cost"),
        (
            json!({"policy": "shop/checkout", "limit": "per-customer", "key": ["a"], "cost": 1.5}),
            400,
            "/cost",
        ),
        (json!({"policy": "shop/checkout", "limit": "per-customer", "key": "a"}), 400, "/key"),
        (json!({"policy": "shop/checkout", "limt": "per-customer"}), 400, "/limt"),
        (json!({"policy": "shop/checkout", "limits": []}), 400, "/limits"),
        (
            json!({"policy": "shop/checkout", "limits": [{"limit": "everyone"}], "limit": "everyone"}),
            400,
            "/limits",
        ),
        (
            json!({"policy": "shop/checkout", "limits": [{"limit": "everyone"}], "key": ["a"]}),
            422,
            "/limits/0/key",
        ),
        (
            json!({"policy": "shop/llm", "limit": "streams", "key": ["a"], "cost": 0, "reserve": {}}),
            422,
            "/cost",
        ),
        (json!({"limits": [{"limit": "everyone"}]}), 400, "/limits/0/policy"),
        (
            json!({"policy": "shop/checkout", "limits": [{"limit": "everyone"}, {"limit": "everyone"}]}),
            422,
            "/limits/1",
        ),
        (
            json!({"policy": "shop/checkout", "limits": vec![json!({"limit": "everyone"}); 33]}),
            400,
            "/limits",
        ),
        (json!({"policy": "shop/llm", "limit": "streams", "key": ["a"]}), 422, "/limit"),
        (json!({"policy": "other/single", "peek": true, "reserve": {}}), 400, "/peek"),
        (
            json!({"policy": "other/single", "reserve": {"expiresAfterSeconds": 0}}),
            400,
            "/reserve/expiresAfterSeconds",
        ),
        (
            json!({"policy": "other/single", "reserve": {"expiresAfterSeconds": 86_401}}),
            400,
            "/reserve/expiresAfterSeconds",
        ),
        (json!({"policy": "other/single", "namespace": "other"}), 400, "/namespace"),
        (json!({"policy": "other/single", "request": {"url": "/"}, "namespace": "other"}), 400, "/namespace"),
        (json!({"request": {"url": "/"}, "key": ["a"]}), 400, "/request"),
        (json!({"request": {"url": "no url"}}), 400, "/request/url"),
        (json!({"request": {"url": "orders"}}), 400, "/request/url"),
        (json!({"request": {"url": "shop.example:80"}}), 400, "/request/url"),
        (json!({"request": {"url": "ftp://shop.example/"}}), 400, "/request/url"),
        (json!({"request": {"url": "http://a@shop.example/"}}), 400, "/request/url"),
        (json!({"request": {"url": format!("/{}", "a;b/".repeat(3_000))}}), 400, "/request/url"),
        (json!({"request": {"url": "/", "headers": {"host": "a b"}}}), 400, "/request/headers/host"),
        (json!({"request": {"url": "/", "headers": {"Host": ["a", "b"]}}}), 400, "/request/headers/host"),
        (
            json!({"request": {"url": "/", "headers": {"content-length": "x"}}}),
            400,
            "/request/headers/content-length",
        ),
        (json!({"request": {"url": "/", "headers": {"X-Key": "a", "x-key": "b"}}}), 400, "/request/headers"),
        (json!({"request": {"url": "/", "method": "G T"}}), 400, "/request/method"),
        (json!({"request": {"url": "/", "headers": {"a b": "c"}}}), 400, "/request/headers/a b"),
        (json!({"request": {"url": "/", "headers": {"a/b": "c"}}}), 400, "/request/headers/a~1b"),
        (json!({"request": {"url": "/", "headers": {"a": ["b", "c\nd"]}}}), 400, "/request/headers/a"),
        (json!({"request": {"url": "/", "clientAddress": "here"}}), 400, "/request/clientAddress"),
        (json!({"request": {}}), 400, "/request"),
        (json!({"checks": []}), 400, "/checks"),
        (json!({"checks": vec![json!({"policy": "other/single"}); 101]}), 400, "/checks"),
        (json!({"checks": [{"checks": []}]}), 400, "/checks/0/checks"),
        (json!({"checks": [{"policy": "other/single"}], "peek": true}), 400, "/checks"),
        (
            json!({"checks": [{"policy": "other/single"}, {"limits": [{"policy": "shop/x"}]}]}),
            404,
            "/checks/1/limits/0/policy",
        ),
        // An array is no object, whatever it has.
        (json!([]), 400, "-"),
        (json!(["other/single", "all", ["a"], 1, null, null, null, null, null, null]), 400, "-"),
        (json!({"policy": "other/single", "reserve": [600]}), 400, "/reserve"),
        (json!({"request": [null, "/"]}), 400, "/request"),
        (json!({"checks": [["other/single"]]}), 400, "/checks/0"),
        (json!({"request": {"url": "/", "headers": headers}}), 400, "/request/headers"),
        (json!("check"), 400, "-"),
    ] {
        assert_eq!(running.problem("/v1/check", body.clone()).await, (status, field.to_owned()), "{body}");
    }
    for (body, status, field) in [
        (json!({}), 400, "-"),
        (json!(["AAAA", 0]), 400, "-"),
        (json!({"id": 7}), 400, "/id"),
        (json!({"id": ""}), 404, "/id"),
        (json!({"id": "AAAA"}), 404, "/id"),
        (json!({"id": "x".repeat(1 << 16)}), 404, "/id"),
        (json!({"id": "AAAA", "cost": 1u64 << 41}), 400, "/cost"),
    ] {
        assert_eq!(running.problem("/v1/settle", body.clone()).await, (status, field.to_owned()), "{body}");
    }
    for (body, content_type, status) in [
        ("{\"policy\": \"other/single\"} {}", "application/json", 400),
        ("{\"policy\": \"other/single", "application/json", 400),
        ("{\"policy\": \"other/single\"}", "text/plain", 415),
        ("policy=other/single", "application/x-www-form-urlencoded", 415),
        ("\u{feff}{}", "application/json", 400),
        (r#"{"request": {"url": "/", "headers": {"a": "b", "a": "c"}}}"#, "application/json", 400),
        (&format!("{{\"policy\": \"{}\"}}", "x".repeat(1 << 20)), "application/json", 413),
        (&"[".repeat(100_000), "application/json", 400),
        (&"{\"checks\":[".repeat(1000), "application/json", 400),
    ] {
        let (got, _, answer) = send(running.address(), "/v1/check", body, content_type).await;
        assert_eq!(got, status, "{content_type} {body:.80}: {answer}");
    }
    let good = customer("a", 1).to_string();
    for target in [
        "/v1/check?status=200",
        "/v1/check?status",
        "/v1/check?staus=429",
        "/v1/check?Status=429",
        "/v1/check?status=429&peek=true",
        "/v1/check?status=429&status=429",
        "/v1/settle?status=429",
    ] {
        let (status, _, answer) = send(running.address(), target, &good, "application/json").await;
        assert_eq!(status, 400, "{target}: {answer}");
    }
    assert_eq!(running.left("other/single", "all", &[]).await, 2);
    assert_eq!(running.left("shop/checkout", "everyone", &[]).await, 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn problems_name_no_types_of_the_program() {
    let running = Running::start(|_| {}).await;
    let cost =
        |cost: Value| json!({"policy": "shop/checkout", "limit": "per-customer", "key": ["a"], "cost": cost});
    for body in [
        cost(json!("5")),
        cost(json!(-1)),
        cost(json!(1.5)),
        cost(json!([])),
        cost(json!({})),
        json!({"policy": 5}),
        json!({"peek": "yes"}),
        json!({"key": [1]}),
        json!({"request": {"url": "/", "clientAddress": "here"}}),
        json!({"request": {"url": "/", "headers": {"a": 5}}}),
    ] {
        let (status, answer) = running.post("/v1/check", &body).await;
        let detail = answer["detail"].as_str().unwrap();
        assert_eq!(status, 400, "{body}");
        for word in ["u64", "i64", "f64", "usize", "sequence", "map", "struct", "floating"] {
            assert!(!detail.contains(word), "{body}: {detail}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_has_its_limits_in_the_order_of_the_policy() {
    let running = Running::start(|_| {}).await;
    let answer = running.check(json!({"policy": "ordered/three", "request": {"url": "/"}})).await;
    let names: Vec<_> = answer["limits"].as_array().unwrap().iter().map(|one| one["limit"].clone()).collect();
    assert_eq!(names, ["watched", "enforced", "never"]);
    // Each has the state of its own.
    let quotas: Vec<_> =
        answer["limits"].as_array().unwrap().iter().map(|one| one["quota"].clone()).collect();
    assert_eq!(quotas, [3, 2, 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peek_says_of_a_cost_what_a_check_would() {
    let running = Running::start(|_| {}).await;
    let peek = |limit: &str, key: &[&str], cost: u64| json!({"policy": "shop/checkout", "limit": limit, "key": key, "cost": cost, "peek": true});
    let watched = running.check(peek("watched", &[], 2)).await;
    assert_eq!(watched["allowed"], true, "a limit in Shadow denies nothing: {watched}");
    assert_eq!((&watched["peek"], running.check(customer("a", 1)).await.get("peek")), (&json!(true), None));
    // Its burst is 3, of 10 a minute.
    let spiky = ["192.0.2.1", "shop.example"];
    let more = running.check(peek("spiky", &spiky, 4)).await;
    assert_eq!((&more["allowed"], &more["limits"][0]["neverFits"]), (&json!(false), &json!(true)), "{more}");
    let mut used = peek("spiky", &spiky, 2);
    used["peek"] = json!(false);
    running.check(used).await;
    let later = running.check(peek("spiky", &spiky, 3)).await;
    assert_eq!((&later["allowed"], later["limits"][0].get("neverFits")), (&json!(false), None), "{later}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_document_is_of_the_handlers() {
    let running = Running::start(|_| {}).await;
    let mut stream = TcpStream::connect(running.address()).await.unwrap();
    stream.write_all(b"GET /v1/openapi.json HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let document: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(document, sluice_service::checks::openapi::document());
    let paths = document["paths"].as_object().unwrap();
    assert_eq!(paths.keys().collect::<Vec<_>>(), ["/v1/check", "/v1/openapi.json", "/v1/settle"]);
    // Each field of an answer is described, and each that the document demands is there.
    let describes = |schema: &str, answer: &Value| {
        let schema = &document["components"]["schemas"][schema];
        let (fields, known) = (answer.as_object().unwrap(), schema["properties"].as_object().unwrap());
        for field in fields.keys() {
            assert!(known.contains_key(field), "{field} of {answer} is not in {schema}");
        }
        for field in schema["required"].as_array().unwrap() {
            assert!(fields.contains_key(field.as_str().unwrap()), "{answer} lacks {field}");
        }
    };
    let reserved = running.check(json!({"policy": "other/single", "reserve": {}})).await;
    describes("CheckResult", &reserved);
    describes("LimitResult", &reserved["limits"][0]);
    describes("Reservation", &reserved["reservation"]);
    let (_, settled) = running.post("/v1/settle", &json!({"id": id(&reserved), "cost": 1})).await;
    describes("SettlementResult", &settled);
    describes("SettledLimit", &settled["limits"][0]);
    describes(
        "CheckResults",
        &running.check(json!({"checks": [{"policy": "other/single", "peek": true}]})).await,
    );
    describes("Problem", &running.post("/v1/check", &json!({"policy": 7})).await.1);
    let check = &document["components"]["schemas"]["Check"]["properties"];
    for field in
        ["policy", "limit", "key", "cost", "limits", "request", "namespace", "peek", "reserve", "checks"]
    {
        assert!(check[field]["description"].is_string(), "{field}");
    }
}
