//! Tests of keys, clicks and news.

use hq_core::curve::{Asked, Curve};
use hq_core::task::TaskState;
use hq_protocol::client::TaskStats;

use super::*;
use crate::command::dashboard::model::{TasksOf, UsageView};

fn job(id: u32, name: &str, failed: u32) -> JobSummary {
    JobSummary {
        id,
        name: name.to_owned(),
        stats: Some(TaskStats {
            finished: 10,
            failed,
            ..TaskStats::default()
        }),
        ..JobSummary::default()
    }
}

fn app() -> App {
    let theme = Theme {
        colors: false,
        unicode: true,
    };
    let mut app = App::new("server".to_owned(), theme, None);
    app.on_snapshot(Snapshot {
        jobs: vec![
            job(1, "sweep", 0),
            job(2, "train", 7),
            job(3, "sweep-again", 3),
        ],
        workers: vec![WorkerInfo {
            id: 9,
            ..WorkerInfo::default()
        }],
        ..Snapshot::default()
    });
    app.queues = Some(vec![Queue {
        id: 4,
        is_paused: true,
        ..Queue::default()
    }]);
    app
}

/// Presses keys. Returns the action that was confirmed.
fn press(app: &mut App, keys: &str) -> Option<Action> {
    for c in keys.chars() {
        let code = match c {
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            c => Char(c),
        };
        app.on_event(&Event::Key(KeyEvent::new(code, KeyModifiers::NONE)));
    }
    app.actions.pop()
}

fn wanted(app: &App) -> TasksWanted {
    app.tasks.as_ref().expect("a list").wanted.clone()
}

fn log_of(app: &App) -> Option<(LogKey, u32)> {
    app.log.as_ref().map(|log| (log.key, log.opening))
}

fn ids(app: &App) -> Vec<u32> {
    app.visible_jobs().iter().map(|job| job.id).collect()
}

#[test]
fn jobs_are_sorted_and_searched() {
    let mut app = app();
    press(&mut app, "2");
    assert_eq!(ids(&app), [3, 2, 1]);
    press(&mut app, "r");
    assert_eq!(ids(&app), [1, 2, 3]);
    press(&mut app, "sss");
    assert_eq!((app.order(), ids(&app)), ("failed", vec![1, 3, 2]));
    press(&mut app, "/swe\n");
    assert_eq!(ids(&app), [1, 3]);
    press(&mut app, "/\x1b");
    assert_eq!(ids(&app).len(), 3);
}

#[test]
fn actions_are_asked_about_and_only_then_done() {
    let mut app = app();
    assert_eq!(press(&mut app, "2c"), None);
    assert_eq!(app.dialog, None, "it is over");
    assert_eq!(
        app.told.as_deref(),
        Some("job 3 is over: there is nothing to cancel")
    );
    let snapshot = app.snapshot.as_mut().expect("a snapshot");
    let stats = snapshot.jobs[2].stats.as_mut();
    stats.expect("counts").waiting = 1_200;
    assert_eq!(press(&mut app, "2c"), None);
    let text = app.dialog.as_ref().map(|question| question.text.as_str());
    let wanted =
        "Cancel job 3 `sweep-again`? This drops 1 200 waiting tasks and ends 0 running tasks.";
    assert_eq!(text, Some(wanted));
    assert_eq!(press(&mut app, "n"), None);
    assert_eq!(app.dialog, None);
    assert_eq!(press(&mut app, "cy"), Some(Action::CancelJob(3)));
    assert_eq!(press(&mut app, "Ry"), Some(Action::ResubmitFailed(3)));
    assert_eq!(press(&mut app, "3xy"), Some(Action::StopWorker(9)));
    assert_eq!(press(&mut app, "4py"), Some(Action::ResumeQueue(4)));
    // Without a selection, no question appears.
    assert_eq!(press(&mut app, "5cy"), None);
    assert_eq!(press(&mut app, "1xy"), None);
}

#[test]
fn a_job_is_opened_and_its_failures_are_walked() {
    let mut app = app();
    press(&mut app, "2j\n");
    assert_eq!(app.job, Some(2));
    let asks = |app: &App, topic| app.focus().topics.contains(&topic);
    assert!(asks(&app, Topic::Job(2)));
    let failure = |task| TaskRow {
        job: 2,
        task,
        ..TaskRow::default()
    };
    let view = |job| JobView {
        job,
        failures: vec![failure(5), failure(6)],
        ..JobView::default()
    };
    app.on_job(view(1));
    assert_eq!(app.view, None, "of a job that is no longer open");
    app.on_job(view(2));
    assert!(asks(&app, Topic::Output(2, 5)));
    press(&mut app, "jjj");
    assert!(asks(&app, Topic::Output(2, 6)));
    press(&mut app, "\x1b");
    assert!(!asks(&app, Topic::Job(2)) && !asks(&app, Topic::Output(2, 6)));
    assert_eq!(app.place(), Place::Jobs);
    press(&mut app, "q");
    assert!(app.has_quit);
}

fn task(task: u32, state: TaskState) -> TaskRow {
    TaskRow {
        job: 2,
        task,
        state,
        ..TaskRow::default()
    }
}

/// A job with a list of two tasks: one failed, one waits.
fn with_tasks() -> App {
    let mut app = app();
    press(&mut app, "2ja");
    let wanted = wanted(&app);
    assert_eq!((wanted.of, app.job), (TasksOf::Job(2), Some(2)));
    app.on_tasks(TaskPage {
        wanted,
        rows: vec![task(5, TaskState::Failed), task(6, TaskState::Waiting)],
        is_cut: None,
    });
    app
}

#[test]
fn enter_leads_to_the_output_and_esc_back_step_by_step() {
    let mut app = with_tasks();
    press(&mut app, "\n");
    let stderr = LogKey {
        job: 2,
        task: 5,
        is_stderr: true,
    };
    assert_eq!(
        log_of(&app),
        Some((stderr, 1)),
        "of a failure what it complained of"
    );
    press(&mut app, "y");
    assert!(app.focus().topics.contains(&Topic::Path(stderr)));
    app.on_path(Ok("/out".to_owned()));
    assert_eq!(app.copied.as_deref(), Some("/out"));
    assert!(!app.focus().topics.contains(&Topic::Path(stderr)));
    press(&mut app, "o");
    let stdout = LogKey {
        is_stderr: false,
        ..stderr
    };
    assert_eq!(log_of(&app), Some((stdout, 2)));
    let part = |key, opening| LogPart {
        key,
        opening,
        is_first: true,
        is_cut: false,
        bytes: b"text\n".to_vec(),
        note: None,
    };
    app.on_log(part(stderr, 2));
    assert_eq!(app.log.as_ref().map(Log::len), Some(0), "of another output");
    app.on_log(part(stdout, 2));
    assert_eq!(app.log.as_ref().map(Log::len), Some(1));
    press(&mut app, "/nowhere\n");
    assert_eq!(app.told.as_deref(), Some("no line has `nowhere`"));
    press(&mut app, "\x1b");
    assert!(app.log.is_some(), "first the search ends");
    press(&mut app, "\x1b");
    assert!(app.log.is_none() && app.tasks.is_some());
    press(&mut app, "\n\x1b\n");
    assert_eq!(
        log_of(&app),
        Some((stderr, 4)),
        "one that is opened again is read again, however quickly"
    );
    app.on_log(part(stderr, 3));
    assert_eq!(app.log.as_ref().map(Log::len), Some(0), "of the one before");
    press(&mut app, "\x1b");
    press(&mut app, "j\n");
    assert_eq!(
        app.told.as_deref(),
        Some("task 6 is waiting: it has written nothing")
    );
    press(&mut app, "/failed\n\x1b");
    assert_eq!(wanted(&app).filter, "");
    press(&mut app, "\x1b");
    assert!(app.tasks.is_none() && app.job == Some(2));
    press(&mut app, "\x1b\x1b");
    assert_eq!((app.job, app.tab), (None, Place::Overview));
}

fn curve() -> Curve {
    Curve {
        spacing: std::time::Duration::from_secs(2),
        memory_peak_kib: 1,
        cpu_peak_milli: 1,
        memory: [1].into(),
        cpu: [1].into(),
        asked: Asked::default(),
        gpu: None,
    }
}

#[test]
fn attempts_are_walked_over_an_output_and_the_next_task_begins_with_its_last() {
    let mut app = with_tasks();
    press(&mut app, "\n");
    let key = app.log.as_ref().expect("it is open").key;
    let view = |task, attempts: &[usize]| UsageView {
        job: 2,
        task,
        attempts: 3,
        curves: attempts.iter().map(|at| (*at, curve())).collect(),
    };
    let attempt = |app: &App| app.usage.shown(key).map(|(_, attempt, _)| attempt);
    assert_eq!(attempt(&app), None);
    app.usage.on_view(view(5, &[1, 2]));
    assert_eq!(attempt(&app), Some(2));
    app.usage.on_view(view(5, &[1, 2, 3]));
    assert_eq!(attempt(&app), Some(3), "who looks at the last one goes on");
    press(&mut app, "[[[");
    app.usage.on_view(view(5, &[1, 2, 3]));
    assert_eq!(attempt(&app), Some(1));
    press(&mut app, "]u");
    assert_eq!((attempt(&app), app.usage.is_hidden), (Some(2), true));
    app.usage.on_view(view(6, &[1, 3]));
    assert_eq!(attempt(&app), None, "of another task");
    app.usage.on_view(view(5, &[1, 3]));
    assert_eq!(attempt(&app), Some(3));
}

#[test]
fn single_tasks_are_canceled_from_the_list_and_from_their_output() {
    let mut app = with_tasks();
    let cancel = |task| Some(Action::CancelTask(2, task));
    assert_eq!(press(&mut app, "c"), None);
    assert_eq!(
        app.told.as_deref(),
        Some("task 5 has failed: there is nothing to cancel")
    );
    press(&mut app, "jc");
    let text = app.dialog.as_ref().map(|question| question.text.clone());
    let expected =
        "Cancel task 6 of job 2? The job goes on without it and what depends on it. It is not run.";
    assert_eq!(text.as_deref(), Some(expected));
    assert_eq!(press(&mut app, "n"), None, "not without a yes");
    assert_eq!(press(&mut app, "cy"), cancel(6));
    // The list is not yet that of the filter.
    press(&mut app, "/other\nc");
    assert!(app.dialog.is_none());
    press(&mut app, "/\n");
    // Its output; the list of failures does not contain its state.
    app.tasks = None;
    app.log = Some(Log::new(
        LogKey {
            job: 2,
            task: 7,
            is_stderr: false,
        },
        1,
    ));
    assert_eq!(press(&mut app, "cy"), cancel(7));
}

#[test]
fn jobs_and_tasks_are_held_released_and_signaled() {
    let mut app = app();
    press(&mut app, "2h");
    assert_eq!(
        app.told.as_deref(),
        Some("job 3 is over: there is nothing to hold")
    );
    let snapshot = app.snapshot.as_mut().expect("a snapshot");
    let stats = snapshot.jobs[2].stats.as_mut().expect("counts");
    (stats.waiting, stats.running) = (5, 1);
    press(&mut app, "h");
    let text = app.dialog.as_ref().map(|question| question.text.as_str());
    let wanted = "Hold job 3 `sweep-again`? This keeps 5 waiting tasks from starting until you release it, and does not end 1 running task.";
    assert_eq!(text, Some(wanted));
    assert_eq!(press(&mut app, "n"), None, "not without a yes");
    assert_eq!(press(&mut app, "hy"), Some(Action::Hold(3, None, true)));
    assert_eq!(press(&mut app, "Hy"), Some(Action::Hold(3, None, false)));
    let mut app = with_tasks();
    for (keys, why) in [
        ("h", "task 5 has failed: there is nothing to hold"),
        ("H", "task 5 is not held"),
        ("S", "task 5 is not running"),
        ("jS", "task 6 is not running"),
    ] {
        assert_eq!(press(&mut app, keys), None);
        assert_eq!(app.told.as_deref(), Some(why));
    }
    let hold = |is_held| Some(Action::Hold(2, Some(6), is_held));
    assert_eq!(press(&mut app, "hy"), hold(true));
    assert_eq!(press(&mut app, "Hy"), hold(false));
    let page = app.tasks.as_mut().and_then(|tasks| tasks.page.as_mut());
    page.expect("a page").rows[1].state = TaskState::Running;
    assert_eq!(press(&mut app, "h"), None);
    assert_eq!(app.told.as_deref(), Some("task 6 is running already"));
    let signal = |name: &str| Some(Action::SignalTask(2, 6, name.parse().expect("a signal")));
    assert_eq!(press(&mut app, "S1"), signal("SIGUSR1"));
    assert_eq!(press(&mut app, "S7"), signal("SIGCONT"));
    assert_eq!(press(&mut app, "Sy"), None, "`y` names no signal");
    assert_eq!(app.dialog, None);
}

#[test]
fn a_problem_leads_to_what_it_is_about_and_is_acknowledged() {
    let mut app = app();
    let problem = |id: &str, kind: &str, subject| Problem {
        id: id.to_owned(),
        kind: kind.to_owned(),
        subject,
        ..Problem::default()
    };
    let node = Problem {
        host: Some("n9".to_owned()),
        worker: Some(9),
        ..problem("b", "node", None)
    };
    app.problems = Some(vec![
        problem("a", "failing-job", Some(1)),
        node,
        problem("c", "queue", Some(4)),
    ]);
    press(&mut app, "\n");
    assert_eq!((app.tab, app.job), (Place::Jobs, Some(1)));
    press(&mut app, "1j\n");
    assert_eq!((app.tab, app.selected(Place::Workers)), (Place::Workers, 0));
    press(&mut app, "\n");
    assert_eq!(wanted(&app).of, TasksOf::Worker(9));
    press(&mut app, "1j\n");
    assert_eq!(app.tab, Place::Allocations);
    press(&mut app, "\n");
    assert_eq!(
        app.told.as_deref(),
        Some("no worker of queue 4 is connected")
    );
    let asked = Action::Acknowledge("c".to_owned());
    assert_eq!(press(&mut app, "1Ay"), Some(asked));
}

#[test]
fn an_event_leads_to_its_job_or_worker() {
    let mut app = app();
    let event = |job, worker| EventRow {
        job,
        worker,
        ..EventRow::default()
    };
    app.events = vec![event(None, Some(9)), event(Some(3), None)];
    press(&mut app, "5\n");
    assert_eq!(app.tab, Place::Workers);
    press(&mut app, "5j\n");
    assert_eq!((app.tab, app.job), (Place::Jobs, Some(3)));
}

#[test]
fn a_replay_moves_in_its_bounds_and_changes_nothing() {
    let mut app = app();
    app.replay = Some(Replay {
        from_ns: 0,
        to_ns: 60_000_000_000,
        at_ns: 60_000_000_000,
        is_playing: false,
    });
    let at = |app: &App| app.replay.expect("a replay").at_ns;
    press(&mut app, "]");
    assert_eq!(at(&app), 60_000_000_000);
    press(&mut app, "[");
    assert_eq!(at(&app), 57_000_000_000);
    press(&mut app, " ");
    app.tick(1_000_000_000);
    assert_eq!(at(&app), 59_000_000_000);
    app.tick(1_000_000_000);
    assert_eq!(app.replay.map(|replay| replay.is_playing), Some(false));
    assert_eq!(press(&mut app, "2cy"), None);
}

#[test]
fn the_mouse_turns_pages_and_opens_rows() {
    let mut app = app();
    app.hits = Hits {
        tabs: vec![Rect::new(0, 0, 5, 1), Rect::new(5, 0, 5, 1)],
        rows: Rect::new(0, 4, 80, 10),
        ..Hits::default()
    };
    let click = |app: &mut App, column, row| {
        app.on_event(&Event::Mouse(MouseEvent {
            kind: MouseEventKind::Down(MouseButton::Left),
            column,
            row,
            modifiers: KeyModifiers::NONE,
        }))
    };
    click(&mut app, 6, 0);
    assert_eq!(app.tab, Place::Jobs);
    click(&mut app, 6, 5);
    assert_eq!(app.selected(Place::Jobs), 1);
    click(&mut app, 6, 13);
    assert_eq!(app.selected(Place::Jobs), 1);
    click(&mut app, 6, 5);
    assert_eq!(app.job, Some(2));
}

#[test]
fn more_tasks_are_asked_for_at_the_last_row_and_those_of_another_filter_are_not_shown() {
    let mut app = with_tasks();
    let page = |app: &App, rows: usize| {
        let wanted = wanted(app);
        TaskPage {
            is_cut: (rows >= wanted.count).then_some("more"),
            rows: vec![TaskRow::default(); rows],
            wanted,
        }
    };
    let count = |app: &App| wanted(app).count;
    app.on_tasks(page(&app, TASKS));
    press(&mut app, "j");
    assert_eq!(count(&app), TASKS);
    press(&mut app, "G");
    assert_eq!(count(&app), 2 * TASKS);
    app.on_tasks(page(&app, TASKS + 3));
    press(&mut app, "G");
    assert_eq!(count(&app), 2 * TASKS, "there are no more");
    assert_eq!(app.selected(Place::Tasks), TASKS + 2);
    let old = page(&app, 3);
    press(&mut app, "/7");
    app.on_tasks(old);
    let shown = |app: &App| app.tasks.as_ref().map(|tasks| tasks.rows().len());
    assert_eq!(shown(&app), Some(TASKS + 3));
    app.on_tasks(page(&app, 1));
    assert_eq!(shown(&app), Some(1));
}
