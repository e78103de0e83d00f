//! The policy file, read again whenever its content changes. Comparing the content, not times or inodes,
//! detects every way to replace a file: editors rename a new file over it, and ConfigMap volumes swap
//! symbolic links.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use sluice_config::policy::DEFAULT_STORE;
use sluice_config::prepared::Blobs;
use sluice_config::{CompiledPolicy, PreparedPolicy};
use sluice_crds::Installation;
use sluice_crds::manifest::load;

use crate::input::read;

/// A policy with its name as `NAMESPACE/NAME`.
pub(crate) type NamedPolicy = (String, Arc<PreparedPolicy>);

/// The policy file, with the content that was read last.
#[derive(Debug)]
pub(crate) struct PolicyFile {
    path: PathBuf,
    installation: Installation,
    /// Content of the file, or the error of reading it.
    last: Result<String, String>,
}

impl PolicyFile {
    /// Opens the file and loads its policies.
    pub(crate) fn open(
        path: PathBuf,
        installation: Installation,
    ) -> anyhow::Result<(Self, Vec<NamedPolicy>)> {
        let text = read(&path).with_context(|| path.display().to_string())?;
        let file = Self { path, installation, last: Ok(text.clone()) };
        let policies = file.load(&text)?;
        Ok((file, policies))
    }

    /// Returns the name of the file.
    pub(crate) fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// Reads the file again. Returns its policies, or the reason why they cannot be loaded; `None` if nothing
    /// changed.
    pub(crate) fn changed(&mut self) -> Option<anyhow::Result<Vec<NamedPolicy>>> {
        let now = read(&self.path).map_err(|error| error.to_string());
        if now == self.last {
            return None;
        }
        let policies = match &now {
            Ok(text) => self.load(text),
            Err(error) => Err(anyhow!("{}: {error}", self.name())),
        };
        self.last = now;
        Some(policies)
    }

    /// Returns all policies of a text, or an error with a line for each problem.
    fn load(&self, text: &str) -> anyhow::Result<Vec<NamedPolicy>> {
        load_policies(&self.name(), text, &self.installation, |_| (), |warning| tracing::warn!("{warning}"))
    }
}

/// Returns all policies of a file with this name and text, each after an edit, or an error with a line for each problem. `warn` takes the
/// warnings of `sluice check`.
pub(crate) fn load_policies(
    name: &str,
    text: &str,
    installation: &Installation,
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
    Ok(policies)
}
