//! `hq generate-completion`.

use super::Context;
use crate::args::Cli;
use crate::args::other::CompletionArgs;
use crate::error::CliResult;
use crate::output::console::error_line;
use clap::CommandFactory;
use clap_complete::Shell;

/// Returns the code that completes ids and names of limits, which it gets from the server. Without a
/// server, it completes none.
fn ids(shell: Shell) -> &'static str {
    if shell == Shell::Bash {
        BASH_IDS
    } else if shell == Shell::Fish {
        FISH_IDS
    } else {
        ""
    }
}

const BASH_IDS: &str = r#"
_hq_with_ids() {
    local current="${COMP_WORDS[COMP_CWORD]}" known=""
    # bash splits `--limit=db` into three words.
    local option="${COMP_WORDS[COMP_CWORD-1]}"
    [[ ${option} == "=" ]] && option="${COMP_WORDS[COMP_CWORD-2]}"
    [[ ${option} == --limit && ${current} == "=" ]] && current=""
    if [[ ${option} == --limit || "${COMP_WORDS[1]} ${COMP_WORDS[2]} ${COMP_CWORD}" == "limit set 3" || ( "${COMP_WORDS[1]} ${COMP_WORDS[2]}" == "limit remove" && ${current} != -* ) ]]; then
        COMPREPLY=( $(compgen -W "$(hq limit list --output-mode quiet 2>/dev/null | cut -d' ' -f1)" -- "${current}") )
        return
    fi
    if [[ ${COMP_CWORD} -ge 3 && ${current} != -* ]]; then
        case "${COMP_WORDS[1]} ${COMP_WORDS[2]}" in
            "job info"|"job cancel"|"job wait"|"job progress"|"job forget"|"job close"|"job stats"|"job failures"|"job resubmit"|"job task-ids"|"job cat"|"job tail"|"task list"|"task info"|"task explain"|"task cancel")
                [[ ${COMP_CWORD} -eq 3 ]] && known="last $(hq job list --all --output-mode quiet 2>/dev/null | cut -d' ' -f1)" ;;
            "worker info"|"worker stop"|"worker drain"|"worker quarantine"|"worker release"|"worker address")
                [[ ${COMP_CWORD} -eq 3 ]] && known="last $(hq worker list --output-mode quiet 2>/dev/null | cut -d' ' -f1)" ;;
        esac
    fi
    if [[ -n ${known} ]]; then
        COMPREPLY=( $(compgen -W "${known}" -- "${current}") )
        return
    fi
    _hq "$@"
}
complete -F _hq_with_ids -o bashdefault -o default hq
"#;

const FISH_IDS: &str = r#"
function __hq_job_ids
    hq job list --all --output-mode quiet 2>/dev/null | string replace ' ' \t
    echo last
end
function __hq_worker_ids
    hq worker list --output-mode quiet 2>/dev/null | string replace ' ' \t
    echo last
end
function __hq_limits
    hq limit list --output-mode quiet 2>/dev/null | string replace ' ' \t
end
complete -c hq -n "__fish_seen_subcommand_from limit; and __fish_seen_subcommand_from set remove" -f -a "(__hq_limits)"
complete -c hq -n "__fish_seen_subcommand_from submit" -l limit -x -a "(__hq_limits)"
complete -c hq -n "__fish_seen_subcommand_from job; and __fish_seen_subcommand_from info cancel wait progress forget close stats failures resubmit task-ids cat tail" -f -a "(__hq_job_ids)"
complete -c hq -n "__fish_seen_subcommand_from task; and __fish_seen_subcommand_from list info explain cancel" -f -a "(__hq_job_ids)"
complete -c hq -n "__fish_seen_subcommand_from worker; and __fish_seen_subcommand_from info stop drain quarantine release address" -f -a "(__hq_worker_ids)"
"#;

/// Functions that complete ids and limits in zsh. The arguments refer to them, see [`with_zsh_ids`].
const ZSH_IDS: &str = r#"
_hq_job_ids() {
    local -a known
    known=(${(f)"$(hq job list --all --output-mode quiet 2>/dev/null | cut -d' ' -f1)"} last all)
    compadd -a known
}
_hq_worker_ids() {
    local -a known
    known=(${(f)"$(hq worker list --output-mode quiet 2>/dev/null | cut -d' ' -f1)"} last all)
    compadd -a known
}
_hq_limits() {
    local -a known
    known=(${(f)"$(hq limit list --output-mode quiet 2>/dev/null | cut -d' ' -f1)"})
    compadd -a known
}
"#;

/// The beginnings of lines about limits in the script for zsh.
const ZSH_LIMITS: [&str; 3] = [
    "'*--limit=[",
    "':name -- Name of the limit",
    "'*::names -- Names of limits:",
];

/// Changes the completions of jobs, workers and limits so that they offer what the server has.
fn with_zsh_ids(script: &str) -> String {
    let mut completer = "_default";
    let mut text = String::with_capacity(script.len());
    for (number, line) in script.lines().enumerate() {
        for (command, name) in [
            (":hq-job-command-", "_hq_job_ids"),
            (":hq-task-command-", "_hq_job_ids"),
            (":hq-worker-command-", "_hq_worker_ids"),
        ] {
            if line.contains(command) {
                completer = name;
            }
        }
        let choice = line.starts_with("':selector -- ");
        let completer = match ZSH_LIMITS.iter().any(|start| line.starts_with(start)) {
            true => "_hq_limits",
            false if choice => completer,
            false => "_default",
        };
        let line = line.replace(":_default'", &format!(":{completer}'"));
        text.push_str(&line);
        text.push('\n');
        if number == 0 {
            // Inserted after `#compdef hq`.
            text.push_str(ZSH_IDS);
        }
    }
    text
}

/// Removes internal options, which the help does not show.
fn without_hidden(script: &str, shell: Shell) -> String {
    const HIDDEN: &str = "generate-reference";
    let is_offer = |line: &&str| {
        let line = line.trim_start();
        if shell == Shell::Zsh {
            line.starts_with(&format!("'{HIDDEN}:"))
        } else {
            shell == Shell::Fish && line.contains(&format!("-a \"{HIDDEN}\""))
        }
    };
    let mut text = String::with_capacity(script.len());
    for line in script.lines().filter(|line| !is_offer(line)) {
        let is_list = shell == Shell::Bash && line.trim_start().starts_with("opts=");
        if is_list {
            text.push_str(&line.replace(&format!(" {HIDDEN}"), ""));
        } else {
            text.push_str(line);
        }
        text.push('\n');
    }
    text
}

/// Returns the completion script of a shell.
fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "hq", &mut script);
    let script = without_hidden(&String::from_utf8_lossy(&script), shell);
    let script = if shell == Shell::Zsh {
        with_zsh_ids(&script)
    } else {
        script
    };
    script + ids(shell)
}

/// Prints the completion script of a shell.
pub(super) fn run(args: &CompletionArgs, context: &mut Context) -> CliResult<()> {
    error_line(&format!("Generating completion file for {}...", args.shell));
    use std::io::Write as _;
    context.out.write_all(script(args.shell).as_bytes())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_help_hides_is_not_offered() {
        let offers = |shell, text: &str| script(shell).lines().any(|line| line.contains(text));
        for (shell, hidden, shown) in [
            (Shell::Zsh, "'generate-reference:", "'generate-man:"),
            (
                Shell::Fish,
                "-a \"generate-reference\"",
                "-a \"generate-man\"",
            ),
            (Shell::Bash, " generate-reference ", " generate-man "),
        ] {
            assert!(offers(shell, shown), "{shell}");
            assert!(!offers(shell, hidden), "{shell}");
        }
    }

    #[test]
    fn names_of_limits_are_completed() {
        let script = script(Shell::Zsh);
        for start in ZSH_LIMITS {
            let mut lines = script.lines().filter(|line| line.starts_with(start));
            let first = lines.next().expect("a line about a limit");
            assert!(first.contains(":_hq_limits'"), "{first}");
        }
    }

    #[test]
    fn zsh_asks_for_ids_of_what_the_command_is_about() {
        let script = script(Shell::Zsh);
        assert!(script.starts_with("#compdef hq\n"));
        let mut completed = Vec::new();
        let mut group = "";
        for line in script.lines() {
            for name in ["job", "task", "worker"] {
                if line.contains(&format!(":hq-{name}-command-")) {
                    group = name;
                }
            }
            if line.starts_with("':selector -- ") {
                completed.push((
                    group,
                    line.contains("_hq_job_ids'"),
                    line.contains("_hq_worker_ids'"),
                ));
            }
        }
        assert!(completed.len() > 10, "{completed:?}");
        for (group, jobs, workers) in completed {
            assert_eq!(
                (jobs, workers),
                (group != "worker", group == "worker"),
                "{group}"
            );
        }
    }
}
