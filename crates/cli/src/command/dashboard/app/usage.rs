//! Resource use over time of the open task: the selected attempt.

use hq_core::curve::Curve;

use crate::command::dashboard::model::{LogKey, UsageView};

/// Charts over the output of a task.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Usage {
    view: Option<UsageView>,
    /// The selected attempt; `None` for the last one with data.
    chosen: Option<usize>,
    /// Whether the charts are hidden in favor of the output.
    pub(crate) is_hidden: bool,
}

/// The part that is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shown<'a> {
    pub(crate) attempt: usize,
    /// Number of attempts.
    pub(crate) of: usize,
    /// Whether other attempts have a curve.
    pub(crate) has_others: bool,
    pub(crate) curve: &'a Curve,
}

impl Usage {
    pub(crate) fn on_view(&mut self, view: UsageView) {
        let is_same = |old: &UsageView| (old.job, old.task) == (view.job, view.task);
        if !self.view.as_ref().is_some_and(is_same) {
            self.chosen = None;
        }
        self.view = Some(view);
    }

    /// The curve of the open task, if known.
    pub(crate) fn shown(&self, key: LogKey) -> Option<Shown<'_>> {
        let view = self.view.as_ref()?;
        if (view.job, view.task) != (key.job, key.task) {
            return None;
        }
        let (attempt, curve) = view.curves.get(self.position(view)?)?;
        Some(Shown {
            attempt: *attempt,
            of: view.attempts,
            has_others: view.curves.len() > 1,
            curve,
        })
    }

    fn position(&self, view: &UsageView) -> Option<usize> {
        let chosen = self.chosen.and_then(|chosen| {
            let mut curves = view.curves.iter();
            curves.position(|(attempt, _)| *attempt == chosen)
        });
        chosen.or_else(|| view.curves.len().checked_sub(1))
    }

    /// Selects the previous or next attempt.
    pub(crate) fn step(&mut self, later: bool) {
        let Some(view) = &self.view else { return };
        let Some(now) = self.position(view) else {
            return;
        };
        let wanted = now.saturating_add_signed(if later { 1 } else { -1 });
        let last = view.curves.len() - 1;
        // At the last attempt, the selection follows new attempts.
        self.chosen = (wanted < last).then(|| view.curves[wanted].0);
    }
}
