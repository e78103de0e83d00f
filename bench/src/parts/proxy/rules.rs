//! CPU time of the sidecar for a request that meets twenty limits, with many limits, plans of many clients, tiers, conditions in
//! CEL, and charges that the response corrects, against the sidecar with a plain policy. A request meets the same two limits in all
//! but the first.

use std::fmt::Write as _;
use std::net::SocketAddr;

use super::load::{Responses, load, upstream_of};
use super::proxies::Proxy;
use crate::report::row::{Aim, Row};
use crate::report::verification::Verification;
use crate::support::cores::Cores;
use crate::support::rounds::interleave;

const ROUNDS: u64 = 5;
const REQUESTS: usize = 40_000;
/// Requests of a round with costly requests.
const COSTLY_REQUESTS: usize = 4_000;
const CLIENTS: usize = 1_000;
const PATH: &str = "/api/orders";

/// A response with a cost in a header and in its body.
const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-cost: 3\r\ncontent-length: 140\r\n\r\n\
    {\"id\":\"answer-1\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"hello\"}}],\
    \"usage\":{\"prompt_tokens\":5,\"total_tokens\":9}}     ";

/// Limits of a policy at most.
const LIMITS_OF_POLICY: usize = 32;

/// Fields of a limit that never denies, but its name.
const PLAIN: &str = "key: {parts: [{header: {name: x-api-key}}]}, rates: [{requests: 1000000000, per: 1h}]";

/// Measures each against the plain policy.
pub(crate) async fn measure(cores: Cores) -> anyhow::Result<Vec<Row>> {
    let upstream = upstream_of(RESPONSE).await?;
    let mut rows = Vec::new();
    let tiers = "tiers: [{name: gold, matches: [{headers: [{name: x-plan, exact: gold}]}], unlimited: {}}]";
    let when = "when: 'request.headers[\"x-internal\"] != \"1\" && !request.path.startsWith(\"/health\")'";
    let overrides = "plans: [{name: large, rates: [{requests: 2000000000, per: 1h}]}], \
                     overridesFrom: [{configMapRef: {name: clients, key: plans}}]";
    let lines: String = (0..100_000).fold(String::new(), |mut lines, n| {
        let _ = writeln!(lines, "    round-{}-client-{}: large", n / CLIENTS, n % CLIENTS);
        lines
    });
    let config_map = format!(
        "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: clients}}\ndata:\n  plans: |\n{lines}"
    );
    let of_two = |extra: &str| limits(5, 1, extra);
    for (what, policies, aim) in [
        ("twenty limits, all of which it meets", met(20), None),
        ("a thousand limits, 200 of them with a regular expression", limits(1000, 200, ""), Some(1.15)),
        ("a tier", of_two(tiers), None),
        ("a condition in CEL", of_two(when), None),
        ("the plans of 100,000 clients", of_two(overrides) + &config_map, None),
        ("a refund by the status code", of_two("countWhen: {statusCodes: [5xx]}"), None),
        ("a cost in a header of the response", of_two("cost: {response: {header: x-cost}}"), None),
        (
            "a cost in the JSON of the response",
            of_two("cost: {response: {jsonField: usage.total_tokens}}"),
            None,
        ),
    ] {
        // New processes each time: memory that one has touched does not slow the next.
        let ours = Proxy::start_sluice_with(cores, upstream, &policies).await?;
        let plain = Proxy::start_sluice_with(cores, upstream, &of_two("")).await?;
        let row = compare([&ours, &plain], what).await?;
        rows.push(match aim {
            Some(aim) => row.with_aim(Aim::RatioAtMost(aim)),
            None => row,
        });
    }
    rows.extend(measure_costly(cores, upstream).await?);
    Ok(rows)
}

/// Measures requests that are written to be costly against a plain one, under limits of three query conditions each.
async fn measure_costly(cores: Cores, upstream: SocketAddr) -> anyhow::Result<Vec<Row>> {
    let condition = |n: usize| {
        let named = |name: &str| format!("{{name: {name}, exact: value-{n}}}");
        format!("matches: [{{query: [{}, {}, {}]}}]", named("plan"), named("size"), named("page"))
    };
    let limits: Vec<_> = (0..30).map(|n| format!("{{name: l{n}, {}, {PLAIN}}}", condition(n))).collect();
    let policies = format!(
        "apiVersion: sluice.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {{name: p}}\nspec:\n  limits:\n  - {}\n",
        limits.join("\n  - ")
    );
    let mut rows = Vec::new();
    for (what, path) in [
        ("a query of 15,000 empty pairs", format!("{PATH}?{}", "&".repeat(15_000))),
        ("a query of 2,000 parameters", format!("{PATH}?{}", "plan[]=%61&".repeat(2_000))),
        ("a path of many readings", "/..;%2f\\%".repeat(99)),
    ] {
        let proxy = Proxy::start_sluice_with(cores, upstream, &policies).await?;
        // Once for each of three rows.
        let paths = [&*path.leak(), PATH];
        let row = compare_paths([&proxy, &proxy], paths, COSTLY_REQUESTS, what, "a plain request").await?;
        rows.push(row.with_aim(Aim::RatioAtMost(20.0)));
    }
    Ok(rows)
}

/// Returns a policy with this number of limits, all of which a request meets.
fn met(count: usize) -> String {
    let limits: Vec<_> = (0..count).map(|n| format!("{{name: l{n}, {PLAIN}}}")).collect();
    format!(
        "apiVersion: sluice.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {{name: p}}\nspec:\n  limits:\n  - {}\n",
        limits.join("\n  - ")
    )
}

/// Returns policies with this number of limits, of which a request meets two. `extra` are further fields of one of these.
fn limits(count: usize, regexes: usize, extra: &str) -> String {
    let separator = if extra.is_empty() { "" } else { ", " };
    let mut limits = vec![
        format!("{{name: all, {PLAIN}{separator}{extra}}}"),
        format!("{{name: api, matches: [{{path: {{prefix: /api}}}}], {PLAIN}}}"),
    ];
    for n in 0..count - limits.len() {
        let condition = match n {
            _ if n < regexes => format!("path: {{regex: '/v{n}/[a-z]+/[0-9]+'}}"),
            _ if n % 3 == 0 => format!("path: {{exact: /service/{n}}}"),
            _ if n % 3 == 1 => format!("path: {{prefix: /api/{n}}}"),
            _ => format!("hosts: [h{n}.example]"),
        };
        limits.push(format!("{{name: l{n}, matches: [{{{condition}}}], {PLAIN}}}"));
    }
    let policies = limits.chunks(LIMITS_OF_POLICY).enumerate().map(|(n, limits)| {
        format!(
            "---\napiVersion: sluice.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {{name: p{n:03}}}\nspec:\n  limits:\n  - {}\n",
            limits.join("\n  - ")
        )
    });
    policies.collect()
}

async fn compare(proxies: [&Proxy; 2], what: &str) -> anyhow::Result<Row> {
    compare_paths(proxies, [PATH; 2], REQUESTS, what, "five limits, of which a request meets two").await
}

async fn compare_paths(
    proxies: [&Proxy; 2],
    paths: [&'static str; 2],
    count: usize,
    what: &str,
    other: &str,
) -> anyhow::Result<Row> {
    let mut totals = [Responses::default(); 2];
    let rounds = interleave(ROUNDS, async |side, round| {
        let [ours, plain] = &mut totals;
        let (proxy, totals, path) = (side.of(proxies), side.of([ours, plain]), side.of(paths));
        let prefix = format!("round-{round}-client");
        load(proxy.address, path, &prefix, CLIENTS, CLIENTS).await?;
        let before = proxy.processes.cpu()?;
        *totals += load(proxy.address, path, &prefix, CLIENTS, count).await?;
        Ok(proxy.processes.cpu_since(&before)?.as_secs_f64() * 1e6 / count as f64)
    })
    .await?;
    let [ours, plain] = totals;
    let mut verification = Verification::default();
    let requests = count as u64 * (ROUNDS + 1);
    verification.expect_both("responses with 200", ours.admitted, plain.admitted, requests);
    let row = format!("proxy CPU: {what}");
    Ok(Row::compared(row, "us/request", &rounds, other, &verification))
}
