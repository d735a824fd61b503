//! Keys, clicks and news, and what they change.

use crossterm::event::KeyModifiers;

use super::*;
use crate::dashboard::model::{Counts, QueueRow, WorkerRow};

fn job(id: u32, name: &str, failed: u64) -> JobRow {
    JobRow {
        id,
        name: name.to_owned(),
        is_open: false,
        counts: Counts {
            finished: 10,
            failed,
            ..Counts::default()
        },
    }
}

fn app() -> App {
    let mut app = App::new(
        "server".to_owned(),
        Theme {
            colors: false,
            unicode: true,
        },
        None,
    );
    app.on_news(News::Snapshot(Box::new(Snapshot {
        jobs: vec![
            job(1, "sweep", 0),
            job(2, "train", 7),
            job(3, "sweep-again", 3),
        ],
        workers: vec![WorkerRow {
            id: 9,
            ..WorkerRow::default()
        }],
        queues: vec![QueueRow {
            id: 4,
            is_paused: true,
            ..QueueRow::default()
        }],
        ..Snapshot::default()
    })));
    app
}

fn press(app: &mut App, keys: &str) -> Option<Ask> {
    let mut asked = None;
    for c in keys.chars() {
        let code = match c {
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            c => KeyCode::Char(c),
        };
        asked = app.on_event(&Event::Key(KeyEvent::new(code, KeyModifiers::NONE)));
    }
    asked
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
    assert_eq!((app.order, ids(&app)), (JobOrder::Failed, vec![1, 3, 2]));
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
    snapshot.jobs[2].counts.waiting = 1_200;
    assert_eq!(press(&mut app, "2c"), None);
    let text = app.dialog.as_ref().map(|question| question.text.as_str());
    let wanted = "Cancel job 3 `sweep-again`? 1 200 tasks are not run, 0 that run are ended.";
    assert_eq!(text, Some(wanted));
    assert_eq!(press(&mut app, "n"), None);
    assert_eq!(app.dialog, None);
    assert_eq!(press(&mut app, "cy"), Some(Ask::Do(Action::CancelJob(3))));
    assert_eq!(
        press(&mut app, "Ry"),
        Some(Ask::Do(Action::ResubmitFailed(3)))
    );
    assert_eq!(press(&mut app, "3xy"), Some(Ask::Do(Action::StopWorker(9))));
    assert_eq!(
        press(&mut app, "4py"),
        Some(Ask::Do(Action::ResumeQueue(4)))
    );
    // Where there is nothing to act upon nothing is asked.
    assert_eq!(press(&mut app, "5cy"), None);
    assert_eq!(press(&mut app, "1xy"), None);
}

#[test]
fn a_job_is_opened_and_its_failures_are_walked() {
    let mut app = app();
    press(&mut app, "2j\n");
    assert_eq!(app.focus().job, Some(2));
    assert_eq!(
        app.changed_focus(),
        Some(Ask::Look(Focus {
            job: Some(2),
            ..Focus::default()
        }))
    );
    assert_eq!(app.changed_focus(), None);
    let failure = |task| FailureRow {
        task,
        ..FailureRow::default()
    };
    let view = |job| JobView {
        job,
        failures: vec![failure(5), failure(6)],
        ..JobView::default()
    };
    app.on_news(News::Job(Box::new(view(1))));
    assert_eq!(app.view, None, "of a job that is no longer open");
    app.on_news(News::Job(Box::new(view(2))));
    assert_eq!(app.focus().task, Some(5));
    press(&mut app, "jjj");
    assert_eq!(app.focus().task, Some(6));
    press(&mut app, "\x1b");
    assert_eq!((app.focus(), app.tab), (Focus::default(), Tab::Jobs));
    press(&mut app, "q");
    assert!(app.has_quit);
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
        tabs: vec![(Rect::new(0, 0, 5, 1), 0), (Rect::new(5, 0, 5, 1), 1)],
        rows: Rect::new(0, 4, 80, 10),
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
    assert_eq!(app.tab, Tab::Jobs);
    click(&mut app, 6, 5);
    assert_eq!(app.jobs_table.selected(), Some(1));
    click(&mut app, 6, 13);
    assert_eq!(app.jobs_table.selected(), Some(1));
    click(&mut app, 6, 5);
    assert_eq!(app.job, Some(2));
}
