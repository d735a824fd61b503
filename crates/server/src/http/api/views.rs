//! Views from the core: a job as a strip, its graph, one task, and why a task waits.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use hq_core::graph::Graph;
use hq_core::id::{JobId, TaskId};
use hq_core::job::{Job, Submit, SubmitKind};
use hq_core::range::IdArray;
use hq_core::task::TaskState;
use hq_core::template::TaskTemplate;
use hq_protocol::client::reply::Reply;
use hq_protocol::convert::{JobRef, Query, TaskPageQuery};
use tokio::sync::Mutex;

use super::answers::{self, Explanation, GraphEdge, GraphTemplate, Strip, TaskDetail};
use super::described::{ByState, Id, Shown, query};
use super::json::FoundTask;
use super::read::{accepted, task_page, unexpected};
use super::{Answer, ApiError, KeptAnswer, Parameters, bounded, id, look_at_job, parameters, past};
use crate::core_handle::View;
use crate::http::App;
use crate::http::kept::REST_MAX;
use crate::query::listed::RequestedResources;

const BINS_MAX: u32 = 2_000;
/// The maximum number of groups in a graph. If there are more, similar templates are merged.
const GROUPS_MAX: usize = 60;

/// The number of tasks in each state, by the number of the state.
type Counts = [u64; TaskState::ALL.len()];

fn number(state: TaskState) -> usize {
    usize::from(state.number())
}

/// Returns one task.
pub(in crate::http) async fn task(
    State(app): State<Arc<App>>,
    Path((job, task)): Path<(String, String)>,
) -> Answer<TaskDetail> {
    let (job, task) = (id(&job, "job")?, id(&task, "task")?);
    let page = TaskPageQuery {
        job: JobRef::Id(JobId(job)),
        tasks: Some(IdArray::single(task)),
        states: Vec::new(),
        cursor: 0,
        limit: 1,
        with_definition: true,
        with_curves: true,
        without_paths: false,
    };
    let page = task_page(&app, page).await?;
    let page = app.parts.curves.fill(page).await;
    let missing = || ApiError::not_found(format!("there is no task {task} in job {job}"));
    let found = page.tasks.first().ok_or_else(missing)?;
    let words = move |_: &View<'_>, job: &Job| {
        let slot = job.find(TaskId(task))?;
        let task = job.submit(slot)?.definition(slot.index)?;
        Some(RequestedResources::of(Some(&task)).words)
    };
    let words = look_at_job(&app, job, words).await?.unwrap_or_default();
    Ok(Json(TaskDetail::shown(&FoundTask {
        task: found,
        template: page.templates.first(),
        resources: &words,
    })))
}

/// Explains why a task does not run.
pub(in crate::http) async fn explain(
    State(app): State<Arc<App>>,
    Path((job, task)): Path<(String, String)>,
) -> Answer<Explanation> {
    let query = Query::Explain {
        job: JobRef::Id(JobId(id(&job, "job")?)),
        task: TaskId(id(&task, "task")?),
        until_able: false,
    };
    let answer = crate::query::ask(&app.parts.core, query).await?;
    let Reply::Explanation(found) = accepted(answer)? else {
        return Err(unexpected());
    };
    Ok(Json(Explanation::shown(&found)))
}

query! {
    /// The number of bins.
    StripQuery {
        bins: Option<u32>,
    }
}

/// Returns the tasks of a job in the order of their ids, in a few bins, with their run times.
pub(in crate::http) async fn strip(
    State(app): State<Arc<App>>,
    Path(job): Path<String>,
    asked: Parameters<StripQuery>,
) -> KeptAnswer<Strip> {
    let bins = bounded("bins", parameters(asked)?.bins, 600, 1..=BINS_MAX)?;
    let job = id(&job, "job")?;
    let make = async {
        let strip = look_at_job(&app, job, move |_, job| Strip::of(job, bins)).await?;
        let run_times = past::run_times(&app, job).await?;
        Ok::<_, ApiError>(Strip { run_times, ..strip })
    };
    let name = format!("strip {job} {bins}");
    app.kept.get(name, (None, REST_MAX), make).await
}

impl Strip {
    /// Counts the tasks of a job in bins. Takes linear time in the number of runs of equal states,
    /// unless the ids are unordered.
    fn of(job: &Job, bins: u32) -> Self {
        let ranges = || job.submits.iter().flat_map(|submit| submit.ids.ranges());
        let first = ranges().map(|range| range.first()).min().unwrap_or(0);
        let last = ranges()
            .map(|range| range.last())
            .max()
            .unwrap_or(0)
            .max(first);
        let span = u64::from(last - first) + 1;
        let length = usize::try_from(span.min(bins.into())).unwrap_or(1);
        let mut strip = Self {
            first: Id(first),
            last: Id(last),
            bins: vec![Counts::default(); length],
            run_times: Vec::new(),
        };
        for submit in &job.submits {
            strip.add(submit);
        }
        strip
    }

    fn add(&mut self, submit: &Submit) {
        for (from, to, phase) in submit.tasks.runs(0, submit.tasks.len()) {
            let state = number(phase.state());
            for range in submit.ids.slice(from, to) {
                if range.step() == 1 {
                    self.add_range(range.first(), range.last(), state);
                } else {
                    range.iter().for_each(|id| self.add_range(id, id, state));
                }
            }
        }
    }

    /// Adds the ids from `from` to `to`, both inclusive.
    fn add_range(&mut self, from: u32, to: u32, state: usize) {
        let (span, length) = (
            u64::from(self.last.0 - self.first.0) + 1,
            self.bins.len() as u64,
        );
        let (first, bin_of) = (self.first.0, |id: u64| id * length / span);
        let (mut at, end) = (u64::from(from - first), u64::from(to - first) + 1);
        while at < end {
            let bin = bin_of(at);
            // The first id of the next bin.
            let next = ((bin + 1) * span).div_ceil(length).clamp(at + 1, end);
            let counts = usize::try_from(bin)
                .ok()
                .and_then(|bin| self.bins.get_mut(bin));
            if let Some(count) = counts.and_then(|counts| counts.get_mut(state)) {
                *count += next - at;
            }
            at = next;
        }
    }
}

/// A cache of the last viewed job's graph, without the states of its tasks.
#[derive(Default)]
pub(in crate::http) struct Graphs(Mutex<Option<(u32, usize, Arc<Shape>)>>);

/// The steps of a job, and the dependencies between them.
#[derive(Default)]
struct Shape {
    steps: Vec<Step>,
    /// For each submit, the group of each task or of all tasks.
    groups: Vec<GroupOf>,
    edges: BTreeMap<(u32, u32), u64>,
}

/// The common properties of the tasks of one step.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Step {
    label: String,
    name: Option<String>,
}

enum GroupOf {
    All(u32),
    Each(Vec<u32>),
}

/// The part of the core's data that is needed to find the shape.
enum ShapeInput {
    Array(Arc<TaskTemplate>),
    Graph(Vec<Arc<TaskTemplate>>, Vec<u32>, Box<Graph>),
}

/// Returns the dependencies in a job, with tasks grouped by template.
pub(in crate::http) async fn graph(
    State(app): State<Arc<App>>,
    Path(job): Path<String>,
) -> KeptAnswer<answers::Graph> {
    let job = id(&job, "job")?;
    let make = async {
        let shape = shape_of(&app, job).await?;
        let known = Arc::clone(&shape);
        let templates = look_at_job(&app, job, move |_, job| count(job, &known)).await?;
        let edges = shape.edges.iter();
        let edges = edges.map(|((source, target), count)| GraphEdge {
            source: *source,
            target: *target,
            count: *count,
        });
        Ok::<_, ApiError>(answers::Graph {
            templates,
            edges: edges.collect(),
        })
    };
    let name = format!("graph {job}");
    app.kept.get(name, (None, REST_MAX), make).await
}

async fn shape_of(app: &App, job: u32) -> Result<Arc<Shape>, ApiError> {
    let submits = look_at_job(app, job, |_, job| job.submits.len()).await?;
    let mut known = app.graphs.0.lock().await;
    if let Some((_, _, shape)) = known
        .as_ref()
        .filter(|(id, length, _)| (*id, *length) == (job, submits))
    {
        return Ok(Arc::clone(shape));
    }
    // The data is copied immediately, and the slow part runs on another thread.
    let copied = look_at_job(app, job, |_, job| copy(job)).await?;
    let length = copied.len();
    let shape = tokio::task::spawn_blocking(move || Arc::new(find_shape(&copied)))
        .await
        .map_err(|_| ApiError::gone())?;
    *known = Some((job, length, Arc::clone(&shape)));
    Ok(shape)
}

fn copy(job: &Job) -> Vec<ShapeInput> {
    let submits = job.submits.iter().map(|submit| match &submit.kind {
        SubmitKind::Array { template, .. } => ShapeInput::Array(Arc::clone(&template.task)),
        SubmitKind::Graph {
            templates,
            template_of,
            graph,
            ..
        } => ShapeInput::Graph(templates.to_vec(), template_of.clone(), graph.clone()),
    });
    submits.collect()
}

/// How much of the name and the command is compared.
#[derive(Clone, Copy)]
enum NameMatch {
    Whole,
    /// Numbers count as equal.
    Numbers,
    /// Only the program is compared.
    Program,
}

impl Step {
    fn of(template: &TaskTemplate, likeness: NameMatch) -> Self {
        const LENGTH_MAX: usize = 200;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let words: Vec<String> = template.args.iter().map(|arg| text(arg)).collect();
        let name = template.name.as_deref();
        let (label, name) = match likeness {
            NameMatch::Whole => (words.join(" "), name.map(str::to_owned)),
            NameMatch::Numbers => (masked(&words.join(" ")), name.map(masked)),
            NameMatch::Program => (words.into_iter().next().unwrap_or_default(), None),
        };
        Self {
            label: label.chars().take(LENGTH_MAX).collect(),
            name,
        }
    }
}

/// Replaces each number in a text by `#`.
fn masked(text: &str) -> String {
    let mut shorter = String::new();
    for c in text.chars() {
        if !c.is_ascii_digit() {
            shorter.push(c);
        } else if !shorter.ends_with('#') {
            shorter.push('#');
        }
    }
    shorter
}

/// Finds the finest grouping with at most [`GROUPS_MAX`] steps, first by command and dependencies:
/// tasks with the same command but different dependencies are different steps.
fn find_shape(submits: &[ShapeInput]) -> Shape {
    let all = [
        (NameMatch::Whole, true),
        (NameMatch::Numbers, true),
        (NameMatch::Whole, false),
        (NameMatch::Numbers, false),
        (NameMatch::Program, true),
    ];
    let fits = |(likeness, by_deps)| {
        let found = Grouping::new(likeness, by_deps).of(submits);
        (found.steps.len() <= GROUPS_MAX).then_some(found)
    };
    let found = all.into_iter().find_map(fits);
    found.unwrap_or_else(|| Grouping::new(NameMatch::Program, false).of(submits))
}

/// Assigns the tasks of a job to groups.
struct Grouping {
    likeness: NameMatch,
    /// Whether the tasks of a group must depend on the same groups.
    by_deps: bool,
    numbers: BTreeMap<(Step, Vec<u32>), u32>,
    shape: Shape,
}

impl Grouping {
    fn new(likeness: NameMatch, by_deps: bool) -> Self {
        Self {
            likeness,
            by_deps,
            numbers: BTreeMap::new(),
            shape: Shape::default(),
        }
    }

    fn of(mut self, submits: &[ShapeInput]) -> Shape {
        for submit in submits {
            let groups = match submit {
                ShapeInput::Array(template) => {
                    GroupOf::All(self.group(Step::of(template, self.likeness), Vec::new()))
                }
                ShapeInput::Graph(templates, template_of, graph) => {
                    GroupOf::Each(self.add_graph(templates, template_of, graph))
                }
            };
            self.shape.groups.push(groups);
            if self.shape.steps.len() > GROUPS_MAX && self.can_be_coarser() {
                break;
            }
        }
        self.shape
    }

    /// Returns whether there is a coarser grouping, so that this grouping can be abandoned.
    fn can_be_coarser(&self) -> bool {
        self.by_deps || !matches!(self.likeness, NameMatch::Program)
    }

    fn group(&mut self, step: Step, sources: Vec<u32>) -> u32 {
        let steps = &mut self.shape.steps;
        let number = self.numbers.entry((step, sources));
        *number.or_insert_with_key(|(step, _)| {
            steps.push(step.clone());
            u32::try_from(steps.len() - 1).unwrap_or(u32::MAX)
        })
    }

    /// Returns the group of each task.
    fn add_graph(
        &mut self,
        templates: &[Arc<TaskTemplate>],
        template_of: &[u32],
        graph: &Graph,
    ) -> Vec<u32> {
        let likeness = self.likeness;
        let steps: Vec<Step> = templates
            .iter()
            .map(|one| Step::of(one, likeness))
            .collect();
        let mut each = vec![0; template_of.len()];
        // Dependencies come first, so their groups are known.
        for index in graph.order() {
            let sources = graph.deps(*index).iter();
            let mut sources: Vec<u32> = sources
                .filter_map(|dep| each.get(*dep as usize).copied())
                .collect();
            let template = template_of.get(*index as usize).copied().unwrap_or(0);
            let Some(step) = steps.get(template as usize) else {
                continue;
            };
            let mut known = Vec::new();
            if self.by_deps {
                known.clone_from(&sources);
                known.sort_unstable();
                known.dedup();
            }
            let group = self.group(step.clone(), known);
            sources
                .drain(..)
                .for_each(|source| *self.shape.edges.entry((source, group)).or_default() += 1);
            if let Some(place) = each.get_mut(*index as usize) {
                *place = group;
            }
            if self.shape.steps.len() > GROUPS_MAX && self.can_be_coarser() {
                break;
            }
        }
        each
    }
}

impl GraphTemplate {
    fn add(&mut self, state: usize, tasks: u64, first: Option<u32>) {
        let known = self.tasks.0.get_mut(state).zip(self.first.0.get_mut(state));
        if let Some((count, known)) = known {
            *count += tasks;
            *known = known.or(first);
        }
    }
}

/// Counts the tasks of each step by state.
fn count(job: &Job, shape: &Shape) -> Vec<GraphTemplate> {
    let templates = shape.steps.iter().zip(0..).map(|(step, id)| GraphTemplate {
        id,
        label: step.label.clone(),
        name: step.name.clone(),
        tasks: ByState::default(),
        first: ByState::default(),
    });
    let mut counts = Vec::from_iter(templates);
    for (submit, groups) in job.submits.iter().zip(&shape.groups) {
        for (from, to, phase) in submit.tasks.runs(0, submit.tasks.len()) {
            let state = number(phase.state());
            let mut add = |group: u32, tasks: u64, index: u32| {
                if let Some(found) = counts.get_mut(group as usize) {
                    found.add(state, tasks, submit.ids.get(index));
                }
            };
            match groups {
                GroupOf::All(group) => add(*group, u64::from(to - from), from),
                GroupOf::Each(each) => {
                    let some = each.get(from as usize..to as usize).unwrap_or(&[]);
                    some.iter()
                        .zip(from..)
                        .for_each(|(group, index)| add(*group, 1, index));
                }
            }
        }
    }
    counts
}

#[cfg(test)]
#[expect(clippy::type_complexity, reason = "arrows of a graph as plain tuples")]
mod tests {
    use super::*;

    fn strip(first: u32, last: u32, bins: usize) -> Strip {
        Strip {
            first: Id(first),
            last: Id(last),
            bins: vec![Counts::default(); bins],
            run_times: Vec::new(),
        }
    }

    #[test]
    fn a_million_ids_fall_into_their_bins() {
        let mut all = strip(1, 1_000_000, 600);
        all.add_range(1, 999_999, 2);
        all.add_range(1_000_000, 1_000_000, 3);
        let sums = all.bins.iter().map(|counts| counts.iter().sum::<u64>());
        assert_eq!(sums.clone().sum::<u64>(), 1_000_000);
        assert!(sums.clone().all(|sum| sum == 1_666 || sum == 1_667));
        assert_eq!(all.bins[599][3], 1);
        assert_eq!(all.bins[598][3], 0);
    }

    /// Returns the steps and edges of a graph with one task per (command, dependencies). Steps are
    /// commands, or `name: command`.
    fn shape(tasks: &[(&str, &[u32])]) -> (Vec<String>, Vec<((u32, u32), u64)>) {
        let templates = tasks.iter().map(|(task, _)| {
            let named = task.split_once(": ");
            let (name, command) =
                named.map_or((None, *task), |(name, command)| (Some(name), command));
            let words: Vec<&str> = command.split(' ').collect();
            Arc::new(TaskTemplate {
                name: name.map(Into::into),
                ..hq_core::testing::template(&words)
            })
        });
        let templates = templates.collect();
        let numbers = (0..u32::try_from(tasks.len()).expect("few")).collect();
        let graph = Graph::new(tasks.iter().map(|(_, deps)| deps.to_vec())).expect("no cycle");
        let found = find_shape(&[ShapeInput::Graph(templates, numbers, Box::new(graph))]);
        let steps = found.steps.into_iter().map(|step| match step.name {
            Some(name) => format!("{name}: {}", step.label),
            None => step.label,
        });
        (steps.collect(), found.edges.into_iter().collect())
    }

    #[test]
    fn steps_with_names_are_apart_until_there_are_too_many() {
        let none: &[u32] = &[];
        let (labels, _) = shape(&[("a: true", none), ("b: true", none)]);
        assert_eq!(labels, ["a: true", "b: true"]);
        let names: Vec<String> = (0..100).map(|number| format!("s{number}: true")).collect();
        let many: Vec<(&str, &[u32])> = names.iter().map(|name| (&**name, none)).collect();
        assert_eq!(shape(&many).0, ["s#: true"]);
    }

    #[test]
    fn steps_with_one_command_and_other_dependencies_are_apart() {
        let (labels, edges) = shape(&[
            ("prepare", &[]),
            ("true", &[0]),
            ("true", &[0]),
            ("true", &[1, 2]),
        ]);
        assert_eq!(labels, ["prepare", "true", "true"]);
        assert_eq!(edges, [((0, 1), 2), ((1, 2), 2)]);
        // Dependencies may have higher ids.
        let (labels, edges) = shape(&[("b", &[1]), ("a", &[])]);
        assert_eq!(
            (labels, edges),
            (vec!["a".into(), "b".into()], vec![((0, 1), 1)])
        );
    }

    #[test]
    fn too_many_steps_become_one_by_numbers_first_and_then_without_their_dependencies() {
        let samples: Vec<String> = (0..200).map(|n| format!("align s{n}")).collect();
        let mut tasks: Vec<(&str, &[u32])> = vec![("index", &[])];
        tasks.extend(samples.iter().map(|command| (&**command, &[0_u32][..])));
        let (labels, edges) = shape(&tasks);
        assert_eq!(labels, ["index", "align s#"]);
        assert_eq!(edges, [((0, 1), 200)]);
        let deps: Vec<[u32; 1]> = (0..200).map(|n| [n]).collect();
        let mut chain: Vec<(&str, &[u32])> = vec![("true", &[])];
        chain.extend(deps.iter().map(|dep| ("true", &dep[..])));
        assert_eq!(
            shape(&chain),
            (vec!["true".to_owned()], vec![((0, 0), 200)])
        );
    }

    #[test]
    fn few_ids_have_a_bin_each() {
        let mut few = strip(7, 9, 3);
        few.add_range(7, 8, 0);
        few.add_range(9, 9, 3);
        assert_eq!(few.bins[1], [1, 0, 0, 0, 0, 0]);
        assert_eq!(few.bins[2], [0, 0, 0, 1, 0, 0]);
    }
}
