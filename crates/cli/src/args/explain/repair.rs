//! Guesses the intended value. The parser itself decides whether a rewritten value is valid.

use std::borrow::Cow;

use clap::error::ErrorKind;

use super::takes;
use crate::args::{built_command, known_resource};
use crate::text::closest;

/// The maximum size of a rewritten value in bytes.
const VALUE_MAX: usize = 200;

/// Rewrites a value. Returns `None` if the repair does not apply.
type Repair = fn(&str) -> Option<String>;

/// All repairs, starting with the smallest change.
const REPAIRS: &[Repair] = &[
    |value| Some(value.trim_matches(is_around).to_owned()),
    |value| Some(value.to_lowercase()),
    |value| {
        let meant = closest(value, ["last", "all"].into_iter())?;
        value.starts_with(&meant[..1]).then(|| meant.to_owned())
    },
    listed,
    |value| Some(value.split_whitespace().collect()),
    |value| Some(ranged(value)),
    |value| turned(&ranged(value)),
    // For example, `1,5h` and `0,5`.
    |value| {
        let is_decimal = value.starts_with("0,") || value.ends_with(char::is_alphabetic);
        (is_decimal && value.matches(',').count() == 1).then(|| value.replace(',', "."))
    },
    // For example, `mem:4G` and `mem 4G`.
    |value| Some(value.replacen([':', ' '], "=", 1)),
    // For example, `1h30` and `2d12`.
    |value| is_part_of_time(value).then(|| format!("{value}m")),
    |value| is_part_of_time(value).then(|| format!("{value}h")),
    // For example, `4G` as a resource.
    |value| {
        let is_amount = value.starts_with(|c: char| c.is_ascii_digit());
        is_amount.then(|| format!("mem={value}"))
    },
    // For example, `4cores`.
    |value| {
        let number = value.trim_end_matches(char::is_alphabetic);
        let is_number = number.starts_with(|c: char| c.is_ascii_digit());
        (is_number && value.len() >= number.len() + 3).then(|| number.to_owned())
    },
    // For example, `1/2` and `1e3`.
    |value| {
        let (whole, parts) = value.split_once('/')?;
        let share = whole.parse::<f64>().ok()? / parts.parse::<f64>().ok()?;
        share.is_finite().then(|| share.to_string())
    },
    |value| {
        let number = value.parse::<f64>().ok().filter(|_| value.contains('e'))?;
        number.is_finite().then(|| number.to_string())
    },
    // For example, `1_000`, `10'000` and `1,000`.
    |value| {
        let mut parts = value.split(['_', '\'', ',']).skip(1);
        let are_thousands = parts.all(|part| part.len() == 3);
        are_thousands.then(|| value.replace(['_', '\'', ','], ""))
    },
    // For example, `4-7` and `gpus/nvidia=0,2`, which are definitions of a worker's resources.
    |value| {
        let (name, ids) = value.split_at(value.find('=').map_or(0, |at| at + 1));
        match (ids.contains(','), ids.contains('-')) {
            (true, false) => Some(format!("{name}[{ids}]")),
            (false, true) => Some(format!("{name}range({ids})")),
            (true, true) | (false, false) => None,
        }
    },
];

/// Returns whether a time ends without its last unit.
fn is_part_of_time(value: &str) -> bool {
    let is_digit = |c: char| c.is_ascii_digit();
    value.starts_with(is_digit) && value.ends_with(is_digit) && value.contains(['h', 'd'])
}

/// Returns whether a character is punctuation that users put around a value.
fn is_around(c: char) -> bool {
    !c.is_alphanumeric() && !"-@~/%$_*?!".contains(c)
}

/// Rewrites lists such as `1 2`, `1;2` and `1 and 2`.
fn listed(value: &str) -> Option<String> {
    let value = value.replace(" and ", ",");
    let parts = value
        .trim_matches(is_around)
        .split([',', ';', ' ', '|', '+']);
    let parts: Vec<&str> = parts.filter(|part| !part.is_empty()).collect();
    (parts.len() > 1).then(|| parts.join(","))
}

/// Rewrites ranges such as `1..3`, `1:3` and `1 to 3`.
fn ranged(value: &str) -> String {
    let value = value.trim_matches(is_around).replace(' ', "");
    ["..=", "...", "..", "--", "to", ":", "~"]
        .iter()
        .fold(value, |value, sign| value.replace(sign, "-"))
}

/// Returns `2-5` for `5-2`.
fn turned(value: &str) -> Option<String> {
    let (last, first) = value.split_once('-')?;
    let (last, first): (u64, u64) = (last.parse().ok()?, first.parse().ok()?);
    (first < last).then(|| format!("{first}-{last}"))
}

/// Returns the message for an empty value, which usually comes from an unset shell variable.
pub(super) fn empty(name: &str, value: &str, (path, words): (&[&str], &[&str])) -> Option<String> {
    (value.trim().is_empty() && is_typed(words) && name != "--server-dir").then(|| {
        let takes = takes(name, path).map_or_else(String::new, |takes| format!("; {takes}"));
        format!("it is empty: a variable of this shell may be unset{takes}")
    })
}

/// Returns whether an empty value was typed.
pub(super) fn is_typed(words: &[&str]) -> bool {
    let mut words = words.iter();
    words.any(|word| word.trim().is_empty() || word.ends_with('='))
}

/// Detects a list with blanks after its commas, as in `--param T=300, 310`.
pub(super) fn joined(name: &str, words: &[&str]) -> Option<String> {
    let is_open = |word: &str| word.ends_with([',', ';']);
    let inline = format!("{name}=");
    let at = words.iter().enumerate().position(|(at, word)| {
        is_open(word) && (word.starts_with(&inline) || at > 0 && words[at - 1] == name)
    });
    let at = at.filter(|_| name.starts_with("--"))?;
    let first = words[at].strip_prefix(&inline).unwrap_or(words[at]);
    let mut parts = vec![first];
    let rest = words[at + 1..]
        .iter()
        .take_while(|word| !word.starts_with('-'));
    for word in rest {
        parts.push(word);
        if !is_open(word) {
            break;
        }
    }
    let count = parts.len();
    let parts: Vec<&str> = parts
        .iter()
        .flat_map(|part| part.split([',', ';']))
        .collect();
    let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    let from = at - usize::from(words[at] == first);
    let with =
        |instead: &[&str]| is_accepted(&[&words[..from], instead, &words[at + count..]].concat());
    let one = parts.join(",");
    if parts.len() > 1 && with(&[name, &one]) {
        return Some(format!("it is one word without blanks: `{name} {one}`"));
    }
    let each: Vec<&str> = parts.iter().flat_map(|part| [name, part]).collect();
    (parts.len() > 1 && with(&each)).then(|| format!("repeat the option: `{}`", each.join(" ")))
}

/// Returns a valid value that is close to a value that the parser rejected.
pub(super) fn guess_value(name: &str, value: &str, words: &[&str]) -> Option<String> {
    let is_it = |word: &&str| *word == value || word.ends_with(&format!("={value}"));
    let is_shown = !value.is_empty() && value.len() <= VALUE_MAX;
    let at = words.iter().position(is_it).filter(|_| is_shown)?;
    let is_option = name.starts_with("--");
    let before = words[at].strip_suffix(value)?;
    // Returns whether the parser accepts the command line with `instead` in place of `count` words.
    let with = |count: usize, instead: &[&str]| {
        let rest = words.get(at + count..).unwrap_or_default();
        is_accepted(&[&words[..at], instead, rest].concat())
    };
    let shown = |value: &str| {
        let is_plain = value
            .chars()
            .all(|c| c.is_alphanumeric() || "-_,.:=/@%+!".contains(c));
        let value = match shlex::try_quote(value) {
            Ok(quoted) if !is_plain => quoted,
            Ok(_) | Err(_) => Cow::Borrowed(value),
        };
        if is_option {
            format!("{name} {value}")
        } else {
            value.into_owned()
        }
    };
    // For example, `2:1` and `2[1]`, but not `2-1`, which is also a range.
    let task = value
        .trim_end_matches(']')
        .replacen([':', '[', '_', '/', '@', ' '], ".", 1);
    let task = Some(task).filter(|_| !is_option);
    let others = REPAIRS.iter().filter_map(|repair| repair(value));
    let others = others.filter(|other| name == "--resource" || !other.starts_with("mem="));
    for other in others.chain(task) {
        let is_new = !other.is_empty() && other != value;
        if is_new && with(1, &[&format!("{before}{other}")]) {
            let meant = format!("did you mean `{}`?", shown(&other));
            let resource = other.split('=').next().filter(|_| name == "--resource");
            return Some(match resource.and_then(known_resource) {
                Some(here) => format!("{meant} Here {here}"),
                None => meant,
            });
        }
    }
    if !is_option || !before.is_empty() {
        return None;
    }
    // For example, `mem 4G` and `x 1,2`.
    let joined = format!("{value}={}", words.get(at + 1)?);
    let is_name = value.starts_with(char::is_alphabetic);
    if is_name && !words[at + 1].starts_with('-') && with(2, &[&joined]) {
        return Some(format!("it is one word: `{}`", shown(&joined)));
    }
    // For example, `mem=4G,gpus/nvidia=1`.
    let parts = value.split([',', ';', ' ']);
    let parts: Vec<&str> = parts.filter(|part| !part.is_empty()).collect();
    let repeated: Vec<&str> = parts.iter().flat_map(|part| [name, part]).skip(1).collect();
    (parts.len() > 1 && with(1, &repeated)).then(|| {
        let parts: Vec<String> = parts.iter().map(|part| shown(part)).collect();
        format!("repeat the option: `{}`", parts.join(" "))
    })
}

/// Returns whether the parser accepts every value of a command line. An argument may be missing.
fn is_accepted(words: &[&str]) -> bool {
    let parsed = built_command().try_get_matches_from(words);
    parsed.err().is_none_or(|error| {
        let kind = error.kind();
        kind == ErrorKind::MissingRequiredArgument || kind == ErrorKind::DisplayHelp
    })
}
