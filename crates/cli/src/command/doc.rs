//! `hq doc`.

use std::io::Write as _;
use std::process::{Command, Stdio};

use super::Context;
use crate::args::other::{DocArgs, DocTopic};
use crate::error::{CliError, CliResult};

const BASE: &str = "https://it4innovations.github.io/hyperqueue/latest/";

/// Prints the address of a page, and opens it on demand.
pub(super) fn run(args: &DocArgs, context: &mut Context) -> CliResult<()> {
    let url = format!("{BASE}{}", args.topic.map_or("", path));
    writeln!(context.out, "{url}")?;
    if args.open {
        context.flush()?;
        let opener = Command::new("xdg-open")
            .arg(&url)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        match opener {
            Ok(status) if status.success() => {}
            Ok(status) => {
                return Err(CliError::new(format!(
                    "Cannot open a browser: xdg-open: {status}"
                )));
            }
            Err(error) => {
                return Err(CliError::caused(
                    "Cannot open a browser with `xdg-open`",
                    &error,
                ));
            }
        }
    }
    context.done()
}

const fn path(topic: DocTopic) -> &'static str {
    match topic {
        DocTopic::Job => "jobs/jobs",
        DocTopic::Taskarray => "jobs/arrays",
        DocTopic::Resources => "jobs/resources",
        DocTopic::Worker => "deployment/worker",
        DocTopic::Autoalloc => "deployment/allocation",
        DocTopic::PythonApi => "python",
        DocTopic::Cheatsheet => "cheatsheet",
        DocTopic::Changelog => "changelog",
        DocTopic::Faq => "faq",
    }
}
