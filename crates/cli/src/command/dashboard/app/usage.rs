//! The resource usage of the selected attempt of the open task over time.

use hq_core::curve::Curve;

use crate::command::dashboard::model::{LogKey, UsageView};

/// The charts above the output of a task.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Usage {
    view: Option<UsageView>,
    /// The selected attempt. `None` for the last attempt with data.
    chosen: Option<usize>,
    /// Whether the charts are hidden in favor of the output.
    pub(crate) is_hidden: bool,
}

impl Usage {
    pub(crate) fn on_view(&mut self, view: UsageView) {
        let is_same = |old: &UsageView| (old.job, old.task) == (view.job, view.task);
        if !self.view.as_ref().is_some_and(is_same) {
            self.chosen = None;
        }
        self.view = Some(view);
    }

    /// Returns the attempts of the open task, and the number and the curve of the attempt that is
    /// shown, if known.
    pub(crate) fn shown(&self, key: LogKey) -> Option<(&UsageView, usize, &Curve)> {
        let is_open = |view: &&UsageView| (view.job, view.task) == (key.job, key.task);
        let view = self.view.as_ref().filter(is_open)?;
        let (attempt, curve) = view.curves.get(self.position(view)?)?;
        Some((view, *attempt, curve))
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
        // If the last attempt is selected, the selection follows new attempts.
        self.chosen = (wanted < last).then(|| view.curves[wanted].0);
    }
}
