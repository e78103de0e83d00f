//! `sluice check`: validates policy files with the code that admission uses.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use sluice_crds::Installation;
use sluice_crds::manifest::{Problem, load};
use sluice_crds::summary;
use sluice_host::logging::say;

use crate::input::read;
use crate::output;

/// Checks every file for an installation; `-` is standard input. Prints a line for each valid object and each warning to standard
/// output, and a line for each problem to standard error. Exits with 0 if all files are valid, otherwise with
/// 1.
pub(crate) fn check(files: &[PathBuf], installation: &Installation) -> ExitCode {
    let (mut code, mut is_read) = (ExitCode::SUCCESS, true);
    for file in files {
        match check_one(file, installation) {
            Ok(lines) if is_read => match output::write(&(lines.join("\n") + "\n")) {
                Ok(()) => {}
                // What is left to find out is whether the files are valid.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => is_read = false,
                Err(error) => {
                    say(&format!("cannot write to standard output: {error}"));
                    return ExitCode::FAILURE;
                }
            },
            Ok(_) => {}
            Err(lines) => {
                say(&lines.join("\n"));
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}

fn check_one(file: &Path, installation: &Installation) -> Result<Vec<String>, Vec<String>> {
    let name = if file.as_os_str() == "-" { "<stdin>".to_owned() } else { file.display().to_string() };
    let text = read(file).map_err(|error| vec![format!("{name}: {error}")])?;
    let loaded = load(&text, installation).map_err(|problems| {
        let mut lines: Vec<_> = problems.iter().map(|problem| format!("{name}:{problem}")).collect();
        if text.contains("{{") && text.contains("}}") {
            lines.push(format!(
                "{name}: if this is a template of Helm, render it first: helm template ... | sluice check -"
            ));
        }
        lines
    })?;
    let mut lines = Vec::new();
    for Problem { line, path, message } in loaded.skipped.iter().chain(&loaded.misread) {
        lines.push(format!("{name}:{line}: warning: {path}: {message}"));
    }
    for store in &loaded.stores {
        lines.push(format!(
            "{name}: {}/{} is valid: {}",
            store.namespace,
            store.name,
            summary::of_store(&store.compiled)
        ));
    }
    for policy in loaded.policies {
        for Problem { line, path, message } in &policy.warnings {
            lines.push(format!("{name}:{line}: warning: {path}: {message}"));
        }
        for Problem { line, path, message } in &policy.missing {
            lines.push(format!("{name}:{line}: warning: {path}: {message}, so it is not checked"));
        }
        let limits = summary::full(&policy.compiled);
        lines.push(format!("{name}: {}/{} is valid: {limits}", policy.namespace, policy.name));
    }
    Ok(lines)
}
