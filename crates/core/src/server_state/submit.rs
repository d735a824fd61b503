//! Acceptance of submits: a rejected one leaves no trace.

use std::sync::Arc;

use super::draft::{Draft, Prepared, PreparedGraph, Share, Target};
use super::{ChangeKind, Ctx, Reply, ServerState, SubmitKey, SubmitRefusal};
use crate::bug;
use crate::id::{JobId, TaskId};
use crate::job::{Asks, Job, SharedTemplate, Submit, SubmitKind, TemplateId};
use crate::placeholder::fill_known;
use crate::range::IdArray;
use crate::task::TaskTable;
use crate::template::{
    ArrayIds, ArraySpec, StdioSpec, SubmitBody, SubmitSpec, SubmitTarget, TaskTemplate,
};

/// Notifications of one job.
pub(super) const NOTICES_MAX: usize = 64;

/// Limit of a submit's dependencies on earlier ones: about 5 ms in one step.
const EARLIER_MAX: usize = 1 << 16;

/// Number of recent submits of a job that are searched for an equal template: a program has few
/// kinds of calls at a time.
const ALIKE_MAX: usize = 8;

impl ServerState {
    /// Opens a job, unless this key has opened one before.
    pub(super) fn open_job(
        &mut self,
        ctx: &mut Ctx<'_>,
        (name, max_fails): (Box<str>, Option<u32>),
        key: Option<SubmitKey>,
    ) -> Reply {
        let known = key.as_ref().and_then(|key| self.submit_keys.find(key));
        let opened = known.unwrap_or_else(|| self.new_open_job(ctx, name, max_fails, key));
        match opened {
            Ok(id) => Reply::Submitted(id),
            Err(refusal) => Reply::Refused(refusal),
        }
    }

    pub(super) fn new_open_job(
        &mut self,
        ctx: &mut Ctx<'_>,
        name: Box<str>,
        max_fails: Option<u32>,
        key: Option<SubmitKey>,
    ) -> Result<JobId, SubmitRefusal> {
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

    /// Processes a submit at once, however large it is.
    pub(super) fn submit_prepared(
        &mut self,
        ctx: &mut Ctx<'_>,
        prepared: Prepared,
    ) -> Result<JobId, SubmitRefusal> {
        let target = self.target(&prepared.spec.target)?;
        let mut draft = self.draft_for(target, prepared);
        self.build(&mut draft, usize::MAX);
        self.accept(ctx, draft)
    }

    /// Checks a submit whose templates are built, and adds it.
    pub(super) fn accept(
        &mut self,
        ctx: &mut Ctx<'_>,
        mut draft: Draft,
    ) -> Result<JobId, SubmitRefusal> {
        // An earlier attempt may have been processed meanwhile.
        match self.repeat(ctx, &draft.prepared.spec) {
            Ok(None) => {}
            known => {
                self.dispatcher.discard_refused(draft.prepared);
                self.dispatcher.discard(draft.templates);
                return known.map(|_| draft.target.job);
            }
        }
        // One with the same key may have been accepted while the templates of this one were built.
        if let Some(known) = self.find_key(&draft.prepared) {
            self.dispatcher.discard_refused(draft.prepared);
            self.dispatcher.discard(draft.templates);
            return known;
        }
        self.note_job(&mut draft);
        draft.rename_some(usize::MAX);
        // Other submits were accepted while the templates of this one were built.
        if let Err(refusal) = self.check_still(&draft) {
            self.dispatcher.discard_refused(draft.prepared);
            self.dispatcher.discard(draft.templates);
            return Err(refusal);
        }
        let (target, spec) = (draft.target.clone(), Arc::clone(&draft.prepared.spec));
        let (key, is_again) = (draft.prepared.key.clone(), draft.prepared.is_again);
        let encoded = draft.prepared.encoded.take();
        // Rejections come before any change: a rejected submit leaves no trace.
        let submit = self.finish(draft, None)?;
        self.check_after(target.job, (&submit.after, is_again), &submit.ids)?;
        self.check_tasks_max(&target, submit.ids.len())?;
        let submitted = ChangeKind::Submitted {
            job: target.job,
            is_new: target.is_new,
            name: target.name.clone(),
            max_fails: target.max_fails,
            number: self.jobs.get(target.job).map_or(0, |job| {
                u32::try_from(job.submits.len()).unwrap_or(u32::MAX)
            }),
            ids: submit.ids.clone(),
            spec,
            encoded,
        };
        ctx.persist(submitted);
        self.note_key(ctx, target.job, key);
        Ok(self.add_submit(ctx, target, submit))
    }

    /// Stores the key together with the accepted submit.
    fn note_key(&mut self, ctx: &mut Ctx<'_>, job: JobId, key: Option<SubmitKey>) {
        if let Some(key) = key {
            self.submit_keys.note(job, key.clone());
            ctx.persist(ChangeKind::SubmitKeyed { job, key });
        }
    }

    /// Result of an earlier submit with the same key.
    pub(super) fn find_key(&self, prepared: &Prepared) -> Option<Result<JobId, SubmitRefusal>> {
        self.submit_keys.find(prepared.key.as_ref()?)
    }

    /// A new job gets the next id. Another job may have taken the id that was next when the first
    /// template was built.
    pub(super) fn note_job(&self, draft: &mut Draft) {
        // An existing job keeps its id.
        let next = self.jobs.next_id().filter(|_| draft.target.is_new);
        if let Some(job) = next.filter(|job| *job != draft.target.job) {
            let target = Target {
                job,
                ..draft.target.clone()
            };
            let share = self.share(&target, &draft.prepared.spec);
            draft.rename(job, share.stream_dir);
        }
    }

    /// Repeats the checks of the parts of the state that may have changed since the first template
    /// was built.
    fn check_still(&self, draft: &Draft) -> Result<(), SubmitRefusal> {
        self.target(&draft.prepared.spec.target)?;
        self.check_prepared(&draft.target, &draft.prepared)
    }

    /// Checks of a submit that need no templates.
    pub(super) fn check_prepared(
        &self,
        target: &Target,
        prepared: &Prepared,
    ) -> Result<(), SubmitRefusal> {
        self.check_notify(target.job, &prepared.spec)?;
        let Some(graph) = &prepared.graph else {
            return Ok(());
        };
        self.check_new(target.job, &graph.ids)?;
        self.check_earlier(target.job, &graph.ids, &graph.earlier)?;
        let after = (prepared.spec.after.as_slice(), prepared.is_again);
        self.check_after(target.job, after, &graph.ids)
    }

    /// Each notification is remembered until the job is forgotten.
    fn check_notify(&self, job: JobId, spec: &SubmitSpec) -> Result<(), SubmitRefusal> {
        let known = self.jobs.get(job).map_or(0, |job| job.notices.len());
        // A submit without notifications is never rejected because of others'.
        if !spec.notify.is_empty() && known + spec.notify.len() > NOTICES_MAX {
            return Err(SubmitRefusal::TooManyNotices);
        }
        Ok(())
    }

    /// Fields shared by the templates of a submit.
    pub(super) fn share(&self, target: &Target, spec: &SubmitSpec) -> Share {
        Share {
            job: target.job,
            job_name: target.name.clone(),
            submit_dir: spec.submit_dir.clone(),
            stream_dir: spec
                .stream_dir
                .as_ref()
                .map(|path| fill_known(path, target.job, &self.uid).into()),
        }
    }

    /// Turns a draft into a submit; `ids` = the ids that an array got earlier.
    pub(super) fn finish(
        &mut self,
        draft: Draft,
        ids: Option<IdArray>,
    ) -> Result<Submit, SubmitRefusal> {
        let next_number = TemplateId(draft.next_number());
        let Draft {
            prepared: Prepared { spec, graph, .. },
            share,
            templates,
            ..
        } = draft;
        let (ids, kind, priority_max) = match &spec.body {
            SubmitBody::Array(array) => {
                let ids = match (ids, &array.ids) {
                    // Restored: the ids that the array got then, not its present ids.
                    (Some(ids), _) => ids,
                    (None, ArrayIds::Given(ids)) => ids.clone(),
                    (None, ArrayIds::Next(count)) => self.next_ids(share.job, *count)?,
                };
                self.check_new(share.job, &ids)?;
                let kind = self.finish_array(&share, next_number, array, &ids);
                (ids, kind, array.template.priority)
            }
            SubmitBody::Graph(asked) => {
                let PreparedGraph {
                    ids,
                    template_of,
                    graph,
                    earlier,
                    priority_max,
                } = graph.map_or_else(|| PreparedGraph::new(asked, &spec.target), Ok)?;
                self.check_new(share.job, &ids)?;
                self.check_earlier(share.job, &ids, &earlier)?;
                let kind = SubmitKind::Graph {
                    templates,
                    template_of,
                    graph: Box::new(graph),
                    earlier,
                };
                (ids, kind, priority_max)
            }
        };
        let tasks = TaskTable::new(ids.len());
        Ok(Submit {
            ids,
            submit_dir: share.submit_dir,
            stream_dir: share.stream_dir,
            asked_stream_dir: spec.stream_dir.clone(),
            after: spec.after.clone(),
            notify: spec.notify.clone(),
            origin: spec.origin.clone(),
            nonce: spec.nonce,
            notes: spec.notes.clone(),
            kind,
            priority_max,
            tasks,
            asks: Asks::default(),
        })
    }

    fn finish_array(
        &mut self,
        share: &Share,
        id: TemplateId,
        array: &ArraySpec,
        ids: &IdArray,
    ) -> SubmitKind {
        let asked = numbered(array, ids);
        let (template, asked) = match self.known_template(share, &asked) {
            Some(known) => known,
            None => {
                let filled = fill_paths(&asked, share.job, &self.uid);
                let template = self.share_template(share, id, Arc::new(filled));
                (template, asked)
            }
        };
        SubmitKind::Array {
            template,
            asked,
            entries: array.entries.clone(),
        }
    }

    /// The template of one of the last submits of the job, if it is equal. Calls arrive in submits
    /// of one or a few tasks each: neither the server nor a worker should keep a template per
    /// submit.
    fn known_template(
        &self,
        share: &Share,
        wanted: &TaskTemplate,
    ) -> Option<(Arc<SharedTemplate>, Arc<TaskTemplate>)> {
        let last = self.jobs.get(share.job)?.submits.iter().rev();
        last.take(ALIKE_MAX).find_map(|submit| {
            let SubmitKind::Array {
                template, asked, ..
            } = &submit.kind
            else {
                return None;
            };
            let is_same = **asked == *wanted
                && submit.submit_dir == share.submit_dir
                && submit.stream_dir == share.stream_dir;
            is_same.then(|| (Arc::clone(template), Arc::clone(asked)))
        })
    }

    pub(super) fn target(&self, target: &SubmitTarget) -> Result<Target, SubmitRefusal> {
        match target {
            SubmitTarget::NewJob { name, max_fails } => {
                let job = self.jobs.next_id().ok_or(SubmitRefusal::TooManyJobs)?;
                Ok(Target {
                    job,
                    is_new: true,
                    name: name.clone(),
                    max_fails: *max_fails,
                    closes_itself: false,
                    tasks_max: None,
                })
            }
            SubmitTarget::SelfClosing {
                name,
                max_fails,
                tasks_max,
            } => {
                let job = self.jobs.next_id().ok_or(SubmitRefusal::TooManyJobs)?;
                Ok(Target {
                    job,
                    is_new: true,
                    name: name.clone(),
                    max_fails: *max_fails,
                    closes_itself: true,
                    tasks_max: *tasks_max,
                })
            }
            SubmitTarget::Attach(id) => {
                let id = *id;
                let job = self.jobs.get(id).ok_or(SubmitRefusal::JobNotFound(id))?;
                // A closed job may have been reported as completed.
                if !job.is_open {
                    return Err(SubmitRefusal::JobNotOpen(id));
                }
                let (name, max_fails) = (job.name.clone(), job.max_fails);
                Ok(Target {
                    job: id,
                    is_new: false,
                    name,
                    max_fails,
                    closes_itself: job.closes_itself,
                    tasks_max: job.tasks_max,
                })
            }
        }
    }

    /// A job that submits to itself may never stop doing so.
    fn check_tasks_max(&self, target: &Target, new: u32) -> Result<(), SubmitRefusal> {
        let Some(max) = target.tasks_max else {
            return Ok(());
        };
        let job = self.jobs.get(target.job).filter(|_| !target.is_new);
        let known = job.map_or(0, |job| job.counts().total());
        if known.checked_add(new).is_some_and(|total| total <= max) {
            return Ok(());
        }
        Err(SubmitRefusal::TasksMax { max, known, new })
    }

    fn next_ids(&self, job: JobId, count: u32) -> Result<IdArray, SubmitRefusal> {
        let highest = self.jobs.get(job).and_then(Job::max_task_id);
        let first = match highest {
            Some(id) => id.checked_add(1).ok_or(SubmitRefusal::TooManyTasks)?,
            None => 0,
        };
        IdArray::consecutive(first, count).map_err(|_| SubmitRefusal::TooManyTasks)
    }

    fn check_new(&self, job: JobId, ids: &IdArray) -> Result<(), SubmitRefusal> {
        // A new job has no ids to clash with.
        let Some(existing) = self.jobs.get(job) else {
            return Ok(());
        };
        if let Some(task) = existing.first_existing(ids) {
            return Err(SubmitRefusal::TaskExists(task, job));
        }
        // Counters of a job are 32 bits wide.
        let total = existing.counts().total().checked_add(ids.len());
        total.map(|_| ()).ok_or(SubmitRefusal::TooManyTasks)
    }

    /// Dependencies outside the submit must be in the job.
    fn check_earlier(
        &self,
        id: JobId,
        ids: &IdArray,
        earlier: &[(u32, TaskId)],
    ) -> Result<(), SubmitRefusal> {
        if earlier.len() > EARLIER_MAX {
            return Err(SubmitRefusal::TooManyEarlier);
        }
        let job = self.jobs.get(id);
        let is_known = |task: TaskId| job.is_some_and(|job| job.find(task).is_some());
        match earlier.iter().find(|(_, dep)| !is_known(*dep)) {
            Some((index, dep)) => {
                let task = TaskId(ids.get(*index).unwrap_or_default());
                Err(SubmitRefusal::DependencyUnknown(task, *dep, id))
            }
            None => Ok(()),
        }
    }

    pub(super) fn share_template(
        &mut self,
        share: &Share,
        id: TemplateId,
        task: Arc<TaskTemplate>,
    ) -> Arc<SharedTemplate> {
        Arc::new(SharedTemplate {
            id,
            job: share.job,
            job_name: share.job_name.clone(),
            submit_dir: share.submit_dir.clone(),
            stream_dir: share.stream_dir.clone(),
            class: self.dispatcher.intern(&task.requests),
            task,
        })
    }

    /// Adds a checked submit and queues what can run.
    fn add_submit(&mut self, ctx: &mut Ctx<'_>, target: Target, submit: Submit) -> JobId {
        let id = target.job;
        // The job gets its id only now: ids follow the order of the answers.
        if target.is_new {
            let is_open = target.closes_itself;
            let mut job = Job::new(id, target.name, target.max_fails, is_open, ctx.now.wall);
            (job.closes_itself, job.tasks_max) = (target.closes_itself, target.tasks_max);
            self.jobs.add(job);
        }
        let Some(number) = self.jobs.add_submit(id, submit) else {
            bug!("job {id} is gone, but a submit was accepted for it");
            return id;
        };
        // Before it is queued, with the request that it then has.
        self.begin_learning(ctx.now.mono, id, number);
        self.start_submit(ctx, id, number);
        // A job without tasks is over at once: no end will follow.
        if self.jobs.get(id).is_some_and(Job::is_idle) {
            self.note_job_progress(ctx, id);
        }
        id
    }
}

/// The template of an array; its parameters get the ids of their combinations, in an open job after
/// the highest one.
fn numbered(array: &ArraySpec, ids: &IdArray) -> Arc<TaskTemplate> {
    let (ArrayIds::Next(_), Some(params)) = (&array.ids, &array.template.params) else {
        // A client's ids refer to the chosen combinations.
        return Arc::clone(&array.template);
    };
    let first = ids.get(0).unwrap_or_default();
    // As many ids as combinations were just found.
    match params.with_first(first).filter(|_| first != params.first()) {
        Some(params) => Arc::new(TaskTemplate {
            params: Some(Arc::new(params)),
            ..TaskTemplate::clone(&array.template)
        }),
        None => Arc::clone(&array.template),
    }
}

/// A template with the job and server placeholders of its paths filled in.
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
