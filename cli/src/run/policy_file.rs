//! A file of policies, read again whenever its content changes. Content is compared, not times or inodes:
//! editors rename, ConfigMaps swap links, and both must be seen.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use sluice_config::PreparedPolicy;
use sluice_crds::manifest::load;

use crate::check::read;

/// `NAMESPACE/NAME`, and the policy.
pub(crate) type Named = (String, Arc<PreparedPolicy>);

/// The file, and what it said last.
#[derive(Debug)]
pub(crate) struct PolicyFile {
    path: PathBuf,
    /// What was last read; or what was wrong with reading.
    seen: Result<String, String>,
}

impl PolicyFile {
    /// Opens it: what is wrong with it now is an error.
    pub(crate) fn open(path: PathBuf) -> anyhow::Result<(Self, Vec<Named>)> {
        let text = read(&path).with_context(|| path.display().to_string())?;
        let file = Self { path, seen: Ok(text.clone()) };
        let policies = file.policies(&text)?;
        Ok((file, policies))
    }

    /// Its name.
    pub(crate) fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// What it says now, if that is something new.
    pub(crate) fn changed(&mut self) -> Option<anyhow::Result<Vec<Named>>> {
        let now = read(&self.path).map_err(|error| error.to_string());
        if now == self.seen {
            return None;
        }
        let policies = match &now {
            Ok(text) => self.policies(text),
            Err(error) => Err(anyhow!("{}: {error}", self.name())),
        };
        self.seen = now;
        Some(policies)
    }

    /// All policies of a text, or everything that is wrong with it, a line each.
    fn policies(&self, text: &str) -> anyhow::Result<Vec<Named>> {
        let name = self.name();
        let loaded = load(text).map_err(|problems| {
            let lines: Vec<_> = problems.iter().map(|problem| format!("{name}:{problem}")).collect();
            anyhow!(lines.join("\n"))
        })?;
        let mut policies = Vec::new();
        for policy in loaded {
            for warning in &policy.warnings {
                tracing::warn!("{name}:{warning}");
            }
            let prepared = PreparedPolicy::from_json(&policy.compiled.to_json())
                .with_context(|| format!("{name}: {}/{}", policy.namespace, policy.name))?;
            policies.push((format!("{}/{}", policy.namespace, policy.name), Arc::new(prepared)));
        }
        Ok(policies)
    }
}
