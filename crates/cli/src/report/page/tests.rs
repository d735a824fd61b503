//! Tests the text of the page.

use super::super::Step;
use super::*;

const HOUR_NS: i64 = 3_600_000_000_000;

fn sample() -> Report {
    Report {
        journal: "<b>run</b>.db".to_owned(),
        from_ns: 0,
        to_ns: HOUR_NS,
        steps: vec![
            Step {
                running: 2.0,
                cores_used: 2.0,
                cores: 8.0,
                workers: 1.0
            };
            401
        ],
        workers: vec![WorkerLife {
            id: 1,
            host: "n\"1".to_owned(),
            from_ns: 0,
            to_ns: HOUR_NS,
            cores: 8.0,
            used_core_s: 7_200.0,
            reason: None,
        }],
        totals: Totals {
            jobs: 1,
            finished: 9,
            failed: 1,
        },
        costs: Costs {
            finished: 3_600.0,
            failed: 1_800.0,
            dropped: 900.0,
            repeated: 900.0,
            running: 0.0,
        },
        jobs: vec![JobFigures {
            id: 7,
            name: "<script>alert(1)</script>".to_owned(),
            task_count: 10,
            finished: 9,
            failed: 1,
            core_s: 7_200.0,
            failed_core_s: 3_600.0,
            run_us: [1_000_000, 2_000_000, 3_000_000, 4_000_000],
            run_times: vec![0; RUN_BOUNDS.len() + 1],
            memory_asked: 4 << 30,
            memory_used: 1 << 30,
        }],
        failures: vec![Failures {
            job: 7,
            error: "exit code 3 & more".to_owned(),
            host: "n1".to_owned(),
            count: 1,
            task: 4,
            said: Some("no <index> for chr12".to_owned()),
            params: "lr=<0.1>".to_owned(),
        }],
        ..Report::default()
    }
}

#[test]
fn nothing_that_a_user_named_is_markup() {
    let page = render(&sample());
    assert!(page.starts_with("<!DOCTYPE html>"));
    assert!(!page.contains("<script") && !page.contains("<b>run") && !page.contains("n\"1"));
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
    assert!(page.contains("exit code 3 &amp; more"));
    assert!(page.contains("<td>task 4: lr=&lt;0.1&gt;<td>no &lt;index&gt; for chr12<td>"));
    assert!(
        !page.contains("http://") && !page.contains("https://"),
        "nothing is loaded from elsewhere"
    );
}

#[test]
fn cost_and_hints_follow_from_the_figures() {
    let report = sample();
    let page = render(&report);
    for part in [
        "<b>2</b>core-hours used",
        "<b>1</b>core-hours wasted",
        "<b>6</b>core-hours idle",
        "canceled or given up<td class=\"n\">0.25<td class=\"n\">3.1 %",
        "<b>8</b>core-hours offered",
        "<b>25 %</b>of the cores",
    ] {
        assert!(page.contains(part), "no {part}");
    }
    let hints = hints(&report);
    assert!(
        hints[0]
            .starts_with("1 of 1 workers were idle for more than half of their life: 6 core-hours"),
        "{hints:?}"
    );
    assert!(hints[1].contains("of memory and used at most"), "{hints:?}");
    assert_eq!(hints.len(), 2, "{hints:?}");
}

#[test]
fn it_opens_with_one_sentence() {
    let mut report = sample();
    report.jobs[0].name = "train".to_owned();
    let mut sentence = |change: fn(&mut Report)| {
        change(&mut report);
        summary(&report)
    };
    let all = "9 tasks finished and 1 failed; 25 % of 8 core-hours were used, 1 of them wasted";
    assert_eq!(
        sentence(|_| {}),
        format!("{all}, mostly by job 7 (train): no <index> for chr12.")
    );
    assert_eq!(
        sentence(|report| report.failures[0].error = "time limit reached".to_owned()),
        format!("{all}, mostly by job 7 (train): time limit reached.")
    );
    assert_eq!(
        sentence(|report| {
            report.failures[0].error = "exit code 3".to_owned();
            report.failures[0].said = None;
        }),
        format!("{all}, mostly by job 7 (train): exit code 3.")
    );
    assert_eq!(
        sentence(|report| report.costs.dropped = 3_600.0),
        "9 tasks finished and 1 failed; 34 % of 8 core-hours were used, 1.75 of them wasted, mostly by tasks that were canceled or given up."
    );
    assert_eq!(
        sentence(|report| {
            report.costs = Costs {
                failed: 1.0,
                ..Costs::default()
            };
        }),
        "9 tasks finished and 1 failed; 0 % of 8 core-hours were used, < 0.01 of them wasted, mostly by job 7 (train): exit code 3."
    );
    assert_eq!(
        sentence(|report| {
            report.costs = Costs::default();
            report.totals.failed = 0;
            report.totals.finished = 1;
        }),
        "1 task finished; 0 % of 8 core-hours were used."
    );
    assert_eq!(
        sentence(|report| report.workers.clear()),
        "1 task finished; no worker was there."
    );
}

#[test]
fn run_times_are_bars_where_they_differ() {
    let mut report = sample();
    assert!(!render(&report).contains("aria-label=\"run times\""));
    report.jobs[0].run_times[3] = 9;
    assert!(
        !render(&report).contains("aria-label=\"run times\""),
        "all alike"
    );
    report.jobs[0].run_times[5] = 1;
    let page = render(&report);
    assert!(page.contains(": 9</title>"), "{page}");
    assert_eq!(
        page.matches("<rect class=\"bar\"").count(),
        2 + report.workers.len()
    );
}

#[test]
fn what_went_wrong_has_an_example() {
    use hq_core::diagnosis::Finding;
    let mut report = sample();
    report.findings = vec![Finding {
        subject: Subject::FailingJob(7),
        severity: Severity::Error,
        title: "7 train".to_owned(),
        text: "1 of 10 tasks failed".to_owned(),
        part: 1,
        whole: 10,
    }];
    let page = render(&report);
    let expected = "1 of 10 tasks failed.<br>Task 4 with <b>lr=&lt;0.1&gt;</b> wrote last: <code>no &lt;index&gt; for chr12</code></li>";
    assert!(page.contains(expected), "{page}");
    assert!(page.contains("<a href=\"#job-7\">7</a>") && page.contains("<tr id=\"job-7\">"));
}

#[test]
fn a_page_about_very_many_jobs_is_short_and_says_what_it_leaves_out() {
    use hq_core::diagnosis::{Finding, Subject};
    let finding = |job| Finding {
        subject: Subject::StarvingJob(job),
        severity: Severity::Warning,
        title: format!("job {job}"),
        text: "waits".to_owned(),
        part: 1,
        whole: 1,
    };
    let mut report = sample();
    report.totals.jobs = 100_000;
    report.findings = (0..100_000).map(finding).collect();
    let page = render(&report);
    assert!(page.len() < 200_000, "{} bytes", page.len());
    assert!(page.contains("And 99 900 more"), "no count");
    assert!(page.contains("99 999 more jobs took less time"), "no count");
}

#[test]
fn nothing_offered_is_nothing_and_times_have_a_zone() {
    let page = render(&Report::default());
    assert!(page.contains("<b>0</b>core-hours offered"), "{page}");
    assert!(page.contains("UTC"), "{page}");
}
