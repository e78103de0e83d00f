//! The rules of a directory, which is read again when its files change. The names of files that Kubernetes keeps for itself begin with
//! two dots, and are left out: the files of a `ConfigMap` are links into them.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::compat::compile::ConfigError;
use crate::compat::config::DomainConfig;

/// Interval at which the directory is read.
pub(crate) const READ_EVERY: Duration = Duration::from_millis(250);
/// It is read at most 1 % of the time, so that very many files are read less often.
pub(crate) const READ_COST: u32 = 100;
/// Number of times for which a link may lead nowhere before it is an error.
const MAX_DANGLING: u32 = 40;
/// Most files of a directory, and most levels of folders.
const MAX_FILES: usize = 100_000;
const MAX_DEPTH: usize = 16;
/// Largest file, in bytes.
const MAX_BYTES: u64 = 64 << 20;

/// A directory with rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directory {
    /// The directory.
    pub path: PathBuf,
    /// Whether files whose names begin with one dot are left out too.
    pub ignores_dot_files: bool,
}

/// Tells whether a file has changed: its path, device and number, the times of its last changes, and its length.
type Stamp = (PathBuf, [u64; 3], [i64; 4]);

/// A directory that is followed.
#[derive(Debug)]
pub(crate) struct FollowedDirectory {
    directory: Directory,
    /// The files that were read last.
    seen: Option<Vec<Stamp>>,
    /// How often in a row a link led nowhere.
    dangling: u32,
}

/// The reason why there are no stamps.
enum NoStamps {
    /// A link leads nowhere right now: its target may be replaced at this moment.
    Dangling(PathBuf),
    Failed(ConfigError),
}

impl NoStamps {
    fn into_error(self) -> ConfigError {
        match self {
            Self::Dangling(path) => {
                ConfigError { file: path.display().to_string(), reason: "the link leads nowhere".to_owned() }
            }
            Self::Failed(error) => error,
        }
    }
}

impl FollowedDirectory {
    pub(crate) fn new(directory: Directory) -> Self {
        Self { directory, seen: None, dangling: 0 }
    }

    /// Returns the path of the directory.
    pub(crate) fn name(&self) -> String {
        self.directory.path.display().to_string()
    }

    /// Has the files read again, whether they have changed or not.
    pub(crate) fn forget(&mut self) {
        self.seen = None;
    }

    /// Reads the files if they have changed since the last call.
    pub(crate) fn changed(&mut self) -> Option<Result<Vec<(String, DomainConfig)>, ConfigError>> {
        let stamps = self.stamps();
        self.dangling = if matches!(stamps, Err(NoStamps::Dangling(_))) { self.dangling + 1 } else { 0 };
        let stamps = match stamps {
            Ok(stamps) => stamps,
            Err(NoStamps::Dangling(_)) if self.dangling < MAX_DANGLING => return None,
            Err(reason) => {
                let error = reason.into_error();
                // Told once, until the directory can be read again.
                let is_new = self.seen.replace(Vec::new()).is_none_or(|seen| !seen.is_empty());
                return is_new.then_some(Err(error));
            }
        };
        if self.seen.as_ref() == Some(&stamps) {
            return None;
        }
        let read = stamps.iter().map(|(path, ..)| self.read(path)).collect();
        // Files that have changed while they were read may not belong together: all are read again.
        if self.stamps().ok().as_ref() != Some(&stamps) {
            return None;
        }
        self.seen = Some(stamps);
        Some(read)
    }

    fn read(&self, path: &Path) -> Result<(String, DomainConfig), ConfigError> {
        let name = path.strip_prefix(&self.directory.path).unwrap_or(path).display().to_string();
        let failed = |reason: String| ConfigError { file: name.clone(), reason };
        let bytes = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
        let text =
            String::from_utf8(bytes).map_err(|error| failed(format!("the file is not UTF-8: {error}")))?;
        let config = DomainConfig::from_yaml(&text).map_err(failed)?;
        Ok((name, config))
    }

    /// Returns the files, in the order of their names.
    fn stamps(&self) -> Result<Vec<Stamp>, NoStamps> {
        let mut stamps = Vec::new();
        self.collect(&self.directory.path, 0, &mut stamps)?;
        stamps.sort();
        Ok(stamps)
    }

    fn collect(&self, folder: &Path, depth: usize, stamps: &mut Vec<Stamp>) -> Result<(), NoStamps> {
        let failed = |path: &Path, reason: String| {
            NoStamps::Failed(ConfigError { file: path.display().to_string(), reason })
        };
        let entries = std::fs::read_dir(folder).map_err(|error| failed(folder, error.to_string()))?;
        for entry in entries {
            let path = entry.map_err(|error| failed(folder, error.to_string()))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with("..") || self.directory.ignores_dot_files && name.starts_with('.') {
                continue;
            }
            let metadata = match std::fs::metadata(&path) {
                Ok(metadata) => metadata,
                Err(error) if error.kind() == ErrorKind::NotFound => return Err(NoStamps::Dangling(path)),
                Err(error) => return Err(failed(&path, error.to_string())),
            };
            if metadata.is_dir() {
                if depth < MAX_DEPTH {
                    self.collect(&path, depth + 1, stamps)?;
                }
            } else if metadata.len() > MAX_BYTES {
                return Err(failed(&path, format!("larger than {} MiB", MAX_BYTES >> 20)));
            } else if stamps.len() == MAX_FILES {
                return Err(failed(folder, format!("more than {MAX_FILES} files")));
            } else {
                let numbers = [metadata.dev(), metadata.ino(), metadata.len()];
                let times =
                    [metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec()];
                stamps.push((path, numbers, times));
            }
        }
        Ok(())
    }
}
