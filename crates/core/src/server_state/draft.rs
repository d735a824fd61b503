//! A submit before it is part of the state: prepared, then as a draft whose templates are being built.

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

/// Tasks, templates or entries from which on a submit or a job is large: what needs no state is done beside it. Some 2 µs each.
const LARGE_FROM: usize = 2_048;

/// What a submit asks for, as the store keeps it.
#[derive(Clone, Debug)]
pub struct EncodedBody {
    /// The first bytes of the submit.
    pub bytes: Vec<u8>,
    /// The checksum of these, which goes on behind them.
    pub checksum: u64,
}

/// Makes that of it.
pub type BodyEncoder = fn(&SubmitBody) -> EncodedBody;

/// A submit of which everything was checked and built that does not depend on the server's state. With very
/// many tasks that takes long: it is to be made where nobody waits for it.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub(super) spec: Arc<SubmitSpec>,
    pub(super) graph: Option<PreparedGraph>,
    /// Its body as the store keeps it.
    pub(super) encoded: Option<EncodedBody>,
    /// Key that the client gave to the submit, if it may submit it again.
    pub(super) key: Option<SubmitKey>,
    /// It was accepted before: what it waits for task by task need not have all its tasks, some may be done.
    pub(super) is_again: bool,
}

/// The tasks of a graph in the order of their ids.
#[derive(Clone, Debug)]
pub(super) struct PreparedGraph {
    pub(super) ids: IdArray,
    pub(super) template_of: Vec<u32>,
    pub(super) graph: Graph,
    /// Tasks of the open job for which these wait, see [`SubmitKind::Graph`](crate::job::SubmitKind::Graph).
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
        // Checked now: a task that cannot be delivered would wait for ever, and its client would never learn why.
        check_submit(&spec).map_err(SubmitRefusal::TooLarge)?;
        let accepted = Self::accepted(Arc::from(spec))?;
        Ok(Self {
            is_again: false,
            ..accepted
        })
    }

    /// The same of a submit that was accepted before: sizes that are refused now may have been possible.
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

    /// Does with a graph what the store would do later, while others wait for their commits.
    pub(super) fn encode(&mut self, encoder: BodyEncoder) {
        if self.graph.is_some() {
            self.encoded = Some(encoder(&self.spec.body));
        }
    }

    /// Templates that are built one by one.
    pub(super) fn template_count(&self) -> usize {
        match &self.spec.body {
            SubmitBody::Array(_) => 0,
            SubmitBody::Graph(graph) => graph.templates.len(),
        }
    }
}

impl PreparedGraph {
    pub(super) fn new(spec: &GraphSpec, target: &SubmitTarget) -> Result<Self, SubmitRefusal> {
        // Only an open job has tasks that could be named.
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

/// Whether so many tasks are better looked at where only one client waits.
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

    /// Prepares one submit that may have been accepted before, with the same key.
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

    /// Prepares submits that are accepted or refused each by itself, in their order.
    #[must_use]
    pub fn list(specs: Vec<SubmitSpec>) -> Self {
        let specs = specs.into_iter();
        Self {
            submits: specs.map(|spec| Prepared::new(Box::new(spec))).collect(),
            is_list: true,
        }
    }

    /// Whether its graphs together are so large that they are better encoded before.
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

    /// About how much is left to do, in templates and submits.
    #[must_use]
    pub fn size(&self) -> usize {
        let size = |submit: &Result<Prepared, _>| match submit {
            Ok(prepared) => 1 + prepared.template_count(),
            Err(_) => 1,
        };
        self.submits.iter().map(size).sum()
    }
}

/// Where a submit goes, once that is known to be possible.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// Id of the job; of a new one the id that it would get now.
    pub(super) job: JobId,
    pub(super) is_new: bool,
    pub(super) name: Box<str>,
    pub(super) max_fails: Option<u32>,
    /// Whether it closes by itself.
    pub(super) closes_itself: bool,
    /// Most tasks that it may ever have.
    pub(super) tasks_max: Option<u32>,
}

/// The part besides the template that the tasks of one submit share.
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
    /// Of how many of them the job was corrected; `None` = it is the one that was expected.
    pub(super) renamed: Option<usize>,
}

impl Draft {
    /// Names another job than the one that was expected; the templates follow.
    pub(super) fn rename(&mut self, job: JobId, stream_dir: Option<ByteText>) {
        self.target.job = job;
        self.share.job = job;
        self.share.stream_dir = stream_dir;
        // From the first one again: some may have been corrected to a job that is not the next one
        // any more.
        self.renamed = Some(0);
    }

    /// Corrects some of the templates; returns how many.
    pub(super) fn rename_some(&mut self, most: usize) -> usize {
        let Some(done) = self.renamed else { return 0 };
        let rest = self.templates.iter_mut().skip(done).take(most);
        let mut count = 0;
        // Nobody else has these yet, so nothing is copied but in tests.
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
