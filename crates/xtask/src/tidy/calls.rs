//! Checks functions that only some files may call.
//!
//! The convenient ways to start a thread panic when the system refuses, so a user's process limit
//! would end a server or a worker. Text that is written to a terminal without its console may
//! contain control characters from others. Files created by the standard library can be read by
//! other users. Works on lines, like `source`; tests, benchmarks and examples are exempt.

use super::Problem;

/// A function, the files that may call it, and the alternative.
struct Rule {
    word: &'static str,
    /// Prefixes of paths.
    allowed: &'static [&'static str],
    advice: &'static str,
}

/// Where all runtimes with blocking threads are built.
const RUNTIMES: &str = "crates/cli/src/runtime.rs";
/// A runtime with only a timer, on a separate thread.
const CORE_THREAD: &str = "crates/server/src/core_thread.rs";
const BLOCKING: &str = "a client's runtime has no blocking threads; start one with `thread::Builder` and handle the error";
const RUNTIME: &str = "take one of `cli::runtime`, which keeps a blocking thread";
const PANICS: &str =
    "it panics at the limit of processes; use `thread::Builder` and handle the error";
const NAMES: &str =
    "it takes a blocking thread for a name; use `hq_protocol::{resolve, connect_tcp}`";

/// Files that run on a runtime from [`RUNTIMES`] that has blocking threads.
const WITH_BLOCKING: &[&str] = &[
    RUNTIMES,
    "crates/cli/src/command/worker/start.rs",
    "crates/server/src/",
    "crates/worker/src/",
    // This file uses only the caller's runtime, which `worker` does not choose.
    "crates/spawn/src/launcher.rs",
];

const TERMINAL: &str =
    "hidden characters of others reach the terminal; use `Context::out` or `console::error_line`";

/// Files that may write raw text to a terminal.
const WITH_TERMINAL: &[&str] = &[
    "crates/cli/src/output/console.rs",
    "crates/cli/src/command/dashboard",
    // This file only writes a fixed sentence.
    "crates/cli/src/submit.rs",
    // These files write for other programs.
    "crates/cli/src/command/notify.rs",
    "crates/worker/src/launcher/gpus/answers.rs",
    "crates/cli/src/command/bridge/",
    // This file writes the output of tasks.
    "crates/cli/src/command/run/replay.rs",
];

const FILES: &str = "it follows the umask, and links; make it with `hq_private`, or name the file here if users say where it is";

/// Files that may create and open files and directories in other ways.
const WITH_FILES: &[&str] = &[
    "crates/private/src/",
    // These files write the output of tasks, and other files at paths chosen by users.
    "crates/cli/src/command/manual.rs",
    "crates/cli/src/command/journal.rs",
    "crates/spawn/src/",
    "crates/stream/src/sink.rs",
    "crates/worker/src/config.rs",
    "crates/worker/src/done.rs",
    "crates/worker/src/launcher/calls/interpreter.rs",
    "crates/worker/src/output.rs",
    // This file writes pages of the manual.
    "crates/cli/src/command/doc.rs",
    // These files do their own checks.
    "crates/protocol/src/access/file.rs",
    "crates/store/src/lock.rs",
    // These files are tests.
    "crates/store/src/two_servers",
    // These files access files of the kernel.
    "crates/worker/src/launcher/control_group.rs",
    "crates/worker/src/launcher/memory.rs",
];

const READERS: &str = "others can link any file of the user there; read outputs with `hq_private::open_output`, or name the file here if it is the user's own or a file that the user named";

/// Files that may read files without checks of links and owners. None of them reads outputs.
const WITH_READERS: &[&str] = &[
    "crates/private/src/",
    "crates/store/src/",
    "crates/protocol/src/access/",
    // These files read private directories.
    "crates/cli/src/command/alloc.rs",
    "crates/cli/src/command/run/replay.rs",
    "crates/server/src/alloc/dirs.rs",
    // These files read what the command line names.
    "crates/cli/src/command/import.rs",
    "crates/cli/src/submit",
    // These files open programs and scripts.
    "crates/spawn/src/spawner.rs",
    "crates/spawn/src/raw.rs",
    // This file reads inputs of tasks.
    "crates/worker/src/done.rs",
    "crates/worker/src/launcher/control_group.rs",
];

const fn readers(word: &'static str) -> Rule {
    Rule {
        word,
        allowed: WITH_READERS,
        advice: READERS,
    }
}

const fn files(word: &'static str) -> Rule {
    Rule {
        word,
        allowed: WITH_FILES,
        advice: FILES,
    }
}

const RULES: &[Rule] = &[
    readers(concat!(" File::", "open(")),
    readers(concat!("fs::", "File::", "open(")),
    readers(concat!("open_", "regular(")),
    files(concat!("Dir", "Builder")),
    files(concat!("Open", "Options::new(")),
    files(concat!("tempfile", "::")),
    files(concat!("File::", "create")),
    files(concat!("fs::", "write(")),
    files(concat!("fs::", "create_dir")),
    Rule {
        word: concat!("io::", "stdout()"),
        allowed: WITH_TERMINAL,
        advice: TERMINAL,
    },
    Rule {
        word: concat!("io::", "stderr()"),
        allowed: WITH_TERMINAL,
        advice: TERMINAL,
    },
    Rule {
        word: concat!("thread::", "spawn("),
        allowed: &[],
        advice: PANICS,
    },
    Rule {
        word: concat!("thread::", "scope("),
        allowed: &[
            "crates/store/src/simulation.rs",
            // This file starts each thread with a `Builder`. If none can be started, the caller
            // does all the work.
            "crates/cli/src/submit/skip.rs",
        ],
        advice: PANICS,
    },
    Rule {
        word: concat!("block_", "in_place("),
        allowed: &[],
        advice: PANICS,
    },
    Rule {
        word: concat!("new_current_", "thread("),
        allowed: &[RUNTIMES, CORE_THREAD],
        advice: RUNTIME,
    },
    Rule {
        word: concat!("new_multi_", "thread("),
        allowed: &[RUNTIMES],
        advice: RUNTIME,
    },
    Rule {
        word: concat!("Runtime::", "new("),
        allowed: &[],
        advice: RUNTIME,
    },
    Rule {
        word: concat!("spawn_", "blocking("),
        allowed: WITH_BLOCKING,
        advice: BLOCKING,
    },
    Rule {
        word: concat!("tokio::", "fs::"),
        allowed: WITH_BLOCKING,
        advice: BLOCKING,
    },
    Rule {
        word: concat!("tokio::io::", "std"),
        allowed: &[],
        advice: BLOCKING,
    },
    Rule {
        word: concat!("lookup_", "host("),
        allowed: &[],
        advice: NAMES,
    },
    Rule {
        word: concat!("TcpStream::", "connect(("),
        // In this file, the first element of the pair is an address.
        allowed: &["crates/cli/src/client.rs"],
        advice: NAMES,
    },
];

/// Checks a Rust file.
pub(super) fn check(path: &str, text: &str) -> Vec<Problem> {
    let is_product = path.starts_with("crates/")
        && path.contains("/src/")
        && !path.starts_with("crates/xtask/")
        && !path.contains("/tests/")
        && !path.ends_with("tests.rs");
    if !is_product {
        return Vec::new();
    }
    let mut problems = Vec::new();
    let mut after_test_attribute = false;
    for (line, number) in text.lines().zip(1..) {
        let code = line.trim_start();
        // Tests are at the end of a file.
        if after_test_attribute && code.contains("mod ") && code.ends_with('{') {
            break;
        }
        after_test_attribute = code.starts_with("#[cfg(test)]");
        if code.starts_with("//") {
            continue;
        }
        // A word may begin with the blank before a name. The first call below asks about the terminal
        // and does not write to it.
        let code = format!(" {code}").replace("().is_terminal()", "");
        let code = code
            .replace("terminal_size(std::io::std", "")
            .replace("terminal_size(io::std", "");
        for rule in RULES.iter().filter(|rule| code.contains(rule.word)) {
            if rule.allowed.iter().any(|begin| path.starts_with(begin)) {
                continue;
            }
            let message = format!("`{}` is not used here: {}", rule.word, rule.advice);
            problems.push(Problem::new(path, number, message));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_noticed_outside_tests() {
        let count = |path: &str, line: &str| check(path, &format!("//! A.\n{line}\n")).len();
        for rule in RULES {
            let line = format!("    {}x);", rule.word);
            assert_eq!(count("crates/none/src/pump.rs", &line), 1, "{line}");
            assert_eq!(count("crates/none/src/pump/tests.rs", &line), 0);
            assert_eq!(count("tests/e2e/jobs.rs", &line), 0);
            let in_tests = format!("#[cfg(test)]\nmod tests {{\n{line}\n}}");
            assert_eq!(count("crates/none/src/pump.rs", &in_tests), 0);
            for path in rule.allowed {
                assert_eq!(count(&format!("{path}x.rs"), &line), 0);
            }
        }
    }
}
