//! The text that is typed to find tasks: `failed`, `17-30`, `node3`, `failed node3`.

use hq_core::task::TaskState;

use super::model::TaskRow;

/// A filter for tasks. All words must match.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct TaskFilter {
    /// The states. If empty, all states match.
    pub(super) states: Vec<TaskState>,
    /// The first and the last id.
    pub(super) ids: Option<(u32, u32)>,
    /// The texts, in lower case, to find in the host or failure.
    texts: Vec<String>,
}

impl TaskFilter {
    pub(super) fn parse(text: &str) -> Self {
        let mut filter = Self::default();
        for word in text.to_lowercase().split_whitespace() {
            let state = TaskState::ALL
                .into_iter()
                .find(|state| state.name() == word);
            if let Some(state) = state {
                filter.states.push(state);
            } else if let Some(ids) = ids(word) {
                filter.ids = Some(ids);
            } else {
                filter.texts.push(word.to_owned());
            }
        }
        filter
    }

    /// Returns whether the filter searches texts, which requires examining every task.
    pub(super) const fn has_texts(&self) -> bool {
        !self.texts.is_empty()
    }

    pub(super) fn matches(&self, row: &TaskRow) -> bool {
        let has = |text: &String| {
            row.host.to_lowercase().contains(text) || row.error.to_lowercase().contains(text)
        };
        (self.states.is_empty() || self.states.contains(&row.state))
            && self
                .ids
                .is_none_or(|(first, last)| (first..=last).contains(&row.task))
            && self.texts.iter().all(has)
    }
}

/// Parses `7` or `7-9`.
fn ids(word: &str) -> Option<(u32, u32)> {
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last).then_some((first, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_states_ids_or_texts_and_all_have_to_fit() {
        let row = TaskRow {
            task: 17,
            state: TaskState::Failed,
            host: "Node3.cluster".to_owned(),
            error: "exit code 7".to_owned(),
            ..TaskRow::default()
        };
        let fits = |text: &str| TaskFilter::parse(text).matches(&row);
        for text in [
            "",
            "failed",
            "17",
            "10-20",
            "node3",
            "FAILED 17 code 7-99",
            "running failed",
        ] {
            assert!(fits(text), "{text}");
        }
        for text in ["running", "18", "18-20", "node4", "failed node4", "20-10"] {
            assert!(!fits(text), "{text}");
        }
        assert!(!TaskFilter::parse("failed 3").has_texts());
        assert!(TaskFilter::parse("3-").has_texts());
    }
}
