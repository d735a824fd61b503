//! `hq doc`: the manual, without a network.

use std::io::{IsTerminal as _, Write as _};
use std::process::{Command, Stdio};

use super::Context;
use crate::args::other::DocArgs;
use crate::error::{CliError, CliResult};
use crate::pages::{self, Page};

/// Lines of a search that are shown of each page.
const FOUND_MAX: usize = 8;

/// Shows a page, the list of pages, or what was searched for.
pub(super) fn run(args: &DocArgs, context: &mut Context) -> CliResult<()> {
    let text = match (&args.search, &args.topic) {
        (Some(words), _) => search(words)?,
        (None, Some(topic)) => match pages::find(topic) {
            Some(page) if args.open => return open(&page, context),
            Some(page) => page.text().to_owned(),
            // The command line knows the names.
            None => return Err(CliError::new(format!("There is no page `{topic}`"))),
        },
        (None, None) => contents(),
    };
    if std::io::stdout().is_terminal() && page_through(&text) {
        return context.done();
    }
    context.out.write_all(text.as_bytes())?;
    context.done()
}

/// All pages with their titles.
fn contents() -> String {
    let width = pages::all().map(|page| page.name.len()).max().unwrap_or(0);
    let mut text = String::from(
        "`hq doc TOPIC` shows a page, `hq doc --search WORDS` finds words in all of them.\n\n",
    );
    for page in pages::all() {
        text.push_str(&format!("{:width$}  {}\n", page.name, page.title));
    }
    text
}

/// Lines with all of the words, page by page, those with most of them first.
fn search(words: &str) -> CliResult<String> {
    let words: Vec<String> = words.split_whitespace().map(str::to_lowercase).collect();
    let has_all = |line: &str| {
        let line = line.to_lowercase();
        !words.is_empty() && words.iter().all(|word| line.contains(word))
    };
    let mut found: Vec<(Page, Vec<&str>)> = pages::all()
        .map(|page| {
            (
                page,
                page.text().lines().filter(|line| has_all(line)).collect(),
            )
        })
        .filter(|(_, lines): &(Page, Vec<&str>)| !lines.is_empty())
        .collect();
    if found.is_empty() {
        let words = words.join(" ");
        return Err(
            CliError::new(format!("No line of any page has all of `{words}`"))
                .with_help("try fewer words, or choose a page from `hq doc`"),
        );
    }
    // The reference of the command line and the changes have most words.
    let is_long = |page: &Page| matches!(page.name, "cli" | "changelog");
    found.sort_by_key(|(page, lines)| (is_long(page), std::cmp::Reverse(lines.len())));
    let mut text = String::new();
    for (page, lines) in found {
        text.push_str(&format!("hq doc {} – {}\n", page.name, page.title));
        for line in lines.iter().take(FOUND_MAX) {
            text.push_str(&format!("    {}\n", line.trim()));
        }
        if lines.len() > FOUND_MAX {
            text.push_str(&format!("    … and {} more\n", lines.len() - FOUND_MAX));
        }
        text.push('\n');
    }
    Ok(text)
}

/// Shows a text in the user's pager; `false` if that cannot be started.
fn page_through(text: &str) -> bool {
    let chosen = std::env::var("PAGER")
        .ok()
        .filter(|pager| !pager.trim().is_empty());
    let mut command = Command::new("sh");
    command.arg("-c").arg(chosen.as_deref().unwrap_or("less"));
    // Ends at once if all of it fits on the screen.
    if std::env::var_os("LESS").is_none() {
        command.env("LESS", "FRX");
    }
    let Ok(mut pager) = command.stdin(Stdio::piped()).spawn() else {
        return false;
    };
    if let Some(mut input) = pager.stdin.take() {
        // Those who leave early have read enough.
        let _ = input.write_all(text.as_bytes());
    }
    // The shell says 127 if there is no such program.
    pager.wait().is_ok_and(|status| status.code() != Some(127))
}

/// Shows a page in a browser, which needs a file.
fn open(page: &Page, context: &mut Context) -> CliResult<()> {
    let failed =
        |error: &std::io::Error| CliError::caused("Cannot open a browser with `xdg-open`", error);
    let file = tempfile::Builder::new()
        .prefix(&format!("hq-{}-", page.name))
        .suffix(".txt")
        .tempfile()
        .map_err(|e| failed(&e))?;
    // The browser reads it when we have ended.
    let (mut file, path) = file.keep().map_err(|e| failed(&e.error))?;
    file.write_all(page.text().as_bytes())
        .map_err(|e| failed(&e))?;
    let status = Command::new("xdg-open")
        .arg(&path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .map_err(|e| failed(&e))?;
    if !status.success() {
        return Err(CliError::new(format!(
            "Cannot open a browser: xdg-open: {status}"
        )));
    }
    context.done()
}
