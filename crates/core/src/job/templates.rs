//! Templates of the tasks of a submit: as requested, grown, or with a learned request.

use std::ops::Range;
use std::sync::Arc;

use super::{SharedTemplate, Submit, SubmitKind, TemplateId};
use crate::ask::Factors;
use crate::class::{ClassId, QueueKey};
use crate::id::InstanceId;
use crate::resource::request::RequestVariants;
use crate::template::TaskTemplate;

impl Submit {
    /// Returns the template of a task whose request differs from the submitted one. The memory may
    /// not match if the task's request has not grown and the task started before the current
    /// requests were learned.
    fn special_template(&self, index: u32) -> Option<&Arc<SharedTemplate>> {
        let (id, is_sized) = self.asked(index)?;
        self.asks.special(id, is_sized, self.asks.own(index))
    }

    /// Returns the template of a task with the grant of its next instance, or of its last one.
    #[must_use]
    pub fn template(&self, index: u32) -> Option<Arc<SharedTemplate>> {
        let special = self.special_template(index).cloned();
        special.or_else(|| self.asked_template(index))
    }

    /// Returns the user's part of [`Self::template`].
    #[must_use]
    pub fn definition(&self, index: u32) -> Option<Arc<TaskTemplate>> {
        let special = self.special_template(index).map(|special| &special.task);
        let special = special.map(Arc::clone);
        special.or_else(|| self.asked_definition(index))
    }

    /// Returns the queue for a task when it is ready, or `None` if the task has not been examined
    /// yet.
    #[must_use]
    pub fn queue_key(&self, index: u32) -> Option<QueueKey> {
        let class = match self.special_template(index) {
            Some(special) => special.class,
            None => self.asked_class(index)?,
        };
        let changed = self.change(index).and_then(|change| change.priority);
        let priority = changed.unwrap_or(self.submitted_definition(index)?.priority);
        (class != ClassId::UNKNOWN).then(|| QueueKey::new(priority, class))
    }

    /// Returns the template of a task for display, as requested or as grown.
    #[must_use]
    pub fn shown_template(&self, index: u32) -> Option<Arc<SharedTemplate>> {
        let grown = self.grown(index, self.asks.own(index)).cloned();
        grown.or_else(|| self.asked_template(index))
    }

    /// Returns the definition of a task with the grant of an earlier instance.
    #[must_use]
    pub fn definition_at(&self, index: u32, instance: InstanceId) -> Option<Arc<TaskTemplate>> {
        let grown = self.grown(index, self.asks.own_at(index, instance));
        let grown = grown.map(|grown| Arc::clone(&grown.task));
        grown.or_else(|| self.asked_definition(index))
    }

    /// Returns the template of a task that has grown to these factors.
    fn grown(&self, index: u32, own: Factors) -> Option<&Arc<SharedTemplate>> {
        let (id, is_sized) = self.asked(index)?;
        self.asks.grown(id, is_sized, own.scale)
    }

    /// Returns the template of a task as requested, with later changes of the user.
    #[must_use]
    pub fn asked_template(&self, index: u32) -> Option<Arc<SharedTemplate>> {
        if let SubmitKind::Array { template, .. } = &self.kind {
            let template = self.revised_template(index).unwrap_or(template);
            return Some(Arc::clone(template));
        }
        Some(Arc::new(SharedTemplate {
            id: self.asked(index)?.0,
            header: Arc::clone(&self.header),
            class: self.asked_class(index)?,
            task: self.asked_definition(index)?,
        }))
    }

    /// Returns the class of a task as requested, with later changes of the user.
    fn asked_class(&self, index: u32) -> Option<ClassId> {
        Some(match &self.kind {
            SubmitKind::Array { template, .. } => {
                self.revised_template(index).unwrap_or(template).class
            }
            SubmitKind::Graph { classes, .. } => {
                self.revised_class(index, *classes.get(self.template_of(index)?)?)
            }
        })
    }

    /// Returns the id of a task's template as requested, and whether its memory is learned.
    fn asked(&self, index: u32) -> Option<(TemplateId, bool)> {
        let number = self.template_of(index)?;
        let id = match (&self.kind, self.revised_id(index, number)) {
            (_, Some(id)) => id,
            (SubmitKind::Array { template, .. }, None) => template.id,
            (SubmitKind::Graph { first, .. }, None) => {
                TemplateId(first.0.saturating_add(u32::try_from(number).ok()?))
            }
        };
        Some((id, self.submitted_definition(index)?.learn.memory.is_some()))
    }

    /// Returns the definition of a task as requested, with later changes of the user.
    pub(super) fn asked_definition(&self, index: u32) -> Option<Arc<TaskTemplate>> {
        if let Some(revised) = self.revised_template(index) {
            return Some(Arc::clone(&revised.task));
        }
        let task = self.submitted_definition(index)?;
        Some(match self.change(index) {
            Some(change) => Arc::new(change.applied(task)),
            None => Arc::clone(task),
        })
    }

    /// Returns the definition of a task as submitted.
    pub(crate) fn submitted_definition(&self, index: u32) -> Option<&Arc<TaskTemplate>> {
        self.definitions().get(self.template_of(index)?)
    }

    /// Returns the position of a task's template among [`Self::definitions`].
    fn template_of(&self, index: u32) -> Option<usize> {
        match &self.kind {
            SubmitKind::Array { .. } => Some(0),
            SubmitKind::Graph { template_of, .. } => {
                Some(*template_of.get(index as usize)? as usize)
            }
        }
    }

    /// Returns the distinct definitions of the submit's tasks, as submitted.
    #[must_use]
    pub fn definitions(&self) -> &[Arc<TaskTemplate>] {
        match &self.kind {
            SubmitKind::Array { template, .. } => std::slice::from_ref(&template.task),
            SubmitKind::Graph { templates, .. } => templates,
        }
    }

    /// Interns the requests of the tasks in a part of a graph.
    pub(crate) fn intern(
        &mut self,
        part: Range<u32>,
        mut intern: impl FnMut(&RequestVariants) -> ClassId,
    ) {
        let SubmitKind::Graph {
            templates,
            classes,
            template_of,
            ..
        } = &mut self.kind
        else {
            return;
        };
        let end = part
            .end
            .min(u32::try_from(template_of.len()).unwrap_or(u32::MAX));
        for index in part.start..end {
            let number = template_of[index as usize] as usize;
            if let (Some(class), Some(task)) = (classes.get_mut(number), templates.get(number)) {
                if *class == ClassId::UNKNOWN {
                    *class = intern(&task.requests);
                }
                if let Some(revisions) = &mut self.revisions {
                    revisions.note_class(index, (*class, task), &mut intern);
                }
            }
        }
    }
}
