//! Signatures of failures: the last line of a task's output, without the parts that differ between
//! tasks.
//!
//! An exit code of 2 in 61 tasks explains nothing, but a common last line such as `ValueError: no
//! index for chr#` does.

/// The maximum number of characters in a signature. The rest of a line rarely adds information.
const LENGTH_MAX: usize = 160;
/// The minimum length of a hexadecimal word that counts as a number, such as an address or a hash.
const HEX_MIN: usize = 6;

/// Picks `max` of `count` failures, or all of them if there are fewer. It deterministically picks
/// one from each of `max` equal parts, so that no part of a job is left out.
pub fn sample(count: usize, max: usize) -> impl Iterator<Item = usize> {
    let chosen = count.min(max);
    let begin = move |number: usize| number * count / chosen;
    (0..chosen).map(move |number| {
        let part = begin(number)..begin(number + 1);
        // The first failure of a part is not always picked, because causes often alternate with
        // task ids, and equal steps would hit only a few of them.
        part.start + scatter(number) % part.len()
    })
}

/// Returns a pseudorandom number derived from another number: the finalizer of SplitMix64 (Steele,
/// Lea, Flood 2014).
fn scatter(number: usize) -> usize {
    let mut z = (number as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    // The upper half is equally well mixed, and fits into a `usize` of any width.
    usize::try_from(z >> 33).unwrap_or(0)
}

/// Returns the line where a program gives the reason for its end: the last line that begins with
/// `error:`, or else the last meaningful line. Skips stack frames, rulers, and hints that runtimes append.
#[must_use]
pub fn last_words(output: &str) -> Option<&str> {
    let said = |line: &&str| line.chars().any(char::is_alphanumeric);
    let lines = || output.lines().rev().map(str::trim_end).filter(said);
    let is_error = |line: &&str| {
        line.get(..6)
            .is_some_and(|start| start.eq_ignore_ascii_case("error:"))
    };
    let error = lines().find(is_error);
    error
        .or_else(|| lines().find(|line| !is_appendix(line)))
        .or_else(|| lines().next())
}

/// Returns whether a line follows the reason for a failure in the output of well-known runtimes.
fn is_appendix(line: &str) -> bool {
    let text = line.trim_start();
    let is_indented = text.len() < line.len();
    text.starts_with("note: run with `RUST_BACKTRACE")
        || (is_indented && (text.starts_with("at ") || text.starts_with("... ")))
        || text.starts_with("Execution halted")
        || text.starts_with("srun: ")
        || text.starts_with("slurmstepd: ")
}

/// Returns a line with `#` in place of each number and address, and without control characters.
/// Failures with the same cause have the same signature unless they name different files; see
/// [`without_paths`].
#[must_use]
pub fn signature(line: &str) -> String {
    let mut masked = String::new();
    let mut is_space = true;
    let line = plain(line);
    for part in line.split_inclusive(|c: char| !is_of_address(c)) {
        let address = part.trim_end_matches(|c: char| !is_of_address(c));
        let address = address.trim_end_matches([':', '-']);
        if is_address(address) {
            is_space = false;
            push_number(&mut masked);
            push_words(&mut masked, &mut is_space, &part[address.len()..]);
        } else {
            push_words(&mut masked, &mut is_space, part);
        }
    }
    shorten(&masked)
}

fn is_of_address(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, ':' | '-')
}

/// The number of parts in a UUID, and in a hardware address.
const UUID_PARTS: usize = 5;
const HARDWARE_PARTS: usize = 6;
/// The number of parts in an IPv6 address that omits none.
const IPV6_PARTS: usize = 8;

/// Returns whether the text is a UUID, a hardware address or an IPv6 address, in which letters are
/// hexadecimal digits.
fn is_address(text: &str) -> bool {
    let is_part = |part: &str, long: usize| {
        part.len() <= long && part.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let has_digit = text.bytes().any(|byte| byte.is_ascii_digit());
    let by_dash: Vec<&str> = text.split('-').collect();
    let by_colon: Vec<&str> = text.split(':').collect();
    let is_uuid = by_dash.len() == UUID_PARTS
        && by_dash
            .iter()
            .all(|part| is_part(part, 12) && part.len() >= 4);
    let is_hardware = |parts: &[&str]| {
        parts.len() == HARDWARE_PARTS
            && parts.iter().all(|part| part.len() == 2 && is_part(part, 2))
    };
    let is_ipv6 = (text.contains("::") || by_colon.len() == IPV6_PARTS)
        && by_colon.iter().all(|part| is_part(part, 4));
    has_digit && (is_uuid || is_ipv6 || is_hardware(&by_dash) || is_hardware(&by_colon))
}

/// Returns a line as written, but without control characters and truncated like a signature.
#[must_use]
pub fn one_line(line: &str) -> String {
    shorten(plain(line).trim())
}

/// Returns a signature with `/…` in place of each path, because failures that name different
/// files can have the same cause.
#[must_use]
pub fn without_paths(signature: &str) -> String {
    let mut masked = String::new();
    for part in signature.split_inclusive(|c: char| !is_of_path(c)) {
        let path = part.trim_end_matches(|c: char| !is_of_path(c) || c == '.');
        // A single slash can also separate alternatives and units.
        let is_path = path.starts_with(['/', '~']) && path.len() > 1 && path.contains('/')
            || path.starts_with("./")
            || path.starts_with("../")
            || path.matches('/').count() > 1 && !path.starts_with("//");
        if is_path {
            masked.push_str("/…");
            masked.push_str(&part[path.len()..]);
        } else {
            masked.push_str(part);
        }
    }
    masked
}

fn is_of_path(c: char) -> bool {
    c.is_alphanumeric()
        || matches!(
            c,
            '/' | '.' | '_' | '-' | '+' | '#' | '~' | '@' | '%' | '=' | '…'
        )
}

fn push_words(masked: &mut String, was_space: &mut bool, text: &str) {
    let mut is_space = *was_space;
    for word in text.split_inclusive(|c: char| !c.is_alphanumeric()) {
        let (letters, separator) = match word.char_indices().next_back() {
            Some((at, c)) if !c.is_alphanumeric() => (&word[..at], Some(c)),
            Some(_) | None => (word, None),
        };
        if !letters.is_empty() {
            is_space = false;
            push_word(masked, letters);
        }
        match separator {
            Some(c) if c.is_whitespace() => {
                if !is_space {
                    masked.push(' ');
                }
                is_space = true;
            }
            Some(c) => {
                is_space = false;
                masked.push(c);
            }
            None => {}
        }
    }
    *was_space = is_space;
}

/// Removes terminal escape sequences.
fn plain(line: &str) -> String {
    let mut text = String::new();
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '\u{1b}' {
            text.push(if c.is_control() { ' ' } else { c });
        } else if chars.next_if_eq(&'[').is_some() {
            // The parameters are followed by one letter.
            while chars.next_if(|c| !c.is_ascii_alphabetic()).is_some() {}
            chars.next();
        }
    }
    text
}

/// Appends a word with its numbers masked. `1.5` and `12:04:05` each count as one number.
fn push_word(masked: &mut String, word: &str) {
    if is_hex(word) {
        push_number(masked);
        return;
    }
    for c in word.chars() {
        if c.is_ascii_digit() {
            push_number(masked);
        } else {
            masked.push(c);
        }
    }
}

fn push_number(masked: &mut String) {
    if masked.ends_with('#') {
        return;
    }
    let before = masked.strip_suffix(['.', ':', '-', ',', '/', '_']);
    if before.is_some_and(|before| before.ends_with('#')) {
        masked.pop();
        return;
    }
    masked.push('#');
}

/// Returns whether the word is a number such as `deadbeef01` or `0x7ffe`, but not a word that
/// consists only of letters.
fn is_hex(word: &str) -> bool {
    let digits = word.strip_prefix("0x").unwrap_or(word);
    let is_prefixed = digits.len() < word.len();
    let has_digit = digits.bytes().any(|byte| byte.is_ascii_digit());
    digits.bytes().all(|byte| byte.is_ascii_hexdigit())
        && (is_prefixed || (has_digit && digits.len() >= HEX_MIN))
}

fn shorten(text: &str) -> String {
    let text = text.trim_end();
    match text.char_indices().nth(LENGTH_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(lines: &[&str]) -> Vec<String> {
        let mut all: Vec<String> = lines.iter().map(|line| signature(line)).collect();
        all.dedup();
        all
    }

    #[test]
    fn a_sample_is_spread_over_all() {
        assert_eq!(sample(3, 10).collect::<Vec<_>>(), [0, 1, 2]);
        let of_ten: Vec<usize> = sample(10, 4).collect();
        let parts: Vec<usize> = of_ten.iter().map(|at| (at * 4 + 2) / 10).collect();
        assert_eq!(parts, [0, 1, 2, 3], "{of_ten:?}");
        assert_eq!(sample(0, 4).count(), 0);
        assert_eq!(sample(5, 0).count(), 0);
    }

    #[test]
    fn a_sample_meets_every_cause_that_alternates_with_the_ids() {
        for causes in 2..=13 {
            for count in [4_096, 100_000, 1_000_000] {
                let met: std::collections::BTreeSet<usize> =
                    sample(count, 200).map(|at| at % causes).collect();
                assert_eq!(met.len(), causes, "of {count}");
            }
        }
    }

    #[test]
    fn lines_that_differ_in_numbers_only_have_one_signature() {
        for (expected, lines) in [
            (
                "ValueError: reference index missing for chr#",
                &[
                    "ValueError: reference index missing for chr1",
                    "ValueError: reference index missing for chr22",
                ][..],
            ),
            (
                "/data/sample_#.bam: No such file or directory",
                &[
                    "/data/sample_017.bam: No such file or directory",
                    "/data/sample_2.bam: No such file or directory",
                ],
            ),
            (
                "#T#Z ERROR node# lost at #",
                &[
                    "2026-11-22T12:16:22Z ERROR node07 lost at 0x7ffe12",
                    "2026-11-23T01:02:03Z ERROR node112 lost at 0xdeadbeef",
                ],
            ),
            (
                "no route to # from #: gone",
                &[
                    "no route to fe80::a1:b2ff from 52:54:00:ab:cd:ef: gone",
                    "no route to ::1 from aa-bb-cc-00-11-22: gone",
                ],
            ),
            (
                "run # of std::abc and a-b-c",
                &[
                    "run 7c9e6679-7425-40de-944b-e07fc1f90ae7 of std::abc and a-b-c",
                    "run deadbeef-abcd-abcd-abcd-aaaaaaaaaaa1 of std::abc and a-b-c",
                ],
            ),
            (
                "loss is # after # steps",
                &["loss is 1.5 after 10 steps", "loss is 0.25 after 7 steps"],
            ),
            (
                "commit # not found",
                &["commit 5c5239ef not found", "commit deadbee7 not found"],
            ),
            (
                "killed at step #",
                &[
                    "\u{1b}[31mkilled\u{1b}[0m at   step 4",
                    "killed at\tstep 17",
                ],
            ),
        ] {
            assert_eq!(masked(lines), [expected], "{lines:?}");
        }
    }

    #[test]
    fn paths_are_left_out_where_they_differ() {
        for (expected, line) in [
            (
                "[Errno 2] No such file or directory: '/…'",
                "[Errno 2] No such file or directory: '/data/alice/in.bam'",
            ),
            ("/…: not found.", "./tools/align: not found."),
            ("cannot open ~", "cannot open ~"),
            ("read/write or 3 km/h", "read/write or 3 km/h"),
            ("a 1: /…, /…", "a 1: /x, run/sub/y.txt"),
        ] {
            assert_eq!(without_paths(line), expected);
        }
    }

    #[test]
    fn words_stay_and_lines_have_a_length() {
        assert_eq!(
            signature("  defaced facade: bad face "),
            "defaced facade: bad face"
        );
        assert_eq!(signature(""), "");
        assert_eq!(signature("…é€ 7"), "…é€ #");
        let long = signature(&"words ".repeat(100));
        assert_eq!(long.chars().count(), LENGTH_MAX + 1);
    }

    #[test]
    fn the_reason_is_the_last_line_that_says_anything() {
        for (output, expected) in [
            ("one\ntwo\n\n  \n", Some("two")),
            ("", None),
            ("---\n\n", None),
            (
                "Traceback (most recent call last):\n  File \"x.py\", line 1\nValueError: no\n",
                Some("ValueError: no"),
            ),
            (
                "thread 'main' panicked at src/main.rs:2:5:\nexplicit panic\n\
                 note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n",
                Some("explicit panic"),
            ),
            (
                "java.io.IOException: gone\n\tat A.b(A.java:1)\n\tat A.c(A.java:9)\n",
                Some("java.io.IOException: gone"),
            ),
            (
                "Error in f(x) : no x\nExecution halted\n",
                Some("Error in f(x) : no x"),
            ),
            (
                "error: no such option\n\nUsage: x [OPTIONS]\nFor more information, try '--help'.\n",
                Some("error: no such option"),
            ),
            ("    at nothing else\n", Some("    at nothing else")),
            (
                "bash: line 1: nope: command not found\n=====\n",
                Some("bash: line 1: nope: command not found"),
            ),
        ] {
            assert_eq!(last_words(output), expected, "{output:?}");
        }
    }
}
