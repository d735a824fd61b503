//! Describes why a task could not be started, in texts that users and scripts know.

use std::path::Path;

use hq_core::command_text::{cannot_execute, no_program};
use hq_core::limits::shortened;
use hq_core::template::ByteText;
use hq_core::worker_state::LaunchFailure;
use hq_spawn::{SpawnError, SpawnErrorKind, Stage};

/// The maximum length in bytes of a program's name in an error text. It is longer than any file
/// name.
const PROGRAM_SHOWN_MAX: usize = 512;

/// Returns whether the program is open for writing.
pub(crate) fn is_busy_program(error: &SpawnError) -> bool {
    error.errno == rustix::io::Errno::TXTBSY.raw_os_error()
}

/// Translates an error of the spawn engine. `args` and `cwd` are those of the task. `is_hopeless`
/// means that retries are exhausted.
pub(crate) fn translate(
    error: &SpawnError,
    args: &[ByteText],
    cwd: &Path,
    is_hopeless: bool,
) -> LaunchFailure {
    let kind = error.kind();
    if kind == SpawnErrorKind::Cancelled {
        LaunchFailure::Cancelled
    } else if kind == SpawnErrorKind::Transient && !is_hopeless {
        LaunchFailure::Transient
    } else {
        LaunchFailure::Permanent(describe(error, args, cwd).into())
    }
}

fn describe(error: &SpawnError, args: &[ByteText], cwd: &Path) -> String {
    // Errors that precede the program lookup have a step and often a path.
    if !matches!(error.stage, Stage::Resolve | Stage::Exec) {
        let (step, reason) = (error.stage.describe(), error.os_error());
        let mut text = match error.path() {
            Some(path) if error.stage == Stage::Prepare => crate::output::describe(path, &reason),
            Some(path) => format!("Cannot {step} \"{}\": {reason}", path.display()),
            None => format!("Cannot {step}: {reason}"),
        };
        add_hint(&mut text, error);
        return text;
    }
    let program = args.first().map_or(&[][..], |program| program);
    let program = &*shortened(&String::from_utf8_lossy(program), PROGRAM_SHOWN_MAX);
    let mut text = cannot_execute(args, &error.os_error().to_string());
    let kind = error.kind();
    if kind == SpawnErrorKind::NotFound {
        text +=
            &format!("\nThe program that you have tried to execute (`{program}`) was not found.");
        let here = cwd.join(program);
        // A shell would not search the current directory either, but users expect it.
        if !program.contains('/') && here.is_file() {
            let here = here.display();
            text +=
                &format!("\nThe file `{here}` exists, maybe you have meant `./{program}` instead?");
        } else if let Some(why) = no_program(program) {
            text += &format!("\nHint: {why}.");
        }
    } else if kind == SpawnErrorKind::PermissionDenied && cwd.join(program).is_dir() {
        text += "\nHint: this is a directory; name the program in it.";
    } else if kind == SpawnErrorKind::PermissionDenied && program.ends_with(".sh") {
        text += &format!(
            "\nThe script that you have tried to execute (`{program}`) is not executable.\
             \nTry making it executable or add a shebang line to it."
        );
    } else {
        add_hint(&mut text, error);
    }
    text
}

fn add_hint(text: &mut String, error: &SpawnError) {
    if let Some(hint) = error.hint() {
        *text += &format!("\nHint: {hint}.");
    }
}
