//! Runs external commands with a time limit, each in a process group that ends with the command.
//!
//! The id of a group may be reused once its leader has been reaped. This module therefore waits for
//! the leader to exit without reaping it, then kills the group, and only then reaps the leader.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// How long processes that have left the group may keep the command's output streams open after the
/// command has ended.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// How often to check whether a command has ended, in case a signal was missed.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Limits of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// How long the command may run before it is killed.
    pub(crate) time: Duration,
    /// The maximum size of the output that is kept per stream, in bytes.
    pub(crate) output_bytes: u64,
}

/// The result of a command that ended by itself.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// The reason why a command did not end by itself.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// The command cannot be started.
    #[error("it cannot be started")]
    Start(#[source] io::Error),
    /// The command was killed after this time.
    #[error("no answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// The system lost track of the command.
    #[error("it was lost")]
    Wait(#[source] io::Error),
}

/// Runs a command in a new process group, with `input` on standard input. The whole group is killed
/// when the command has ended, the time is up, or the future is dropped.
pub(crate) async fn run(
    mut command: Command,
    input: &[u8],
    limits: Limits,
) -> Result<CommandOutput, RunError> {
    let stdin = if input.is_empty() {
        Stdio::null()
    } else {
        Stdio::piped()
    };
    let child = command
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(RunError::Start)?;
    let mut group = Group::new(child);
    let (stdin, out, err) = (
        group.child.stdin.take(),
        group.child.stdout.take(),
        group.child.stderr.take(),
    );
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let (ended, is_ended) = oneshot::channel::<()>();
    let talk = async {
        let all = async {
            tokio::join!(
                tell(stdin, input),
                read(out, limits.output_bytes, &mut stdout),
                read(err, limits.output_bytes, &mut stderr),
            )
        };
        let too_long = async {
            // No value is ever sent. The wait ends when the command ends and drops the sender.
            let _ = is_ended.await;
            tokio::time::sleep(DRAIN_TIMEOUT).await;
        };
        tokio::select! {
            _ = all => {}
            () = too_long => {}
        }
    };
    let wait = async {
        let found = tokio::time::timeout(limits.time, group.leader_ended()).await;
        let status = group.end().await;
        drop(ended);
        match found {
            Err(_) => Err(RunError::Timeout(limits.time)),
            Ok(Err(error)) => Err(RunError::Wait(error)),
            Ok(Ok(())) => status.map_err(RunError::Wait),
        }
    };
    let ((), status) = tokio::join!(talk, wait);
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(CommandOutput {
        status: status?,
        stdout: text(stdout),
        stderr: text(stderr),
    })
}

async fn tell(stdin: Option<ChildStdin>, input: &[u8]) {
    if let Some(mut stdin) = stdin {
        // The program may not read its input.
        let _ = stdin.write_all(input).await;
    }
}

async fn read(stream: Option<impl AsyncRead + Unpin>, bytes_max: u64, bytes: &mut Vec<u8>) {
    if let Some(stream) = stream {
        let mut first = stream.take(bytes_max);
        // Output before an error is kept. The rest is read so that the program does not block.
        let _ = first.read_to_end(bytes).await;
        let _ = tokio::io::copy(&mut first.into_inner(), &mut tokio::io::sink()).await;
    }
}

/// A process and its process group.
struct Group {
    child: Child,
    /// `None` if the leader has been reaped or is unknown to the system.
    leader: Option<Pid>,
}

impl Group {
    fn new(child: Child) -> Self {
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
        Self {
            child,
            leader: pid.and_then(Pid::from_raw),
        }
    }

    /// Returns when the leader has ended, without reaping it.
    async fn leader_ended(&mut self) -> io::Result<()> {
        // The signal handler is registered before the first check, so that no exit is missed.
        let mut ends = signal(SignalKind::child())?;
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        while let Some(leader) = self.leader {
            match rustix::process::waitid(WaitId::Pid(leader), options) {
                Ok(Some(_)) => break,
                Ok(None) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => {
                    // The leader was reaped elsewhere.
                    self.leader = None;
                    return Err(error.into());
                }
            }
            // A signal and a timeout both lead to the next check.
            let _ = tokio::time::timeout(LOOK_INTERVAL, ends.recv()).await;
        }
        Ok(())
    }

    /// Kills the rest of the group, then reaps the leader.
    async fn end(&mut self) -> io::Result<ExitStatus> {
        self.kill();
        let status = self.child.wait().await;
        self.leader = None;
        status
    }

    fn kill(&self) {
        if let Some(leader) = self.leader {
            // The group may have no processes left.
            let _ = rustix::process::kill_process_group(leader, Signal::KILL);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The leader is reaped only when `child` is dropped.
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const LIMITS: Limits = Limits {
        time: Duration::from_secs(60),
        output_bytes: 1 << 20,
    };

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    /// Waits until a process is gone or a zombie, because its new parent may reap it late.
    async fn assert_ends(pid: &str) {
        let path = Path::new("/proc").join(pid.trim()).join("stat");
        let until = tokio::time::Instant::now() + Duration::from_secs(60);
        while let Ok(stat) = std::fs::read_to_string(&path) {
            if stat.contains(") Z ") {
                return;
            }
            assert!(tokio::time::Instant::now() < until, "it lives: {stat}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn a_command_reads_and_is_read() {
        let input = vec![b'x'; 300_000];
        let ran = run(shell("wc -c; echo no >&2; exit 3"), &input, LIMITS).await;
        let ran = ran.expect("it runs");
        assert_eq!(ran.status.code(), Some(3));
        assert_eq!((ran.stdout.trim(), ran.stderr.trim()), ("300000", "no"));
    }

    #[tokio::test]
    async fn who_does_not_read_is_not_made_to() {
        let input = vec![b'x'; 300_000];
        let ran = run(shell("exit 0"), &input, LIMITS).await.expect("it runs");
        assert!(ran.status.success());
    }

    #[tokio::test]
    async fn what_a_command_leaves_ends_with_it() {
        let ran = run(shell("sleep 1000 & echo $!"), &[], LIMITS).await;
        assert_ends(&ran.expect("it runs").stdout).await;
    }

    #[tokio::test]
    async fn the_leader_is_not_reaped_before_its_group_is_killed() {
        let child = shell("exit 0").process_group(0).spawn().expect("it runs");
        let mut group = Group::new(child);
        group.leader_ended().await.expect("it is ours");
        let leader = group.leader.expect("not reaped").as_raw_nonzero();
        let stat = std::fs::read_to_string(format!("/proc/{leader}/stat")).expect("its number");
        assert!(stat.contains(") Z "), "{stat}");
        assert!(group.end().await.expect("it is ours").success());
        assert!(group.leader.is_none());
    }

    #[tokio::test]
    async fn a_slow_command_is_killed_with_all_of_its_group() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut command = shell("sleep 1000 & echo $! > child; sleep 1000");
        command.current_dir(dir.path());
        let limits = Limits {
            time: Duration::from_millis(500),
            ..LIMITS
        };
        let ran = run(command, &[], limits).await;
        assert!(matches!(ran, Err(RunError::Timeout(_))), "{ran:?}");
        let child = std::fs::read_to_string(dir.path().join("child")).expect("it was started");
        assert_ends(&child).await;
    }

    #[tokio::test]
    async fn a_command_for_which_nobody_waits_is_killed() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("child");
        let mut command = shell("sleep 1000 & echo $! > .child; mv .child child; wait");
        command.current_dir(dir.path());
        let running = run(command, &[], LIMITS);
        let is_there = async {
            while !path.exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            ran = running => panic!("it ended: {ran:?}"),
            () = is_there => {}
        }
        assert_ends(&std::fs::read_to_string(&path).expect("its child")).await;
    }

    #[tokio::test]
    async fn who_left_the_group_holds_nobody_up() {
        let script = "setsid sh -c 'echo $$; exec sleep 1000' & echo begun; while ! read x < pid; do :; done";
        let dir = tempfile::tempdir().expect("a directory");
        let script = script.replace("echo $$;", "echo $$ > .pid; mv .pid pid;");
        let mut command = shell(&format!("exec 2>/dev/null; {script}"));
        command.current_dir(dir.path());
        let ran = run(command, &[], LIMITS).await.expect("it runs");
        assert_eq!(ran.stdout, "begun\n", "what was read counts");
        let pid = std::fs::read_to_string(dir.path().join("pid")).expect("its number");
        let pid = pid
            .trim()
            .parse()
            .ok()
            .and_then(Pid::from_raw)
            .expect("a number");
        rustix::process::kill_process(pid, Signal::KILL).expect("it lives");
    }

    #[tokio::test]
    async fn who_writes_much_may_end() {
        let limits = Limits {
            output_bytes: 10,
            ..LIMITS
        };
        let ran = run(
            shell("head -c 300000 /dev/zero | tr '\\0' x; exit 4"),
            &[],
            limits,
        )
        .await;
        let ran = ran.expect("it runs");
        assert_eq!((ran.status.code(), ran.stdout.len()), (Some(4), 10));
    }

    #[tokio::test]
    async fn a_command_that_cannot_be_started_is_an_error() {
        let ran = run(Command::new("/no/such/program"), &[], LIMITS).await;
        assert!(matches!(ran, Err(RunError::Start(_))), "{ran:?}");
    }
}
