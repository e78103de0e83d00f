//! Reads files, folders and standard input.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Error, ErrorKind, Read as _, Result, stdin};
use std::path::{Path, PathBuf};

use sluice_crds::manifest::{MAX_BYTES, Problem, Source};

/// Reads files. Of a folder, those that end in .yaml, .yml or .json, in the order of their names, as kubectl does; with
/// `is_recursive`, also those of the folders in it. Returns the files, and which could not be read.
pub(crate) fn read_all(paths: &[PathBuf], is_recursive: bool) -> (Vec<Source>, Vec<Problem>) {
    let (mut files, mut problems, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
    for path in paths {
        let listed = if path.is_dir() { list(path, is_recursive) } else { Ok(vec![path.clone()]) };
        let unreadable = |path: &Path, error: Error| {
            let (file, message) = (name(path), error.to_string());
            Problem { file, line: 0, path: String::new(), message }
        };
        match listed {
            Ok(listed) if listed.is_empty() => {
                let error = Error::other("the folder has no file that ends in .yaml, .yml or .json");
                problems.push(unreadable(path, error));
            }
            Ok(listed) => {
                for path in listed {
                    if !seen.insert(path.clone()) {
                        continue;
                    }
                    match read(&path) {
                        Ok(text) => files.push(Source { name: name(&path), text }),
                        Err(error) => problems.push(unreadable(&path, error)),
                    }
                }
            }
            Err(error) => problems.push(unreadable(path, error)),
        }
    }
    (files, problems)
}

/// Lists the manifests in a folder. Names that begin with a dot are left out: volumes of `ConfigMaps` have their versions there.
fn list(folder: &Path, is_recursive: bool) -> Result<Vec<PathBuf>> {
    let mut entries =
        std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    entries.sort();
    let mut files = Vec::new();
    for path in entries {
        let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let has_extension = path
            .extension()
            .is_some_and(|extension| ["yaml", "yml", "json"].iter().any(|known| extension == *known));
        if is_hidden {
            continue;
        }
        if path.is_dir() {
            // A link to a folder is not followed, or it could lead around in a circle.
            if is_recursive && !path.is_symlink() {
                files.extend(list(&path, true)?);
            }
        } else if has_extension {
            files.push(path);
        }
    }
    Ok(files)
}

fn name(path: &Path) -> String {
    if path.as_os_str() == "-" { "<stdin>".to_owned() } else { path.display().to_string() }
}

/// Reads a file as UTF-8; `-` is standard input. Stops one byte after the largest size that a manifest may
/// have.
pub(crate) fn read(file: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    let limit = MAX_BYTES as u64 + 1;
    if file.as_os_str() == "-" {
        stdin().take(limit).read_to_end(&mut bytes)?;
    } else {
        File::open(file)?.take(limit).read_to_end(&mut bytes)?;
    }
    String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        Error::new(ErrorKind::InvalidData, format!("the file is not valid UTF-8 (at byte offset {offset})"))
    })
}
