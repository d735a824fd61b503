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

/// The kind of mistake, the line, and a part of the message.
const REFUSALS: &str = r"
InvalidSubcommand: nonsense => error: unrecognized subcommand 'nonsense'
InvalidSubcommand: help => error: unrecognized subcommand 'help'
InvalidSubcommand: job help => error: unrecognized subcommand 'help'
UnknownArgument: submit --foo ls => error: unexpected argument '--foo' found
MissingRequiredArgument: submit => the following required arguments were not provided:
ArgumentConflict: submit --cpus=1 --cpus=2 ls => cannot be used multiple times
ArgumentConflict: submit --cpus=1 --nodes=2 ls => error: the argument '--cpus <AMOUNT>' cannot be used with '--nodes <COUNT>'
ArgumentConflict: submit --pin=omp --nodes=2 ls => cannot be used with
ArgumentConflict: submit --wait --progress ls => cannot be used with
ArgumentConflict: submit --each-line=a --from-json=b ls => cannot be used with
ValueValidation: submit --cpus 0 ls => --- Zero resources cannot be requested
ValueValidation: submit --array 3-1 ls => error: invalid value '3-1' for '--array <IDS>'
InvalidValue: submit --pin x ls => [possible values: taskset, omp]
ValueValidation: submit --name 'a\nb' ls => name cannot have a newline or a tab
ValueValidation: submit --weight 0 ls => Resource weight has to be positive number
UnknownArgument: job cancel 1 2 => unexpected argument '2' found
ArgumentConflict: job list --filter waiting --filter running => cannot be used multiple times
ArgumentConflict: worker list --all --filter offline => cannot be used with
ValueValidation: worker start --detect-resources foo => invalid variant: foo
ValueValidation: worker start --detect-resources all,cpus => invalid variant: all
ValueValidation: worker start --overview-interval 10 => expected words
UnknownArgument: job -V => unexpected argument '-V' found
";

#[test]
fn refusals_name_the_problem() {
    let rows = REFUSALS.lines().filter_map(|row| row.split_once(": "));
    for (kind, row) in rows {
        let (line, text) = row.split_once(" => ").expect("a row");
        let words = shlex::split(&line.replace("\\n", "\n")).expect("closed quotes");
        let (found, message) = refused(&words.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(
            format!("{found:?}") == kind && message.contains(text),
            "{line}: {found:?} {message}"
        );
        let ending = "For more information, try '--help'.";
        assert!(message.trim_end().ends_with(ending), "{message}");
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
