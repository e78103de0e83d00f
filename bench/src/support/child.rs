//! Child processes that read a line and answer with a line: a peer, or this program in another role. A child
//! exits when its standard input closes, so it does not outlive this process.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child as ChildProcess, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, ensure};

/// A running child on the cores of this process.
#[derive(Debug)]
pub(crate) struct Child {
    process: ChildProcess,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Child {
    /// Starts a program. It prints `ready` once it has set up: see [`Child::wait_until_ready`].
    pub(crate) fn start(program: &Path, arguments: &[&str]) -> anyhow::Result<Self> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        let input = process.stdin.take().context("the child has no standard input")?;
        let output = BufReader::new(process.stdout.take().context("the child has no standard output")?);
        Ok(Self { process, input, output })
    }

    /// Starts this program in another role.
    pub(crate) fn start_role(arguments: &[&str]) -> anyhow::Result<Self> {
        let all: Vec<&str> = ["role"].into_iter().chain(arguments.iter().copied()).collect();
        Self::start(&std::env::current_exe()?, &all)
    }

    /// Waits for `ready`.
    pub(crate) fn wait_until_ready(mut self) -> anyhow::Result<Self> {
        let line = self.receive()?;
        ensure!(line == "ready", "expected `ready` from the child, received {line:?}");
        Ok(self)
    }

    /// The process ID.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends a line.
    pub(crate) fn send(&mut self, line: &str) -> anyhow::Result<()> {
        writeln!(self.input, "{line}").context("the child has exited")
    }

    /// Waits for a line.
    pub(crate) fn receive(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        ensure!(self.output.read_line(&mut line)? > 0, "the child has exited without an answer");
        Ok(line.trim_end().to_owned())
    }

    /// Sends a line and waits for the answer.
    pub(crate) fn request(&mut self, line: &str) -> anyhow::Result<String> {
        self.send(line)?;
        self.receive()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Both fail if the child has already exited.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs the child's end: prints `ready`, then answers each line until standard input closes.
pub(crate) fn serve(mut answer: impl FnMut(&str) -> anyhow::Result<String>) -> anyhow::Result<()> {
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        println!("{}", answer(&line?)?);
    }
    Ok(())
}

/// Parses an answer of two numbers.
pub(crate) fn parse_pair(answer: &str) -> anyhow::Result<(f64, u64)> {
    let (first, second) = answer.split_once(' ').with_context(|| format!("{answer:?} is not two numbers"))?;
    Ok((first.parse()?, second.parse()?))
}
