//! Tests of the whole worker against a scripted server, with real processes.

mod ending;
mod fake_server;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use hq_core::id::{JobId, TaskId, TaskKey};
use hq_core::outcome::{LostReason, Outcome};
use hq_core::range::IdArray;
use hq_core::resource::request::{RequestVariants, ResourceRequest};
use hq_core::template::{Entries, PinMode, StdioSpec, TaskTemplate};
use hq_core::worker_config::{Allocation, BatchSystem, OnServerLost, WorkerConfig};
use hq_core::worker_state::Interrupt;
use hq_protocol::convert::NOTIFICATION_MAX;
use tokio::sync::oneshot;

use super::{LAST_WORDS_BUFFER_MAX, WorkerEnd};
use crate::notify::{Notification, NotifySocket};
use fake_server::{FakeServer, bash, file, wait_until};

/// Longer than any test may take.
const LONG: &str = "sleep 1000";

fn message(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Message(text) => text,
        Outcome::Finished
        | Outcome::ExitCode(_)
        | Outcome::Signal(_)
        | Outcome::TimeLimit
        | Outcome::OutOfMemory(_)
        | Outcome::Killed => panic!("expected a message, found {outcome:?}"),
    }
}

#[tokio::test]
async fn array_writes_what_each_task_printed() {
    let mut server = FakeServer::start(|_| ()).await;
    let task = TaskTemplate {
        cwd: Box::from(*b"d/%{TASK_ID}"),
        stdout: file("%{CWD}/job-%{JOB_ID}/%{TASK_ID}.%{INSTANCE_ID}.stdout"),
        stderr: file("err-%{SERVER_UID}"),
        ..bash(r#"echo "$HQ_JOB_ID $HQ_TASK_ID $HQ_ENTRY $PWD"; echo oops >&2; echo $HQ > hq"#)
    };
    let entries = (0..40).map(|i| format!("entry {i}")).collect::<Vec<_>>();
    let lengths: Vec<u64> = entries.iter().map(|entry| entry.len() as u64).collect();
    let entries = Entries::new(entries.concat().into_bytes(), lengths);
    server
        .assign(task, IdArray::consecutive(100, 40).expect("valid"), entries)
        .await;
    server.ended(40).await;
    let root = server.dir().canonicalize().expect("exists");
    for i in 0..40 {
        let id = 100 + i;
        assert_eq!(server.outcome(id), Outcome::Finished);
        let cwd = root.join(format!("d/{id}"));
        let stdout = fs::read_to_string(cwd.join(format!("job-1/{id}.0.stdout"))).expect("file");
        assert_eq!(stdout, format!("1 {id} entry {i} {}\n", cwd.display()));
        let read = |name: &str| fs::read_to_string(cwd.join(name)).expect("file");
        assert_eq!(
            (read("err-FaKeId").as_str(), read("hq").as_str()),
            ("oops\n", "/opt/hq\n")
        );
    }
    assert_eq!(server.stop().await, WorkerEnd::Stopped);
}

#[tokio::test]
async fn exit_status_signal_and_usage_are_reported() {
    let mut server = FakeServer::start(|_| ()).await;
    server.assign_one(1, bash("exit 3")).await;
    server.assign_one(2, bash("kill -9 $$")).await;
    server.assign_one(3, bash("exit 0")).await;
    server.ended(3).await;
    assert_eq!(server.outcome(1), Outcome::ExitCode(3));
    assert_eq!(server.outcome(2), Outcome::Signal(9));
    assert_eq!(server.outcome(3), Outcome::Finished);
    assert!(server.row(3).usage.max_rss_kib > 0);
    assert!(server.row(3).run > Duration::ZERO);
}

/// The worker was blocked for a while, so it receives both at the same time.
#[tokio::test]
async fn what_a_task_said_is_told_before_its_end() {
    let (tell, socket) = NotifySocket::fed_by_test();
    let mut server = FakeServer::start_with(|_| (), Some(socket)).await;
    let (count, mut senders) = (20, Vec::new());
    for id in 0..count {
        let script = format!("while [ ! -e go-{id} ]; do sleep 0.01; done");
        server.assign_one(id, bash(&script)).await;
        server.started(id as usize + 1).await;
        let task = TaskKey::new(JobId(1), TaskId(id));
        let message = b"hello".to_vec();
        let (taken, is_taken) = oneshot::channel();
        tell.try_send((Notification { task, message }, taken))
            .expect("room");
        senders.push(is_taken);
        fs::write(server.dir().join(format!("go-{id}")), "").expect("writable");
        // The worker shares this thread, so it cannot run before the process is gone.
        let written = Instant::now();
        while server.survivors() > 0 {
            assert!(written.elapsed() < fake_server::PATIENCE, "{id} goes on");
            std::thread::sleep(Duration::from_millis(1));
        }
        server.ended(id as usize + 1).await;
    }
    let expected: Vec<_> = (0..count)
        .flat_map(|id| [(id, true), (id, false)])
        .collect();
    assert_eq!(server.last_words(), expected);
    assert_eq!(server.stop().await, WorkerEnd::Stopped);
}

/// At each end, pending messages are sent up to a bound, and none is lost.
#[tokio::test]
async fn what_tasks_say_does_not_fill_the_memory_while_the_server_takes_nothing() {
    let (tell, socket) = NotifySocket::fed_by_test();
    let mut server = FakeServer::start_with(|_| (), Some(socket)).await;
    let count = 300;
    let ids = IdArray::consecutive(0, count).expect("valid");
    server.assign(bash("echo >> ends"), ids, None).await;
    let has_ended = || fs::read(server.dir().join("ends")).is_ok_and(|it| it.len() == 300);
    let said = Notification {
        task: TaskKey::new(JobId(1), TaskId(0)),
        message: vec![b'x'; NOTIFICATION_MAX],
    };
    let (mut told, mut senders) = (0, Vec::new());
    while !has_ended() {
        while let Ok(room) = tell.try_reserve() {
            let (taken, is_taken) = oneshot::channel();
            room.send((said.clone(), taken));
            senders.push(is_taken);
            told += 1;
        }
        // Allows for messages in the queue and in transit.
        let bytes = told * NOTIFICATION_MAX;
        assert!(bytes < LAST_WORDS_BUFFER_MAX + (1 << 20), "{bytes} bytes");
        tokio::task::yield_now().await;
    }
    server.ended(count as usize).await;
    server.heard(told).await;
    assert_eq!(server.stop().await, WorkerEnd::Stopped);
}

#[tokio::test]
async fn stdin_bytes_reach_every_task() {
    let mut server = FakeServer::start(|_| ()).await;
    let stdin = Some((*b"in\0put").into());
    let task = TaskTemplate {
        stdin,
        stdout: file("%{TASK_ID}.out"),
        ..bash("cat")
    };
    server
        .assign(task, IdArray::consecutive(0, 3).expect("valid"), None)
        .await;
    server.ended(3).await;
    for id in 0..3 {
        let out = fs::read(server.dir().join(format!("{id}.out"))).expect("file");
        assert_eq!(out, b"in\0put");
    }
}

#[tokio::test]
async fn time_limit_ends_the_whole_task() {
    let mut server = FakeServer::start(|_| ()).await;
    let script = format!("echo $$ > pid; trap '' INT; {LONG} & wait");
    let task = TaskTemplate {
        time_limit: Some(Duration::from_millis(300)),
        ..bash(&script)
    };
    server.assign_one(0, task).await;
    server.ended(1).await;
    assert_eq!(server.outcome(0), Outcome::TimeLimit);
    assert!(server.row(0).run >= Duration::from_millis(300));
    server.no_survivors().await;
}

#[tokio::test]
async fn kill_ends_a_running_task_with_its_children() {
    let mut server = FakeServer::start(|_| ()).await;
    server
        .assign_one(0, bash(&format!("{LONG} & echo $! > child; {LONG}")))
        .await;
    let child = server.dir().join("child");
    wait_until("the task has a child", || {
        fs::read_to_string(&child).is_ok_and(|t| t.contains('\n'))
    })
    .await;
    server.kill(&[0, 55]).await;
    server.ended(1).await;
    assert_eq!(server.outcome(0), Outcome::Killed);
    server.no_survivors().await;
}

#[tokio::test]
async fn retract_returns_what_has_not_started() {
    let mut server = FakeServer::start(|config| *config = one_cpu(config)).await;
    server
        .assign(bash(LONG), IdArray::consecutive(0, 4).expect("valid"), None)
        .await;
    server.started(1).await;
    server.retract(&[0, 2, 3]).await;
    assert_eq!(server.retracted(2).await, [2, 3]);
    server.kill(&[0, 1]).await;
    server.ended(2).await;
    assert_eq!(
        (server.outcome(0), server.outcome(1)),
        (Outcome::Killed, Outcome::Killed)
    );
}

#[tokio::test]
async fn program_that_cannot_start_is_explained() {
    let mut server = FakeServer::start(|_| ()).await;
    fs::write(server.dir().join("here"), "x").expect("writable");
    fs::write(server.dir().join("t.sh"), "echo").expect("writable");
    let program = |args: &[&str]| TaskTemplate {
        args: args.iter().map(|arg| arg.as_bytes().into()).collect(),
        ..bash("")
    };
    server
        .assign_one(
            0,
            program(&["no-such-program", "bar", &"x".repeat(100_000)]),
        )
        .await;
    server.assign_one(1, program(&["here"])).await;
    server.assign_one(2, program(&["./t.sh"])).await;
    server.ended(3).await;
    let outcome = server.outcome(0);
    let missing = message(&outcome);
    assert!(
        missing.starts_with("Cannot execute \"no-such-program bar xxx"),
        "{missing}"
    );
    assert!(
        missing.ends_with(
            "bytes left out)\": No such file or directory (os error 2)\n\
             The program that you have tried to execute (`no-such-program`) was not found."
        ),
        "{missing}"
    );
    let here = server.dir().join("here");
    let hint = format!(
        "\nThe file `{}` exists, maybe you have meant `./here` instead?",
        here.display()
    );
    assert!(
        message(&server.outcome(1)).ends_with(&hint),
        "{:?}",
        server.outcome(1)
    );
    assert_eq!(
        message(&server.outcome(2)),
        "Cannot execute \"./t.sh\": Permission denied (os error 13)\n\
         The script that you have tried to execute (`./t.sh`) is not executable.\n\
         Try making it executable or add a shebang line to it."
    );
}

#[tokio::test]
async fn output_that_cannot_be_written_names_the_path() {
    let mut server = FakeServer::start(|_| ()).await;
    fs::write(server.dir().join("file"), "").expect("writable");
    server
        .assign_one(
            0,
            TaskTemplate {
                stdout: file("file/out"),
                ..bash("true")
            },
        )
        .await;
    server
        .assign_one(
            1,
            TaskTemplate {
                stderr: file("/proc/nope/err"),
                ..bash("true")
            },
        )
        .await;
    server
        .assign_one(
            2,
            TaskTemplate {
                stdout: StdioSpec::Stream,
                ..bash("true")
            },
        )
        .await;
    server.ended(3).await;
    let first = server.outcome(0);
    let path = server.dir().join("file/out");
    assert!(
        message(&first).contains(&path.display().to_string()),
        "{first:?}"
    );
    assert!(message(&first).contains("(os error 20)"), "{first:?}");
    assert!(
        message(&server.outcome(1)).contains("/proc/nope"),
        "{:?}",
        server.outcome(1)
    );
    assert!(message(&server.outcome(2)).starts_with("Streaming: "));
}

#[tokio::test]
async fn task_dir_is_private_and_its_error_file_is_the_message() {
    let mut server = FakeServer::start(|_| ()).await;
    let script = r#"echo "$HQ_TASK_DIR" > dir-$HQ_TASK_ID; touch $HQ_TASK_DIR/x
        test $HQ_TASK_ID = 1 && exit 0; printf 'my words' > $HQ_ERROR_FILENAME; exit 5"#;
    let task = TaskTemplate {
        task_dir: true,
        ..bash(script)
    };
    server
        .assign(task, IdArray::consecutive(1, 2).expect("valid"), None)
        .await;
    server.ended(2).await;
    assert_eq!(server.outcome(1), Outcome::Finished);
    assert_eq!(message(&server.outcome(2)), "my words");
    for id in 1..3 {
        let dir = fs::read_to_string(server.dir().join(format!("dir-{id}"))).expect("file");
        assert!(
            dir.starts_with('/') && !fs::exists(dir.trim()).expect("readable"),
            "{dir}"
        );
    }
}

#[tokio::test]
async fn outputs_are_removed_only_when_the_task_finishes() {
    let mut server = FakeServer::start(|_| ()).await;
    let path = Box::from(*b"%{TASK_ID}.out");
    let stdout = StdioSpec::File {
        path,
        remove_if_finished: true,
    };
    let task = TaskTemplate {
        stdout,
        ..bash("echo x; exit $HQ_TASK_ID")
    };
    server
        .assign(task, IdArray::consecutive(0, 2).expect("valid"), None)
        .await;
    server.ended(2).await;
    assert!(!server.dir().join("0.out").exists());
    assert!(server.dir().join("1.out").exists());
}

#[tokio::test]
async fn pinned_task_runs_on_its_cpu_only() {
    let mut server = FakeServer::start(|_| ()).await;
    let script = r#"grep Cpus_allowed_list /proc/self/status | cut -f2; echo "$HQ_CPUS $HQ_PIN""#;
    let pinned = |out: &str| TaskTemplate {
        pin: PinMode::Taskset,
        stdout: file(out),
        ..bash(script)
    };
    server.assign_one(0, pinned("0.out")).await;
    let mut without_cpus = pinned("1.out");
    let request = ResourceRequest {
        entries: Vec::new(),
        ..ResourceRequest::cpus(1)
    };
    without_cpus.requests = RequestVariants::new(vec![request]).expect("valid");
    server.assign_one(1, without_cpus).await;
    server.ended(2).await;
    assert_eq!(server.outcome(0), Outcome::Finished);
    let out = fs::read_to_string(server.dir().join("0.out")).expect("file");
    let cpu = out.lines().next().expect("a line");
    assert_eq!(out, format!("{cpu}\n{cpu} taskset\n"));
    let failed = server.outcome(1);
    assert_eq!(
        message(&failed),
        "Pinning failed, no CPU ids allocated for task"
    );
}

#[tokio::test]
async fn nonsense_assignments_do_not_disturb_others() {
    let mut server = FakeServer::start(|_| ()).await;
    server.assign_unknown_template().await;
    server.kill(&[1, 2, 3]).await;
    server.retract(&[9]).await;
    server.assign_one(4, bash("true")).await;
    server.ended(1).await;
    assert_eq!(server.outcome(4), Outcome::Finished);
}

#[tokio::test]
async fn short_tasks_flow() {
    let count = std::env::var("HQ_TEST_TASKS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(300);
    let mut server = FakeServer::start(|_| ()).await;
    let task = TaskTemplate {
        args: vec![Box::from(*b"/bin/true")],
        ..bash("")
    };
    let (begin, cpu_before) = (Instant::now(), thread_cpu());
    server
        .assign(
            task.clone(),
            IdArray::consecutive(0, count).expect("valid"),
            None,
        )
        .await;
    server.ended(count as usize).await;
    let (span, cpu) = (begin.elapsed(), thread_cpu() - cpu_before);
    let rate = f64::from(count) / span.as_secs_f64();
    // The loop shares its thread with the fake server, so this is an upper bound of its cost.
    println!(
        "{count} tasks in {span:?}: {rate:.0}/s, {:?} of the loop each",
        cpu / count
    );
    let mut latencies = Vec::new();
    for id in count..count + 20 {
        let begin = Instant::now();
        server.assign_one(id, task.clone()).await;
        server.ended(id as usize + 1).await;
        latencies.push(begin.elapsed());
    }
    latencies.sort();
    println!(
        "one task: median {:?}, worst {:?}",
        latencies[10], latencies[19]
    );
}

/// CPU time of this thread, on which both the worker's loop and the fake server run.
fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(
        time.tv_sec.cast_unsigned(),
        u32::try_from(time.tv_nsec).expect("below 10^9"),
    )
}

fn one_cpu(config: &WorkerConfig) -> WorkerConfig {
    let resources = hq_core::resource::descriptor::ResourceDescriptor::cpus(1);
    WorkerConfig {
        resources,
        ..config.clone()
    }
}

#[tokio::test]
async fn unreadable_working_directory_is_a_message() {
    let mut server = FakeServer::start(|_| ()).await;
    fs::write(server.dir().join("plain"), "").expect("writable");
    fs::set_permissions(
        server.dir().join("plain"),
        fs::Permissions::from_mode(0o600),
    )
    .expect("own file");
    server
        .assign_one(
            0,
            TaskTemplate {
                cwd: Box::from(*b"plain"),
                ..bash("true")
            },
        )
        .await;
    server.ended(1).await;
    let outcome = server.outcome(0);
    assert!(
        message(&outcome).contains("plain\": Not a directory (os error 20)"),
        "{outcome:?}"
    );
}
