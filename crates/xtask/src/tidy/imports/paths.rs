//! The paths mentioned in the code of one module: imports, declared modules, and full paths.
//!
//! Works on tokens only. `modules` resolves the paths.

use std::collections::BTreeMap;

use crate::rust_text::{self, Layers};

/// The segments of a path, as written.
pub(super) type Segments = Vec<String>;

/// The paths that one file mentions.
#[derive(Default, Debug)]
pub(super) struct Paths {
    /// The names of modules that it declares in separate files.
    pub(super) declared: Vec<String>,
    /// The names that it imports, with the path of each.
    pub(super) imported: BTreeMap<String, Segments>,
    /// All paths of two or more segments, and imports of any length, with their lines.
    pub(super) mentioned: Vec<(Segments, usize)>,
}

/// Reads the code of a file.
pub(super) fn read(layers: &Layers) -> Paths {
    let tokens = tokens(&layers.code);
    let mut paths = Paths::default();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        let next = tokens.get(at + 1).map_or("", |next| next.text);
        let line = layers.line_of(token.place);
        match token.text {
            // `use<'a>` in a return type is not an import.
            "use" if next != "<" => {
                let behind = tokens[at..].iter().position(|token| token.text == ";");
                let end = behind.map_or(tokens.len(), |length| at + length);
                for (segments, alias) in expand(&tokens[at + 1..end]) {
                    paths.mentioned.push((segments.clone(), line));
                    paths.imported.insert(alias, segments);
                }
                at = end;
            }
            "mod" if tokens.get(at + 2).is_some_and(|token| token.text == ";") => {
                paths.declared.push(next.to_owned());
                at += 2;
            }
            text if is_name(text) && next == "::" => {
                let length = path_length(&tokens[at..]);
                let names = tokens[at..at + length].iter().step_by(2);
                let segments: Segments = names.map(|token| token.text.to_owned()).collect();
                // Text after `<T as Trait>::` or `pub(in` is not a path to a local item.
                let before = at.checked_sub(1).map_or("", |before| tokens[before].text);
                if segments.len() > 1 && before != "::" && !is_visibility(&tokens[..at]) {
                    paths.mentioned.push((segments, line));
                }
                at += length;
            }
            _ => at += 1,
        }
    }
    paths
}

struct Token<'a> {
    text: &'a str,
    place: usize,
}

fn tokens(code: &str) -> Vec<Token<'_>> {
    let bytes = code.as_bytes();
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &code[at..];
        let length = if rust_text::is_name(bytes[at]) {
            let is_other = |byte: &u8| !rust_text::is_name(*byte);
            bytes[at..].iter().position(is_other).unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            rest.chars().next().map_or(1, char::len_utf8)
        };
        if !bytes[at].is_ascii_whitespace() {
            let text = &rest[..length];
            tokens.push(Token { text, place: at });
        }
        at += length;
    }
    tokens
}

/// Returns the number of tokens of the path that starts here: names separated by `::`.
fn path_length(tokens: &[Token<'_>]) -> usize {
    let mut length = 1;
    while let [separator, name, ..] = &tokens[length..]
        && separator.text == "::"
        && is_name(name.text)
    {
        length += 2;
    }
    length
}

/// Returns whether these tokens end with `pub(in`.
fn is_visibility(tokens: &[Token<'_>]) -> bool {
    matches!(tokens, [.., public, open, inside]
        if public.text == "pub" && open.text == "(" && inside.text == "in")
}

/// Returns the paths of one import tree, each with its local name.
fn expand(tree: &[Token<'_>]) -> Vec<(Segments, String)> {
    let length = path_length(tree);
    let names = tree.iter().take(length).step_by(2);
    let mut segments: Segments = names.map(|token| token.text.to_owned()).collect();
    let group = match &tree[length.min(tree.len())..] {
        [separator, open, inside @ .., _] if separator.text == "::" && open.text == "{" => inside,
        [separator, star] if separator.text == "::" && star.text == "*" => {
            segments.push("*".to_owned());
            return vec![(segments, "*".to_owned())];
        }
        [word, alias] if word.text == "as" => return vec![(segments, alias.text.to_owned())],
        _ => {
            // `{self}` is the path of the group itself.
            if segments.last().is_some_and(|last| last == "self") {
                segments.pop();
            }
            let alias = segments.last().cloned().unwrap_or_default();
            return vec![(segments, alias)];
        }
    };
    let mut paths = Vec::new();
    for part in split(group) {
        for (rest, alias) in expand(part) {
            let whole: Segments = segments.iter().cloned().chain(rest).collect();
            // The name of `a::{self}` is the name of `a`.
            let is_own = alias.is_empty();
            let alias = if is_own {
                whole.last().cloned()
            } else {
                Some(alias)
            };
            paths.push((whole, alias.unwrap_or_default()));
        }
    }
    paths
}

/// Returns the parts of a group, separated by commas outside nested groups.
fn split<'t, 'a>(group: &'t [Token<'a>]) -> Vec<&'t [Token<'a>]> {
    let mut depth = 0_usize;
    let parts = group.split(|token| {
        match token.text {
            "{" => depth += 1,
            "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && token.text == ","
    });
    parts.filter(|part| !part.is_empty()).collect()
}

fn is_name(text: &str) -> bool {
    text.bytes().next().is_some_and(rust_text::is_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mentioned(text: &str) -> Vec<String> {
        let paths = read(&Layers::new(text));
        let join = |(segments, line): (Segments, usize)| format!("{line}:{}", segments.join("::"));
        paths.mentioned.into_iter().map(join).collect()
    }

    #[test]
    fn trees_of_imports_are_expanded() {
        let text =
            "use crate::a::{self, b::{C, D as E}, f};\npub(crate) use super::g::*;\nuse h as i;\n";
        assert_eq!(
            mentioned(text),
            [
                "1:crate::a",
                "1:crate::a::b::C",
                "1:crate::a::b::D",
                "1:crate::a::f",
                "2:super::g::*",
                "3:h"
            ]
        );
        let paths = read(&Layers::new(text));
        let names: Vec<&String> = paths.imported.keys().collect();
        assert_eq!(names, ["*", "C", "E", "a", "f", "i"]);
        assert_eq!(paths.imported["E"], ["crate", "a", "b", "D"]);
    }

    #[test]
    fn paths_in_full_are_found_and_look_alikes_are_not() {
        let text = "mod a;\npub(in crate::b) fn c<'d>() -> impl E + use<'d> {\n    crate::f::g(h::I::j, \"k::l\") // m::n\n}\nmod o { }\n";
        assert_eq!(mentioned(text), ["3:crate::f::g", "3:h::I::j"]);
        assert_eq!(read(&Layers::new(text)).declared, ["a"]);
    }
}
