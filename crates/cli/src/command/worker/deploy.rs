//! `hq worker deploy-ssh`: one ssh per machine, each running a worker.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use clap::Parser;

use crate::args::worker::{DeploySshArgs, StartArgs};
use crate::command::Context;
use crate::error::{CliError, CliResult};

/// Pause between two looks at the ssh processes.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// A machine and the port of its ssh server.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Host {
    name: String,
    port: Option<u16>,
}

#[derive(Parser)]
#[command(name = "hq worker start", no_binary_name = true)]
struct StartLine {
    #[command(flatten)]
    _global: crate::args::global::GlobalArgs,
    #[command(flatten)]
    _args: StartArgs,
}

/// Runs workers until all have ended.
pub(crate) fn deploy_ssh(args: DeploySshArgs, context: &mut Context) -> CliResult<()> {
    if args.hostfile == Path::new("--help") || args.hostfile == Path::new("-h") {
        check_worker_args(&[args.hostfile.into_os_string()], context)?;
        return Ok(());
    }
    check_worker_args(&args.worker_args, context)?;
    let hosts = read_hosts(&args.hostfile)?;
    let program = std::env::current_exe()
        .and_then(std::fs::canonicalize)
        .map_err(|e| CliError::caused("Cannot find the path of this program", &e))?;
    let mut children = Vec::new();
    for host in hosts {
        let mut ssh = Command::new("ssh");
        ssh.arg(&host.name).args(["-t", "-t"]);
        if let Some(port) = host.port {
            ssh.arg("-p").arg(port.to_string());
        }
        ssh.arg("--")
            .arg(&program)
            .args(["worker", "start"])
            .args(&args.worker_args);
        ssh.stdin(Stdio::null());
        if !args.show_output {
            ssh.stdout(Stdio::null()).stderr(Stdio::null());
        }
        let child = ssh.spawn().map_err(|error| {
            if error.kind() == std::io::ErrorKind::NotFound {
                return CliError::new(
                    "Cannot find `ssh` binary. Make sure that OpenSSH is installed.",
                );
            }
            CliError::caused("Cannot start `ssh`", &error)
        })?;
        tracing::info!("Started worker process at `{}`", host.name);
        children.push((host.name, child));
    }
    if !wait_for_all(children) {
        return Err(CliError::new("Some workers have ended with an error"));
    }
    tracing::info!("All workers have finished");
    context.done()
}

/// Reports each end when it comes; says whether all went well. Without threads, of which the system may allow no more.
fn wait_for_all(mut children: Vec<(String, Child)>) -> bool {
    let mut is_well = true;
    while !children.is_empty() {
        children.retain_mut(|(host, child)| {
            let end = child.try_wait().transpose();
            if let Some(end) = end {
                is_well &= report_end(host, end);
                return false;
            }
            true
        });
        std::thread::sleep(LOOK_INTERVAL);
    }
    is_well
}

fn report_end(host: &str, end: std::io::Result<std::process::ExitStatus>) -> bool {
    match end {
        Ok(status) if status.success() => {
            tracing::info!("Worker at `{host}` has ended successfully");
            true
        }
        Ok(status) => {
            let code = status
                .code()
                .map_or_else(|| status.to_string(), |code| code.to_string());
            tracing::error!(
                "Worker at `{host}` has ended with an error: Worker exited with code {code}"
            );
            false
        }
        Err(error) => {
            tracing::error!("Worker at `{host}` has ended with an error: {error}");
            false
        }
    }
}

/// Parses the words as options of `worker start`; help is printed where somebody asked for it.
fn check_worker_args(words: &[OsString], context: &mut Context) -> CliResult<()> {
    let Err(error) = StartLine::try_parse_from(words) else {
        return Ok(());
    };
    context.flush()?;
    // Nobody can be told if that fails.
    let _ = error.print();
    let code = error.exit_code();
    Err(CliError::Told(
        u8::try_from(code).unwrap_or(crate::error::exit::USAGE),
    ))
}

fn read_hosts(path: &Path) -> CliResult<Vec<Host>> {
    let content = std::fs::read_to_string(path).map_err(|error| {
        CliError::caused(
            format!("Cannot load hostfile from {}", path.display()),
            &error,
        )
    })?;
    let lines = content.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let hosts = lines.map(parse_host).collect::<CliResult<Vec<_>>>()?;
    if hosts.is_empty() {
        return Err(CliError::new("The provided hostname is empty"));
    }
    Ok(hosts)
}

fn parse_host(line: &str) -> CliResult<Host> {
    let (name, port) = match line.rsplit_once(':') {
        // An IPv6 address without port has several colons.
        Some((name, _)) if name.contains(':') && !name.ends_with(']') => (line, None),
        Some((name, port)) => {
            let number = port.parse::<u16>();
            let number = number.map_err(|_| {
                CliError::new(format!(
                    "Cannot parse port from `{line}`: expected 1 to 65535"
                ))
            })?;
            (name, Some(number))
        }
        None => (line, None),
    };
    if name.is_empty() || name.starts_with('-') {
        return Err(CliError::new("The provided hostname is empty"));
    }
    Ok(Host {
        name: name.to_owned(),
        port,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_may_have_ports() {
        let host = |line: &str| parse_host(line).map(|host| (host.name, host.port));
        assert_eq!(host("node1"), Ok(("node1".to_owned(), None)));
        assert_eq!(host("node1:2222"), Ok(("node1".to_owned(), Some(2222))));
        assert_eq!(host("fe80::1"), Ok(("fe80::1".to_owned(), None)));
        assert!(host("node1:x").is_err_and(|e| {
            e.text()
                .is_some_and(|text| text.starts_with("Cannot parse port from "))
        }));
        assert!(host(":22").is_err());
        assert!(host("-oProxyCommand=x").is_err());
    }
}
