//! `sluice status`: policies and stores, and which pods enforce them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use serde_json::{Map, Value};
use sluice_config::client_pages::{CALLERS, CallersPage, POLICIES, PoliciesInForce, RejectedFile};
use sluice_crds::conditions::types::{READY, STORE_HEALTHY};
use sluice_crds::{RateLimitPolicy, RateLimitStore};

use crate::cluster::{SidecarArgs, Sidecars, Silent};
use crate::output::{Format, print, print_json, printable, table};

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
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
    /// Ask the pods of the service who has asked them, and what they refused. They are in the operator's namespace
    #[arg(long)]
    callers: bool,
}

/// A table, and what is not as it should be.
struct Section {
    /// Name in JSON.
    name: &'static str,
    header: &'static [&'static str],
    rows: Vec<Vec<String>>,
    /// Text in place of a table without rows.
    none: &'static str,
    problems: Vec<String>,
    /// The pods that did not answer.
    silent: String,
}

impl Section {
    fn new(name: &'static str, header: &'static [&'static str]) -> Self {
        Self { name, header, rows: Vec::new(), none: "", problems: Vec::new(), silent: String::new() }
    }

    fn text(&self) -> String {
        let mut text = match (&self.rows[..], self.none) {
            ([], "") => String::new(),
            ([], none) => format!("{none}\n"),
            (rows, _) => {
                let header: Vec<_> = self.header.iter().map(ToString::to_string).collect();
                table(std::iter::once(&header).chain(rows))
            }
        };
        for problem in &self.problems {
            let _ = writeln!(text, "{}{problem}", if text.is_empty() { "" } else { "\n" });
        }
        text
    }

    fn json(&self) -> Value {
        let row = |row: &Vec<String>| {
            let names = self.header.iter().map(|name| name.to_ascii_lowercase());
            Value::Object(names.zip(row.iter().map(|cell| cell.as_str().into())).collect())
        };
        self.rows.iter().map(row).collect()
    }
}

/// Prints policies and stores with what is not as it should be, and which pods enforce them. Fails if something is not ready.
pub(crate) async fn status(args: &StatusArgs) -> Result<()> {
    let SidecarArgs { cluster, pod, selector, address } = &args.sidecars;
    let mut sections = Vec::new();
    if address.is_none() && !args.callers {
        let (client, namespace) = cluster.connect().await?;
        let namespace = (!args.all_namespaces).then_some(namespace);
        sections.push(policies(&client, namespace.as_deref()).await?);
        sections.extend(stores(&client, namespace.as_deref()).await?);
    }
    if args.callers {
        sections.extend(callers(&args.sidecars).await?);
    }
    if args.pods || pod.is_some() || selector.is_some() || address.is_some() {
        sections.push(pods(&args.sidecars).await?);
    }
    let is_ready = sections.iter().all(|section| section.problems.is_empty() && section.silent.is_empty());
    match args.output {
        Format::Json => {
            let mut found: Map<_, _> =
                sections.iter().map(|section| (section.name.to_owned(), section.json())).collect();
            let silent = sections.iter().flat_map(|section| section.silent.lines());
            let problems = sections.iter().flat_map(|section| section.problems.iter().map(String::as_str));
            found.insert("ready".to_owned(), is_ready.into());
            found.insert("problems".to_owned(), problems.chain(silent).collect());
            print_json(&found)?;
        }
        Format::Table => {
            let texts: Vec<_> = sections.iter().map(Section::text).filter(|text| !text.is_empty()).collect();
            print(&texts.join("\n"))?;
            sections.iter().for_each(|section| sluice_host::logging::say_part(&section.silent));
        }
    }
    if !is_ready {
        bail!(
            "not everything is ready: see above, and {}/blob/main/docs/status.md for each reason",
            env!("CARGO_PKG_REPOSITORY")
        );
    }
    Ok(())
}

async fn policies(client: &Client, namespace: Option<&str>) -> Result<Section> {
    let found = api::<RateLimitPolicy>(client, namespace).list(&ListParams::default()).await;
    let found = found.context("cannot list the RateLimitPolicies")?.items;
    let mut section = Section::new("policies", &["POLICY", "PODS", "READY", "STORE"]);
    section.none = "There are no RateLimitPolicies.";
    for policy in &found {
        let status = policy.status.as_ref();
        let conditions = status.map_or(&[][..], |status| &status.conditions);
        let pods = status.and_then(|status| status.pods.as_ref()).map(|pods| pods.summary.clone());
        let store = condition(conditions, STORE_HEALTHY).map(|store| store.reason.clone());
        let observed = status.and_then(|status| status.observed_generation);
        section.add(policy, pods, store.unwrap_or_default(), conditions, observed);
    }
    Ok(section)
}

async fn stores(client: &Client, namespace: Option<&str>) -> Result<Option<Section>> {
    let found = match api::<RateLimitStore>(client, namespace).list(&ListParams::default()).await {
        Ok(found) => found.items,
        // Those who may write policies need not see stores.
        Err(kube::Error::Api(error)) if error.code == 403 => return Ok(None),
        Err(error) => return Err(error).context("cannot list the RateLimitStores"),
    };
    let mut section = Section::new("stores", &["STORE", "SIDECARS", "READY", "ACCESS"]);
    for store in &found {
        let status = store.status.as_ref();
        let conditions = status.map_or(&[][..], |status| &status.conditions);
        let sidecars = status.and_then(|status| status.sidecars.as_ref());
        let sidecars = sidecars.map(|sidecars| sidecars.summary.clone());
        let observed = status.and_then(|status| status.observed_generation);
        section.add(store, sidecars, format!("{:?}", store.spec.access), conditions, observed);
    }
    Ok(Some(section))
}

/// Returns which version of each policy the pods enforce.
async fn pods(args: &SidecarArgs) -> Result<Section> {
    let answers = Sidecars::find(args).await?.ask::<(), PoliciesInForce>(POLICIES, None).await;
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut section = Section::new("sidecars", &["SIDECAR", "POLICY", "VERSION", "STORE", "HEALTH"]);
    section.silent = Silent(&answers).to_string();
    for answer in &answers {
        let Ok(PoliciesInForce { policies, rejected }) = &answer.result else { continue };
        if policies.is_empty() {
            section.rows.push([&answer.source, "none", "", "", ""].map(str::to_owned).to_vec());
        }
        for policy in policies {
            versions.entry(&policy.policy).or_default().insert(&policy.hash);
            let version = policy.hash.get(..12).unwrap_or(&policy.hash);
            let row = [&answer.source, &policy.policy, version, &policy.store, &policy.health];
            section.rows.push(row.map(str::to_owned).to_vec());
            if !matches!(policy.health.as_str(), "healthy" | "starting") {
                let (source, policy, health) = (&answer.source, &policy.policy, &policy.health);
                section.problems.push(format!("{source}: {policy}: the store is {health}"));
            }
        }
        for RejectedFile { file, since_seconds, reason } in rejected {
            section.problems.push(format!(
                "{}: {} has differed from what is in force since {}, because an edit was rejected:\n{}",
                answer.source,
                printable(file),
                time(*since_seconds),
                reason.lines().map(printable).collect::<Vec<_>>().join("\n")
            ));
        }
    }
    for (policy, hashes) in versions.iter().filter(|(_, hashes)| hashes.len() > 1) {
        section.problems.push(format!(
            "{policy}: the pods enforce {} versions. After an edit this lasts for a few seconds; then see the pods that differ",
            hashes.len()
        ));
    }
    Ok(section)
}

/// Returns who has asked the service, and what it refused.
async fn callers(args: &SidecarArgs) -> Result<[Section; 2]> {
    let answers = Sidecars::find(args).await?.ask::<(), CallersPage>(CALLERS, None).await;
    let mut asked =
        Section::new("callers", &["SERVICE", "CALLER", "NAMESPACES", "DOMAINS", "ASKED", "REFUSED"]);
    let mut refusals = Section::new("refused", &["SERVICE", "TIMES", "LAST", "REFUSED"]);
    asked.silent = Silent(&answers).to_string();
    for answer in &answers {
        let Ok(CallersPage { callers, refused }) = &answer.result else { continue };
        let source = answer.source.clone();
        if callers.is_empty() {
            asked.rows.push([&source, "none is listed", "", "", "", ""].map(str::to_owned).to_vec());
        }
        asked.rows.extend(callers.iter().map(|caller| {
            let (namespaces, domains) = (caller.namespaces.join(","), caller.domains.join(","));
            let (asked, refused) = (caller.asked.to_string(), caller.refused.to_string());
            vec![source.clone(), caller.subject.clone(), namespaces, domains, asked, refused]
        }));
        // A caller chooses what it is called.
        refusals.rows.extend(refused.iter().map(|refusal| {
            let last = time(refusal.last_seconds);
            vec![source.clone(), refusal.times.to_string(), last, printable(&refusal.reason)]
        }));
    }
    Ok([asked, refusals])
}

/// Returns a time since the Unix epoch in words.
fn time(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|at| Timestamp::from_second(at).ok());
    time.map(|at| at.to_string()).unwrap_or_default()
}

impl Section {
    /// Adds an object, and why it is not ready.
    fn add<K: ResourceExt>(
        &mut self,
        object: &K,
        pods: Option<String>,
        what: String,
        conditions: &[Condition],
        observed: Option<i64>,
    ) {
        let (ready, problem) = match condition(conditions, READY) {
            None => ("Unknown", Some("the operator has not set a status: is it running?".to_owned())),
            Some(_) if observed < object.meta().generation => {
                ("Unknown", Some("the status describes an older version of the object".to_owned()))
            }
            Some(ready) => {
                let problem =
                    (ready.status != "True").then(|| format!("{}: {}", ready.reason, ready.message));
                (ready.status.as_str(), problem)
            }
        };
        let name = format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any());
        self.problems.extend(problem.map(|problem| format!("{name}: {problem}")));
        self.rows.push(vec![name, pods.unwrap_or_default(), ready.to_owned(), what]);
    }
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
