//! `hq generate-completion`.

use super::Context;
use crate::args::Cli;
use crate::args::other::CompletionArgs;
use crate::error::CliResult;
use crate::output::console::error_line;
use clap::CommandFactory;
use clap_complete::Shell;

/// Completion of ids, which only a server knows; without one there are none.
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
    if [[ ${COMP_CWORD} -ge 3 && ${current} != -* ]]; then
        case "${COMP_WORDS[1]} ${COMP_WORDS[2]}" in
            "job info"|"job cancel"|"job wait"|"job progress"|"job forget"|"job close"|"job stats"|"job resubmit"|"job task-ids"|"job cat"|"job tail"|"task list"|"task info"|"task explain")
                [[ ${COMP_CWORD} -eq 3 ]] && known="last $(hq job list --all --output-mode quiet 2>/dev/null | cut -d' ' -f1)" ;;
            "worker info"|"worker stop"|"worker drain"|"worker address")
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
complete -c hq -n "__fish_seen_subcommand_from job; and __fish_seen_subcommand_from info cancel wait progress forget close stats resubmit task-ids cat tail" -f -a "(__hq_job_ids)"
complete -c hq -n "__fish_seen_subcommand_from task; and __fish_seen_subcommand_from list info explain" -f -a "(__hq_job_ids)"
complete -c hq -n "__fish_seen_subcommand_from worker; and __fish_seen_subcommand_from info stop drain address" -f -a "(__hq_worker_ids)"
"#;

/// Prints the completion script of a shell.
pub(super) fn run(args: &CompletionArgs, context: &mut Context) -> CliResult<()> {
    error_line(&format!("Generating completion file for {}...", args.shell));
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "hq", &mut script);
    script.extend_from_slice(ids(args.shell).as_bytes());
    use std::io::Write as _;
    context.out.write_all(&script)?;
    Ok(())
}
