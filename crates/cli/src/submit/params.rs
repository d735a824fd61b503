//! Parameters of a submit: converts `--param`, and checks texts that refer to parameters.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use hq_core::params::{Param, Params, Values, fill, used};
use hq_core::template::ArrayIds;

use super::entries::{EntryList, ids_below, read_lines};
use super::{content, placeholder, rows};
use crate::args::submit::TaskOptions;
use crate::error::{CliError, CliResult};
use crate::parse::param::{ParamArg, ParamItem, ParamSource};
use crate::text::closest;

/// Reads the table and the files that parameters name, and combines all parameters. Adds a note
/// about ids that have no row.
pub(crate) fn build(
    options: &TaskOptions,
    notes: &mut Vec<Box<str>>,
) -> CliResult<Option<Arc<Params>>> {
    let (mut list, mut first) = (Vec::new(), 0);
    if let Some(path) = &options.each_row {
        let wanted = options.array.as_deref().filter(|_| selects_rows(options));
        let table = rows::read(path, wanted)?;
        let note = wanted.and_then(|array| content::note_on_ids(table.count, array));
        notes.extend(note.map(String::into_boxed_str));
        (list, first) = (table.columns, table.first);
    }
    for arg in &options.param {
        list.push(build_one(arg)?);
    }
    if list.is_empty() {
        return Ok(None);
    }
    let params = Params::new(list, first).map_err(|error| {
        CliError::new(format!("--param: {error}")).with_help(match options.each_row {
            Some(_) => "the columns of --each-row are parameters too; `hq doc jobs` describes them",
            None => "`hq doc jobs` describes parameters",
        })
    })?;
    Ok(Some(Arc::new(params)))
}

fn build_one(arg: &ParamArg) -> CliResult<Param> {
    let values = match &arg.source {
        ParamSource::Lines(path) => {
            tracing::info!("Reading file: {}", path.display());
            vec![Values::Texts(read_lines(path, b'\n')?.finish()?)]
        }
        ParamSource::Given(items) => group(items)?,
    };
    Ok(Param {
        name: arg.name.as_str().into(),
        is_along: arg.is_along,
        values,
    })
}

/// Joins consecutive texts into a list.
fn group(items: &[ParamItem]) -> CliResult<Vec<Values>> {
    let mut values = Vec::new();
    let is_text = |item: &ParamItem| matches!(item, ParamItem::Text(_));
    for run in items.chunk_by(|one, next| is_text(one) && is_text(next)) {
        let mut texts = EntryList::default();
        for item in run {
            match item {
                ParamItem::Text(text) => texts.push(text),
                ParamItem::Range(range) => values.push(Values::Decimals(*range)),
            }
        }
        if texts.len() > 0 {
            values.push(Values::Texts(texts.finish()?));
        }
    }
    Ok(values)
}

/// Returns whether `--array` selects rows of a table, rather than combinations.
const fn selects_rows(options: &TaskOptions) -> bool {
    options.each_row.is_some() && options.param.is_empty()
}

/// Returns one task for each combination, or for the combinations with the given numbers.
pub(crate) fn ids(params: &Params, options: &TaskOptions) -> CliResult<ArrayIds> {
    let Some(array) = options.array.as_deref() else {
        return Ok(ArrayIds::Next(params.count()));
    };
    if selects_rows(options) {
        let end = params.first().saturating_add(params.count());
        return Ok(ArrayIds::Given(ids_below(end, array)?));
    }
    let ranges = array.ranges().iter();
    let beyond = ranges.map(|range| range.last()).find(|id| !params.has(*id));
    match beyond {
        None => Ok(ArrayIds::Given(array.clone())),
        Some(id) => Err(CliError::new(format!(
            "--array {array}: expected numbers of combinations of --param, which are 0 to {}, found {id}",
            params.count() - 1
        ))),
    }
}

/// Fills in the job's name, which all tasks share: `{seed}` becomes `1-100`.
pub(crate) fn fill_name(name: &str, params: &Params) -> String {
    let described: Vec<(&str, String)> = params
        .list()
        .iter()
        .map(|param| (&*param.name, param.describe()))
        .collect();
    String::from_utf8_lossy(&fill(name.as_bytes(), &described)).replace(['\n', '\t'], " ")
}

/// Returns a path without its parameters, for checks that do not know them.
pub(crate) fn without(path: &[u8], params: Option<&Params>) -> Vec<u8> {
    let Some(params) = params else {
        return path.to_vec();
    };
    let names = params.list().iter();
    let nothing: Vec<(&str, &[u8])> = names.map(|param| (&*param.name, &b"_"[..])).collect();
    fill(path, &nothing)
}

/// Returns whether the task id or parameters make a path different for each task.
pub(crate) fn tells_apart(path: &[u8], params: Option<&Params>) -> bool {
    if placeholder::contains(path, "TASK_ID") {
        return true;
    }
    let Some(params) = params else {
        return false;
    };
    let used = used(path, params);
    let mut groups = params.groups();
    groups.all(|group| group.iter().any(|param| used.contains(&*param.name)))
}

/// Warns about values that end with part of a line ending.
fn warn_about_line_ends(params: &Params, warnings: &mut Vec<String>) {
    for param in params.list() {
        let texts = param.values.iter().filter_map(|values| match values {
            Values::Texts(texts) => Some(texts),
            Values::Decimals(_) => None,
        });
        let mut all = texts.flat_map(|texts| (0_u32..).map_while(|index| texts.get(index)));
        if all.any(|value| value.ends_with(b"\r")) {
            warnings.push(format!(
                "Values of the parameter `{}` end with a carriage return, as lines of a file from Windows do, and keep it; \
                 `sed -i 's/\\r$//' FILE` removes it",
                param.name
            ));
        }
    }
}

/// Rejects invalid uses of parameters, and warns about probable mistakes.
pub(crate) fn check(
    options: &TaskOptions,
    params: &Params,
    warnings: &mut Vec<String>,
) -> CliResult<()> {
    check_stream(options, params)?;
    warn_about_line_ends(params, warnings);
    warn_about_misspelled(options, params, warnings);
    Ok(())
}

/// Rejects parameters in a stream directory, which all tasks share.
fn check_stream(options: &TaskOptions, params: &Params) -> CliResult<()> {
    let dir = options
        .stream
        .as_ref()
        .map(|dir| dir.as_os_str().as_bytes());
    match used(dir.unwrap_or_default(), params).first() {
        None => Ok(()),
        Some(name) => Err(CliError::new(format!(
            "--stream is one directory for all tasks and cannot contain the parameter `{{{name}}}`"
        ))),
    }
}

/// Adds warnings about `{sed}` if there is a parameter `seed`.
fn warn_about_misspelled(options: &TaskOptions, params: &Params, warnings: &mut Vec<String>) {
    let cwd = options.cwd.as_ref().map(|path| path.as_os_str());
    for text in options.command.iter().map(OsString::as_os_str).chain(cwd) {
        for (name, meant) in misspelled(text, params) {
            let warning = format!(
                "`{{{name}}}` names no parameter and is not replaced; did you mean `{{{meant}}}`?"
            );
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        }
    }
}

fn misspelled<'a>(text: &OsStr, params: &'a Params) -> Vec<(String, &'a str)> {
    let text = text.to_string_lossy();
    let mut found = Vec::new();
    let mut rest = &*text;
    while let Some(open) = rest.find('{') {
        // This is a shell variable.
        let is_variable = rest[..open].ends_with('$');
        rest = &rest[open + 1..];
        let Some(end) = rest.find(['}', '{']) else {
            break;
        };
        let name = &rest[..end];
        let is_closed = rest[end..].starts_with('}');
        if is_variable || !is_closed || params.position(name.as_bytes()).is_some() {
            continue;
        }
        let names = params.list().iter().map(|param| &*param.name);
        // Any letter has an edit distance of one from any other, so single letters are not
        // compared.
        let close = closest(name, names).filter(|meant| meant.len() > 1 && name.len() > 1);
        found.extend(close.map(|meant| (name.to_owned(), meant)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::array::parse_array;
    use crate::parse::param::parse_param;
    use crate::text::lossy;

    fn params(texts: &[&str]) -> Arc<Params> {
        let args = texts.iter().map(|text| parse_param(OsStr::new(text)));
        let args: Vec<ParamArg> = args.collect::<Result<_, _>>().expect("valid");
        let built = build(&with_params(args), &mut Vec::new());
        built.expect("fits").expect("some")
    }

    fn with_params(param: Vec<ParamArg>) -> TaskOptions {
        TaskOptions {
            param,
            ..TaskOptions::default()
        }
    }

    #[test]
    fn texts_and_ranges_keep_their_order() {
        let params = params(&["x=a,1-3,b,c,5-6"]);
        let values: Vec<String> = (0..params.count())
            .flat_map(|id| params.values(hq_core::id::TaskId(id)))
            .map(|(_, value)| lossy(&value))
            .collect();
        assert_eq!(values, ["a", "1", "2", "3", "b", "c", "5", "6"]);
    }

    #[test]
    fn numbers_of_combinations_can_be_chosen() {
        let params = params(&["x=1-3", "y=1-4"]);
        let chosen = |text: &str| {
            let options = TaskOptions {
                array: Some(parse_array(text).expect(text)),
                ..TaskOptions::default()
            };
            ids(&params, &options)
        };
        assert!(matches!(chosen("0,11"), Ok(ArrayIds::Given(_))));
        let text = chosen("5-12").expect_err("beyond").text();
        assert!(
            text.as_deref()
                .is_some_and(|text| text.contains("0 to 11, found 12")),
            "{text:?}"
        );
        assert!(matches!(
            ids(&params, &TaskOptions::default()),
            Ok(ArrayIds::Next(12))
        ));
    }

    #[test]
    fn names_and_paths_are_looked_at() {
        let params = params(&["lr=0.1,0.01", "seed=1-100", "+tag=1-100", "one=x"]);
        assert_eq!(fill_name("t-{lr}-{seed}", &params), "t-0.1,0.01-1-100");
        assert!(tells_apart(b"{lr}/{tag}.out", Some(&params)));
        assert!(!tells_apart(b"{lr}.out", Some(&params)));
        assert!(!tells_apart(b"{lr}.out", None));
        assert_eq!(without(b"%{lr}/%{TASK_ID}", Some(&params)), b"_/%{TASK_ID}");
        let words = |text: &str| misspelled(OsStr::new(text), &params);
        assert_eq!(
            words("{sed} ${sed} {print} {seed}"),
            [("sed".to_owned(), "seed")]
        );
    }

    #[test]
    fn refusals_say_what_does_not_fit() {
        let refusal = |texts: &[&str]| {
            let args = texts.iter().map(|text| parse_param(OsStr::new(text)));
            let args: Vec<ParamArg> = args.collect::<Result<_, _>>().expect("valid");
            let built = build(&with_params(args), &mut Vec::new());
            let text = built.expect_err("refused").text();
            text.unwrap_or_default()
        };
        let many = refusal(&["a=1-100000", "b=1-100000"]);
        assert!(many.contains("more than 4294967295 tasks"), "{many}");
        let along = refusal(&["a=1-3", "+b=1-4"]);
        assert!(along.contains("it has 4, `a` has 3"), "{along}");
        let file = refusal(&["a=@/nonexistent/list"]);
        assert!(file.contains("/nonexistent/list"), "{file}");
    }
}
