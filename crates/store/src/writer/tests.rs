//! Tests of the writer without its thread, and of batches.

use std::sync::atomic::{AtomicU32, Ordering};

use hq_core::id::{InstanceId, JobId, TaskId, TaskKey};
use hq_core::range::IdArray;

use super::*;
use crate::Store;
use crate::testing::{NOW, WORKER, change, results, submitted};

thread_local! {
    static IS_BROKEN: Cell<bool> = const { Cell::new(false) };
    /// The number of transactions that were committed after the store was known to be broken.
    static LATE: Cell<u32> = const { Cell::new(0) };
}

fn writer(path: &std::path::Path) -> Writer {
    let owned = Store::open(path).expect("a fresh file").owned();
    let report = |progress: Progress| {
        IS_BROKEN.set(matches!(progress.health, Health::Broken(_)));
    };
    Writer::new(owned, ("TestUid", &[]), NOW.wall, Box::new(report)).expect("a writer")
}

fn submit(number: u32) -> Message {
    let submitted = submitted(JobId(number), &IdArray::single(1));
    Message::Changes(u64::from(number), vec![change(submitted)])
}

fn batch(changes: impl IntoIterator<Item = Change>) -> Batch {
    Batch {
        changes: changes.into_iter().collect(),
        ..Batch::default()
    }
}

fn pending(number: u64, change: Change) -> Pending {
    let mut pending = Pending::default();
    pending.push(number, vec![change]);
    pending
}

#[test]
fn a_prune_that_arrives_with_what_breaks_the_store_writes_nothing() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("j.db");
    let writer = writer(&path);
    writer.connection.wal_hook(Some(|_, _| {
        LATE.set(LATE.get() + u32::from(IS_BROKEN.get()));
        Ok(())
    }));
    std::fs::remove_file(dir.path().join("j.db-wal")).expect("it is there");
    let (tx, rx) = mpsc::channel();
    let (reply, pruned) = mpsc::sync_channel(1);
    for message in [submit(1), Message::Prune(reply)] {
        tx.send(message).expect("the receiver exists");
    }
    writer.run(&rx, &WriterProgress::default());
    assert!(IS_BROKEN.get(), "its log is gone");
    assert!(pruned.recv().is_err(), "nothing was pruned");
    assert_eq!(LATE.get(), 0);
}

#[test]
fn who_comes_while_events_cannot_be_told_of_misses_none_even_if_nothing_follows_them() {
    let dir = tempfile::tempdir().expect("directory");
    let mut writer = writer(&dir.path().join("j.db"));
    let told = writer.reported_seq;
    // The change was stored without a reader, while the file was not visible.
    let change = change(submitted(JobId(1), &IdArray::single(1)));
    assert!(writer.commit(&batch([change])));
    assert!(writer.next_seq > told);
    let (reply, subscribed) = mpsc::sync_channel(1);
    writer.answer(Message::Subscribe(None, reply), false);
    let mut seen = subscribed.recv().expect("an answer");
    assert_eq!(seen.past.upto, told - 1);
    // The file is visible again, without any new change.
    writer.report_stored(1);
    let missed = writer.position(Some(told - 1)).missed;
    assert!(missed.is_none(), "they are in the file only: {missed:?}");
    assert_eq!(seen.live.ready(9), None, "it has to come again");
}

#[test]
fn who_follows_goes_on_when_a_commit_has_nothing_but_what_is_told_and_not_stored() {
    let dir = tempfile::tempdir().expect("directory");
    let mut writer = writer(&dir.path().join("j.db"));
    let (reply, subscribed) = mpsc::sync_channel(1);
    writer.answer(Message::Subscribe(None, reply), true);
    let mut live = subscribed.recv().expect("an answer").live;
    let before = writer.reported_seq - 1;
    let pulse = WriterProgress::default();
    let idle = change(ChangeKind::JobIdle(JobId(1)));
    writer.commit_all(&mut pending(1, idle), 1, &pulse);
    let submitted = change(submitted(JobId(2), &IdArray::single(1)));
    writer.commit_all(&mut pending(2, submitted), 2, &pulse);
    let events = live.ready(9).expect("it goes on");
    let seqs = events.iter().map(|event| event.seq());
    assert!(seqs.eq([before, before + 1]), "{events:?}");
    let again = writer.position(Some(before)).missed.expect("not long ago");
    assert_eq!(again.last().map(|event| event.seq()), Some(before + 1));
}

#[test]
fn a_file_that_a_reader_kept_long_becomes_short_when_it_has_gone_though_nothing_is_stored_any_more()
{
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("j.db");
    let file_len = || std::fs::metadata(&path).expect("the file").len();
    let mut writer = writer(&path);
    let jobs: Vec<JobId> = (1..=2_000).map(JobId).collect();
    let submit = |job: &JobId| change(submitted(*job, &IdArray::single(1)));
    assert!(writer.commit(&batch(jobs.iter().map(submit))));
    assert!(writer.checkpoint("TRUNCATE"));
    let full = file_len();
    assert!(writer.commit(&batch([change(ChangeKind::JobsForgotten(jobs))])));
    writer.settle();
    let reader = Connection::open(&path).expect("a database");
    reader.execute_batch("BEGIN").expect("a transaction");
    let seen: u32 = reader
        .query_row("SELECT count(*) FROM job_data", [], |row| row.get(0))
        .expect("a snapshot");
    assert_eq!(seen, 2_000);
    let (reply, pruned) = mpsc::sync_channel(1);
    writer.answer(Message::Prune(reply), true);
    while pruned.try_recv().is_err() {
        writer.compact();
    }
    writer.settle();
    assert!(file_len() >= full, "the reader still uses its pages");
    drop(reader);
    writer.settle();
    assert!(file_len() < full / 2, "{} of {full} bytes", file_len());
}

/// A copy of the file alone is either complete or says that it is not. The only exception is a copy
/// made after a flush and a change while a reader prevents the mark.
#[test]
fn a_copy_without_its_log_is_never_taken_for_whole_though_a_reader_is_in_the_way() {
    let dir = tempfile::tempdir().expect("directory");
    let (path, copy) = (dir.path().join("j.db"), dir.path().join("copy.db"));
    let mut writer = writer(&path);
    let reader = Connection::open(&path).expect("a database");
    let sql = "SELECT count(*) FROM job_data";
    for job in 1..=12 {
        let next = submitted(JobId(job), &IdArray::single(1));
        assert!(writer.commit(&batch([change(next)])));
        let (reads, is_in_the_way) = [
            ("SELECT 1", false),
            ("BEGIN; SELECT count(*) FROM job_data", true),
            ("SELECT 1", true),
            ("COMMIT", false),
        ][job as usize % 4];
        for has_flushed in [false, true] {
            if has_flushed {
                reader.execute_batch(reads).expect("a snapshot");
                let next = submitted(JobId(100 + job), &IdArray::single(1));
                assert!(writer.commit(&batch([change(next)])));
                let (reply, flushed) = mpsc::sync_channel(1);
                writer.answer(Message::Flush(reply), true);
                assert_eq!(flushed.recv(), Ok(!is_in_the_way), "{job}");
            }
            std::fs::copy(&path, &copy).expect("room");
            let is_refused = history::missing_log(&copy).is_some();
            let may_be_refused = !has_flushed || is_in_the_way;
            let count = |row: &rusqlite::Row<'_>| row.get::<_, u32>(0);
            let found = Connection::open(&copy).and_then(|file| file.query_row(sql, [], count));
            let is_whole = found == Ok(2 * job - u32::from(!has_flushed));
            assert!(
                is_whole || is_refused && may_be_refused,
                "{found:?} of {job}"
            );
        }
    }
}

#[test]
fn what_arrives_together_with_the_stop_is_stored() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("j.db");
    let writer = writer(&path);
    let (tx, rx) = mpsc::channel();
    // The change is not urgent and has not waited for long.
    let started = unurgent(4);
    for message in [Message::Changes(1, vec![started]), Message::Stop] {
        tx.send(message).expect("the receiver exists");
    }
    writer.run(&rx, &WriterProgress::default());
    assert!(results(&path).contains(&(1, 4)));
}

/// Returns a change that is not urgent.
fn unurgent(task: u32) -> Change {
    let started = change(ChangeKind::TaskStarted {
        task: TaskKey::new(JobId(1), TaskId(task)),
        instance: InstanceId(0),
        variant: 0,
        nodes: Box::default(),
        worker: WORKER,
    });
    assert!(!started.kind.is_urgent());
    started
}

#[test]
fn changes_that_are_not_urgent_are_stored_without_a_request() {
    let dir = tempfile::tempdir().expect("directory");
    let store = Store::open(&dir.path().join("j.db")).expect("a fresh file");
    let (tx, rx) = mpsc::channel();
    let report = move |progress: Progress| {
        // At the end, the receiver no longer exists.
        let _ = tx.send(progress.committed);
    };
    let mut handle = store
        .start("TestUid", &[], NOW.wall, report)
        .expect("a writer");
    for task in 1..=2 {
        let number = handle.store(vec![unurgent(task)]);
        let wait = Duration::from_secs(60);
        let told = std::iter::from_fn(|| rx.recv_timeout(wait).ok());
        let stored = told.into_iter().find(|committed| *committed >= number);
        assert_eq!(stored, Some(number));
        // The next change follows after the interval between two groups, not within it.
        std::thread::sleep(2 * GROUP_SPAN);
    }
}

#[test]
fn what_has_piled_up_is_stored_in_steps_and_a_failure_keeps_the_rest() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("j.db");
    let mut writer = writer(&path);
    let (told, reports) = mpsc::channel();
    writer.report = Box::new(move |progress| {
        let _ = told.send(progress);
    });
    let ids = IdArray::consecutive(1, 60_000).expect("few");
    let mut pending = Pending::default();
    pending.push(1, vec![change(submitted(JobId(1), &ids))]);
    // This is more than one step stores, because the changes of one call stay together, however
    // many they are.
    for number in 2..=4 {
        let last = 20_000 * (number - 1);
        pending.push(
            number.into(),
            (last - 19_999..=last).map(unurgent).collect(),
        );
    }
    writer
        .connection
        .execute_batch("PRAGMA max_page_count = 1")
        .expect("as small as it is");
    writer.commit_all(&mut pending, 4, &WriterProgress::default());
    let report = reports.try_recv().expect("it is told");
    assert_eq!(report.committed, 0);
    assert!(matches!(report.health, Health::Waiting(_)), "{report:?}");
    writer
        .connection
        .execute_batch("PRAGMA max_page_count = 1000000")
        .expect("room");
    let pulse = WriterProgress::default();
    pulse.pretend_to_hang();
    writer.commit_all(&mut pending, 4, &pulse);
    assert!(pending.is_empty());
    let committed: Vec<u64> = reports.try_iter().map(|report| report.committed).collect();
    assert_eq!(committed, [2, 3, 4]);
    assert_eq!(pulse.hangs_for(), None, "it got on between them");
}

#[test]
fn however_much_has_piled_up_each_turn_takes_some_of_it() {
    let dir = tempfile::tempdir().expect("directory");
    let writer = writer(&dir.path().join("j.db"));
    let ids = IdArray::consecutive(1, 100_000).expect("few");
    let some = |number: u32| {
        let last = 20_000 * number;
        let changes = (last - 19_999..=last).map(unurgent).collect();
        Message::Changes(u64::from(number) + 1, changes)
    };
    let ((early, early_rx), (late, late_rx)) = (mpsc::sync_channel(1), mpsc::sync_channel(1));
    let queue = [
        Message::Changes(1, vec![change(submitted(JobId(1), &ids))]),
        some(1),
        some(2),
        Message::Position(0, early),
        some(3),
        some(4),
        some(5),
        Message::Position(0, late),
        Message::Stop,
    ];
    let (tx, rx) = mpsc::channel();
    for message in queue {
        tx.send(message).expect("the receiver exists");
    }
    writer.run(&rx, &WriterProgress::default());
    let early = early_rx.recv().expect("an answer").upto;
    let late = late_rx.recv().expect("an answer").upto;
    assert!(early < late, "{early}, {late}");
}

/// A value arrives first, and the end of its task a moment later. Both need only one commit.
#[test]
fn values_wait_for_the_ends_of_their_tasks() {
    const ROUNDS: u32 = 20;
    static COMMITS: AtomicU32 = AtomicU32::new(0);
    let dir = tempfile::tempdir().expect("directory");
    let (report, reports) = mpsc::channel();
    let owned = Store::open(&dir.path().join("j.db"))
        .expect("a fresh file")
        .owned();
    let report = move |progress: Progress| report.send(progress.committed).expect("it is read");
    let writer =
        Writer::new(owned, ("TestUid", &[]), NOW.wall, Box::new(report)).expect("a writer");
    writer.connection.wal_hook(Some(|_, _| {
        COMMITS.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }));
    let (tx, rx) = mpsc::channel();
    let running = std::thread::spawn(move || writer.run(&rx, &WriterProgress::default()));
    let mut late = 0;
    for number in 1..=ROUNDS {
        if number > ROUNDS / 2 {
            // Values also wait if the last commit was long ago.
            std::thread::sleep(GROUP_SPAN);
        }
        let value = CallValue {
            task: TaskKey::new(JobId(number), TaskId(1)),
            instance: InstanceId(0),
            worker: WORKER,
            data: Box::new([1]),
        };
        let sent = Instant::now();
        tx.send(Message::Values(vec![value])).expect("it runs");
        // This gives the writer time to start handling the value.
        std::thread::sleep(Duration::from_millis(1));
        for message in [submit(number), Message::Hurry] {
            tx.send(message).expect("it runs");
        }
        // If this thread was delayed, the value may have been stored separately.
        late += u32::from(sent.elapsed() >= GROUP_SPAN / 2);
        while reports.recv().expect("it runs") < u64::from(number) {}
        // This arrives too late to affect anything.
        tx.send(Message::Hurry).expect("it runs");
    }
    drop(tx);
    running.join().expect("it ends");
    let commits = COMMITS.load(Ordering::Relaxed);
    // This includes some commits at the start and at the end, and rounds with a delayed writer
    // thread. One commit per value and one per end would be twice as many.
    assert!(
        commits < ROUNDS * 7 / 4 + late,
        "{commits} commits, {late} late"
    );
}

const LOG_HEADER: usize = 32;
const FRAME: usize = 24 + 4_096;

/// A store with jobs 1 to 6. Its log contains jobs 4 to 6.
struct Recorded {
    file: Vec<u8>,
    log: Vec<u8>,
    /// The contents of an earlier use of the log, with jobs 1 to 3.
    earlier: Vec<u8>,
    /// The position of the first byte of each transaction, and the position after the last one.
    starts: Vec<usize>,
}

impl Recorded {
    fn new(path: &std::path::Path) -> Self {
        let mut writer = writer(path);
        // These are more keys than fit into a page.
        let sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500) \
                   INSERT INTO meta SELECT printf('%s_%03d', iif(i % 2, 'a', 'z'), i), hex(randomblob(20)) FROM n";
        writer.connection.execute_batch(sql).expect("a table");
        let mut store = |jobs: &[u32]| {
            for job in jobs {
                let submitted = change(submitted(JobId(*job), &IdArray::single(1)));
                assert!(writer.commit(&batch([submitted])));
            }
            let files = ["", "-wal"].map(|suffix| crate::lock::with_suffix(path, suffix));
            let files = files.map(|file| std::fs::read(file).expect("it is there"));
            assert!(writer.checkpoint("PASSIVE"));
            files
        };
        let [_, earlier] = store(&[1, 2, 3]);
        let [file, log] = store(&[4, 5, 6]);
        let frames = (LOG_HEADER..log.len()).step_by(FRAME);
        let is_current = |start: &usize| log[start + 8..start + 16] == log[16..24];
        let is_commit = |start: &usize| log[start + 4..start + 8] != [0; 4];
        let commits = frames.filter(|start| is_current(start) && is_commit(start));
        let starts = std::iter::once(LOG_HEADER).chain(commits.map(|start| start + FRAME));
        Self {
            starts: starts.collect(),
            file,
            log,
            earlier,
        }
    }

    fn flipped(&self, position: usize) -> Vec<u8> {
        let mut log = self.log.clone();
        log[position] ^= 1;
        log
    }

    /// Returns a log with the header, the bytes `first`, and then `rest`.
    fn begun_with(&self, first: &[u8], rest: &[&[u8]]) -> Vec<u8> {
        [&self.log[..LOG_HEADER], first, &rest.concat()].concat()
    }

    /// Opens the store with `log`. The store must have `jobs` jobs; if `jobs` is `None`, it must be
    /// rejected and repaired.
    fn check(&self, path: &std::path::Path, log: &[u8], jobs: Option<u32>) {
        std::fs::write(path, &self.file).expect("room");
        std::fs::write(crate::lock::with_suffix(path, "-wal"), log).expect("room");
        let jobs_of = |path| crate::testing::number(path, "SELECT max(id) FROM jobs");
        match (Store::open(path), jobs) {
            (Ok(store), Some(jobs)) => {
                drop(store);
                assert_eq!(jobs_of(path), jobs, "{path:?}");
            }
            (Err(refused), None) => {
                let text = refused.to_string();
                assert!(text.contains("is damaged at byte"), "{path:?}: {text}");
                let report = crate::repair(path).expect("room").expect("damage");
                assert!(report.has_lost_log && jobs_of(path) < 6, "{path:?}");
                let aside = crate::lock::with_suffix(&report.set_aside, "-wal");
                assert_eq!(std::fs::read(aside).expect("it is there"), log);
                drop(Store::open(path).expect("it is whole"));
            }
            (opened, _) => panic!("{path:?}: {opened:?}"),
        }
    }
}

#[test]
fn commits_behind_damage_in_the_log_are_not_lost_in_silence() {
    let dir = tempfile::tempdir().expect("directory");
    let recorded = Recorded::new(&dir.path().join("j.db"));
    let Recorded { log, starts, .. } = &recorded;
    let (end, last) = (starts[starts.len() - 1], starts[starts.len() - 2]);
    let zero = vec![0; starts[2] - LOG_HEADER];
    for (number, (log, jobs)) in [
        (log.clone(), Some(6)),
        (log[..LOG_HEADER - 12].to_vec(), None),
        (log[..LOG_HEADER].to_vec(), None),
        (log[..LOG_HEADER + FRAME - 1].to_vec(), None),
        (recorded.flipped(0), None),
        (recorded.flipped(LOG_HEADER), None),
        (recorded.flipped(LOG_HEADER + 100), None),
        (recorded.flipped(starts[1] + 100), None),
        (recorded.begun_with(&zero, &[&log[starts[2]..]]), None),
        // The writer has not acknowledged any incomplete transaction.
        (recorded.flipped(last + 100), Some(5)),
        (log[..end - 1].to_vec(), Some(5)),
    ]
    .into_iter()
    .enumerate()
    {
        let path = dir.path().join(format!("{number}.db"));
        recorded.check(&path, &log, jobs);
    }
}

#[test]
fn a_power_loss_in_the_first_transaction_of_the_log_leaves_a_good_store() {
    let dir = tempfile::tempdir().expect("directory");
    let recorded = Recorded::new(&dir.path().join("j.db"));
    let Recorded { log, starts, .. } = &recorded;
    assert_eq!(starts[1], LOG_HEADER + FRAME, "one frame");
    let whole = &log[LOG_HEADER..starts[1]];
    let zero = &[0; FRAME][..];
    let torn = &[&whole[..2_048], &zero[2_048..]].concat()[..];
    let headless = &[&zero[..24], &whole[24..]].concat()[..];
    let flipped = &recorded.flipped(LOG_HEADER + 100)[LOG_HEADER..starts[1]];
    let earlier = &recorded.earlier[LOG_HEADER..];
    let behind = &earlier[FRAME..];
    // The first commit was synced before any frame of the second transaction was written.
    let second = &log[starts[1]..starts[2]];
    let (begin, end) = (&second[..FRAME], &second[second.len() - FRAME..]);
    for (number, (first, rest, jobs)) in [
        (earlier, &[][..], Some(3)),
        (whole, &[], Some(3)),
        (whole, &[second], Some(4)),
        (whole, &[begin], Some(3)),
        (zero, &[], Some(3)),
        (zero, &[behind], Some(3)),
        (torn, &[], Some(3)),
        (torn, &[behind], Some(3)),
        (headless, &[behind], Some(3)),
        (flipped, &[behind], Some(3)),
        (zero, &[second], None),
        (zero, &[begin], None),
        (zero, &[second, &behind[second.len()..]], None),
        (torn, &[second], None),
        (torn, &[zero, end], None),
        (headless, &[second], None),
        (flipped, &[second], None),
    ]
    .into_iter()
    .enumerate()
    {
        let path = dir.path().join(format!("{number}.db"));
        recorded.check(&path, &recorded.begun_with(first, rest), jobs);
    }
}
