//! A pool with fake interpreters: the test holds their ends of the sockets.

use std::cell::RefCell;
use std::fs::File;
use std::io::{IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use hq_core::id::{InstanceId, JobId};
use hq_core::job::TemplateId;
use hq_core::outcome::Usage;
use hq_core::resource::descriptor::ResourceDescriptor;
use hq_core::resource::pool::PoolSet;
use hq_core::resource::request::{RequestVariants, ResourceRequest};
use hq_core::template::StdioSpec;
use hq_core::testing::template;
use hq_core::worker_state::WorkTemplate;
use hq_spawn::EnvBlock;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg, send};
use tempfile::TempDir;

use super::super::template::BaseEnvironment;
use super::interpreter::{Ends, Output};
use super::packet::{HAS_PLACE, INLINE_MAX, IS_FILE, PACKET_MAX};
use super::*;

const LANE: LaunchToken = LaunchToken(1);

/// Only a lost call takes this long.
const IN_TIME: Duration = Duration::from_secs(60);

/// An interpreter.
struct Fake {
    id: u64,
    socket: Arc<OwnedFd>,
    outputs: [File; 2],
    /// File that came with the last packet.
    passed: RefCell<Option<File>>,
}

impl Fake {
    fn new(id: u64, ends: Ends) -> Self {
        let file = |fd: Arc<OwnedFd>| File::from(Arc::into_inner(fd).expect("not shared"));
        let fake = Self {
            id,
            socket: ends.socket,
            outputs: [file(ends.stdout), file(ends.stderr)],
            passed: RefCell::default(),
        };
        // Its program and its context.
        assert!(fake.take().is_some_and(|program| !program.is_empty()));
        assert_eq!(fake.take(), Some(vec![0, 0]));
        fake
    }

    /// The next packet, if any.
    fn take(&self) -> Option<Vec<u8>> {
        let mut buffer = vec![0; PACKET_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let into = &mut [IoSliceMut::new(&mut buffer)];
        let received = recvmsg(&self.socket, into, &mut control, RecvFlags::DONTWAIT).ok()?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(mut files) = message {
                *self.passed.borrow_mut() = files.next().map(File::from);
            }
        }
        buffer.truncate(received.bytes);
        Some(buffer)
    }

    /// Token and flags of the next call, if any.
    fn take_call(&self) -> Option<(u64, u8)> {
        let packet = self.take()?;
        Some((packet::token_of(&packet).expect("a call"), packet[1]))
    }

    fn say(&self, packet: &[u8]) {
        send(&self.socket, packet, SendFlags::empty()).expect("there is room");
    }

    fn is_ready(&self) {
        self.say(&[0; 17]);
    }

    /// Answers a call; `out_end` = length of the standard output of it and all before.
    fn answer(&self, token: u64, error: Option<&str>, value: &[u8], out_end: u64) {
        let mut packet = vec![1, u8::from(error.is_none())];
        for number in [token, 1_000, 2, 3, 4, out_end, 0] {
            packet.extend(number.to_le_bytes());
        }
        let message = error.unwrap_or_default();
        let len = u32::try_from(message.len()).expect("short");
        packet.extend(len.to_le_bytes());
        packet.extend(message.as_bytes());
        packet.extend(value);
        self.say(&packet);
    }
}

struct Bench {
    pool: CallPool,
    task: TaskTemplate,
    dir: TempDir,
    events: Vec<String>,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("directory");
        Self {
            pool: CallPool::new(dir.path().to_owned(), "node1", None),
            task: template(&["python3"]),
            dir,
            events: Vec::new(),
        }
    }

    fn call(&self, token: u64, payload: &[u8]) -> (Call, Kind) {
        let task = Arc::new(self.task.clone());
        let work = Arc::new(WorkTemplate {
            id: TemplateId(1),
            job: JobId(1),
            job_name: "job".into(),
            submit_dir: Box::from(*b"/"),
            stream_dir: None,
            task: Arc::clone(&task),
        });
        let surroundings = BaseEnvironment {
            env: EnvBlock::empty(),
            hq_path: "/opt/hq".into(),
            server_uid: "uid".into(),
        };
        let pools = PoolSet::new(&ResourceDescriptor::cpus(4));
        let compiled = CompiledTemplate::new(&work, &surroundings, &pools).expect("valid");
        let id = u32::try_from(token).expect("few");
        let call = Call {
            token: LaunchToken(token),
            key: InstanceKey::new(JobId(1), id, InstanceId(0)),
            compiled: Arc::new(compiled),
            place: b"place".as_slice().into(),
            payload: payload.into(),
            server_uid: "uid".into(),
            given: GrantedAmounts::default(),
            since: None,
            cpu_before: Duration::ZERO,
            needs: Vec::new(),
        };
        let kind = Kind {
            template: task,
            variant: 0,
            fixed: Vec::new(),
            memory_limit: None,
        };
        (call, kind)
    }

    /// Hands over a call; returns the interpreter that was started for it, if any.
    fn push_to(&mut self, lane: LaunchToken, token: u64, payload: &[u8]) -> Option<Fake> {
        let (call, kind) = self.call(token, payload);
        let call = self.pool.push(lane, &kind, call)?;
        let recipe = Recipe {
            plan: SpawnPlan::new(call.compiled.args.clone(), EnvBlock::empty()),
            kind,
            args: Vec::new(),
            cwd: "/".into(),
        };
        let interpreter = Interpreter::new(recipe, lane).expect("it can be prepared");
        let id = self.pool.next_id();
        self.pool.add(id, interpreter, VecDeque::from([call]));
        let output = || Output::create(self.dir.path()).expect("a file");
        self.pool.on_outputs(id, Ok([output(), output()]));
        let (id, ends) = self.pool.take_prepared().pop().expect("it is prepared");
        Some(Fake::new(id, ends))
    }

    fn push(&mut self, token: u64) -> Option<Fake> {
        self.push_to(LANE, token, b"payload")
    }

    /// An interpreter that is ready, with calls 1 to `calls`.
    async fn ready(&mut self, calls: u64) -> Fake {
        let fake = self.push(1).expect("the first one");
        self.pool.on_started(fake.id, 1, clock::now().mono);
        for token in 2..=calls {
            assert!(self.push(token).is_none(), "there is one");
        }
        fake.is_ready();
        self.hear().await;
        self.expect(&["started 1"]).await;
        fake
    }

    fn note(&mut self) {
        let mut events = Vec::new();
        self.pool.collect(&mut events);
        self.events.extend(events.iter().map(words));
    }

    /// Waits until an interpreter has sent something more.
    async fn hear(&mut self) {
        // Pending news comes first.
        self.note();
        self.pool.news().await;
    }

    /// Waits for exactly these events.
    async fn expect(&mut self, expected: &[&str]) {
        self.note();
        while self.events.len() < expected.len() {
            let news = tokio::time::timeout(IN_TIME, self.pool.news());
            assert!(news.await.is_ok(), "{:?} and no more", self.events);
            self.note();
        }
        assert_eq!(std::mem::take(&mut self.events), expected);
    }
}

fn words(event: &LaunchEvent) -> String {
    match event {
        LaunchEvent::Started { token, .. } => format!("started {}", token.0),
        LaunchEvent::Failed { token, failure } => format!("failed {} {failure:?}", token.0),
        LaunchEvent::Exited {
            token,
            status,
            message,
            ..
        } => {
            let message = message.as_deref().unwrap_or_default();
            let line = message.lines().last().unwrap_or_default();
            format!("exited {} {status:?} {line}", token.0)
                .trim_end()
                .to_owned()
        }
    }
}

#[tokio::test]
async fn interpreters_are_told_from_tasks_by_their_numbers() {
    let mut pool = CallPool::new("/nowhere".into(), "node1", None);
    let ids = [pool.next_id(), pool.next_id()];
    assert!(ids.iter().all(|id| is_interpreter(*id)) && ids[0] != ids[1]);
    assert!(!is_interpreter(0) && !is_interpreter(u64::MAX >> 1));
}

#[tokio::test]
async fn calls_of_a_lane_run_one_after_the_other_in_one_interpreter() {
    let mut bench = Bench::new();
    let fake = bench.ready(2).await;
    assert_eq!(fake.take_call(), Some((1, HAS_PLACE)));
    assert_eq!(fake.take_call(), Some((2, 0)), "at the same place");
    fake.answer(1, None, b"", 0);
    bench.expect(&["exited 1 Code(0)", "started 2"]).await;
    fake.answer(2, Some("Traceback\nValueError: no"), b"", 0);
    bench.expect(&["exited 2 Code(1) ValueError: no"]).await;
    // It is idle now, and serves another lane.
    assert!(bench.push_to(LaunchToken(9), 3, b"payload").is_none());
    assert_eq!(fake.take_call(), Some((3, 0)));
    // No other source sends news while the call runs.
    let news = tokio::time::timeout(IN_TIME, bench.pool.news());
    assert!(news.await.is_ok(), "its start is news");
    bench.expect(&["started 3"]).await;
}

#[tokio::test]
async fn a_call_waits_until_its_interpreter_is_ready_and_counts_as_started_with_it() {
    let mut bench = Bench::new();
    let fake = bench.push(1).expect("the first one");
    bench.push(2);
    assert_eq!(fake.take(), None, "it might never be ready");
    bench.note();
    assert!(bench.events.is_empty(), "it is being created");
    bench.pool.on_started(fake.id, 1, Time(77));
    // The launcher reports the start late.
    assert!(matches!(
        bench.pool.events[..],
        [LaunchEvent::Started { at: Time(77), .. }]
    ));
    bench.expect(&["started 1"]).await;
    assert!(bench.pool.has(LaunchToken(2)) && !bench.pool.has(LaunchToken(3)));
    assert!(bench.pool.stop_of(LaunchToken(2)).is_some());
    assert!(bench.pool.stop_of(LaunchToken(3)).is_none());
}

#[tokio::test]
async fn only_a_call_that_has_not_begun_is_taken_back() {
    let mut bench = Bench::new();
    let fake = bench.ready(3).await;
    assert_eq!(fake.take_call(), Some((1, HAS_PLACE)));
    assert!(bench.pool.take_back(LaunchToken(2), false));
    bench.expect(&["failed 2 Cancelled"]).await;
    assert!(!bench.pool.take_back(LaunchToken(1), false), "it has begun");
    assert!(
        !bench.pool.take_back(LaunchToken(7), false),
        "nobody knows it"
    );
    // The packet with the place was taken back.
    assert_eq!(fake.take_call(), Some((3, HAS_PLACE)));
    assert_eq!(fake.take_call(), None);
}

#[tokio::test]
async fn a_call_that_has_started_with_its_interpreter_can_still_be_told_to_end() {
    let mut bench = Bench::new();
    let fake = bench.push(1).expect("the first one");
    bench.pool.on_started(fake.id, 1, clock::now().mono);
    fake.is_ready();
    bench.hear().await;
    bench.expect(&["started 1"]).await;
    // The packet is still in the socket.
    assert!(!bench.pool.take_back(LaunchToken(1), false));
    assert!(bench.pool.take_back(LaunchToken(1), true));
    bench.expect(&["exited 1 Signal(15)"]).await;
    assert_eq!(fake.take_call(), None);
}

#[tokio::test]
async fn when_an_interpreter_dies_the_call_that_it_took_ends_and_the_others_go_on() {
    let mut bench = Bench::new();
    let fake = bench.ready(3).await;
    assert_eq!(fake.take_call(), Some((1, HAS_PLACE)));
    let wanted = bench
        .pool
        .on_exited(fake.id, (ExitStatus::Signal(9), Usage::default()), None);
    bench.expect(&["exited 1 Signal(9)"]).await;
    let wanted = wanted.expect("two are left");
    let left: Vec<u64> = wanted.calls.iter().map(|call| call.token.0).collect();
    assert_eq!((wanted.lane, left), (LANE, vec![2, 3]));
    let status = ExitStatus::Code(0);
    assert!(
        bench
            .pool
            .on_exited(fake.id, (status, Usage::default()), None)
            .is_none(),
        "once"
    );
}

#[tokio::test]
async fn an_interpreter_that_exits_during_a_call_says_with_which_code() {
    let mut bench = Bench::new();
    let fake = bench.ready(1).await;
    fake.take_call();
    let wanted = bench
        .pool
        .on_exited(fake.id, (ExitStatus::Code(0), Usage::default()), None);
    assert!(wanted.is_none(), "nothing is left");
    let words = "The interpreter ended with exit code 0 during the call";
    bench.expect(&[&format!("exited 1 Code(1) {words}")]).await;
}

#[tokio::test]
async fn what_an_interpreter_answered_before_it_died_counts() {
    let mut bench = Bench::new();
    let fake = bench.ready(2).await;
    fake.take_call();
    fake.take_call();
    fake.answer(1, None, b"", 0);
    bench
        .pool
        .on_exited(fake.id, (ExitStatus::Signal(9), Usage::default()), None);
    let expected = ["exited 1 Code(0)", "started 2", "exited 2 Signal(9)"];
    bench.expect(&expected).await;
}

#[tokio::test]
async fn an_interpreter_that_was_never_ready_fails_all_its_calls_with_its_last_words() {
    let mut bench = Bench::new();
    let mut fake = bench.push(1).expect("the first one");
    bench.push(2);
    bench.pool.on_started(fake.id, 1, clock::now().mono);
    writeln!(fake.outputs[1], "No module named 'x'").expect("a file");
    let wanted = bench
        .pool
        .on_exited(fake.id, (ExitStatus::Code(3), Usage::default()), None);
    assert!(wanted.is_none(), "another one would do no better");
    let words = "Code(1) No module named 'x'";
    let ends = [1, 2].map(|token| format!("exited {token} {words}"));
    let expected = ["started 1", &ends[0], "started 2", &ends[1]];
    bench.expect(&expected).await;
}

#[tokio::test]
async fn a_call_of_another_kind_does_not_share_the_grant_of_a_lane() {
    let mut bench = Bench::new();
    let fake = bench.ready(1).await;
    bench.task.args = vec![Box::from(*b"other")];
    assert!(bench.push(2).is_none());
    bench.expect(&["failed 2 Cancelled"]).await;
    let other = bench.push_to(LaunchToken(2), 3, b"payload");
    assert!(other.is_some_and(|other| other.id != fake.id));
}

#[tokio::test]
async fn calls_share_an_interpreter_if_each_would_start_the_same() {
    let mut bench = Bench::new();
    let (_, first) = bench.call(1, b"");
    assert!(first == bench.call(2, b"").1, "another submit, but alike");
    let changes: [fn(&mut TaskTemplate); 5] = [
        |task| task.args.push(Box::from(*b"-v")),
        |task| task.env.push((Box::from(*b"A"), Box::from(*b"1"))),
        |task| task.stdin = Some(b"another function".as_slice().into()),
        |task| task.stop.signal += 1,
        |task| task.requests = RequestVariants::new(vec![ResourceRequest::cpus(3)]).expect("valid"),
    ];
    for (number, change) in changes.iter().enumerate() {
        bench.task = template(&["python3"]);
        change(&mut bench.task);
        assert!(first != bench.call(3, b"").1, "change {number}");
    }
}

#[tokio::test]
async fn an_interpreter_that_ends_hands_its_next_call_on() {
    let mut bench = Bench::new();
    let fake = bench.ready(1).await;
    fake.take_call();
    assert_eq!(bench.pool.end(LaunchToken(1)), Some(Token(fake.id)));
    assert_eq!(bench.pool.end(LaunchToken(5)), None);
    assert!(bench.push(2).is_none(), "it waits for the end");
    assert_eq!(fake.take(), None);
    let wanted = bench
        .pool
        .on_exited(fake.id, (ExitStatus::Signal(15), Usage::default()), None);
    assert_eq!(wanted.map(|wanted| wanted.calls.len()), Some(1));
    bench.expect(&["exited 1 Signal(15)"]).await;
}

#[tokio::test]
async fn an_interpreter_that_cannot_be_created_fails_its_calls() {
    let mut bench = Bench::new();
    let fake = bench.push(1).expect("the first one");
    bench.push(2);
    bench
        .pool
        .on_failed(fake.id, || LaunchFailure::Permanent("no".into()));
    let expected = [1, 2].map(|token| format!("failed {token} Permanent(\"no\")"));
    bench.expect(&[&expected[0], &expected[1]]).await;
    assert!(!bench.pool.has(LaunchToken(1)));
    assert!(bench.push(3).is_some(), "the lane needs another one");
}

#[tokio::test]
async fn values_are_kept_until_somebody_has_taken_them() {
    let mut bench = Bench::new();
    let fake = bench.ready(2).await;
    fake.answer(1, None, b"value", 0);
    fake.answer(2, None, b"", 0);
    bench
        .expect(&["exited 1 Code(0)", "started 2", "exited 2 Code(0)"])
        .await;
    let is_known = [1, 2].map(|token| bench.pool.has(LaunchToken(token)));
    assert_eq!(is_known, [false; 2], "only their values are kept");
    let key = |id| InstanceKey::new(JobId(1), id, InstanceId(0));
    assert_eq!(bench.pool.value(key(1)), Some(&b"value"[..]));
    assert_eq!(bench.pool.value(key(2)), None, "it had none");
    assert_eq!(bench.pool.value_bytes, 5);
    bench.pool.forget_values([key(2)]);
    assert!(bench.pool.has_values());
    bench.pool.forget_values([key(1)]);
    assert!(!bench.pool.has_values());
    assert_eq!(bench.pool.value_bytes, 0);
}

#[tokio::test]
async fn while_too_many_values_are_untaken_no_call_begins() {
    let mut bench = Bench::new();
    let fake = bench.ready(1).await;
    fake.take_call();
    fake.answer(1, None, b"value", 0);
    bench.expect(&["exited 1 Code(0)"]).await;
    // As if other calls held that much.
    bench.pool.value_bytes = VALUES_MAX + 4;
    assert!(bench.push(2).is_none());
    assert_eq!(fake.take(), None);
    let key = InstanceKey::new(JobId(1), 1, InstanceId(0));
    bench.pool.forget_values([key]);
    assert_eq!(fake.take_call(), Some((2, 0)), "there is room again");
}

#[tokio::test]
async fn of_more_idle_interpreters_than_are_of_use_the_longest_idle_ends() {
    let mut bench = Bench::new();
    let mut fakes = Vec::new();
    for lane in 1..=2 {
        let fake = bench.push_to(LaunchToken(lane), lane, b"payload");
        let fake = fake.expect("the other one is busy");
        fake.is_ready();
        bench.hear().await;
        fakes.push(fake);
    }
    assert!(
        bench.pool.surplus(clock::now().mono).is_empty(),
        "they are busy"
    );
    for (token, fake) in (1..).zip(&fakes) {
        fake.answer(token, None, b"", 0);
        bench.hear().await;
    }
    assert!(
        bench.pool.surplus(clock::now().mono).is_empty(),
        "two are of use"
    );
    bench.pool.idle_max = 1;
    assert_eq!(bench.pool.surplus(clock::now().mono), [Token(fakes[0].id)]);
    assert!(
        bench.pool.surplus(clock::now().mono).is_empty(),
        "each is ended once"
    );
    // The other one has the next call, whose memory is still warm.
    assert!(bench.push_to(LaunchToken(3), 3, b"payload").is_none());
    assert!(fakes[1].take_call().is_some());
    fakes[1].answer(3, None, b"", 0);
    bench.hear().await;
    let later = Time(clock::now().mono.0 + 61_000_000_000);
    assert_eq!(bench.pool.surplus(later), [Token(fakes[1].id)]);
}

fn stdout_to(bench: &mut Bench, path: &Path, remove_if_finished: bool) {
    bench.task.stdout = StdioSpec::File {
        path: path.as_os_str().as_bytes().into(),
        remove_if_finished,
    };
}

#[tokio::test]
async fn the_output_of_each_call_goes_to_its_own_file() {
    let mut bench = Bench::new();
    let dir = tempfile::tempdir().expect("directory");
    stdout_to(&mut bench, &dir.path().join("new/%{TASK_ID}"), false);
    let mut fake = bench.ready(2).await;
    fake.outputs[0].write_all(b"firstsecond").expect("a file");
    fake.answer(1, None, b"", 5);
    bench.expect(&["started 2", "exited 1 Code(0)"]).await;
    fake.answer(2, None, b"", 11);
    bench.expect(&["exited 2 Code(0)"]).await;
    let read = |name: &str| std::fs::read_to_string(dir.path().join("new").join(name));
    assert_eq!(read("1").expect("it is there"), "first");
    assert_eq!(read("2").expect("it is there"), "second");
}

#[tokio::test]
async fn output_that_is_kept_of_failures_only_is_not_written_for_others() {
    let mut bench = Bench::new();
    let dir = tempfile::tempdir().expect("directory");
    stdout_to(&mut bench, &dir.path().join("%{TASK_ID}"), true);
    let mut fake = bench.ready(2).await;
    fake.outputs[0].write_all(b"wellbad").expect("a file");
    fake.answer(1, None, b"", 4);
    bench.expect(&["exited 1 Code(0)", "started 2"]).await;
    fake.answer(2, Some("no"), b"", 7);
    bench.expect(&["exited 2 Code(1) no"]).await;
    assert!(!dir.path().join("1").exists());
    let kept = std::fs::read_to_string(dir.path().join("2"));
    assert_eq!(kept.expect("it failed"), "bad");
}

#[tokio::test]
async fn a_long_payload_goes_through_a_file() {
    let mut bench = Bench::new();
    let fake = bench.ready(1).await;
    fake.take_call();
    let payload = vec![7; INLINE_MAX + 1];
    assert!(bench.push_to(LANE, 2, &payload).is_none());
    let packet = fake.take().expect("a call");
    assert_eq!((packet[1], packet.len()), (IS_FILE, 22));
    let mut passed = fake.passed.take().expect("a descriptor");
    let mut read = Vec::new();
    passed.read_to_end(&mut read).expect("readable");
    assert!(read == payload);
    fake.answer(1, None, b"", 0);
    fake.answer(2, None, b"", 0);
    bench
        .expect(&["exited 1 Code(0)", "started 2", "exited 2 Code(0)"])
        .await;
    assert!(bench.push_to(LANE, 3, &payload[1..]).is_none());
    let packet = fake.take().expect("a call");
    assert_eq!((packet[1], packet.len()), (0, 22 + INLINE_MAX));
}

#[tokio::test]
async fn an_interpreter_has_only_so_many_calls_ahead() {
    let mut bench = Bench::new();
    let fake = bench.ready(40).await;
    let ahead = std::iter::from_fn(|| fake.take_call()).count();
    assert_eq!(ahead, 32);
    fake.answer(1, None, b"", 0);
    bench.expect(&["exited 1 Code(0)", "started 2"]).await;
    assert_eq!(fake.take_call().map(|(token, _)| token), Some(33));
    assert_eq!(fake.take_call(), None, "one for one");
}

#[tokio::test]
async fn an_interpreter_has_only_so_many_bytes_ahead() {
    let mut bench = Bench::new();
    let fake = bench.ready(1).await;
    let payload = vec![7; 40 << 10];
    for token in [2, 3] {
        assert!(bench.push_to(LANE, token, &payload).is_none());
    }
    let ahead = std::iter::from_fn(|| fake.take_call()).count();
    assert_eq!(ahead, 2, "both long ones are more than there may be");
    fake.answer(1, None, b"", 0);
    fake.answer(2, None, b"", 0);
    let expected = [
        "exited 1 Code(0)",
        "started 2",
        "exited 2 Code(0)",
        "started 3",
    ];
    bench.expect(&expected).await;
    assert_eq!(fake.take_call().map(|(token, _)| token), Some(3));
}

#[tokio::test]
async fn nonsense_of_an_interpreter_changes_nothing() {
    let mut bench = Bench::new();
    let fake = bench.ready(1).await;
    fake.answer(99, None, b"value", 0);
    fake.say(&[9, 9, 9]);
    fake.answer(1, None, b"", 0);
    bench.expect(&["exited 1 Code(0)"]).await;
    assert!(!bench.pool.has_values());
}

/// The next events, as they are.
async fn next_events(bench: &mut Bench, count: usize) -> Vec<LaunchEvent> {
    let mut events = Vec::new();
    bench.pool.collect(&mut events);
    while events.len() < count {
        let news = tokio::time::timeout(IN_TIME, bench.pool.news());
        assert!(news.await.is_ok(), "{events:?} and no more");
        bench.pool.collect(&mut events);
    }
    events
}

fn used(event: &LaunchEvent) -> Option<Usage> {
    match event {
        LaunchEvent::Exited { usage, .. } => Some(*usage),
        LaunchEvent::Started { .. } | LaunchEvent::Failed { .. } => None,
    }
}

#[tokio::test]
async fn each_call_has_what_its_interpreter_used_meanwhile() {
    let micros = Duration::from_micros;
    let mut bench = Bench::new();
    let fake = bench.ready(2).await;
    assert!(fake.take_call().is_some() && fake.take_call().is_some());
    let turn = |bench: &Bench, token| {
        let turn = bench.pool.turn(LaunchToken(token))?;
        Some((turn.pid, turn.cpu_before))
    };
    assert_eq!(turn(&bench, 1), Some((1, Duration::ZERO)));
    assert_eq!(turn(&bench, 2), None, "it waits");
    fake.answer(1, None, b"", 0);
    let events = next_events(&mut bench, 2).await;
    let first = Usage {
        max_rss_kib: 4,
        user: micros(2),
        system: micros(3),
    };
    assert_eq!(used(&events[0]), Some(first));
    assert_eq!(turn(&bench, 1), None, "it has ended");
    assert_eq!(turn(&bench, 2), Some((1, micros(5))));
    // Its interpreter dies with the second call and has used this much in all.
    let all = Usage {
        max_rss_kib: 9,
        user: micros(12),
        system: micros(3),
    };
    let status = (ExitStatus::Signal(9), all);
    bench.pool.on_exited(fake.id, status, None);
    let events = next_events(&mut bench, 1).await;
    let second = Usage {
        user: micros(10),
        system: Duration::ZERO,
        ..all
    };
    assert_eq!(used(&events[0]), Some(second));
    assert_eq!(bench.pool.take_long_ends(), [], "too short to be looked at");
}
