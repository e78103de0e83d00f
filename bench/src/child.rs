//! A program that answers each line with a line: a peer, or this program in another role. It ends with its input, and
//! so with this process.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child as Running, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, ensure};

/// A program that runs, on the cores of this process.
#[derive(Debug)]
pub(crate) struct Child {
    running: Running,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Child {
    /// Starts a program; it says `ready` when it is, see [`Child::ready`].
    pub(crate) fn start(program: &Path, arguments: &[&str]) -> anyhow::Result<Self> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut running =
            command.spawn().with_context(|| format!("{} cannot be started", program.display()))?;
        let input = running.stdin.take().context("no standard input")?;
        let output = BufReader::new(running.stdout.take().context("no standard output")?);
        Ok(Self { running, input, output })
    }

    /// This program in another role.
    pub(crate) fn role(arguments: &[&str]) -> anyhow::Result<Self> {
        let all: Vec<&str> = ["role"].into_iter().chain(arguments.iter().copied()).collect();
        Self::start(&std::env::current_exe()?, &all)
    }

    /// The `limitador` crate, which `run.sh` builds.
    pub(crate) fn limitador(arguments: &[&str]) -> anyhow::Result<Self> {
        let program = std::env::var_os("SLUICE_BENCH_LIMITADOR").context("limitador was not built")?;
        Self::start(Path::new(&program), arguments)
    }

    /// Waits until it is ready.
    pub(crate) fn ready(mut self) -> anyhow::Result<Self> {
        let said = self.answer()?;
        ensure!(said == "ready", "it is not ready, but says {said:?}");
        Ok(self)
    }

    /// Its number.
    pub(crate) fn id(&self) -> u32 {
        self.running.id()
    }

    /// Sends a line.
    pub(crate) fn say(&mut self, line: &str) -> anyhow::Result<()> {
        writeln!(self.input, "{line}").context("a process has ended")
    }

    /// Waits for a line.
    pub(crate) fn answer(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        ensure!(self.output.read_line(&mut line)? > 0, "a process has ended instead of answering");
        Ok(line.trim_end().to_owned())
    }

    /// Sends a line and waits for the answer.
    pub(crate) fn ask(&mut self, line: &str) -> anyhow::Result<String> {
        self.say(line)?;
        self.answer()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.running.kill();
        let _ = self.running.wait();
    }
}

/// Answers lines in a role, until the input ends.
pub(crate) fn serve(mut answer: impl FnMut(&str) -> anyhow::Result<String>) -> anyhow::Result<()> {
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        println!("{}", answer(&line?)?);
    }
    Ok(())
}

/// The two numbers of an answer.
pub(crate) fn numbers(answer: &str) -> anyhow::Result<(f64, u64)> {
    let (first, second) = answer.split_once(' ').with_context(|| format!("{answer:?} is no answer"))?;
    Ok((first.parse()?, second.parse()?))
}
