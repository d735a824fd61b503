//! Tests the advice for keys and values that users write.

use super::*;

fn said(message: &str, key: &str, value: &str, format: Format) -> String {
    let key = Some(key);
    help(&plain_words(message), Place { key, value, format })
}

#[expect(clippy::too_many_lines, reason = "a table of values")]
#[test]
fn values_of_a_wrong_type_have_their_right_form() {
    let (list, text) = (
        "expected a sequence",
        "invalid type: integer `10`, expected a string",
    );
    for (message, key, value, wanted) in [
        (
            list,
            "command",
            "\"sort -u\"",
            "write `command = [\"sort\", \"-u\"]`, or a command line for a shell: `shell = \"sort -u\"`",
        ),
        (
            list,
            "command",
            "\"seq 10 > n\"",
            "write a command line for a shell: `shell = \"seq 10 > n\"`",
        ),
        (
            list,
            "command",
            "'A=1 ./x'",
            "write a command line for a shell: `shell = \"A=1 ./x\"`",
        ),
        (list, "deps", "3", "write a list: `deps = [3]`"),
        (
            list,
            "deps",
            "\"prep\"",
            "write a list: `deps = [\"prep\"]`",
        ),
        (
            list,
            "task",
            "{",
            "it is a list: write its header with two brackets",
        ),
        (text, "time_limit", "10", "write `time_limit = \"10s\"`"),
        (text, "cwd", "10", "write a text: `cwd = \"10\"`"),
        (
            text,
            "command",
            "5",
            "each word is a text in quotes: `\"5\"`",
        ),
        (
            text,
            "pin",
            "true",
            "write `pin = \"taskset\"` or `pin = \"omp\"`",
        ),
        (
            text,
            "ids",
            "[1, 2,\n 3]",
            "ids are one text: `ids = \"1,2,3\"`",
        ),
        (
            "invalid date, expected `-` (MM-DD)",
            "ids",
            "1-10",
            "ids are one text: `ids = \"1-10\"`",
        ),
        ("expected newline", "ids", ",", "ids are one text: `ids = "),
        (
            "string values must be quoted, expected literal string",
            "command",
            "“echo”",
            "typographic quotes",
        ),
        (
            "string values must be quoted, expected literal string",
            "command",
            "echo, hi]",
            "write texts in quotes: `\"echo\"`",
        ),
        (
            "invalid unquoted key, expected letters",
            "resources",
            "/",
            "a key with other characters",
        ),
        (
            "expected a string",
            "shell",
            "[\"a\"]",
            "`shell` is one text",
        ),
        (
            "expected a string",
            "shell",
            "true",
            "write the command line",
        ),
        (
            "expected u16",
            "retries",
            "\"3\"",
            "write the number without quotes: `retries = 3`",
        ),
        ("expected u16", "retries", "\"three\"", PAGE),
        (
            "expected a boolean",
            "task_dir",
            "\"no\"",
            "write `task_dir = false`",
        ),
        (
            "expected a map",
            "env",
            "[\"A=1\"]",
            "write `env = { NAME = \"value\" }`",
        ),
    ] {
        let text = said(message, key, value, Format::Toml);
        assert!(text.starts_with(wanted), "{message}, {key}: {text}");
    }
    let yaml = |message, key, value| said(message, key, value, Format::Yaml);
    assert!(
        yaml("expected sequence start", "deps", "prep")
            .starts_with("write a list: `deps: [\"prep\"]`")
    );
    assert!(yaml("invalid boolean", "task_dir", "1").starts_with("write `task_dir: true`"));
    let json = said("expected u16", "retries", "\"3\"", Format::Json);
    assert!(
        json.starts_with("write the number without quotes: `\"retries\": 3`"),
        "{json}"
    );
}

#[test]
fn keys_that_people_guess_have_the_right_one() {
    let task = "expected one of `id`, `deps`, `command`, `cwd`, `cpus`";
    let array = "expected one of `ids`, `entries`, `command`, `cwd`";
    let file = "expected one of `name`, `max_fails`, `task`";
    let request = "expected one of `n_nodes`, `weight`, `resources`";
    for (key, known, wanted) in [
        ("cmd", task, "`command` is a list"),
        ("run", task, "`shell` is"),
        ("needs", task, "`deps` lists"),
        ("dependsOn", task, "`deps` lists"),
        ("depends-on", task, "`deps` lists"),
        ("name", task, "`id` is"),
        ("resources", task, "it stands in a `request`"),
        ("memory", task, "`mem` is"),
        ("threads", task, "`cpus` is"),
        ("timeout", task, "`time_limit` is"),
        ("comand", task, "did you mean `command`?"),
        ("ids", task, "`ids` and `entries` are for"),
        (
            "requests",
            "expected one of `command`, `request`",
            "did you mean `request`? `hq doc",
        ),
        ("max_fails", task, "`max_fails` is for the whole file"),
        ("stream", task, "`stream` is for the whole file"),
        ("env", request, "`env` belongs to a task"),
        ("deps", array, "an array has `ids`"),
        (
            "tasks",
            file,
            "each task of a file begins with `[[task]]`; `hq",
        ),
        ("command", file, "`command` belongs to a task"),
        ("timeout", file, "`timeout` belongs to a task"),
        ("max_fail", file, "did you mean `max_fails`?"),
        ("cpus", request, "amounts stand in `resources`"),
        ("x", task, PAGE),
    ] {
        let text = said(
            &format!("unknown field `{key}`, {known}"),
            "",
            "",
            Format::Toml,
        );
        assert!(text.starts_with(wanted), "{key}: {text}");
    }
}
