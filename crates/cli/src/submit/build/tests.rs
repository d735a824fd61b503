//! Tests the submits that are built from command lines.

use super::*;
use crate::args::submit::SubmitArgs;
use crate::text::lossy;
use clap::Parser;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: SubmitArgs,
}

fn prepare(words: &[&str]) -> CliResult<PreparedSubmit> {
    let line = Line::try_parse_from(std::iter::once("hq").chain(words.iter().copied()));
    let args = line.map_err(|error| CliError::new(error.to_string()))?.args;
    let context = SubmitContext {
        submit_dir: Path::new("/w"),
        server_uid: Some("abcdef"),
        output_dir: None,
        reads_files: true,
    };
    let request = SubmitRequest {
        options: TaskOptions {
            command: args.command,
            ..args.tasks
        },
        destination: args.own.place(args.job),
        after: Vec::new(),
        default_ids: None,
        typed: (Verb::Submit, Front::default()),
    };
    build(request, context)
}

fn array(words: &[&str]) -> (ArraySpec, Vec<String>) {
    let prepared = prepare(words).expect("valid");
    match prepared.spec.body {
        SubmitBody::Array(array) => (array, prepared.warnings),
        SubmitBody::Graph(_) => panic!("expected an array"),
    }
}

fn path_of(spec: &StdioSpec) -> String {
    match spec {
        StdioSpec::File {
            path,
            remove_if_finished,
        } => {
            let mark = if *remove_if_finished { " (rm)" } else { "" };
            format!("{}{mark}", String::from_utf8_lossy(path))
        }
        StdioSpec::None => "none".to_owned(),
        StdioSpec::Stream => "stream".to_owned(),
    }
}

fn paths(words: &[&str]) -> (String, String, String) {
    let template = array(words).0.template;
    let cwd = lossy(&template.cwd);
    (cwd, path_of(&template.stdout), path_of(&template.stderr))
}

#[test]
fn defaults_are_filled_in() {
    let prepared = prepare(&["/usr/bin/sleep", "1"]).expect("valid");
    let name = SubmitTarget::NewJob {
        name: "sleep".into(),
        max_fails: None,
    };
    assert_eq!(prepared.spec.target, name);
    assert!(prepared.warnings.is_empty());
    let (spec, _) = array(&["/usr/bin/sleep", "1"]);
    assert_eq!((spec.ids, spec.entries), (ArrayIds::Next(1), None));
    assert_eq!(spec.template.requests, RequestVariants::default());
    assert_eq!(
        spec.template.args,
        [(*b"/usr/bin/sleep").into(), ByteText::from(*b"1")]
    );
}

#[test]
fn placeholders_known_at_submit_are_replaced() {
    for (words, expected) in [
        (
            &["x"][..],
            (
                "/w",
                "/w/job-%{JOB_ID}/%{TASK_ID}.stdout",
                "/w/job-%{JOB_ID}/%{TASK_ID}.stderr",
            ),
        ),
        (
            &["--cwd", "d/%{TASK_ID}", "--stderr", "none", "x"],
            (
                "/w/d/%{TASK_ID}",
                "/w/d/%{TASK_ID}/job-%{JOB_ID}/%{TASK_ID}.stdout",
                "none",
            ),
        ),
        (
            &[
                "--cwd=/a/./b",
                "--stdout=o-%{SERVER_UID}",
                "--stderr=:rm-if-finished",
                "x",
            ],
            (
                "/a/b",
                "o-abcdef",
                "/a/b/job-%{JOB_ID}/%{TASK_ID}.stderr (rm)",
            ),
        ),
        (
            &[
                "--cwd=%{SUBMIT_DIR}/y",
                "--stdout=%{CWD}/o",
                "--stderr=%{FOO}",
                "x",
            ],
            ("/w/y", "/w/y/o", "%{FOO}"),
        ),
    ] {
        let (cwd, stdout, stderr) = paths(words);
        assert_eq!((cwd.as_str(), stdout.as_str(), stderr.as_str()), expected);
    }
}

#[test]
fn each_task_of_an_array_has_outputs_of_its_own() {
    let refusal = |words: &[&str]| {
        let prepared = prepare(&[words, &["--", "x"]].concat());
        prepared.err().and_then(|error| error.text())
    };
    for words in [
        &["--array=1-3", "--outputs=out/%{TASK_ID}"][..],
        &["--array=1-3", "--cwd=d/%{TASK_ID}", "--outputs=out"],
        &["--array=1-3", "--cwd=/d/%{TASK_ID}", "--outputs=%{CWD}/out"],
        &[
            "--param=a=1,2",
            "--param=b=1,2",
            "--cwd={a}",
            "--outputs={b}",
        ],
        &["--array=3", "--outputs=out"],
        &["--outputs=out"],
    ] {
        assert_eq!(refusal(words), None, "{words:?}");
    }
    for (words, expected) in [
        (
            &["--array=1-3", "--outputs=%{TASK_ID}", "--outputs=out"][..],
            "All tasks would write the output out",
        ),
        (
            &["--array=1-3", "--cwd=%{TASK_ID}", "--outputs=/out"],
            "All tasks would write the output /out",
        ),
        (
            &["--param=a=1,2", "--param=b=1,2", "--outputs={b}"],
            "All tasks would write the output {b}",
        ),
        (
            &["--outputs=out-%{task_id}"],
            "Found unknown placeholder `task_id` in output path",
        ),
        (
            &["--inputs=%{TASKID}", "--outputs=x"],
            "Found unknown placeholder `TASKID` in input path",
        ),
    ] {
        let text = refusal(words).unwrap_or_default();
        assert!(text.starts_with(expected), "{words:?}: {text}");
    }
}

#[test]
fn resources_are_merged_and_checked() {
    let shown = |words: &[&str]| {
        let template = array(words).0.template;
        let request = &template.requests.as_slice()[0];
        let entries: Vec<_> = request
            .entries
            .iter()
            .map(|e| format!("{}={e}", e.resource))
            .collect();
        entries.join("; ")
    };
    assert_eq!(
        shown(&["--resource", "gpus=2", "x"]),
        "cpus=1 compact; gpus=2 compact"
    );
    assert_eq!(shown(&["--resource", "cpus=all", "x"]), "cpus=all");
    assert_eq!(shown(&["--cpus", "4 tight", "x"]), "cpus=4 tight");
    for (words, message) in [
        (
            &["--cpus=1", "--resource=cpus=2", "x"][..],
            "--cpus and --resource cpus=... cannot be combined",
        ),
        (
            &["--resource=foo=1", "--resource=foo=2", "x"],
            "Resource 'foo' defined more than once",
        ),
        (
            &["--job=1", "--name=a", "x"],
            "Parameter --name is not allowed when submitting to an open job.",
        ),
        (
            &["--job=1", "--max-fails=1", "x"],
            "Parameter --max-fails is not allowed when submitting to an open job.",
        ),
        (
            &["--cwd=%{CWD}/x", "x"],
            "Working directory path cannot contain the working directory placeholder `%{CWD}`.",
        ),
        (
            &["--each-line=/nonexistent/f", "x"],
            "Cannot read /nonexistent/f: No such file or directory (os error 2)",
        ),
    ] {
        let error = prepare(words).expect_err(message);
        assert_eq!(error.text().as_deref(), Some(message));
    }
    assert!(prepare(&["--nodes=0", "x"]).is_ok());
}

#[test]
fn warnings_follow_the_documented_words() {
    insta::assert_snapshot!(
        array(&["--array=1-2", "--stdout=o-%{X}", "--stderr=none", "--env=A=1", "--env=A=2", "x"]).1.join("\n---\n"),
        @"
    Found unknown placeholder `X` in stdout path
    ---
    You have submitted an array job, but the `stdout` path does not contain the task ID placeholder.
    Individual tasks might thus overwrite the file. Consider adding `%{TASK_ID}` to the `--stdout` value.
    Without `--stdout`, `hq job cat JOB stdout > FILE` writes the output of all tasks into one file.
    ---
    Some environment variables were ignored. Check if you haven't used duplicate keys.
    "
    );
    assert!(array(&["--array=1-499", "x"]).1.is_empty());
    assert_eq!(
        array(&["--array=1-500", "x"]).1,
        [
            "The job will create 1000 files for stdout and stderr. Consider using the `--stream` option to stream all outputs into a single file"
        ]
    );
    assert!(
        array(&[
            "--array=1-3",
            "--cwd=%{TASK_ID}",
            "--stdout=o",
            "--stderr=e",
            "x"
        ])
        .1
        .is_empty()
    );
    let env = array(&["--env=B=1", "--env=A=1", "--env=A=2", "x"])
        .0
        .template
        .env
        .clone();
    assert_eq!(
        env,
        [
            ((*b"A").into(), (*b"2").into()),
            (ByteText::from(*b"B"), ByteText::from(*b"1"))
        ]
    );
}

#[test]
fn entries_make_tasks() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let file = dir.path().join("list");
    std::fs::write(&file, "a\nb\nc\n").expect("written");
    let option = format!("--each-line={}", file.display());
    let (spec, _) = array(&[&option, "x"]);
    assert_eq!(
        (spec.ids, spec.entries.map(|e| e.len())),
        (ArrayIds::Next(3), Some(3))
    );
    let (spec, _) = array(&[&option, "--array=1-9", "x"]);
    assert_eq!(
        spec.entries.as_ref().and_then(|e| e.get(0)),
        Some(&b"b"[..])
    );
    assert!(matches!(spec.ids, ArrayIds::Given(ids) if ids.to_string() == "1-2"));
    std::fs::write(&file, "").expect("written");
    assert_eq!(array(&[&option, "x"]).0.ids, ArrayIds::Next(0));
    for (content, count) in [
        ("a\nb\0c\0", 2),
        ("a\0b", 2),
        ("\0\0", 2),
        ("a\nb\n", 1),
        ("", 0),
    ] {
        std::fs::write(&file, content).expect("written");
        let (spec, _) = array(&[&option, "--null", "x"]);
        assert_eq!(spec.ids, ArrayIds::Next(count), "{content:?}");
    }
}

#[test]
fn a_table_stores_only_the_rows_that_tasks_use() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let file = dir.path().join("t.csv");
    std::fs::write(&file, "a,b\n1,x\n2,y\n3,z\n").expect("written");
    let option = format!("--each-row={}", file.display());
    let built = |words: &[&str]| {
        let (spec, notes) = array(&[&[&option[..]], words, &["x", "{a}"]].concat());
        let params = spec.template.params.as_ref().expect("parameters");
        let ids = match spec.ids {
            ArrayIds::Given(ids) => ids.to_string(),
            ArrayIds::Next(count) => format!("{count} tasks"),
        };
        (ids, params.first(), params.count(), notes)
    };
    assert_eq!(built(&[]), ("3 tasks".to_owned(), 0, 3, Vec::new()));
    assert_eq!(built(&["--array=1-7"]).0, "1-2");
    assert_eq!(built(&["--array=1-7"]).1, 1);
    assert_eq!(built(&["--array=5-7"]).0, "");
    assert_eq!(built(&["--param=c=1-4"]).0, "12 tasks");
    assert_eq!(built(&["--param=c=1-4", "--array=2-3"]).0, "2-3");
    assert_eq!(built(&["--param=+c=7,8,9"]).0, "3 tasks");
    let options = [&option[..], "--param=c=1-4", "--array=12", "x"];
    let error = prepare(&options).expect_err("beyond").text();
    assert!(error.is_some_and(|text| text.contains("0 to 11, found 12")));
}
