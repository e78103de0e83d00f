//! `sluice status`: policies and stores, and which pods enforce them.

use std::collections::HashMap;
use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
use sluice_config::client_pages::{CALLERS, CallersPage, POLICIES, PoliciesInForce, RejectedFile};
use sluice_crds::conditions::types::{READY, STORE_HEALTHY};
use sluice_crds::{RateLimitPolicy, RateLimitStore};

use crate::cluster::args::SidecarArgs;
use crate::cluster::sidecars::{Sidecars, Silent};
use crate::output::{print, printable, table};

/// Flags of `sluice status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    sidecars: SidecarArgs,
    /// All namespaces
    #[arg(short = 'A', long, conflicts_with_all = ["namespace", "pods", "pod", "selector", "address"])]
    all_namespaces: bool,
    /// Ask the sidecars which versions they enforce, too
    #[arg(long)]
    pods: bool,
    /// Ask the pods of the service who has asked them, and what they refused. They are in the operator's namespace
    #[arg(long)]
    callers: bool,
}

/// Prints policies and stores with what is not as it should be, and which pods enforce them. Fails if something is not ready.
pub(crate) async fn status(args: &StatusArgs) -> Result<()> {
    let SidecarArgs { cluster, pod, selector, address } = &args.sidecars;
    let (mut all_ready, mut out) = (true, String::new());
    if address.is_none() && !args.callers {
        let (client, namespace) = cluster.connect().await?;
        let namespace = (!args.all_namespaces).then_some(namespace);
        all_ready &= policies(&client, namespace.as_deref(), &mut out).await?;
        all_ready &= stores(&client, namespace.as_deref(), &mut out).await?;
    }
    if args.callers {
        all_ready &= callers(&args.sidecars, &mut out).await?;
    }
    if args.pods || pod.is_some() || selector.is_some() || address.is_some() {
        all_ready &= pods(&args.sidecars, &mut out).await?;
    }
    print(&out)?;
    if !all_ready {
        bail!("not everything is ready: see above, and docs/status.md for each reason");
    }
    Ok(())
}

async fn policies(client: &Client, namespace: Option<&str>, out: &mut String) -> Result<bool> {
    let found = api::<RateLimitPolicy>(client, namespace).list(&ListParams::default()).await;
    let found = found.context("cannot list the RateLimitPolicies")?.items;
    let rows: Vec<_> = found
        .iter()
        .map(|policy| {
            let status = policy.status.as_ref();
            let conditions = status.map_or(&[][..], |status| &status.conditions);
            let pods = status.and_then(|status| status.pods.as_ref()).map(|pods| pods.summary.clone());
            let store = condition(conditions, STORE_HEALTHY).map(|store| store.reason.clone());
            Row {
                object: format!("{}/{}", policy.namespace().unwrap_or_default(), policy.name_any()),
                pods: pods.unwrap_or_default(),
                what: store.unwrap_or_default(),
                ready: Ready::of(
                    conditions,
                    policy.metadata.generation,
                    status.and_then(|s| s.observed_generation),
                ),
            }
        })
        .collect();
    Ok(add(out, ["POLICY", "PODS", "READY", "STORE"], &rows, "There are no RateLimitPolicies."))
}

async fn stores(client: &Client, namespace: Option<&str>, out: &mut String) -> Result<bool> {
    let found = api::<RateLimitStore>(client, namespace).list(&ListParams::default()).await;
    let found = match found {
        Ok(found) => found.items,
        // Those who may write policies need not see stores.
        Err(kube::Error::Api(error)) if error.code == 403 => return Ok(true),
        Err(error) => return Err(error).context("cannot list the RateLimitStores"),
    };
    if found.is_empty() {
        return Ok(true);
    }
    out.push('\n');
    let rows: Vec<_> = found
        .iter()
        .map(|store| {
            let status = store.status.as_ref();
            let conditions = status.map_or(&[][..], |status| &status.conditions);
            let sidecars = status.and_then(|status| status.sidecars.as_ref());
            Row {
                object: format!("{}/{}", store.namespace().unwrap_or_default(), store.name_any()),
                pods: sidecars.map(|sidecars| sidecars.summary.clone()).unwrap_or_default(),
                what: format!("{:?}", store.spec.access),
                ready: Ready::of(
                    conditions,
                    store.metadata.generation,
                    status.and_then(|s| s.observed_generation),
                ),
            }
        })
        .collect();
    Ok(add(out, ["STORE", "SIDECARS", "READY", "ACCESS"], &rows, ""))
}

/// Adds which version of each policy the pods enforce. Returns whether all have answered with the same versions and working
/// stores.
async fn pods(args: &SidecarArgs, out: &mut String) -> Result<bool> {
    let answers = Sidecars::find(args).await?.ask::<(), PoliciesInForce>(POLICIES, None).await;
    let mut versions: HashMap<&str, Vec<&str>> = HashMap::new();
    let mut rows = vec![["SIDECAR", "POLICY", "VERSION", "STORE", "HEALTH"].map(str::to_owned)];
    let mut all_well = answers.iter().all(|answer| answer.result.is_ok());
    for answer in &answers {
        let Ok(PoliciesInForce { policies, rejected: _ }) = &answer.result else { continue };
        if policies.is_empty() {
            rows.push([&answer.source, "none", "", "", ""].map(str::to_owned));
        }
        for policy in policies {
            let known = versions.entry(&policy.policy).or_default();
            if !known.contains(&policy.hash.as_str()) {
                known.push(&policy.hash);
            }
            all_well &= matches!(policy.health.as_str(), "healthy" | "starting");
            let version = policy.hash.get(..12).unwrap_or(&policy.hash);
            rows.push(
                [&answer.source, &policy.policy, version, &policy.store, &policy.health].map(str::to_owned),
            );
        }
    }
    if rows.len() > 1 {
        if !out.is_empty() {
            out.push('\n');
        }
        out.push_str(&table(rows.into_iter()));
    }
    sluice_host::logging::say_part(&Silent(&answers));
    for answer in &answers {
        for RejectedFile { file, since_seconds, reason } in
            answer.result.iter().flat_map(|page| &page.rejected)
        {
            all_well = false;
            let _ = writeln!(
                out,
                "\n{}: {} has differed from what is in force since {}, because an edit was rejected:\n{}",
                answer.source,
                printable(file),
                time(*since_seconds),
                reason.lines().map(printable).collect::<Vec<_>>().join("\n")
            );
        }
    }
    for (policy, hashes) in versions {
        if hashes.len() > 1 {
            all_well = false;
            let _ = writeln!(
                out,
                "{policy}: the pods enforce {} versions. After an edit this lasts for a few seconds; then see the pods that differ",
                hashes.len()
            );
        }
    }
    Ok(all_well)
}

/// Adds who has asked the service, and what it refused. Returns whether all pods have answered.
async fn callers(args: &SidecarArgs, out: &mut String) -> Result<bool> {
    let answers = Sidecars::find(args).await?.ask::<(), CallersPage>(CALLERS, None).await;
    let mut rows =
        vec![["SERVICE", "CALLER", "NAMESPACES", "DOMAINS", "ASKED", "REFUSED"].map(str::to_owned)];
    let mut refusals = vec![["SERVICE", "TIMES", "LAST", "REFUSED"].map(str::to_owned)];
    for answer in &answers {
        let Ok(CallersPage { callers, refused }) = &answer.result else { continue };
        if callers.is_empty() {
            rows.push([&answer.source, "none is listed", "", "", "", ""].map(str::to_owned));
        }
        for caller in callers {
            let (namespaces, domains) = (caller.namespaces.join(","), caller.domains.join(","));
            let (asked, times) = (caller.asked.to_string(), caller.refused.to_string());
            rows.push(
                [&answer.source, &caller.subject, &namespaces, &domains, &asked, &times].map(String::clone),
            );
        }
        for refusal in refused {
            let last = time(refusal.last_seconds);
            // A caller chooses what it is called.
            let reason = printable(&refusal.reason);
            refusals.push([answer.source.clone(), refusal.times.to_string(), last, reason]);
        }
    }
    for rows in [table(rows.into_iter()), table(refusals.into_iter())] {
        if rows.lines().count() > 1 {
            if !out.is_empty() {
                out.push('\n');
            }
            out.push_str(&rows);
        }
    }
    sluice_host::logging::say_part(&Silent(&answers));
    Ok(answers.iter().all(|answer| answer.result.is_ok()))
}

/// Returns a time since the Unix epoch in words.
fn time(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|at| Timestamp::from_second(at).ok());
    time.map(|at| at.to_string()).unwrap_or_default()
}

struct Row {
    object: String,
    pods: String,
    what: String,
    ready: Ready,
}

struct Ready {
    text: String,
    /// The reason and the message if it is not true.
    problem: Option<String>,
}

impl Ready {
    fn of(conditions: &[Condition], generation: Option<i64>, observed: Option<i64>) -> Self {
        let Some(ready) = condition(conditions, READY) else {
            let problem = "the operator has not set a status: is it running?".to_owned();
            return Self { text: "Unknown".to_owned(), problem: Some(problem) };
        };
        if observed < generation {
            let problem = "the status describes an older version of the object".to_owned();
            return Self { text: "Unknown".to_owned(), problem: Some(problem) };
        }
        let problem = (ready.status != "True").then(|| format!("{}: {}", ready.reason, ready.message));
        Self { text: ready.status.clone(), problem }
    }
}

/// Adds rows, and below them what is not ready. Returns whether all are.
fn add(out: &mut String, header: [&str; 4], rows: &[Row], none: &str) -> bool {
    if rows.is_empty() {
        let _ = writeln!(out, "{none}");
        return true;
    }
    let cells =
        rows.iter().map(|row| [&row.object, &row.pods, &row.ready.text, &row.what].map(String::clone));
    out.push_str(&table(std::iter::once(header.map(str::to_owned)).chain(cells)));
    let problems = rows.iter().filter_map(|row| Some((&row.object, row.ready.problem.as_ref()?)));
    let problems: Vec<_> = problems.collect();
    for (object, problem) in &problems {
        let _ = writeln!(out, "\n{object}: {problem}");
    }
    problems.is_empty()
}

fn condition<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}

fn api<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}
