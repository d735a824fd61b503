//! Prints the command line as one Markdown page, generated from the types that parse it.

use std::fmt::Write as _;

use clap::builder::StyledStr;
use clap::{Arg, ArgAction, Command};

const HEAD: &str = "\
# Command line

<!-- Made by `hq generate-reference`; a test compares it. Change the help texts, not this file. -->

Every command and option. `hq COMMAND --help` prints the same.
";

/// Commands whose options other commands share. The other commands only list the names of these
/// options.
const BASES: [&[&str]; 2] = [&["submit"], &["alloc", "add", "pbs"]];
/// If fewer options are shared, they are listed in full.
const SHARED_MIN: usize = 8;

/// A command of [`BASES`].
struct Base {
    path: String,
    rows: Vec<String>,
}

impl Base {
    fn new(root: &Command, names: &[&str]) -> Option<Self> {
        let mut command = root;
        for name in names {
            command = command.find_subcommand(name)?;
        }
        Some(Self {
            path: format!("hq {}", names.join(" ")),
            rows: own(command).map(row).collect(),
        })
    }

    fn has(&self, arg: &Arg) -> bool {
        self.rows.contains(&row(arg))
    }
}

/// Returns the page for the whole tree.
pub(super) fn markdown(root: &Command) -> String {
    let mut page = HEAD.to_owned();
    page.push_str("\n| command | does |\n|---|---|\n");
    overview(root, "hq", &mut page);
    page.push_str("\n## Options of every command\n");
    let globals: Vec<&Arg> = shown(root).filter(|arg| arg.is_global_set()).collect();
    table("option", &globals, &mut page);
    page.push_str("\n## `hq`\n");
    table("option", &own(root).collect::<Vec<_>>(), &mut page);
    let bases = BASES.iter().filter_map(|names| Base::new(root, names));
    let bases: Vec<Base> = bases.collect();
    for command in visible(root) {
        section(command, "hq", &bases, &mut page);
    }
    page
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|sub| !sub.is_hide_set())
}

fn shown(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| !arg.is_hide_set())
}

/// Returns the arguments of this command alone.
fn own(command: &Command) -> impl Iterator<Item = &Arg> {
    shown(command).filter(|arg| !arg.is_global_set() && !is_help(arg))
}

fn is_help(arg: &Arg) -> bool {
    matches!(
        arg.get_action(),
        ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong
    )
}

/// Adds a row for each command that is not only a group.
fn overview(command: &Command, path: &str, page: &mut String) {
    for sub in visible(command) {
        let path = format!("{path} {}", sub.get_name());
        if sub.has_subcommands() {
            overview(sub, &path, page);
        } else {
            let anchor = path.replace(' ', "-");
            let about = text(sub.get_about());
            // Writing to a string cannot fail.
            let _ = writeln!(page, "| [`{path}`](#{anchor}) | {} |", cell(&about));
        }
    }
}

fn section(command: &Command, parent: &str, bases: &[Base], page: &mut String) {
    let path = format!("{parent} {}", command.get_name());
    if command.has_subcommands() {
        let _ = write!(page, "\n## `{path}`\n\n{}.\n", text(command.get_about()));
    } else {
        let _ = write!(page, "\n### `{path}`\n\n{}.\n", about(command));
        let usage = command.clone().render_usage().to_string();
        let usage = usage.trim_start_matches("Usage: ");
        let _ = write!(page, "\n```text\n{usage}\n```\n");
    }
    let shared_with = |base: &Base| own(command).filter(|arg| base.has(arg)).count();
    let base = bases.iter().filter(|base| base.path != path);
    let base = base.max_by_key(|base| shared_with(base));
    let base = base.filter(|base| shared_with(base) >= SHARED_MIN);
    let (shared, own): (Vec<&Arg>, Vec<&Arg>) =
        own(command).partition(|arg| base.is_some_and(|base| base.has(arg)));
    tables(own, page);
    if let Some(base) = base {
        let anchor = base.path.replace(' ', "-");
        let link = format!("[`{}`](#{anchor})", base.path);
        let mut names: Vec<String> = shared.into_iter().map(short_name).collect();
        names.sort();
        let names = names.join(", ");
        let _ = write!(
            page,
            "\nThe following are the same as in {link}: {names}.\n"
        );
    }
    for sub in visible(command) {
        section(sub, &path, bases, page);
    }
}

/// Writes a table for arguments, and one for each group of options.
fn tables(arguments: Vec<&Arg>, page: &mut String) {
    let (positionals, options): (Vec<&Arg>, Vec<&Arg>) =
        arguments.into_iter().partition(|arg| arg.is_positional());
    table("argument", &positionals, page);
    let mut headings: Vec<Option<&str>> = vec![None];
    for heading in options.iter().map(|arg| arg.get_help_heading()) {
        if !headings.contains(&heading) {
            headings.push(heading);
        }
    }
    for heading in headings {
        let group = options
            .iter()
            .filter(|arg| arg.get_help_heading() == heading);
        let group: Vec<&Arg> = group.copied().collect();
        table(heading.unwrap_or("option"), &group, page);
    }
}

fn about(command: &Command) -> String {
    let long = text(command.get_long_about());
    let text = if long.is_empty() {
        text(command.get_about())
    } else {
        long
    };
    text.trim_end_matches('.').to_owned()
}

fn table(what: &str, arguments: &[&Arg], page: &mut String) {
    if arguments.is_empty() {
        return;
    }
    let _ = write!(page, "\n| {what} | meaning |\n|---|---|\n");
    for arg in arguments {
        let _ = writeln!(page, "{}", row(arg));
    }
}

fn row(arg: &Arg) -> String {
    format!("| {} | {} |", name(arg), cell(&meaning(arg)))
}

/// Returns `--long` or `VALUE`.
fn short_name(arg: &Arg) -> String {
    arg.get_long()
        .map_or_else(|| name(arg), |long| format!("`--{long}`"))
}

/// Returns `-s`, `--long VALUE`.
fn name(arg: &Arg) -> String {
    let mut value = String::new();
    if arg.get_action().takes_values() {
        let names = arg.get_value_names().unwrap_or_default();
        let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
        value = names.join(" ");
        if arg
            .get_num_args()
            .is_some_and(|range| range.max_values() > 1)
        {
            value.push('…');
        }
    }
    let mut forms: Vec<String> = Vec::new();
    forms.extend(arg.get_short().map(|short| format!("`-{short}`")));
    if let Some(long) = arg.get_long() {
        forms.push(if value.is_empty() {
            format!("`--{long}`")
        } else {
            format!("`--{long} {value}`")
        });
    }
    if forms.is_empty() {
        forms.push(format!("`{value}`"));
    }
    cell(&forms.join(", "))
}

fn meaning(arg: &Arg) -> String {
    let long = text(arg.get_long_help());
    let mut meaning = if long.is_empty() {
        text(arg.get_help())
    } else {
        sentences(&long)
    };
    let takes_value = arg.get_action().takes_values();
    let values = arg.get_possible_values();
    let values: Vec<String> = values
        .iter()
        .filter(|value| takes_value && !value.is_hide_set())
        .map(|value| match value.get_help() {
            Some(help) => format!("`{}` ({help})", value.get_name()),
            None => format!("`{}`", value.get_name()),
        })
        .collect();
    if !values.is_empty() {
        let _ = write!(meaning, ". One of {}", values.join(", "));
    }
    let defaults: Vec<String> = arg
        .get_default_values()
        .iter()
        .map(|value| format!("`{}`", value.to_string_lossy()))
        .collect();
    if takes_value && !defaults.is_empty() {
        let _ = write!(meaning, ". Default: {}", defaults.join(" "));
    }
    if let Some(variable) = arg.get_env() {
        let _ = write!(meaning, ". Variable: `{}`", variable.to_string_lossy());
    }
    meaning
}

/// Joins the lines of each paragraph, and removes the final period.
fn sentences(text: &str) -> String {
    let paragraphs = text.split("\n\n").map(|part| part.trim_end_matches('.'));
    paragraphs.collect::<Vec<_>>().join(". ")
}

fn text(styled: Option<&StyledStr>) -> String {
    styled.map_or_else(String::new, ToString::to_string)
}

/// Returns text that fits into a table cell.
fn cell(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut cell = String::new();
    let mut is_code = false;
    for letter in words.join(" ").chars() {
        match letter {
            '|' => cell.push_str("\\|"),
            '<' if !is_code => cell.push_str("&lt;"),
            other => {
                is_code ^= other == '`';
                cell.push(other);
            }
        }
    }
    cell
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_in_docs_is_fresh() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");
        let kept = std::fs::read_to_string(path).expect("docs/cli.md");
        let made = markdown(&crate::args::built_command());
        assert!(
            made == kept,
            "docs/cli.md is not what the command line is now; \
             run `cargo run -p hq-cli -- generate-reference > docs/cli.md`"
        );
    }

    #[test]
    fn every_command_and_option_has_a_text() {
        fn check(command: &Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            assert!(!text(command.get_about()).is_empty(), "{path}");
            for arg in shown(command) {
                assert!(arg.get_help().is_some(), "{path} {}", arg.get_id());
            }
            for sub in visible(command) {
                check(sub, &path);
            }
        }
        check(&crate::args::built_command(), "");
    }

    #[test]
    fn manual_pages_are_there_for_every_command() {
        let directory = tempfile::tempdir().expect("directory");
        clap_mangen::generate_to(crate::args::command(), directory.path()).expect("written");
        for page in ["hq.1", "hq-submit.1", "hq-job-tail.1", "hq-worker-start.1"] {
            let page = std::fs::read_to_string(directory.path().join(page)).expect(page);
            assert!(page.contains(".SH NAME"), "{page}");
        }
    }
}
