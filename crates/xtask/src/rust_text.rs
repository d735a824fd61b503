//! Splits Rust source text into layers: code, string literals, and comments, without test-only
//! items.
//!
//! Knows enough of the lexical grammar to separate comments, literals and items, but does not know
//! names or types. Each layer has the same length and line breaks as the file, with blanks in place
//! of other text, so positions are the same.

/// The layers of a file, without test-only items.
#[derive(Debug)]
pub(crate) struct Layers {
    /// Code: comments and the contents of literals are blank.
    pub(crate) code: String,
    /// Contents of string literals; everything else is blank.
    pub(crate) strings: String,
    /// Comments that are not documentation.
    pub(crate) comments: String,
    /// The positions of the line breaks.
    breaks: Vec<usize>,
}

impl Layers {
    /// Splits a file into its layers.
    pub(crate) fn new(text: &str) -> Self {
        let spans = spans(text);
        let code = keep(text, &spans, Kind::Code);
        let tests = test_items(text, &code);
        let layer = |kind| blank(&keep(text, &spans, kind), &tests);
        Self {
            code: blank(&code, &tests),
            strings: layer(Kind::String),
            comments: layer(Kind::Comment),
            breaks: text.match_indices('\n').map(|(at, _)| at).collect(),
        }
    }

    /// Returns the line number of a position, starting from 1.
    pub(crate) fn line_of(&self, place: usize) -> usize {
        self.breaks.partition_point(|at| *at < place) + 1
    }
}

/// Returns whether a path inside a crate contains only tests.
pub(crate) fn is_test_path(path: &str) -> bool {
    path.split('/').any(|part| {
        let name = part.strip_suffix(".rs").unwrap_or(part);
        name == "tests" || name.ends_with("_tests")
    })
}

/// Returns whether a byte can be part of a name.
pub(crate) fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Code,
    String,
    Comment,
    /// Documentation and character literals, which are in no layer.
    Other,
}

/// Adjacent parts of a file, with the end and the kind of each.
type Spans = Vec<(usize, Kind)>;

/// Splits a file into spans that each have a single kind.
fn spans(text: &str) -> Spans {
    let bytes = text.as_bytes();
    let mut spans = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &text[at..];
        if rest.starts_with("//") {
            at += rest.find('\n').unwrap_or(rest.len());
            let is_doc = rest.starts_with("///") || rest.starts_with("//!");
            spans.push((at, if is_doc { Kind::Other } else { Kind::Comment }));
        } else if rest.starts_with("/*") {
            at += block_comment(rest);
            spans.push((at, Kind::Comment));
        } else if let Some((begin, end, length)) = string(text, at) {
            // The quotes stay in the code layer, so that an argument remains visible.
            spans.push((at + begin, Kind::Code));
            spans.push((at + end, Kind::String));
            spans.push((at + length, Kind::Code));
            at += length;
        } else if let Some(length) = character(rest) {
            at += length;
            spans.push((at, Kind::Other));
        } else {
            // Only these bytes start a comment or a literal, and none of them is part of a
            // multi-byte character.
            let is_first = |byte: &u8| matches!(byte, b'/' | b'"' | b'\'' | b'r' | b'b');
            let skipped = bytes[at + 1..].iter().position(is_first);
            at = skipped.map_or(bytes.len(), |skipped| at + 1 + skipped);
            spans.push((at, Kind::Code));
        }
    }
    spans
}

/// Returns the length of the block comment, including nested ones, at the start of a text.
fn block_comment(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    let bytes = text.as_bytes();
    while at < bytes.len() {
        match bytes.get(at..at + 2) {
            Some(b"/*") => depth += 1,
            Some(b"*/") => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            break;
        }
    }
    at
}

/// Returns the start and end of the contents of the string literal at a byte, and its length.
fn string(text: &str, at: usize) -> Option<(usize, usize, usize)> {
    let rest = &text[at..];
    if let Some(inside) = rest.strip_prefix('"') {
        let end = 1 + end_of_quoted(inside);
        return Some((1, end, (end + 1).min(rest.len())));
    }
    // `for"` does not start a raw string.
    let follows_name = at > 0 && is_name(text.as_bytes()[at - 1]);
    let raw = rest.strip_prefix('b').unwrap_or(rest).strip_prefix('r')?;
    let hashes = raw.bytes().take_while(|byte| *byte == b'#').count();
    let inside = raw[hashes..].strip_prefix('"')?;
    if follows_name {
        return None;
    }
    let begin = rest.len() - inside.len();
    let closing = format!("\"{}", "#".repeat(hashes));
    let end = begin + inside.find(&closing).unwrap_or(inside.len());
    Some((begin, end, (end + closing.len()).min(rest.len())))
}

/// Returns the position of the quote that ends a string whose first quote was consumed.
fn end_of_quoted(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return at,
            _ => {}
        }
    }
    text.len()
}

/// Returns the length of the character literal at the start of a text, or `None` for a lifetime.
fn character(text: &str) -> Option<usize> {
    let inside = text.strip_prefix('\'')?;
    if let Some(escaped) = inside.strip_prefix('\\') {
        // The character after the backslash may itself be a quote.
        let first = escaped.chars().next()?.len_utf8();
        return Some(2 + first + escaped[first..].find('\'')? + 1);
    }
    let first = inside.chars().next()?;
    inside[first.len_utf8()..]
        .starts_with('\'')
        .then_some(2 + first.len_utf8())
}

/// Returns the text with blanks in place of other kinds.
fn keep(text: &str, spans: &Spans, kind: Kind) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut begin = 0;
    for (end, found) in spans {
        if *found == kind {
            kept.push_str(&text[begin..*end]);
        } else {
            push_blank(&mut kept, &text[begin..*end]);
        }
        begin = *end;
    }
    kept
}

/// Returns the text with blanks at these places.
fn blank(text: &str, places: &[(usize, usize)]) -> String {
    let mut left = String::with_capacity(text.len());
    let mut at = 0;
    for (begin, end) in places {
        left.push_str(&text[at..*begin]);
        push_blank(&mut left, &text[*begin..*end]);
        at = *end;
    }
    left.push_str(&text[at..]);
    left
}

fn push_blank(kept: &mut String, left_out: &str) {
    for (line, number) in left_out.split('\n').zip(0_usize..) {
        if number > 0 {
            kept.push('\n');
        }
        kept.extend(std::iter::repeat_n(' ', line.len()));
    }
}

/// Returns the start and end of each item with a test-only attribute.
fn test_items(text: &str, code: &str) -> Vec<(usize, usize)> {
    let mut items = Vec::new();
    let mut at = 0;
    while let Some(begin) = code[at..].find("#[cfg(").map(|found| at + found) {
        let behind = end_of_group(code, begin + 1);
        let condition = &text[begin..behind];
        let is_for_tests = !condition.contains("not(")
            && (condition.contains("(test") || condition.contains("\"testing\""));
        at = behind;
        if is_for_tests {
            at = end_of_item(code, behind);
            items.push((begin, at));
        }
    }
    items
}

/// Returns the position after the bracket that closes the one at this position.
fn end_of_group(code: &str, begin: usize) -> usize {
    let mut depth = 0_usize;
    for (at, byte) in code.bytes().enumerate().skip(begin) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

/// Keywords of items that commas do not end.
const ITEMS: &[&str] = &[
    "pub", "fn", "struct", "enum", "impl", "mod", "trait", "use", "const", "static", "type",
    "unsafe", "async", "extern", "let",
];

/// Returns the position after the item, field, variant or statement at this position, including its
/// attributes.
fn end_of_item(code: &str, begin: usize) -> usize {
    let mut at = begin;
    loop {
        at += code[at..].len() - code[at..].trim_start().len();
        if !code[at..].starts_with("#[") {
            break;
        }
        at = end_of_group(code, at + 1);
    }
    let first = code[at..]
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .next();
    let is_item = first.is_some_and(|word| ITEMS.contains(&word));
    while let Some(byte) = code.as_bytes().get(at) {
        match byte {
            b'(' | b'[' => at = end_of_group(code, at),
            b'{' => {
                at = end_of_group(code, at);
                // `use a::{b};` and `let a = B { … };` continue to the semicolon.
                let rest = code[at..].trim_start();
                return if rest.starts_with(';') {
                    code.len() - rest.len() + 1
                } else {
                    at
                };
            }
            b';' => return at + 1,
            b',' if !is_item => return at + 1,
            // This is the last field of a struct, without a comma.
            b'}' | b')' | b']' => return at,
            _ => at += 1,
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the words that are left in a layer.
    fn words(layer: &str) -> Vec<&str> {
        layer.split_whitespace().collect()
    }

    #[test]
    fn comments_and_literals_are_told_from_code() {
        let text = "/// Doc.\nlet a = \"b\\\"c // d\"; // e 'f\n/* g /* h */ i */ let j: &'k u8 = '\\''; let l = '\"';\n";
        let layers = Layers::new(text);
        assert_eq!(
            words(&layers.code),
            [
                "let", "a", "=", "\"", "\";", "let", "j:", "&'k", "u8", "=", ";", "let", "l", "=",
                ";"
            ]
        );
        assert_eq!(words(&layers.strings), ["b\\\"c", "//", "d"]);
        assert_eq!(
            words(&layers.comments),
            ["//", "e", "'f", "/*", "g", "/*", "h", "*/", "i", "*/"]
        );
        assert_eq!(layers.code.len(), text.len());
    }

    #[test]
    fn raw_strings_end_with_as_many_hashes_as_they_begin_with() {
        let layers = Layers::new("f(r#\"a\"b\"#, br\"c\\\", r#type, b\"d\")");
        assert_eq!(words(&layers.strings), ["a\"b", "c\\", "d"]);
        assert!(layers.code.contains("r#type"));
    }

    #[test]
    fn places_stay_where_they_were() {
        let text = "// ä € 𝄞\nlet é = '€';\nfind();\n";
        let layers = Layers::new(text);
        assert_eq!(layers.code.find("find"), text.find("find"));
        assert_eq!(layers.line_of(layers.code.find("find").unwrap()), 3);
    }

    #[test]
    fn items_for_tests_are_left_out() {
        let cases = [
            (
                "#[cfg(test)]\nmod tests { fn a() { \"}\" } }\nkept!()",
                "kept!()",
            ),
            ("#[cfg(test)]\nmod tests;\nkept", "kept"),
            (
                "#[cfg(test)]\n#[derive(A, B)]\npub(crate) fn a<B, C>(d: E) -> F { g }\nkept",
                "kept",
            ),
            (
                "#[cfg(any(test, feature = \"testing\"))]\nuse a::{b, c};\nkept",
                "kept",
            ),
            ("enum A {\n#[cfg(test)]\nB(C, D),\nE }", "enum A { E }"),
            (
                "struct A { b: C,\n#[cfg(test)]\nd: E }",
                "struct A { b: C, }",
            ),
            (
                "#[cfg(not(test))]\nfn kept() {}",
                "#[cfg(not(test))] fn kept() {}",
            ),
            (
                "#[cfg(feature = \"tokio\")]\nmod kept;",
                "#[cfg(feature = \"     \")] mod kept;",
            ),
        ];
        for (text, left) in cases {
            let code = Layers::new(text).code;
            assert_eq!(words(&code).join(" "), words(left).join(" "), "{text}");
            assert_eq!(code.len(), text.len());
        }
    }

    #[test]
    fn files_of_tests_are_known_by_their_path() {
        assert!(is_test_path("src/job/tests.rs"));
        assert!(is_test_path("src/job/tests/many.rs"));
        assert!(is_test_path("src/worker_state/model_tests.rs"));
        assert!(!is_test_path("src/testing.rs"));
    }
}
