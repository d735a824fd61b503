//! Tests how a task becomes a plan, and how its events are translated.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use hq_core::id::{InstanceId, JobId};
use hq_core::resource::amount::Amount;
use hq_core::resource::descriptor::{ResourceDescriptor, ResourceItem, ResourceKind};
use hq_core::resource::request::{Policy, RequestVariants, ResourceEntry, ResourceRequest};
use hq_core::template::{ByteText, Entries, TaskTemplate};
use hq_core::testing::template;
use hq_core::worker_state::{InstanceKey, WorkTemplate};
use hq_spawn::EnvBlock;

use super::amounts::memory_of;
use super::*;

fn pools() -> PoolSet {
    let item = |name: &str, kind| ResourceItem {
        name: name.into(),
        kind,
    };
    let list =
        |names: &[&str]| ResourceKind::List(names.iter().map(|name| (*name).into()).collect());
    let items = vec![
        item("cpus", ResourceKind::Range { start: 0, end: 7 }),
        item("gpus/nvidia", list(&["GPU-a", "GPU-b"])),
        item("gpus/amd", list(&["3"])),
        item("mem", ResourceKind::Sum(Amount::whole(100))),
    ];
    PoolSet::new(&ResourceDescriptor::new(items, Vec::new()).expect("valid"))
}

fn request(entries: &[(&str, Policy, &str)]) -> ResourceRequest {
    let entries = entries.iter().map(|(name, policy, amount)| ResourceEntry {
        resource: (*name).into(),
        policy: *policy,
        amount: Amount::parse(amount).expect("valid"),
    });
    ResourceRequest {
        entries: entries.collect(),
        ..ResourceRequest::cpus(1)
    }
}

fn env_vars(pairs: &[(&str, &str)]) -> Vec<(ByteText, ByteText)> {
    pairs
        .iter()
        .map(|(name, value)| (name.as_bytes().into(), value.as_bytes().into()))
        .collect()
}

/// The environment of a task.
struct TaskEnvironment(Option<(EnvBlock, TaskEnv)>);

impl TaskEnvironment {
    /// Returns the task's variables for variant `variant` of `requests`.
    fn new(task: TaskTemplate, requests: Vec<ResourceRequest>, variant: u32) -> Self {
        let mut pools = pools();
        let requests = RequestVariants::new(requests).expect("valid");
        let chosen = &requests.as_slice()[variant as usize];
        let grant = pools
            .take(&pools.compile(chosen).expect("possible"))
            .expect("free");
        let work = Arc::new(WorkTemplate {
            id: TemplateId(1),
            job: JobId(12),
            job_name: "job".into(),
            submit_dir: Box::from(*b"/submit"),
            stream_dir: None,
            task: Arc::new(TaskTemplate { requests, ..task }),
        });
        let surroundings = BaseEnvironment {
            env: EnvBlock::empty()
                .overlay([
                    ("OMP_NUM_THREADS".into(), "99".into()),
                    ("HOME".into(), "/h".into()),
                ])
                .expect("valid"),
            hq_path: "/opt/hq".into(),
            server_uid: "uid".into(),
        };
        let compiled = CompiledTemplate::new(&work, &surroundings, &pools).expect("valid");
        let launch = LaunchTask {
            is_one_of_many: false,
            token: LaunchToken(1),
            lane: LaunchToken(1),
            template: work,
            key: InstanceKey::new(JobId(12), 7, InstanceId(2)),
            variant,
            grant: Arc::new(grant),
            entries: Entries::new(*b"a\xffb", [3]).map(|entries| (entries, 0)),
            nodes: Arc::default(),
        };
        Self(compiled.environment(&launch, &pools).expect("valid"))
    }

    fn get(&self, name: &str) -> Option<&[u8]> {
        let (block, own) = self.0.as_ref()?;
        let name = OsStr::new(name);
        own.get(name)
            .or_else(|| block.get(name))
            .map(OsStrExt::as_bytes)
    }

    #[track_caller]
    fn check(&self, expected: &[(&str, &str)]) {
        for (name, value) in expected {
            let found = self.get(name).map(String::from_utf8_lossy);
            assert_eq!(found.as_deref(), Some(*value), "{name}");
        }
    }

    #[track_caller]
    fn check_unset(&self, names: &[&str]) {
        for name in names {
            assert_eq!(self.get(name), None, "{name}");
        }
    }
}

#[test]
fn plain_task_gets_the_documented_variables() {
    let user = env_vars(&[("A", "1"), ("HQ_JOB_ID", "mine"), ("HQ_TASK_ID", "mine")]);
    let task = TaskTemplate {
        env: user,
        ..template(&["x"])
    };
    let env = TaskEnvironment::new(task, vec![request(&[("cpus", Policy::Compact, "2")])], 0);
    env.check(&[
        ("HOME", "/h"),
        ("A", "1"),
        ("HQ", "/opt/hq"),
        ("HQ_JOB_ID", "12"),
        ("HQ_TASK_ID", "7"),
        ("HQ_INSTANCE_ID", "2"),
        ("HQ_SUBMIT_DIR", "/submit"),
        ("HQ_CPUS", "0,1"),
        ("HQ_RESOURCE_REQUEST_cpus", "2 compact"),
        ("HQ_RESOURCE_VALUES_cpus", "0,1"),
        ("OMP_NUM_THREADS", "2"),
    ]);
    env.check_unset(&[
        "HQ_PIN",
        "HQ_RESOURCE_VARIANT",
        "HQ_TASK_DIR",
        "CUDA_VISIBLE_DEVICES",
    ]);
    assert_eq!(
        env.get("HQ_ENTRY"),
        Some(&b"a\xffb"[..]),
        "bytes pass unchanged"
    );
}

#[test]
fn resources_are_told_by_name() {
    let all = request(&[
        ("cpus", Policy::Compact, "0.5"),
        ("gpus/nvidia", Policy::Compact, "1.5"),
        ("gpus/amd", Policy::All, "1"),
        ("mem", Policy::Compact, "12.5"),
    ]);
    let env = TaskEnvironment::new(template(&["x"]), vec![all], 0);
    env.check(&[
        ("HQ_RESOURCE_REQUEST_gpus_nvidia", "1.5 compact"),
        ("HQ_RESOURCE_VALUES_gpus_nvidia", "GPU-a,GPU-b"),
        ("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b"),
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
        ("HQ_RESOURCE_REQUEST_gpus_amd", "all"),
        ("ROCR_VISIBLE_DEVICES", "3"),
        ("HQ_RESOURCE_REQUEST_mem", "12.5 compact"),
        ("HQ_CPUS", "0"),
        // The number of cpus is not whole, so the worker's value is inherited.
        ("OMP_NUM_THREADS", "99"),
    ]);
    env.check_unset(&["HQ_RESOURCE_VALUES_mem"]);
}

#[test]
fn variant_is_told_only_if_there_is_a_choice() {
    let variants = || {
        vec![
            request(&[("gpus/amd", Policy::Compact, "1")]),
            request(&[("cpus", Policy::All, "1")]),
        ]
    };
    let env = TaskEnvironment::new(template(&["x"]), variants(), 1);
    env.check(&[("HQ_RESOURCE_VARIANT", "1"), ("OMP_NUM_THREADS", "8")]);
    let env = TaskEnvironment::new(template(&["x"]), variants(), 0);
    env.check(&[("HQ_RESOURCE_VARIANT", "0"), ("ROCR_VISIBLE_DEVICES", "3")]);
    env.check_unset(&["HQ_CPUS"]);
}

#[test]
fn open_mp_variables_of_the_user_win() {
    let cpus = || vec![request(&[("cpus", Policy::Compact, "2")])];
    let pinned = TaskTemplate {
        pin: PinMode::OpenMp,
        ..template(&["x"])
    };
    TaskEnvironment::new(pinned.clone(), cpus(), 0).check(&[
        ("HQ_PIN", "omp"),
        ("OMP_PROC_BIND", "close"),
        ("OMP_PLACES", "{0,1}"),
    ]);
    let set = [
        ("OMP_NUM_THREADS", "5"),
        ("OMP_PLACES", "cores"),
        ("OMP_PROC_BIND", "spread"),
    ];
    let user = TaskTemplate {
        env: env_vars(&set),
        ..pinned
    };
    TaskEnvironment::new(user, cpus(), 0).check(&set);
    let pinned = TaskTemplate {
        pin: PinMode::Taskset,
        ..template(&["x"])
    };
    let env = TaskEnvironment::new(pinned, cpus(), 0);
    env.check(&[("HQ_PIN", "taskset")]);
    env.check_unset(&["OMP_PLACES"]);
}

#[test]
fn affinity_needs_numbered_cpus() {
    assert!(affinity(&["0", "3"]).is_ok_and(|set| set.contains(3) && !set.contains(1)));
    let none = affinity(&[]).expect_err("no cpus");
    assert_eq!(&*none, "Pinning failed, no CPU ids allocated for task");
    assert!(affinity(&["a"]).is_err());
}

/// Returns a launcher with task directories below `dirs`, and a task to launch there.
fn launcher_with(task: TaskTemplate, dirs: &Path) -> (TaskLauncher, LaunchTask, PoolSet) {
    let launcher = TaskLauncher::start(Some(1), "/opt/hq".into(), dirs.into(), "host", None)
        .expect("it starts");
    let mut pools = pools();
    let request = pools.compile(&task.requests.as_slice()[0]);
    let grant = pools.take(&request.expect("possible")).expect("free");
    let task = LaunchTask {
        is_one_of_many: false,
        token: LaunchToken(1),
        lane: LaunchToken(1),
        template: Arc::new(WorkTemplate {
            id: TemplateId(1),
            job: JobId(12),
            job_name: "job".into(),
            submit_dir: Box::from(*b"/"),
            stream_dir: None,
            task: Arc::new(task),
        }),
        key: InstanceKey::new(JobId(12), 7, InstanceId(2)),
        variant: 0,
        grant: Arc::new(grant),
        entries: None,
        nodes: Arc::default(),
    };
    (launcher, task, pools)
}

#[tokio::test]
async fn a_task_is_limited_to_the_memory_that_it_asked_for_if_it_did() {
    let dirs = tempfile::tempdir().expect("temporary directory");
    let limit = |name: &str, amount: &str| {
        let request = request(&[(name, Policy::Compact, amount)]);
        let requests = RequestVariants::new(vec![request]).expect("valid");
        let task = TaskTemplate {
            requests,
            ..template(&["x"])
        };
        let (_launcher, task, pools) = launcher_with(task, dirs.path());
        memory_of(&task, &pools)
    };
    assert_eq!(limit("mem", "1.5"), Some(1_536), "KiB");
    assert_eq!(limit("cpus", "1"), None);
}

#[tokio::test]
async fn what_a_task_used_is_shown_beside_what_it_asked_for() {
    let dirs = tempfile::tempdir().expect("temporary directory");
    let entries = [
        ("mem", Policy::Compact, "1.5"),
        ("cpus", Policy::Compact, "2"),
    ];
    let requests = RequestVariants::new(vec![request(&entries)]).expect("valid");
    let task = TaskTemplate {
        requests,
        ..template(&["x"])
    };
    let (_launcher, task, pools) = launcher_with(task, dirs.path());
    let asked = given_to(&task, &pools, true).asked;
    assert_eq!((asked.memory_kib, asked.cpu_units), (1_536, 20_000));
    assert!(asked.is_memory_limit);
}

#[tokio::test]
async fn a_task_that_uses_more_memory_than_it_asked_for_is_ended_if_that_is_enforced() {
    let dirs = tempfile::tempdir().expect("temporary directory");
    let script = "x=$(head -c 30M /dev/zero | tr '\\0' x); sleep 1000; echo $x";
    let entries = [
        ("mem", Policy::Compact, "8"),
        ("cpus", Policy::Compact, "1"),
    ];
    let requests = RequestVariants::new(vec![request(&entries)]).expect("valid");
    let task = TaskTemplate {
        requests,
        cwd: Box::from(*b"/"),
        ..template(&["bash", "-c", script])
    };
    let (mut launcher, task, pools) = launcher_with(task, dirs.path());
    launcher.enforce_memory().expect("it can be watched");
    launcher.launch(vec![task], &pools);
    let ended = end(launcher, |_| {}).await;
    let LaunchEvent::Exited { status, .. } = ended else {
        panic!("{ended:?}");
    };
    assert_eq!(status, ExitStatus::ExceededMemory);
}

/// Returns the event of a task that exits with this code.
fn exited(code: i32, leaked: u32) -> Event {
    Event::Exited {
        token: Token(1),
        status: hq_spawn::ExitStatus::Code(code),
        usage: hq_spawn::ResourceUsage::default(),
        started: hq_spawn::MonotonicNs(1),
        ended: hq_spawn::MonotonicNs(2),
        leaked,
    }
}

/// Returns whether the worker warns about processes that a task left behind.
fn is_blamed(is_ending: bool) -> bool {
    let (mut launcher, task, pools) = launcher_with(template(&["true"]), Path::new("/nowhere"));
    let (_, running) = launcher.prepare(&task, &pools).expect("possible");
    launcher.running.insert(task.token, running);
    launcher
        .translate(exited(0, 3), |_| is_ending)
        .expect("an end");
    !launcher.leaking.is_empty()
}

#[tokio::test]
async fn only_a_task_that_ends_by_itself_is_blamed_for_what_it_leaves_behind() {
    assert!(is_blamed(false));
    assert!(!is_blamed(true));
}

/// Returns whether output with the `if-finished` removal option still exists after the task has
/// ended.
async fn is_output_kept(code: i32, is_ending: bool) -> bool {
    let dir = tempfile::tempdir().expect("directory");
    let output = dir.path().join("out");
    std::fs::write(&output, "words").expect("a file");
    let mut task = template(&["true"]);
    task.stdout = StdioSpec::File {
        path: output.as_os_str().as_bytes().into(),
        remove_if_finished: true,
    };
    let (mut launcher, task, pools) = launcher_with(task, dir.path());
    let (_, running) = launcher.prepare(&task, &pools).expect("possible");
    launcher.running.insert(task.token, running);
    let end = launcher.translate(exited(code, 0), |_| is_ending);
    let (event, has_exited_well) = end.expect("an end");
    let mut events = Vec::new();
    launcher.conclude(event, has_exited_well, |_| is_ending, &mut events);
    while events.is_empty() {
        events = launcher.news().await;
    }
    output.exists()
}

#[tokio::test]
async fn output_stays_unless_the_task_ended_well_and_by_itself() {
    assert!(!is_output_kept(0, false).await);
    assert!(is_output_kept(1, false).await, "it failed");
    assert!(is_output_kept(0, true).await, "a time limit ended it");
}

/// Starts a real task and returns its end. `started` is called once the task runs.
async fn end_of(
    task: TaskTemplate,
    dirs: &Path,
    started: impl Fn(&mut TaskLauncher),
) -> LaunchEvent {
    let (mut launcher, task, pools) = launcher_with(task, dirs);
    launcher.launch(vec![task], &pools);
    end(launcher, started).await
}

/// Returns the end of a launcher's only task.
async fn end(mut launcher: TaskLauncher, started: impl Fn(&mut TaskLauncher)) -> LaunchEvent {
    loop {
        let mut events = launcher.news().await;
        launcher.collect(&mut events, |_| false);
        for event in events {
            match event {
                LaunchEvent::Started { .. } => started(&mut launcher),
                LaunchEvent::Failed { .. } | LaunchEvent::Exited { .. } => return event,
            }
        }
    }
}

/// Returns the error message of a task that cannot be started in this directory.
async fn failure_of(args: &[&str], dir: &Path) -> String {
    let mut task = template(args);
    task.cwd = dir.as_os_str().as_bytes().into();
    let event = end_of(task, dir, |_| {}).await;
    let LaunchEvent::Failed {
        failure: LaunchFailure::Permanent(text),
        ..
    } = event
    else {
        panic!("it cannot be started: {event:?}");
    };
    text.into()
}

#[tokio::test]
async fn what_cannot_be_executed_is_told_with_what_was_probably_meant() {
    let dir = tempfile::tempdir().expect("directory");
    let dir = dir.path();
    std::fs::write(dir.join("tool"), "#!/bin/sh\n").expect("a file");
    std::fs::write(dir.join("script.sh"), "true\n").expect("a file");
    let missing = failure_of(&["no-such-tool"], dir).await;
    assert!(
        missing.contains("(`no-such-tool`) was not found"),
        "{missing}"
    );
    assert!(!missing.contains("instead?"), "{missing}");
    let here = failure_of(&["tool"], dir).await;
    assert!(
        here.contains("maybe you have meant `./tool` instead?"),
        "{here}"
    );
    let script = failure_of(&["./script.sh"], dir).await;
    assert!(
        script.contains("(`./script.sh`) is not executable"),
        "{script}"
    );
    let other = failure_of(&["./tool"], dir).await;
    assert!(
        !other.contains("shebang"),
        "it is no script by its name: {other}"
    );
    let nowhere = failure_of(&["true"], Path::new("/dev/null/x")).await;
    assert!(
        nowhere.starts_with("Cannot ") && nowhere.contains("/dev/null"),
        "{nowhere}"
    );
}

/// Returns the engine's error for a task that cannot be started.
async fn error_of(launcher: &mut TaskLauncher) -> SpawnError {
    let mut drained = Vec::new();
    loop {
        launcher.engine.drain_events(&mut drained);
        match drained.pop() {
            Some(Event::Failed { error, .. }) => return error,
            Some(other) => panic!("it cannot be started: {other:?}"),
            None => drop(launcher.news().await),
        }
    }
}

#[tokio::test]
async fn a_program_that_stays_open_for_writing_fails_its_task_in_the_end() {
    let dir = tempfile::tempdir().expect("directory");
    let (mut launcher, task, pools) = launcher_with(template(&["no-such-tool"]), dir.path());
    let (token, template) = (task.token, task.template.id);
    launcher.launch(vec![task], &pools);
    let mut error = error_of(&mut launcher).await;
    // The error is made up: with a file that is open for writing, some kernels would still execute
    // it.
    error.errno = rustix::io::Errno::TXTBSY.raw_os_error();
    let first = launcher.failure_of(token, &error);
    assert_eq!(first, LaunchFailure::Transient, "it may soon be whole");
    launcher.busy.forget(template);
    for seconds in [61, 30] {
        let at = Instant::now() - Duration::from_secs(seconds);
        launcher.busy.found(template, "no-such-tool", at);
    }
    let last = launcher.failure_of(token, &error);
    assert!(matches!(last, LaunchFailure::Permanent(_)), "{last:?}");
}

#[tokio::test]
async fn a_task_ends_with_its_code_or_by_the_signal_that_it_was_sent() {
    let nowhere = Path::new("/nowhere");
    let mut exits = template(&["bash", "-c", "exit 3"]);
    exits.cwd = Box::from(*b"/");
    let event = end_of(exits, nowhere, |_| {}).await;
    let LaunchEvent::Exited { status, .. } = event else {
        panic!("{event:?}");
    };
    assert_eq!(status, ExitStatus::Code(3));
    let mut sleeps = template(&["sleep", "1000"]);
    sleeps.cwd = Box::from(*b"/");
    let event = end_of(sleeps, nowhere, |launcher| {
        launcher.terminate(LaunchToken(1))
    })
    .await;
    let LaunchEvent::Exited { status, .. } = event else {
        panic!("{event:?}");
    };
    assert_eq!(
        status,
        ExitStatus::Signal(hq_core::retry::StopSpec::default().signal)
    );
}

#[tokio::test]
async fn a_task_whose_output_cannot_be_written_any_more_is_ended() {
    let mut sleeps = template(&["sleep", "1000"]);
    sleeps.cwd = Box::from(*b"/");
    let ended = end_of(sleeps, Path::new("/nowhere"), |launcher| {
        launcher.streaming.break_stream(LaunchToken(1));
        launcher.collect(&mut Vec::new(), |_| false);
    });
    let ended = tokio::time::timeout(Duration::from_secs(120), ended).await;
    let event = ended.expect("it does not go on");
    let LaunchEvent::Exited { status, .. } = event else {
        panic!("{event:?}");
    };
    assert_eq!(
        status,
        ExitStatus::Signal(hq_core::retry::StopSpec::default().signal)
    );
}

#[tokio::test]
async fn the_last_words_of_a_failed_task_are_told_and_its_directory_is_gone() {
    let dir = tempfile::tempdir().expect("directory");
    let mut task = template(&["bash", "-c", "echo -n boom >$HQ_ERROR_FILENAME; exit 1"]);
    task.cwd = Box::from(*b"/");
    task.task_dir = true;
    let event = end_of(task, dir.path(), |_| {}).await;
    let LaunchEvent::Exited { message, .. } = event else {
        panic!("{event:?}");
    };
    assert_eq!(message.as_deref(), Some("boom"));
    let left = std::fs::read_dir(dir.path()).expect("it is there").count();
    assert_eq!(left, 0);
}

#[tokio::test]
async fn what_the_attempt_before_wrote_is_kept_as_soon_as_a_task_may_be_tried_again() {
    for (limit, is_kept) in [(0, false), (1, true)] {
        let dir = tempfile::tempdir().expect("directory");
        let output = dir.path().join("out");
        std::fs::write(&output, "before").expect("a file");
        let mut task = template(&["true"]);
        task.cwd = Box::from(*b"/");
        task.stdout = StdioSpec::File {
            path: output.as_os_str().as_bytes().into(),
            remove_if_finished: false,
        };
        task.retry.limit = limit;
        let event = end_of(task, dir.path(), |_| {}).await;
        assert!(matches!(event, LaunchEvent::Exited { .. }), "{event:?}");
        let kept = std::fs::read_to_string(dir.path().join("out.attempt-1"));
        assert_eq!(kept.is_ok_and(|kept| kept == "before"), is_kept);
    }
}

/// Creates a call whose interpreter is a program that never answers.
fn call(args: &[&str]) -> TaskTemplate {
    let mut task = template(args);
    task.cwd = Box::from(*b"/");
    task.is_call = true;
    task
}

/// Far longer than any end takes.
const IN_TIME: Duration = Duration::from_secs(120);

#[tokio::test]
async fn a_call_without_an_interpreter_fails() {
    let dir = tempfile::tempdir().expect("directory");
    let ended = end_of(call(&["/no/such/interpreter"]), dir.path(), |_| {});
    let event = tokio::time::timeout(IN_TIME, ended).await;
    let event = event.expect("it is told of");
    assert!(matches!(event, LaunchEvent::Failed { .. }), "{event:?}");
}

#[tokio::test]
async fn an_interpreter_that_uses_too_much_memory_is_killed() {
    let dir = tempfile::tempdir().expect("directory");
    let sleeps = call(&["bash", "-c", "sleep 1000"]);
    let ended = end_of(sleeps, dir.path(), |launcher| {
        let next = launcher.calls.next_id();
        launcher.end_interpreter_for_memory(MemoryOveruse {
            token: LaunchToken(next - 1),
            used: 2,
            limit: 1,
        });
    });
    let event = tokio::time::timeout(IN_TIME, ended).await;
    event.expect("it is killed");
}

#[tokio::test]
async fn nothing_of_a_template_is_left_for_another_one_of_its_number() {
    let (mut launcher, task, _) = launcher_with(template(&["true"]), Path::new("/nowhere"));
    let (id, start) = (task.template.id, Instant::now());
    let is_hopeless = |launcher: &mut TaskLauncher, seconds| {
        let now = start + Duration::from_secs(seconds);
        launcher.busy.found(id, "program", now)
    };
    assert!(!is_hopeless(&mut launcher, 0));
    assert!(!is_hopeless(&mut launcher, 50));
    launcher.drop_template(id);
    assert!(!is_hopeless(&mut launcher, 100), "it was not busy before");
    assert!(!is_hopeless(&mut launcher, 150));
    assert!(is_hopeless(&mut launcher, 160));
}
