//! Detects files that are not lines of text, and suggests a command that extracts lines.

use std::path::Path;

use hq_core::range::IdArray;
use hq_core::template::Entries;

use crate::error::CliError;

/// The bytes that some editors write at the beginning of a text.
pub(super) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The first bytes of a file, its kind, and the command that prints its text.
const KINDS: &[(&[u8], &str, &str)] = &[
    (b"\x1f\x8b", "compressed with gzip", "zcat"),
    (b"\xfd7zXZ", "compressed with xz", "xzcat"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd", "zstdcat"),
    (b"BZh91AY&SY", "compressed with bzip2", "bzcat"),
    (b"\x04\x22\x4d\x18", "compressed with lz4", "lz4cat"),
    (
        b"PK\x03\x04",
        "a zip archive, as .xlsx and .docx files are",
        "unzip -p",
    ),
    (b"\xff\xfe", "text in UTF-16", "iconv -f UTF-16 -t UTF-8"),
    (b"\xfe\xff", "text in UTF-16", "iconv -f UTF-16 -t UTF-8"),
    (b"%PDF-", "a PDF file", "pdftotext"),
    (b"\x7fELF", "a program", ""),
];

/// The number of bytes at the beginning that are examined.
const LOOKED_AT: usize = 4 << 10;
/// The maximum number of lines that are examined.
const LINES_MAX: u32 = 1_000;

/// Returns the kind of a file that is not UTF-8 text, and the command that prints its text, if
/// there is one.
pub(super) fn kind(content: &[u8]) -> Option<(&'static str, &'static str)> {
    let known = KINDS
        .iter()
        .find(|(start, _, _)| content.starts_with(start));
    if let Some((_, what, command)) = known {
        return Some((what, command));
    }
    let head = &content[..content.len().min(LOOKED_AT)];
    let is_wide = |first: usize| {
        let mut bytes = head.iter().skip(first).step_by(2);
        head.contains(&b'\n') && bytes.all(|byte| *byte == 0)
    };
    if is_wide(1) {
        return Some(("text in UTF-16", "iconv -f UTF-16LE -t UTF-8"));
    }
    if is_wide(0) {
        return Some(("text in UTF-16", "iconv -f UTF-16BE -t UTF-8"));
    }
    let is_odd = |byte: &&u8| **byte < b' ' && !matches!(**byte, 0 | b'\t' | b'\n' | b'\r' | 0x1b);
    let has_nul = head.contains(&0);
    let is_data = has_nul && head.iter().filter(is_odd).count() * 50 > head.len();
    is_data.then_some(("binary data", ""))
}

/// Returns the error about a list that is not text.
pub(super) fn refuse_list(path: &Path, (what, command): (&str, &str), option: &str) -> CliError {
    let shown = path.display();
    let error = CliError::new(format!("{shown}: expected lines of text, but it is {what}"));
    let value = if option == "each-row" { "{NAME}" } else { "{}" };
    let rest = format!("hq run --{option} - -- PROGRAM {value}");
    match command {
        "" => error.with_help(format!(
            "`--{option}` takes a text file, and makes a task of each of its lines"
        )),
        command if path == Path::new("-") => error.with_help(format!(
            "convert it on the way: `{command} < FILE | {rest}`"
        )),
        "pdftotext" => error.with_help(format!("print its text: `pdftotext {shown} - | {rest}`")),
        command => error.with_help(format!("print its lines: `{command} {shown} | {rest}`")),
    }
}

/// Returns advice if the list is a directory, several files, or the values themselves.
pub(super) fn list_hint(path: &Path) -> Option<String> {
    let name = path.to_str()?;
    let rest = "hq run --each-line - -- PROGRAM {}";
    if path.is_dir() {
        return Some(format!(
            "a task for each file in it is `find {name} -type f | {rest}`"
        ));
    }
    if path.exists() {
        return None;
    }
    if name.contains(['*', '?']) {
        return Some(format!(
            "a task for each of these files is `ls {name} | hq submit --each-line - -- bash -c 'PROGRAM \"$HQ_ENTRY\"'`, or here on this machine `ls {name} | {rest}`"
        ));
    }
    let is_list = name.contains(',') && !name.contains('/');
    is_list.then(|| {
        format!("`--each-line` takes a file; a task for each of these values is `--param x={name} -- PROGRAM {{x}}`")
    })
}

/// The beginning of a note on ids beyond the list.
pub(super) const LIST_HAS: &str = "the list has ";

/// Returns a warning about a list without items.
pub(super) fn note_on_nothing(path: &Path) -> String {
    let shown = match path.to_str() {
        Some("-") => "standard input".into(),
        Some(_) | None => path.to_string_lossy(),
    };
    format!("{shown} is empty, so there are no tasks")
}

/// Returns a warning about unusual lines, or `None` if all lines are ordinary.
pub(super) fn note_on_lines(path: &Path, lines: &Entries, is_nul: bool) -> Option<String> {
    let shown = path.display();
    if is_nul {
        let is_whole = lines.len() == 1 && lines.get(0)?.contains(&b'\n');
        return is_whole.then(|| {
            format!("{shown} has no NUL between its lines, so all of them are one task; without `--null` each line is a task")
        });
    }
    if lines.get(0)?.starts_with(BYTE_ORDER_MARK) {
        return Some(format!(
            "{shown} begins with a byte order mark, an invisible part of the first line; \
             `sed -i '1s/^\\xef\\xbb\\xbf//' {shown}` removes it"
        ));
    }
    let count = u32::try_from(lines.len()).map_or(LINES_MAX, |count| count.min(LINES_MAX));
    let has_cr = |number: u32| lines.get(number).is_some_and(|line| line.ends_with(b"\r"));
    // The last line may lack a line ending.
    if has_cr(0) && (1..count.max(2) - 1).all(has_cr) {
        return Some(format!(
            "{shown} has Windows line ends (CRLF), so each line ends with an invisible carriage return; `{}` removes them",
            without_cr(&shown.to_string())
        ));
    }
    let count = u32::try_from(lines.len()).unwrap_or(u32::MAX);
    let is_blank = |number: &u32| {
        lines
            .get(*number)
            .is_some_and(|line| line.trim_ascii().is_empty())
    };
    let mut blank = (0..count).filter(is_blank);
    let first = blank.next()? + 1;
    Some(format!(
        "{shown} has {}, the first of them is line {first}: each becomes a task without a value; \
         `grep . {shown} | hq run --each-line - -- PROGRAM {{}}` leaves them out",
        hq_core::words::count(1 + blank.count() as u64, "empty line")
    ))
}

/// Returns a note about task ids that have no item, because items count from 0.
pub(super) fn note_on_ids(count: u32, array: &IdArray) -> Option<String> {
    let ranges = || array.ranges().iter();
    let last = ranges().map(|range| range.last()).max()?;
    let end = count.checked_sub(1).filter(|end| *end < last)?;
    let first = if ranges().any(|range| range.first() == 0) {
        ""
    } else {
        ", and item 0, the first, is left out"
    };
    Some(format!(
        "{LIST_HAS}{}, numbered from 0 to {end}: ids from {count} to {last} have none{first}; without `--array` each item has a task",
        hq_core::words::count(count.into(), "item")
    ))
}

/// Returns the command that removes Windows line endings.
pub(super) fn without_cr(file: &str) -> String {
    match file {
        "-" => "tr -d '\\r'".to_owned(),
        file => format!("sed -i 's/\\r$//' {file}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::submit::entries::EntryList;

    #[test]
    fn what_is_no_text_is_named_with_the_command_that_makes_lines_of_it() {
        for (content, what, command) in [
            (&b"\x1f\x8b\x08\0\0"[..], "gzip", "zcat l |"),
            (b"\xfd7zXZ\0\0", "xz", "xzcat l |"),
            (b"\x28\xb5\x2f\xfd\x04", "zstd", "zstdcat l |"),
            (b"BZh91AY&SY\x01", "bzip2", "bzcat l |"),
            (b"PK\x03\x04\x14\0", "zip archive", "unzip -p l |"),
            (b"\xff\xfea\0\n\0", "UTF-16", "iconv -f UTF-16 -t UTF-8 l |"),
            (b"a\0b\0\n\0", "UTF-16", "iconv -f UTF-16LE"),
            (b"\0a\0b\0\n", "UTF-16", "iconv -f UTF-16BE"),
            (b"\x7fELF\x02\x01\x01\0", "a program", "takes a text file"),
            (b"\x89HDF\x01\x02\0\x03", "binary data", "takes a text file"),
        ] {
            let kind = kind(content).expect(what);
            let error = format!("{:?}", refuse_list(Path::new("l"), kind, "each-line"));
            assert!(error.contains(what) && error.contains(command), "{error}");
        }
        for content in [
            &b"a\0b\0c d\0"[..],
            b"a\0b\0",
            b"a\nb\n",
            b"",
            b"\xe4\xf6\n",
            b"\t\n",
        ] {
            assert_eq!(kind(content), None, "{content:?}");
        }
    }

    #[test]
    fn what_is_no_list_is_answered_with_a_command() {
        for (name, part) in [
            ("/tmp", "`find /tmp -type f |"),
            ("no/*.txt", "`ls no/*.txt |"),
            ("a,b", "`--param x=a,b"),
            ("nosuch", ""),
            ("/dev/null", ""),
        ] {
            let help = list_hint(Path::new(name)).unwrap_or_default();
            assert!(
                help.contains(part) && help.is_empty() == part.is_empty(),
                "{name}: {help}"
            );
        }
    }

    #[test]
    fn ids_without_an_item_have_a_note() {
        for (count, array, part) in [
            (
                3,
                "1-9",
                "numbered from 0 to 2: ids from 3 to 9 have none, and item 0",
            ),
            (3, "0-3", "ids from 3 to 3 have none; without"),
            (3, "0-2", ""),
            (3, "1-2", ""),
            (0, "1-2", ""),
        ] {
            let array = crate::parse::array::parse_id_array(array).expect("valid");
            let note = note_on_ids(count, &array).unwrap_or_default();
            assert!(
                note.contains(part) && note.is_empty() == part.is_empty(),
                "{note}"
            );
        }
    }

    #[test]
    fn lines_with_hidden_characters_have_a_note() {
        for (content, part) in [
            (&b"a\r\nb\r\n"[..], "`sed -i 's/\\r$//' l` removes them"),
            (b"a\r\nb\r\nc", "Windows line ends"),
            (b"a\r\n", "Windows line ends"),
            (b"\xef\xbb\xbfa\nb\n", "byte order mark"),
            (b"a\nb\n", ""),
            (b"a\r\nb\nc\n", ""),
            (
                b"a\n\nb\n \n",
                "l has 2 empty lines, the first of them is line 2",
            ),
            (
                b"a\nb\n\n",
                "l has 1 empty line, the first of them is line 3",
            ),
        ] {
            let lines = EntryList::from_lines(content, b'\n')
                .finish()
                .expect("short");
            let note = note_on_lines(Path::new("l"), &lines, false).unwrap_or_default();
            assert!(
                note.contains(part) && note.is_empty() == part.is_empty(),
                "{content:?}: {note}"
            );
        }
    }
}
