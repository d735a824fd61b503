//! Converts the output of `qstat -f` to strict JSON, because older releases of PBS print invalid
//! JSON with `-F json`.

use std::fmt::Write as _;

/// Repairs the output of `qstat -f -F json`: escapes raw control characters, bare quotes and
/// unknown escapes in strings, and turns numbers such as `007` into strings. Valid JSON stays
/// unchanged.
#[must_use]
pub fn strict_json(text: &str) -> String {
    let mut strict = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('"') {
        push_bare(&mut strict, &rest[..at]);
        rest = push_string(&mut strict, &rest[at + 1..]);
    }
    push_bare(&mut strict, rest);
    strict
}

/// Appends a string whose opening quote has already been consumed. Returns the rest of the input.
fn push_string<'a>(strict: &mut String, text: &'a str) -> &'a str {
    strict.push('"');
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        let after = &text[at + c.len_utf8()..];
        match c {
            '"' if after.trim_start().starts_with([',', ':', '}', ']'])
                || after.trim().is_empty() =>
            {
                strict.push('"');
                return after;
            }
            '"' => strict.push_str("\\\""),
            '\\' => match after.chars().next() {
                Some(next @ ('"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' | 'u')) => {
                    strict.push('\\');
                    strict.push(next);
                    chars.next();
                }
                Some('\'') => {}
                Some(_) | None => strict.push_str("\\\\"),
            },
            c if c.is_control() => {
                let _ = write!(strict, "\\u{:04x}", u32::from(c));
            }
            c => strict.push(c),
        }
    }
    ""
}

/// Appends the text between strings.
fn push_bare(strict: &mut String, text: &str) {
    let is_word = |c: char| c.is_ascii_alphanumeric() || "+-._".contains(c);
    let mut rest = text;
    while let Some(start) = rest.find(is_word) {
        let (before, word) = rest.split_at(start);
        strict.push_str(before);
        let end = word.find(|c| !is_word(c)).unwrap_or(word.len());
        let (word, after) = word.split_at(end);
        let digits = word.trim_start_matches('-');
        let is_octal = digits.len() > 1 && digits.starts_with('0') && !digits.starts_with("0.");
        let is_number = word.parse::<f64>().is_ok() && !is_octal && !word.starts_with(['+', '.']);
        if is_number && !word.ends_with('.') && digits.starts_with(|c: char| c.is_ascii_digit())
            || matches!(word, "true" | "false" | "null")
        {
            strict.push_str(word);
        } else {
            let _ = write!(strict, "\"{word}\"");
        }
        rest = after;
    }
    strict.push_str(rest);
}

/// Converts the plain output of `qstat -f` to the JSON of `-F json`. The output has a line
/// `Job Id: X` followed by indented lines `name = value`, which are continued with a tab.
/// `Variable_List` stays a single text.
#[must_use]
pub fn plain_as_json(text: &str) -> String {
    let quoted = |text: &str| {
        let text = text.trim().replace('\\', "\\\\").replace('"', "\\\"");
        let text: String = text.chars().filter(|c| !c.is_control()).collect();
        format!("\"{text}\"")
    };
    let text = text.replace("\n\t", "");
    let jobs = text.split("Job Id:").skip(1).map(|record| {
        let (id, record) = record.split_once('\n').unwrap_or((record, ""));
        let values = record.lines().filter_map(|line| line.split_once(" = "));
        let values: Vec<String> = values
            .map(|(name, value)| format!("{}:{}", quoted(name), quoted(value)))
            .collect();
        format!("{}:{{{}}}", quoted(id), values.join(","))
    });
    let jobs: Vec<String> = jobs.collect();
    format!("{{\"Jobs\":{{{}}}}}", jobs.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_older_releases_print_becomes_json() {
        for (printed, strict) in [
            (
                r#"{"a": "b\n\"c\"", "d": [1, -2.5e3, true]}"#,
                r#"{"a": "b\n\"c\"", "d": [1, -2.5e3, true]}"#,
            ),
            (
                "{\"F\":\"() {\n x\t\n}\"}",
                r#"{"F":"() {\u000a x\u0009\u000a}"}"#,
            ),
            (r#"{"a":007,"b":0.5,"c":0}"#, r#"{"a":"007","b":0.5,"c":0}"#),
            (r#"{"a":"it\'s","b":"x\y"}"#, r#"{"a":"it's","b":"x\\y"}"#),
            (
                r#"{"a":"say "hi" now","b":1}"#,
                r#"{"a":"say \"hi\" now","b":1}"#,
            ),
            (r#"{"a":1gb}"#, r#"{"a":"1gb"}"#),
        ] {
            assert_eq!(strict_json(printed), strict, "{printed}");
        }
    }

    #[test]
    fn plain_text_becomes_the_same_shape() {
        let text = "Job Id: 1.p\n    Job_Name = a\"b\n    Variable_List = A=1,\n\tB=2\n\nJob Id: 2.p\n    job_state = Q\n";
        assert_eq!(
            plain_as_json(text),
            r#"{"Jobs":{"1.p":{"Job_Name":"a\"b","Variable_List":"A=1,B=2"},"2.p":{"job_state":"Q"}}}"#
        );
    }
}
