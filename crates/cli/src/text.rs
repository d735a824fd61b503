//! Prepares text for a terminal or a shell.

/// Returns whether a character moves the cursor, changes the direction of text, or has no width.
/// With such characters, texts from tasks, workers and users could display something other than
/// their content.
pub(crate) fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{feff}'
        )
        || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{e0000}'..='\u{e007f}')
}

/// Returns a path or an argument as human-readable text.
pub(crate) fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns words as they are typed in a shell.
pub(crate) fn shell_text(words: &[String]) -> String {
    let quoted = words.iter().map(|word| {
        shlex::try_quote(word).map_or_else(|_| word.clone(), std::borrow::Cow::into_owned)
    });
    quoted.collect::<Vec<_>>().join(" ")
}

/// Replaces characters that could move the cursor.
pub(crate) fn clean(text: &str) -> String {
    let visible = |c: char| match c {
        '\t' => ' ',
        c if is_hidden(c) => '\u{fffd}',
        c => c,
    };
    text.chars().map(visible).collect()
}

/// Cuts a text to a number of characters.
pub(crate) fn fit(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(width.saturating_sub(1)).collect();
    cut.push('~');
    cut
}

/// Returns the last lines with text, which say what went wrong.
pub(crate) fn last_lines(text: &str) -> Vec<&str> {
    const LINES_MAX: usize = 5;
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let mut lines: Vec<&str> = lines.collect();
    lines.split_off(lines.len().saturating_sub(LINES_MAX))
}

/// The maximum length of a line in an error, and the length that is kept from the end of a longer
/// line.
const LINE_MAX: usize = 2 << 10;
const LINE_END: usize = 512;

/// Shortens the middle of very long lines. Errors repeat input, which may be an expanded pattern or
/// another program's output. The explanation comes before or after it.
pub(crate) fn cut_lines(text: String) -> String {
    if text.len() <= LINE_MAX {
        return text;
    }
    let lines: Vec<String> = text.split('\n').map(cut_line).collect();
    lines.join("\n")
}

fn cut_line(line: &str) -> String {
    if line.len() <= LINE_MAX {
        return line.to_owned();
    }
    let from = line.floor_char_boundary(LINE_MAX - LINE_END);
    let to = line.ceil_char_boundary(line.len() - LINE_END);
    let (start, end) = (&line[..from], &line[to..]);
    format!("{start}… ({} bytes left out) …{end}", to - from)
}

/// Returns the rows of a table, each in the form `WORD WORD: TEXT`.
pub(crate) fn rows(table: &str) -> impl Iterator<Item = (&str, &str)> {
    table.lines().filter_map(|line| line.split_once(": "))
}

/// Returns the most similar known name, if it is similar enough to have been intended.
pub(crate) fn closest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let nearest = known.map(|other| (distance(name, other), other)).min()?;
    // This allows one wrong letter in three, and one missing or extra letter in short names.
    let most = name.chars().count().max(3) / 3;
    (nearest.0 <= most).then_some(nearest.1)
}

/// Returns the number of letters to add, remove or replace, and of neighbors to swap. Case does not
/// matter.
fn distance(first: &str, second: &str) -> usize {
    let letters = |text: &str| text.to_lowercase().chars().collect::<Vec<char>>();
    let (first, second) = (letters(first), letters(second));
    let (mut before, mut last) = (Vec::new(), (0..=second.len()).collect::<Vec<usize>>());
    for (at, letter) in first.iter().enumerate() {
        let mut row = vec![at + 1];
        for (to, other) in second.iter().enumerate() {
            let replaced = last[to] + usize::from(letter != other);
            let mut least = replaced.min(last[to + 1] + 1).min(row[to] + 1);
            if at > 0 && to > 0 && first[at - 1] == *other && *letter == second[to - 1] {
                least = least.min(before[to - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[second.len()]
}

/// Returns whether a letter is a quotation mark from a word processor or a web page.
pub(crate) fn is_printed_quote(c: char) -> bool {
    matches!(c, '\u{2018}'..='\u{201f}' | '\u{ab}' | '\u{bb}')
}

/// Returns the word with ordinary hyphens, if it begins with a typographic dash or has one between
/// numbers.
pub(crate) fn with_hyphens(word: &str) -> Option<String> {
    let is_long = |c: char| matches!(c, '\u{2010}'..='\u{2015}' | '\u{2212}');
    if word.starts_with(|c: char| c.is_ascii_digit()) && word.contains(is_long) {
        return Some(word.replace(is_long, "-"));
    }
    let name = word.trim_start_matches(|c| c == '-' || is_long(c));
    let (dashes, mut rest) = (&word[..word.len() - name.len()], name.chars().skip(1));
    // `-j4`
    let is_short = !name.is_empty() && rest.all(|c| c.is_ascii_digit());
    let hyphens = if is_short { "-" } else { "--" };
    dashes.contains(is_long).then(|| format!("{hyphens}{name}"))
}

/// Returns a word as a shell must read it.
pub(crate) fn quoted(word: &str) -> String {
    shlex::try_quote(word).map_or_else(|_| word.to_owned(), std::borrow::Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_that_changed_places_are_one_mistake() {
        for (name, known) in [("jbos", "jobs"), ("sumbit", "submit"), ("lsat", "last")] {
            assert_eq!(closest(name, ["tail", known].into_iter()), Some(known));
        }
        assert_eq!(closest("history", ["list"].into_iter()), None);
    }

    #[test]
    fn texts_are_cut_where_the_room_ends() {
        assert_eq!(fit("abcdef", 4), "abc~");
        assert_eq!(fit("äöü", 3), "äöü");
    }

    #[test]
    fn what_nobody_reads_is_cut_out_of_the_middle_of_lines() {
        let short = "one\n".repeat(10_000);
        assert_eq!(cut_lines(short.clone()), short, "lines are not too long");
        let cut = cut_lines(format!("first\nvalue '{}': not an id", "é".repeat(50_000)));
        assert!(cut.len() < LINE_MAX + 100, "{cut}");
        assert!(cut.starts_with("first\nvalue 'éé"), "{cut}");
        assert!(cut.ends_with("éé': not an id"), "{cut}");
        assert!(cut.contains(" bytes left out) …"), "{cut}");
    }

    #[test]
    fn the_closest_name_is_found_only_if_it_was_meant() {
        let known = || ["cpus", "mem", "gpus/nvidia"].into_iter();
        for (name, meant) in [
            ("gpu/nvidia", Some("gpus/nvidia")),
            ("Mem", Some("mem")),
            ("memo", Some("mem")),
            ("licence", None),
            ("x", None),
        ] {
            assert_eq!(closest(name, known()), meant, "{name}");
        }
    }
}
