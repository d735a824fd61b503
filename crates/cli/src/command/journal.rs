//! `hq journal …` and `hq query`.

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use hq_core::time::nanos;
use hq_protocol::access::{AccessError, JOURNAL_LINK_NAME, STATE_FILE_NAME, ServerDir};
use hq_protocol::client::{self, journal::Action};
use hq_store::reader::{self, QueryLimits, Table};
use hq_store::{StoreError, event};
use serde_json::Value;

use super::Context;
use crate::args::global::OutputMode;
use crate::args::journal::{
    CheckArgs, ExportArgs, LastReportArgs, QueryArgs, ReportArgs, SpanArgs, StreamArgs,
};
use crate::client::{ServerInfo, access_error};
use crate::error::{Caused as _, CliError, CliResult, exit};
use crate::output::json::write_value;
use crate::output::write_plain;
use crate::source::journal::JournalFile;
use crate::submit::read_stdin;
use crate::version::VERSION;

fn store_error(error: &StoreError) -> CliError {
    let error = CliError::new(error.to_string());
    let text = error.text().unwrap_or_default();
    if text.contains("No such file") || text.contains("not an SQLite database") {
        return error.with_help(
            "name the file of a journal, or its server directory. A journal contains all jobs; `hq job info JOB` shows one",
        );
    }
    error
}

/// Runs `hq journal export`, which reads the file and needs no server.
pub(super) fn export(args: &ExportArgs, context: &mut Context) -> CliResult<()> {
    let file = file_of(&args.file)?;
    let connection = reader::open_for_reading(&file).map_err(|e| store_error(&e))?;
    let mut failed = None;
    let out = context.out.data();
    let count = event::events_since(&connection, 0, i64::MAX, &mut |event| {
        failed = event::write_line(out, &event.line(), None).err();
        failed.is_none()
    })
    .caused(unreadable(&file))?;
    if let Some(error) = failed {
        return Err(CliError::from_output(&error));
    }
    context.flush()?;
    tracing::info!("Outputted {count} events");
    Ok(())
}

fn unreadable(path: &Path) -> String {
    format!("Cannot read event log file at `{}`", path.display())
}

/// Runs `hq journal check`, which reports damage and exits with 1 if there is any. With `--repair`,
/// it reports which data was lost.
pub(super) fn check(args: &CheckArgs, context: &mut Context) -> CliResult<()> {
    let file = file_of(&args.file)?;
    if args.repair {
        match hq_store::repair(&file).map_err(|e| store_error(&e))? {
            Some(report) => writeln!(context.out, "{report}")?,
            None => tracing::info!("The journal is whole"),
        }
        return context.flush();
    }
    let problems = hq_store::check(&file).map_err(|e| store_error(&e))?;
    for problem in &problems {
        writeln!(context.out, "{problem}")?;
    }
    context.flush()?;
    if !problems.is_empty() {
        return Err(CliError::AlreadyReported(exit::FAILURE));
    }
    tracing::info!("The journal is whole");
    Ok(())
}

/// Returns the journal at a path: the file itself, or the journal of an instance or server
/// directory.
pub(super) fn file_of(path: &Path) -> CliResult<PathBuf> {
    if path.is_dir() {
        journal_in(&ServerDir::new(path, false))
    } else {
        Ok(path.to_path_buf())
    }
}

/// Returns the journal of the server that runs in a directory, or of the last server that stored
/// its state there.
fn journal_in(dir: &ServerDir) -> CliResult<PathBuf> {
    let failed = |error: AccessError| access_error(&error);
    let mut instances = vec![dir.resolve().map_err(failed)?];
    instances.extend(dir.instances().map_err(failed)?);
    let mut files = instances.into_iter().map(|instance| {
        match std::fs::read_link(instance.join(JOURNAL_LINK_NAME)) {
            Ok(elsewhere) => elsewhere,
            Err(_) => instance.join(STATE_FILE_NAME),
        }
    });
    // A failed start may have left an empty file.
    files
        .find(|file| file.is_file() && file.metadata().is_ok_and(|found| found.len() > 0))
        .ok_or_else(|| {
            let root = dir.root();
            let error = CliError::new(format!(
                "There is no journal in `{}`: no server has kept its state there",
                root.display()
            ));
            if hq_stream::StreamDir::open(root, None).is_err() {
                return error;
            }
            let root = root.display();
            error.with_help(format!(
                "it has output of tasks: `hq output-log {root} show` prints it"
            ))
        })
}

/// Runs `hq report`, which writes the report of the running server or of the last one.
pub(super) async fn report_last(args: LastReportArgs, context: &mut Context) -> CliResult<()> {
    let dir = context.server_dir()?;
    let journal = match context.connect().await {
        Ok(mut client) => match client.ask(ServerInfo).await?.journal_path {
            Some(told) => PathBuf::from(told),
            None => journal_in(&dir)?,
        },
        Err(_) => journal_in(&dir)?,
    };
    write_report(&journal, &args.output, args.span, context).await
}

/// Runs `hq journal report`, which writes the report of a journal.
pub(super) async fn report(args: ReportArgs, context: &mut Context) -> CliResult<()> {
    let journal = file_of(&args.journal)?;
    write_report(&journal, &args.output, args.span, context).await
}

/// Returns whether a file contains something other than a report.
fn is_something_else(output: &Path) -> bool {
    let found = output.metadata().is_ok_and(|found| found.is_file());
    let head = found.then(|| std::fs::read(output).unwrap_or_default());
    head.is_some_and(|head| !head.is_empty() && !head.trim_ascii_start().starts_with(b"<"))
}

async fn write_report(
    journal: &Path,
    output: &Path,
    args: SpanArgs,
    context: &mut Context,
) -> CliResult<()> {
    let end = output.extension().and_then(|end| end.to_str());
    if !matches!(end, Some("html" | "htm")) && io::stderr().is_terminal() {
        tracing::warn!(
            "`{}` is taken as the file for the report, a page of HTML about all jobs",
            output.display()
        );
    }
    if is_something_else(output) {
        return Err(CliError::new(format!(
            "`{}` exists and is not a report, so it is not replaced",
            output.display()
        ))
        .with_help("name the page: `hq report FILE.html`"));
    }
    let mut file = JournalFile::open(journal)?;
    let (start, end) = file.span().await?;
    let after = |limit: Option<std::time::Duration>, default: i64| {
        let ns = limit.map(|limit| i64::try_from(limit.as_nanos()).unwrap_or(i64::MAX));
        ns.map_or(default, |ns| start.saturating_add(ns).min(end))
    };
    let (from, to) = (after(args.start_time, start), after(args.end_time, end));
    if from >= to && start != end {
        return Err(CliError::new(
            "The report would be empty: --end-time must be after --start-time, and --start-time before the end of the journal",
        )
        .with_help("both are durations since the start of the server, such as `--start-time 30m`"));
    }
    let read_output = hq_worker::read_output;
    let title = title(journal);
    let page = hq_server::report(journal, &title, VERSION, (from, to), read_output);
    let page = page.await.map_err(CliError::new)?;
    replace_file(output, page.as_bytes()).map_err(|e| {
        CliError::caused(
            format!("Cannot write the report to `{}`", output.display()),
            &e,
        )
    })?;
    tracing::info!("Wrote the report to `{}`", output.display());
    context.done()
}

/// Returns the title of a report. It is the name of the instance, because all journals in server
/// directories have the same file name.
fn title(journal: &Path) -> String {
    let named = match (journal.file_name(), journal.parent()) {
        (Some(name), Some(instance)) if name == STATE_FILE_NAME => instance.as_os_str(),
        (Some(name), _) => name,
        (None, _) => journal.as_os_str(),
    };
    named.to_string_lossy().into_owned()
}

/// Writes a file. An existing file is replaced only when the new one is complete. The umask
/// determines its permissions.
pub(super) fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let special = std::fs::metadata(path)
        .ok()
        .filter(|found| !found.is_file());
    if let Some(found) = special {
        // A pipe or a terminal is written to directly. With sudo, the pipe behind `/dev/stdout`
        // belongs to another user.
        let user = rustix::process::geteuid().as_raw();
        if !path.starts_with("/dev") && ![0, user].contains(&found.uid()) {
            let text = "it is not a regular file and belongs to another user, who would receive the report. Remove it, or name another file";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        return std::fs::write(path, bytes);
    }
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let mut builder = tempfile::Builder::new();
    builder.permissions(Permissions::from_mode(0o666));
    let mut file = builder.tempfile_in(dir.unwrap_or(Path::new(".")))?;
    file.write_all(bytes)?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// Runs `hq journal replay` or `hq journal stream`.
pub(super) async fn stream(
    args: StreamArgs,
    is_live: bool,
    context: &mut Context,
) -> CliResult<()> {
    let mut client = context.connect().await?;
    let action = if is_live {
        Action::Stream
    } else {
        Action::Replay
    };
    client
        .journal(client::Journal {
            action: action.into(),
            after: args.after,
        })
        .await?;
    // A live stream ends when its server ends.
    while let Some(lines) = client.next_lines(is_live).await? {
        for (line, seq) in lines.lines.iter().zip(&lines.seqs) {
            event::write_line(context.out.data(), line, args.verbose.then_some(*seq))?;
        }
        context.flush()?;
        if lines.done {
            break;
        }
    }
    Ok(())
}

/// Runs `hq journal prune`.
pub(super) async fn prune(context: &mut Context) -> CliResult<()> {
    context.ask(only(Action::Prune)).await?;
    tracing::info!("Jobs that have ended and lost workers are no longer in the journal");
    context.done()
}

/// Runs `hq journal flush`.
pub(super) async fn flush(context: &mut Context) -> CliResult<()> {
    context.ask(only(Action::Flush)).await?;
    context.done()
}

fn only(action: Action) -> client::Journal {
    let action = action.into();
    client::Journal { action, after: 0 }
}

/// Runs `hq query`.
pub(super) async fn query(args: QueryArgs, context: &mut Context) -> CliResult<()> {
    let from_stdin = args.sql.as_deref().filter(|sql| *sql == "-");
    let read = from_stdin.map(|_| read_stdin()).transpose()?;
    let read = read.map(String::from_utf8).transpose();
    let read = read.map_err(|_| CliError::new("Standard input: expected SQL as UTF-8"))?;
    let given = read.as_deref().or(args.sql.as_deref());
    let sql = given.unwrap_or(reader::VIEWS);
    if sql.trim().is_empty() {
        return Err(CliError::new("The query is empty").with_help(
            "`hq query 'select * from jobs'` prints a table, `hq query --list` lists all",
        ));
    }
    let mut words = std::env::args_os();
    let is_mode = |word: std::ffi::OsString| word.as_encoded_bytes().starts_with(b"--output-mode");
    if args.csv && context.mode() == OutputMode::Json && words.any(is_mode) {
        return Err(CliError::usage(
            "`--csv` and `--output-mode json` are two formats: leave out one of them",
        ));
    }
    let limits = QueryLimits {
        time: args.time_limit,
        rows: args.row_limit,
        bytes: reader::RESULT_LEN_MAX,
    };
    let table = match &args.journal {
        Some(path) => {
            let file = file_of(path)?;
            let connection = reader::open_for_reading(&file).map_err(|e| store_error(&e))?;
            reader::query(&connection, sql, limits)
                .map_err(|text| CliError::new(format!("The query failed: {text}")))?
        }
        None => ask(sql, limits, context).await.map_err(|error| {
            let text = error.text().unwrap_or_default();
            // The message already contains this hint.
            let has_names = ["; there are", "` has "].iter().any(|words| text.contains(words));
            if Path::new(sql).is_file() {
                error.with_help(format!("the argument is SQL; a file with SQL is read by `hq query - < {sql}`"))
            } else if text.contains("cannot modify") || text.contains("cannot change") {
                error.with_help(
                    "a query only reads: `hq job forget JOB` deletes an ended job, `hq job cancel JOB` cancels one, and `hq journal prune` removes ended jobs from the journal",
                )
            } else if has_names || !text.contains("query failed") {
                error
            } else {
                error.with_help(
                    "`hq query --list` lists the tables and their columns; `hq query 'select * from jobs'` prints one",
                )
            }
        })?,
    };
    write(&table, args.csv, context)?;
    context.flush()?;
    if io::stderr().is_terminal() {
        explain_result(sql, &table);
    }
    if table.is_cut {
        tracing::warn!(
            "Only the first {} rows are printed; `--row-limit N` prints more",
            args.row_limit
        );
    }
    Ok(())
}

/// Says why a result may be empty or incomplete.
fn explain_result(sql: &str, table: &Table) {
    const STATES: [&str; 6] = [
        "WAITING", "RUNNING", "FINISHED", "FAILED", "CANCELED", "ABORTED",
    ];
    if table.rows.is_empty() && sql.contains('"') {
        tracing::warn!("Double quotes name columns; texts have single quotes: `state = 'failed'`");
    }
    let is_it = |state: &&&str| sql.contains(&format!("'{state}'"));
    if let Some(state) = STATES.iter().find(is_it) {
        tracing::warn!("States are in small letters: `'{}'`", state.to_lowercase());
    }
    let lower = sql.to_lowercase();
    if lower.contains("from tasks") && (table.rows.is_empty() || lower.contains("'waiting'")) {
        tracing::warn!(
            "The view `tasks` has only tasks that have started; `hq task list JOB --filter waiting` lists the others, and the view `jobs` counts them"
        );
    }
}

async fn ask(sql: &str, limits: QueryLimits, context: &mut Context) -> CliResult<Table> {
    let request = client::SqlQuery {
        sql: sql.to_owned(),
        time_limit_ns: nanos(limits.time),
        row_limit: limits.rows,
    };
    let reply = context.ask(request).await?;
    Ok(Table {
        columns: reply.columns,
        rows: serde_json::from_str(&reply.rows_json).caused("The server sent no table")?,
        is_cut: reply.is_cut,
    })
}

fn write(table: &Table, csv: bool, context: &mut Context) -> CliResult<()> {
    let out = &mut context.out;
    if csv {
        let out = out.data();
        let fields = table.columns.iter().map(|name| csv_field(name));
        writeln!(out, "{}", fields.collect::<Vec<_>>().join(","))?;
        for row in &table.rows {
            let fields = row.iter().map(|value| csv_field(&plain(value)));
            writeln!(out, "{}", fields.collect::<Vec<_>>().join(","))?;
        }
        return Ok(());
    }
    match context.global.output_mode {
        OutputMode::Json => {
            write_value(out, &objects(table)?)?;
        }
        OutputMode::Quiet => {
            for row in &table.rows {
                writeln!(out, "{}", tab_separated(row))?;
            }
        }
        OutputMode::Cli => {
            let rows = table.rows.iter().map(|row| row.iter().map(plain).collect());
            write_plain(out, &table.columns, rows.collect())?;
        }
    }
    Ok(())
}

/// Returns an object for each row. Columns with the same name would lose values, so they are
/// rejected.
fn objects(table: &Table) -> CliResult<Value> {
    let mut names = BTreeSet::new();
    if let Some(name) = table.columns.iter().find(|name| !names.insert(*name)) {
        return Err(CliError::new(format!(
            "Expected columns with different names, found two columns `{name}`; name them with AS, or use --csv"
        )));
    }
    let objects = table.rows.iter().map(|row| {
        let pairs = table.columns.iter().cloned().zip(row.iter().cloned());
        Value::Object(pairs.collect())
    });
    Ok(Value::Array(objects.collect()))
}

/// Returns values separated by tabs. Tabs, line feeds, carriage returns and backslashes in values
/// become `\t`, `
/// `, `\r` and `\\`.
fn tab_separated(row: &[Value]) -> String {
    let escaped = |value| {
        let text: String = plain(value);
        if !text.contains(['\\', '\t', '\n', '\r']) {
            return text;
        }
        text.replace('\\', "\\\\")
            .replace('\t', "\\t")
            .replace('\n', "\\n")
            .replace('\r', "\\r")
    };
    row.iter().map(escaped).collect::<Vec<_>>().join("\t")
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}

/// Returns a field as defined by RFC 4180.
fn csv_field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rows_become_objects_only_if_no_column_hides_another() {
        let table = |columns: [&str; 2]| Table {
            columns: columns.map(str::to_owned).to_vec(),
            rows: vec![vec![json!(1), json!("x")]],
            is_cut: false,
        };
        assert_eq!(
            objects(&table(["a", "b"])),
            Ok(json!([{ "a": 1, "b": "x" }]))
        );
        let refusal = objects(&table(["a", "a"])).expect_err("one would be lost");
        let text = refusal.text().unwrap_or_default();
        assert!(
            text.contains("two columns `a`") && text.contains("AS"),
            "{text}"
        );
    }

    #[test]
    fn rows_and_columns_of_bare_words_can_be_told_apart() {
        let row = [json!("a\tb\nc\\d\r"), json!(2), Value::Null, json!("x")];
        assert_eq!(tab_separated(&row), "a\\tb\\nc\\\\d\\r\t2\t\tx");
    }
}
