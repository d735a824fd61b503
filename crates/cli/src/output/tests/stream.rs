//! Snapshots of `output-log summary`, and tests of what colors add.

use super::*;

fn summary() -> hq_stream::Summary {
    hq_stream::Summary {
        files: 3,
        jobs: 2,
        tasks: 1_000,
        streams: 1_004,
        opened: 1,
        superseded: 4,
        sizes: [12_345_678, 0],
        superseded_sizes: [99, 1],
    }
}

#[test]
fn summary_in_every_mode() {
    let text = print_all(&OutputLogView {
        path: "log",
        summary: &summary(),
    });
    insta::assert_snapshot!(text, @r#"
    +-------------------------------+-----------------+
    | Path                          | log             |
    | Files                         | 3               |
    | Jobs                          | 2               |
    | Tasks                         | 1000            |
    | Opened streams                | 1               |
    | Stdout/stderr size            | 11.77 MiB / 0 B |
    | Superseded streams            | 4               |
    | Superseded stdout/stderr size | 99 B / 1 B      |
    +-------------------------------+-----------------+
    ---
    {
      "filename": "log",
      "summary": {
        "n_files": 3,
        "n_jobs": 2,
        "n_opened": 1,
        "n_streams": 1004,
        "n_superseded": 4,
        "n_tasks": 1000,
        "stderr_size": 0,
        "stdout_size": 12345678,
        "superseded_stderr_size": 1,
        "superseded_stdout_size": 99
      }
    }
    ---
    "#);
}

/// Removes escape sequences.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some(start) = rest.find('\x1b') {
        plain.push_str(&rest[..start]);
        let end = rest[start..].find('m').expect("the end of a sequence");
        rest = &rest[start + end + 1..];
    }
    plain + rest
}

#[test]
fn colours_change_nothing_but_colours() {
    let info = sample::server();
    let jobs = [sample::summary(1, "work", false, sample::stats(0, 2, 1))];
    let jobs: Vec<_> = jobs.iter().collect();
    let render = |output: Output, out: Out<'_>| {
        output.show(
            out,
            &ServerView {
                info: &info,
                dir: None,
            },
        )?;
        let view = JobListView {
            jobs: &jobs,
            total: 1,
            with_reason: false,
            progress_at_ns: None,
            is_all: true,
        };
        output.show(out, &view)
    };
    for mode in MODES {
        let mut bytes = Vec::new();
        let output = Output {
            mode,
            look: COLORED,
        };
        render(output, &mut bytes).expect("memory does not fail");
        let colored = String::from_utf8(bytes).expect("utf-8");
        assert_eq!(plain(&colored), written(mode, render));
        let has_colors = colored.contains('\x1b');
        assert_eq!(has_colors, mode == OutputMode::Cli, "{colored}");
    }
}
