//! A submit before it becomes part of the state: checked, sorted and encoded on any thread, as far
//! as this is possible without the state.

use std::collections::VecDeque;
use std::sync::Arc;

use super::refusal::SubmitRefusal;
use super::submit_key::SubmitKey;
use crate::class::ClassId;
use crate::graph::Graph;
use crate::id::{JobId, TaskId};
use crate::job::{BuiltGraph, SubmitKind, TemplateId, build_graph};
use crate::limits::check_submit;
use crate::range::IdArray;
use crate::template::{ArraySpec, GraphSpec, SubmitBody, SubmitSpec, SubmitTarget, TaskTemplate};

/// The number of tasks, templates or entries at which a submit or job counts as large, so that work
/// on it that does not need the state is done outside it. Each takes about 2 µs.
const LARGE_FROM: usize = 2_048;

/// The body of a submit as encoded for the store.
#[derive(Clone, Debug)]
pub struct EncodedBody {
    /// The first bytes of the submit.
    pub bytes: Vec<u8>,
    /// The running checksum of these bytes, which the store continues.
    pub checksum: u64,
}

/// Encodes the body of a submit for the store.
pub type BodyEncoder = fn(&SubmitBody) -> EncodedBody;

/// A submit with all checks and data structures that do not depend on the server's state. Preparing
/// very many tasks takes long, so this is done outside the state.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub(super) spec: Arc<SubmitSpec>,
    pub(super) tasks: PreparedTasks,
    /// The body as encoded for the store.
    pub(super) encoded: Option<EncodedBody>,
    /// The idempotency key of the client.
    pub(super) key: Option<SubmitKey>,
    /// Whether the submit was accepted before, so that the tasks it waits for may have ended and
    /// been forgotten.
    pub(super) is_again: bool,
}

/// The tasks of a submit.
#[derive(Clone, Debug)]
pub(super) enum PreparedTasks {
    Array(ArraySpec),
    Graph(Box<PreparedGraph>),
}

/// The tasks of a graph in the order of their ids.
#[derive(Clone, Debug)]
pub(super) struct PreparedGraph {
    pub(super) ids: IdArray,
    templates: Arc<[Arc<TaskTemplate>]>,
    classes: Vec<ClassId>,
    template_of: Vec<u32>,
    graph: Box<Graph>,
    /// The dependencies on existing tasks of the open job; see [`SubmitKind::Graph`].
    pub(super) earlier: Vec<(u32, TaskId)>,
    /// The highest priority of the tasks.
    priority_max: i32,
}

impl Prepared {
    /// Checks and prepares a client's submit.
    ///
    /// # Errors
    ///
    /// Returns the refusal that is sent to the client.
    pub fn new(spec: Box<SubmitSpec>) -> Result<Self, SubmitRefusal> {
        // Sizes are checked now, because a task that cannot be delivered would wait forever and its
        // client would get no error.
        check_submit(&spec).map_err(SubmitRefusal::TooLarge)?;
        let accepted = Self::accepted(Arc::from(spec))?;
        Ok(Self {
            is_again: false,
            ..accepted
        })
    }

    /// Prepares a submit that was accepted before. Sizes that are rejected now may have been valid
    /// then.
    pub(super) fn accepted(spec: Arc<SubmitSpec>) -> Result<Self, SubmitRefusal> {
        let tasks = match &spec.body {
            // An array has no dependencies that could be wrong.
            SubmitBody::Array(array) => PreparedTasks::Array(array.clone()),
            SubmitBody::Graph(graph) => {
                PreparedTasks::Graph(Box::new(PreparedGraph::new(graph, &spec.target)?))
            }
        };
        Ok(Self {
            spec,
            tasks,
            encoded: None,
            key: None,
            is_again: true,
        })
    }

    /// Encodes a graph for the store now, so that other requests need not wait for it later.
    pub(super) fn encode(&mut self, encoder: BodyEncoder) {
        if self.graph_len() > 0 {
            self.encoded = Some(encoder(&self.spec.body));
        }
    }

    /// Returns the approximate cost of accepting the submit, in tasks. The tasks of a large graph
    /// are queued later.
    pub(super) fn cost(&self) -> usize {
        1 + self.graph_len().min(LARGE_FROM)
    }

    /// Returns the number of tasks if the submit is a graph, otherwise 0.
    pub(super) fn graph_len(&self) -> usize {
        match &self.tasks {
            PreparedTasks::Array(_) => 0,
            PreparedTasks::Graph(graph) => graph.template_of.len(),
        }
    }
}

impl PreparedGraph {
    fn new(spec: &GraphSpec, target: &SubmitTarget) -> Result<Self, SubmitRefusal> {
        // Only an open job has existing tasks that the submit can depend on.
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
            templates: spec.templates.iter().map(Arc::clone).collect(),
            classes: vec![ClassId::UNKNOWN; spec.templates.len()],
            template_of,
            graph: Box::new(graph),
            earlier,
            priority_max: priorities.max().unwrap_or(0),
        })
    }

    pub(super) fn template_count(&self) -> usize {
        self.templates.len()
    }

    /// Returns the kind and the highest priority of a submit whose templates have ids starting at
    /// `first`.
    pub(super) fn into_kind(self, first: TemplateId) -> (SubmitKind, i32) {
        let kind = SubmitKind::Graph {
            templates: self.templates,
            first,
            classes: self.classes,
            template_of: self.template_of,
            graph: self.graph,
            earlier: self.earlier,
        };
        (kind, self.priority_max)
    }
}

/// Returns whether this many tasks should be processed outside the state.
#[must_use]
pub const fn is_large(tasks: usize) -> bool {
    tasks >= LARGE_FROM
}

/// The submits of one client request.
#[derive(Clone, Debug)]
pub struct Submission {
    pub(super) submits: VecDeque<Result<Prepared, SubmitRefusal>>,
    /// Whether the answer has an outcome for each submit.
    pub(super) is_list: bool,
    /// The outcomes of the submits that have been handled.
    pub(super) results: Vec<Result<JobId, SubmitRefusal>>,
}

impl Submission {
    /// Prepares one submit. With a key, it may have been accepted before.
    #[must_use]
    pub fn one(spec: Box<SubmitSpec>, key: Option<SubmitKey>) -> Self {
        let prepared = Prepared::new(spec).map(|prepared| Prepared { key, ..prepared });
        Self {
            submits: VecDeque::from([prepared]),
            is_list: false,
            results: Vec::new(),
        }
    }

    /// Prepares submits that are accepted or rejected individually, in order.
    #[must_use]
    pub fn list(specs: Vec<SubmitSpec>) -> Self {
        let specs = specs.into_iter();
        Self {
            submits: specs.map(|spec| Prepared::new(Box::new(spec))).collect(),
            is_list: true,
            results: Vec::new(),
        }
    }

    /// Returns whether the graphs together are large enough to be encoded beforehand.
    #[must_use]
    pub fn is_large(&self) -> bool {
        let prepared = self.submits.iter().flatten();
        is_large(prepared.map(Prepared::graph_len).sum())
    }

    /// Returns the approximate cost of accepting the submits, in tasks.
    pub(super) fn cost(&self) -> usize {
        let cost = |submit: &Result<Prepared, _>| submit.as_ref().map_or(1, Prepared::cost);
        self.submits.iter().map(cost).sum()
    }

    /// Encodes graphs for the store.
    pub fn encode(&mut self, encoder: BodyEncoder) {
        for prepared in self.submits.iter_mut().flatten() {
            prepared.encode(encoder);
        }
    }
}
