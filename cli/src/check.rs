//! `sluice check`: validates policy files with the code that admission uses.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use serde::Serialize;
use sluice_crds::Installation;
use sluice_crds::checks::installation::InstallationArgs;
use sluice_crds::manifest::{Loaded, Problem, load_all};
use sluice_crds::summary;
use sluice_host::logging::say;

use crate::input::read_all;
use crate::output;

/// Arguments of `sluice check`.
#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    installation: InstallationArgs,
    /// Policy files, or folders with them; - reads standard input
    #[arg(required_unless_present = "filename")]
    files: Vec<PathBuf>,
    /// Policy file, or folder with them; may be repeated
    #[arg(short, long, value_name = "FILE")]
    filename: Vec<PathBuf>,
    /// Also read the folders in a folder
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Take warnings as errors
    #[arg(long)]
    strict: bool,
    /// Print errors only, and warnings with --strict
    #[arg(short, long)]
    quiet: bool,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: CheckFormat,
}

/// The format of the output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum CheckFormat {
    /// For people
    #[default]
    Text,
    /// For programs
    Json,
    /// Commands of a workflow of GitHub, which show each line beside the file
    Github,
}

/// The result, in JSON.
#[derive(Debug, Serialize)]
struct CheckResult {
    /// Names of the files.
    #[serde(skip)]
    files: Vec<String>,
    /// Whether nothing is wrong.
    valid: bool,
    objects: Vec<CheckedObject>,
    warnings: Vec<Problem>,
    errors: Vec<Problem>,
}

/// A valid object.
#[derive(Debug, Serialize)]
struct CheckedObject {
    file: String,
    kind: &'static str,
    namespace: String,
    name: String,
    summary: String,
}

/// Checks every file for an installation. Prints a line for each valid object and each warning to standard output, and a line for
/// each problem to standard error. Exits with 0 if all files are valid, otherwise with 1.
pub(crate) fn check(args: CheckArgs) -> ExitCode {
    let CheckArgs { installation, mut files, filename, recursive, strict, quiet, output } = args;
    files.extend(filename);
    let checked = CheckResult::of(&files, recursive, strict, &(&installation).into());
    let written = match output {
        CheckFormat::Json => {
            serde_json::to_string_pretty(&checked).map_or(Ok(()), |json| output::write(&(json + "\n")))
        }
        CheckFormat::Github => output::write(&checked.github()),
        CheckFormat::Text => {
            let written = if quiet { Ok(()) } else { output::write(&checked.text()) };
            if !checked.errors.is_empty() {
                say(&checked.errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
            }
            written
        }
    };
    match written {
        // A reader that has left, such as head, need not know the rest.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            say(&format!("cannot write to standard output: {error}"));
            ExitCode::FAILURE
        }
        _ if checked.valid => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

impl CheckResult {
    fn of(paths: &[PathBuf], is_recursive: bool, is_strict: bool, installation: &Installation) -> Self {
        let (files, mut errors) = read_all(paths, is_recursive);
        let Loaded { policies, stores, skipped, misread, repeated, problems } =
            if files.is_empty() { Loaded::default() } else { load_all(&files, installation) };
        let of_template = problems.iter().find(|problem| {
            let mut texts = files.iter().filter(|file| file.name == problem.file).map(|file| &file.text);
            texts.any(|text| text.contains("{{") && text.contains("}}"))
        });
        let hint = of_template.map(|Problem { file, line, .. }| Problem {
            file: file.clone(),
            line: *line,
            path: String::new(),
            message: "if this is a template of Helm, render it first: helm template ... | sluice check -"
                .to_owned(),
        });
        errors.extend(problems);
        errors.extend(hint);
        let mut warnings: Vec<_> = skipped.into_iter().chain(misread).chain(repeated).collect();
        let mut objects = Vec::new();
        for store in stores {
            let summary = summary::of_store(&store.compiled);
            let (file, namespace, name) = (store.file, store.namespace, store.name);
            objects.push(CheckedObject { file, kind: "RateLimitStore", namespace, name, summary });
        }
        for policy in policies {
            warnings.extend(policy.warnings);
            warnings.extend(policy.missing.into_iter().map(|missing| {
                let message = format!("{}, so it is not checked", missing.message);
                Problem { message, ..missing }
            }));
            let summary = summary::full(&policy.compiled);
            let (file, namespace, name) = (policy.file, policy.namespace, policy.name);
            objects.push(CheckedObject { file, kind: "RateLimitPolicy", namespace, name, summary });
        }
        // An object is valid if its file is.
        objects.retain(|object| !errors.iter().any(|error| error.file == object.file));
        if is_strict {
            errors.append(&mut warnings);
        }
        let files = files.into_iter().map(|file| file.name).collect();
        Self { files, valid: errors.is_empty(), objects, warnings, errors }
    }

    /// Returns a line for each warning and each valid object, file by file.
    fn text(&self) -> String {
        let mut lines = String::new();
        for file in &self.files {
            for Problem { file, line, path, message } in self.warnings.iter().filter(|one| one.file == *file)
            {
                lines += &format!("{file}:{line}: warning: {path}: {message}\n");
            }
            for CheckedObject { file, kind: _, namespace, name, summary } in
                self.objects.iter().filter(|one| one.file == *file)
            {
                lines += &format!("{file}: {namespace}/{name} is valid: {summary}\n");
            }
        }
        lines
    }

    /// Returns a command of a workflow for each error and each warning.
    fn github(&self) -> String {
        let data = |text: &str| text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A");
        let property = |text: &str| data(text).replace(':', "%3A").replace(',', "%2C");
        let line = |level: &str, problem: &Problem| {
            let Problem { file, line, path, message } = problem;
            let message = if path.is_empty() { message.clone() } else { format!("{path}: {message}") };
            format!("::{level} file={},line={line}::{}\n", property(file), data(&message))
        };
        let errors = self.errors.iter().map(|problem| line("error", problem));
        errors.chain(self.warnings.iter().map(|problem| line("warning", problem))).collect()
    }
}
