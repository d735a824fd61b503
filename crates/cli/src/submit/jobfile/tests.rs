//! Tests which submits job files become, and how invalid files are rejected.

use std::time::Duration;

use super::*;
use crate::text::lossy;
use hq_core::id::TaskId;
use hq_core::resource::amount::Amount;
use hq_core::retry::RetryCause;
use hq_core::sizing::{FirstMemory, PREDICT_DEFAULT};
use hq_core::template::{CrashLimit, PinMode, StdioSpec};
use hq_server::{JobFormat, JobText};

mod steps;

fn load_text(content: &str) -> CliResult<PreparedSubmit> {
    load_as(Format::Toml, content)
}

fn load_as(format: Format, content: &str) -> CliResult<PreparedSubmit> {
    let context = SubmitContext {
        submit_dir: Path::new("/w"),
        server_uid: None,
        output_dir: None,
        reads_files: true,
    };
    let path = Path::new("job.toml");
    let source = Source {
        path,
        content,
        format,
    };
    parse(source, Destination::default(), context)
}

fn refusal(content: &str) -> String {
    load_text(content)
        .expect_err("must be refused")
        .text()
        .unwrap_or_default()
}

const FULL: &str = r#"
name = "pipeline"
max_fails = 3

[[task]]
id = 1
command = ["./prepare", "--fast"]
env = { A = "1" }
cwd = "work"
stdout = "none"
stderr = { path = "err.txt", on_close = "rm-if-finished" }
stdin = "text"
pin = "taskset"
task_dir = true
time_limit = "1min 30s"
priority = -2
crash_limit = "never-restart"
data_layer = true
retries = 2
retry_on = "3,oom"
retry_delay = "5s"
stop_signal = "SIGTERM"
stop_grace = "1min"

  [[task.request]]
  time_request = "10m"
  weight = 2.0
  resources = { "cpus" = "4 compact", "gpus/nvidia" = 1, "mem" = 100.5 }
  [[task.request]]
  resources = { "cpus" = "all" }

[[task]]
command = ["./run"]
deps = [1, 1]
"#;

#[test]
fn tasks_that_grow_have_retries_unless_the_file_says_none() {
    let file = |more: &str| {
        format!(
            "[[task]]\ncommand = [\"x\"]\ntime_limit = \"1min\"\nretry_grow = \"time=2\"\n{more}"
        )
    };
    for (more, limit) in [("", 3), ("retries = 5\n", 5)] {
        let prepared = load_text(&file(more)).expect("valid");
        let SubmitBody::Graph(graph) = prepared.spec.body else {
            panic!("a graph");
        };
        assert_eq!(graph.templates[0].retry.limit, limit);
    }
    assert!(refusal(&file("retries = 0\n")).contains("with 0 retries there is no next attempt"));
    let none = "[[task]]\ncommand = [\"x\"]\nretries = 0\n";
    load_text(none).expect("nothing grows");
}

#[test]
fn memory_has_units_and_durations_have_clocks() {
    let file = |amount: &str, time: &str| {
        format!(
            "[array]\nids = \"1\"\ncommand = [\"x\"]\ntime_limit = \"{time}\"\n[[array.request]]\nresources = {{ {amount} }}\n"
        )
    };
    let prepared = load_text(&file("mem = \"1.5GiB\", cpus = 2", "1-02:00:00")).expect("valid");
    let SubmitBody::Array(array) = prepared.spec.body else {
        panic!("an array");
    };
    let limit = array.template.time_limit.map(|limit| limit.as_secs());
    assert_eq!(limit, Some(93_600));
    let entries = &array.template.requests.as_slice()[0].entries;
    let shown: Vec<_> = entries.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["2 compact", "1536 compact"]);
    let text = refusal(&file("cpus = \"2G\"", "1h"));
    assert!(text.contains("only `mem` has units"), "{text}");
    assert!(text.contains("line 6"), "{text}");
    let text = refusal(&file("cpus = 1", "90"));
    assert!(text.contains("expected words such as `10s`"), "{text}");
}

#[test]
fn an_array_may_leave_its_sizes_to_be_learned() {
    let file = |kind: &str, more: &str, amount: &str| {
        format!(
            "[{kind}]\ncommand = [\"x\"]\n{more}\n[[{}.request]]\n{amount}\n",
            kind.trim_matches(['[', ']'])
        )
    };
    let ids = "ids = \"1-9\"\n";
    let amount = "time_request = \"auto\"\nresources = { cpus = 2, mem = \"auto:4G\" }";
    let prepared = load_text(&file("array", ids, amount)).expect("valid");
    let SubmitBody::Array(array) = prepared.spec.body else {
        panic!("an array");
    };
    let learn = array.template.learn;
    assert_eq!(learn.memory, Some(FirstMemory::Given(Amount::whole(4_096))));
    assert_eq!(learn.predict, Some(PREDICT_DEFAULT));
    assert_eq!(array.template.retry.on, [RetryCause::OutOfMemory]);
    let plain = "resources = { cpus = 2 }";
    for (predict, wanted) in [("false", Some(0)), ("0.99", Some(990)), ("true", Some(950))] {
        let text = file("array", &format!("{ids}predict = {predict}"), plain);
        let SubmitBody::Array(array) = load_text(&text).expect("valid").spec.body else {
            panic!("an array");
        };
        assert_eq!(array.template.learn.predict, wanted, "{predict}");
    }
    let text = refusal(&file("array", &format!("{ids}predict = 95"), plain));
    assert!(text.contains("a share above 0"), "{text}");
    let text = refusal(&file("[task]", "", "resources = { mem = \"auto\" }"));
    assert!(text.contains("is for the tasks of an [array]"), "{text}");
}

#[test]
fn every_key_arrives() {
    let prepared = load_text(FULL).expect("valid");
    assert!(prepared.warnings.is_empty());
    let SubmitBody::Graph(graph) = prepared.spec.body else {
        panic!("expected a graph")
    };
    assert_eq!(
        prepared.spec.target,
        SubmitTarget::NewJob {
            name: "pipeline".into(),
            max_fails: Some(3)
        }
    );
    let [first, second] = graph.tasks.as_slice() else {
        panic!("two tasks")
    };
    assert_eq!(
        (first.id, second.id, second.deps.as_slice()),
        (TaskId(1), TaskId(2), &[TaskId(1)][..])
    );
    let task = &graph.templates[0];
    assert_eq!(
        (task.pin, task.priority, task.task_dir),
        (PinMode::Taskset, -2, true)
    );
    assert_eq!(task.crash_limit, CrashLimit::NeverRestart);
    assert_eq!(task.time_limit, Some(Duration::from_secs(90)));
    assert_eq!((task.retry.limit, task.retry.delay.as_secs()), (2, 5));
    let causes: Vec<_> = task.retry.on.iter().map(|on| on.to_string()).collect();
    assert_eq!(causes, ["3", "oom"]);
    assert_eq!((task.stop.signal, task.stop.grace.as_secs()), (15, 60));
    assert_eq!(task.stdout, StdioSpec::None);
    assert_eq!(
        task.stderr,
        StdioSpec::File {
            path: (*b"err.txt").into(),
            remove_if_finished: true
        }
    );
    let [preferred, other] = task.requests.as_slice() else {
        panic!("two variants")
    };
    let shown: Vec<_> = preferred
        .entries
        .iter()
        .map(|e| format!("{}: {e}", e.resource))
        .collect();
    assert_eq!(
        shown,
        [
            "cpus: 4 compact",
            "gpus/nvidia: 1 compact",
            "mem: 100.5 compact"
        ]
    );
    assert_eq!((preferred.weight, other.weight), (20_000, 10_000));
    assert_eq!(&*graph.templates[1].cwd, b"%{SUBMIT_DIR}");
}

#[test]
fn equal_tasks_share_a_template() {
    let content = "[[task]]\ncommand = [\"x\"]\n".repeat(3);
    let SubmitBody::Graph(graph) = load_text(&content).expect("valid").spec.body else {
        panic!("expected a graph")
    };
    assert_eq!((graph.templates.len(), graph.tasks.len()), (1, 3));
}

#[test]
fn arrays_are_resolved_as_on_the_command_line() {
    let content = "[array]\nids = \"1-3\"\nentries = [\"a\", \"b\", \"c\"]\ncommand = [\"x\"]\ncwd = \"d\"\n[[array.request]]\nresources = { gpus = 1 }\n";
    let SubmitBody::Array(array) = load_text(content).expect("valid").spec.body else {
        panic!("expected an array")
    };
    assert_eq!(&*array.template.cwd, b"/w/d");
    assert!(
        matches!(&array.template.stdout, StdioSpec::File { path, .. }
        if &**path == b"/w/d/job-%{JOB_ID}/%{TASK_ID}.stdout")
    );
    assert_eq!(
        array.entries.as_ref().and_then(|e| e.get(2)),
        Some(&b"c"[..])
    );
    assert_eq!(array.template.requests.as_slice()[0].entries.len(), 1);
}

#[test]
fn the_rows_of_a_table_are_the_tasks_of_an_array() {
    let dir = tempfile::tempdir().expect("a directory");
    let table = dir.path().join("runs.csv");
    std::fs::write(&table, "sample,lr\nA1,0.1\nB2,0.2\nC3,0.3\n").expect("a table");
    let array = |keys: &str| {
        let command = "command = [\"x\", \"{lr}\"]\nstdout = \"{sample}\"";
        let content = format!("[array]\neach_row = {table:?}\n{command}\n{keys}");
        load_text(&content).map(|loaded| loaded.spec)
    };
    let spec = array("ids = \"1-2\"").expect("valid");
    let is_about_columns = spec.notes.iter().any(|note| note.contains("`{"));
    assert!(!is_about_columns, "{:?}", spec.notes);
    let SubmitBody::Array(found) = spec.body else {
        panic!("expected an array")
    };
    assert_eq!(count_of(&found.ids), 2);
    let params = found.template.params.as_ref().expect("columns");
    let values = params.values(TaskId(2));
    assert_eq!(values[1].1.as_ref(), b"0.3");
    let both = array("entries = [\"a\"]").expect_err("two lists of tasks");
    assert!(both.text().expect("a text").contains("keep one of them"));
    let remote = JobText {
        text: &format!("[array]\neach_row = {table:?}\ncommand = [\"x\"]"),
        format: JobFormat::Toml,
        submit_dir: Path::new("/w"),
        server_uid: "uid",
        open_job: None,
    };
    let refused = super::super::read_job(remote).expect_err("a file of the server");
    assert!(refused.contains("the server does not read files of clients"));
}

#[test]
fn broken_rules_have_their_texts() {
    for (content, message) in [
        ("", "Deserialization error: No tasks defined"),
        (
            "[array]\nids=\"1\"\ncommand=[\"x\"]\n[[task]]\ncommand=[\"x\"]",
            "Deserialization error: Definition of array job and individual task cannot be mixed",
        ),
        (
            "[array]\ncommand=[\"x\"]",
            "Deserialization error: One of attributes of array must be defined: 'ids', 'entries'",
        ),
        (
            "[array]\nids=\"1-5:2\"\nentries=[\"a\"]\ncommand=[\"x\"]",
            "Deserialization error: Items 'ids' and 'entries' does not match",
        ),
        (
            "[array]\nids=\"1-2\"\ncommand=[\"x\"]\noutputs=[\"%{CWD}/o\"]",
            "All tasks would write the output %{CWD}/o",
        ),
    ] {
        assert_eq!(refusal(content), message);
    }
}

#[test]
fn wrong_values_are_located() {
    for (content, parts) in [
        (
            "[[task]]\ncommand = [\"x\"]\ncolour = 1\n",
            &["unknown field `colour`", "line 3, column 1", "key `colour`"][..],
        ),
        (
            "[[task]]\ncommand = \"x\"\n",
            &["expected a sequence", "line 2, column 11 (key `command`)"],
        ),
        (
            "[[task]]\ncommand = []\n",
            &["expected a program", "line 2, column 11"],
        ),
        (
            "[[task]]\ncommand = [\"x\"]\npriority = \"high\"",
            &[
                "expected a whole number from -2147483648",
                "line 3, column 12 (key `priority`)",
            ],
        ),
        (
            "[[task]]\ncommand = [\"x\"]\ntime_limit = \"90\"",
            &["expected words", "line 3, column 14 (key `time_limit`)"],
        ),
        (
            "[[task]]\ncommand = [\"x\"]\ncrash_limit = 0",
            &["Crash limit cannot be 0", "line 3"],
        ),
        (
            "[[task]]\ncommand = [\"x\"]\nstdout = 5",
            &[
                "expected \"none\", a path",
                "line 3, column 10 (key `stdout`)",
            ],
        ),
        (
            "[[task]]\ncommand = [\"x\"]\npin = \"y\"",
            &["expected `none`, `taskset` or `omp`", "line 3"],
        ),
        (
            "[[task]]\ncommand = [\"x\"]\n[[task.request]]\nresources = { cpus = 0 }",
            &[
                "Zero resources cannot be requested",
                "line 4, column 22 (key `cpus`)",
            ],
        ),
        (
            "[array]\nids = \"3-1\"\ncommand = [\"x\"]",
            &["Invalid range", "line 2, column 7 (key `ids`)"],
        ),
        (
            "[array]\nid = 1\nids = \"1\"\ncommand = [\"x\"]",
            &["unknown field `id`"],
        ),
        ("name = \n", &["Deserialization error:", "line 1"]),
        ("[[task]]\nenv = {}\n", &["missing field `command`"]),
    ] {
        let text = refusal(content);
        for part in parts {
            assert!(
                text.contains(part),
                "{content}: {text} should contain {part}"
            );
        }
        assert!(text.starts_with("Deserialization error: "), "{text}");
    }
}

#[test]
fn wrong_values_are_drawn() {
    let error = load_text("[[task]]\ncommand = [\"x\"]\ncrash_limit = 0\n").expect_err("bad");
    insta::assert_snapshot!(error.drawing().unwrap_or_default(), @"
     --> job.toml:3:15
      |
    3 | crash_limit = 0
      |               ^ here
    ");
    let error = load_text("[[task]]\ncommand = [\"x\"]\ndep = [1]\n").expect_err("bad");
    insta::assert_snapshot!(error.drawing().unwrap_or_default(), @"
     --> job.toml:3:1
      |
    3 | dep = [1]
      | ^^^ here
    ");
}

/// Flips, cuts, repeats or moves something at random.
fn mutated(content: &str, seed: u64) -> String {
    let mut bytes = content.as_bytes().to_vec();
    let mut chance = seed;
    let mut below = |bound: usize| {
        chance = chance
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(chance >> 33).expect("31 bits") % bound.max(1)
    };
    for _ in 0..=below(3) {
        let (at, other) = (below(bytes.len()), below(bytes.len()));
        match below(5) {
            0 => bytes[at] = b"\"'[]{}=,.-\n #1x%"[below(16)],
            1 => bytes.truncate(at.max(1)),
            2 => drop(bytes.drain(at.min(other)..at.max(other))),
            3 => bytes.swap(at, other),
            _ => {
                let copy = bytes[at.min(other)..at.max(other)].to_vec();
                bytes.splice(at..at, copy);
            }
        }
        if bytes.is_empty() {
            break;
        }
    }
    lossy(&bytes)
}

#[test]
fn changed_job_files_become_submits_or_are_refused_with_a_reason() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/job_file");
    for entry in std::fs::read_dir(dir).expect("the corpus") {
        let whole = std::fs::read_to_string(entry.expect("an entry").path()).expect("a text");
        for seed in 0..2_000 {
            let content = mutated(&whole, seed);
            if let Err(error) = load_text(&content) {
                assert!(
                    error.text().is_some_and(|text| !text.is_empty()),
                    "{content}"
                );
            }
        }
    }
}

/// The same file in the format for programs.
const FULL_JSON: &str = r#"{
"name": "pipeline", "max_fails": 3,
"task": [
  {"id": 1, "command": ["./prepare", "--fast"], "env": {"A": "1"}, "cwd": "work", "stdout": "none",
   "stderr": {"path": "err.txt", "on_close": "rm-if-finished"}, "stdin": "text", "pin": "taskset", "task_dir": true,
   "time_limit": "1min 30s", "priority": -2, "crash_limit": "never-restart", "data_layer": true, "retries": 2,
   "retry_on": "3,oom", "retry_delay": "5s", "stop_signal": "SIGTERM", "stop_grace": "1min",
   "request": [
     {"time_request": "10m", "weight": 2.0, "resources": {"cpus": "4 compact", "gpus/nvidia": 1, "mem": 100.5}},
     {"resources": {"cpus": "all"}}]},
  {"command": ["./run"], "deps": [1, 1]}
]}"#;

#[test]
fn programs_write_the_same_in_json() {
    assert_eq!(load_as(Format::Json, FULL_JSON), load_text(FULL));
    let refusal = |content: &str| {
        let refused = load_as(Format::Json, content).expect_err("must be refused");
        refused.text().unwrap_or_default()
    };
    for (content, words) in [
        (
            "{\"task\": [\n {\"comand\": [\"a\"]}]}",
            "unknown field `comand`",
        ),
        ("{\"task\": [\n {\"comand\": [\"a\"]}]}", "line 2, column "),
        ("{\"task\": [{\"command\": []}]}", "found an empty list"),
        ("{", "EOF while parsing an object"),
        ("", "line 1, column 1"),
        ("{}", "No tasks defined"),
        (
            "{\"task\": [{\"command\": [\"a\"], \"deps\": [9]}]}",
            "task 9 does not exist",
        ),
    ] {
        let text = refusal(content);
        assert!(text.contains(words), "{content}: {text}");
    }
}

/// The same file in YAML.
const FULL_YAML: &str = r#"
name: pipeline
max_fails: 3
task:
  - id: 1
    command: [./prepare, --fast]
    env: { A: "1" }
    cwd: work
    stdout: none
    stderr: { path: err.txt, on_close: rm-if-finished }
    stdin: text
    pin: taskset
    task_dir: true
    time_limit: 1min 30s
    priority: -2
    crash_limit: never-restart
    data_layer: true
    retries: 2
    retry_on: "3,oom"
    retry_delay: 5s
    stop_signal: SIGTERM
    stop_grace: 1min
    request:
      - time_request: 10m
        weight: 2.0
        resources: { cpus: 4 compact, gpus/nvidia: 1, mem: 100.5 }
      - resources: { cpus: all }
  # Runs behind it.
  - command:
      - ./run
    deps: [1, 1]
"#;

#[test]
fn yaml_says_the_same_and_mistakes_have_their_place() {
    assert_eq!(load_as(Format::Yaml, FULL_YAML), load_text(FULL));
    let refusal = |content: &str| {
        let refused = load_as(Format::Yaml, content).expect_err("must be refused");
        refused.text().unwrap_or_default()
    };
    let task = |more: &str| format!("task:\n  - command: [a]\n    {more}\n");
    for (content, words) in [
        (
            task("prio: 3"),
            "unknown field `prio`, expected one of `id`, `deps`",
        ),
        (task("prio: 3"), "line 3, column 5"),
        (
            task("crash_limit: 0"),
            "line 3, column 18 (key `crash_limit`)",
        ),
        (
            task("time_limit: soon"),
            "line 3, column 17 (key `time_limit`)",
        ),
        (task("priority: [1"), "line "),
        (task("stdout: \"\""), "a path cannot be empty"),
        (
            "task:\n  - command: sort -u\n".to_owned(),
            "expected a list, such as `[a, b]`\njob.toml, line 2, column 14 (key `command`)",
        ),
        ("name: a\nname: b\n".to_owned(), "line 2"),
        (
            task("deps: [9]"),
            "line 3, column 12: task 9 does not exist",
        ),
        (
            task("deps: [7]\n    id: 7"),
            "line 3, column 12: it waits for itself",
        ),
        (
            task("id: 3\n  - command: [b]\n    id: 3"),
            "line 5, column 9",
        ),
        (String::new(), "No tasks defined"),
        ("a: &a [x, x]\nb: [*a, *a]\n".to_owned(), "unknown field"),
    ] {
        let text = refusal(&content);
        assert!(text.contains(words), "{content}: {text}");
    }
}

#[test]
fn yaml_of_a_hundred_thousand_tasks_is_read_and_one_that_explodes_is_not() {
    let many = format!("task:\n{}", "  - command: [a, b]\n".repeat(100_000));
    let prepared = load_as(Format::Yaml, &many).expect("a large file");
    let SubmitBody::Graph(graph) = prepared.spec.body else {
        panic!("a graph");
    };
    assert_eq!((graph.tasks.len(), graph.templates.len()), (100_000, 1));
    let mut bomb = "a: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let of = level - 1;
        let again = vec![format!("*a{of}"); 10].join(", ");
        bomb.push_str(&format!("b{level}: &a{level} [{again}]\n"));
    }
    assert!(load_as(Format::Yaml, &format!("{bomb}task: *a11\n")).is_err());
}

/// Returns the keys that are accepted at `place`, taken from the error about an unknown key.
fn accepted_keys(place: &str) -> Vec<String> {
    let text = refusal(place);
    let (_, list) = text
        .split_once("expected one of ")
        .or_else(|| text.split_once("expected "))
        .expect(&text);
    let line = list.lines().next().unwrap_or_default();
    let mut keys: Vec<_> = line
        .split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect();
    keys.sort();
    keys
}

#[test]
fn the_description_for_programs_has_the_keys_that_are_accepted() {
    let description = include_str!("../../../../../docs/openapi.yaml");
    let description: serde_json::Value = yaml::yaml(description).expect("YAML");
    let schemas = &description["components"]["schemas"];
    let keys_of = |names: &[&str]| {
        let properties = names
            .iter()
            .filter_map(|place| schemas.pointer(place)?.as_object());
        let mut keys: Vec<_> = properties.flat_map(|map| map.keys().cloned()).collect();
        keys.sort();
        keys
    };
    let common = "/CommonDescription/properties";
    let task = "[[task]]\ncommand = [\"a\"]\n";
    for (place, described) in [
        (
            "unknown = 1".to_owned(),
            keys_of(&["/JobDescription/properties"]),
        ),
        (
            format!("{task}unknown = 1"),
            keys_of(&[common, "/TaskDescription/allOf/1/properties"]),
        ),
        (
            "[array]\nunknown = 1".to_owned(),
            keys_of(&[common, "/ArrayDescription/allOf/1/properties"]),
        ),
        (
            format!("{task}[[task.request]]\nunknown = 1"),
            keys_of(&["/CommonDescription/properties/request/items/properties"]),
        ),
        (
            format!("{task}stdout = {{ unknown = 1 }}"),
            keys_of(&["/StdioDescription/anyOf/1/properties"]),
        ),
    ] {
        let mut accepted = accepted_keys(&place);
        // The server refuses to read files of clients.
        accepted.retain(|key| key != "each_row");
        assert_eq!(
            described, accepted,
            "docs/openapi.yaml says what is accepted in: {place}"
        );
    }
}

#[test]
fn what_may_not_do_what_was_meant_has_a_note() {
    let two = |keys: &str| {
        format!("[[task]]\ncommand = [\"/x\"]\n{keys}\n[[task]]\ncommand = [\"/y\"]\n{keys}\n")
    };
    let array = |keys: &str| {
        format!("[array]\nids = \"1-3\"\ncommand = [\"/x\"]\ncwd = \"/tmp\"\n{keys}\n")
    };
    for (content, part) in [
        (
            two("stdout = \"o.txt\""),
            "several tasks write to the file of `stdout = \"o.txt\"`",
        ),
        (
            array("stderr = \"/tmp/e.txt\""),
            "`stderr = \"/tmp/e.txt\"`",
        ),
        (
            array("retry_on = \"exit\""),
            "need a number of retries, such as `retries = 3`",
        ),
        (
            two("env = { A = \"~/x\" }"),
            "no shell expands `~/x` in `env`; write the whole path",
        ),
        (
            array("env = { A = \"$HQ_TASK_ID\" }"),
            "no shell expands `$HQ_TASK_ID`",
        ),
        (
            array("inputs = [\"*.nosuch\"]"),
            "`inputs` is a list with a string for each file",
        ),
        (array("stdout = \"/dev/null\""), ""),
        (
            "[[task]]\ncommand = [\"/x\"]\nstdout = \"null\"\n".to_owned(),
            "`stdout = none` discards",
        ),
        (two("stdout = \"%{TASK_ID}.txt\""), ""),
        (two("stdout = \"o.txt\"\ncwd = \"%{TASK_ID}\""), ""),
        (
            array("retries = 2\nretry_on = \"exit\"\nenv = { A = \"x\" }"),
            "",
        ),
    ] {
        let spec = load_text(&content).expect("valid").spec;
        let note = spec.notes.first().map_or("", |note| &**note);
        assert!(
            note.contains(part) && note.is_empty() == part.is_empty(),
            "{content}: {note}"
        );
    }
}
