//! The output of one task on the full screen.

use std::cell::Cell;
use std::collections::VecDeque;

use crate::command::dashboard::model::{LogKey, LogPart};
use crate::text::clean;

/// The maximum number of lines. Older lines are dropped.
const LINES_MAX: usize = 50_000;
/// The number of columns that one key press scrolls.
const SHIFT: usize = 20;

/// An open log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Log {
    pub(crate) key: LogKey,
    /// The number of this opening. It distinguishes this opening from earlier openings of the same
    /// output.
    pub(crate) opening: u32,
    lines: VecDeque<String>,
    /// The last line, which may be incomplete.
    rest: Vec<u8>,
    /// Whether nothing has been received yet.
    pub(crate) is_new: bool,
    /// Whether output before the first line is missing.
    pub(crate) is_cut: bool,
    pub(crate) note: Option<String>,
    /// The first line that is shown.
    top: usize,
    /// The number of screen rows for lines. It is set while drawing.
    pub(crate) height: Cell<usize>,
    pub(crate) is_following: bool,
    /// The first column that is shown.
    pub(crate) shift: usize,
    pub(crate) search: String,
    /// The line of the last match, where the next search starts.
    found: Option<usize>,
}

impl Log {
    pub(crate) const fn new(key: LogKey, opening: u32) -> Self {
        Self {
            key,
            opening,
            lines: VecDeque::new(),
            rest: Vec::new(),
            is_new: true,
            is_cut: false,
            note: None,
            top: 0,
            height: Cell::new(1),
            is_following: true,
            shift: 0,
            search: String::new(),
            found: None,
        }
    }

    /// Returns whether a part belongs to this opening. A part of an earlier opening starts in the
    /// middle or never ends.
    pub(crate) fn is_for(&self, part: &LogPart) -> bool {
        (self.key, self.opening) == (part.key, part.opening)
    }

    pub(crate) fn on_part(&mut self, part: LogPart) {
        if part.is_first {
            self.lines.clear();
            self.rest.clear();
            self.is_cut = part.is_cut;
            self.is_new = false;
        }
        self.note = part.note;
        for piece in part.bytes.split_inclusive(|byte| *byte == b'\n') {
            self.rest.extend_from_slice(piece);
            if self.rest.ends_with(b"\n") {
                let line = shown(&self.rest);
                self.lines.push_back(line);
                self.rest.clear();
            }
        }
        while self.lines.len() > LINES_MAX {
            self.lines.pop_front();
            self.is_cut = true;
            self.found = self.found.and_then(|at| at.checked_sub(1));
            // The visible lines stay where they are.
            self.top = self.top.saturating_sub(1);
        }
    }

    /// Returns the number of lines, including an incomplete last line.
    pub(crate) fn len(&self) -> usize {
        self.lines.len() + usize::from(!self.rest.is_empty())
    }

    fn top_max(&self) -> usize {
        self.len().saturating_sub(self.height.get().max(1))
    }

    /// Returns the first line that is shown.
    pub(crate) fn top(&self) -> usize {
        let last = self.top_max();
        if self.is_following {
            last
        } else {
            self.top.min(last)
        }
    }

    /// Returns the lines on the screen.
    pub(crate) fn page(&self) -> impl Iterator<Item = String> + '_ {
        let rest = (!self.rest.is_empty()).then(|| shown(&self.rest));
        let all = self.lines.iter().cloned().chain(rest);
        all.skip(self.top()).take(self.height.get())
    }

    /// Scrolls the output. At the end, the view follows new output. Elsewhere, it stops following.
    pub(crate) fn move_by(&mut self, rows: isize) {
        let last = self.top_max();
        self.found = None;
        self.top = self.top().saturating_add_signed(rows).min(last);
        self.is_following = rows > 0 && self.top == last;
    }

    pub(crate) fn follow(&mut self) {
        self.top = self.top();
        self.is_following = !self.is_following;
    }

    pub(crate) const fn shift_by(&mut self, right: bool) {
        self.shift = if right {
            self.shift.saturating_add(SHIFT)
        } else {
            self.shift.saturating_sub(SHIFT)
        };
    }

    /// Returns whether a line contains the search text.
    pub(crate) fn matches(&self, line: &str) -> bool {
        !self.search.is_empty() && line.to_lowercase().contains(&self.search.to_lowercase())
    }

    /// Goes to the next or previous match, wrapping around. Returns `false` if no line matches.
    pub(crate) fn find(&mut self, forward: bool) -> bool {
        let count = self.lines.len();
        // Near the end, the matching line is not the first visible one.
        let from = self.found.filter(|at| *at < count);
        let from = from.unwrap_or_else(|| self.top());
        let found = (1..=count).find_map(|step| {
            let at = if forward {
                (from + step) % count
            } else {
                (from + count - step) % count
            };
            self.lines.get(at).filter(|line| self.matches(line))?;
            Some(at)
        });
        self.found = found;
        if let Some(at) = found {
            // The end of the text stays at the end of the screen. A match there is visible anyway.
            self.top = at.min(self.top_max());
            self.is_following = false;
        }
        found.is_some()
    }
}

/// Returns a line as a terminal shows it, because programs that draw a progress bar overwrite their
/// line.
fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim_end_matches(['\n', '\r']);
    clean(text.rsplit('\r').next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: LogKey = LogKey {
        job: 1,
        task: 2,
        is_stderr: false,
    };

    fn part(is_first: bool, text: &str) -> LogPart {
        LogPart {
            key: KEY,
            opening: 1,
            is_first,
            is_cut: false,
            bytes: text.as_bytes().to_vec(),
            note: None,
        }
    }

    fn log(lines: usize) -> Log {
        let mut log = Log::new(KEY, 1);
        log.height.set(5);
        let text: String = (0..lines).map(|line| format!("line {line}\n")).collect();
        log.on_part(part(true, &text));
        log
    }

    fn page(log: &Log) -> Vec<String> {
        log.page().collect()
    }

    #[test]
    fn lines_and_characters_may_come_in_pieces() {
        let mut log = log(1);
        let bytes = "ä 10 %\rä 20 %\nend".as_bytes();
        for byte in bytes {
            log.on_part(LogPart {
                bytes: vec![*byte],
                ..part(false, "")
            });
        }
        assert_eq!(page(&log), ["line 0", "ä 20 %", "end"]);
        log.on_part(part(true, "again\n"));
        assert_eq!(page(&log), ["again"], "another instance");
    }

    #[test]
    fn the_end_is_followed_until_somebody_scrolls_back() {
        let mut log = log(20);
        assert_eq!(page(&log)[4], "line 19");
        log.move_by(-3);
        log.on_part(part(false, "new\n"));
        assert_eq!(page(&log)[4], "line 16");
        log.move_by(isize::MAX);
        log.on_part(part(false, "newer\n"));
        assert_eq!(page(&log)[4], "newer");
        log.follow();
        log.on_part(part(false, "not seen\n"));
        assert_eq!(page(&log)[4], "newer");
    }

    #[test]
    fn searches_go_around_and_say_when_there_is_nothing() {
        let mut log = log(30);
        log.search = "LINE 1".to_owned();
        // The search goes from the end around to `line 1`, then to `line 10`.
        assert!(log.find(true));
        assert_eq!(page(&log)[0], "line 1");
        assert!(log.find(true));
        assert_eq!(page(&log)[0], "line 10");
        assert!(log.find(false));
        assert_eq!(page(&log)[0], "line 1");
        log.search = "line 2".to_owned();
        for wanted in [29, 2, 20] {
            let found = (0..30).filter(|line| format!("line {line}").contains("line 2"));
            let steps = if wanted == 29 { found.count() } else { 1 };
            for _ in 0..steps {
                assert!(log.find(true));
            }
            assert_eq!(log.found, Some(wanted), "around the end");
        }
        log.search = "nowhere".to_owned();
        assert!(!log.find(true));
        assert!(!Log::new(KEY, 1).find(false), "an empty one");
    }

    #[test]
    fn of_very_long_outputs_the_end_is_kept() {
        let mut log = log(10);
        log.move_by(isize::MIN);
        log.on_part(part(false, &"x\n".repeat(LINES_MAX)));
        assert_eq!((log.len(), log.is_cut), (LINES_MAX, true));
    }
}
