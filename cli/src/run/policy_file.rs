//! The policy files, read again whenever their content changes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use sluice_config::policy::DEFAULT_STORE;
use sluice_config::prepared::Blobs;
use sluice_config::{CompiledPolicy, Nack, PreparedPolicy};
use sluice_crds::Installation;
use sluice_crds::checks::installation::InstallationArgs;
use sluice_crds::manifest::{Problem, Source, load_all};
use sluice_crds::policy::Enforcer;
use sluice_engine::{FollowedFiles, Publisher};

use crate::input::read_all;

/// Interval at which the policy files are checked for changes.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// A policy with its name as `NAMESPACE/NAME`.
pub(crate) type NamedPolicy = (String, Arc<PreparedPolicy>);

/// The policy files of a command line.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PolicyArgs {
    /// Also read the folders in a folder of --policy
    #[arg(short = 'R', long)]
    recursive: bool,
    #[command(flatten)]
    installation: InstallationArgs,
}

/// The policy files.
#[derive(Debug)]
pub(crate) struct PolicyFiles {
    paths: Vec<PathBuf>,
    is_recursive: bool,
    installation: Installation,
    /// Only the policies that this enforces take part.
    enforcer: Enforcer,
    /// The content that is in force.
    sources: Vec<Source>,
}

impl PolicyFiles {
    /// Reads the files and loads their policies.
    pub(crate) fn open(
        paths: Vec<PathBuf>,
        args: &PolicyArgs,
        enforcer: Enforcer,
    ) -> anyhow::Result<(Self, Vec<NamedPolicy>)> {
        let PolicyArgs { recursive, installation } = args;
        let mut files = Self {
            paths,
            is_recursive: *recursive,
            installation: installation.into(),
            enforcer,
            sources: Vec::new(),
        };
        files.sources = files.read().map_err(|error| anyhow!(error))?;
        let policies = files.load(&files.sources)?;
        Ok((files, policies))
    }

    /// Returns the names of the files.
    pub(crate) fn name(&self) -> String {
        self.paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(",")
    }

    /// Reads the files, or returns a line for each one that cannot be read.
    fn read(&self) -> Result<Vec<Source>, String> {
        let (sources, problems) = read_all(&self.paths, self.is_recursive);
        if problems.is_empty() { Ok(sources) } else { Err(lines(&problems)) }
    }

    /// Follows the files, and passes the policies of every valid edit to `publish`. Never returns.
    pub(crate) async fn follow(&self, files: &FollowedFiles, publish: impl Fn(&[NamedPolicy])) {
        let name = self.name();
        let apply = |sources: &Vec<Source>| {
            let policies = self.load(sources).and_then(|policies| self.applicable(policies));
            publish(&policies.map_err(|error| format!("{error:#}"))?);
            Ok(())
        };
        files.follow(&name, POLL_INTERVAL, self.sources.clone(), || self.read(), apply).await;
    }

    /// Returns the policies if an engine can apply all of them; otherwise an error with a line for each nack.
    fn applicable(&self, policies: Vec<NamedPolicy>) -> anyhow::Result<Vec<NamedPolicy>> {
        let nacks: Vec<(String, Nack)> = Publisher::misfits(&policies);
        if nacks.is_empty() {
            return Ok(policies);
        }
        let lines = nacks.iter().map(|(name, nack)| format!("{}: {name}: {nack}", self.name()));
        Err(anyhow!(lines.collect::<Vec<_>>().join("\n")))
    }

    /// Returns all policies of the files, or an error with a line for each problem.
    fn load(&self, sources: &[Source]) -> anyhow::Result<Vec<NamedPolicy>> {
        let warn = |warning| tracing::warn!("{warning}");
        load_policies(sources, &self.installation, Some(self.enforcer), |_| (), warn)
    }
}

/// Returns a line for each problem.
fn lines(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// Returns all policies of files that an enforcer enforces, each after an edit, or an error with a line for each problem. `warn` takes
/// the warnings of `sluice check`.
pub(crate) fn load_policies(
    sources: &[Source],
    installation: &Installation,
    enforcer: Option<Enforcer>,
    mut edit: impl FnMut(&mut CompiledPolicy),
    mut warn: impl FnMut(String),
) -> anyhow::Result<Vec<NamedPolicy>> {
    let mut loaded = load_all(sources, installation);
    // Which of two policies of the same name counts would be chance.
    loaded.problems.append(&mut loaded.repeated);
    anyhow::ensure!(loaded.problems.is_empty(), lines(&loaded.problems));
    let names = sources.iter().map(|source| source.name.as_str()).collect::<Vec<_>>().join(", ");
    let mut policies = Vec::new();
    loaded.skipped.iter().chain(&loaded.misread).for_each(|warning| warn(warning.to_string()));
    anyhow::ensure!(!loaded.policies.is_empty(), "{names}: the file contains no RateLimitPolicy");
    for policy in loaded.policies {
        let (takes_part, mend) = match enforcer {
            None => (true, ""),
            Some(Enforcer::Sidecar) => (policy.enforced_by.sidecar, "Sidecar"),
            Some(Enforcer::Service) => (policy.enforced_by.service, "Service"),
        };
        if !takes_part {
            let (file, policy) = (&policy.file, format!("{}/{}", policy.namespace, policy.name));
            warn(format!("{file}: policy {policy} is left out: add {mend} to its spec.enforcedBy"));
            continue;
        }
        for warning in &policy.warnings {
            warn(warning.to_string());
        }
        if let Some(missing) = policy.missing.first() {
            anyhow::bail!("{missing}: add it");
        }
        let mut blobs = Blobs::default();
        policy.tables.into_iter().for_each(|table| blobs.insert(table.into()));
        // All policies count in the store of the command line.
        let mut compiled = CompiledPolicy { store: DEFAULT_STORE.into(), ..policy.compiled };
        edit(&mut compiled);
        let prepared = PreparedPolicy::with_blobs(&compiled.to_json(), &blobs)
            .with_context(|| format!("{}: {}/{}", policy.file, policy.namespace, policy.name))?;
        policies.push((format!("{}/{}", policy.namespace, policy.name), Arc::new(prepared)));
    }
    if let (true, Some(enforcer)) = (policies.is_empty(), enforcer) {
        anyhow::bail!(
            "{names}: no policy has {enforcer:?} in spec.enforcedBy: write enforcedBy: [{enforcer:?}]"
        );
    }
    Ok(policies)
}
