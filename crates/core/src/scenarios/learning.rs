//! Requests derived from the needs of other tasks of an array.

use std::time::Duration;

use super::bench::*;
use crate::growth::{MEMORY, memory};
use crate::id::{JobId, TaskKey, WorkerId};
use crate::outcome::{LostReason, Outcome, Usage};
use crate::resource::amount::Amount;
use crate::resource::descriptor::{ResourceItem, ResourceKind};
use crate::retry::RetryCause;
use crate::sizing::{FirstMemory, RETRIES};
use crate::task::Phase;
use crate::template::{SubmitSpec, TaskTemplate};

const MINUTE: Duration = Duration::from_secs(60);

fn worker_of(
    bench: &mut Bench,
    cpus: u32,
    mebibytes: u32,
    time_limit: Option<Duration>,
) -> WorkerId {
    bench.worker_with(cpus, |config| {
        config.time_limit = time_limit;
        config.resources.items.push(ResourceItem {
            name: MEMORY.into(),
            kind: ResourceKind::Sum(Amount::whole(mebibytes)),
        });
    })
}

/// Returns tasks whose memory is learned.
fn sized(count: u32, first: FirstMemory, change: impl FnOnce(&mut TaskTemplate)) -> SubmitSpec {
    tasks_with(count, |task| {
        task.learn.memory = Some(first);
        task.learn.predict = Some(0);
        task.retry.limit = 9;
        task.retry.on = vec![RetryCause::OutOfMemory];
        task.retry.delay = Duration::ZERO;
        change(task);
    })
}

/// Returns the memory in MiB and the required remaining lifetime of a task.
fn gets(bench: &Bench, task: TaskKey) -> (u64, Duration) {
    let job = &bench.state.jobs()[&task.job];
    let slot = job.find(task.task).expect("it exists");
    let template = job.submits[0].template(slot.index).expect("it has one");
    let requests = &template.task.requests;
    let memory = memory(requests).map_or(0, Amount::whole_part);
    (memory, requests.as_slice()[0].min_time)
}

/// Ends a task with this memory and run time, as reported by its worker.
fn end_with(
    bench: &mut Bench,
    (worker, task): (WorkerId, TaskKey),
    outcome: Outcome,
    (mebibytes, run): (u64, Duration),
) {
    let mut report = bench.end_report(worker, task, outcome);
    report.ended[0].run = run;
    report.ended[0].usage = Usage {
        max_rss_kib: mebibytes * 1_024,
        ..Usage::default()
    };
    bench.report(worker, report);
}

/// Finishes `count` of the tasks that a worker has.
fn finish_some(bench: &mut Bench, worker: WorkerId, count: usize, needs: (u64, Duration)) {
    for _ in 0..count {
        let (job, task) = bench.has(worker)[0];
        let task = key(JobId(job), task);
        end_with(bench, (worker, task), Outcome::Finished, needs);
    }
}

fn placed(bench: &Bench, worker: WorkerId) -> usize {
    bench.state.workers()[&worker].placed_len()
}

#[test]
fn the_first_tasks_get_their_share_and_later_ones_what_those_needed() {
    let mut bench = Bench::new();
    let worker = worker_of(&mut bench, 4, 16_000, None);
    let job = bench.submit(sized(1_000, FirstMemory::Share, |task| {
        task.requests = cpus_of(2);
    }));
    assert_eq!(
        gets(&bench, key(job, 999)).0,
        8_000,
        "two run at the same time"
    );
    finish_some(&mut bench, worker, 9, (500, MINUTE));
    assert_eq!(gets(&bench, key(job, 999)).0, 8_000, "nine say nothing");
    finish_some(&mut bench, worker, 1, (500, MINUTE));
    let (learned, _) = gets(&bench, key(job, 999));
    assert!((500..=532).contains(&learned), "{learned}");
    // Tasks that were already sent keep their request. The other ones are dispatched with less
    // memory.
    finish_some(&mut bench, worker, 40, (500, MINUTE));
    assert_eq!(placed(&bench, worker), 2, "cpus limit them now");
    bench.finish_all();
    assert_eq!(bench.counts(job).finished, 1_000);
    assert!(!bench.state.workers()[&worker].knows_templates());
}

#[test]
fn what_needs_more_than_most_runs_again_with_more() {
    let mut bench = Bench::new();
    let worker = worker_of(&mut bench, 100, 1_000_000, None);
    let first = FirstMemory::Given(Amount::whole(400));
    let job = bench.submit(sized(100, first, |_| {}));
    let task = key(job, 0);
    assert_eq!(gets(&bench, task).0, 400);
    let mut sizes = Vec::new();
    for _ in 0..3 {
        let failed = (worker, task);
        end_with(
            &mut bench,
            failed,
            Outcome::OutOfMemory(None),
            (400, MINUTE),
        );
        sizes.push(gets(&bench, task).0);
    }
    assert_eq!(sizes, [800, 1_600, 3_200]);
    assert_eq!(
        gets(&bench, key(job, 50)).0,
        400,
        "others keep what they get"
    );
    end_with(
        &mut bench,
        (worker, task),
        Outcome::Finished,
        (2_000, MINUTE),
    );
    // The total memory of its processes is unknown, but the grant was sufficient.
    let failed = (worker, key(job, 1));
    end_with(
        &mut bench,
        failed,
        Outcome::OutOfMemory(None),
        (400, MINUTE),
    );
    assert!(gets(&bench, key(job, 1)).0 >= 3_200);
    finish_some(&mut bench, worker, 20, (100, MINUTE));
    assert_eq!(gets(&bench, key(job, 0)).0, 3_200, "it keeps what it got");
    bench.finish_all();
    assert_eq!(bench.counts(job).finished, 100);
}

#[test]
fn nothing_gets_more_memory_than_there_is() {
    let mut bench = Bench::new();
    let worker = worker_of(&mut bench, 2, 10_000, None);
    let job = bench.submit(sized(1, FirstMemory::Share, |_| {}));
    let task = key(job, 0);
    assert_eq!(gets(&bench, task).0, 5_000);
    for _ in 0..3 {
        let failed = (worker, task);
        end_with(
            &mut bench,
            failed,
            Outcome::OutOfMemory(None),
            (5_000, MINUTE),
        );
        assert!((9_990..=10_000).contains(&gets(&bench, task).0));
        assert_eq!(placed(&bench, worker), 1);
    }
    // A request that exceeds every worker would wait forever.
    let first = FirstMemory::Given(Amount::whole(64_000));
    let job = bench.submit(sized(1, first, |_| {}));
    assert_eq!(gets(&bench, key(job, 0)).0, 10_000);
}

#[test]
fn a_task_that_is_larger_than_anybody_fails_with_the_most_that_there_is() {
    let mut bench = Bench::new();
    let worker = worker_of(&mut bench, 4, 300, None);
    let job = bench.submit(sized(2, FirstMemory::Share, |task| {
        task.retry.limit = RETRIES
    }));
    let mut sizes = Vec::new();
    while bench.phase(key(job, 0)).is_sent() {
        sizes.push(gets(&bench, key(job, 0)).0);
        let failed = (worker, key(job, 0));
        end_with(&mut bench, failed, Outcome::OutOfMemory(None), (75, MINUTE));
    }
    assert_eq!(sizes, [75, 150, 300]);
    assert_eq!(bench.phase(key(job, 0)), Phase::Failed);
    // An explicitly given default value is kept.
    let given = bench.submit(sized(1, FirstMemory::Share, |task| {
        task.retry.limit = RETRIES;
        task.learn.are_retries_given = true;
    }));
    for _ in 0..5 {
        let failed = (worker, key(given, 0));
        end_with(&mut bench, failed, Outcome::OutOfMemory(None), (75, MINUTE));
    }
    assert_eq!(gets(&bench, key(given, 0)).0, 300);
    assert_eq!(bench.phase(key(given, 0)), Phase::Queued);
    bench.cancel(given);
    // With a larger worker, the other task continues.
    for _ in 0..2 {
        let failed = (worker, key(job, 1));
        end_with(&mut bench, failed, Outcome::OutOfMemory(None), (75, MINUTE));
    }
    worker_of(&mut bench, 1, 64_000, None);
    let failed = (worker, key(job, 1));
    end_with(&mut bench, failed, Outcome::OutOfMemory(None), (75, MINUTE));
    assert_eq!(gets(&bench, key(job, 1)).0, 600);
}

#[test]
fn a_failure_that_more_memory_cannot_cure_teaches_nothing() {
    let mut bench = Bench::new();
    let worker = worker_of(&mut bench, 1, 8_000, None);
    let job = bench.submit(sized(100, FirstMemory::Share, |task| task.retry.on.clear()));
    for _ in 0..30 {
        let (_, task) = bench.has(worker)[0];
        let failed = (worker, key(job, task));
        end_with(&mut bench, failed, Outcome::ExitCode(1), (10, MINUTE));
    }
    assert_eq!(gets(&bench, key(job, 99)).0, 8_000);
}

#[test]
fn memory_that_was_guessed_is_corrected_when_somebody_comes() {
    let mut bench = Bench::new();
    let job = bench.submit(sized(10, FirstMemory::Share, |_| {}));
    assert_eq!(gets(&bench, key(job, 0)).0, 512, "nobody is there");
    let small = worker_of(&mut bench, 2, 200, None);
    assert_eq!(gets(&bench, key(job, 0)).0, 100);
    assert_eq!(placed(&bench, small), 2);
    // With more memory per task, the small worker would idle.
    worker_of(&mut bench, 1, 64_000, None);
    bench.wait(MINUTE);
    assert_eq!(gets(&bench, key(job, 9)).0, 100);
}

#[test]
fn memory_that_nobody_has_any_more_is_asked_for_no_longer() {
    let mut bench = Bench::new();
    let fat = worker_of(&mut bench, 1, 8_000, None);
    let job = bench.submit(sized(60, FirstMemory::Share, |_| {}));
    assert_eq!(gets(&bench, key(job, 59)).0, 8_000);
    bench.leave(fat, LostReason::Stopped);
    let thin = [(); 3].map(|()| worker_of(&mut bench, 4, 4_000, None));
    bench.wait(MINUTE);
    for worker in thin {
        assert_eq!(placed(&bench, worker), 4);
    }
    assert_eq!(gets(&bench, key(job, 59)).0, 1_000);
    // The same applies to needs that are learned in the meantime.
    let fat = worker_of(&mut bench, 1, 8_000, None);
    for _ in 0..10 {
        finish_some(&mut bench, fat, 1, (6_000, MINUTE));
    }
    assert!((6_000..6_400).contains(&gets(&bench, key(job, 59)).0));
    bench.leave(fat, LostReason::Stopped);
    bench.wait(MINUTE);
    assert_eq!(gets(&bench, key(job, 59)).0, 4_000);
    bench.finish_all();
    assert_eq!(bench.counts(job).finished, 60);
}

#[test]
fn a_large_worker_leaves_no_small_one_idle() {
    let mut bench = Bench::new();
    worker_of(&mut bench, 1, 64_000, None);
    let thin = worker_of(&mut bench, 4, 4_000, None);
    let job = bench.submit(sized(60, FirstMemory::Share, |_| {}));
    assert_eq!(gets(&bench, key(job, 0)).0, 1_000);
    assert_eq!(placed(&bench, thin), 4);
}

#[test]
fn a_time_that_nobody_lives_for_any_more_is_asked_for_no_longer() {
    let mut bench = Bench::new();
    let old = worker_of(&mut bench, 1, 100, Some(MINUTE * 40));
    let job = bench.submit(tasks(100));
    finish_some(&mut bench, old, 16, (1, MINUTE / 2));
    finish_some(&mut bench, old, 6, (1, MINUTE * 9));
    let (_, before) = gets(&bench, key(job, 99));
    assert!(before > MINUTE * 9, "{before:?}");
    bench.leave(old, LostReason::Stopped);
    assert_eq!(gets(&bench, key(job, 99)).1, before, "nobody knows better");
    let young = worker_of(&mut bench, 1, 100, Some(MINUTE * 8));
    let (_, after) = gets(&bench, key(job, 99));
    assert!((MINUTE * 3..=MINUTE * 4).contains(&after), "{after:?}");
    assert_eq!(placed(&bench, young), 1);
    // Once a worker with a longer lifetime joins, the requirement soon returns to its old value.
    bench.leave(young, LostReason::Stopped);
    worker_of(&mut bench, 1, 100, Some(MINUTE * 40));
    bench.wait(MINUTE / 4);
    assert_eq!(gets(&bench, key(job, 99)).1, before);
    bench.state.check_invariants();
}

#[test]
fn very_many_submits_are_looked_at_in_portions() {
    let mut bench = Bench::new();
    let mut jobs = Vec::new();
    for _ in 0..700 {
        jobs.push(bench.submit(sized(1, FirstMemory::Share, |_| {})));
    }
    let worker = worker_of(&mut bench, 1, 100, None);
    let has_guess = |job: &&JobId| gets(&bench, key(**job, 0)).0 != 100;
    assert_eq!(jobs.iter().filter(has_guess).count(), 0);
    bench.finish_all();
    bench.leave(worker, LostReason::Stopped);
    bench.wait(MINUTE);
    assert!(bench.is_quiet(), "nothing is left to look at");
}

#[test]
fn what_was_learned_survives_a_restart() {
    let mut bench = Bench::new();
    let worker = worker_of(&mut bench, 1, 8_000, Some(MINUTE * 600));
    let job = bench.submit(sized(100, FirstMemory::Share, |task| {
        task.learn.predict = None
    }));
    finish_some(&mut bench, worker, 15, (500, MINUTE));
    let before = gets(&bench, key(job, 99));
    assert!(before.0 < 540 && before.1 >= MINUTE, "{before:?}");
    bench.leave(worker, LostReason::Stopped);
    bench.restart();
    assert_eq!(gets(&bench, key(job, 99)).0, before.0);
    let worker = worker_of(&mut bench, 4, 8_000, Some(MINUTE * 600));
    assert_eq!(placed(&bench, worker), 4);
    bench.finish_all();
    assert_eq!(bench.counts(job).finished, 100);
}

#[test]
fn a_worker_near_its_end_starts_nothing_that_will_not_finish() {
    let mut bench = Bench::new();
    let old = worker_of(&mut bench, 1, 100, Some(MINUTE * 60));
    let job = bench.submit(tasks(100));
    finish_some(&mut bench, old, 20, (1, MINUTE * 10));
    let (_, needed) = gets(&bench, key(job, 99));
    assert!((MINUTE * 10..MINUTE * 12).contains(&needed), "{needed:?}");
    // Tasks that were sent ahead are left to the worker.
    bench.wait(MINUTE * 55);
    for (_, task) in bench.has(old) {
        bench.give_back(old, key(job, task));
    }
    assert_eq!(bench.has(old), []);
    let young = worker_of(&mut bench, 1, 100, Some(MINUTE * 60));
    assert!(!bench.has(young).is_empty());
    bench.state.check_invariants();
}

#[test]
fn what_has_grown_starts_nowhere_where_it_will_not_finish() {
    let mut bench = Bench::new();
    let old = worker_of(&mut bench, 1, 1_000, Some(MINUTE * 60));
    let first = FirstMemory::Given(Amount::whole(100));
    let job = bench.submit(sized(100, first, |task| {
        task.learn.predict = None;
        task.retry.delay = MINUTE * 30;
    }));
    let fails = |bench: &mut Bench| {
        let (_, task) = bench.has(old)[0];
        bench.start(old, key(job, task));
        end_with(
            bench,
            (old, key(job, task)),
            Outcome::OutOfMemory(None),
            (75, MINUTE),
        );
        key(job, task)
    };
    let early = fails(&mut bench);
    assert_eq!(gets(&bench, early).1, Duration::ZERO, "nothing is known");
    finish_some(&mut bench, old, 20, (1, MINUTE * 10));
    let needed = gets(&bench, key(job, 99)).1;
    assert!(needed >= MINUTE * 10, "{needed:?}");
    let late = fails(&mut bench);
    for task in [early, late] {
        assert_eq!(gets(&bench, task).1, needed, "{task:?}");
    }
    bench.wait(MINUTE * 55);
    for (_, task) in bench.has(old) {
        bench.give_back(old, key(job, task));
    }
    assert_eq!(bench.has(old), []);
    // The next server has the same information.
    bench.restart();
    let young = worker_of(&mut bench, 2, 1_000, Some(MINUTE * 60));
    bench.wait(MINUTE);
    for task in [early, late] {
        assert_eq!(gets(&bench, task).1, needed, "{task:?}");
    }
    assert!(!bench.has(young).is_empty());
    bench.state.check_invariants();
    // In the first half of each lifetime, every task may start.
    let short = worker_of(&mut bench, 1, 1_000, Some(MINUTE * 16));
    bench.wait(MINUTE);
    for task in [early, late] {
        assert_eq!(gets(&bench, task).1, gets(&bench, key(job, 99)).1);
        assert!(gets(&bench, task).1 <= MINUTE * 8, "{task:?}");
    }
    bench.state.check_invariants();
    bench.leave(short, LostReason::TimeLimitReached);
    bench.finish_all();
    assert_eq!(bench.counts(job).finished, 100);
    bench.state.check_invariants();
}

#[test]
fn what_was_cut_off_goes_where_more_time_is_left() {
    let mut bench = Bench::new();
    let old = worker_of(&mut bench, 1, 100, Some(MINUTE * 60));
    let job = bench.submit(tasks(100));
    bench.wait(MINUTE * 40);
    let young = worker_of(&mut bench, 1, 100, Some(MINUTE * 60));
    // The first task takes longer than its worker lives.
    bench.start(old, key(job, 0));
    bench.wait(MINUTE * 20);
    bench.leave(old, LostReason::TimeLimitReached);
    let (_, needed) = gets(&bench, key(job, 0));
    // It requires twice the time that it ran, but no more than the longest lifetime.
    assert!((MINUTE * 35..=MINUTE * 36).contains(&needed), "{needed:?}");
    assert_eq!(gets(&bench, key(job, 99)).1, Duration::ZERO);
    bench.wait(MINUTE * 10);
    assert!(!bench.has(young).contains(&(job.0, 0)));
    let fresh = worker_of(&mut bench, 100, 100, Some(MINUTE * 60));
    assert!(bench.has(fresh).contains(&(job.0, 0)));
    bench.finish_all();
    assert_eq!(bench.counts(job).finished, 100);
    bench.state.check_invariants();
}

#[test]
fn what_was_cut_off_is_remembered_after_a_restart() {
    let mut bench = Bench::new();
    let hour = Some(MINUTE * 60);
    let old = worker_of(&mut bench, 1, 100, hour);
    let job = bench.submit(tasks(100));
    bench.start(old, key(job, 0));
    bench.wait(MINUTE * 60);
    bench.leave(old, LostReason::TimeLimitReached);
    bench.restart();
    // No similar worker is known, so the task requires twice its run time.
    assert!(gets(&bench, key(job, 0)).1 >= MINUTE * 119);
    assert_eq!(gets(&bench, key(job, 1)).1, Duration::ZERO);
    // The requirement is limited by the largest lifetime, but not by a shorter remaining lifetime.
    let fresh = worker_of(&mut bench, 100, 100, hour);
    let aged = worker_of(&mut bench, 100, 100, Some(MINUTE * 20));
    bench.wait(MINUTE);
    let (_, needed) = gets(&bench, key(job, 0));
    assert!((MINUTE * 53..=MINUTE * 54).contains(&needed), "{needed:?}");
    assert!(bench.has(fresh).contains(&(job.0, 0)));
    assert!(!bench.has(aged).contains(&(job.0, 0)));
    bench.finish_all();
    assert_eq!(bench.counts(job).finished, 100);
    bench.state.check_invariants();
}

#[test]
fn what_was_cut_off_while_the_server_was_away_is_known() {
    let mut bench = Bench::new();
    let old = worker_of(&mut bench, 1, 100, Some(MINUTE * 60));
    let job = bench.submit(tasks(100));
    bench.wait(MINUTE * 20);
    bench.start(old, key(job, 0));
    bench.wait(MINUTE * 30);
    bench.skip(MINUTE * 30);
    bench.restart();
    bench.wait(MINUTE * 2);
    let attempts = bench.state.jobs()[&job].submits[0].tasks.attempts(0);
    let error = attempts[0].end.outcome.error_text();
    assert!(error.contains("its time limit was reached"), "{error}");
    assert!(gets(&bench, key(job, 0)).1 > MINUTE * 30);
}

#[test]
fn what_was_cut_off_on_the_only_worker_fits_the_next_one_like_it() {
    let mut bench = Bench::new();
    let hour = Some(MINUTE * 60);
    let old = worker_of(&mut bench, 1, 100, hour);
    let job = bench.submit(tasks(16));
    bench.wait(MINUTE * 15);
    bench.start(old, key(job, 0));
    bench.wait(MINUTE * 45);
    bench.leave(old, LostReason::TimeLimitReached);
    let (_, needed) = gets(&bench, key(job, 0));
    assert!((MINUTE * 46..=MINUTE * 54).contains(&needed), "{needed:?}");
    let next = worker_of(&mut bench, 16, 100, hour);
    assert!(bench.has(next).contains(&(job.0, 0)));
}

#[test]
fn what_was_cut_off_asks_for_no_more_time_than_there_still_is() {
    let mut bench = Bench::new();
    let old = worker_of(&mut bench, 2, 100, Some(MINUTE * 60));
    let long = worker_of(&mut bench, 1, 100, Some(MINUTE * 600));
    let job = bench.submit(tasks(300));
    let cut = bench.has(old)[..2].to_vec();
    for (_, task) in &cut {
        bench.start(old, key(job, *task));
    }
    bench.wait(MINUTE * 60);
    bench.leave(old, LostReason::TimeLimitReached);
    let (_, needed) = gets(&bench, key(job, cut[0].1));
    assert!(needed > MINUTE * 119, "{needed:?}");
    bench.leave(long, LostReason::Stopped);
    let next = worker_of(&mut bench, 2, 100, Some(MINUTE * 60));
    bench.wait(MINUTE);
    let (_, needed) = gets(&bench, key(job, cut[0].1));
    assert!((MINUTE * 53..=MINUTE * 54).contains(&needed), "{needed:?}");
    bench.finish_all();
    assert_eq!(bench.counts(job).finished, 300);
    assert!(!bench.state.workers()[&next].knows_templates());
}

#[test]
fn nothing_is_foreseen_where_nobody_ends_or_where_it_is_not_wanted() {
    let hour = Some(MINUTE * 60);
    for (time_limit, predict, is_call) in [
        (None, None, false),
        (hour, Some(0), false),
        (hour, None, true),
    ] {
        let mut bench = Bench::new();
        let worker = worker_of(&mut bench, 1, 100, time_limit);
        let job = bench.submit(tasks_with(100, |task| {
            task.learn.predict = predict;
            task.is_call = is_call;
        }));
        finish_some(&mut bench, worker, 20, (1, MINUTE));
        assert_eq!(gets(&bench, key(job, 99)).1, Duration::ZERO);
    }
    // Prediction is not worthwhile for short tasks.
    let mut bench = Bench::new();
    let worker = worker_of(&mut bench, 1, 100, Some(MINUTE));
    let job = bench.submit(tasks(100));
    finish_some(&mut bench, worker, 20, (1, Duration::from_millis(300)));
    assert_eq!(gets(&bench, key(job, 99)).1, Duration::ZERO);
}

#[test]
fn tasks_that_take_longer_than_anybody_lives_still_have_their_chance() {
    let mut bench = Bench::new();
    let worker = worker_of(&mut bench, 1, 100, Some(MINUTE * 60));
    let job = bench.submit(tasks(100));
    finish_some(&mut bench, worker, 20, (1, MINUTE * 300));
    let at_most = |bench: &Bench, most: Duration| {
        let (_, needed) = gets(bench, key(job, 99));
        assert!(most * 4 / 5 <= needed && needed <= most, "{needed:?}");
    };
    at_most(&bench, MINUTE * 30);
    // In the first half of each lifetime, every task may start. This includes workers that an
    // allocation queue would start.
    bench.add_queue(&[("cpus", 640_000)], MINUTE * 20);
    bench.wait(MINUTE);
    at_most(&bench, MINUTE * 10);
}

#[test]
fn what_was_learned_leaves_the_workers_with_a_job_that_is_closed() {
    let mut bench = Bench::new();
    let worker = worker_of(&mut bench, 2, 8_000, None);
    let job = bench.open(None);
    bench.submit(into(job, sized(40, FirstMemory::Share, |_| {})));
    bench.finish_all();
    assert!(bench.state.workers()[&worker].knows_templates());
    bench.close(job);
    assert!(!bench.state.workers()[&worker].knows_templates());
}

#[test]
fn a_cancel_ends_what_was_moved_to_another_queue() {
    let mut bench = Bench::new();
    let worker = worker_of(&mut bench, 2, 8_000, Some(MINUTE * 60));
    let job = bench.submit(sized(500, FirstMemory::Share, |task| {
        task.learn.predict = None
    }));
    let other = bench.submit(tasks(3));
    finish_some(&mut bench, worker, 12, (500, MINUTE));
    bench.cancel(job);
    assert_eq!(bench.counts(job).unfinished(), 0);
    bench.state.check_invariants();
    bench.finish_all();
    assert_eq!(bench.phase(key(other, 2)), Phase::Finished);
}
