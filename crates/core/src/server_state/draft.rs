//! A submit before it is part of the state: prepared, then as a draft whose templates are being
//! built.

use std::collections::VecDeque;
use std::sync::Arc;

use super::refusal::SubmitRefusal;
use super::submit_key::SubmitKey;
use crate::graph::Graph;
use crate::id::{JobId, TaskId};
use crate::job::{BuiltGraph, SharedTemplate, TemplateId, build_graph};
use crate::limits::check_submit;
use crate::range::IdArray;
use crate::template::{ByteText, GraphSpec, SubmitBody, SubmitSpec, SubmitTarget};

/// From this number of tasks, templates or entries a submit or a job is large: work that needs no
/// state is done outside it. Some 2 µs each.
const LARGE_FROM: usize = 2_048;

/// A submit's body as encoded for the store.
#[derive(Clone, Debug)]
pub struct EncodedBody {
    /// The first bytes of the submit.
    pub bytes: Vec<u8>,
    /// Running checksum of these, continued by the store.
    pub checksum: u64,
}

/// Makes that of it.
pub type BodyEncoder = fn(&SubmitBody) -> EncodedBody;

/// A submit with all checks and structures that do not depend on the server's state. With very many
/// tasks that takes long, so it is prepared outside the state.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub(super) spec: Arc<SubmitSpec>,
    pub(super) graph: Option<PreparedGraph>,
    /// Its body as encoded for the store.
    pub(super) encoded: Option<EncodedBody>,
    /// Idempotency key of the client.
    pub(super) key: Option<SubmitKey>,
    /// It was accepted before: tasks that it waits for may be done and gone.
    pub(super) is_again: bool,
}

/// The tasks of a graph in the order of their ids.
#[derive(Clone, Debug)]
pub(super) struct PreparedGraph {
    pub(super) ids: IdArray,
    pub(super) template_of: Vec<u32>,
    pub(super) graph: Graph,
    /// Dependencies on existing tasks of the open job, see
    /// [`SubmitKind::Graph`](crate::job::SubmitKind::Graph).
    pub(super) earlier: Vec<(u32, TaskId)>,
    /// The highest priority of its tasks.
    pub(super) priority_max: i32,
}

impl Prepared {
    /// Checks a submit of a client.
    ///
    /// # Errors
    ///
    /// The refusal that is the answer to the client.
    pub fn new(spec: Box<SubmitSpec>) -> Result<Self, SubmitRefusal> {
        // Checked now: a task that cannot be delivered would wait forever, without any error for
        // its client.
        check_submit(&spec).map_err(SubmitRefusal::TooLarge)?;
        let accepted = Self::accepted(Arc::from(spec))?;
        Ok(Self {
            is_again: false,
            ..accepted
        })
    }

    /// A submit that was accepted before: sizes that are rejected now may have been valid.
    pub(super) fn accepted(spec: Arc<SubmitSpec>) -> Result<Self, SubmitRefusal> {
        let graph = match &spec.body {
            // An array has no dependencies that could be wrong.
            SubmitBody::Array(_) => None,
            SubmitBody::Graph(graph) => Some(PreparedGraph::new(graph, &spec.target)?),
        };
        Ok(Self {
            spec,
            graph,
            encoded: None,
            key: None,
            is_again: true,
        })
    }

    /// Encodes a graph for the store now, so that others need not wait for it later.
    pub(super) fn encode(&mut self, encoder: BodyEncoder) {
        if self.graph.is_some() {
            self.encoded = Some(encoder(&self.spec.body));
        }
    }

    /// Number of templates, which are built one by one.
    pub(super) fn template_count(&self) -> usize {
        match &self.spec.body {
            SubmitBody::Array(_) => 0,
            SubmitBody::Graph(graph) => graph.templates.len(),
        }
    }
}

impl PreparedGraph {
    pub(super) fn new(spec: &GraphSpec, target: &SubmitTarget) -> Result<Self, SubmitRefusal> {
        // Only an open job has existing tasks to depend on.
        let may_name_others = matches!(target, SubmitTarget::Attach(_));
        let BuiltGraph {
            ids,
            positions,
            graph,
            earlier,
        } = build_graph(spec, may_name_others)?;
        let template_of = positions
            .iter()
            .map(|p| spec.tasks[*p as usize].template)
            .collect();
        let priorities = spec.templates.iter().map(|template| template.priority);
        Ok(Self {
            ids,
            template_of,
            graph,
            earlier,
            priority_max: priorities.max().unwrap_or(0),
        })
    }
}

/// Whether so many tasks are better processed outside the state.
#[must_use]
pub const fn is_large(tasks: usize) -> bool {
    tasks >= LARGE_FROM
}

/// Submits of one request of a client.
#[derive(Clone, Debug)]
pub struct Submission {
    pub(super) submits: VecDeque<Result<Prepared, SubmitRefusal>>,
    /// The answer is about each of them.
    pub(super) is_list: bool,
}

impl Submission {
    /// Prepares one submit.
    #[must_use]
    pub fn one(spec: Box<SubmitSpec>) -> Self {
        Self {
            submits: VecDeque::from([Prepared::new(spec)]),
            is_list: false,
        }
    }

    /// Prepares a submit with a key, which may have been accepted before.
    #[must_use]
    pub fn once(spec: Box<SubmitSpec>, key: SubmitKey) -> Self {
        let prepared = Prepared::new(spec).map(|prepared| Prepared {
            key: Some(key),
            ..prepared
        });
        Self {
            submits: VecDeque::from([prepared]),
            is_list: false,
        }
    }

    /// Prepares submits that are accepted or rejected one by one, in order.
    #[must_use]
    pub fn list(specs: Vec<SubmitSpec>) -> Self {
        let specs = specs.into_iter();
        Self {
            submits: specs.map(|spec| Prepared::new(Box::new(spec))).collect(),
            is_list: true,
        }
    }

    /// Whether its graphs together are large enough to be encoded beforehand.
    #[must_use]
    pub fn is_large(&self) -> bool {
        let prepared = self.submits.iter().flatten();
        let graphs = prepared.filter(|prepared| prepared.graph.is_some());
        is_large(graphs.map(|prepared| prepared.spec.body.listed()).sum())
    }

    /// Encodes graphs for the store.
    pub fn encode(&mut self, encoder: BodyEncoder) {
        for prepared in self.submits.iter_mut().flatten() {
            prepared.encode(encoder);
        }
    }

    /// Approximate remaining work, in templates and submits.
    #[must_use]
    pub fn size(&self) -> usize {
        let size = |submit: &Result<Prepared, _>| match submit {
            Ok(prepared) => 1 + prepared.template_count(),
            Err(_) => 1,
        };
        self.submits.iter().map(size).sum()
    }
}

/// Target of a submit that was found valid.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// Id of the job; for a new one the id that it would get now.
    pub(super) job: JobId,
    pub(super) is_new: bool,
    pub(super) name: Box<str>,
    pub(super) max_fails: Option<u32>,
    /// Whether it closes by itself.
    pub(super) closes_itself: bool,
    /// Limit of tasks over its lifetime.
    pub(super) tasks_max: Option<u32>,
}

/// Fields shared by all templates of one submit.
#[derive(Clone, Debug)]
pub(super) struct Share {
    pub(super) job: JobId,
    pub(super) job_name: Box<str>,
    pub(super) submit_dir: ByteText,
    pub(super) stream_dir: Option<ByteText>,
}

/// A submit whose templates are being built.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) prepared: Prepared,
    pub(super) target: Target,
    pub(super) share: Share,
    /// The number of its first template; the others follow.
    pub(super) first: TemplateId,
    pub(super) templates: Vec<Arc<SharedTemplate>>,
    /// Number of templates whose job was corrected; `None` = the expected job is right.
    pub(super) renamed: Option<usize>,
}

impl Draft {
    /// Changes the job; the templates follow.
    pub(super) fn rename(&mut self, job: JobId, stream_dir: Option<ByteText>) {
        self.target.job = job;
        self.share.job = job;
        self.share.stream_dir = stream_dir;
        // From the first one: some may have been corrected to a job that is outdated again.
        self.renamed = Some(0);
    }

    /// Corrects some of the templates; returns how many.
    pub(super) fn rename_some(&mut self, most: usize) -> usize {
        let Some(done) = self.renamed else { return 0 };
        let rest = self.templates.iter_mut().skip(done).take(most);
        let mut count = 0;
        // Not shared yet, so this copies nothing except in tests.
        for template in rest.map(Arc::make_mut) {
            template.job = self.share.job;
            template.stream_dir.clone_from(&self.share.stream_dir);
            count += 1;
        }
        self.renamed = Some(done + count);
        count
    }

    pub(super) fn is_renamed(&self) -> bool {
        self.renamed.is_none_or(|done| done >= self.templates.len())
    }

    pub(super) fn is_built(&self) -> bool {
        self.templates.len() >= self.prepared.template_count()
    }

    /// The number of the template that is built next.
    pub(super) fn next_number(&self) -> u32 {
        let built = u32::try_from(self.templates.len()).unwrap_or(u32::MAX);
        self.first.0.saturating_add(built)
    }
}
