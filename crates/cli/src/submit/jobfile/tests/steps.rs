//! Tests names of tasks, keys of the task itself, and values of a wrong type.

use super::*;

/// Returns the ids, names and dependencies of the tasks, in order.
fn steps(prepared: PreparedSubmit) -> Vec<(u32, Option<String>, Vec<u32>)> {
    let SubmitBody::Graph(graph) = prepared.spec.body else {
        panic!("expected a graph")
    };
    let tasks = graph.tasks.iter().map(|task| {
        let name = graph.templates[task.template as usize].name.as_deref();
        let deps = task.deps.iter().map(|dep| dep.as_u32()).collect();
        (task.id.as_u32(), name.map(str::to_owned), deps)
    });
    tasks.collect()
}

#[test]
fn ids_and_dependencies_may_be_names() {
    let task = |keys: &str| format!("[[task]]\ncommand = [\"true\"]\n{keys}\n");
    let file = [
        task("id = \"merge\"\ndeps = [\"prep\", 7, \"Solve 2\"]"),
        task("id = \"prep\""),
        task("id = 7\ndeps = [\"prep\"]"),
        task("id = \"Solve 2\"\ndeps = [9]"),
        task(""),
    ];
    let name = |name: &str| Some(name.to_owned());
    let wanted = vec![
        (9, name("prep"), vec![]),
        (11, None, vec![]),
        (7, None, vec![9]),
        (10, name("Solve 2"), vec![9]),
        (8, name("merge"), vec![7, 9, 10]),
    ];
    assert_eq!(steps(load_text(&file.concat()).expect("valid")), wanted);
    let yaml = "task:\n  - {id: merge, deps: [prep, 7, Solve 2], command: [\"true\"]}\n  - {id: prep, command: [\"true\"]}\n  - {id: 7, deps: [prep], command: [\"true\"]}\n  - {id: Solve 2, deps: [9], command: [\"true\"]}\n  - command: [\"true\"]\n";
    assert_eq!(steps(load_as(Format::Yaml, yaml).expect("valid")), wanted);
    let json = r#"{"task": [{"id": "merge", "deps": ["prep", 7, "Solve 2"], "command": ["true"]}, {"id": "prep", "command": ["true"]},
        {"id": 7, "deps": ["prep"], "command": ["true"]}, {"id": "Solve 2", "deps": [9], "command": ["true"]}, {"command": ["true"]}]}"#;
    assert_eq!(steps(load_as(Format::Json, json).expect("valid")), wanted);
}

#[expect(clippy::too_many_lines, reason = "a table of files")]
#[test]
fn wrong_names_are_refused_where_they_stand() {
    let task = |keys: &str| format!("[[task]]\ncommand = [\"true\"]\n{keys}\n");
    let prep = task("id = \"prep\"");
    for (keys, said, help) in [
        (
            "id = \"prep\"",
            "Task `prep` is defined multiple times\njob.toml, line 6, column 6: an earlier task already has the name `prep`",
            "",
        ),
        (
            "deps = [\"prepp\"]",
            "Task 2 is part of dependency cycle or has an invalid dependencies\njob.toml, line 6, column 9: task `prepp` does not exist in this file",
            "did you mean `prep`?",
        ),
        (
            "id = \"a\"\ndeps = [\"z\"]",
            "Task `a` is part of dependency cycle or has an invalid dependencies\njob.toml, line 7, column 9: task `z` does not exist in this file",
            "this file names `prep`",
        ),
        (
            "id = \"a\"\ndeps = [\"prep\", \"a\"]",
            "line 7, column 17: it waits for itself",
            "",
        ),
        (
            "id = \"a\"\ndeps = [2]",
            "line 7, column 9: it waits for itself",
            "",
        ),
        ("id = \"1\"", "line 6, column 6", ""),
        (
            "id = \"1\"",
            "the number of a task stands without quotes: write `1`",
            "",
        ),
        ("deps = [\"1-3\"]", "a name needs a letter, found `1-3`", ""),
        ("id = \"\"", "a name needs a letter", ""),
        (
            "id = \"a\\nb\"",
            "a name is one line of plain text, found `a\\nb`",
            "",
        ),
        (
            "id = -1",
            "expected a number from 0 to 4294967295 or a name, found `-1`",
            "",
        ),
        (
            "id = 1.5",
            "expected a number from 0 to 4294967295 or a name, found `1.5`",
            "",
        ),
        (
            "deps = \"prep\"",
            "line 6, column 8 (key `deps`)",
            "write a list: `deps = [\"prep\"]`",
        ),
        (
            "cpus = 2\n[[task.request]]\nweight = 2.0",
            "`cpus` and `mem` at a task are its request",
            "",
        ),
        (
            "shell = \"ls\"",
            "`command` and `shell` both say what to run",
            "",
        ),
        (
            "cpus = 0",
            "Zero resources cannot be requested\njob.toml, line 6, column 8 (key `cpus`)",
            "",
        ),
    ] {
        let error = load_text(&(prep.clone() + &task(keys))).expect_err(keys);
        let text = error.text().unwrap_or_default();
        assert!(text.contains(said), "{keys}: {text}");
        let found = error.help().unwrap_or_default();
        assert!(found.starts_with(help), "{keys}: {found}");
    }
    let refusal = |task: &str| {
        let error = load_as(
            Format::Yaml,
            &format!("task:\n  - command: [a]\n    {task}\n"),
        );
        error.expect_err(task).text().unwrap_or_default()
    };
    for (task, said) in [
        (
            "deps: [prpe]",
            "line 3, column 12: task `prpe` does not exist",
        ),
        ("id: \"7\"", "line 3, column 9"),
        (
            "id: 1.5",
            "found `1.5`\njob.toml, line 3, column 9 (key `id`)",
        ),
        (
            "retries: three",
            "expected a whole number from 0 to 65535\njob.toml, line 3, column 14 (key `retries`)",
        ),
    ] {
        let text = refusal(task);
        assert!(text.contains(said), "{task}: {text}");
    }
}

#[test]
fn names_of_other_submits_are_not_known() {
    let destination = Destination {
        attach: Some(5),
        ..Destination::default()
    };
    let context = SubmitContext {
        submit_dir: Path::new("/w"),
        server_uid: None,
        output_dir: None,
        reads_files: true,
    };
    let submit = |dep: &str| {
        let content = format!("[[task]]\ncommand = [\"a\"]\nid = \"b\"\ndeps = [{dep}]\n");
        let (path, format) = (Path::new("job.toml"), Format::Toml);
        let source = Source {
            path,
            content: &content,
            format,
        };
        parse(source, destination, context)
    };
    submit("5").expect("the open job may have it");
    let error = submit("\"prep\"").expect_err("nobody knows it");
    let help = error.help().unwrap_or_default();
    assert!(help.contains("`hq task list 5 -v` shows"), "{help}");
}

#[test]
fn cpus_mem_and_shell_stand_at_the_task_itself() {
    let requests = |keys: &str| {
        let [array, task] = ["[array]\nids = \"1\"", "[[task]]"].map(|head| {
            let file = format!("{head}\nshell = \"seq 10 > n\"\n{keys}\n");
            match load_text(&file).expect(keys).spec.body {
                SubmitBody::Array(array) => array.template,
                SubmitBody::Graph(graph) => Arc::clone(&graph.templates[0]),
            }
        });
        assert_eq!(array.requests, task.requests);
        let args: Vec<_> = task
            .args
            .iter()
            .map(|arg| String::from_utf8_lossy(arg))
            .collect();
        assert_eq!(args, ["sh", "-c", "seq 10 > n"]);
        let entries = task.requests.as_slice()[0].entries.iter();
        let entries = entries.map(|entry| format!("{} {entry}", entry.resource));
        entries.collect::<Vec<_>>()
    };
    assert_eq!(requests(""), ["cpus 1 compact"]);
    assert_eq!(requests("cpus = \"2 scatter\""), ["cpus 2 scatter"]);
    assert_eq!(
        requests("cpus = 0.5\nmem = \"2G\""),
        ["cpus 0.5 compact", "mem 2048 compact"]
    );
    assert_eq!(requests("mem = 100"), ["cpus 1 compact", "mem 100 compact"]);
    let text = refusal("[[task]]\nshell = \" \"\n");
    assert!(
        text.contains("expected a command line, found an empty text\njob.toml, line 2, column 9"),
        "{text}"
    );
}

/// These are values by users who do not know the types.
#[expect(clippy::too_many_lines, reason = "a table of files")]
#[test]
fn values_of_a_wrong_type_are_answered_with_the_right_form() {
    for (format, file, help) in [
        (
            Format::Toml,
            "[[task]]\ncommand = \"seq 10 > n\"\n",
            "write a command line for a shell: `shell = \"seq 10 > n\"`",
        ),
        (
            Format::Yaml,
            "task:\n  - command: seq 10 > n  # all\n",
            "write a command line for a shell: `shell: \"seq 10 > n\"`",
        ),
        (
            Format::Json,
            r#" [{"id": 1, "command": ["x"]}]"#,
            "write the list as the value of `task`",
        ),
        (
            Format::Yaml,
            "# steps\n- command: [x]\n",
            "write `task:` in a line above the list",
        ),
        (
            Format::Json,
            r#"{"task": [{"command": "seq 10 > n"}]}"#,
            "write a command line for a shell: `\"shell\": \"seq 10 > n\"`",
        ),
        (
            Format::Json,
            r#"{"task": [{"command": ["x"], "retries": "3"}]}"#,
            "write the number without quotes: `\"retries\": 3`",
        ),
        (
            Format::Json,
            r#"{"task": [{"command": ["x"], "time_limit": 10}]}"#,
            "write `\"time_limit\": \"10s\"`",
        ),
        (
            Format::Toml,
            "[[task]]\ncommand = [\"x\"]\ntime_limit = 10\n",
            "write `time_limit = \"10s\"`",
        ),
        (
            Format::Toml,
            "[[task]]\ncommand = [\"x\"]\nretries = \"3\"\n",
            "write the number without quotes: `retries = 3`",
        ),
        (
            Format::Toml,
            "[task]\ncommand = [\"x\"]\n",
            "it is a list: write its header with two brackets",
        ),
        (
            Format::Toml,
            "[[task]]\ncommand = [\"x\"]\n[task.request]\nweight = 1.0",
            "it is a list: write its header with two brackets",
        ),
        (
            Format::Toml,
            "[[array]]\nids = \"1\"\ncommand = [\"x\"]\n",
            "there is one array in a file",
        ),
        (
            Format::Toml,
            "[[task]]\ncommand = [\"x\"]\nenv = [\"A=1\"]\n",
            "write `env = { NAME = \"value\" }`",
        ),
        (
            Format::Yaml,
            "task:\n  - command: [x]\n    task_dir: 1\n",
            "write `task_dir: true`",
        ),
        (
            Format::Yaml,
            "task:\n  - run: x\n",
            "`shell` is a command line",
        ),
    ] {
        let error = load_as(format, file).expect_err(file);
        let found = error.help().unwrap_or_default();
        assert!(
            found.starts_with(help),
            "{file}: {found} ({:?})",
            error.text()
        );
    }
}
