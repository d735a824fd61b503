//! `#HQ` lines: options of `hq submit` inside a script, and the script's shebang.
//!
//! The options of all lines are parsed as one command line and merged with the real one, which has
//! precedence. Only options that describe tasks are allowed; see `docs/compatibility.md`.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::time::Duration;

use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use hq_core::growth::{self, GrowSpec};
use hq_core::resource::amount::Amount;

use super::content::BYTE_ORDER_MARK;
use crate::args;
use crate::args::submit::{DirectivesMode, TaskOptions};
use crate::error::{CliError, CliResult};
use crate::import;
use crate::parse::learn::TimeRequest;
use crate::parse::param::ParamArg;
use crate::parse::request::ResourceArg;
use crate::parse::value::EnvPair;
use crate::text::lossy;

/// The number of bytes at the beginning of a script that are searched.
const HEAD_LEN: usize = 32 * 1024;

/// The options that a script sets for its own submit.
#[derive(Debug, Default)]
pub(crate) struct Directives {
    options: TaskOptions,
    /// The words of the shebang line. Empty if there is none, or if the script came from standard
    /// input.
    shebang: Vec<OsString>,
}

#[derive(Parser)]
#[command(
    name = "#HQ",
    no_binary_name = true,
    disable_help_flag = true,
    disable_version_flag = true,
    override_usage = "#HQ <hq submit parameters>"
)]
struct DirectiveLine {
    #[command(flatten)]
    options: TaskOptions,
}

/// Reads the directives in the place that the mode selects.
pub(crate) fn find(
    mode: DirectivesMode,
    command: &[OsString],
    stdin: Option<&[u8]>,
) -> CliResult<Directives> {
    let program = command.first().map(OsString::as_os_str).unwrap_or_default();
    match mode {
        DirectivesMode::Off => Ok(Directives::default()),
        DirectivesMode::Auto if !program.as_bytes().ends_with(b".sh") => {
            warn_about_unread(command);
            Ok(Directives::default())
        }
        DirectivesMode::Auto | DirectivesMode::File => {
            let shown = program.to_string_lossy();
            let head = read_head(Path::new(program)).map_err(|error| unreadable(&shown, &error))?;
            warn_about_foreign(&shown, &head, true);
            let options = parse_options(&shown, &head)?;
            Ok(Directives {
                options,
                shebang: shebang_words(&head),
            })
        }
        DirectivesMode::Stdin => match stdin {
            Some(data) => {
                let head = &data[..data.len().min(HEAD_LEN)];
                warn_about_foreign("stdin", head, true);
                Ok(Directives {
                    options: parse_options("stdin", head)?,
                    shebang: Vec::new(),
                })
            }
            None => Err(CliError::new(
                "You have to use `--stdin` when you specify `--directives=stdin`.",
            )),
        },
    }
}

impl Directives {
    /// Inserts the shebang before the command, and adds the options that the command line does not
    /// set.
    pub(crate) fn apply(self, options: &mut TaskOptions) {
        options.command.splice(0..0, self.shebang);
        merge(options, self.options);
    }
}

/// Adds defaults for options that neither the command line nor a script sets. `is_attached` marks
/// tasks for an existing job.
pub(crate) fn add_defaults(
    options: &mut TaskOptions,
    mut defaults: TaskOptions,
    is_attached: bool,
) {
    drop_overridden(options, &mut defaults);
    if options.nodes.is_some_and(|count| count > 0) {
        defaults.resource.clear();
    }
    drop_needless(options, &mut defaults, is_attached);
    drop_memory(options, &mut defaults);
    drop_growth(options, &mut defaults);
    merge(options, defaults);
}

/// Removes defaults that do not apply to this submit. The user did not request them here, so they
/// must not cause errors.
fn drop_needless(options: &TaskOptions, defaults: &mut TaskOptions, is_attached: bool) {
    // An existing job has its own limit.
    defaults.max_fails = defaults.max_fails.filter(|_| !is_attached);
    let has_outputs = !options.outputs.is_empty() || !defaults.outputs.is_empty();
    defaults.check_outputs &= has_outputs;
    defaults.by_content &= has_outputs;
    // In an open job, the ids of new tasks are unknown unless they are specified.
    let are_known = !is_attached || options.array.is_some();
    defaults.skip_done &= has_outputs && are_known;
    // Both options concern the time that tasks need.
    match options.time_request {
        Some(TimeRequest::Given(_)) => defaults.predict = None,
        Some(TimeRequest::Auto) => defaults.no_predict = false,
        None => {}
    }
    defaults.time_request = defaults.time_request.filter(|time| match time {
        TimeRequest::Given(_) => options.predict.is_none(),
        TimeRequest::Auto => !options.no_predict,
    });
}

/// Removes defaults that conflict with learned memory.
fn drop_memory(options: &TaskOptions, defaults: &mut TaskOptions) {
    let is_auto = |asked: &ResourceArg| matches!(asked, ResourceArg::AutoMemory(_));
    if options.resource.iter().any(is_auto) {
        defaults.nodes = None;
    }
    if options.retries == Some(0) {
        defaults.resource.retain(|asked| !is_auto(asked));
    }
    let mut all = options.resource.iter().chain(&defaults.resource);
    // Attempts that learn sizes do not count as retries in the sense of the default.
    if all.any(is_auto) && options.retries.is_none() && options.retry_on.is_none() {
        defaults.retries = None;
        defaults.retry_on = None;
    }
}

/// Removes growth of resources that are not requested or already have a bound.
fn drop_growth(options: &TaskOptions, defaults: &mut TaskOptions) {
    if options.retry_grow.is_some() {
        defaults.retries = defaults.retries.filter(|retries| *retries > 0);
    }
    let resources = options.resource.iter().chain(&defaults.resource);
    let memory = resources.filter_map(|asked| match asked {
        ResourceArg::Amount(entry) => Some(entry.clone()),
        ResourceArg::AutoMemory(_) => None,
    });
    let memory = growth::memory_of(&memory.collect::<Vec<_>>());
    let time = options.time_limit.or(defaults.time_limit);
    let Some(grow) = &mut defaults.retry_grow else {
        return;
    };
    let has_retries = options.retries != Some(0);
    let below = |max: Option<Amount>| memory.is_some_and(|asked| max.is_none_or(|max| asked < max));
    grow.memory = grow.memory.filter(|one| has_retries && below(one.max));
    let below = |max: Option<Duration>| time.is_some_and(|asked| max.is_none_or(|max| asked < max));
    grow.time = grow.time.filter(|one| has_retries && below(one.max));
    if *grow == GrowSpec::default() {
        defaults.retry_grow = None;
    }
}

fn failed(source: &str, error: &dyn std::fmt::Display) -> CliError {
    CliError::new(format!("Could not parse directives from {source}: {error}"))
}

/// Returns the error about a script that cannot be read.
fn unreadable(source: &str, error: &std::io::Error) -> CliError {
    let failure = failed(source, error);
    if error.kind() != std::io::ErrorKind::NotFound {
        return failure;
    }
    let text = failure.text().unwrap_or_default();
    CliError::new(format!("{source} does not exist. {text}")).with_help(format!(
        "give the path from this directory, or one that begins with `/`; `--directives off` lets `{source}` be found in the PATH of the workers"
    ))
}

/// Warns that hq does not read lines for a batch system, and names the equivalent options.
fn warn_about_foreign(source: &str, head: &[u8], is_read: bool) {
    let text = String::from_utf8_lossy(head);
    if let Some(text) = import::warning(source, &text, is_read) {
        tracing::warn!("{text}");
    }
}

/// Searches for lines of batch systems in a script that its name does not identify as a script,
/// also after the name of a shell.
fn warn_about_unread(command: &[OsString]) {
    const SHELLS: [&str; 4] = ["sh", "bash", "zsh", "ksh"];
    let name = |word: &OsString| Path::new(word).file_name().map(OsStr::to_owned);
    let Some(program) = command.first() else {
        return;
    };
    let is_shell = name(program).is_some_and(|name| SHELLS.iter().any(|shell| name == *shell));
    let script = if is_shell {
        let mut words = command[1..].iter();
        words.find(|word| !word.as_bytes().starts_with(b"-"))
    } else {
        Some(program)
    };
    let Some(script) = script else { return };
    // Reading anything but a regular file may block or never end.
    if !std::fs::metadata(script).is_ok_and(|found| found.is_file()) {
        return;
    }
    if begins_like_script(Path::new(script))
        && let Ok(head) = read_head(Path::new(script))
    {
        warn_about_foreign(&script.to_string_lossy(), &head, false);
    }
}

/// Returns whether a file starts with a comment character. Most commands are binaries, whose
/// remainder is not read.
fn begins_like_script(path: &Path) -> bool {
    let mut first = [0];
    std::fs::File::open(path)
        .and_then(|mut file| file.read_exact(&mut first))
        .is_ok_and(|()| first == *b"#")
}

fn read_head(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut head = Vec::with_capacity(HEAD_LEN);
    std::fs::File::open(path)?
        .take(HEAD_LEN as u64)
        .read_to_end(&mut head)?;
    Ok(head)
}

fn parse_options(source: &str, head: &[u8]) -> CliResult<TaskOptions> {
    if head.starts_with(BYTE_ORDER_MARK) {
        // The kernel would not find the shebang after a byte order mark, so the script could not be
        // executed.
        return Err(failed(
            source,
            &"expected a script that begins with its first character, found a UTF-8 byte order mark in front of it; \
             remove it, for example with `sed -i '1s/^\\xef\\xbb\\xbf//'`",
        ));
    }
    let mut words = Vec::new();
    for line in directive_lines(head) {
        words.extend(split_words(line).map_err(|error| failed(source, &error))?);
    }
    match DirectiveLine::try_parse_from(words) {
        Ok(line) => Ok(line.options),
        Err(mut error) => {
            let text = "You have used invalid parameter(s) after a #HQ directive.";
            let help = directive_help(source, head, &error);
            if help.is_some() {
                error.remove(ContextKind::SuggestedArg);
            }
            let failure = failed(source, &format!("{text}\n{}", error.to_string().trim_end()));
            Err(match help {
                Some(help) => failure.with_help(help),
                None => failure,
            })
        }
    }
}

/// Returns the line with the wrong word, and the correction.
fn directive_help(source: &str, head: &[u8], error: &clap::Error) -> Option<String> {
    let text = |kind| {
        let ContextValue::String(text) = error.get(kind)? else {
            return None;
        };
        Some(text.as_str())
    };
    let arg = text(ContextKind::InvalidArg)?;
    let name = arg.split([' ', '=']).next()?;
    let head = String::from_utf8_lossy(head);
    let has_word = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        words.any(|word| word.split('=').next() == Some(name))
    };
    let mut lines = (1..).zip(head.lines());
    let (number, line) =
        lines.find(|(_, line)| line.trim_start().starts_with("#HQ") && has_word(line))?;
    let is_of_submit = |long: &str| {
        let root = args::built_command();
        let submit = root.find_subcommand("submit");
        submit.is_some_and(|submit| {
            submit
                .get_arguments()
                .any(|arg| arg.get_long() == Some(long))
        })
    };
    let is_fenced = line.split_whitespace().any(|word| word == "--");
    let advice = if error.kind() != ErrorKind::UnknownArgument {
        None
    } else if is_fenced {
        Some("leave out `--`: a `#HQ` line has options only".to_owned())
    } else if !name.starts_with(['-', '#']) {
        Some("a `#HQ` line has options only: the program is the script itself".to_owned())
    } else if name.starts_with('#') {
        Some("a `#HQ` line has no comments: write them on a line of their own".to_owned())
    } else if name.strip_prefix("--").is_some_and(is_of_submit) {
        Some(format!(
            "this option belongs on the command line: `hq submit {name} {source}`"
        ))
    } else if let Some(answer) = args::of_option(&["submit"], name) {
        Some(answer)
    } else {
        text(ContextKind::SuggestedArg).map(|meant| format!("did you mean `{meant}`?"))
    };
    let advice = advice.map_or_else(String::new, |advice| format!(": {advice}"));
    Some(format!("line {number}, `{}`{advice}", line.trim()))
}

/// Returns the options of each directive line, from the top to the first line that is neither empty
/// nor a comment.
fn directive_lines(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    // A truncated line could have a different meaning.
    let complete = match head.iter().rposition(|b| *b == b'\n') {
        Some(end) if head.len() >= HEAD_LEN => &head[..end],
        Some(_) | None => head,
    };
    complete
        .split(|b| *b == b'\n')
        .map(<[u8]>::trim_ascii)
        .take_while(|line| line.is_empty() || line.starts_with(b"#"))
        .filter_map(|line| {
            let options = line.strip_prefix(b"#HQ")?;
            options.first()?.is_ascii_whitespace().then_some(options)
        })
}

/// Splits a line at blanks. `"…"` keeps blanks, also within a word. A backslash escapes a following
/// `"`, blank or parenthesis, and is literal before other characters. `'` is an ordinary character.
fn split_words(line: &[u8]) -> Result<Vec<OsString>, String> {
    let mut words = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut is_quoted = false;
    let mut bytes = line.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => {
                let escaped =
                    bytes.next_if(|next| matches!(next, b'"' | b' ' | b'\t' | b'(' | b')'));
                word.get_or_insert_default().push(escaped.unwrap_or(b'\\'));
            }
            b'"' => {
                is_quoted = !is_quoted;
                word.get_or_insert_default();
            }
            blank if blank.is_ascii_whitespace() && !is_quoted => {
                words.extend(word.take().map(OsString::from_vec));
            }
            other => word.get_or_insert_default().push(other),
        }
    }
    if is_quoted {
        let line = lossy(line.trim_ascii());
        return Err(format!("expected a closing `\"` in the line `#HQ {line}`"));
    }
    words.extend(word.map(OsString::from_vec));
    Ok(words)
}

fn shebang_words(head: &[u8]) -> Vec<OsString> {
    let line = head.split(|b| *b == b'\n').next().unwrap_or_default();
    let Some(rest) = line.strip_prefix(b"#!") else {
        return Vec::new();
    };
    rest.split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
        .map(|word| OsStr::from_bytes(word).to_owned())
        .collect()
}

/// Adds the options of `extra` (the directives) to `base` (the command line), which has precedence.
fn merge(base: &mut TaskOptions, mut extra: TaskOptions) {
    drop_overridden(base, &mut extra);
    base.param = merged_params(
        std::mem::take(&mut base.param),
        std::mem::take(&mut extra.param),
    );
    base.combine(extra);
}

/// Removes options of `extra` that have no effect if the options of `base` are set.
fn drop_overridden(base: &TaskOptions, extra: &mut TaskOptions) {
    let has_entries = base.each_line.is_some() || base.from_json.is_some();
    // The array of a script without parameters does not refer to combinations.
    let has_params = base.each_row.is_some() || !base.param.is_empty() && extra.param.is_empty();
    if base.array.is_some() || has_entries || has_params {
        (extra.array, extra.each_line, extra.from_json) = (None, None, None);
        extra.null = false;
    }
    // Neither the command line nor the script may have both, so this combination replaces the
    // script's.
    if has_entries {
        extra.param.clear();
        extra.each_row = None;
    }
    // Two options set the number of cpus.
    let is_named = |name: &str| {
        let is_set = name == "cpus" && base.cpus.is_some();
        is_set || base.resource.iter().any(|asked| asked.name() == name)
    };
    extra.resource.retain(|asked| !is_named(asked.name()));
    // The two options for nodes are mutually exclusive.
    let takes_nodes = base.nodes.is_some_and(|count| count > 0);
    extra.cpus = extra.cpus.filter(|_| !is_named("cpus") && !takes_nodes);
    extra.pin = extra.pin.filter(|_| !takes_nodes);
    let takes_share = base.cpus.is_some() || base.pin.is_some();
    extra.nodes = extra.nodes.filter(|_| !takes_share);
    let is_own = |pair: &EnvPair| base.env.iter().any(|own| own.name == pair.name);
    extra.env.retain(|pair| !is_own(pair));
    // Both options concern the same setting.
    if base.predict.is_some() || base.no_predict {
        (extra.predict, extra.no_predict) = (None, false);
    }
}

/// Merges the parameters of a script with the parameters of the command line.
fn merged_params(own: Vec<ParamArg>, mut params: Vec<ParamArg>) -> Vec<ParamArg> {
    // The positions of the script's parameters that have not been replaced.
    let mut places: Vec<usize> = (0..params.len()).collect();
    for param in own {
        let mut found = places.iter();
        // The parameter replaces the script's at the same position, so that parameters paired with
        // it still work. Duplicates on the command line are rejected later.
        match found.position(|at| params[*at].name == param.name) {
            Some(found) => params[places.remove(found)] = param,
            None => params.push(param),
        }
    }
    params
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::value::parse_env;

    fn with_defaults(words: &str, defaults: &str, is_attached: bool) -> TaskOptions {
        let parsed = |line: &str| {
            let words = split_words(line.as_bytes()).expect("closed");
            DirectiveLine::try_parse_from(words).expect("valid").options
        };
        let mut options = parsed(words);
        add_defaults(&mut options, parsed(defaults), is_attached);
        options
    }

    #[test]
    fn defaults_about_what_a_submit_does_not_have_are_no_mistakes() {
        let with = with_defaults;
        let max_fails = |is_attached| with("", "--max-fails=5", is_attached).max_fails;
        assert_eq!((max_fails(false), max_fails(true)), (Some(5), None));
        let checks = "--check-outputs --skip-done";
        let checked = |words, is_attached| {
            let options = with(words, checks, is_attached);
            (options.check_outputs, options.skip_done)
        };
        assert_eq!(checked("", false), (false, false));
        assert_eq!(checked("--outputs=x", false), (true, true));
        assert_eq!(checked("--outputs=x", true), (true, false));
        assert_eq!(checked("--outputs=x --array=3", true), (true, true));

        let grow = "--retry-grow=mem=2,max=8GiB,time=2 --retries=2";
        let grows = |words| {
            let grow = with(words, grow, false).retry_grow;
            grow.map(|grow| (grow.memory.is_some(), grow.time.is_some()))
        };
        assert_eq!(grows(""), None);
        assert_eq!(grows("--resource mem=1GiB"), Some((true, false)));
        assert_eq!(grows("--resource mem=8GiB"), None);
        assert_eq!(grows("--time-limit=1h"), Some((false, true)));
        assert_eq!(grows("--time-limit=1h --retries=0"), None);
        let zero = with("--retry-grow=time=2", "--retries=0", false);
        assert_eq!(zero.retries, None);

        let retries = |words| {
            let options = with(words, "--retries=2 --retry-on=exit", false);
            (options.retries, options.retry_on.is_some())
        };
        assert_eq!(retries(""), (Some(2), true));
        assert_eq!(retries("--resource mem=auto"), (None, false));
        assert_eq!(retries("--resource mem=auto --retries=5"), (Some(5), true));
        assert_eq!(
            retries("--resource mem=auto --retry-on=oom"),
            (Some(2), true)
        );
        let auto = with("--retries=0", "--resource mem=auto --nodes=2", false);
        assert!(auto.resource.is_empty());
        let given = with("--time-request=1h", "--predict=0.9", false);
        assert_eq!(given.predict, None);
        let told = with("--predict=0.9", "--time-request=1h", false);
        assert_eq!(told.time_request, None);
    }

    fn words(line: &str) -> Vec<String> {
        let words = split_words(line.as_bytes()).expect("closed");
        words
            .into_iter()
            .map(|word| word.into_string().expect("utf-8"))
            .collect()
    }

    #[test]
    fn splits_and_quotes() {
        for (line, expected) in [
            (
                r#" --cpus "2 compact" --name=x"#,
                &["--cpus", "2 compact", "--name=x"][..],
            ),
            (r#" --env MSG="hello world""#, &["--env", "MSG=hello world"]),
            (r#" a\ b \"c \\x"#, &["a b", "\"c", "\\\\x"]),
            (r#" "a \"b\" \(c\)\ d""#, &[r#"a "b" (c) d"#]),
            (" --name it's", &["--name", "it's"]),
            (r#" "" x"#, &["", "x"]),
        ] {
            assert_eq!(words(line), expected, "{line}");
        }
        assert!(split_words(b" \"a").is_err());
    }

    #[test]
    fn only_leading_comments_count() {
        let script = b"#!/bin/bash -x\n\n  #HQ --cpus 2\n#HQ\n#HQX --no\n# text\n\t#HQ\t--pin omp\necho\n#HQ --late\n";
        let lines: Vec<_> = directive_lines(script).collect();
        assert_eq!(lines, [&b" --cpus 2"[..], b"\t--pin omp"]);
        assert_eq!(shebang_words(script), ["/bin/bash", "-x"]);
    }

    #[test]
    fn the_command_line_wins() {
        let script = b"#HQ --name=a --cpus \"2 compact\" --weight 3 --array 1-10\n#HQ --env A=1 --env B=2 --resource x=1 --task-dir\n";
        let extra = parse_options("f", script).expect("valid");
        let mut base = TaskOptions {
            name: Some("mine".to_owned()),
            each_line: Some("list".into()),
            env: vec![parse_env(OsStr::new("B=3")).expect("valid")],
            ..TaskOptions::default()
        };
        merge(&mut base, extra);
        assert_eq!(base.name.as_deref(), Some("mine"));
        assert_eq!(
            (base.weight, base.array.is_none(), base.task_dir),
            (Some(30_000), true, true)
        );
        let env: Vec<_> = base.env.iter().map(|p| (&*p.name, &*p.value)).collect();
        assert_eq!(env, [(&b"A"[..], &b"1"[..]), (b"B", b"3")]);
        assert_eq!((base.resource.len(), base.cpus.is_some()), (1, true));
    }

    #[test]
    fn parameters_of_the_command_line_take_the_place_of_those_of_the_script() {
        let script = b"#HQ --param a=1,2 --param +b=x,y --array 0-1\n";
        let merged = |words: &[&str]| {
            let mut base = DirectiveLine::try_parse_from(words).expect("valid").options;
            merge(&mut base, parse_options("f", script).expect("valid"));
            let names = base
                .param
                .iter()
                .map(|param| (param.name.clone(), param.is_along));
            (names.collect::<Vec<_>>(), base.array.is_some())
        };
        let name = |name: &str, is_along| (name.to_owned(), is_along);
        assert_eq!(
            merged(&["--param", "c=1", "--param", "a=7,8"]),
            (
                vec![name("a", false), name("b", true), name("c", false)],
                true
            )
        );
        // A duplicate parameter is not merged, so that the check of all parameters rejects it.
        let twice = merged(&[
            "--param", "c=1", "--param", "a=7", "--param", "c=2", "--param", "a=8",
        ]);
        let names: Vec<&str> = twice.0.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a", "b", "c", "c", "a"]);
        assert_eq!(merged(&["--each-line", "f"]), (Vec::new(), false));
        let both = vec![name("a", false), name("b", true)];
        assert_eq!(merged(&["--each-row", "f"]), (both, false));
        let mut base = DirectiveLine::try_parse_from(["--param", "a=1"])
            .expect("valid")
            .options;
        merge(
            &mut base,
            parse_options("f", b"#HQ --array 1-9\n").expect("valid"),
        );
        assert!(base.array.is_none() && base.param.len() == 1);
        assert!(parse_options("f", b"#HQ --param a=1 --each-line x\n").is_err());
    }

    #[test]
    fn the_tasks_of_the_command_line_take_the_place_of_those_of_the_script() {
        let merged = |words: &[&str], script: &str| {
            let mut base = DirectiveLine::try_parse_from(words).expect("valid").options;
            let script = format!("#HQ {script}\n");
            let extra = parse_options("f", script.as_bytes()).expect("valid");
            merge(&mut base, extra);
            let row = base
                .each_row
                .as_ref()
                .map(|path| path.display().to_string());
            (row.unwrap_or_default(), base.null, base.array.is_some())
        };
        let row = |path: &str, has_array| (path.to_owned(), false, has_array);
        assert_eq!(
            merged(&["--each-row", "a"], "--each-line f --null"),
            row("a", false)
        );
        assert_eq!(
            merged(&["--each-row", "a"], "--each-row b --array 1-2"),
            row("a", false)
        );
        assert_eq!(
            merged(&["--each-line", "a"], "--each-row b"),
            row("", false)
        );
        assert_eq!(
            merged(&["--each-line", "a"], "--each-line b --null"),
            row("", false)
        );
        assert_eq!(merged(&["--array", "1-2"], "--each-row b"), row("b", true));
        assert_eq!(
            merged(&["--param", "x=1"], "--each-row b --array 1-2"),
            row("b", false)
        );
        assert_eq!(
            merged(&["--cpus", "2"], "--each-line f --null"),
            (String::new(), true, false)
        );
    }

    #[test]
    fn refusals_name_the_script() {
        let text = |script: &[u8]| {
            parse_options("a.sh", script)
                .expect_err("bad")
                .text()
                .unwrap_or_default()
        };
        insta::assert_snapshot!(text(b"#HQ --foo 1\n"), @r"
        Could not parse directives from a.sh: You have used invalid parameter(s) after a #HQ directive.
        error: unexpected argument '--foo' found

        Usage: #HQ <hq submit parameters>
        ");
        for line in [
            "--wait",
            "--job 1",
            "--stdin",
            "--directives=off",
            "--server-dir x",
            "ls",
        ] {
            let error = text(format!("#HQ {line}\n").as_bytes());
            assert!(error.contains("error: unexpected argument"), "{error}");
        }
        let missing = find(DirectivesMode::Auto, &["/nonexistent/x.sh".into()], None);
        assert_eq!(
            missing.expect_err("missing").text().as_deref(),
            Some(
                "/nonexistent/x.sh does not exist. Could not parse directives from /nonexistent/x.sh: No such file or directory (os error 2)"
            )
        );
        assert!(find(DirectivesMode::Auto, &["/nonexistent/x".into()], None).is_ok());
        assert!(find(DirectivesMode::Stdin, &["ls".into()], None).is_err());
    }

    #[test]
    fn a_byte_order_mark_is_refused() {
        let error = parse_options("a.sh", b"\xef\xbb\xbf#!/bin/sh\n#HQ --array 1-3\n");
        let text = error
            .expect_err("lines nobody would see")
            .text()
            .unwrap_or_default();
        assert!(text.contains("byte order mark"), "{text}");
        assert!(parse_options("a.sh", b"#HQ --array 1-3\n").is_ok());
    }

    #[test]
    fn the_shebang_goes_first() {
        let directives = Directives {
            options: TaskOptions::default(),
            shebang: vec!["/bin/bash".into(), "-x".into()],
        };
        let mut options = TaskOptions {
            command: vec!["a.sh".into(), "x".into()],
            ..TaskOptions::default()
        };
        directives.apply(&mut options);
        assert_eq!(options.command, ["/bin/bash", "-x", "a.sh", "x"]);
    }
}
