//! Known exceptions to a rule, as a list that may only shrink.
//!
//! For a rule that existing code violates, the violations are counted per file. More violations
//! than listed are an error, and so are fewer, because the list would then permit new ones.

use super::Problem;

/// Files with violations, and the number of affected lines.
pub(super) type Exceptions = &'static [(&'static str, usize)];

/// Returns the problems of one file without the excepted ones. `list` names the file that contains
/// the exceptions.
pub(super) fn allow(
    exceptions: Exceptions,
    list: &str,
    path: &str,
    found: Vec<Problem>,
) -> Vec<Problem> {
    let known = exceptions.iter().find(|(known, _)| *known == path);
    let allowed = known.map_or(0, |(_, count)| *count);
    let count = found.len();
    if count > allowed {
        return found;
    }
    if count < allowed {
        let message =
            format!("{count} exceptions are left here; the list {list} says {allowed}, correct it");
        return vec![Problem::new(path, 1, message)];
    }
    Vec::new()
}

/// Returns problems for exceptions whose file does not exist.
pub(super) fn gone(exceptions: Exceptions, list: &str, paths: &[String]) -> Vec<Problem> {
    let is_there = |known: &str| paths.iter().any(|path| path == known);
    exceptions
        .iter()
        .filter(|(known, _)| !is_there(known))
        .map(|(known, _)| {
            let message = format!("the file is gone; remove it from the list {list}");
            Problem::new(known, 1, message)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: Exceptions = &[("a.rs", 2)];

    fn left(path: &str, count: usize) -> usize {
        let found = vec![Problem::new(path, 7, "wrong"); count];
        allow(KNOWN, "KNOWN", path, found).len()
    }

    #[test]
    fn the_list_can_only_shrink() {
        assert_eq!(left("a.rs", 2), 0);
        assert_eq!(left("a.rs", 3), 3);
        assert_eq!(left("a.rs", 1), 1);
        assert_eq!(left("a.rs", 0), 1);
        assert_eq!(left("b.rs", 0), 0);
        assert_eq!(left("b.rs", 1), 1);
        let paths = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(gone(KNOWN, "KNOWN", &paths(&["a.rs", "b.rs"])).len(), 0);
        assert_eq!(gone(KNOWN, "KNOWN", &paths(&["b.rs"])).len(), 1);
    }
}
