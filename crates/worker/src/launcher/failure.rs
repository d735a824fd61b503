//! Why a task could not be started, in the words that users and scripts know.

use std::path::Path;

use hq_core::template::ByteText;
use hq_core::worker_state::LaunchFailure;
use hq_spawn::{SpawnError, SpawnErrorKind, Stage};

/// Translates an error of the spawn engine. `args` and `cwd` are those of the task.
pub(crate) fn translate(error: &SpawnError, args: &[ByteText], cwd: &Path) -> LaunchFailure {
    let kind = error.kind();
    if kind == SpawnErrorKind::Cancelled {
        LaunchFailure::Cancelled
    } else if kind == SpawnErrorKind::Transient {
        LaunchFailure::Transient
    } else {
        LaunchFailure::Permanent(describe(error, args, cwd).into())
    }
}

fn describe(error: &SpawnError, args: &[ByteText], cwd: &Path) -> String {
    if !matches!(error.stage, Stage::Resolve | Stage::Exec) {
        return match error.path() {
            Some(path) => {
                format!(
                    "Cannot {} \"{}\": {}",
                    error.stage.describe(),
                    path.display(),
                    error.os_error()
                )
            }
            None => format!("Cannot {}: {}", error.stage.describe(), error.os_error()),
        };
    }
    let words: Vec<_> = args
        .iter()
        .map(|arg| String::from_utf8_lossy(arg))
        .collect();
    let mut text = format!(
        "Cannot execute \"{}\": {}",
        words.join(" "),
        error.os_error()
    );
    let program = words.first().map_or("", |word| word);
    let kind = error.kind();
    if kind == SpawnErrorKind::NotFound {
        text +=
            &format!("\nThe program that you have tried to execute (`{program}`) was not found.");
        let here = cwd.join(program);
        if !program.contains('/') && here.is_file() {
            let here = here.display();
            text +=
                &format!("\nThe file `{here}` exists, maybe you have meant `./{program}` instead?");
        }
    } else if kind == SpawnErrorKind::PermissionDenied && program.ends_with(".sh") {
        text += &format!(
            "\nThe script that you have tried to execute (`{program}`) is not executable.\
             \nTry making it executable or add a shebang line to it."
        );
    } else if let Some(hint) = error.hint() {
        text += &format!("\nHint: {hint}.");
    }
    text
}
