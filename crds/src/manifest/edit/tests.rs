use super::*;

fn edited(text: &str, numbers: &[(&str, &str, &str, u64)]) -> String {
    let numbers: Vec<_> = numbers
        .iter()
        .map(|&(policy, limit, per, requests)| NewNumber {
            policy,
            limit,
            period: per.parse::<Duration>().unwrap().period().unwrap(),
            requests,
        })
        .collect();
    in_shadow(text, &numbers).unwrap()
}

const BLOCK: &str = "\
# Ümlaut
apiVersion: sluice.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: a, namespace: shop}
spec:
  # The pods.
  selector: {matchLabels: {app: a}}
  limits:
  - name: one
    rates:
    - requests: 60 # per minute
      per: 1m
    - {per: 1h, requests: 500}
  - name: two
    rates: [{requests: 7, per: 60s}]
";

#[test]
fn numbers_and_the_mode_change_and_nothing_else_does() {
    let numbers = [
        ("shop/a", "one", "1m", 61),
        ("shop/a", "one", "1h", 5_000),
        ("shop/a", "two", "1m", 8),
        ("b/a", "two", "1m", 9),
    ];
    let expected = BLOCK
        .replace("requests: 60 ", "requests: 61 ")
        .replace("requests: 500", "requests: 5000")
        .replace("requests: 7", "requests: 8")
        .replace("spec:", "spec:\n  mode: Shadow");
    assert_eq!(edited(BLOCK, &numbers), expected);
    let enforced = BLOCK.replace("  limits:", "  mode: Enforce # now\n  limits:");
    let expected = BLOCK.replace("  limits:", "  mode: Shadow # now\n  limits:");
    assert_eq!(edited(&enforced, &[]), expected);
}

#[test]
fn a_flow_over_several_lines_stays_one() {
    let flow = "apiVersion: sluice.dev/v1alpha1\nkind: RateLimitPolicy\nspec: {\n  limits: []\n}\n";
    assert_eq!(edited(flow, &[]), flow.replace("limits", "mode: Shadow, limits"));
}

#[test]
fn all_objects_of_a_file_are_changed_however_they_are_written() {
    let kind = "apiVersion: sluice.dev/v1alpha1, kind: RateLimitPolicy";
    let flow = format!(
        "{{{kind}, metadata: {{name: b}}, spec: {{ \"limits\": [{{name: one, rates: [{{\"requests\":6,\"per\":\"1s\"}}]}}]}}}}"
    );
    let list = format!("apiVersion: v1\nkind: List\nitems:\n- {flow}\n---\n{flow}\n---\n# Nothing.\n");
    let changed = edited(&list, &[("default/b", "one", "1s", 10)]);
    assert_eq!(changed, list.replace("6,", "10,").replace("{ \"limits\"", "{ mode: Shadow, \"limits\""));
    let shared = BLOCK
        .replace("rates:\n    - requests: 60", "rates:\n    - requests: &n 60")
        .replace("requests: 7", "requests: *n");
    let changed = edited(&shared, &[("shop/a", "one", "1m", 9), ("shop/a", "two", "1m", 8)]);
    assert!(changed.contains("requests: &n 9 #") && changed.contains("requests: *n"), "{changed}");
    assert!(in_shadow("a: [", &[]).is_err());
}
