//! Problems that `sluice check` reports: the line, the field, what is wrong and what is allowed.

use sluice_crds::Installation;
use sluice_crds::manifest::{LoadedPolicy, load};

fn manifest(spec: &str) -> String {
    format!(
        "apiVersion: sluice.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {{name: p, namespace: n}}\nspec:\n{spec}"
    )
}

fn errors(text: &str) -> Vec<String> {
    load(text, &Installation::default())
        .expect_err("the file must be rejected")
        .iter()
        .map(ToString::to_string)
        .collect()
}

fn one(text: &str) -> LoadedPolicy {
    load(text, &Installation::default())
        .unwrap_or_else(|problems| panic!("{problems:?}\n{text}"))
        .policies
        .remove(0)
}

#[test]
fn a_problem_names_the_line_the_field_and_what_is_allowed() {
    let text = manifest(
        "  limits:\n  - name: a\n    rates:\n    - {requests: 1, per: 1m}\n    - requests: 2\n      per: 1d\n",
    );
    let errors = errors(&text);
    assert_eq!(errors.len(), 1);
    assert!(errors[0].starts_with("10: spec.limits[0].rates[1].per: \"1d\" is not a duration"), "{errors:?}");
}

#[test]
fn an_invalid_field_is_reported_with_its_path() {
    let limit = |body: &str| {
        manifest(&format!("  limits:\n  - name: a\n    rates: [{{requests: 1, per: 1m}}]\n{body}"))
    };
    for (text, path, expected) in [
        (manifest("  limits: []\n"), "spec.limits", "must have at least one entry"),
        (manifest("  limits: 3\n"), "spec.limits", "must be a list, not an integer"),
        (manifest("  {}\n"), "spec.limits", "is required"),
        (
            manifest("  limits: [{name: a, rates: [{requests: -1, per: 1m}]}]\n"),
            "spec.limits[0].rates[0].requests",
            "out of range",
        ),
        (
            manifest("  limits: [{name: a, rates: [{requests: 1099511627777, per: 1m}]}]\n"),
            "spec.limits[0].rates[0].requests",
            "out of range",
        ),
        (
            manifest("  limits: [{name: a, rates: [{requests: 99999999999999999999, per: 1m}]}]\n"),
            "spec.limits[0].rates[0].requests",
            "",
        ),
        (
            manifest("  limits: [{name: a, rates: [{requests: '5', per: 1m}]}]\n"),
            "spec.limits[0].rates[0].requests",
            "must be an integer, not a string",
        ),
        (
            manifest("  limits: [{name: a, rates: [{requests: 1.5, per: 1m}]}]\n"),
            "spec.limits[0].rates[0].requests",
            "must be an integer",
        ),
        (
            manifest("  limits: [{name: a, rates: [{requests: 1, per: 8785h}]}]\n"),
            "spec.limits[0].rates[0].per",
            "out of range",
        ),
        (
            manifest("  limits: [{name: a, rates: [{requests: 1, per: 0s}]}]\n"),
            "spec.limits[0].rates[0].per",
            "out of range",
        ),
        (
            manifest("  limits: [{name: a, rates: [{requests: 1, per: 60s}, {requests: 2, per: 1m}]}]\n"),
            "spec.limits[0].rates[1].per",
            "same period",
        ),
        (
            manifest("  limits: [{name: A, rates: [{requests: 1, per: 1m}]}]\n"),
            "spec.limits[0].name",
            "is not allowed: write a",
        ),
        (
            manifest("  limits: [{name: '', rates: [{requests: 1, per: 1m}]}]\n"),
            "spec.limits[0].name",
            "must not be empty",
        ),
        (
            manifest(
                "  limits: [{name: a, rates: [{requests: 1, per: 1m}]}, {name: a, rates: [{requests: 1, per: 1m}]}]\n",
            ),
            "spec.limits[1].name",
            "is already used by spec.limits[0]",
        ),
        (
            manifest("  mode: Loud\n  limits: [{name: a, rates: [{requests: 1, per: 1m}]}]\n"),
            "spec.mode",
            "one of Enforce, Shadow",
        ),
        (limit("    key: {parts: []}\n"), "spec.limits[0].key.parts", "must have at least one entry"),
        (
            limit("    key: {parts: [{}]}\n"),
            "spec.limits[0].key.parts[0]",
            "exactly one of header, cookie, query, method, path, host, grpcMethod, pathTemplate, cel, jwtClaim, clientIP, descriptor must be set, but none is set",
        ),
        (
            limit("    key: {parts: [{header: {name: x}, clientIP: {}}]}\n"),
            "spec.limits[0].key.parts[0]",
            "header and clientIP are set",
        ),
        (
            limit("    key: {parts: [{header: {name: 'a b'}}]}\n"),
            "spec.limits[0].key.parts[0].header.name",
            "without spaces and colons",
        ),
        (
            limit("    key: {parts: [{clientIP: {ipv4Prefix: 33}}]}\n"),
            "spec.limits[0].key.parts[0].clientIP.ipv4Prefix",
            "1 to 32",
        ),
        (
            limit("    algorithm: {fixedWindow: {}, slidingWindowCounter: {}}\n"),
            "spec.limits[0].algorithm",
            "exactly one",
        ),
        (
            manifest("  limits: [{name: a, rates: [{requests: 1, per: 1 minute}]}]\n"),
            "spec.limits[0].rates[0].per",
            "such as 1h30m",
        ),
        (
            limit("    algorithm: {magic: {}}\n"),
            "spec.limits[0].algorithm.magic",
            "unknown field: known fields are fixedWindow, gcra, leakyBucket, slidingWindowCounter, slidingWindowLog, tokenBucket",
        ),
        (limit("    matches: [{}]\n"), "spec.limits[0].matches[0]", "is empty"),
        (
            limit("    matches: [{path: {regex: '('}}]\n"),
            "spec.limits[0].matches[0].path.regex",
            "is not a valid regular expression",
        ),
        (
            limit("    matches: [{path: {prefix: v1}}]\n"),
            "spec.limits[0].matches[0].path.prefix",
            "it begins with /",
        ),
        (
            limit("    matches: [{path: {exact: /a/../b}}]\n"),
            "spec.limits[0].matches[0].path.exact",
            "write \"/b\"",
        ),
        (
            limit("    matches: [{path: {template: '/a/{b}c'}}]\n"),
            "spec.limits[0].matches[0].path.template",
            "in braces, as in /v1/orders/{id}",
        ),
        (
            limit("    matches: [{path: {template: /a/b}}]\n"),
            "spec.limits[0].matches[0].path.template",
            "use `exact` for a fixed path",
        ),
        (
            limit("    matches: [{path: {exact: /a}, grpc: {service: a.B}}]\n"),
            "spec.limits[0].matches[0].grpc",
            "`path` is not allowed beside it",
        ),
        (
            limit("    matches: [{path: {exact: '/v1?x=1'}}]\n"),
            "spec.limits[0].matches[0].path.exact",
            "write \"/v1\" here, and parameters in `query`",
        ),
        (
            limit("    matches: [{query: [{name: a%20b, present: true}]}]\n"),
            "spec.limits[0].matches[0].query[0].name",
            "write it decoded",
        ),
        (limit("    except: [{}]\n"), "spec.limits[0].except[0]", "is empty"),
        (
            limit("    except: [{clientCIDRs: [10.0.0.1]}]\n"),
            "spec.limits[0].except[0].clientCIDRs[0]",
            "write 10.0.0.1/32",
        ),
        (
            limit("    except: [{query: [{name: a, regex: '('}]}]\n"),
            "spec.limits[0].except[0].query[0].regex",
            "is not a valid regular expression",
        ),
        (
            limit("    matches: [{cookies: [{name: 'a b', present: true}]}]\n"),
            "spec.limits[0].matches[0].cookies[0].name",
            "is not the name of a cookie",
        ),
        (
            limit("    matches: [{methods: [get]}]\n"),
            "spec.limits[0].matches[0].methods[0]",
            "is not allowed: write GET",
        ),
        (
            limit("    matches: [{headers: [{name: a, exact: b, present: true}]}]\n"),
            "spec.limits[0].matches[0].headers[0]",
            "exact and present are set",
        ),
        (
            limit("  clientAddress: {trustedProxies: [10.0.0.0/33]}\n"),
            "spec.clientAddress.trustedProxies[0]",
            "is not a network",
        ),
        (limit("  selector: {matchExpressions: [{key: a, operator: Near}]}\n"), "spec.selector", ""),
        (
            limit("  targetRefs: [{kind: Pod, name: a}]\n"),
            "spec.targetRefs[0].kind",
            "\"Pod\" is not allowed",
        ),
        (
            limit("  targetRefs: [{group: batch, kind: Deployment, name: a}]\n"),
            "spec.targetRefs[0].group",
            "\"batch\" has no kind Deployment: write apps, or leave the group out",
        ),
        (
            limit("  targetRefs: [{kind: Job, name: a}, {group: batch, kind: Job, name: a}]\n"),
            "spec.targetRefs[1]",
            "job/a is listed twice",
        ),
        (
            limit("  selector: {}\n  targetRefs: [{kind: Job, name: a}]\n"),
            "spec.targetRefs",
            "cannot be combined with spec.selector",
        ),
        (limit("  limts: 1\n"), "spec.limts", "unknown field"),
        (
            limit("  consistency: PerPod\n  storeRef: {name: a}\n"),
            "spec.storeRef",
            "no effect with consistency PerPod",
        ),
        (limit("  consistency: PerPod\n  onStoreFailure: Deny\n"), "spec.onStoreFailure", "no effect with"),
        (
            limit("    onLimit: {reject: {statusCode: 200}}\n"),
            "spec.limits[0].onLimit.reject.statusCode",
            "out of range: 400 to 599",
        ),
        (
            limit("    onLimit: {reject: {headers: [{name: Content-Length, value: x}]}}\n"),
            "spec.limits[0].onLimit.reject.headers",
            "Content-Length is set by Sluice",
        ),
        (
            limit("    onLimit: {reject: {body: {template: {text: 'a ${b}'}}}}\n"),
            "spec.limits[0].onLimit.reject.body.template.text",
            "has no placeholder \"b\"",
        ),
        (
            limit("    onLimit: {drop: {}}\n"),
            "spec.limits[0].onLimit.drop",
            "unknown field: known fields are block, mark, queue, reject",
        ),
        (
            limit("    tiers: [{name: t, matches: [{methods: [GET]}]}]\n"),
            "spec.limits[0].tiers[0]",
            "exactly one of rates, unlimited, deny must be set, but none is set",
        ),
        (
            limit("    tiers: [{name: t, matches: [{methods: [GET]}], rates: [{requests: 1, per: 1d}]}]\n"),
            "spec.limits[0].tiers[0].rates[0].per",
            "is not a duration",
        ),
        (
            limit(
                "    tiers: [{name: t, deny: {}, matches: [{methods: [GET]}]}, {name: t, deny: {}, matches: [{methods: [PUT]}]}]\n",
            ),
            "spec.limits[0].tiers[1].name",
            "is already used by",
        ),
        (
            limit(
                "    algorithm: {gcra: {burst: 5}}\n    tiers: [{name: t, matches: [{methods: [GET]}], rates: [{requests: 1, per: 1h}]}]\n",
            ),
            "spec.limits[0].tiers",
            "must have the periods",
        ),
    ] {
        let errors = errors(&text);
        assert!(
            errors.iter().any(|e| e.contains(&format!(": {path}: ")) && e.contains(expected)),
            "{path}: {expected}\n{errors:?}\n{text}"
        );
    }
}

#[test]
fn a_policy_with_too_many_regular_expressions_is_rejected() {
    let matches: String = (0..9).map(|n| format!("{{path: {{regex: '/{n}.*'}}}},")).collect();
    let limits: String = (0..8)
        .map(|n| format!("  - {{name: l{n}, rates: [{{requests: 1, per: 1m}}], matches: [{matches}]}}\n"))
        .collect();
    let errors = errors(&manifest(&format!("  limits:\n{limits}")));
    assert_eq!(errors.len(), 1);
    assert!(errors[0].contains("spec.limits[7].matches[1].path.regex: is one regular expression too many: a policy may have at most 64"), "{errors:?}");
}

#[test]
fn a_file_without_a_readable_policy_is_rejected() {
    for (text, expected) in [
        ("a: [", "invalid YAML"),
        ("when: !has(request.headers.x)", "put a text that begins with `!` in quotes"),
        ("", "the file contains no RateLimitPolicy"),
        ("- 1\n- 2\n", "expected a Kubernetes object"),
        ("kind: RateLimitPolicy\n", "apiVersion: is required"),
        (
            "apiVersion: sluice.dev/v9\nkind: RateLimitPolicy\n",
            "is not a known version: use sluice.dev/v1alpha1",
        ),
        ("apiVersion: v1\nkind: Pod\n", "the file contains no RateLimitPolicy, only Pod"),
        (
            "apiVersion: sluice.dev/v1alpha1\nkind: CounterReset\n",
            "the file contains no RateLimitPolicy, only CounterReset",
        ),
        (
            "apiVersion: sluice.dev/v1alpha1\nkind: RatelimitPolicy\n",
            "kind: \"RatelimitPolicy\" is not a known kind: use RateLimitPolicy",
        ),
        (
            "apiVersion: sluice.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {name: T_x}\n",
            "3: metadata.name: \"T_x\" is not a valid name",
        ),
        (
            "apiVersion: sluice.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata:\n  name: a\n  namespce: b\n",
            "5: metadata.namespce: unknown field",
        ),
        ("apiVersion: sluice.dev/v1alpha1\nkind: RateLimitPolicy\nspec: {}\n", "metadata.name: is required"),
        ("a: 1\na: 2\n", "2: a stands twice in the same map: remove one of them"),
    ] {
        let errors = errors(text);
        assert!(errors.iter().any(|e| e.contains(expected)), "{expected}: {errors:?}");
    }
}

#[test]
fn several_documents_and_lists_are_read() {
    let policy = manifest("  limits: [{name: a, rates: [{requests: 1, per: 1m}]}]\n");
    let text = format!(
        "---\n{policy}---\napiVersion: v1\nkind: Service\nmetadata: {{name: s}}\n---\n{}",
        policy.replace("name: p", "name: q")
    );
    assert_eq!(load(&text, &Installation::default()).unwrap().policies.len(), 2);
    assert!(errors(&format!("{policy}---\n{policy}"))[0].contains("is defined twice in this file"));
    let list = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: sluice.dev/v1alpha1\n  kind: RateLimitPolicy\n  metadata: {name: p}\n  spec: {limits: [{name: a, rates: [{requests: 1, per: 1x}]}]}\n";
    assert!(errors(list)[0].starts_with("7: spec.limits[0].rates[0].per"), "{:?}", errors(list));
}

#[test]
fn equal_policies_compile_to_equal_hashes() {
    let text = manifest("  limits: [{name: a, rates: [{requests: 1, per: 1m}]}]\n");
    let other = text.replace("per: 1m", "per: 60s").replace("  limits", "  mode: Enforce\n  limits");
    assert_eq!(one(&text).compiled.to_json(), one(&other).compiled.to_json());
}

#[test]
fn a_problem_hides_no_problem_of_another_field() {
    let text = manifest(
        "  mode: Loud
  clientAddress: {trustedProxies: [10.0.0.0/33]}
  limits:
  - name: A
    matches: [{}]
    key: {parts: [{header: {name: x}, clientIP: {}}]}
    rates: [{requests: 1, per: 1d}]
    algorithm: {leakyBucket: {maxWait: 2h}}
    enforcement: {soft: {overPercent: 5, for: 9000h}}
  - name: b
    rates: [{requests: 1, per: 60s}, {requests: 2, per: 1m}, {requests: -1, per: 1h}]
    matches: [{path: {exact: /a//b}}]
  - {}
  concurrency:
  - {name: b, max: 0}
  - {name: c, adaptive: {vegas: {minimum: 3, maximum: 2}}, key: {parts: []}}
",
    );
    let mut paths: Vec<_> =
        errors(&text).iter().map(|error| error.split(": ").nth(1).unwrap().to_owned()).collect();
    paths.sort();
    let expected = [
        "spec.clientAddress.trustedProxies[0]",
        "spec.concurrency[0].max",
        "spec.concurrency[0].name",
        "spec.concurrency[1].adaptive.vegas.maximum",
        "spec.concurrency[1].key.parts",
        "spec.limits[0].algorithm.leakyBucket.maxWait",
        "spec.limits[0].enforcement.soft.for",
        "spec.limits[0].key.parts[0]",
        "spec.limits[0].matches[0]",
        "spec.limits[0].name",
        "spec.limits[0].rates[0].per",
        "spec.limits[1].matches[0].path.exact",
        "spec.limits[1].rates[2].requests",
        "spec.limits[2].name",
        "spec.limits[2].rates",
        "spec.mode",
    ];
    assert_eq!(paths, expected);
}

fn store(spec: &str) -> String {
    format!(
        "apiVersion: sluice.dev/v1alpha1\nkind: RateLimitStore\nmetadata: {{name: redis, namespace: n}}\nspec:\n{spec}"
    )
}

#[test]
fn a_store_is_read_beside_policies() {
    let text = store(
        "  servers:\n    sentinel: {endpoints: [a, \"[::1]:7\"], master: main}\n  tls: {}\n  secretRef: {name: s}\n  \
         latencyBudget: 1s\n  keyPrefix: \"p:\"\n  partitions: 96\n",
    );
    let loaded = load(&text, &Installation::default()).unwrap();
    let [store] = &loaded.stores[..] else { panic!("{loaded:?}") };
    assert_eq!((store.namespace.as_str(), store.name.as_str()), ("n", "redis"));
    let summary = sluice_crds::summary::of_store(&store.compiled);
    assert_eq!(summary, "master main of the sentinels a:26379 [::1]:7, TLS, Secret s, access Shared");
    assert_eq!((store.compiled.redis.partitions, store.compiled.redis.prefix.as_str()), (96, "p:"));
    let both = format!("{text}---\n{text}");
    let errors = errors(&both);
    assert!(errors[0].contains("the RateLimitStore n/redis is defined twice"), "{errors:?}");
}

#[test]
fn each_problem_of_a_store_is_named_with_its_field() {
    for (spec, expected) in [
        ("  servers: {}\n", "spec.servers: exactly one of standalone, sentinel, cluster must be set"),
        (
            "  servers: {standalone: {endpoint: \"a:b\"}}\n",
            "spec.servers.standalone.endpoint: \"a:b\" has a port",
        ),
        (
            "  servers: {standalone: {endpoint: \"redis://user:password@a\"}}\n",
            "endpoint: begins with the scheme `redis://`: write HOST or HOST:PORT, without a scheme",
        ),
        (
            "  servers: {cluster: {endpoints: [a, \"0.0.0.0\"]}}\n",
            "spec.servers.cluster.endpoints[1]: \"0.0.0.0\" has a wildcard",
        ),
        ("  tls: {}\n", "spec.servers: is required"),
        (
            "  servers: {standalone: {endpoint: a}}\n  latencyBudget: 11s\n",
            "spec.latencyBudget: 11s is out of range",
        ),
        ("  servers: {standalone: {endpoint: a}}\n  partitions: 0\n", "spec.partitions: 0 is out of range"),
        (
            "  servers: {standalone: {endpoint: a}}\n  keyPrefix: \"{a}\"\n",
            "spec.keyPrefix: \"{a}\" is not allowed: use visible ASCII characters",
        ),
        ("  servers: {standalone: {endpoint: a}}\n  access: Root\n", "spec.access: \"Root\" is not allowed"),
        ("  servers: {standalone: {endpoint: a}}\n  password: hunter2\n", "spec.password: unknown field"),
    ] {
        let errors = errors(&store(spec));
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].contains(expected), "{errors:?}");
    }
}
