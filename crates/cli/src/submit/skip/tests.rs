//! Tests which tasks are left out, with real files.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant, SystemTime};

use super::*;
use crate::args::submit::Destination;
use crate::submit::{SubmitContext, jobfile};

fn toml(content: &str) -> jobfile::Source<'_> {
    jobfile::Source {
        path: Path::new("job.toml"),
        content,
        format: jobfile::Format::Toml,
    }
}

/// Parses a job file as a submit in a directory.
fn submit(dir: &Path, file: &str) -> SubmitSpec {
    submit_to(dir, file, Destination::default())
}

fn submit_to(dir: &Path, file: &str, destination: Destination) -> SubmitSpec {
    let context = SubmitContext {
        submit_dir: dir,
        server_uid: None,
        output_dir: None,
        reads_files: true,
    };
    let prepared = jobfile::parse(toml(file), destination, context);
    prepared.expect("a valid file").spec
}

/// Does the work of a worker at the end of each task: writes outputs and records.
fn carry_out(spec: &SubmitSpec) {
    let SubmitBody::Graph(graph) = &spec.body else {
        panic!("a graph");
    };
    for task in &graph.tasks {
        let template = &graph.templates[task.template as usize];
        let patterns = PathPatterns::new(template);
        let (_, files) = paths_of(&patterns, task.id, &spec.submit_dir);
        for output in &files.outputs {
            fs::write(as_path(output), "x").expect("written");
        }
        keep_record(template, (task.id, None), &spec.submit_dir);
    }
}

/// Stores the record of a task whose files exist.
fn keep_record(template: &TaskTemplate, (task, entry): (TaskId, Option<&[u8]>), submit_dir: &[u8]) {
    let (cwd, files) = paths_of(&PathPatterns::new(template), task, submit_dir);
    let at = record_path(&files.outputs[0]);
    let inputs = stamped(files.inputs, hq_worker::stamp).expect("inputs");
    let outputs = stamped(files.outputs, hq_worker::output_stamp).expect("outputs");
    let command = command_digest(template, &[], entry);
    let kept = record(command, &cwd, &inputs, &outputs);
    fs::write(as_path(&at), kept).expect("written");
}

fn runs(mut spec: SubmitSpec) -> BTreeSet<u32> {
    let skipped = leave_out(&mut spec, &OuterDependencies::default()).expect("it has outputs");
    skipped.runs.iter().map(|(id, _)| *id).collect()
}

/// Pairs of tasks: task `i` makes `a<i>` from `in<i>`, and task `pairs + i` makes `b<i>` from that.
fn pipeline(pairs: u32) -> String {
    let mut file = String::new();
    for i in 0..pairs {
        let second = pairs + i;
        file.push_str(&format!(
            "[[task]]\nid = {i}\ncommand = [\"a\"]\ninputs = [\"in{i}\"]\noutputs = [\"a{i}\"]\n\
             [[task]]\nid = {second}\ncommand = [\"b\"]\ninputs = [\"./a{i}\"]\noutputs = [\"b{i}\"]\n"
        ));
    }
    file
}

fn touch(path: &Path, at: SystemTime) {
    let file = fs::File::options().write(true).open(path).expect("a file");
    file.set_modified(at).expect("a time");
}

#[test]
fn of_ten_thousand_tasks_those_behind_what_was_touched_run_again() {
    const PAIRS: u32 = 5_000;
    let dir = tempfile::tempdir().expect("a directory");
    for i in 0..PAIRS {
        fs::write(dir.path().join(format!("in{i}")), "x").expect("written");
    }
    let spec = submit(dir.path(), &pipeline(PAIRS));
    assert_eq!(runs(spec.clone()).len(), 10_000, "nothing was made yet");
    carry_out(&spec);
    assert_eq!(runs(spec.clone()), BTreeSet::new());
    let touched: Vec<u32> = (0..37).map(|i| i * 131).collect();
    // Some inputs become older than their output, as with a wrong clock. They still count as
    // changed.
    for (i, number) in touched.iter().zip(0_u64..) {
        let age = Duration::from_secs(if number % 2 == 0 { 1_000_000 } else { 0 });
        touch(&dir.path().join(format!("in{i}")), SystemTime::now() - age);
    }
    let began = Instant::now();
    let mut left = spec.clone();
    let skipped = leave_out(&mut left, &OuterDependencies::default()).expect("it has outputs");
    let took = began.elapsed();
    let expected: BTreeSet<u32> = touched.iter().flat_map(|i| [*i, PAIRS + *i]).collect();
    let found: BTreeSet<u32> = skipped.runs.iter().map(|(id, _)| *id).collect();
    assert_eq!(found, expected);
    assert_eq!(skipped.left_out, 10_000 - 74);
    let SubmitBody::Graph(graph) = &left.body else {
        panic!("a graph");
    };
    assert_eq!(graph.tasks.len(), 74);
    // A generous limit for all file checks on a busy machine.
    assert!(took < Duration::from_secs(10), "it took {took:?}");
    println!("decided in {took:?}");
}

#[test]
fn deleted_outputs_other_commands_and_missing_records_are_reasons() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    for i in 0..2 {
        fs::write(at(&format!("in{i}")), "x").expect("written");
    }
    let file = pipeline(2);
    let spec = submit(dir.path(), &file);
    carry_out(&spec);
    let why = |file: &str| {
        let mut spec = submit(dir.path(), file);
        let skipped = leave_out(&mut spec, &OuterDependencies::default()).expect("it has outputs");
        let runs = skipped.runs.into_iter();
        runs.map(|(id, why)| format!("{id}: {why}"))
            .collect::<Vec<_>>()
    };
    assert_eq!(why(&file), [] as [&str; 0]);
    let other = file.replacen("\"b\"", "\"b\", \"--new\"", 1);
    assert_eq!(why(&other), ["2: its command has changed"]);
    fs::write(at("b1"), "").expect("truncated");
    let path = at("b1").display().to_string();
    assert_eq!(
        why(&file),
        [format!(
            "3: output {path} has changed since the task finished"
        )]
    );
    // This file was added later.
    fs::write(at("x0"), "").expect("written");
    let more = file.replace("\"b0\"", "\"b0\", \"x0\"");
    assert!(why(&more)[0].starts_with("2: output "), "{:?}", why(&more));
    let path = |name: &str| at(name).display().to_string();
    let absolute = format!(
        "[[task]]\nid = 9\ncommand = [\"c\"]\ncwd = \"d\"\noutputs = [\"{}\"]\n",
        path("c")
    );
    carry_out(&submit(dir.path(), &absolute));
    assert_eq!(why(&absolute), [] as [&str; 0]);
    let elsewhere = absolute.replace("\"d\"", "\"e\"");
    assert_eq!(why(&elsewhere), ["9: its working directory has changed"]);
    let fleeting = absolute.replace("\"d\"", "\"%{JOB_ID}\"");
    let expected = "9: its working directory changes with %{JOB_ID}";
    assert_eq!(why(&fleeting), [expected]);
    let earlier = "hq-done 1\ncommand 0000000000000007\n";
    fs::write(at(".c.hq-done"), earlier).expect("written");
    assert!(why(&absolute)[0].starts_with("9: another release of hq wrote its record"));
    fs::remove_file(at("b1")).expect("removed");
    let missing = at("b1").display().to_string();
    assert_eq!(why(&file), [format!("3: output {missing} is missing")]);
    fs::remove_file(at(".a0.hq-done")).expect("removed");
    let said = why(&file);
    assert!(
        said[0].starts_with("0: ") && said[0].ends_with(" records no finished run"),
        "{said:?}"
    );
    assert_eq!(said[1], "2: it depends on task 0, which runs");
    let without = "[[task]]\ncommand = [\"x\"]\n";
    assert!(
        leave_out(
            &mut submit(dir.path(), without),
            &OuterDependencies::default()
        )
        .is_err()
    );
}

#[test]
fn arrays_keep_the_ids_and_entries_of_what_runs() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = "[array]\nids = \"3-6\"\nentries = [\"a\", \"b\", \"c\", \"d\"]\ncommand = [\"x\"]\n\
                outputs = [\"out/%{TASK_ID}\"]\n";
    let spec = submit(dir.path(), file);
    let SubmitBody::Array(array) = &spec.body else {
        panic!("an array");
    };
    fs::create_dir(dir.path().join("out")).expect("made");
    for (id, entry) in [(4, b"b"), (6, b"d")] {
        fs::write(dir.path().join(format!("out/{id}")), "").expect("written");
        let task = (TaskId(id), Some(&entry[..]));
        keep_record(&array.template, task, &spec.submit_dir);
    }
    let mut left = spec.clone();
    let skipped = leave_out(&mut left, &OuterDependencies::default()).expect("it has outputs");
    assert_eq!(skipped.left_out, 2);
    let SubmitBody::Array(array) = left.body else {
        panic!("an array");
    };
    let ArrayIds::Given(ids) = array.ids else {
        panic!("given");
    };
    assert_eq!(ids.to_string(), "3,5");
    let entries = array.entries.expect("entries");
    assert_eq!(
        (entries.get(0), entries.get(1)),
        (Some(&b"a"[..]), Some(&b"c"[..]))
    );
}

#[test]
fn what_waits_for_others_that_may_still_write_runs() {
    let dir = tempfile::tempdir().expect("a directory");
    let two = "[array]\nids = \"1-2\"\ncommand = [\"x\"]\noutputs = [\"o%{TASK_ID}\"]\n";
    let spec = submit(dir.path(), two);
    let SubmitBody::Array(array) = &spec.body else {
        panic!("an array");
    };
    for id in 1..=2 {
        fs::write(dir.path().join(format!("o{id}")), "").expect("written");
        keep_record(&array.template, (TaskId(id), None), &spec.submit_dir);
    }
    let whys = |unended: OuterDependencies| {
        let skipped = leave_out(&mut spec.clone(), &unended).expect("it has outputs");
        let runs = skipped.runs.into_iter();
        runs.map(|(id, why)| format!("{id}: {why}"))
            .collect::<Vec<_>>()
    };
    assert_eq!(whys(OuterDependencies::default()), [] as [&str; 0]);
    let each = Some((JobId(7), vec![2, 3]));
    let of_one = OuterDependencies { job: None, each };
    assert_eq!(whys(of_one), ["2: it waits for task 2 of job 7"]);
    let job = Some(JobId(7));
    let of_all = OuterDependencies { job, each: None };
    let expected = ["1: it waits for job 7", "2: it waits for job 7"];
    assert_eq!(whys(of_all), expected);
    // The same applies to a task that is already in the open job.
    let first = "[[task]]\nid = 2\ncommand = [\"x\"]\noutputs = [\"a\"]\n";
    carry_out(&submit(dir.path(), first));
    let behind = first.replace("id = 2", "id = 2\ndeps = [1]");
    let open = Destination {
        attach: Some(3),
        ..Destination::default()
    };
    assert_eq!(runs(submit_to(dir.path(), first, open)), BTreeSet::new());
    let mut behind = submit_to(dir.path(), &behind, open);
    let skipped = leave_out(&mut behind, &OuterDependencies::default()).expect("it has outputs");
    assert_eq!(skipped.runs, [(2, RunReason::AfterEarlier(TaskId(1)))]);
}

#[test]
fn who_reads_what_another_writes_waits_for_it_and_two_cannot_write_one_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let spec = submit(dir.path(), &pipeline(2));
    let SubmitBody::Graph(graph) = &spec.body else {
        panic!("a graph");
    };
    let deps = |id| {
        let mut tasks = graph.tasks.iter();
        let task = tasks.find(|task| task.id == TaskId(id)).expect("a task");
        task.deps.clone()
    };
    assert_eq!(
        (deps(0), deps(2), deps(3)),
        (vec![], vec![TaskId(0)], vec![TaskId(1)])
    );
    let twice = "[[task]]\ncommand = [\"a\"]\noutputs = [\"x\"]\n[[task]]\ncommand = [\"b\"]\noutputs = [\"./x\"]\n";
    let context = SubmitContext {
        submit_dir: dir.path(),
        server_uid: None,
        output_dir: None,
        reads_files: true,
    };
    let refused = jobfile::parse(toml(twice), Destination::default(), context);
    let text = format!("{:?}", refused.map(drop).expect_err("refused"));
    assert!(text.contains("Tasks 1 and 2 both write"), "{text}");
}

/// Returns the tasks of a job that run again, and their positions in each submit.
fn changes(specs: &[SubmitSpec]) -> (Vec<u32>, Vec<Vec<u32>>) {
    let found = changed(specs).expect("it has outputs");
    let runs = found.skipped.runs.iter().map(|(id, _)| *id).collect();
    let positions = found.positions.iter();
    (runs, positions.map(|ids| ids.iter().collect()).collect())
}

#[test]
fn of_a_job_that_was_submitted_in_parts_the_changed_tasks_are_found_across_them() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    fs::write(at("in"), "x").expect("written");
    // The order is different from that of their ids.
    let first = submit(
        dir.path(),
        "[[task]]\nid = 8\ncommand = [\"a\"]\ninputs = [\"in\"]\noutputs = [\"a\"]\n\
         [[task]]\nid = 2\ncommand = [\"z\"]\noutputs = [\"z\"]\n",
    );
    let mut second = submit(
        dir.path(),
        "[[task]]\nid = 11\ncommand = [\"b\"]\noutputs = [\"b\"]\n\
         [[task]]\nid = 10\ncommand = [\"c\"]\noutputs = [\"c\"]\n",
    );
    carry_out(&first);
    carry_out(&second);
    let SubmitBody::Graph(graph) = &mut second.body else {
        panic!("a graph");
    };
    for task in &mut graph.tasks {
        // One task depends on a task of the earlier submit that changed, the other on an unchanged
        // one.
        let dep = if task.id == TaskId(10) { 8 } else { 2 };
        task.deps.push(TaskId(dep));
    }
    let mut specs = [first, second];
    assert_eq!(changes(&specs), (vec![], vec![vec![], vec![]]));
    fs::write(at("in"), "other").expect("written");
    assert_eq!(changes(&specs), (vec![8, 10], vec![vec![1], vec![0]]));
    // A task that runs again adds its tasks again.
    let by = |task| {
        Some(hq_core::template::Origin {
            task: TaskId(task),
            instance: hq_core::id::InstanceId(0),
            key: None,
            digest: 0,
        })
    };
    specs[1].origin = by(8);
    assert_eq!(changes(&specs), (vec![8], vec![vec![1], vec![]]));
    // The same applies to tasks that those tasks added: otherwise they would exist twice.
    let [first, second] = specs;
    let file = "[[task]]\nid = 20\ncommand = [\"d\"]\noutputs = [\"d\"]\n";
    let mut third = submit(dir.path(), file);
    third.origin = by(11);
    let specs = [first, second, third];
    assert_eq!(changes(&specs), (vec![8], vec![vec![1], vec![], vec![]]));
}

#[test]
fn a_job_without_outputs_has_nothing_that_could_be_done() {
    let dir = tempfile::tempdir().expect("a directory");
    let spec = submit(dir.path(), "[[task]]\ncommand = [\"a\"]\n");
    let text = changed(&[spec]).expect_err("nobody can tell").text();
    assert!(text.unwrap_or_default().contains("names its outputs"));
}

#[test]
fn contents_count_where_they_were_recorded_and_asked_for() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    let file = |by_content: bool| {
        let file = "[[task]]\ncommand = [\"a\"]\ninputs = [\"in\"]\noutputs = [\"out\"]\n";
        let asked = if by_content {
            "by_content = true\n"
        } else {
            ""
        };
        submit(dir.path(), &format!("{file}{asked}"))
    };
    for name in ["in", "out"] {
        fs::write(at(name), "abc").expect("written");
    }
    let (times, contents) = (file(false), file(true));
    let keep = |with_contents: bool| {
        let SubmitBody::Graph(graph) = &contents.body else {
            panic!("a graph");
        };
        let template = &graph.templates[0];
        if !with_contents {
            return keep_record(template, (TaskId(0), None), &contents.submit_dir);
        }
        let (cwd, files) = paths_of(
            &PathPatterns::new(template),
            TaskId(0),
            &contents.submit_dir,
        );
        let known = |paths: Vec<Vec<u8>>| -> Vec<Content> {
            let content = |path: Vec<u8>| Content {
                stamp: hq_worker::stamp(as_path(&path)).expect("a file"),
                digest: hq_worker::digest(as_path(&path), || true),
                path,
            };
            paths.into_iter().map(content).collect()
        };
        let record_at = record_path(&files.outputs[0]);
        let command = command_digest(template, &[], None);
        let (inputs, outputs) = (known(files.inputs), known(files.outputs));
        let kept = record_with_contents(command, &cwd, &inputs, &outputs);
        fs::write(as_path(&record_at), kept).expect("written");
    };
    let touch_both = || {
        for name in ["in", "out"] {
            touch(&at(name), SystemTime::now() - Duration::from_secs(100));
        }
    };
    let is_done = |spec: &SubmitSpec| runs(spec.clone()).is_empty();
    keep(true);
    assert!(is_done(&times) && is_done(&contents), "as it was left");
    touch_both();
    assert!(!is_done(&times), "contents were not requested");
    assert!(is_done(&contents));
    // The content has the same length, but is different.
    fs::write(at("in"), "abd").expect("written");
    assert!(!is_done(&contents));
    fs::write(at("in"), "abc").expect("written");
    assert!(is_done(&contents));
    fs::write(at("out"), "ab").expect("cut off");
    assert!(!is_done(&contents));
    // A record without contents is compared by times.
    keep(false);
    assert!(is_done(&contents) && is_done(&times));
    touch_both();
    assert!(!is_done(&contents));
}
