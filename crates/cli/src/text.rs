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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_where_the_room_ends() {
        assert_eq!(fit("abcdef", 4), "abc~");
        assert_eq!(fit("äöü", 3), "äöü");
    }
}
