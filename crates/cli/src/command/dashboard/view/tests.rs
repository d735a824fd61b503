//! Contents of the screen, on a screen in memory.

use hq_core::curve::{Asked, Curve, GpuCurve, GpusGiven};
use hq_core::job::TaskTotals;
use hq_protocol::client::{
    AllocAllocation, JobSummary, LimitInfo, LimitUser, ResourceUse, RuntimeInfo, TaskStats,
    WorkerInfo, worker_info,
};
use hq_protocol::common::{
    IndexGroup, IndexGroups, ResourceDescriptor, ResourceItem, WorkerConfig, resource_item::Kind,
};
use hq_store::reader::run::EventRow;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;
use crate::command::dashboard::app::Replay;
use crate::command::dashboard::app::log::Log;
use crate::command::dashboard::model::{JobView, LogKey, LogPart, OutputTail, TaskRow, UsageView};
use crate::command::dashboard::question::{Action, Question};
use crate::source::{Obstacle, Queue, Share, Snapshot, problems};
use crate::text::clean;

const SECOND: i64 = 1_000_000_000;

fn worker(id: u32, host: &str, state: worker_info::State) -> WorkerInfo {
    let group = || IndexGroup {
        values: vec![String::new(); 4],
    };
    let groups = Kind::Groups(IndexGroups {
        groups: vec![group(), group()],
    });
    let item = |(name, kind): (&str, _)| ResourceItem {
        name: name.to_owned(),
        kind: Some(kind),
    };
    let used = |(name, used_units): (&str, _)| ResourceUse {
        resource: name.to_owned(),
        used_units,
    };
    WorkerInfo {
        id,
        state: state.into(),
        config: Some(WorkerConfig {
            hostname: host.to_owned(),
            resources: Some(ResourceDescriptor {
                items: [("cpus", groups), ("gpus/nvidia", Kind::SumUnits(20_000))]
                    .map(item)
                    .into(),
                ..ResourceDescriptor::default()
            }),
            ..WorkerConfig::default()
        }),
        runtime: Some(RuntimeInfo {
            running_tasks: 3,
            resources: [("cpus", 60_000), ("gpus/nvidia", 10_000)].map(used).into(),
            ..RuntimeInfo::default()
        }),
        ..WorkerInfo::default()
    }
}

fn paused_queue() -> Queue {
    let failed = hq_protocol::client::alloc_allocation::State::Failed;
    Queue {
        id: 5,
        name: "gpu".to_owned(),
        is_paused: true,
        is_failing: false,
        reason: "3 submissions failed: invalid partition".to_owned(),
        allocations: vec![AllocAllocation {
            id: "4711".to_owned(),
            state: failed.into(),
            workers: 2,
            ..AllocAllocation::default()
        }],
    }
}

/// A run with a broken node, a failing template and a starving queue.
fn sick_run() -> App {
    let theme = Theme {
        colors: true,
        unicode: true,
    };
    let mut app = App::new("server abc on login1".to_owned(), theme, None);
    let job = |id, name: &str, stats| JobSummary {
        id,
        name: clean(name),
        stats: Some(stats),
        ..JobSummary::default()
    };
    let train = TaskStats {
        finished: 2,
        failed: 40,
        ..TaskStats::default()
    };
    let big = TaskStats {
        waiting: 500,
        ..TaskStats::default()
    };
    for second in 1..=3 {
        let sweep = TaskStats {
            waiting: 899_000,
            running: 12,
            finished: 100_931 + second * 50,
            failed: 7,
            ..TaskStats::default()
        };
        app.on_snapshot(Snapshot {
            now_ns: i64::from(second) * SECOND,
            jobs: vec![
                job(1, "sweep", sweep),
                job(2, "train", train),
                job(3, "b\x1b[31mig", big),
            ],
            workers: vec![
                worker(1, "node1", worker_info::State::Running),
                worker(2, "node2", worker_info::State::Running),
                worker(3, "node3", worker_info::State::HeartbeatLost),
            ],
        });
    }
    app.queues = Some(vec![paused_queue()]);
    let share = |job, host: &str, error: Option<&str>, count| Share {
        job,
        worker: if host == "node2" { 2 } else { 1 },
        host: host.to_owned(),
        error: error.map(str::to_owned),
        count,
    };
    app.ended = vec![
        share(1, "node1", None, 100_981),
        share(1, "node2", Some("exit code 127"), 7),
        share(2, "node1", Some("exit code 3"), 40),
    ];
    let obstacles = [Obstacle {
        job: 3,
        why: "they ask for gpus".to_owned(),
    }];
    let snapshot = app.snapshot.as_ref().expect("a snapshot");
    let found = problems::find(snapshot, app.queues(), &app.ended, Some(&obstacles));
    app.problems = Some(found.into_iter().map(problems::problem).collect());
    app.events = vec![EventRow {
        at_ns: SECOND,
        job: None,
        worker: Some(3),
        kind: "worker-lost".to_owned(),
        data: serde_json::json!({"reason": "HeartbeatLost"}),
    }];
    app
}

fn screen(app: &mut App, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a screen");
    terminal.draw(|frame| draw(frame, app)).expect("a frame");
    terminal.backend().to_string()
}

#[track_caller]
fn shows(text: &str, wanted: &[&str]) {
    for part in wanted {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
}

#[test]
fn the_overview_names_what_is_wrong() {
    let text = screen(&mut sick_run(), 80, 24);
    shows(
        &text,
        &[
            "12 running",
            "47 failed",
            "2 of 3 jobs active",
            "2 workers (1 gone)",
            "cpus 12/16",
            "50.0 tasks/s",
            "60 s: cpus 75 % now",
            "! Broken node node2: 7 of 7 tasks failed there",
            "! Failing job 2 train: 40 of 42 tasks failed, mostly: exit code 3",
            "- Lost worker node3: its connection broke",
            "! Starving queue 5 gpu: asks for no allocations: 3 submissions failed",
            "- Starving job 3 b\u{fffd}[31mig: none of 500 waiting tasks runs: they ask for gpus",
            "q quit",
        ],
    );
}

#[test]
fn limits_have_their_place_if_there_are_any() {
    let mut app = sick_run();
    assert!(!screen(&mut app, 80, 24).contains("Limits"));
    let limit = |name: &str, bound: &str, used, waiting, users: &[(u32, u64)]| LimitInfo {
        name: name.to_owned(),
        bound: bound.to_owned(),
        used,
        users: users
            .iter()
            .map(|&(job, used)| LimitUser { job, used })
            .collect(),
        waiting,
        ..LimitInfo::default()
    };
    app.limits = vec![
        limit("api", "50/s", 0, 0, &[]),
        limit("db", "10", 10, 4_990, &[(7, 8), (9, 2)]),
    ];
    let text = screen(&mut app, 80, 24);
    shows(
        &text,
        &[
            " Limits ",
            "db     10      10 in use     4 990 waiting  by job 7 (8), job 9 (2)",
            "api  50/s       0 in use         0 waiting ",
            "Failing job",
        ],
    );
    let row = |what| text.lines().position(|line| line.contains(what));
    assert!(row("db ") < row("api "), "{text}");
    app.limits = (0..9).map(|_| app.limits[0].clone()).collect();
    shows(&screen(&mut app, 80, 24), &[" Limits (4 of 9) "]);
    assert!(!screen(&mut app, 60, 14).contains("Limits"), "no room");
}

#[test]
fn every_view_has_its_rows() {
    let mut app = sick_run();
    app.tab = Place::Jobs;
    shows(
        &screen(&mut app, 80, 24),
        &[
            "Jobs (3), by id down",
            "sweep",
            "running",
            "1 000 100",
            "40",
        ],
    );
    app.tab = Place::Workers;
    shows(
        &screen(&mut app, 80, 24),
        &[
            "Workers (2 of 3 connected)",
            "node3",
            "heartbeat lost",
            "Failed there",
            "broken?",
            "7 (100 %)",
            "6/8",
            "1/2",
            "in 2 NUMA nodes: 4 + 4",
        ],
    );
    app.tab = Place::Allocations;
    shows(
        &screen(&mut app, 80, 24),
        &[
            "Allocation queues (1)",
            "paused",
            "invalid partition",
            "4711",
        ],
    );
    app.tab = Place::Events;
    shows(
        &screen(&mut app, 80, 24),
        &["01-01 ", "worker lost", "HeartbeatLost"],
    );
    app.events = vec![EventRow {
        job: Some(2),
        kind: "job-completed".to_owned(),
        ..EventRow::default()
    }];
    let text = screen(&mut app, 80, 24);
    shows(
        &text,
        &["job completed", "job 2  train: 40 of 42 tasks failed"],
    );
    assert!(!text.contains("job-completed"), "{text}");
}

fn with_job(app: &mut App) {
    app.tab = Place::Jobs;
    app.job = Some(1);
    let good = TaskTotals {
        finished: 1_666,
        ..TaskTotals::default()
    };
    let mut bins = vec![good; 600];
    bins[300].failed = 1;
    for bin in &mut bins[500..] {
        *bin = TaskTotals {
            waiting: 1_666,
            ..TaskTotals::default()
        };
    }
    let failure = |task| TaskRow {
        job: 1,
        task,
        error: "exit code 127".to_owned(),
        host: "node2".to_owned(),
        params: "lr=0.1, seed=13".to_owned(),
        ..TaskRow::default()
    };
    app.on_job(JobView {
        is_partial: false,
        job: 1,
        ids: (1, 1_000_000),
        are_ids_known: true,
        waits: None,
        bins,
        failures: vec![failure(500_001), failure(17)],
        run_times: vec![
            (1_000, 0),
            (10_000, 90_000),
            (100_000, 10_000),
            (u64::MAX, 0),
        ],
    });
    app.output = Some(OutputTail {
        job: 1,
        task: 500_001,
        title: "stderr of task 500001".to_owned(),
        lines: vec!["first".to_owned(), "solver: not found".to_owned()],
    });
}

#[test]
fn one_failure_among_a_million_tasks_is_seen_with_its_output() {
    let mut app = sick_run();
    with_job(&mut app);
    for (width, height) in [(80, 24), (200, 60)] {
        let text = screen(&mut app, width, height);
        shows(
            &text,
            &[
                "Tasks 1 to 1 000 000",
                "2 failed, last first",
                "500 001",
                "exit code 127",
                "node2",
                "< 10 ms",
                "90 000",
                "stderr of task 500001",
                "solver: not found",
            ],
        );
        assert!(width < 200 || text.contains("lr=0.1, seed=13"), "{text}");
        let strip: String = text.lines().skip(4).take(3).collect();
        assert_eq!(strip.matches('X').count(), 1, "{text}");
        assert!(strip.contains('█') && strip.contains('·'), "{text}");
    }
}

#[test]
fn output_of_another_task_is_not_shown() {
    let mut app = sick_run();
    with_job(&mut app);
    app.select(Place::Job, 1);
    assert!(!screen(&mut app, 80, 24).contains("solver: not found"));
}

fn question() -> Question {
    Question {
        text: "Cancel job 1 `sweep`?".to_owned(),
        answers: vec![('y', "yes", Action::CancelJob(1))],
    }
}

#[test]
fn every_problem_is_named_on_small_screens() {
    for (width, height) in [(80, 24), (60, 20)] {
        let text = screen(&mut sick_run(), width, height);
        shows(
            &text,
            &[
                "Broken node node2",
                "Failing job 2",
                "Lost worker",
                "Starving queue 5",
                "Starving job 3",
                "? help  q quit",
            ],
        );
    }
    shows(&screen(&mut sick_run(), 60, 14), &["and ", " more"]);
}

#[test]
fn what_is_wrong_is_first_and_said_where_it_is_looked_at() {
    let mut app = sick_run();
    app.tab = Place::Workers;
    let text = screen(&mut app, 80, 24);
    shows(&text, &["Worker 2 on node2", "Broken node node2: 7 of 7"]);
    let row = |host| text.lines().position(|line| line.contains(host));
    assert!(row("node2") < row("node3"), "{text}");
    assert!(row("node3") < row("node1"), "{text}");
    app.tab = Place::Jobs;
    shows(&screen(&mut app, 80, 24), &["starving", "? help  q quit"]);
    app.job = Some(3);
    app.on_job(JobView {
        job: 3,
        waits: Some("none of 500 waiting tasks of job 3 runs".to_owned()),
        ..JobView::default()
    });
    let text = screen(&mut app, 80, 24);
    shows(&text, &["none of 500 waiting tasks"]);
}

#[test]
fn a_waiting_job_says_why_and_claims_no_ids_that_nobody_knows() {
    let mut app = sick_run();
    app.tab = Place::Jobs;
    app.job = Some(1);
    app.on_job(JobView {
        job: 1,
        ids: (0, 3),
        bins: vec![TaskTotals::default(); 4],
        waits: Some("all 2 cpus are busy".to_owned()),
        ..JobView::default()
    });
    let text = screen(&mut app, 80, 24);
    shows(
        &text,
        &[" 4 tasks, in order ", "waits: all 2 cpus are busy"],
    );
    assert!(!text.contains("Tasks 0 to 3"), "{text}");
}

#[test]
fn the_first_line_has_the_day_and_the_zone() {
    let mut app = sick_run();
    let first = |app: &mut App, width| {
        let text = screen(app, width, 24);
        text.lines().next().unwrap_or_default().to_owned()
    };
    let line = first(&mut app, 80);
    assert!(
        line.contains("1970-01-01") && line.contains(" UTC+"),
        "{line}"
    );
    assert!(!first(&mut app, 50).contains("1970"));
}

#[test]
fn nothing_breaks_on_any_size_or_without_data() {
    for empty in [true, false] {
        let mut app = sick_run();
        with_job(&mut app);
        if empty {
            app.snapshot = None;
            app.view = None;
        }
        for (tab, _) in Place::TABS {
            app.tab = tab;
            for (width, height) in [(1, 1), (40, 10), (41, 11), (80, 24), (500, 100), (10, 80)] {
                app.dialog = Some(question());
                app.is_help_open = true;
                screen(&mut app, width, height);
            }
        }
    }
    let mut app = App::new(String::new(), sick_run().theme, None);
    app.on_snapshot(Snapshot::default());
    let text = screen(&mut app, 80, 24);
    shows(
        &text,
        &["0 running", "Problems", "the server has not said yet"],
    );
    app.problems = Some(Vec::new());
    shows(
        &screen(&mut app, 80, 24),
        &["0 running", "nothing is wrong"],
    );
}

#[test]
fn plain_terminals_get_plain_characters() {
    let mut app = sick_run();
    with_job(&mut app);
    app.theme = Theme {
        colors: false,
        unicode: false,
    };
    let text = screen(&mut app, 80, 24);
    let strip: Vec<&str> = text.lines().skip(4).take(3).collect();
    assert!(strip.concat().contains('#'), "{text}");
    assert!(!text.contains('█'), "{text}");
}

#[test]
fn questions_and_trouble_are_on_top() {
    let mut app = sick_run();
    app.dialog = Some(question());
    app.trouble = Some("no server: connection refused".to_owned());
    shows(
        &screen(&mut app, 80, 24),
        &[
            "Cancel job 1 `sweep`?",
            "y  yes   any other key  no",
            "no server: connection",
        ],
    );
    app.dialog = None;
    app.replay = Some(Replay {
        from_ns: 0,
        to_ns: 100 * SECOND,
        at_ns: 25 * SECOND,
        is_playing: false,
    });
    shows(&screen(&mut app, 80, 24), &["25%", "Space play"]);
}

const KEY: LogKey = LogKey {
    job: 1,
    task: 17,
    is_stderr: false,
};

/// A quarter of the memory for half of the time, then all of it; one cpu, then none.
fn curve(memory_peak_kib: u64) -> Curve {
    let half = |first: u8, second: u8| {
        let points = [[first; 20], [second; 20]];
        points.concat().into_boxed_slice()
    };
    Curve {
        spacing: std::time::Duration::from_secs(2),
        memory_peak_kib,
        cpu_peak_milli: 1_000,
        memory: half(64, 255),
        cpu: half(255, 0),
        asked: Asked {
            memory_kib: 2 << 20,
            is_memory_limit: false,
            cpu_units: 20_000,
        },
        gpu: None,
    }
}

/// The output of a task is open; two of its three attempts have a curve.
fn with_log() -> App {
    let mut app = sick_run();
    app.log = Some(Log::new(KEY, 1));
    app.on_log(LogPart {
        key: KEY,
        opening: 1,
        is_first: true,
        is_cut: false,
        bytes: (1..=90)
            .flat_map(|line| format!("line {line}.\n").into_bytes())
            .collect(),
        note: None,
    });
    app.usage.on_view(UsageView {
        job: 1,
        task: 17,
        attempts: 3,
        curves: vec![(1, curve(4 << 20)), (3, curve(1 << 20))],
    });
    app
}

#[test]
fn what_a_task_used_is_above_its_output_beside_what_it_asked_for() {
    let mut app = with_log();
    for (width, height) in [(80, 24), (200, 60)] {
        let text = screen(&mut app, width, height);
        shows(
            &text,
            &[
                "MiB: top 1 024 of 2 048 asked for",
                "cpus: 0.50, top 1.00 of 2 asked for",
                "attempt 3 of 3, over 1m 20s",
                "[ ] other attempts",
                "line 90.",
            ],
        );
        assert!(width < 200 || text.contains("u usage"), "{text}");
        // Half of the output's rows are left at least.
        let lines = text.matches("line ").count();
        assert!(lines > usize::from(height) / 2, "{text}");
    }
    let text = screen(&mut app, 80, 24);
    let rows: Vec<Vec<char>> = text.lines().map(|row| row.chars().collect()).collect();
    // The text starts after the screen's quote and the frame. Rows from above: the line, the second
    // half, all of it.
    let memory = |row: usize| rows[3 + row][2..40].iter().collect::<String>();
    assert_eq!(memory(0), "▔".repeat(38), "{text}");
    let half = |one: &str, other: &str| one.repeat(19) + &other.repeat(19);
    assert_eq!(memory(1), half(" ", "▄"), "{text}");
    assert_eq!(memory(2), half("▃", "█"), "{text}");
}

#[test]
fn every_attempt_of_which_something_is_known_can_be_looked_at() {
    let mut app = with_log();
    app.usage.step(false);
    // Above the request: the curve hides the line.
    let text = screen(&mut app, 80, 24);
    shows(&text, &["MiB: top 4 096 of 2 048", "attempt 1 of 3"]);
    assert!(text.contains('─') || text.contains('▁'), "{text}");
    app.usage.step(false);
    shows(&screen(&mut app, 80, 24), &["attempt 1 of 3"]);
    app.usage.step(true);
    shows(&screen(&mut app, 80, 24), &["attempt 3 of 3"]);
    app.theme = Theme {
        colors: false,
        unicode: false,
    };
    let text = screen(&mut app, 80, 24);
    let is_plain = |c: char| c.is_ascii() || c == '\u{fffd}';
    assert!(text.contains('#') && text.chars().all(is_plain), "{text}");
}

#[test]
fn unknown_usage_and_small_screens_leave_all_rows_to_the_output() {
    let lines = |app: &mut App, height| {
        let text = screen(app, 80, height);
        assert!(!text.contains("MiB"), "{text}");
        text.matches("line ").count()
    };
    // The title contains the line that does not fit into the frame.
    let all = |height: u16| usize::from(height) - 5 + 1;
    for height in [10, 17] {
        assert_eq!(lines(&mut with_log(), height), all(height));
    }
    let mut app = with_log();
    app.usage.is_hidden = true;
    assert_eq!(lines(&mut app, 24), all(24));
    let mut app = with_log();
    app.usage.on_view(UsageView {
        job: 1,
        task: 17,
        attempts: 1,
        curves: Vec::new(),
    });
    assert_eq!(lines(&mut app, 24), all(24));
    assert!(!screen(&mut app, 200, 24).contains("u usage"));
    let mut app = with_log();
    app.log.as_mut().expect("it is open").key.task = 18;
    assert_eq!(lines(&mut app, 24), all(24), "that of another task");
}

/// The only attempt has this curve, with two GPUs that are busy in its second half.
fn with_gpus(mut curve: Curve) -> App {
    let halves = [[0; 20], [255; 20]].concat();
    curve.gpu = Some(Box::new(GpuCurve {
        busy_peak_milli: 1_900,
        memory_peak_kib: 30 << 20,
        busy: halves.clone().into(),
        memory: halves.into(),
        given: GpusGiven {
            units: 20_000,
            memory_kib: 160 << 20,
            is_memory_of_devices: true,
        },
    }));
    let mut app = with_log();
    app.usage.on_view(UsageView {
        job: 1,
        task: 17,
        attempts: 1,
        curves: vec![(1, curve)],
    });
    app
}

#[test]
fn gpus_are_below_the_rest_where_there_is_room_and_beside_it_otherwise() {
    let mut app = with_gpus(curve(1 << 20));
    let words = [
        "GPUs: 1.90, top 1.90 of 2 asked for",
        "GPU MiB: top 30 720 of 163 840",
        "with that of others there",
        "MiB: top 1 024 of 2 048 asked for",
        "line 90.",
    ];
    let text = screen(&mut app, 100, 50);
    shows(&text, &words);
    let row = |text: &str, words: &str| text.lines().position(|line| line.contains(words));
    assert!(row(&text, "GPUs:") > row(&text, "cpus:"), "{text}");
    let text = screen(&mut app, 200, 22);
    shows(&text, &words);
    assert_eq!(row(&text, "GPUs:"), row(&text, "cpus:"), "{text}");
}

#[test]
fn charts_break_on_no_size() {
    for (width, height) in [(40, 18), (41, 30), (63, 19), (500, 100), (60, 24)] {
        shows(&screen(&mut with_gpus(curve(1)), width, height), &["MiB"]);
        let mut app = with_log();
        shows(&screen(&mut app, width, height), &["MiB"]);
        // An empty curve, and more points than columns.
        let mut none = curve(0);
        none.cpu_peak_milli = 0;
        none.asked = Asked::default();
        none.memory = vec![0; 256].into();
        none.cpu = vec![0; 256].into();
        app.usage.on_view(UsageView {
            job: 1,
            task: 17,
            attempts: 1,
            curves: vec![(1, none)],
        });
        shows(&screen(&mut app, width, height), &["MiB: top 0 "]);
    }
}
