//! Tests command lines that are accepted and rejected.

use super::*;
use clap::error::ErrorKind;
use hq_core::job::JobState;

fn parse(words: &[&str]) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(std::iter::once("hq").chain(words.iter().copied()))
}

fn refused(words: &[&str]) -> (ErrorKind, String) {
    let error = parse(words).expect_err("must be refused");
    (error.kind(), error.to_string())
}

fn submitted(words: &[&str]) -> submit::SubmitArgs {
    match parse(words).expect("valid").command {
        Some(Command::Submit(Deferred(args))) => *args,
        other => panic!("expected submit, found {other:?}"),
    }
}

#[test]
fn the_tree_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn everything_after_the_first_word_is_the_command() {
    let words = |args: submit::SubmitArgs| {
        args.command
            .iter()
            .map(|w| w.to_string_lossy().into_owned())
            .collect::<Vec<_>>()
    };
    let args = submitted(&[
        "submit", "--cpus", "2", "ls", "-h", "--cpus", "--", "x", "--help",
    ]);
    assert_eq!(words(args), ["ls", "-h", "--cpus", "--", "x", "--help"]);
    let args = submitted(&["submit", "--", "--weird", "--cpus=1"]);
    assert_eq!(words(args), ["--weird", "--cpus=1"]);
    let args = submitted(&[
        "submit",
        "--priority=-3",
        "--env",
        "A=1",
        "--env",
        "B",
        "ls",
    ]);
    assert_eq!((args.tasks.priority, args.tasks.env.len()), (Some(-3), 2));
}

#[test]
fn global_options_work_at_every_level() {
    for words in [
        &["--output-mode", "json", "job", "list"][..],
        &["job", "--output-mode=json", "list"],
        &["job", "list", "--output-mode", "json"],
    ] {
        let cli = parse(words).expect("valid");
        assert_eq!(cli.global.output_mode, global::OutputMode::Json);
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "most lines are a table of inputs")]
fn refusals_name_the_problem() {
    for (words, kind, text) in [
        (
            &["nonsense"][..],
            ErrorKind::InvalidSubcommand,
            "error: unrecognized subcommand 'nonsense'",
        ),
        (
            &["help"],
            ErrorKind::InvalidSubcommand,
            "error: unrecognized subcommand 'help'",
        ),
        (
            &["job", "help"],
            ErrorKind::InvalidSubcommand,
            "error: unrecognized subcommand 'help'",
        ),
        (
            &["submit", "--foo", "ls"],
            ErrorKind::UnknownArgument,
            "error: unexpected argument '--foo' found",
        ),
        (
            &["submit"],
            ErrorKind::MissingRequiredArgument,
            "the following required arguments were not provided:",
        ),
        (
            &["submit", "--cpus=1", "--cpus=2", "ls"],
            ErrorKind::ArgumentConflict,
            "cannot be used multiple times",
        ),
        (
            &["submit", "--cpus=1", "--nodes=2", "ls"],
            ErrorKind::ArgumentConflict,
            "error: the argument '--cpus <AMOUNT>' cannot be used with '--nodes <COUNT>'",
        ),
        (
            &["submit", "--pin=omp", "--nodes=2", "ls"],
            ErrorKind::ArgumentConflict,
            "cannot be used with",
        ),
        (
            &["submit", "--wait", "--progress", "ls"],
            ErrorKind::ArgumentConflict,
            "cannot be used with",
        ),
        (
            &["submit", "--each-line=a", "--from-json=b", "ls"],
            ErrorKind::ArgumentConflict,
            "cannot be used with",
        ),
        (
            &["submit", "--cpus", "0", "ls"],
            ErrorKind::ValueValidation,
            "--- Zero resources cannot be requested",
        ),
        (
            &["submit", "--array", "3-1", "ls"],
            ErrorKind::ValueValidation,
            "error: invalid value '3-1' for '--array <IDS>': ",
        ),
        (
            &["submit", "--pin", "x", "ls"],
            ErrorKind::InvalidValue,
            "[possible values: taskset, omp]",
        ),
        (
            &["submit", "--name", "a\nb", "ls"],
            ErrorKind::ValueValidation,
            "name cannot have a newline or a tab",
        ),
        (
            &["submit", "--weight", "0", "ls"],
            ErrorKind::ValueValidation,
            "Resource weight has to be positive number",
        ),
        (
            &["job", "cancel", "1", "2"],
            ErrorKind::UnknownArgument,
            "unexpected argument '2' found",
        ),
        (
            &["job", "list", "--filter", "waiting", "--filter", "running"],
            ErrorKind::ArgumentConflict,
            "cannot be used multiple times",
        ),
        (
            &["worker", "list", "--all", "--filter", "offline"],
            ErrorKind::ArgumentConflict,
            "cannot be used with",
        ),
        (
            &["worker", "start", "--detect-resources", "foo"],
            ErrorKind::ValueValidation,
            "invalid variant: foo",
        ),
        (
            &["worker", "start", "--detect-resources", "all,cpus"],
            ErrorKind::ValueValidation,
            "invalid variant: all",
        ),
        (
            &["worker", "start", "--overview-interval", "10"],
            ErrorKind::ValueValidation,
            "expected words",
        ),
        (
            &["job", "-V"],
            ErrorKind::UnknownArgument,
            "unexpected argument '-V' found",
        ),
    ] {
        let (found, message) = refused(words);
        assert!(
            found == kind && message.contains(text),
            "{words:?}: {found:?} {message}"
        );
        assert!(
            message
                .trim_end()
                .ends_with("For more information, try '--help'."),
            "{message}"
        );
    }
}

/// The tree is large, and a command only needs one branch of it.
#[test]
fn what_was_not_typed_is_not_described() {
    let root = Cli::command();
    let described = |command: &clap::Command| {
        command.get_arguments().count() + command.get_subcommands().count()
    };
    let early: Vec<_> = root
        .get_subcommands()
        .filter(|it| described(it) > 0)
        .collect();
    assert!(early.is_empty(), "{early:?}");
    let job = built_command()
        .find_subcommand("job")
        .cloned()
        .expect("exists");
    assert!(described(&job) > 10, "{job:?}");
}

#[test]
fn lists_are_separated_by_commas() {
    let cli = parse(&["job", "list", "--filter", "waiting,failed"]).expect("valid");
    match cli.command {
        Some(Command::Job {
            command: Some(Deferred(job::JobCommand::List(Deferred(list)))),
        }) => {
            assert_eq!(list.filter, Some(vec![JobState::Waiting, JobState::Failed]));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_missing_subcommand_is_noticed() {
    assert!(parse(&[]).expect("valid").command.is_none());
    let cli = parse(&["job", "--output-mode", "json"]).expect("valid");
    assert!(matches!(cli.command, Some(Command::Job { command: None })));
}

#[test]
fn only_the_long_help_shows_global_options() {
    let short = refused(&["job", "list", "-h"]).1;
    let long = refused(&["job", "list", "--help"]).1;
    assert!(
        !short.contains("--server-dir") && !short.contains("GLOBAL"),
        "{short}"
    );
    assert!(
        long.contains("GLOBAL OPTIONS:") && long.contains("--server-dir <PATH>"),
        "{long}"
    );
    assert!(!long.contains("--version"));
}

#[test]
fn ssh_options_after_the_host_file_are_kept() {
    let cli = parse(&[
        "worker",
        "deploy-ssh",
        "--show-output",
        "hosts",
        "--cpus",
        "4",
    ]);
    match cli.expect("valid").command {
        Some(Command::Worker {
            command: Some(Deferred(worker::WorkerCommand::DeploySsh(Deferred(args)))),
        }) => {
            assert!(args.show_output);
            assert_eq!(args.worker_args, ["--cpus", "4"]);
        }
        other => panic!("{other:?}"),
    }
}

/// Returns the words after `hq` in the examples of a page, up to a shell operator.
fn examples(page: &str) -> Vec<(String, Vec<String>)> {
    const SIGNS: [&str; 6] = ["|", ">", "2>&1", "&", "&&", ";"];
    let mut found = Vec::new();
    let mut language = None;
    for line in page.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("```") {
            language = language.is_none().then_some(name);
            continue;
        }
        let command = match language {
            Some("console") => line
                .split_once("$ ")
                .filter(|(prompt, _)| is_prompt(prompt)),
            Some("bash" | "sh") => Some(("", line)),
            _ => None,
        };
        let Some((_, command)) = command.filter(|(_, command)| command.contains("hq ")) else {
            continue;
        };
        // Commands with several lines, and parts of scripts, are not complete commands.
        let words = shlex::split(command).unwrap_or_default();
        for part in words.split(|word| SIGNS.contains(&&**word)) {
            if let [program, words @ ..] = part
                && program == "hq"
            {
                found.push((line.to_owned(), words.to_vec()));
            }
        }
    }
    found
}

fn is_prompt(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Returns all pages of the manual.
fn pages_below(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).expect("docs");
    let paths = entries.map(|entry| entry.expect("entry").path());
    let pages = paths.flat_map(|path| {
        if path.is_dir() {
            pages_below(&path)
        } else {
            vec![path]
        }
    });
    pages
        .filter(|path| path.extension().is_some_and(|suffix| suffix == "md"))
        .collect()
}

#[test]
fn examples_in_the_documentation_are_accepted() {
    let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut pages = pages_below(&root.join("docs"));
    pages.push(root.join("README.md"));
    let mut count = 0;
    for page in pages {
        let text = std::fs::read_to_string(&page).expect("readable");
        for (line, words) in examples(&text) {
            // `…` stands for anything, and variables contain ids.
            let words: Vec<&str> = words
                .iter()
                .filter(|word| *word != "…")
                .map(|word| if word.starts_with('$') { "1" } else { word })
                .collect();
            let name = page.display();
            if let Err(error) = parse(&words) {
                panic!("{name}: {line}\n{error}");
            }
            count += 1;
        }
    }
    assert!(count > 150, "only {count} examples found");
}
