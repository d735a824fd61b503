//! Snapshots of every output. Times, ids and paths are fixed by the messages.

use super::*;
use hq_protocol::{client, common};
use std::path::Path;

mod job;
mod sample;
mod stream;
mod task;
mod worker;

const MODES: [OutputMode; 3] = [OutputMode::Cli, OutputMode::Json, OutputMode::Quiet];

/// A terminal with unlimited width that understands colors.
const COLORED: Look = Look {
    colors: true,
    columns: None,
};

fn written(mode: OutputMode, write: impl FnOnce(Output, Out<'_>) -> io::Result<()>) -> String {
    let look = Look::default();
    let mut bytes = Vec::new();
    write(Output { mode, look }, &mut bytes).expect("memory does not fail");
    let text = String::from_utf8(bytes).expect("utf-8");
    assert!(!text.contains('\x1b'), "no escape sequence without colours");
    text
}

fn print(mode: OutputMode, view: &impl View) -> String {
    written(mode, |output, out| output.show(out, view))
}

/// Returns the concatenated output of all three modes.
fn print_all(view: &impl View) -> String {
    MODES.map(|mode| print(mode, view)).join("---\n")
}

#[test]
fn server_info_in_every_mode() {
    let info = sample::server();
    insta::assert_snapshot!(print_all(&ServerView { info: &info, dir: Some(Path::new("/home/u/.hq-server")) }), @r#"
    +------------------+-------------------------+
    | Server directory | /home/u/.hq-server      |
    | Server UID       | hY0C00                  |
    | Client host      | login1                  |
    | Client port      | 35973                   |
    | Worker host      | login1                  |
    | Worker port      | 35435                   |
    | Version          | 0.1.0-dev               |
    | Pid              | 28998                   |
    | Start date       | 2026-11-21 08:15:48 UTC |
    | Journal path     |                         |
    +------------------+-------------------------+
    ---
    {
      "client_host": "login1",
      "client_port": 35973,
      "journal_path": null,
      "pid": 28998,
      "server_dir": "/home/u/.hq-server",
      "server_uid": "hY0C00",
      "start_date": "2026-11-21T08:15:48.261653512Z",
      "version": "0.1.0-dev",
      "worker_host": "login1",
      "worker_port": 35435
    }
    ---
    /home/u/.hq-server
    "#);
    insta::assert_snapshot!(print(OutputMode::Quiet, &ServerView { info: &info, dir: None }), @"");
    let json = print(
        OutputMode::Json,
        &ServerView {
            info: &info,
            dir: None,
        },
    );
    assert!(json.contains("\"server_dir\": null"));
}

#[test]
fn commands_without_output_print_an_object_in_json() {
    assert_eq!(print_all(&()), "---\n{}\n---\n");
}

#[test]
fn colours_are_used_only_on_demand() {
    let jobs = [sample::summary(1, "work", false, sample::stats(0, 2, 1))];
    let jobs: Vec<_> = jobs.iter().collect();
    let view = JobListView {
        jobs: &jobs,
        total: 1,
        with_reason: false,
        progress_at_ns: None,
        is_all: true,
    };
    let mut bytes = Vec::new();
    view.table(&mut bytes, COLORED).expect("memory");
    let text = String::from_utf8(bytes).expect("utf-8");
    assert!(
        text.contains("\x1b[1m") && text.contains("FAILED"),
        "{text:?}"
    );
}
