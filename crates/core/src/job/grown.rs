//! Tasks of a submit whose later instances got more than was asked for.
//!
//! They are few. Those that grew alike share a template, so that they stay interchangeable for the scheduler and a worker
//! is sent it once.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{SharedTemplate, TemplateId};
use crate::growth::Scale;
use crate::id::InstanceId;

/// What a task gets from one of its instances on.
#[derive(Clone, Debug)]
pub struct Grown {
    /// The first instance that gets it.
    pub from: InstanceId,
    /// By how much it is more than what was asked for.
    pub scale: Scale,
    /// The template with that much.
    pub template: Arc<SharedTemplate>,
}

/// Tasks that grew, by index.
#[derive(Clone, Debug, Default)]
pub struct GrownTasks {
    /// Of each task by instance, ascending; never empty.
    by_index: BTreeMap<u32, Vec<Grown>>,
    /// The template that was asked for, how much more of it, and the template with that.
    templates: Vec<(TemplateId, Scale, Arc<SharedTemplate>)>,
}

impl GrownTasks {
    /// What the last instance of a task gets, if that is more than was asked for.
    #[must_use]
    pub fn last(&self, index: u32) -> Option<&Grown> {
        self.by_index.get(&index)?.last()
    }

    /// What an instance of a task got, if that is more than was asked for.
    #[must_use]
    pub fn at(&self, index: u32, instance: InstanceId) -> Option<&Grown> {
        let grown = self.by_index.get(&index)?;
        grown.iter().rev().find(|grown| grown.from <= instance)
    }

    /// How much more than asked for a task gets.
    #[must_use]
    pub fn scale(&self, index: u32) -> Scale {
        self.last(index)
            .map(|grown| grown.scale)
            .unwrap_or_default()
    }

    /// A template that was made for another task.
    pub(crate) fn known(&self, asked: TemplateId, scale: Scale) -> Option<Arc<SharedTemplate>> {
        let found = self.templates.iter();
        let mut found = found.filter(|(id, other, _)| (*id, *other) == (asked, scale));
        found.next().map(|(_, _, template)| Arc::clone(template))
    }

    /// Lets a task have more from one of its instances on.
    pub(crate) fn add(&mut self, index: u32, asked: TemplateId, grown: Grown) {
        if self.known(asked, grown.scale).is_none() {
            let template = Arc::clone(&grown.template);
            self.templates.push((asked, grown.scale, template));
        }
        self.by_index.entry(index).or_default().push(grown);
    }

    /// Numbers of the templates that were made.
    pub(crate) fn template_ids(&self) -> impl Iterator<Item = TemplateId> + '_ {
        self.templates.iter().map(|(_, _, template)| template.id)
    }

    /// `from..to` cut at the tasks that grew: what is in one part has one template, if the submit has.
    pub(crate) fn parts(&self, from: u32, to: u32) -> Vec<(u32, u32)> {
        let mut parts = Vec::new();
        let mut start = from;
        for index in self.by_index.range(from..to).map(|(index, _)| *index) {
            if start < index {
                parts.push((start, index));
            }
            parts.push((index, index + 1));
            start = index + 1;
        }
        if start < to {
            parts.push((start, to));
        }
        parts
    }
}
