//! The tests of a module once more, with the other servers that the documentation names: Valkey, and Redis 6.2, the oldest
//! version. The program starts itself again, with another server instead of `redis-server`.

use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

use crate::support::PROGRAM;

/// Adds a test for each of the other servers, which runs all tests of this module with it.
macro_rules! pass_with_other_servers {
    () => {
        mod servers {
            #[test]
            fn all_tests_pass_with_valkey() {
                crate::servers::VALKEY.run_tests(module_path!());
            }

            #[test]
            fn all_tests_pass_with_redis_6_2() {
                crate::servers::REDIS_6_2.run_tests(module_path!());
            }
        }
    };
}
pub(crate) use pass_with_other_servers;

/// A server, and the tests that it cannot pass.
pub(crate) struct Server {
    name: &'static str,
    /// Variable of the environment that names its program.
    variable: &'static str,
    /// Program that is used if the variable is not set.
    on_path: Option<&'static str>,
    /// Script that prints the path of its program.
    script: &'static str,
    /// Text that its program prints with `--version`.
    version: &'static str,
    left_out: &'static [LeftOut],
}

/// Tests that are not run, and the reason.
struct LeftOut {
    /// Module of the tests, as `store/tests/main.rs` names it.
    of: &'static str,
    /// Text that the names of these tests contain.
    tests: &'static str,
    reason: &'static str,
    /// Whether the reason is true of a program.
    is_true_of: fn(&str) -> bool,
}

pub(crate) const VALKEY: Server = Server {
    name: "Valkey",
    variable: "SLUICE_VALKEY",
    on_path: Some("valkey-server"),
    script: "tests/node/valkey.sh",
    version: "Valkey server v=",
    left_out: &[
        MUTANTS,
        LEASED_WINDOWS,
        CUT_OFF,
        LeftOut {
            of: "redis_topology",
            tests: "a_server_that_has_left_the_cluster",
            reason: "the redis-cli of Redis 7.0 does not always move the hash slots of Valkey 8",
            is_true_of: |_| true,
        },
    ],
};

pub(crate) const REDIS_6_2: Server = Server {
    name: "Redis 6.2",
    variable: "SLUICE_REDIS_6_2",
    on_path: None,
    script: "tests/node/redis62.sh",
    version: "Redis server v=6.2.",
    left_out: &[
        MUTANTS,
        LEASED_WINDOWS,
        CUT_OFF,
        LeftOut {
            of: "redis_recovery",
            tests: "a_store_waits_on_one_connection_while_redis_reads_its_data",
            reason: "Redis can be made to load slowly since version 7.0",
            is_true_of: |_| true,
        },
        LeftOut { tests: "bounds::", ..MANAGED },
        LeftOut { tests: "failover::", ..MANAGED },
        LeftOut { tests: "managed::", ..MANAGED },
        LeftOut {
            of: "redis_tls",
            tests: "store_",
            reason: "this build of the server has no TLS",
            is_true_of: |program| !has_tls(program),
        },
    ],
};

const MUTANTS: LeftOut = LeftOut {
    of: "redis_differential",
    tests: "mutants::",
    reason: "they test the comparison with the reference, and not the server",
    is_true_of: |_| true,
};

const LEASED_WINDOWS: LeftOut = LeftOut {
    of: "leases",
    tests: "aligned_windows",
    reason: "they wait for the ends of windows, and the server does nothing there that other tests do not need",
    is_true_of: |_| true,
};

const CUT_OFF: LeftOut =
    LeftOut { of: "local_quota", tests: "when_some_replicas_are_cut_off", ..LEASED_WINDOWS };

const MANAGED: LeftOut = LeftOut {
    of: "redis_access",
    tests: "",
    reason: "managed stores need functions, which Redis has since version 7.0",
    is_true_of: |_| true,
};

/// Held while the tests run again: two more servers at the same time would slow each other down.
static RUNNING: Mutex<()> = Mutex::new(());

impl Server {
    /// Runs the tests of a module with the server, given the path of the module within it that the macro has made.
    pub(crate) fn run_tests(&self, servers: &str) {
        let _running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        let program = self.program();
        let module = servers.split("::").nth(1).expect("a module of this program");
        let list = text(&this_program(&["--list"], &program));
        let mut tests: Vec<&str> = list
            .lines()
            .filter_map(|line| line.strip_suffix(": test"))
            .filter(|test| test.strip_prefix(module).is_some_and(|test| test.starts_with("::")))
            .filter(|test| !test.contains("::servers::"))
            .collect();
        for LeftOut { of, tests: named, reason, is_true_of } in self.left_out {
            if *of != module || !is_true_of(&program) {
                continue;
            }
            println!("without {named}: {reason}");
            let all = tests.len();
            tests.retain(|test| !test.contains(named));
            assert!(tests.len() < all, "{of} has no tests named {named}: adapt the list");
        }
        assert!(!tests.is_empty(), "{module} has no test for {}", self.name);
        let output = this_program(&[&["--exact"], &tests[..]].concat(), &program);
        println!("{}", text(&output));
        assert!(output.status.success(), "a test fails with {}, which is {program}", self.name);
    }

    /// Returns the program of the server, which must be installed.
    fn program(&self) -> String {
        let Self { name, variable, script, .. } = self;
        let named = std::env::var(variable).ok().filter(|program| !program.is_empty());
        let help = format!(
            "`make test` installs {name} and sets {variable}, which is the path that {script} prints"
        );
        let Some(program) = named.or_else(|| self.on_path.map(str::to_owned)) else {
            panic!("these tests also need {name}, but {variable} is not set: {help}");
        };
        match Command::new(&program).arg("--version").output() {
            Ok(output) if text(&output).contains(self.version) => program,
            Ok(output) => panic!("{program} is not {name}, but {:?}: {help}", text(&output).trim()),
            Err(error) => {
                panic!("these tests also need {name}, but {program} cannot be run: {error}; {help}")
            }
        }
    }
}

/// Returns whether a server was built with TLS. It ends at once: without TLS it does not know the option, and with TLS it has
/// nothing to listen on.
fn has_tls(program: &str) -> bool {
    let listening_nowhere = Command::new(program).args(["--port", "0", "--tls-port", "0"]).output();
    listening_nowhere.is_ok_and(|output| !text(&output).contains("FATAL CONFIG FILE ERROR"))
}

/// Runs this test program with another server.
fn this_program(arguments: &[&str], server: &str) -> Output {
    let program = std::env::current_exe().expect("the path of this program");
    let mut command = Command::new(program);
    // The scripts are the same for all servers: a part of the checks finds a server that runs them in another way.
    command.args(arguments).env(PROGRAM, server);
    command.env("SLUICE_DIFFERENTIAL_CHECKS", "3000").env("SLUICE_FLOOD_KEYS", "100000");
    command.output().expect("this program can be run again")
}

/// Returns what a program printed.
fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}
