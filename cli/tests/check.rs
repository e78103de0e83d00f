//! `sluice check` as a process: its output and its exit code.

use std::path::Path;

use assert_cmd::Command;
use serde_json::{Value, json};

fn sluice_check(text: &[u8]) -> (bool, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.yaml");
    std::fs::write(&file, text).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_sluice")).arg("check").arg(&file).output().unwrap();
    let text = |bytes: Vec<u8>| {
        String::from_utf8(bytes).unwrap().replace(&format!("{}", file.display()), "policy.yaml")
    };
    (output.status.success(), text(output.stdout), text(output.stderr))
}

const GOOD: &str = "apiVersion: sluice.dev/v1alpha1
kind: RateLimitPolicy
metadata:
  name: checkout
  namespace: shop
spec:
  clientAddress: {trustedProxies: []}
  limits:
  - name: per-customer
    key: {parts: [{clientIP: {}}]}
    rates:
    - {requests: 10, per: 1m}
    - {requests: 500, per: 1h}
";

#[test]
fn a_valid_policy_is_reported_with_its_limits() {
    assert_eq!(
        sluice_check(GOOD.as_bytes()),
        (
            true,
            "policy.yaml: shop/checkout is valid: per-customer 10/1m 500/1h by client address\n".into(),
            String::new()
        )
    );
}

#[test]
fn a_limit_by_address_needs_trusted_proxies_of_the_policy_or_the_installation() {
    let text = GOOD.replace("  clientAddress: {trustedProxies: []}\n", "");
    let (ok, out, err) = sluice_check(text.as_bytes());
    assert!(ok && err.is_empty(), "{err}");
    assert!(
        out.contains("policy.yaml:9: warning: spec.limits[0].key.parts[0].clientIP: no proxy is trusted"),
        "{out}"
    );
    let check = |flag: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
        command.args(["check", "--trusted-proxies", flag, "-"]).write_stdin(text.clone()).output().unwrap()
    };
    let output = check("10.20.30.0/28,fd00::/64");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "<stdin>: shop/checkout is valid: per-customer 10/1m 500/1h by client address\n"
    );
    let output = check("10.20.30.0");
    assert!(
        !output.status.success() && String::from_utf8_lossy(&output.stderr).contains("10.20.30.0"),
        "{output:?}"
    );
}

#[test]
fn an_algorithm_other_than_the_default_is_part_of_the_output() {
    let text = GOOD.replace("per: 1h}", "per: 1h, subWindows: 60}")
        + "    enforcement: {soft: {overPercent: 20, for: 30s}}\n  - {name: uploads, rates: [{requests: 2, per: 1s}], algorithm: {leakyBucket: {maxWait: 3s}}}\n";
    let (ok, out, err) = sluice_check(text.as_bytes());
    assert!(ok && err.is_empty(), "{err}");
    assert_eq!(
        out,
        "policy.yaml: shop/checkout is valid: per-customer 10/1m 500/1h (60 sub-windows) by client address [soft +20% for 30s], uploads 2/1s [leakyBucket maxWait 3s]\n"
    );
}

#[test]
fn settings_other_than_the_defaults_and_warnings_are_part_of_the_output() {
    let text = GOOD
        .replace("  limits:\n", "  mode: Shadow\n  consistency: Leased\n  onStoreFailure: Deny\n  limits:\n");
    let (ok, out, err) = sluice_check(text.as_bytes());
    assert!(ok && err.is_empty(), "{err}");
    let (warning, valid) = out.trim_end().split_once('\n').unwrap();
    assert!(
        warning.starts_with(
            "policy.yaml:15: warning: spec.limits[0].rates[0]: 10 requests at once are too few for leases"
        ),
        "{out}"
    );
    assert_eq!(
        valid,
        "policy.yaml: shop/checkout is valid: per-customer 10/1m 500/1h by client address; Shadow, Leased, onStoreFailure Deny"
    );
}

#[test]
fn a_wrong_algorithm_is_reported_with_its_line() {
    let text = GOOD.replace("per: 1m}", "per: 1m, subWindows: 7}") + "    algorithm:\n      gcra: {}\n";
    let (ok, _, err) = sluice_check(text.as_bytes());
    assert!(!ok);
    assert_eq!(
        err,
        "policy.yaml:12: spec.limits[0].rates[0].subWindows: is only allowed with slidingWindowCounter: remove it\n"
    );
}

#[test]
fn an_invalid_file_is_reported_with_line_and_field_and_the_exit_code_1() {
    let (ok, out, err) = sluice_check(GOOD.replace("per: 1h", "per: 9999h").as_bytes());
    assert!(!ok && out.is_empty());
    assert_eq!(
        err,
        "policy.yaml:13: spec.limits[0].rates[1].per: 9999h is out of range: 1ms to 8784h are allowed\n"
    );
}

#[test]
fn a_template_of_helm_is_to_be_rendered_first() {
    for template in ["{{- if .Values.limit }}\n", "{{ include \"labels\" . }}: a\n"] {
        let (ok, _, err) = sluice_check((template.to_owned() + GOOD).as_bytes());
        assert!(!ok && err.contains("render it first: helm template ... | sluice check -"), "{err}");
    }
    let (_, _, err) = sluice_check(GOOD.replace("per: 1h", "per: 9999h").as_bytes());
    assert!(!err.contains("helm"), "{err}");
}

#[test]
fn values_that_kubectl_reads_otherwise_are_named() {
    let text = GOOD.replace("per-customer", "no").replace("name: checkout", "name: y");
    let (ok, out, err) = sluice_check(text.as_bytes());
    assert!(ok && err.is_empty(), "{err}");
    assert_eq!(
        out,
        "policy.yaml:4: warning: metadata.name: kubectl reads y without quotes as the boolean true: put it in quotes
policy.yaml:9: warning: spec.limits[0].name: kubectl reads no without quotes as the boolean false: put it in quotes
policy.yaml: shop/y is valid: no 10/1m 500/1h by client address\n"
    );
    for quoted in ["\"no\"", "'no'", "!!str no"] {
        let (ok, out, err) = sluice_check(GOOD.replace("per-customer", quoted).as_bytes());
        assert!(ok && !out.contains("warning"), "{quoted}: {out}{err}");
    }
}

#[test]
fn a_key_that_stands_twice_is_named_with_its_line() {
    let (ok, _, err) = sluice_check((GOOD.to_owned() + "    key: {}\n").as_bytes());
    assert!(!ok);
    assert_eq!(err, "policy.yaml:14: key stands twice in the same map: remove one of them\n");
}

#[test]
fn a_binary_or_missing_file_is_an_error() {
    let (ok, _, err) = sluice_check(b"\xff\xfe");
    assert!(!ok && err.contains("is not valid UTF-8"), "{err}");
    Command::new(env!("CARGO_BIN_EXE_sluice")).args(["check", "/no/such/file"]).assert().code(1);
}

/// Runs `sluice check` in a folder, and returns its exit code and what it prints.
fn check_in(folder: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    let output = command.arg("check").args(arguments).current_dir(folder).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// A policy without warnings.
fn good(name: &str) -> String {
    GOOD.replace("name: checkout", &format!("name: {name}"))
}

#[test]
fn a_folder_is_checked_as_kubectl_reads_it() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("policies/more/..data")).unwrap();
    for (file, text) in [
        ("b.yml", good("b")),
        ("a.yaml", good("a")),
        ("README.md", "no policy".to_owned()),
        (".hidden.yaml", "no: policy".to_owned()),
        ("more/c.yaml", good("c")),
        ("more/..data/c.yaml", good("c")),
    ] {
        std::fs::write(folder.path().join("policies").join(file), text).unwrap();
    }
    let names = |arguments: &[&str]| {
        let (code, out, err) = check_in(folder.path(), arguments);
        assert_eq!((code, err.as_str()), (Some(0), ""), "{arguments:?}");
        out.lines().map(|line| line.split(" is valid").next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let (a, b) = ("policies/a.yaml: shop/a", "policies/b.yml: shop/b");
    let c = "policies/more/c.yaml: shop/c";
    assert_eq!(names(&["policies"]), [a, b]);
    assert_eq!(names(&["-R", "policies"]), [a, b, c]);
    assert_eq!(names(&["-f", "policies/b.yml", "-f", "policies/more"]), [b, c]);
    assert_eq!(names(&["policies/a.yaml", "--filename", "policies/more/c.yaml"]), [a, c]);

    std::fs::create_dir(folder.path().join("empty")).unwrap();
    let (code, _, err) = check_in(folder.path(), &["empty"]);
    assert_eq!(code, Some(1));
    assert!(err.starts_with("empty: the folder has no file that ends in .yaml, .yml or .json"), "{err}");
}

#[test]
fn an_invalid_file_hides_no_other_one() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.yaml"), good("a").replace("10,", "-10,")).unwrap();
    std::fs::write(folder.path().join("b.yaml"), good("b")).unwrap();
    let (code, out, err) = check_in(folder.path(), &["."]);
    assert_eq!(code, Some(1));
    assert!(out.starts_with("./b.yaml: shop/b is valid: ") && out.lines().count() == 1, "{out}");
    assert!(err.starts_with("./a.yaml:12: spec.limits[0].rates[0].requests: -10 "), "{err}");
}

#[test]
fn the_same_policy_in_two_files_is_a_warning_and_with_strict_an_error() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.yaml"), good("a")).unwrap();
    std::fs::write(folder.path().join("b.yaml"), good("a")).unwrap();
    let repeated = "b.yaml:4: metadata.name: the RateLimitPolicy shop/a is defined in a.yaml, too: give one of them another name\n";
    let (code, out, err) = check_in(folder.path(), &["a.yaml", "b.yaml"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.contains(&repeated.replace("4: ", "4: warning: ")), "{out}");
    let (code, out, err) = check_in(folder.path(), &["--strict", "a.yaml", "b.yaml"]);
    assert_eq!((code, err.as_str()), (Some(1), repeated));
    assert!(out.starts_with("a.yaml: shop/a is valid"), "{out}");
    let (code, out, err) = check_in(folder.path(), &["--strict", "--quiet", "a.yaml", "b.yaml"]);
    assert_eq!((code, out.as_str(), err.as_str()), (Some(1), "", repeated));
    let (code, out, err) = check_in(folder.path(), &["--quiet", "a.yaml", "b.yaml"]);
    assert_eq!((code, out.as_str(), err.as_str()), (Some(0), "", ""));
}

#[test]
fn a_table_of_overrides_may_be_in_another_file() {
    let folder = tempfile::tempdir().unwrap();
    let key = "key: {parts: [{clientIP: {}}]}";
    let overrides = format!(
        "{key}\n    plans: [{{name: big, rates: [{{requests: 99, per: 1m}}]}}]\n    overridesFrom: [{{configMapRef: {{name: t, key: t}}}}]"
    );
    std::fs::write(folder.path().join("a.yaml"), good("a").replace(key, &overrides)).unwrap();
    let (_, out, _) = check_in(folder.path(), &["a.yaml"]);
    assert!(out.contains("is not in this file, so it is not checked"), "{out}");
    let table = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: t, namespace: shop}\ndata:\n  t: |\n    no such line\n";
    std::fs::write(folder.path().join("t.yaml"), table).unwrap();
    let (code, _, err) = check_in(folder.path(), &["."]);
    assert_eq!(code, Some(1));
    assert!(err.starts_with("./t.yaml:5: data.t: "), "{err}");
}

#[test]
fn programs_and_workflows_can_read_the_result() {
    let folder = tempfile::tempdir().unwrap();
    let warned = good("a").replace("  clientAddress: {trustedProxies: []}\n", "");
    std::fs::write(folder.path().join("a.yaml"), warned).unwrap();
    std::fs::write(folder.path().join("b.yaml"), good("b").replace("1h}", "9999h}")).unwrap();
    let (code, out, err) = check_in(folder.path(), &[".", "-o", "json"]);
    assert_eq!((code, err.as_str()), (Some(1), ""));
    let result: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(result["valid"], false);
    let object = json!({
        "file": "./a.yaml", "kind": "RateLimitPolicy", "namespace": "shop", "name": "a",
        "summary": "per-customer 10/1m 500/1h by client address",
    });
    assert_eq!(result["objects"], json!([object]));
    assert_eq!(result["warnings"][0]["line"], 9);
    let error = json!({
        "file": "./b.yaml", "line": 13, "path": "spec.limits[0].rates[1].per",
        "message": "9999h is out of range: 1ms to 8784h are allowed",
    });
    assert_eq!(result["errors"], json!([error]));
    let (code, out, _) = check_in(folder.path(), &["-o", "github", "."]);
    assert_eq!(code, Some(1));
    let mut lines = out.lines();
    assert_eq!(
        lines.next(),
        Some(
            "::error file=./b.yaml,line=13::spec.limits[0].rates[1].per: 9999h is out of range: 1ms to 8784h are allowed"
        )
    );
    assert!(lines.next().unwrap().starts_with("::warning file=./a.yaml,line=9::spec.limits[0].key"), "{out}");
}

#[test]
fn the_folder_of_examples_is_valid() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (code, out, err) = check_in(&root, &["examples"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.matches(" is valid: ").count() > 40, "{out}");
}
