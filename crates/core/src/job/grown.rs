//! Tasks of a submit whose later instances got more than requested.
//!
//! They are few. Tasks with equal growth share a template, so that they stay interchangeable for
//! the scheduler and a worker receives the template once.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{SharedTemplate, TemplateId};
use crate::growth::Scale;
use crate::id::InstanceId;

/// Grown request of a task, valid from one of its instances until it grows again.
#[derive(Clone, Debug)]
pub struct Grown {
    /// Multiple of the request.
    pub scale: Scale,
    /// The template with that much.
    pub template: Arc<SharedTemplate>,
}

/// Tasks that grew.
#[derive(Clone, Debug, Default)]
pub struct GrownTasks {
    /// By index and first instance with this growth.
    by_instance: BTreeMap<(u32, InstanceId), Grown>,
    /// By requested template and scale; a submit can have very many.
    templates: BTreeMap<(TemplateId, Scale), Arc<SharedTemplate>>,
}

impl GrownTasks {
    /// Grown request of the last instance of a task; `None` = as submitted.
    #[must_use]
    pub fn last(&self, index: u32) -> Option<&Grown> {
        self.at(index, InstanceId(u32::MAX))
    }

    /// Grown request of an instance of a task; `None` = as submitted.
    #[must_use]
    pub fn at(&self, index: u32, instance: InstanceId) -> Option<&Grown> {
        let until = (index, InstanceId(0))..=(index, instance);
        self.by_instance
            .range(until)
            .next_back()
            .map(|(_, grown)| grown)
    }

    /// Scale of a task's request.
    #[must_use]
    pub fn scale(&self, index: u32) -> Scale {
        self.last(index)
            .map(|grown| grown.scale)
            .unwrap_or_default()
    }

    /// An existing template with this growth.
    pub(crate) fn known(&self, asked: TemplateId, scale: Scale) -> Option<Arc<SharedTemplate>> {
        self.templates.get(&(asked, scale)).map(Arc::clone)
    }

    /// Grants a task more from one of its instances on.
    pub(crate) fn add(
        &mut self,
        (index, from): (u32, InstanceId),
        asked: TemplateId,
        grown: Grown,
    ) {
        let template = Arc::clone(&grown.template);
        self.templates.insert((asked, grown.scale), template);
        self.by_instance.insert((index, from), grown);
    }

    /// First and last id of each run of created templates.
    pub(crate) fn template_runs(&self) -> Vec<(TemplateId, TemplateId)> {
        runs(self.templates.values().map(|made| made.id).collect())
    }

    /// The created templates, to be freed in portions.
    pub(crate) fn into_templates(self) -> Vec<Arc<SharedTemplate>> {
        self.templates.into_values().collect()
    }

    /// Splits `from..to` where tasks grew: each part has one template, if the submit has.
    pub(crate) fn parts(&self, from: u32, to: u32) -> Vec<(u32, u32)> {
        let mut parts = Vec::new();
        let mut start = from;
        let mut before: Option<(u32, TemplateId)> = None;
        let mut grown = self
            .by_instance
            .range((from, InstanceId(0))..(to, InstanceId(0)))
            .map(|((index, _), grown)| (*index, grown.template.id))
            .peekable();
        while let Some((index, id)) = grown.next() {
            // Of one task the last instance counts.
            if grown.peek().is_some_and(|(next, _)| *next == index) {
                continue;
            }
            // Neighbors with equal growth form one part.
            match parts.last_mut() {
                Some((_, end)) if *end == index && before == Some((index, id)) => *end = index + 1,
                _ => {
                    if start < index {
                        parts.push((start, index));
                    }
                    parts.push((index, index + 1));
                }
            }
            start = index + 1;
            before = Some((start, id));
        }
        if start < to {
            parts.push((start, to));
        }
        parts
    }
}

/// First and last number of each run of templates.
pub(super) fn runs(mut ids: Vec<TemplateId>) -> Vec<(TemplateId, TemplateId)> {
    ids.sort_unstable();
    let mut runs: Vec<(TemplateId, TemplateId)> = Vec::new();
    for id in ids {
        match runs.last_mut() {
            Some((_, last)) if last.0.checked_add(1) == Some(id.0) => *last = id,
            _ => runs.push((id, id)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::ClassId;
    use crate::id::JobId;

    fn grown(id: u32) -> Grown {
        let template = SharedTemplate {
            id: TemplateId(id),
            job: JobId(1),
            job_name: "job".into(),
            submit_dir: Box::from(*b"/"),
            stream_dir: None,
            class: ClassId(0),
            task: Arc::new(crate::testing::template(&["true"])),
        };
        let scale = Scale::new(1_000 + id, 1_000).expect("no less than asked for");
        Grown {
            scale,
            template: Arc::new(template),
        }
    }

    #[test]
    fn tasks_beside_each_other_that_grew_alike_are_one_part() {
        let mut tasks = GrownTasks::default();
        // Task 4 grew twice, and then has the grant of task 5.
        for (index, instance, id) in [
            (2, 1, 7),
            (3, 1, 7),
            (4, 1, 7),
            (4, 2, 8),
            (5, 3, 8),
            (7, 1, 8),
        ] {
            tasks.add((index, InstanceId(instance)), TemplateId(1), grown(id));
        }
        let all = [(0, 2), (2, 4), (4, 6), (6, 7), (7, 8), (8, 10)];
        assert_eq!(tasks.parts(0, 10), all);
        assert_eq!(tasks.parts(3, 5), [(3, 4), (4, 5)]);
        assert_eq!(tasks.parts(8, 10), [(8, 10)]);
        assert_eq!(tasks.parts(5, 5), []);
        let first = tasks.at(4, InstanceId(1)).map(|grown| grown.template.id);
        assert_eq!(first, Some(TemplateId(7)));
        assert!(tasks.at(4, InstanceId(0)).is_none());
        assert_eq!(
            tasks.last(4).map(|grown| grown.template.id),
            Some(TemplateId(8))
        );
        assert_eq!(tasks.template_runs(), [(TemplateId(7), TemplateId(8))]);
    }
}
