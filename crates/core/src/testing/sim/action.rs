//! Actions of the simulated world, as values that are drawn from a seed, recorded and replayed.
//!
//! Each step has a separate seed for its random choices, such as which worker is affected. Removing
//! a step therefore changes the situation of later steps, but not their choices.

use std::time::Duration;

use super::Rng;

/// An action of the simulated world.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// A client submits an array.
    SubmitArray,
    /// A client submits tasks with dependencies.
    SubmitGraph,
    /// A client cancels or resubmits jobs.
    Cancel,
    /// A machine with a worker joins.
    Join,
    /// A machine vanishes with everything that runs on it.
    LoseMachine,
    /// A connection breaks.
    CutConnection,
    /// A user stops a worker.
    Interrupt,
    /// A client follows jobs.
    Watch,
    /// A peer sends meaningless messages.
    Nonsense,
    /// The packets of a machine vanish for a while.
    Silence,
    /// A client drains a worker.
    Drain,
    /// A notification was delivered or given up.
    AnswerNotice,
    /// The wall clock is set.
    TurnClock,
    /// All processes are suspended for a while.
    StandStill,
    /// A worker without a connection reconnects.
    ComeBack,
    /// A client forgets or closes jobs.
    Forget,
    /// A process starts or ends.
    Work,
    /// The server reads messages of a connection.
    ReadAtServer,
    /// A worker reads messages of its connection.
    ReadAtWorker,
    /// All pending changes are committed.
    Commit,
    /// Some of the pending changes are committed.
    CommitSome,
    /// The server will crash after some more effects.
    PlanCrash,
    /// The server crashes.
    Crash,
    /// A commit fails.
    FailCommit,
    /// The disk does nothing.
    Rest,
}

/// An action, its name in records, and its probability within its kind in percent.
type Weighted = (Action, &'static str, u32);

/// The actions of the world.
const WORLD: [Weighted; 19] = [
    (Action::SubmitArray, "submit-array", 5),
    (Action::SubmitGraph, "submit-graph", 3),
    (Action::Cancel, "cancel", 2),
    (Action::Join, "join", 3),
    (Action::LoseMachine, "lose-machine", 1),
    (Action::CutConnection, "cut-connection", 2),
    (Action::Interrupt, "interrupt", 1),
    (Action::Watch, "watch", 2),
    (Action::Nonsense, "nonsense", 1),
    (Action::Silence, "silence", 2),
    (Action::Drain, "drain", 1),
    (Action::AnswerNotice, "answer-notice", 1),
    (Action::TurnClock, "turn-clock", 1),
    (Action::StandStill, "stand-still", 1),
    (Action::ComeBack, "come-back", 3),
    (Action::Forget, "forget", 1),
    (Action::Work, "work", 25),
    (Action::ReadAtServer, "read-at-server", 23),
    (Action::ReadAtWorker, "read-at-worker", 22),
];

/// The actions of the disk. If there is a disk, one follows each action of the world.
const DISK: [Weighted; 6] = [
    (Action::Commit, "commit", 50),
    (Action::CommitSome, "commit-some", 10),
    (Action::PlanCrash, "plan-crash", 1),
    (Action::Crash, "crash", 1),
    (Action::FailCommit, "fail-commit", 5),
    (Action::Rest, "rest", 33),
];

/// The beginning of a course of graphs, in which workers join and get work.
const GRAPH_BEGIN: [Action; 13] = [
    Action::Join,
    Action::Join,
    Action::ReadAtServer,
    Action::ReadAtServer,
    Action::ReadAtServer,
    Action::Commit,
    Action::ReadAtWorker,
    Action::ReadAtWorker,
    Action::ReadAtWorker,
    Action::SubmitGraph,
    Action::SubmitGraph,
    Action::SubmitGraph,
    Action::Commit,
];

/// The further actions of that course, while the disk is slow.
const GRAPH_WORLD: [Weighted; 10] = [
    (Action::SubmitGraph, "submit-graph", 1),
    (Action::Cancel, "cancel", 1),
    (Action::LoseMachine, "lose-machine", 2),
    (Action::CutConnection, "cut-connection", 1),
    (Action::Silence, "silence", 1),
    (Action::Join, "join", 1),
    (Action::ComeBack, "come-back", 8),
    (Action::Work, "work", 35),
    (Action::ReadAtServer, "read-at-server", 25),
    (Action::ReadAtWorker, "read-at-worker", 25),
];
const GRAPH_DISK: [Weighted; 5] = [
    (Action::Commit, "commit", 2),
    (Action::CommitSome, "commit-some", 3),
    (Action::PlanCrash, "plan-crash", 1),
    (Action::Crash, "crash", 1),
    (Action::Rest, "rest", 93),
];

impl Action {
    /// Returns the name in records.
    #[must_use]
    pub fn name(self) -> &'static str {
        let mut all = WORLD.iter().chain(&DISK);
        let found = all.find(|(action, ..)| *action == self);
        found.map_or("unknown", |(_, name, _)| name)
    }

    /// Returns the action with this [`name`](Self::name).
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let mut all = WORLD.iter().chain(&DISK);
        all.find(|(_, known, _)| *known == name)
            .map(|(action, ..)| *action)
    }

    fn draw(rng: &mut Rng, table: &[Weighted]) -> Self {
        let total = table.iter().map(|(.., weight)| weight).sum();
        let mut left = rng.below(total);
        for (action, _, weight) in table {
            if left < *weight {
                return *action;
            }
            left -= weight;
        }
        Self::Rest
    }
}

/// A step: time passes, and then an action happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// The time that passes before the action.
    pub pause: Duration,
    /// The action.
    pub action: Action,
    /// The seed of its random choices.
    pub seed: u64,
}

/// All steps of a run, and the seed for its beginning and its healing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Course {
    /// The seed of the world.
    pub seed: u64,
    /// Whether there is a disk, so that the server can crash.
    pub is_durable: bool,
    /// The steps in order.
    pub steps: Vec<Step>,
}

impl Course {
    /// Draws a course of `steps` steps from a seed.
    #[must_use]
    pub fn draw(seed: u64, steps: u32, is_durable: bool) -> Self {
        let mut rng = Rng::new(seed);
        let tables = (&WORLD[..], is_durable.then_some(&DISK[..]));
        Self {
            seed,
            is_durable,
            steps: draw_steps(&mut rng, steps, tables),
        }
    }

    /// The number of steps in a course of graphs in test runs, after its beginning.
    pub const GRAPH_STEPS: u32 = 120;

    /// Draws a course of graphs: tasks run after uncommitted ends, on machines that vanish.
    #[must_use]
    pub fn of_graphs(seed: u64, steps: u32) -> Self {
        let mut rng = Rng::new(seed);
        let begin = GRAPH_BEGIN.into_iter();
        let mut all: Vec<Step> = begin
            .map(|action| Step::new(Duration::from_millis(1), action, &mut rng))
            .collect();
        let tables = (&GRAPH_WORLD[..], Some(&GRAPH_DISK[..]));
        all.extend(draw_steps(&mut rng, steps, tables));
        Self {
            seed,
            is_durable: true,
            steps: all,
        }
    }

    /// Draws the course of a seed in test runs. Most courses are short, so that there can be many.
    /// In long ones, cause and effect can be further apart.
    #[must_use]
    pub fn usual(seed: u64, is_durable: bool) -> Self {
        let one_in = if is_durable { 10 } else { 5 };
        let steps = if seed.is_multiple_of(one_in) {
            400
        } else {
            100
        };
        Self::draw(seed, steps, is_durable)
    }

    /// Returns a text that [`Course::parse`] reads.
    #[must_use]
    pub fn record(&self) -> String {
        let disk = if self.is_durable { "durable" } else { "plain" };
        let mut text = format!("{HEADER}\n{disk} seed {}\n", self.seed);
        for step in &self.steps {
            let (pause, name) = (step.pause.as_micros(), step.action.name());
            text += &format!("{pause} {name} {:x}\n", step.seed);
        }
        text
    }

    /// Parses a record.
    ///
    /// # Errors
    ///
    /// Returns the line that could not be parsed.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut lines = (1..).zip(text.lines());
        let next = |lines: &mut dyn Iterator<Item = (usize, &str)>, what: &str| {
            let line = lines.next().map(|(_, line)| line.to_owned());
            line.ok_or_else(|| format!("the record ends before {what}"))
        };
        if next(&mut lines, "its first line")? != HEADER {
            return Err(format!("a record begins with '{HEADER}'"));
        }
        let kind = next(&mut lines, "its seed")?;
        let (disk, seed) = kind.split_once(" seed ").unwrap_or_default();
        let is_durable = match disk {
            "durable" => true,
            "plain" => false,
            _ => {
                return Err(format!(
                    "line 2 is 'plain seed N' or 'durable seed N', not '{kind}'"
                ));
            }
        };
        let seed = seed.parse().map_err(|_| format!("'{seed}' is no seed"))?;
        let steps = lines
            .map(|(number, line)| {
                Step::parse(line).ok_or_else(|| {
                    format!("line {number} is 'MICROSECONDS ACTION SEED', not '{line}'")
                })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            seed,
            is_durable,
            steps,
        })
    }

    /// Returns the shortest course found that still fails, by leaving out steps and pauses. `fails`
    /// is called at most `most` times.
    #[must_use]
    pub fn shrink(&self, mut most: usize, mut fails: impl FnMut(&Self) -> bool) -> Self {
        let mut best = self.clone();
        let mut size = best.steps.len().div_ceil(2);
        // This is delta debugging (Zeller, Hildebrandt 2002) without complements: it leaves out
        // chunks of decreasing size.
        while size > 0 && most > 0 {
            let mut from = 0;
            let mut is_shorter = false;
            while from < best.steps.len() && most > 0 {
                let mut shorter = best.clone();
                let to = (from + size).min(shorter.steps.len());
                shorter.steps.drain(from..to);
                most -= 1;
                if fails(&shorter) {
                    best = shorter;
                    is_shorter = true;
                } else {
                    from += size;
                }
            }
            if size > 1 || !is_shorter {
                size /= 2;
            }
        }
        for index in 0..best.steps.len() {
            let mut quicker = best.clone();
            let pause = std::mem::take(&mut quicker.steps[index].pause);
            if most > 0 && !pause.is_zero() {
                most -= 1;
                if fails(&quicker) {
                    best = quicker;
                }
            }
        }
        best
    }
}

/// Draws steps of the world, each of which is followed by a step of the disk if there is one.
fn draw_steps(
    rng: &mut Rng,
    count: u32,
    (world, disk): (&[Weighted], Option<&[Weighted]>),
) -> Vec<Step> {
    let mut all = Vec::new();
    for _ in 0..count {
        let most = if rng.chance(8) { 150_000 } else { 3_000 };
        let pause = Duration::from_micros(rng.below(most).into());
        let action = Action::draw(rng, world);
        all.push(Step::new(pause, action, rng));
        if let Some(disk) = disk {
            let action = Action::draw(rng, disk);
            all.push(Step::new(Duration::ZERO, action, rng));
        }
    }
    all
}

/// The first line of a record. The number changes with the format.
const HEADER: &str = "hq simulation 1";

impl Step {
    fn new(pause: Duration, action: Action, rng: &mut Rng) -> Self {
        let seed = rng.seed();
        Self {
            pause,
            action,
            seed,
        }
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let step = Self {
            pause: Duration::from_micros(words.next()?.parse().ok()?),
            action: Action::from_name(words.next()?)?,
            seed: u64::from_str_radix(words.next()?, 16).ok()?,
        };
        words.next().is_none().then_some(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_says_everything() {
        for is_durable in [false, true] {
            let course = Course::draw(7, 300, is_durable);
            assert_eq!(Course::parse(&course.record()), Ok(course));
        }
    }

    #[test]
    fn weights_are_percent_and_names_are_unique() {
        let sum = |table: &[Weighted]| table.iter().map(|(.., w)| w).sum::<u32>();
        assert_eq!((sum(&WORLD), sum(&DISK)), (100, 100));
        assert_eq!((sum(&GRAPH_WORLD), sum(&GRAPH_DISK)), (100, 100));
        let graphs = GRAPH_WORLD.iter().chain(&GRAPH_DISK);
        for (action, name, _) in WORLD.iter().chain(&DISK).chain(graphs) {
            assert_eq!(Action::from_name(name), Some(*action));
        }
    }

    #[test]
    fn what_is_no_record_is_refused_with_its_line() {
        let parse = |text: &str| Course::parse(text).expect_err("it is wrong");
        assert!(parse("").contains("ends before"));
        assert!(parse("hq simulation 2\nplain seed 1").contains(HEADER));
        assert!(parse(&format!("{HEADER}\nshaky seed 1")).contains("line 2"));
        assert!(parse(&format!("{HEADER}\nplain seed one")).contains("'one'"));
        let bad = format!("{HEADER}\nplain seed 1\n5 work 1f\n5 play 1f");
        assert!(parse(&bad).contains("line 4"), "{}", parse(&bad));
    }

    #[test]
    fn only_the_steps_that_matter_are_left() {
        let course = Course::draw(3, 200, true);
        let fails = |course: &Course| {
            let mut actions = course.steps.iter().map(|step| step.action);
            actions.any(|a| a == Action::SubmitGraph) && actions.any(|a| a == Action::Crash)
        };
        assert!(fails(&course), "a course with both");
        let short = course.shrink(10_000, fails);
        let actions: Vec<Action> = short.steps.iter().map(|step| step.action).collect();
        assert_eq!(actions, [Action::SubmitGraph, Action::Crash]);
        assert!(short.steps.iter().all(|step| step.pause.is_zero()));
    }
}
