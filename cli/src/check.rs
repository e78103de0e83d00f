//! `sluice check`: validates policies with exactly the code that admission uses.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use sluice_crds::manifest::{MAX_BYTES, load};
use sluice_crds::summary;

/// Checks every file (`-` is the standard input); prints the limits of what is valid, and on the standard
/// error what is wrong, a line each. Exit code 0: all valid; 1: something is not.
pub fn check(files: &[PathBuf]) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for file in files {
        match check_one(file) {
            Ok(lines) => lines.iter().for_each(|line| println!("{line}")),
            Err(lines) => {
                lines.iter().for_each(|line| eprintln!("{line}"));
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}

fn check_one(file: &Path) -> Result<Vec<String>, Vec<String>> {
    let name = if file.as_os_str() == "-" { "<stdin>".to_owned() } else { file.display().to_string() };
    let text = read(file).map_err(|error| vec![format!("{name}: {error}")])?;
    let loaded = load(&text)
        .map_err(|problems| problems.iter().map(|problem| format!("{name}:{problem}")).collect::<Vec<_>>())?;
    let mut lines = Vec::new();
    for policy in loaded {
        lines.extend(policy.warnings.iter().map(|warning| format!("{name}:{warning} (warning)")));
        let limits = summary::full(&policy.compiled);
        lines.push(format!("{name}: {}/{} is valid: {limits}", policy.namespace, policy.name));
    }
    Ok(lines)
}

/// Reads a file as UTF-8, and no more of it than a manifest may have.
pub fn read(file: &Path) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    let limit = MAX_BYTES as u64 + 1;
    if file.as_os_str() == "-" {
        std::io::stdin().take(limit).read_to_end(&mut bytes)?;
    } else {
        std::fs::File::open(file)?.take(limit).read_to_end(&mut bytes)?;
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        std::io::Error::new(std::io::ErrorKind::InvalidData, format!("the file is not UTF-8 (byte {at})"))
    })
}
