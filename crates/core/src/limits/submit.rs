//! Size limits of a submit. A larger submit could not be delivered, or no Linux system could start
//! its tasks.
//!
//! The limits are checked only when a client submits, so submits that an older server accepted stay
//! valid.

use std::fmt;

use crate::job::SharedTemplate;
use crate::params::{Params, Values, variable};
use crate::template::{
    ArrayIds, ByteText, Entries, StdioSpec, SubmitBody, SubmitSpec, SubmitTarget, TaskTemplate,
};

/// The maximum size in bytes of the data that the tasks of a submit share (arguments, environment,
/// standard input, paths). Each worker receives the data once, in one message. The server holds a
/// copy for each worker that it is currently sending to.
pub const TEMPLATE_BYTES_MAX: usize = 64 << 20;

/// The maximum length of an argument, variable or entry in bytes. The kernel accepts 32 pages
/// including the NUL (`MAX_ARG_STRLEN`), and no machine has pages larger than 64 KiB. The usual 4
/// KiB pages allow less, but only the worker knows its page size.
pub const STRING_BYTES_MAX: usize = (32 << 16) - 1;

/// The maximum length of a path in bytes, including placeholders (`PATH_MAX` without its NUL).
pub const PATH_BYTES_MAX: usize = 4_095;

/// The maximum number of ranges of task ids in a submit: enough for any selection of the tasks of a
/// job with a million tasks. The journal describes all of them in one value, which its readers
/// must accept.
pub const SUBMIT_RANGES_MAX: usize = 1 << 19;

/// The overhead of a template besides its texts: numbers, requests and tags.
const TEMPLATE_BYTES: usize = 1 << 10;

/// The overhead of a text in a template.
const TEXT_BYTES: usize = 16;

/// The overhead of a resource in a request on top of its name, and of a request on top of its
/// resources.
const REQUEST_BYTES: usize = 40;

/// The size of a cause of another attempt.
const CAUSE_BYTES: usize = 16;

/// A part of a submit that is too large.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what} has {found} {unit}, at most {limit} are possible{hint}")]
pub struct TooLarge {
    /// The name of the part, for users.
    pub what: Box<str>,
    /// The size.
    pub found: usize,
    /// The maximum size.
    pub limit: usize,
    unit: &'static str,
    hint: &'static str,
}

impl TooLarge {
    const STRING: &'static str =
        "; Linux takes no longer argument or variable: put it into a file and name the file";
    const PATH: &'static str = "; Linux takes no longer path";
    const TEMPLATE: &'static str =
        "; each worker has to be sent all of it: put large data into files that the tasks read";

    const VALUES: &'static str = "; each worker has to be sent all of it: with --each-line FILE each task is sent its own line, in HQ_ENTRY";

    fn check(
        what: impl fmt::Display,
        found: usize,
        limit: usize,
        hint: &'static str,
    ) -> Result<(), Self> {
        if found <= limit {
            return Ok(());
        }
        Err(Self {
            what: what.to_string().into(),
            found,
            limit,
            unit: "bytes",
            hint,
        })
    }
}

/// Checks that each task of a submit can be sent to a worker, and that Linux can start it.
///
/// # Errors
///
/// Returns a [`TooLarge`] that names the first part that is too large.
pub fn check_submit(spec: &SubmitSpec) -> Result<(), TooLarge> {
    path("the directory of the submit", &spec.submit_dir)?;
    if let Some(dir) = &spec.stream_dir {
        path("the path of --stream", dir)?;
    }
    let shared = spec.submit_dir.len()
        + spec.stream_dir.as_ref().map_or(0, |dir| dir.len())
        + match &spec.target {
            SubmitTarget::NewJob { name, .. } | SubmitTarget::SelfClosing { name, .. } => {
                name.len()
            }
            SubmitTarget::Attach(_) => 0,
        };
    match &spec.body {
        SubmitBody::Array(array) => {
            check_template(&array.template, shared)?;
            check_ids(&array.ids)?;
            array.entries.as_ref().map_or(Ok(()), check_entries)
        }
        SubmitBody::Graph(graph) => graph
            .templates
            .iter()
            .try_for_each(|template| check_template(template, shared)),
    }
}

fn check_ids(ids: &ArrayIds) -> Result<(), TooLarge> {
    match ids {
        ArrayIds::Given(ids) if ids.ranges().len() > SUBMIT_RANGES_MAX => Err(TooLarge {
            what: "the list of task ids".into(),
            found: ids.ranges().len(),
            limit: SUBMIT_RANGES_MAX,
            unit: "ranges",
            hint: "; choose ids that follow each other, or split the tasks over several submits",
        }),
        ArrayIds::Given(_) | ArrayIds::Next(_) => Ok(()),
    }
}

fn check_entries(entries: &Entries) -> Result<(), TooLarge> {
    let limit = STRING_BYTES_MAX - "HQ_ENTRY=".len();
    if entries.data_len() <= limit {
        return Ok(());
    }
    let lengths = (0_u32..).map_while(|index| entries.get(index));
    for (number, entry) in lengths.enumerate() {
        let what = format_args!("entry {}", number + 1);
        TooLarge::check(what, entry.len(), limit, TooLarge::STRING)?;
    }
    Ok(())
}

fn check_template(template: &TaskTemplate, shared: usize) -> Result<(), TooLarge> {
    for (what, file) in paths(template) {
        path(what, file)?;
    }
    let files = &template.files;
    for file in files.inputs.iter().chain(&files.outputs) {
        path("the path of an input or output", file)?;
    }
    for (number, arg) in template.args.iter().enumerate() {
        let what = format_args!("argument {number} of the program");
        TooLarge::check(what, arg.len(), STRING_BYTES_MAX, TooLarge::STRING)?;
    }
    for (name, value) in &template.env {
        let length = name.len() + "=".len() + value.len();
        let shown = super::shortened(&name.escape_ascii().to_string(), 64);
        let what = format_args!("the variable {shown}");
        TooLarge::check(what, length, STRING_BYTES_MAX, TooLarge::STRING)?;
    }
    if let Some(params) = &template.params {
        check_params(template, params)?;
    }
    let stdin = template.stdin.as_ref().map_or(0, |bytes| bytes.len());
    let what = "the data for standard input (--stdin)";
    TooLarge::check(what, stdin, TEMPLATE_BYTES_MAX, TooLarge::TEMPLATE)?;
    let what = "what the tasks share (arguments, environment, parameters, standard input)";
    let total = task_template_bytes(template) + shared;
    TooLarge::check(what, total, TEMPLATE_BYTES_MAX, TooLarge::TEMPLATE)
}

/// Checks the expanded size of texts with parameters, because a worker expands them without a
/// limit.
fn check_params(template: &TaskTemplate, params: &Params) -> Result<(), TooLarge> {
    let longest = params.longest();
    for (param, longest) in params.list().iter().zip(&longest) {
        let what = format_args!("a value of the parameter {}", param.name);
        let length = variable(&param.name).len() + "=".len() + longest;
        TooLarge::check(what, length, STRING_BYTES_MAX, TooLarge::STRING)?;
    }
    let what = "the list of values of parameters (--param, --each-row)";
    let listed = params_bytes(params);
    TooLarge::check(what, listed, TEMPLATE_BYTES_MAX, TooLarge::VALUES)?;
    let mut total = 0_usize;
    for (number, arg) in template.args.iter().enumerate() {
        let length = params.filled_max(arg, &longest);
        let what = format_args!("argument {number} of the program, with the longest values,");
        TooLarge::check(what, length, STRING_BYTES_MAX, TooLarge::STRING)?;
        total = total.saturating_add(length);
    }
    let what = "the arguments, with the longest values,";
    TooLarge::check(what, total, TEMPLATE_BYTES_MAX, TooLarge::STRING)?;
    for (what, file) in paths(template) {
        let what = format_args!("{what}, with the longest values,");
        let length = params.filled_max(file, &longest);
        TooLarge::check(what, length, PATH_BYTES_MAX, TooLarge::PATH)?;
    }
    Ok(())
}

/// Returns the working directory and the output files, each with the name that users see.
fn paths(template: &TaskTemplate) -> impl Iterator<Item = (&'static str, &ByteText)> {
    let files = [
        ("the path of standard output", &template.stdout),
        ("the path of standard error", &template.stderr),
    ];
    let files = files.into_iter().filter_map(|(what, stdio)| match stdio {
        StdioSpec::File { path, .. } => Some((what, path)),
        StdioSpec::None | StdioSpec::Stream => None,
    });
    std::iter::once(("the working directory", &template.cwd)).chain(files)
}

/// Returns an upper bound for the size in bytes of parameters in a message.
fn params_bytes(params: &Params) -> usize {
    let piece = |values: &Values| match values {
        // Texts are concatenated, and each has a length, which is encoded in one byte up to 127. The
        // other bytes of a length are fewer than the text's length divided by 128.
        Values::Texts(texts) => {
            texts.data_len() + texts.len() + texts.data_len() / 128 + TEXT_BYTES
        }
        Values::Decimals(_) => REQUEST_BYTES,
    };
    let params = params.list().iter();
    params
        .map(|param| param.name.len() + TEXT_BYTES + param.values.iter().map(piece).sum::<usize>())
        .sum()
}

fn path(what: &str, path: &ByteText) -> Result<(), TooLarge> {
    TooLarge::check(what, path.len(), PATH_BYTES_MAX, TooLarge::PATH)
}

/// Returns an upper bound for the size in bytes of a template in a message.
#[must_use]
pub fn template_bytes(template: &SharedTemplate) -> usize {
    let header = &template.header;
    task_template_bytes(&template.task)
        + header.job_name.len()
        + header.submit_dir.len()
        + header.stream_dir.as_ref().map_or(0, |dir| dir.len())
}

fn task_template_bytes(template: &TaskTemplate) -> usize {
    let stdio = |stdio: &StdioSpec| match stdio {
        StdioSpec::File { path, .. } => path.len(),
        StdioSpec::None | StdioSpec::Stream => 0,
    };
    let args = template.args.iter().map(|arg| arg.len() + TEXT_BYTES);
    let env = template
        .env
        .iter()
        .map(|(name, value)| name.len() + value.len() + 2 * TEXT_BYTES);
    let requests = template.requests.as_slice().iter().map(|request| {
        let entries = request.entries.iter();
        let entries = entries.map(|entry| entry.resource.len() + REQUEST_BYTES);
        REQUEST_BYTES + entries.sum::<usize>()
    });
    let files = &template.files;
    let files = files.inputs.iter().chain(&files.outputs);
    TEMPLATE_BYTES
        + args.sum::<usize>()
        + env.sum::<usize>()
        + requests.sum::<usize>()
        + template.retry.on.len() * CAUSE_BYTES
        + template.params.as_deref().map_or(0, params_bytes)
        + template.cwd.len()
        + files.map(|path| path.len() + TEXT_BYTES).sum::<usize>()
        + stdio(&template.stdout)
        + stdio(&template.stderr)
        + template.stdin.as_ref().map_or(0, |bytes| bytes.len())
        + template.name.as_ref().map_or(0, |name| name.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::range::IdArray;
    use crate::testing::{array_submit, template};

    fn submit(template: TaskTemplate, entries: Option<Entries>) -> SubmitSpec {
        let count = entries.as_ref().map_or(1, Entries::len);
        let mut spec = array_submit(u32::try_from(count).expect("few"), template);
        if let SubmitBody::Array(array) = &mut spec.body {
            array.entries = entries;
        }
        spec
    }

    fn refusal(template: TaskTemplate) -> Option<String> {
        let checked = check_submit(&submit(template, None));
        checked.err().map(|error| error.to_string())
    }

    #[test]
    fn what_can_never_be_delivered_or_started_is_named_with_its_size() {
        let with_stdin = |bytes: usize| TaskTemplate {
            stdin: Some(vec![0; bytes].into()),
            ..template(&["cat"])
        };
        assert_eq!(refusal(with_stdin(20_000_000)), None);
        assert_eq!(
            refusal(with_stdin(TEMPLATE_BYTES_MAX + 1)).as_deref(),
            Some(
                "the data for standard input (--stdin) has 67108865 bytes, at most 67108864 are possible; \
                 each worker has to be sent all of it: put large data into files that the tasks read"
            )
        );
        let longest = "x".repeat(STRING_BYTES_MAX);
        assert_eq!(refusal(template(&["echo", &longest])), None);
        let long = longest + "x";
        let text = refusal(template(&["echo", &long])).expect("too long");
        assert!(
            text.starts_with("argument 1 of the program has 2097152 bytes, at most 2097151"),
            "{text}"
        );
        let env = vec![(Box::from(*b"NAME"), long.into_bytes().into())];
        let text = refusal(TaskTemplate {
            env,
            ..template(&["env"])
        });
        let text = text.expect("too long");
        assert!(
            text.starts_with("the variable NAME has 2097157 bytes"),
            "{text}"
        );
        let cwd = vec![b'd'; PATH_BYTES_MAX + 1].into();
        let text = refusal(TaskTemplate {
            cwd,
            ..template(&["env"])
        });
        assert!(text.is_some_and(|text| text.starts_with("the working directory has 4096 bytes")));
    }

    #[test]
    fn a_list_of_ids_has_a_length() {
        let with = |count: usize| {
            let ids = (0..).step_by(2).take(count);
            let ids = IdArray::from_sorted(ids).expect("ascending");
            let mut spec = submit(template(&["true"]), None);
            if let SubmitBody::Array(array) = &mut spec.body {
                array.ids = ArrayIds::Given(ids);
            }
            check_submit(&spec)
        };
        assert_eq!(with(SUBMIT_RANGES_MAX), Ok(()));
        let refused = with(SUBMIT_RANGES_MAX + 1).expect_err("too many");
        let expected = "the list of task ids has 524289 ranges, at most 524288 are possible; ";
        assert!(refused.to_string().starts_with(expected), "{refused}");
    }

    #[test]
    fn an_entry_is_a_variable() {
        let longest = STRING_BYTES_MAX - "HQ_ENTRY=".len();
        let entries = |last: usize| {
            let lengths = [1, longest as u64, last as u64];
            Entries::new(vec![b'x'; 1 + longest + last], lengths).expect("own lengths")
        };
        let fits = submit(template(&["env"]), Some(entries(longest)));
        assert_eq!(check_submit(&fits), Ok(()));
        let refused = check_submit(&submit(template(&["env"]), Some(entries(longest + 1))));
        assert_eq!(&*refused.expect_err("too long").what, "entry 3");
    }

    #[test]
    fn values_of_parameters_count_where_they_are_put() {
        use crate::params::Param;
        let with = |args: &[&str], cwd: &str, bytes: usize, count: usize| {
            let data = vec![b'v'; bytes * count];
            let texts = Entries::new(data, std::iter::repeat_n(bytes as u64, count));
            let param = Param {
                name: "x".into(),
                is_along: false,
                values: vec![Values::Texts(texts.expect("adds up"))],
            };
            let params = Params::new(vec![param], 0).expect("fits");
            refusal(TaskTemplate {
                params: Some(params.into()),
                cwd: cwd.as_bytes().into(),
                ..template(args)
            })
        };
        assert_eq!(with(&["./x", "{x}{x}"], "{x}", 4_000, 2), None);
        for (args, cwd, bytes, count, said) in [
            (
                &["./x", "{x}"][..],
                "/d/{x}",
                4_093,
                1,
                "the working directory, with",
            ),
            // A worker would expand this to ten gigabytes.
            (
                &[&"{x}".repeat(10_000)],
                "/",
                1 << 20,
                1,
                "argument 0 of the program, with",
            ),
            (
                &["{x}"; 65],
                "/",
                1 << 20,
                1,
                "the arguments, with the longest",
            ),
            (
                &["{x}"],
                "/",
                1 << 20,
                64,
                "the list of values of parameters (--param, --each-row) has",
            ),
            (&["./x"], "/", 1 << 21, 1, "a value of the parameter x has"),
        ] {
            let text = with(args, cwd, bytes, count).expect("too large");
            assert!(text.starts_with(said), "{text}");
        }
    }

    #[test]
    fn many_small_texts_add_up() {
        let word = "x".repeat(1 << 20);
        let words: Vec<&str> = std::iter::repeat_n(&*word, 64).collect();
        let text = refusal(template(&words)).expect("too much");
        assert!(text.starts_with("what the tasks share"), "{text}");
        assert_eq!(refusal(template(&words[..63])), None);
    }
}
