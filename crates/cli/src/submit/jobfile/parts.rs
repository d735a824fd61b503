//! Reads large files part by part. The syntax tree of a whole file takes forty times as much memory
//! as its text, and building it takes most of the time.
//!
//! A part begins with a line that begins with the header of a task. If that line is inside a value,
//! the previous part ends in the middle of the value and cannot be read. Therefore, reading in
//! parts never gives a different result than reading the whole file.

use std::ops::Range;

use super::file::FileTable;

/// Files up to this size, in bytes, are read as a whole.
const WHOLE_MAX: usize = 1 << 18;

/// The number of tasks that are read at once.
const TASKS_PER_PART: usize = 500;

/// The header of a task. A task with a different header belongs to the part of the previous task.
const HEADER: &str = "[[task]]";

/// Why a file cannot be read, and the affected bytes.
#[derive(Debug)]
pub(super) struct JobFileError {
    pub(super) message: String,
    pub(super) span: Option<Range<usize>>,
}

impl JobFileError {
    /// Creates an error. `offset` is where the parsed text begins in the file.
    fn new(error: &toml::de::Error, offset: usize) -> Self {
        let shifted = |span: Range<usize>| span.start + offset..span.end + offset;
        Self {
            message: error.message().to_owned(),
            span: error.span().map(shifted),
        }
    }
}

/// Reads a file.
///
/// # Errors
///
/// Returns a [`JobFileError`] if the file is not TOML or does not have the structure of a job file.
pub(super) fn read(content: &str) -> Result<FileTable, JobFileError> {
    if content.len() > WHOLE_MAX
        && let Some(outcome) = read_parts(content)
    {
        return outcome;
    }
    toml::from_str(content).map_err(|error| JobFileError::new(&error, 0))
}

/// Reads a file in parts. Returns `None` if only reading the whole file can give the result.
fn read_parts(content: &str) -> Option<Result<FileTable, JobFileError>> {
    let headers = header_positions(content);
    let head = &content[..*headers.first()?];
    // Headers cannot add to tasks that are defined in another way.
    let names_tasks = |line: &str| {
        line.trim_start_matches([' ', '\t', '"', '\'', '['])
            .starts_with("task")
    };
    if head.lines().any(names_tasks) {
        return None;
    }
    let mut file: FileTable = toml::from_str(head).ok()?;
    if !file.task.is_empty() {
        return None;
    }
    file.task.reserve(headers.len());
    let mut rest = headers.chunks(TASKS_PER_PART).peekable();
    while let Some(part) = rest.next() {
        let end = rest.peek().map_or(content.len(), |next| next[0]);
        match toml::from_str::<FileTable>(&content[part[0]..end]) {
            Ok(more) if more.array.is_none() => file.task.append(more.task),
            Err(error) if !may_span_parts(content) => {
                return Some(Err(JobFileError::new(&error, part[0])));
            }
            Ok(_) | Err(_) => return None,
        }
    }
    Some(Ok(file))
}

/// Returns whether a multi-line text, or a table other than the tasks, may extend from one part
/// into another.
fn may_span_parts(content: &str) -> bool {
    ["\"\"\"", "'''", "[array"]
        .iter()
        .any(|mark| content.contains(mark))
}

/// Returns the positions of lines that begin with the header of a task.
pub(super) fn header_positions(content: &str) -> Vec<usize> {
    let found = content.match_indices(HEADER).map(|(at, _)| at);
    let begins_line = |at: &usize| *at == 0 || content.as_bytes()[*at - 1] == b'\n';
    found.filter(begins_line).collect()
}

#[cfg(test)]
mod tests {
    use super::super::file::ListedTask;
    use super::*;

    const TASK_COUNT: usize = 2 * TASKS_PER_PART + 1;

    /// Creates a file that is read in several parts, with `tail` after its tasks.
    fn file(head: &str, tail: &str) -> String {
        let task = |id: usize| {
            format!(
                "[[task]]\nid = \"t{id}\"\ndeps = [\"t{}\", {id}]\ncommand = [\"x\", \"{}\"]\n[[task.request]]\nweight = 2.0\n",
                (id + 700) % TASK_COUNT,
                id % 7
            )
        };
        let tasks: Vec<String> = (0..TASK_COUNT).map(task).collect();
        format!("{head}{}{tail}", tasks.concat())
    }

    fn whole(content: &str) -> Result<FileTable, JobFileError> {
        toml::from_str(content).map_err(|error| JobFileError::new(&error, 0))
    }

    #[test]
    fn parts_give_the_same_as_the_whole() {
        for head in ["", "name = \"n\"\nstream = \"s\"\n\n"] {
            for tail in [
                "[[ task ]]\ncommand = [\"last\"]\n",
                "[[task]]\ncommand = [\"\"\"\nlast\"\"\"]\n",
            ] {
                let content = file(head, tail);
                let file = read_parts(&content)
                    .expect("is usual")
                    .expect("can be read");
                let whole = whole(&content).expect("can be read");
                assert_eq!(file.stream, whole.stream);
                let tasks = |file: FileTable| {
                    let tasks = &file.task;
                    let words = |task: &ListedTask| {
                        let command = &tasks.kinds[task.kind].command;
                        (task.id.clone(), task.deps.clone(), command.clone())
                    };
                    tasks.list.iter().map(words).collect::<Vec<_>>()
                };
                let tasks_of_parts = tasks(file);
                assert_eq!(tasks_of_parts.len(), TASK_COUNT + 1);
                assert_eq!(tasks_of_parts, tasks(whole));
            }
        }
    }

    #[test]
    fn mistakes_are_found_where_the_whole_finds_them() {
        for tail in [
            "nothing = 1\n",
            "[[task]]\nnothing = 1\n",
            "[[task]]\ncommand = [\"x\"]\ncrash_limit = 0\n",
            "[[task]]\ncommand = [\"x\n",
            "[[task]]\ncommand = [\n[[task]]\n",
        ] {
            let content = file("name = \"n\"\n", tail);
            let found = read_parts(&content)
                .expect("is usual")
                .err()
                .expect("wrong");
            let wanted = whole(&content).err().expect("wrong");
            assert_eq!(found.message, wanted.message);
            assert_eq!(found.span, wanted.span, "{tail}");
        }
    }

    #[test]
    fn what_is_unusual_is_read_as_a_whole() {
        let tails = [
            "[array]\nids = \"1\"\ncommand = [\"x\"]\n",
            "[[task]]\ncommand = [\"\"\"\n[[task]]\n\"\"\"]\n",
            "[[task]]\ncommand = [\"'''\"]\nnothing = 1\n",
        ];
        for tail in tails {
            // The end of a part also splits the text that contains a header.
            let content = file(&"#\n".repeat(2), &tail.repeat(1 + TASKS_PER_PART / 2));
            let read = read_parts(&content);
            assert!(read.is_none(), "{tail}");
        }
        for head in [
            "task = []\n",
            "'task' = [{ command = ['x'] }]\n",
            "\"t\\u0061sk\" = [{ command = ['x'] }]\n",
        ] {
            assert!(read_parts(&file(head, "")).is_none(), "{head}");
        }
        assert!(read_parts("name = \"n\"\n").is_none());
    }
}
