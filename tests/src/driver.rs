//! Programs that use one of the clients of `clients/`, each in a folder of its own.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;
use tokio::process::Command;

use crate::process::repository_root;

/// Longest time that a client needs for all that it sends, with much to spare.
const PATIENCE: Duration = Duration::from_secs(120);

/// A program that uses a client.
#[derive(Debug)]
pub struct Driver {
    program: &'static str,
    arguments: Vec<PathBuf>,
    folder: TempDir,
}

fn copy(from: &str, to: &Path) {
    let from = repository_root().join(from);
    std::fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
    std::fs::copy(&from, to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
}

impl Driver {
    /// Copies files to a folder, from the paths of the repository to those of the folder.
    fn copy(program: &'static str, files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        files.iter().for_each(|(from, to)| copy(from, &folder.path().join(to)));
        Self { program, arguments: Vec::new(), folder }
    }

    async fn build(&self, program: &str, arguments: &[&str]) {
        let output = Command::new(program).args(arguments).current_dir(self.folder.path()).output().await;
        let output = output.unwrap_or_else(|error| panic!("{program}: {error}: run tests/node/apt.sh test"));
        assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    }

    /// Prepares `tests/clients/python/PROGRAM.py` with `clients/CLIENT.py`.
    ///
    /// # Panics
    /// A file cannot be copied.
    #[must_use]
    pub fn python(client: &str, program: &str) -> Self {
        let client = format!("{client}.py");
        let files = [
            (&*format!("clients/{client}"), &*client),
            (&*format!("tests/clients/python/{program}.py"), "main.py"),
        ];
        Self { arguments: vec!["main.py".into()], ..Self::copy("python3", &files) }
    }

    /// Builds `tests/clients/go/PROGRAM.go` with `clients/CLIENT.go`, in a package of the client's name.
    ///
    /// # Panics
    /// It cannot be built.
    pub async fn go(client: &str, program: &str) -> Self {
        let driver = Self::copy(
            "./driver",
            &[
                (&format!("clients/{client}.go"), &format!("{client}/{client}.go")),
                (&format!("tests/clients/go/{program}.go"), "main.go"),
                ("tests/clients/go/go.mod", "go.mod"),
            ],
        );
        driver.build("go", &["vet", "./..."]).await;
        driver.build("go", &["build", "-o", "driver", "."]).await;
        driver
    }

    /// Builds `tests/clients/typescript/PROGRAM.ts` with `clients/CLIENT.ts`.
    ///
    /// # Panics
    /// It cannot be built.
    pub async fn typescript(client: &str, program: &str) -> Self {
        let from = format!("clients/{client}.ts");
        let driver = Self::copy(
            "node",
            &[
                (&from, &format!("{client}.ts")),
                (&format!("tests/clients/typescript/{program}.ts"), "main.ts"),
                ("tests/clients/typescript/package.json", "package.json"),
                ("tests/clients/typescript/package-lock.json", "package-lock.json"),
            ],
        );
        driver.build("npm", &["ci", "--no-audit", "--no-fund"]).await;
        // What a newcomer begins with. Node.js runs what is erasable without a compiler.
        let tsc = "node_modules/.bin/tsc";
        driver.build(tsc, &["--init"]).await;
        driver.build(tsc, &["--erasableSyntaxOnly"]).await;
        // A package without `"type": "module"` has modules by their name.
        let other = driver.folder.path().join("other");
        copy(&from, &other.join(format!("{client}.mts")));
        std::fs::write(other.join("package.json"), "{}").expect("a file");
        std::fs::copy(driver.folder.path().join("tsconfig.json"), other.join("tsconfig.json"))
            .expect("a file");
        driver.build(tsc, &["--project", "other", "--erasableSyntaxOnly"]).await;
        Self { arguments: vec!["main.js".into()], ..driver }
    }

    /// Runs the program, and returns the lines that it prints.
    ///
    /// # Panics
    /// It fails.
    pub async fn run(&self, arguments: &[&str]) -> Vec<String> {
        let mut command = Command::new(self.program);
        command.args(&self.arguments).args(arguments);
        command.current_dir(self.folder.path()).stdin(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(PATIENCE, command.output()).await.expect("the client ends");
        let output = output.unwrap_or_else(|error| panic!("{}: {error}", self.program));
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("UTF-8").lines().map(str::to_owned).collect()
    }
}
