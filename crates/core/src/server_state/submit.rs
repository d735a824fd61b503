//! Acceptance of submits. A rejected submit changes nothing.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use super::prepared::{Prepared, PreparedTasks};
use super::{ChangeKind, Ctx, Freed, ServerState, SubmitKey, SubmitRefusal};
use crate::bug;
use crate::id::{JobId, TaskId};
use crate::job::{
    Asks, Job, SharedTemplate, Spent, Submit, SubmitAt, SubmitHeader, SubmitKind, TemplateId,
};
use crate::placeholder::fill_known;
use crate::range::{IdArray, IndexSet};
use crate::task::TaskTable;
use crate::template::{ArrayIds, ArraySpec, StdioSpec, SubmitSpec, SubmitTarget, TaskTemplate};
use crate::time::Timestamp;

/// The maximum number of notifications of a job.
pub(super) const NOTICES_MAX: usize = 64;

/// The maximum number of a submit's dependencies on earlier submits. This takes about 5 ms in one
/// step.
const EARLIER_MAX: usize = 1 << 16;

/// The number of recent submits of a job that are searched for an equal template. A program has few
/// kinds of calls at a time.
const ALIKE_MAX: usize = 8;

/// A submit that was checked and can be added.
struct Checked {
    /// The job to create.
    new: Option<Job>,
    header: SubmitHeader,
    /// The ids of the submit's tasks.
    ids: IdArray,
}

impl ServerState {
    /// Opens a job, unless this key has opened one before.
    pub(super) fn open_job(
        &mut self,
        ctx: &mut Ctx<'_>,
        name: Box<str>,
        max_fails: Option<u32>,
        key: Option<SubmitKey>,
    ) -> Result<JobId, SubmitRefusal> {
        if let Some(known) = key.as_ref().and_then(|key| self.submit_keys.find(key)) {
            return known;
        }
        let id = self.jobs.next_id().ok_or(SubmitRefusal::TooManyJobs)?;
        let opened = ChangeKind::JobOpened {
            job: id,
            name: name.clone(),
            max_fails,
        };
        ctx.persist(opened);
        self.jobs
            .add(Job::new(id, name, max_fails, true, ctx.now.wall));
        self.note_key(ctx, id, key);
        Ok(id)
    }

    /// Checks a submit and adds it, unless it has been added before.
    pub(super) fn submit(
        &mut self,
        ctx: &mut Ctx<'_>,
        prepared: Prepared,
    ) -> Result<JobId, SubmitRefusal> {
        let checked = match self.known(ctx, &prepared) {
            Ok(None) => self.check(ctx.now.wall, &prepared).map_err(Err),
            Ok(Some(job)) => Err(Ok(job)),
            Err(refusal) => Err(Err(refusal)),
        };
        // Rejections must come before any change, because a rejected submit changes nothing.
        match checked {
            Ok(checked) => Ok(self.add_submit(ctx, checked, prepared)),
            Err(answer) => {
                ctx.free(Freed::Submit(Box::new(prepared)));
                answer
            }
        }
    }

    /// Returns the job of an earlier attempt at a submit. Must be called before any check, because
    /// conditions that held at the first attempt, such as an open job, may no longer hold.
    fn known(
        &mut self,
        ctx: &mut Ctx<'_>,
        prepared: &Prepared,
    ) -> Result<Option<JobId>, SubmitRefusal> {
        let key = prepared.key.as_ref();
        match key.and_then(|key| self.submit_keys.find(key)) {
            Some(known) => known.map(Some),
            None => self.repeat(ctx, &prepared.spec),
        }
    }

    /// Stores the key together with the accepted submit.
    fn note_key(&mut self, ctx: &mut Ctx<'_>, job: JobId, key: Option<SubmitKey>) {
        if let Some(key) = key {
            self.submit_keys.note(job, key.clone());
            ctx.persist(ChangeKind::SubmitKeyed { job, key });
        }
    }

    /// Checks whether a submit could be added now.
    fn check(&self, now: Timestamp, prepared: &Prepared) -> Result<Checked, SubmitRefusal> {
        let spec = &prepared.spec;
        let job = self.target(now, &spec.target)?;
        // Each notification is remembered until the job is forgotten. A submit without
        // notifications is never rejected because of the notifications of other submits.
        if !spec.notify.is_empty() && job.notices.len() + spec.notify.len() > NOTICES_MAX {
            return Err(SubmitRefusal::TooManyNotices);
        }
        let ids = match &prepared.tasks {
            PreparedTasks::Array(array) => match &array.ids {
                ArrayIds::Given(ids) => ids.clone(),
                ArrayIds::Next(count) => next_ids(&job, *count)?,
            },
            PreparedTasks::Graph(graph) => graph.ids.clone(),
        };
        check_new(&job, &ids)?;
        if let PreparedTasks::Graph(graph) = &prepared.tasks {
            check_earlier(&job, &ids, &graph.earlier)?;
        }
        self.check_after(job.id, prepared, &ids)?;
        self.check_limits(&spec.limits)?;
        // A job that submits to itself might never stop doing so.
        let (known, new) = (job.counts().total(), ids.len());
        if let Some(max) = job.tasks_max
            && known.checked_add(new).is_none_or(|total| total > max)
        {
            return Err(SubmitRefusal::TasksMax { max, known, new });
        }
        let header = self.header(&job, spec);
        let new = match job {
            Cow::Owned(job) => Some(job),
            Cow::Borrowed(_) => None,
        };
        Ok(Checked { new, header, ids })
    }

    /// Returns the job to which a submit adds tasks: an open job, or a new job with the next id.
    fn target(&self, now: Timestamp, target: &SubmitTarget) -> Result<Cow<'_, Job>, SubmitRefusal> {
        let (name, max_fails, closing) = match target {
            SubmitTarget::NewJob { name, max_fails } => (name, max_fails, None),
            SubmitTarget::SelfClosing {
                name,
                max_fails,
                tasks_max,
            } => (name, max_fails, Some(*tasks_max)),
            SubmitTarget::Attach(id) => {
                let job = self.jobs.get(*id);
                let job = job.ok_or(SubmitRefusal::JobNotFound(*id))?;
                // A closed job may have been reported as completed.
                return match job.is_open {
                    true => Ok(Cow::Borrowed(job)),
                    false => Err(SubmitRefusal::JobNotOpen(*id)),
                };
            }
        };
        let id = self.jobs.next_id().ok_or(SubmitRefusal::TooManyJobs)?;
        let mut job = Job::new(id, name.clone(), *max_fails, closing.is_some(), now);
        (job.closes_itself, job.tasks_max) = (closing.is_some(), closing.flatten());
        Ok(Cow::Owned(job))
    }

    /// Returns the fields that the templates of a submit share.
    pub(super) fn header(&self, job: &Job, spec: &SubmitSpec) -> SubmitHeader {
        let stream_dir = spec.stream_dir.as_ref();
        SubmitHeader {
            job: job.id,
            job_name: job.name.clone(),
            submit_dir: spec.submit_dir.clone(),
            stream_dir: stream_dir.map(|path| fill_known(path, job.id, &self.uid).into()),
        }
    }

    /// Adds a checked submit and queues the tasks that can run.
    fn add_submit(
        &mut self,
        ctx: &mut Ctx<'_>,
        Checked { new, header, ids }: Checked,
        mut prepared: Prepared,
    ) -> JobId {
        let (id, is_new) = (header.job, new.is_some());
        new.into_iter().for_each(|job| self.jobs.add(job));
        let job = self.jobs.get(id);
        ctx.persist(ChangeKind::Submitted {
            job: id,
            is_new,
            name: header.job_name.clone(),
            max_fails: job.and_then(|job| job.max_fails),
            number: job.map_or(0, |job| {
                u32::try_from(job.submits.len()).unwrap_or(u32::MAX)
            }),
            ids: ids.clone(),
            spec: Arc::clone(&prepared.spec),
            encoded: prepared.encoded.take(),
        });
        self.note_key(ctx, id, prepared.key.take());
        let submit = self.build(header, ids, prepared);
        let is_divided = self.is_divided(&submit);
        let Some(at) = self.jobs.add_submit(id, submit) else {
            bug!("job {id} is gone, but a submit was accepted for it");
            return id;
        };
        if self.limit_submit(ctx.now.mono, at) && !is_new {
            self.recall_behind(ctx, Some(id));
        }
        if !is_divided {
            self.intern(at, 0..u32::MAX);
        }
        // This must happen before the tasks are queued, so that they are queued with their learned
        // request.
        self.begin_learning(ctx.now.mono, at);
        if self.jobs.get(id).is_some_and(|job| job.holds_new) {
            self.hold_new(ctx, at);
        }
        self.start_submit(ctx, at);
        // A job without tasks is completed immediately, because no task will end later to complete
        // it.
        if self.jobs.get(id).is_some_and(Job::is_idle) {
            self.note_job_progress(ctx, id);
        }
        id
    }

    /// Creates a submit from checked tasks.
    pub(super) fn build(
        &mut self,
        header: SubmitHeader,
        ids: IdArray,
        prepared: Prepared,
    ) -> Submit {
        let (header, spec) = (Arc::new(header), prepared.spec);
        let (kind, priority_max) = match prepared.tasks {
            PreparedTasks::Array(array) => {
                let priority = array.template.priority;
                (self.build_array(&header, array, &ids), priority)
            }
            PreparedTasks::Graph(graph) => {
                let first = number_templates(&mut self.last_template, graph.template_count());
                graph.into_kind(first)
            }
        };
        Submit {
            tasks: TaskTable::new(ids.len()),
            ids,
            header,
            asked_stream_dir: spec.stream_dir.clone(),
            after: spec.after.clone(),
            notify: spec.notify.clone(),
            origin: spec.origin.clone(),
            nonce: spec.nonce,
            notes: spec.notes.clone(),
            limits: spec.limits.clone(),
            kind,
            priority_max,
            spent: Spent::default(),
            asks: Asks::default(),
            held: IndexSet::new(),
            revisions: None,
        }
    }

    fn build_array(
        &mut self,
        header: &Arc<SubmitHeader>,
        array: ArraySpec,
        ids: &IdArray,
    ) -> SubmitKind {
        let asked = numbered(&array, ids);
        let (template, asked) = match self.known_template(header, &asked) {
            Some(known) => known,
            None => {
                let task = Arc::new(fill_paths(&asked, header.job, &self.uid));
                let template = SharedTemplate {
                    id: number_templates(&mut self.last_template, 1),
                    header: Arc::clone(header),
                    class: self.dispatcher.intern(&task.requests),
                    task,
                };
                (Arc::new(template), asked)
            }
        };
        SubmitKind::Array {
            template,
            asked,
            entries: array.entries,
        }
    }

    /// Returns the template of one of the last submits of the job, if it is equal. Calls arrive in
    /// submits of one or a few tasks each, and neither the server nor a worker should keep a
    /// template per submit.
    fn known_template(
        &self,
        header: &SubmitHeader,
        wanted: &TaskTemplate,
    ) -> Option<(Arc<SharedTemplate>, Arc<TaskTemplate>)> {
        let last = self.jobs.get(header.job)?.submits.iter().rev();
        last.take(ALIKE_MAX).find_map(|submit| {
            let SubmitKind::Array {
                template, asked, ..
            } = &submit.kind
            else {
                return None;
            };
            let is_same = **asked == *wanted && *submit.header == *header;
            is_same.then(|| (Arc::clone(template), Arc::clone(asked)))
        })
    }

    /// Interns the requests of the tasks in a part of a submit.
    pub(super) fn intern(&mut self, at: SubmitAt, part: Range<u32>) {
        if let Some(submit) = self.jobs.submit_mut(at) {
            submit.intern(part, |requests| self.dispatcher.intern(requests));
        }
    }
}

/// Returns ids after the highest one of a job.
fn next_ids(job: &Job, count: u32) -> Result<IdArray, SubmitRefusal> {
    let first = match job.max_task_id() {
        Some(id) => id.checked_add(1).ok_or(SubmitRefusal::TooManyTasks)?,
        None => 0,
    };
    IdArray::consecutive(first, count).map_err(|_| SubmitRefusal::TooManyTasks)
}

/// Checks that no task of the job has one of these ids.
pub(super) fn check_new(job: &Job, ids: &IdArray) -> Result<(), SubmitRefusal> {
    if let Some(task) = job.first_existing(ids) {
        return Err(SubmitRefusal::TaskExists(task, job.id));
    }
    // The counters of a job are 32 bits wide.
    let total = job.counts().total().checked_add(ids.len());
    total.map(|_| ()).ok_or(SubmitRefusal::TooManyTasks)
}

/// Checks that dependencies outside the submit are in the job.
fn check_earlier(job: &Job, ids: &IdArray, earlier: &[(u32, TaskId)]) -> Result<(), SubmitRefusal> {
    if earlier.len() > EARLIER_MAX {
        return Err(SubmitRefusal::TooManyEarlier);
    }
    match earlier.iter().find(|(_, dep)| job.find(*dep).is_none()) {
        Some((index, dep)) => {
            let task = TaskId(ids.get(*index).unwrap_or_default());
            Err(SubmitRefusal::DependencyUnknown(task, *dep, job.id))
        }
        None => Ok(()),
    }
}

/// Returns the template of an array. Its parameters get the ids of their combinations; in an open
/// job, these follow the highest id.
fn numbered(array: &ArraySpec, ids: &IdArray) -> Arc<TaskTemplate> {
    let (ArrayIds::Next(_), Some(params)) = (&array.ids, &array.template.params) else {
        // Ids given by the client refer to the chosen combinations.
        return Arc::clone(&array.template);
    };
    let first = ids.get(0).unwrap_or_default();
    // The number of ids was just computed from the number of combinations.
    match params.with_first(first).filter(|_| first != params.first()) {
        Some(params) => Arc::new(TaskTemplate {
            params: Some(Arc::new(params)),
            ..TaskTemplate::clone(&array.template)
        }),
        None => Arc::clone(&array.template),
    }
}

/// Returns a template in which the job and server placeholders of the paths are filled in.
fn fill_paths(template: &TaskTemplate, job: JobId, uid: &str) -> TaskTemplate {
    let stdio = |stdio: &StdioSpec| match stdio {
        StdioSpec::File {
            path,
            remove_if_finished,
        } => StdioSpec::File {
            path: fill_known(path, job, uid).into(),
            remove_if_finished: *remove_if_finished,
        },
        StdioSpec::None | StdioSpec::Stream => stdio.clone(),
    };
    TaskTemplate {
        cwd: fill_known(&template.cwd, job, uid).into(),
        stdout: stdio(&template.stdout),
        stderr: stdio(&template.stderr),
        ..template.clone()
    }
}

/// Reserves consecutive numbers for `count` templates, given the last number. Returns the first one.
pub(super) fn number_templates(last: &mut u32, count: usize) -> TemplateId {
    let count = u32::try_from(count.max(1)).unwrap_or(u32::MAX);
    let first = match last.checked_add(count) {
        Some(_) => *last + 1,
        // After four billion templates, the first ones have been forgotten.
        None => 1,
    };
    *last = first.saturating_add(count - 1);
    TemplateId(first)
}
