//! Runs the manual's examples that show output, and compares what they print.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::Env;

/// The examples that are run: the page, the beginning of the first command, and the commands that
/// prepare it. Job ids in an example are replaced with the last job's id here. `@FILE` saves the
/// preceding block under this name.
const EXECUTED: &[(&str, &str, &str)] = &[
    (
        "dependencies",
        "hq job submit-file",
        r#"for id in prepare sum count; do printf '[[task]]\nid = "%s"\ncommand = ["true"]\n' $id; done > pipeline.toml
           printf '[[task]]\nid = "show"\ncommand = ["true"]\ndeps = ["sum", "cuont"]\n' >> pipeline.toml"#,
    ),
    (
        "dependencies",
        "hq job resubmit 13",
        r#"mkdir -p in out; for id in 1 2 3; do echo $id > in/$id.dat; done
           hq submit --array 1-3 --inputs 'in/%{TASK_ID}.dat' --outputs 'out/%{TASK_ID}' --wait=ok -- bash -c 'sleep 0.05; echo > out/$HQ_TASK_ID'
           echo changed > in/3.dat"#,
    ),
    (
        "failures",
        "hq job failures 3",
        r#"hq submit --name align --array 1-20 --wait -- bash -c 'test $HQ_TASK_ID -gt 8 && exit
           test $HQ_TASK_ID -gt 6 && kill -9 $$; echo "ValueError: reference index missing for chr$HQ_TASK_ID" >&2; exit 2'"#,
    ),
    (
        "failures",
        "hq job resubmit",
        "hq submit --array 1-8 --wait -- false",
    ),
    ("jobs", "hq submit --dry-run", ""),
    ("many-jobs", "printf", ""),
    (
        "output",
        "hq job tail",
        "hq submit --array 1-3 --wait -- bash -c 'echo result $HQ_TASK_ID'",
    ),
    ("quickstart", "hq run --array", ""),
    ("quickstart", "hq run pipeline.toml", "@pipeline.toml"),
    ("quickstart", "hq worker start", ""),
    ("quickstart", "hq submit --array 1-100", ""),
    ("quickstart", "hq submit --array 1-3", ""),
    ("quickstart", "hq submit --wait train.sh", "@train.sh"),
    (
        "notifications",
        "cat tell",
        r#"printf '#!/bin/bash\necho "job $HQ_JOB_ID task $HQ_TASK_ID: $1"\n' > tell; chmod +x tell"#,
    ),
    ("streaming", "hq submit --stream log", ""),
];

/// Examples with output that are only parsed, and the reason.
const PARSED: &[(&str, &str, &str)] = &[
    ("config", "hq config", "reads /etc"),
    ("doctor", "hq doctor", "depends on the machine"),
    (
        "durability",
        "hq server start",
        "the server must have crashed",
    ),
    ("durability", "hq job list", "the server must have crashed"),
    (
        "learning",
        "hq job stats",
        "shows the needs of 50 real tasks",
    ),
    ("quickstart", "cargo build", "compiles the program"),
    (
        "quickstart",
        "hq server start",
        "starts a server in the home directory",
    ),
    (
        "resources",
        "hq submit --array",
        "depends on the memory of the machine",
    ),
    ("usage", "hq task info", "the task runs for ten minutes"),
    ("web", "hq dashboard --web", "prints a link with a secret"),
];

/// A `console` block.
struct Example {
    page: String,
    /// The commands, with the output that the manual shows.
    steps: Vec<(String, Vec<String>)>,
    /// The preceding block.
    before: String,
}

#[test]
fn examples_print_what_the_manual_shows() {
    let mut env = Env::new();
    env.start_server();
    env.start_worker_with(&["--cpus=4", "--hostname=node1", "--resource=mem=sum(7946)"]);
    let mut executed = 0;
    for example in examples() {
        let is_it = |entry: &&(&str, &str, &str)| {
            entry.0 == example.page && example.steps[0].0.starts_with(entry.1)
        };
        if let Some((_, _, setup)) = EXECUTED.iter().find(is_it) {
            execute(&env, &example, setup);
            executed += 1;
        } else {
            let (page, command) = (&example.page, &example.steps[0].0);
            assert!(
                PARSED.iter().any(|entry| is_it(&entry)),
                "{page}: `{command}` is in no list"
            );
        }
    }
    assert_eq!(
        executed,
        EXECUTED.len(),
        "an example of the list is missing in the manual"
    );
}

/// Commands that list all keys of a part of job files, or all states, and the page that explains
/// these.
const LISTS: &[(&str, &str, &str)] = &[
    ("dependencies", "run file.toml", "xyzzy = 1"),
    ("dependencies", "run file.toml", "[[task]]\nxyzzy = 1"),
    ("dependencies", "run file.toml", "[array]\nxyzzy = 1"),
    (
        "dependencies",
        "run file.toml",
        "[[task]]\ncommand = [\"a\"]\n[[task.request]]\nxyzzy = 1",
    ),
    ("jobs", "job list --filter xyzzy", ""),
    ("jobs", "task list 1 --filter xyzzy", ""),
];

#[test]
fn keys_states_and_events_are_in_the_manual() {
    let env = Env::new();
    let mut missing = Vec::new();
    for (page, command, file) in LISTS {
        env.write("file.toml", file);
        let command: Vec<&str> = command.split(' ').collect();
        let error = env.hq(&command).stderr;
        let list = error.lines().find_map(|line| {
            let (_, keys) = line.split_once("expected one of ")?;
            Some(keys.to_owned())
        });
        let values = error.split_once("possible values: ");
        let list = list.or_else(|| Some(values?.1.split_once(']')?.0.to_owned()));
        let text = page_text(page);
        let known = words(&text);
        let list = list.unwrap_or_else(|| panic!("{command:?} lists nothing: {error}"));
        missing.extend(
            words(&list)
                .difference(&known)
                .map(|word| format!("{page}: {word}")),
        );
    }
    let mut events = Vec::new();
    let store = Path::new(env!("CARGO_MANIFEST_DIR")).join("../store/src");
    collect_events(&store, &mut events);
    assert!(events.len() > 20, "{events:?}");
    let page = page_text("journal");
    missing.extend(
        events
            .into_iter()
            .filter(|event| !page.contains(&format!("`{event}`"))),
    );
    assert!(missing.is_empty(), "not in the manual: {missing:?}");
}

fn page_text(page: &str) -> String {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    std::fs::read_to_string(docs.join(format!("{page}.md"))).expect("a page")
}

fn words(text: &str) -> std::collections::BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let words = words.filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect()
}

/// Collects the names of events in the sources of the store.
fn collect_events(folder: &Path, events: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).expect("sources") {
        let path = entry.expect("sources").path();
        if path.is_dir() {
            collect_events(&path, events);
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a source");
        let literals = text.split('"').filter(|part| {
            let subjects = ["server-", "worker-", "job-", "task-", "autoalloc-"];
            subjects.iter().any(|subject| part.starts_with(subject))
                && part.bytes().all(|b| b.is_ascii_lowercase() || b == b'-')
                && *part != "worker-count"
        });
        events.extend(literals.map(str::to_owned));
    }
}

fn execute(env: &Env, example: &Example, setup: &str) {
    if let Some(file) = setup.strip_prefix('@') {
        env.write(file, &example.before);
    } else {
        shell(env, setup);
    }
    for (command, shown) in &example.steps {
        if command.ends_with('&') {
            continue;
        }
        let printed = shell(env, &with_last_job(command));
        let mut lines = printed.lines().map(normal);
        for line in shown {
            let is_there = lines.any(|other| other == normal(line));
            assert!(
                is_there,
                "{}: `{command}` does not print\n{line}\n\n{printed}",
                example.page
            );
        }
    }
}

/// Replaces a job id with `last`.
fn with_last_job(command: &str) -> String {
    let is_id = |word: &str| word.parse::<u32>().is_ok();
    let words: Vec<&str> = command.split(' ').collect();
    let is_about_jobs = matches!(&*words, ["hq", "job" | "task", ..]);
    let replaced = words
        .iter()
        .enumerate()
        .map(|(at, word)| match word.split_once('.') {
            Some((job, tasks)) if at == 3 && is_about_jobs && is_id(job) => format!("last.{tasks}"),
            None if at == 3 && is_about_jobs && is_id(word) => "last".to_owned(),
            _ => (*word).to_owned(),
        });
    replaced.collect::<Vec<_>>().join(" ")
}

/// Returns a line without its numbers, ids, times, directories and widths.
fn normal(line: &str) -> String {
    let line = line.replace("/home/u/work", "…");
    let mut text = String::new();
    for c in line.chars() {
        let last = text.chars().next_back();
        let is_repeated = match c {
            '0'..='9' => last == Some('#'),
            ' ' | '-' => last == Some(c),
            _ => false,
        };
        if !is_repeated {
            text.push(if c.is_ascii_digit() { '#' } else { c });
        }
    }
    // A number with several parts, such as a time or a decimal, may have fewer of them.
    for parts in ["#.#", "#:#", "#s #ms", "#ms"] {
        while text.contains(parts) {
            text = text.replace(parts, "#");
        }
    }
    text.trim().to_owned()
}

/// Returns the standard output and standard error of a shell.
fn shell(env: &Env, commands: &str) -> String {
    let program = Path::new(env!("CARGO_BIN_EXE_hq"));
    let folder = program.parent().expect("a folder").display();
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new("timeout")
        .args(["120", "bash", "-c", commands])
        .env("PATH", format!("{folder}:{path}"))
        .env("HQ", program)
        .env("HQ_SERVER_DIR", env.server_dir())
        .env("HQ_CONFIG", "/dev/null")
        .env("HQ_SITE_CONFIG", "/dev/null")
        .current_dir(env.path(""))
        .stdin(Stdio::null())
        .output()
        .expect("a shell");
    let printed = [output.stdout, output.stderr].concat();
    let directory = env.path("").display().to_string();
    String::from_utf8_lossy(&printed).replace(directory.trim_end_matches('/'), "…")
}

/// Returns all examples of the manual that show output.
fn examples() -> Vec<Example> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(docs).expect("docs") {
        let path = entry.expect("docs").path();
        if path.extension().is_some_and(|ending| ending == "md") {
            let page = path
                .file_stem()
                .expect("a name")
                .to_string_lossy()
                .into_owned();
            let text = std::fs::read_to_string(&path).expect("a page");
            found.extend(examples_of(&page, &text));
        }
    }
    found.sort_by(|a, b| a.page.cmp(&b.page));
    found
}

fn examples_of(page: &str, text: &str) -> Vec<Example> {
    let mut found = Vec::new();
    let mut before = String::new();
    let mut block: Option<(bool, String)> = None;
    for line in text.lines() {
        if let Some(language) = line.trim().strip_prefix("```") {
            let Some((is_console, content)) = block.take() else {
                block = Some((language == "console", String::new()));
                continue;
            };
            let steps = if is_console {
                steps(&content)
            } else {
                Vec::new()
            };
            if steps.iter().any(|(_, shown)| !shown.is_empty()) {
                let page = page.to_owned();
                let before = before.clone();
                found.push(Example {
                    page,
                    steps,
                    before,
                });
            }
            before = content;
        } else if let Some((_, content)) = &mut block {
            content.push_str(line);
            content.push('\n');
        }
    }
    found
}

fn steps(block: &str) -> Vec<(String, Vec<String>)> {
    let mut steps: Vec<(String, Vec<String>)> = Vec::new();
    for line in block.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match (line.split_once("$ "), steps.last_mut()) {
            (Some((prompt, command)), _) if prompt.bytes().all(|b| b.is_ascii_alphanumeric()) => {
                steps.push((command.to_owned(), Vec::new()));
            }
            (_, Some((_, shown))) => shown.push(line.to_owned()),
            (_, None) => panic!("an example begins with its output: {line}"),
        }
    }
    steps
}
