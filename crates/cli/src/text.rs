//! Text as a terminal shows it.

/// Whether a character moves the cursor or changes the direction of writing: texts of tasks, workers and users with
/// such ones would show on a terminal what they do not say.
pub(crate) fn is_hidden(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A text that fits into as many columns as it has characters: the end is cut off.
pub(crate) fn fit(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(width.saturating_sub(1)).collect();
    cut.push('~');
    cut
}

/// The name that differs least from `name`, if one is close enough to have been meant.
pub(crate) fn closest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let nearest = known.map(|other| (distance(name, other), other)).min()?;
    // A letter of three may be wrong, and one that is missing or too much in short names.
    let most = name.chars().count().max(3) / 3;
    (nearest.0 <= most).then_some(nearest.1)
}

/// Letters to be added, removed or replaced (Levenshtein), letters of different case being the same.
fn distance(first: &str, second: &str) -> usize {
    let letters = |text: &str| text.to_lowercase().chars().collect::<Vec<char>>();
    let (first, second) = (letters(first), letters(second));
    let mut row: Vec<usize> = (0..=second.len()).collect();
    for (at, letter) in first.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for (to, other) in second.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != other);
            diagonal = row[to + 1];
            row[to + 1] = replaced.min(diagonal + 1).min(row[to] + 1);
        }
    }
    row[second.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_where_the_room_ends() {
        assert_eq!(fit("abcdef", 4), "abc~");
        assert_eq!(fit("äöü", 3), "äöü");
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
