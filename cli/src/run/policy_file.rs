//! The policy file, read again whenever its content changes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use sluice_config::policy::DEFAULT_STORE;
use sluice_config::prepared::Blobs;
use sluice_config::{CompiledPolicy, Nack, PreparedPolicy};
use sluice_crds::Installation;
use sluice_crds::manifest::load;
use sluice_crds::policy::Enforcer;
use sluice_engine::{FollowedFiles, Publisher};

use crate::input::read;

/// Interval at which the policy file is checked for changes.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// A policy with its name as `NAMESPACE/NAME`.
pub(crate) type NamedPolicy = (String, Arc<PreparedPolicy>);

/// The policy file.
#[derive(Debug)]
pub(crate) struct PolicyFile {
    path: PathBuf,
    installation: Installation,
    /// Only the policies that this enforces take part.
    enforcer: Enforcer,
    /// The content that is in force.
    text: String,
}

impl PolicyFile {
    /// Opens the file and loads its policies.
    pub(crate) fn open(
        path: PathBuf,
        installation: Installation,
        enforcer: Enforcer,
    ) -> anyhow::Result<(Self, Vec<NamedPolicy>)> {
        let text = read(&path).with_context(|| path.display().to_string())?;
        let file = Self { path, installation, enforcer, text };
        let policies = file.load(&file.text)?;
        Ok((file, policies))
    }

    /// Returns the name of the file.
    pub(crate) fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// Follows the file, and passes the policies of every valid edit to `publish`. Never returns.
    pub(crate) async fn follow(&self, files: &FollowedFiles, publish: impl Fn(&[NamedPolicy])) {
        let name = self.name();
        let read = || read(&self.path).map_err(|error| format!("{name}: {error}"));
        let apply = |text: &String| {
            let policies = self.load(text).and_then(|policies| self.applicable(policies));
            publish(&policies.map_err(|error| format!("{error:#}"))?);
            Ok(())
        };
        files.follow(&name, POLL_INTERVAL, self.text.clone(), read, apply).await;
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

    /// Returns all policies of a text, or an error with a line for each problem.
    fn load(&self, text: &str) -> anyhow::Result<Vec<NamedPolicy>> {
        let takes = Some(self.enforcer);
        load_policies(
            &self.name(),
            text,
            &self.installation,
            takes,
            |_| (),
            |warning| {
                tracing::warn!("{warning}");
            },
        )
    }
}

/// Returns all policies of a file with this name and text that an enforcer enforces, each after an edit, or an error with a line for each
/// problem. `warn` takes the warnings of `sluice check`.
pub(crate) fn load_policies(
    name: &str,
    text: &str,
    installation: &Installation,
    enforcer: Option<Enforcer>,
    mut edit: impl FnMut(&mut CompiledPolicy),
    mut warn: impl FnMut(String),
) -> anyhow::Result<Vec<NamedPolicy>> {
    let loaded = load(text, installation).map_err(|problems| {
        let lines: Vec<_> = problems.iter().map(|problem| format!("{name}:{problem}")).collect();
        anyhow!(lines.join("\n"))
    })?;
    let mut policies = Vec::new();
    loaded.skipped.iter().chain(&loaded.misread).for_each(|warning| warn(format!("{name}:{warning}")));
    anyhow::ensure!(!loaded.policies.is_empty(), "{name}: the file contains no RateLimitPolicy");
    for policy in loaded.policies {
        let (takes_part, mend) = match enforcer {
            None => (true, ""),
            Some(Enforcer::Sidecar) => (policy.enforced_by.sidecar, "Sidecar"),
            Some(Enforcer::Service) => (policy.enforced_by.service, "Service"),
        };
        if !takes_part {
            let policy = format!("{}/{}", policy.namespace, policy.name);
            warn(format!("{name}: policy {policy} is left out: add {mend} to its spec.enforcedBy"));
            continue;
        }
        for warning in &policy.warnings {
            warn(format!("{name}:{warning}"));
        }
        if let Some(missing) = policy.missing.first() {
            anyhow::bail!("{name}:{missing}: add it");
        }
        let mut blobs = Blobs::default();
        policy.tables.into_iter().for_each(|table| blobs.insert(table.into()));
        // All policies count in the store of the command line.
        let mut compiled = CompiledPolicy { store: DEFAULT_STORE.into(), ..policy.compiled };
        edit(&mut compiled);
        let prepared = PreparedPolicy::with_blobs(&compiled.to_json(), &blobs)
            .with_context(|| format!("{name}: {}/{}", policy.namespace, policy.name))?;
        policies.push((format!("{}/{}", policy.namespace, policy.name), Arc::new(prepared)));
    }
    if let (true, Some(enforcer)) = (policies.is_empty(), enforcer) {
        anyhow::bail!(
            "{name}: no policy has {enforcer:?} in spec.enforcedBy: write enforcedBy: [{enforcer:?}]"
        );
    }
    Ok(policies)
}
