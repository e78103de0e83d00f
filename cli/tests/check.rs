//! `sluice check` as a process: its output and its exit code.

use assert_cmd::Command;

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
        (true, "policy.yaml: shop/checkout is valid: per-customer 10/1m 500/1h\n".into(), String::new())
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
        "<stdin>: shop/checkout is valid: per-customer 10/1m 500/1h\n"
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
        "policy.yaml: shop/checkout is valid: per-customer 10/1m 500/1h (60 sub-windows) [soft +20% for 30s], uploads 2/1s [leakyBucket maxWait 3s]\n"
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
        "policy.yaml: shop/checkout is valid: per-customer 10/1m 500/1h; Shadow, Leased, onStoreFailure Deny"
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
policy.yaml: shop/y is valid: no 10/1m 500/1h\n"
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

#[test]
fn every_example_is_valid() {
    let examples = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let files: Vec<_> = std::fs::read_dir(examples).unwrap().map(|entry| entry.unwrap().path()).collect();
    let policies = files
        .iter()
        .filter(|f| std::fs::read_to_string(f).is_ok_and(|t| t.contains("kind: RateLimitPolicy")));
    Command::new(env!("CARGO_BIN_EXE_sluice")).arg("check").args(policies).assert().success();
}
