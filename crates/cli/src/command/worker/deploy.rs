//! `hq worker deploy-ssh`: runs a worker on each machine over ssh.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io::{PipeReader, Read as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use clap::Parser;

use super::start::own_path;
use crate::args::worker::{DeploySshArgs, StartArgs};
use crate::command::Context;
use crate::error::{CliError, CliResult};
use crate::submit::read_text;
use crate::text::last_lines;
use crate::text::lossy;

/// The pause between two checks of the ssh processes.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// The number of bytes at the end of ssh's output that an error message may contain.
const TAIL_LEN: usize = 4096;

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
    let hosts = read_hosts(&args)?;
    check_worker_args(&args.worker_args, context)?;
    let program = own_path()?;
    let start =
        |host: &Host| Remote::start(ssh(host, &program, &args.worker_args)?, args.show_output);
    let remotes = start_all(hosts, start)?;
    if !wait_for_all(remotes) {
        return Err(CliError::new("Some workers have ended with an error"));
    }
    tracing::info!("All workers have finished");
    context.done()
}

/// Returns the command for one machine.
fn ssh(host: &Host, program: &Path, worker_args: &[OsString]) -> CliResult<Command> {
    let mut ssh = Command::new("ssh");
    ssh.arg(&host.name).args(["-t", "-t"]);
    if let Some(port) = host.port {
        ssh.arg("-p").arg(port.to_string());
    }
    let words = [program.as_os_str(), "worker".as_ref(), "start".as_ref()];
    let words = words
        .into_iter()
        .chain(worker_args.iter().map(|word| &**word));
    ssh.arg("--").arg(remote_command(words)?);
    Ok(ssh)
}

/// Quotes the words for the remote shell, because ssh joins its arguments with spaces.
fn remote_command<'a>(words: impl IntoIterator<Item = &'a OsStr>) -> CliResult<OsString> {
    let words = words.into_iter().map(OsStr::as_bytes);
    let quoted = shlex::bytes::try_join(words).map_err(|_| {
        CliError::new("Expected arguments without NUL bytes, found one that contains a NUL byte")
    })?;
    Ok(OsString::from_vec(quoted))
}

/// Starts the sessions one after the other. If one fails, stops the earlier ones.
fn start_all(
    hosts: Vec<Host>,
    mut start: impl FnMut(&Host) -> CliResult<Remote>,
) -> CliResult<Vec<(String, Remote)>> {
    let mut remotes = Vec::with_capacity(hosts.len());
    for host in hosts {
        let remote = start(&host)?;
        tracing::info!("Started worker process at `{}`", host.name);
        remotes.push((host.name, remote));
    }
    Ok(remotes)
}

/// An ssh process that is ended when it is dropped.
struct Remote {
    child: Child,
    /// The captured output, unless it goes to the terminal.
    output: Option<PipeReader>,
    /// The end of the output.
    tail: VecDeque<u8>,
}

impl Remote {
    fn start(mut ssh: Command, show_output: bool) -> CliResult<Self> {
        let failed = |error: std::io::Error| CliError::caused("Cannot start `ssh`", &error);
        ssh.stdin(Stdio::null());
        let output = if show_output {
            None
        } else {
            // With a remote terminal, errors of the worker arrive on standard output.
            let (reader, writer) = std::io::pipe().map_err(failed)?;
            rustix::io::ioctl_fionbio(&reader, true).map_err(|error| failed(error.into()))?;
            ssh.stdout(writer.try_clone().map_err(failed)?)
                .stderr(writer);
            Some(reader)
        };
        let child = ssh.spawn().map_err(|error| {
            if error.kind() == std::io::ErrorKind::NotFound {
                return CliError::new(
                    "Cannot find `ssh` binary. Make sure that OpenSSH is installed.",
                );
            }
            failed(error)
        })?;
        Ok(Self {
            child,
            output,
            tail: VecDeque::new(),
        })
    }

    /// Reads the available output, so that ssh never blocks on a full pipe.
    fn drain(&mut self) {
        let mut buffer = [0; TAIL_LEN];
        while let Some(output) = &mut self.output {
            match output.read(&mut buffer) {
                Ok(count @ 1..) => {
                    self.tail.extend(&buffer[..count]);
                    let excess = self.tail.len().saturating_sub(TAIL_LEN);
                    self.tail.drain(..excess);
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Ok(_) | Err(_) => self.output = None,
            }
        }
    }

    /// Returns the last lines of the output, to be appended to a message.
    fn last_words(&self) -> String {
        let (front, back) = self.tail.as_slices();
        let text = lossy(&[front, back].concat());
        let lines = last_lines(&text).into_iter();
        lines
            .map(|line| format!("\n    {}", line.trim_end()))
            .collect()
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // Normally ssh has already ended. Otherwise, closing its connection stops the worker.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reports each session when it ends. Returns whether all succeeded. Uses no threads, because the
/// system may refuse to start them.
fn wait_for_all(mut remotes: Vec<(String, Remote)>) -> bool {
    let mut is_well = true;
    while !remotes.is_empty() {
        remotes.retain_mut(|(host, remote)| {
            let end = remote.child.try_wait().transpose();
            remote.drain();
            if let Some(end) = end {
                is_well &= report_end(host, end, &remote.last_words());
                return false;
            }
            true
        });
        std::thread::sleep(LOOK_INTERVAL);
    }
    is_well
}

fn report_end(host: &str, end: std::io::Result<std::process::ExitStatus>, said: &str) -> bool {
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
                "Worker at `{host}` has ended with an error: Worker exited with code {code}{said}"
            );
            false
        }
        Err(error) => {
            tracing::error!("Worker at `{host}` has ended with an error: {error}");
            false
        }
    }
}

/// Parses the words as options of `worker start`. Prints the help if they request it.
fn check_worker_args(words: &[OsString], context: &mut Context) -> CliResult<()> {
    let Err(error) = StartLine::try_parse_from(words) else {
        return Ok(());
    };
    context.flush()?;
    // An error while printing help cannot be reported.
    let _ = error.print();
    let code = error.exit_code();
    Err(CliError::AlreadyReported(
        u8::try_from(code).unwrap_or(crate::error::exit::USAGE),
    ))
}

fn read_hosts(args: &DeploySshArgs) -> CliResult<Vec<Host>> {
    let path = &args.hostfile;
    let content = read_text(path).map_err(|error| {
        let words = args.worker_args.iter().map(|word| word.to_string_lossy());
        let names = words.take_while(|word| !word.starts_with('-'));
        let names: Vec<_> = std::iter::once(path.to_string_lossy()).chain(names).collect();
        CliError::caused(
            format!("Cannot load hostfile from {}", path.display()),
            &error,
        )
        .with_help(format!(
            "the argument names a file with one host on each line; `-` is standard input, as for hosts that are typed: `printf '%s\\n' {} | hq worker deploy-ssh -`",
            names.join(" ").replace(',', " ")
        ))
    })?;
    let lines = content.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let hosts = lines.map(parse_host).collect::<CliResult<Vec<_>>>()?;
    if hosts.is_empty() {
        let help = format!(
            "`{}` contains no host; write one per line, such as `node1`",
            path.display()
        );
        return Err(CliError::new("The provided hostname is empty").with_help(help));
    }
    Ok(hosts)
}

fn parse_host(line: &str) -> CliResult<Host> {
    let (name, port) = match line.rsplit_once(':') {
        // An IPv6 address without a port contains several colons.
        Some((name, _)) if !name.ends_with(']') && (name.contains(':') || line.ends_with(']')) => {
            (line, None)
        }
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
    let name = without_brackets(name).ok_or_else(|| {
        CliError::new(format!(
            "Cannot parse `{line}`: expected HOST, HOST:PORT or [IPV6]:PORT"
        ))
    })?;
    if name.is_empty() || name.starts_with('-') {
        return Err(CliError::new("The provided hostname is empty"));
    }
    Ok(Host { name, port })
}

/// Returns an IPv6 address in the form that `ssh` expects, with an optional user, or `None` if the
/// brackets do not match.
fn without_brackets(name: &str) -> Option<String> {
    let (user, address) = name.rsplit_once('@').map_or(("", name), |(user, address)| {
        (&name[..=user.len()], address)
    });
    match address.strip_prefix('[') {
        None => (!address.contains(['[', ']'])).then(|| name.to_owned()),
        Some(rest) => {
            let inside = rest.strip_suffix(']').filter(|text| !text.is_empty())?;
            (!inside.contains(['[', ']'])).then(|| format!("{user}{inside}"))
        }
    }
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
        assert_eq!(host("[::1]:2222"), Ok(("::1".to_owned(), Some(2222))));
        assert_eq!(host("me@[::1]:22"), Ok(("me@::1".to_owned(), Some(22))));
        assert_eq!(
            host("[fe80::1%eth0]"),
            Ok(("fe80::1%eth0".to_owned(), None))
        );
        assert!(host("[::1]x").is_err());
        assert!(host("[]:22").is_err());
        assert!(host("node1:x").is_err_and(|e| {
            e.text()
                .is_some_and(|text| text.starts_with("Cannot parse port from "))
        }));
        assert!(host(":22").is_err());
        assert!(host("-oProxyCommand=x").is_err());
    }

    /// Replaces ssh with a local shell.
    fn remote(script: &str) -> CliResult<Remote> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Remote::start(command, false)
    }

    #[test]
    fn the_other_shell_reads_the_words_as_they_were_given() {
        let words = [
            "printf",
            "<%s>",
            "fpga=sum(8)",
            "1h 30m",
            "$(echo p7)",
            "it's",
        ];
        let command = remote_command(words.map(OsStr::new)).expect("words");
        let ran = Command::new("sh").arg("-c").arg(command).output();
        let ran = ran.expect("a shell");
        assert_eq!(
            String::from_utf8_lossy(&ran.stdout),
            "<fpga=sum(8)><1h 30m><$(echo p7)><it's>"
        );
    }

    #[test]
    fn the_first_are_ended_if_a_later_one_cannot_be_started() {
        let host = |name: &str| parse_host(name).expect("a host");
        let mut first = None;
        let started = start_all(vec![host("a"), host("b")], |host| {
            if host.name == "b" {
                return Err(CliError::new("no"));
            }
            let remote = remote("exec sleep 1000")?;
            first = Some(remote.child.id());
            Ok(remote)
        });
        assert!(started.is_err());
        let first = first.expect("it was started");
        assert!(!Path::new(&format!("/proc/{first}")).exists());
    }

    #[test]
    fn the_last_lines_are_kept_and_nothing_is_held_up() {
        let mut remote = remote("seq 100000 >&2; echo last; exit 3").expect("a shell");
        let status = loop {
            let end = remote.child.try_wait().expect("a child");
            remote.drain();
            match end {
                Some(status) => break status,
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        assert_eq!(status.code(), Some(3));
        assert!(
            remote
                .last_words()
                .ends_with("\n    99999\n    100000\n    last"),
            "{}",
            remote.last_words()
        );
        assert!(!report_end("h", Ok(status), ""));
    }
}
