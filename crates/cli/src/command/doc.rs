//! `hq doc`: shows the manual without a network.

use std::io::{IsTerminal as _, Write as _};
use std::process::{Command, Stdio};

use super::Context;
use crate::args::other::DocArgs;
use crate::error::{CliError, CliResult};
use crate::output::format::wrap;
use crate::pages::{self, Hit, Page};
use crate::text::{closest, fit};

/// The maximum number of paragraphs that a search shows, in total and per heading.
const SHOWN_MAX: usize = 12;
const SECTION_MAX: usize = 3;
/// The maximum length of the part of a paragraph that a search shows.
const EXCERPT_MAX: usize = 400;
const COLUMNS: usize = 96;

/// Shows a page, the list of pages, or the paragraphs that match some words.
pub(super) fn run(args: &DocArgs, context: &mut Context) -> CliResult<()> {
    let page = match &*args.words {
        [name] if !args.search => pages::find(name),
        _ => None,
    };
    let text = match page {
        Some(page) if args.open => return open(&page, context),
        Some(page) => page.text().to_owned(),
        None if args.open => return Err(nothing("Only a page can be opened", &args.words)),
        None if args.words.is_empty() => contents(),
        None => search(&args.words)?,
    };
    if std::io::stdout().is_terminal() && page_through(&text) {
        return context.done();
    }
    context.out.write_all(text.as_bytes())?;
    context.done()
}

/// Returns all pages with their titles.
fn contents() -> String {
    let width = pages::all().map(|page| page.name.len()).max().unwrap_or(0);
    let mut text =
        String::from("`hq doc PAGE` shows a page, `hq doc WORDS` searches all of them.\n\n");
    for page in pages::all() {
        text.push_str(&format!("{:width$}  {}\n", page.name, page.title));
    }
    text
}

/// Returns the paragraphs that match best, under their pages and headings.
fn search(words: &[String]) -> CliResult<String> {
    let query = words.join(" ");
    let hits = pages::search(&query);
    if hits.is_empty() {
        let message = format!("No page contains `{query}`");
        return Err(nothing(&message, words));
    }
    let mut sections: Vec<(Page, &str, Vec<String>)> = Vec::new();
    for hit in hits.iter().take(SHOWN_MAX) {
        let is_same = |section: &&mut (Page, &str, Vec<String>)| {
            section.0.name == hit.page.name && section.1 == hit.heading
        };
        match sections.iter_mut().find(is_same) {
            Some((_, _, texts)) if texts.len() < SECTION_MAX => texts.push(excerpt(hit)),
            Some(_) => {}
            None => sections.push((hit.page, hit.heading, vec![excerpt(hit)])),
        }
    }
    let mut text = String::new();
    for (page, heading, texts) in sections {
        let below = if heading.is_empty() { "" } else { " › " };
        text.push_str(&format!(
            "hq doc {} – {}{below}{heading}\n",
            page.name, page.title
        ));
        for lines in texts.iter().map(|text| wrap(text, COLUMNS)) {
            for (line, indent) in lines
                .iter()
                .zip(std::iter::once("  * ").chain(std::iter::repeat("    ")))
            {
                text.push_str(&format!("{indent}{line}\n"));
            }
        }
        text.push('\n');
    }
    Ok(text)
}

/// Returns a paragraph, shortened if it is long.
fn excerpt(hit: &Hit) -> String {
    fit(&hit.text, EXCERPT_MAX)
}

fn nothing(message: &str, words: &[String]) -> CliError {
    let similar = closest(&words.join("-"), pages::all().map(|page| page.name));
    let help = match similar {
        Some(name) => format!("did you mean `hq doc {name}`?"),
        None => "try other words, or choose a page from `hq doc`".to_owned(),
    };
    CliError::new(message).with_help(help)
}

/// Shows a text in the user's pager. Returns `false` if the pager cannot be started.
fn page_through(text: &str) -> bool {
    let chosen = std::env::var("PAGER")
        .ok()
        .filter(|pager| !pager.trim().is_empty());
    let mut command = Command::new("sh");
    command.arg("-c").arg(chosen.as_deref().unwrap_or("less"));
    // With these options, `less` exits immediately if the text fits on the screen.
    if std::env::var_os("LESS").is_none() {
        command.env("LESS", "FRX");
    }
    let Ok(mut pager) = command.stdin(Stdio::piped()).spawn() else {
        return false;
    };
    if let Some(mut input) = pager.stdin.take() {
        // A write error only means that the user left the pager early.
        let _ = input.write_all(text.as_bytes());
    }
    // The shell exits with 127 if the program does not exist.
    pager.wait().is_ok_and(|status| status.code() != Some(127))
}

/// Shows a page in a browser, from a temporary file.
fn open(page: &Page, context: &mut Context) -> CliResult<()> {
    let failed =
        |error: &std::io::Error| CliError::caused("Cannot open a browser with `xdg-open`", error);
    let file = tempfile::Builder::new()
        .prefix(&format!("hq-{}-", page.name))
        .suffix(".txt")
        .tempfile()
        .map_err(|e| failed(&e))?;
    // The file is kept, because the browser reads it after this process has ended.
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
