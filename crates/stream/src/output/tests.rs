//! Tests that files and streams are read in the same way.

use std::io::Write as _;
use std::path::Path;

use super::*;
use crate::pump::{EndKind, Pump, PumpEvent, StreamStart};

/// Reads everything from `offset` on, `limit` bytes at a time.
fn read_on(reader: &mut OutputReader, mut offset: u64, limit: u64) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let part = reader.read(From::Offset(offset), limit).expect("readable");
        all.extend(&part.bytes);
        if part.next == offset {
            return all;
        }
        offset = part.next;
    }
}

fn last_lines(reader: &mut OutputReader, lines: u32) -> String {
    let part = reader
        .read(From::LastLines(lines), u64::MAX)
        .expect("readable");
    assert_eq!(part.next, part.size, "read to the end");
    String::from_utf8(part.bytes).expect("text")
}

fn check_lines(reader: &mut OutputReader, text: &str) {
    assert_eq!(read_on(reader, 0, 7), text.as_bytes());
    assert_eq!(read_on(reader, 5, 1000), &text.as_bytes()[5..]);
    assert_eq!(last_lines(reader, 0), "");
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    for count in [1, 2, 10, 1000] {
        let expected = lines[lines.len().saturating_sub(count as usize)..].concat();
        assert_eq!(last_lines(reader, count), expected, "{count} lines");
    }
}

fn numbers(count: u32) -> String {
    (0..count)
        .map(|number| format!("line {number}\n"))
        .collect()
}

/// Streams a text in pieces, interleaved with pieces of another task.
fn stream(dir: &Path, pieces: &[&str]) -> Source {
    let (sender, woken) = std::sync::mpsc::channel();
    let wake = move || {
        let _ = sender.send(());
    };
    let pump = Pump::start("node1", wake).expect("a pump");
    let key = |task| Key {
        job: 1,
        task,
        instance: 0,
    };
    let ends = [0, 1].map(|task| {
        let start = StreamStart {
            key: key(task),
            dir: dir.to_owned(),
            server_uid: "uid".into(),
            worker: 1,
            channels: [true, false],
        };
        let ends = pump.begin(task.into(), start).expect("pipes");
        let end = std::sync::Arc::into_inner(ends.stdout.expect("asked for"));
        File::from(end.expect("not shared"))
    });
    for piece in pieces {
        (&ends[0]).write_all(b"other\n").expect("written");
        (&ends[1]).write_all(piece.as_bytes()).expect("written");
    }
    drop(ends);
    let mut open = 2;
    pump.end(0, EndKind::Ended);
    pump.end(1, EndKind::Ended);
    let mut events = Vec::new();
    while open > 0 {
        let limit = std::time::Duration::from_secs(30);
        woken.recv_timeout(limit).expect("an event in time");
        pump.drain_events(&mut events);
        let closed = |event: PumpEvent| matches!(event, PumpEvent::Closed { .. });
        open -= events
            .drain(..)
            .filter(|event| closed(event.clone()))
            .count();
    }
    Source::Stream {
        dir: dir.to_owned(),
        server_uid: "uid".into(),
        key: key(1),
        channel: Channel::Stdout,
    }
}

#[test]
fn a_file_is_read_in_parts_and_from_its_last_lines() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("out");
    let mut reader = OutputReader::new(Source::File(path.clone()));
    assert_eq!(read_on(&mut reader, 0, 10), b"", "not there yet");
    // The text is longer than one step of the search.
    let text = numbers(20_000);
    std::fs::write(&path, &text).expect("written");
    check_lines(&mut reader, &text);
    let open_end = format!("{text}no newline");
    std::fs::write(&path, &open_end).expect("written");
    check_lines(&mut reader, &open_end);
    std::fs::write(&path, "anew\n").expect("written");
    assert_eq!(read_on(&mut reader, 100, 10), b"anew\n", "it was truncated");
}

#[test]
fn a_stream_reads_like_a_file() {
    let dir = tempfile::tempdir().expect("directory");
    let text = numbers(20_000);
    let pieces: Vec<&str> = text
        .as_bytes()
        .chunks(9_999)
        .map(|piece| std::str::from_utf8(piece).expect("ASCII"))
        .collect();
    let source = stream(dir.path(), &pieces);
    check_lines(&mut OutputReader::new(source), &text);
}

#[test]
fn what_is_not_there_yet_is_empty() {
    let source = Source::Stream {
        dir: "/no/such/directory".into(),
        server_uid: "uid".into(),
        key: Key {
            job: 1,
            task: 1,
            instance: 0,
        },
        channel: Channel::Stdout,
    };
    assert_eq!(read_on(&mut OutputReader::new(source), 0, 10), b"");
}

#[test]
fn endless_lines_are_not_searched_to_their_beginning() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("out");
    std::fs::write(&path, vec![b'x'; 3 << 20]).expect("written");
    let mut reader = OutputReader::new(Source::File(path));
    let part = reader.read(From::LastLines(1), 10).expect("readable");
    assert_eq!(part.offset, 2 << 20);
    assert_eq!(part.next, part.offset + 10);
}

#[test]
fn a_fifo_is_refused_at_once() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("x.hqs");
    rustix::fs::mkfifoat(
        rustix::fs::CWD,
        &path,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
    )
    .expect("a FIFO");
    // A FIFO with a writer, whose data is meant for another reader.
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NONBLOCK;
    let _writer = rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).expect("both ends");
    let mut reader = OutputReader::new(Source::File(path));
    let error = reader.read(From::Offset(0), 10).expect_err("not a file");
    assert_eq!(error.to_string(), "it is not a regular file");
    let opened = StreamDir::open(dir.path(), None);
    assert!(matches!(opened, Err(OpenError::NoFiles)), "it is left out");
}

#[test]
fn files_that_cannot_be_opened_are_left_out() {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    let dir = tempfile::tempdir().expect("temporary directory");
    let at = |name: &str| dir.path().join(name);
    symlink("nowhere", at("dangling.hqs")).expect("a link");
    symlink("loop.hqs", at("loop.hqs")).expect("a link");
    std::fs::write(at("others.hqs"), "").expect("room");
    // Permissions do not restrict root.
    let nobody = std::fs::Permissions::from_mode(0o000);
    std::fs::set_permissions(at("others.hqs"), nobody).expect("ours");
    let opened = StreamDir::open(dir.path(), None);
    assert!(matches!(opened, Err(OpenError::NoFiles)), "{opened:?}");
}
