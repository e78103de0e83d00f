//! Suggestions of a replay: numbers, the clients that need most, paths, and a policy in Shadow.

use serde_json::Value;

use super::{BEGIN, example, folder, json, line, policy, simulate};

/// Returns a log in which each of 1,000 clients sends for ten minutes, some more than others, and two far more than all others.
fn uneven() -> String {
    let mut state = 3u64;
    let mut requests: Vec<(u64, u64)> = Vec::new();
    for client in 0..1_000u64 {
        for _ in 0..(3 + client / 100) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            requests.push(((state >> 33) % 600, client));
        }
    }
    requests.extend((0..500).flat_map(|n| [(n, 1_000), (n, 1_001)]));
    requests.sort_unstable();
    let one = |(second, client): &(u64, u64)| {
        line(*second, &format!("10.0.{}.{}", client / 250, client % 250), "/", 200)
    };
    requests.iter().map(one).collect()
}

#[test]
fn the_suggested_number_spares_that_part_of_the_clients() {
    let folder = folder(&[("p.yaml", &policy(3)), ("access.log", &uneven())]);
    let limit = |report: &Value| report["files"][0]["limits"][0].clone();
    let found = limit(&json(folder.path(), &["--policy", "p.yaml", "access.log"]));
    let suggestion = &found["suggestions"][0];
    assert_eq!((&suggestion["requests"], &suggestion["per"]), (&3.into(), &"1m".into()));
    let number = |n: usize| suggestion["numbers"][n]["requests"].as_u64().unwrap();
    let limited = |requests: u64| {
        std::fs::write(folder.path().join("p.yaml"), policy(requests)).unwrap();
        limit(&json(folder.path(), &["--policy", "p.yaml", "access.log"]))["limitedClients"].as_u64().unwrap()
    };
    assert!(found["limitedClients"].as_u64().unwrap() > 10, "{suggestion}");
    // Of 1,002 clients. They are exact for fixed windows: one less denies more of them.
    for (n, most) in [(0, 10), (1, 1), (2, 0)] {
        assert!(limited(number(n)) <= most && limited(number(n) - 1) > most, "{suggestion}");
    }
}

#[test]
fn a_policy_in_shadow_has_numbers_that_a_replay_confirms() {
    for (algorithm, percent, most) in [
        ("fixedWindow", "99", 10),
        ("fixedWindow", "99.9", 1),
        ("slidingWindowCounter", "99", 10),
        ("slidingWindowCounter", "100", 0),
    ] {
        let text = policy(3).replace("fixedWindow", algorithm).replace("  limits:", "  limits: # ours");
        let folder = folder(&[("p.yaml", &text), ("access.log", &uneven())]);
        let arguments = ["--policy", "p.yaml", "--suggest", percent, "access.log"];
        let (code, suggested, errors) = simulate(folder.path(), &arguments);
        assert_eq!((code, &*errors), (Some(0), ""));
        assert!(
            suggested.starts_with("# ")
                && suggested.contains("from 2026-11-23T10:00:00Z to 2026-11-23T10:09:59Z")
                && suggested.contains("\n  mode: Shadow\n")
                && suggested.contains("  limits: # ours\n")
                && suggested.contains(
                    "# - shop/checkout logins: not changed, because no request of the log meets it."
                ),
            "{suggested}"
        );
        std::fs::write(folder.path().join("new.yaml"), &suggested).unwrap();
        let check = assert_cmd::Command::cargo_bin("sluice")
            .unwrap()
            .current_dir(folder.path())
            .args(["check", "new.yaml"])
            .output()
            .unwrap();
        let check = String::from_utf8(check.stdout).unwrap();
        assert!(
            check.contains("new.yaml: shop/checkout is valid: per-address ") && check.contains("; Shadow"),
            "{check}"
        );
        // Another replay finds what the comment says.
        let report = json(folder.path(), &["--policy", "new.yaml", "access.log"]);
        let limit = &report["files"][0]["limits"][0];
        let limited = limit["limitedClients"].as_u64().unwrap();
        assert!(limited <= most, "{algorithm} {percent}: {limit}");
        assert_eq!(report["files"][0]["admitted"], report["requests"], "Shadow denies nothing");
        assert!(
            suggested.contains(&format!("#   {limited} of 1,002 clients would be denied something")),
            "{suggested}"
        );
        for client in limit["mostDenied"].as_array().unwrap() {
            let line = format!(
                "#     {}: {} of {} requests\n",
                client["client"].as_str().unwrap(),
                client["denied"],
                client["requests"]
            );
            assert!(suggested.contains(&line), "{line}: {suggested}");
        }
        let report = json(folder.path(), &[&arguments[..], &["--html", "page.html"]].concat());
        let limit = &report["suggested"]["limits"][0];
        assert_eq!(
            (&report["suggested"]["isConfirmed"], &limit["beyond"], &limit["rates"][0]["before"]),
            (&true.into(), &limited.into(), &3.into())
        );
        assert_eq!(report["suggested"]["policy"], suggested);
        let page = std::fs::read_to_string(folder.path().join("page.html")).unwrap();
        assert!(page.contains("<h2>Suggested policy</h2>") && page.contains("mode: Shadow"), "{page}");
    }
}

#[test]
fn both_rates_of_a_limit_spare_the_clients_together() {
    // One in ten clients has a burst, and another one in ten is steady: each exceeds only one of the numbers that spare 90 % alone.
    let mut requests = Vec::new();
    for client in 1..=100 {
        match client % 10 {
            0 => requests.extend((0..30).map(|n| (n, client))),
            1 => requests.extend((0..120).map(|n| (n * 20, client))),
            _ => requests.extend((0..3).map(|n| (n * 100, client))),
        }
    }
    requests.sort_unstable();
    let log: String = requests
        .iter()
        .map(|(second, client)| line(*second, &format!("192.0.2.{client}"), "/", 200))
        .collect();
    let folder = folder(&[("p.yaml", &example("dual-rule")), ("access.log", &log)]);
    let report = json(folder.path(), &["--policy", "p.yaml", "--suggest", "90", "access.log"]);
    let (suggested, limit) = (&report["suggested"], &report["suggested"]["limits"][0]);
    let rates = limit["rates"].as_array().unwrap();
    assert_eq!((&suggested["isConfirmed"], &limit["clients"], rates.len()), (&true.into(), &100.into(), 2));
    assert!(limit["beyond"].as_u64().unwrap() <= 10, "{suggested}");
}

#[test]
fn a_policy_is_suggested_only_where_logs_can_be_read_again() {
    let log = line(0, "192.0.2.1", "/", 200);
    let bucket = policy(3).replace("fixedWindow", "tokenBucket");
    let folder = folder(&[("p.yaml", &policy(3)), ("bucket.yaml", &bucket), ("a.log", &log)]);
    for (arguments, expected) in [
        (
            &["--policy", "p.yaml", "-"][..],
            "--suggest reads the logs more than once, and - is no file: write it to one first",
        ),
        (
            &["--policy", "p.yaml", "/dev/null"],
            "--suggest reads the logs more than once, and /dev/null is no file",
        ),
        (&["--policy", "p.yaml", "missing.log"], "missing.log: No such file"),
        (
            &["--policy", "p.yaml", "--policy", "bucket.yaml", "a.log"],
            "--suggest changes one file: give --policy once",
        ),
        (
            &["--policy", "bucket.yaml", "a.log"],
            "bucket.yaml: no number can be suggested: no client meets a limit that counts requests in windows",
        ),
    ] {
        let (code, text, errors) = simulate(folder.path(), &[arguments, &["--suggest", "99"]].concat());
        assert!(code == Some(1) && errors.contains(expected) && text.is_empty(), "{arguments:?}: {errors}");
    }
    for wrong in ["-1", "101", "NaN", "most"] {
        let (code, _, errors) =
            simulate(folder.path(), &["--policy", "p.yaml", &format!("--suggest={wrong}"), "a.log"]);
        assert!(code == Some(2) && errors.contains("0 to 100"), "{wrong}: {errors}");
    }
}

#[test]
fn a_client_writes_nothing_into_the_policy_but_its_name_in_a_comment() {
    let name = "x\u{2028}  mode: Enforce\u{85}kind: Other # \u{feff}";
    let lines = (0..9).map(|second| {
        format!(
            "{}\n",
            serde_json::json!({"ts": BEGIN + second, "ip": "192.0.2.1", "path": "/", "customer": name})
        )
    });
    let quiet = format!("{{\"ts\":{BEGIN},\"ip\":\"192.0.2.1\",\"path\":\"/\",\"customer\":\"b\"}}\n");
    let by_customer = policy(3).replace("clientIP: {}", "header: {name: x-customer}");
    let folder = folder(&[("p.yaml", &by_customer), ("a.log", &(quiet + &lines.collect::<String>()))]);
    let arguments =
        ["--policy", "p.yaml", "--field", "header:x-customer=customer", "--suggest", "50", "a.log"];
    let (code, suggested, errors) = simulate(folder.path(), &arguments);
    assert_eq!(code, Some(0), "{errors}");
    let comments = suggested.lines().filter(|line| line.starts_with('#')).count();
    assert!(
        suggested.contains("1 of 2 clients would be denied something:\n#     ") && comments < 12,
        "{suggested}"
    );
    assert!(!suggested.contains(['\u{2028}', '\u{85}', '\u{feff}']), "{suggested}");
}

#[test]
fn clients_that_need_most_are_named_where_nothing_is_denied() {
    let mut log = String::new();
    for second in 0..60 {
        log += &line(second, "192.0.2.1", "/", 200);
        if second % 2 == 0 {
            log += &line(second, "192.0.2.2", "/", 200);
        }
        if second % 20 == 0 {
            log += &line(second, &format!("198.51.100.{second}"), "/", 200);
        }
    }
    let folder = folder(&[("p.yaml", &policy(1_000)), ("access.log", &log)]);
    let arguments = ["--policy", "p.yaml", "--clients", "2", "access.log"];
    let report = json(folder.path(), &arguments);
    let limit = &report["files"][0]["limits"][0];
    assert_eq!((&limit["denied"], limit["mostDenied"].as_array().unwrap().len()), (&0.into(), 0));
    let found = limit["mostNeeding"].as_array().unwrap().iter();
    let found = found
        .map(|client| (client["client"].as_str().unwrap(), client["needs"][0]["requests"].as_u64().unwrap()));
    assert_eq!(found.collect::<Vec<_>>(), [("clientIP=192.0.2.1", 60), ("clientIP=192.0.2.2", 30)]);
    let (_, text, _) = simulate(folder.path(), &[&arguments[..], &["--html", "page.html"]].concat());
    assert!(text.contains("per-address   clientIP=192.0.2.1   60         0        60 per 1m\n"), "{text}");
    let page = std::fs::read_to_string(folder.path().join("page.html")).unwrap();
    assert!(page.contains("60 per 1m"), "{page}");
}

#[test]
fn requests_are_counted_by_method_and_path() {
    let mut log = String::new();
    for second in 0..40 {
        log += &line(second, "192.0.2.1", &format!("/orders/{}?page={second}", second * 7), 200);
        if second % 4 == 0 {
            log += &line(second, "198.51.100.2", "/login", 401).replace("GET", "POST");
        }
    }
    // Five logins fail, and the others are denied; one in Shadow denies 30 of 40.
    let shadow = policy(10).replace("  - name: per-address", "  - name: per-address\n    mode: Shadow");
    let folder = folder(&[("p.yaml", &shadow), ("access.log", &log)]);
    let arguments = ["--policy", "p.yaml", "--html", "page.html", "access.log"];
    let report = json(folder.path(), &arguments);
    let routes = report["files"][0]["routes"].as_array().unwrap().iter().map(|route| {
        let text = |name: &str| route[name].as_str().unwrap().to_owned();
        (text("method"), text("path"), route["requests"].as_u64().unwrap(), route["denied"].as_u64().unwrap())
    });
    let expected = [("GET", "/orders/{id}", 40, 30), ("POST", "/login", 10, 5)];
    assert_eq!(
        routes.collect::<Vec<_>>(),
        expected.map(|(method, path, all, denied)| (method.to_owned(), path.to_owned(), all, denied))
    );
    let (_, text, _) = simulate(folder.path(), &arguments);
    assert!(text.contains("\nMETHOD   PATH           REQUESTS   DENIED   OF ALL\nGET      /orders/{id}   40         30       75.0 %\n"), "{text}");
    let page = std::fs::read_to_string(folder.path().join("page.html")).unwrap();
    assert!(page.contains(">/orders/{id}</td>"), "{page}");
}

#[test]
fn a_part_that_is_all_clients_is_said_to_be_and_who_is_far_out_is_named() {
    // 300 clients send up to 4 a minute, and one floods.
    let mut log: Vec<_> = (0..300u64)
        .flat_map(|client| {
            (0..=client % 4).map(move |n| (n * 10, format!("10.0.{}.{}", client / 200, client % 200)))
        })
        .chain((0..60).flat_map(|n| [(n, "203.0.113.9".to_owned()), (n, "203.0.113.9".to_owned())]))
        .collect();
    log.sort();
    let log: String = log.iter().map(|(second, address)| line(*second, address, "/", 200)).collect();
    let folder = folder(&[("p.yaml", &policy(3)), ("access.log", &log)]);
    let suggest = |percent: &str| {
        let (code, suggested, errors) =
            simulate(folder.path(), &["--policy", "p.yaml", "--suggest", percent, "access.log"]);
        assert_eq!(code, Some(0), "{errors}");
        suggested
    };
    let all = suggest("99.9");
    for text in [
        "#   99.9 % of 301 clients is all of them.\n",
        "clientIP=203.0.113.9. Without them it is 4 per 1m.\n",
        // It is not left out.
        "{requests: 120, per: 1m}",
    ] {
        assert!(all.contains(text), "{text}: {all}");
    }
    let some = suggest("99");
    assert!(!some.contains("is all of them") && some.contains("{requests: 4, per: 1m}"), "{some}");
    let report = json(folder.path(), &["--policy", "p.yaml", "--suggest", "99.9", "access.log"]);
    let far_out = &report["suggested"]["limits"][0]["farOut"];
    assert_eq!(far_out.to_string(), r#"[{"clients":["clientIP=203.0.113.9"],"per":"1m","without":4}]"#);
}
