//! Random load, commands, losses and restarts for a given time. At the end, the test checks that
//! nothing acknowledged is lost, no instance started twice, no more tasks ran at once than a limit
//! allows, memory does not grow, and nothing is left over.
//!
//! Every test run includes a short version. To run for an hour and print its figures:
//!
//! ```sh
//! HQ_SOAK_SECONDS=3600 cargo test --release -p hq-cli --test e2e soak:: -- --nocapture
//! ```
//!
//! `HQ_FAULT_SEED` repeats the choices of a run, but not their timing relative to the load.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::campaign::{Moments, resident, setting};
use crate::harness::{Env, processes_with, signal, wait_for, wait_for_up_to};

/// The first action of each task. Its line shows that this instance was started.
const NOTE: &str = "echo $HQ_JOB_ID $HQ_TASK_ID $HQ_INSTANCE_ID >> starts";
/// The most tasks with the limit `slots` that run at once.
const SLOTS: u64 = 3;
/// Keeps one of the slots until the task ends. If each is taken three times in a row, more tasks run
/// than there are slots.
const SLOT: &str = "slot=none; for try in 1 2 3 1 2 3 1 2 3; do exec 9>slot-$try; \
    flock -n 9 && slot=$try && break; done; [ $slot = none ] && echo $HQ_JOB_ID >> beyond";
/// This is in the command line of every task that sleeps.
const MARK: &str = "8943";
/// If a server has more unfinished tasks than this, it gets no new ones.
const UNFINISHED_MAX: u64 = 400;
/// How long after a start memory is first sampled, because the first work fills caches.
const WARM_UP: Duration = Duration::from_secs(60);
/// The maximum memory in the last third of a server's life relative to the previous third. Shorter
/// lives are not compared.
const GROWTH_MAX: f64 = 1.1;
const LIFE_MIN: Duration = Duration::from_secs(600);

/// Something that happens to the cluster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Deed {
    SubmitArray,
    SubmitGraph,
    SubmitToOpenJob,
    Cancel,
    /// Hold and release a job, or change it or the limit, or signal its tasks.
    Control,
    Ask,
    KillWorker,
    StopWorker,
    SuspendWorker,
    Prune,
    KillServer,
}

impl Deed {
    /// Draws an action, with a bias toward actions that create work.
    fn draw(moments: &mut Moments) -> Self {
        match moments.below(47) {
            0..=14 => Self::SubmitArray,
            15..=18 => Self::SubmitGraph,
            19..=22 => Self::SubmitToOpenJob,
            23..=25 => Self::Cancel,
            26..=33 => Self::Control,
            34..=42 => Self::Ask,
            43 => Self::KillWorker,
            44 => Self::StopWorker,
            45 => Self::SuspendWorker,
            _ => Self::Prune,
        }
    }
}

/// A job that the server has acknowledged.
struct Acknowledged {
    id: String,
    tasks: u64,
    /// Tasks whose ids are divisible by this fail; 0 = no task.
    fails: u64,
    /// Whether some of it may have been canceled.
    is_canceled: bool,
}

struct Soak {
    env: Env,
    moments: Moments,
    begun: Instant,
    /// The processes to signal. The first is never ended.
    workers: Vec<u32>,
    server: u32,
    jobs: Vec<Acknowledged>,
    /// Samples: the time, the run of the server, and the memory of the server and of the first
    /// worker in KiB.
    samples: Vec<(Duration, u32, u64, u64)>,
    lives: u32,
    deeds: BTreeMap<Deed, u32>,
    verified: u64,
}

impl Soak {
    fn start() -> Self {
        let mut env = Env::new();
        let server = env.start_server_with(&["--journal=j.db"]);
        let mut soak = Self {
            env,
            moments: Moments::new("soak"),
            begun: Instant::now(),
            workers: Vec::new(),
            server,
            jobs: Vec::new(),
            samples: Vec::new(),
            lives: 1,
            deeds: BTreeMap::new(),
            verified: 0,
        };
        for _ in 0..3 {
            soak.add_worker();
        }
        soak
    }

    fn add_worker(&mut self) {
        let pid = self.env.start_worker_with(&["--cpus=3", "--heartbeat=2s"]);
        self.workers.push(pid);
    }

    /// Returns a worker that may be ended.
    fn any_worker(&mut self) -> u32 {
        let count = self.workers.len() as u64 - 1;
        let index = 1 + usize::try_from(self.moments.below(count)).expect("few");
        self.workers[index]
    }

    fn acknowledged(&mut self, id: &str, tasks: u64, fails: u64) {
        self.jobs.push(Acknowledged {
            id: id.trim().to_owned(),
            tasks,
            fails,
            is_canceled: false,
        });
    }

    fn unfinished(&self) -> u64 {
        let jobs = self.env.json(&["job", "list", "--all"]);
        let jobs = jobs.as_array().expect("jobs").iter();
        let stats = jobs.map(|job| job["task_stats"].clone());
        let count = |stats: &serde_json::Value, name: &str| stats[name].as_u64().unwrap_or(0);
        stats
            .map(|stats| count(&stats, "waiting") + count(&stats, "running"))
            .sum()
    }

    fn submit_array(&mut self) {
        let tasks = 1 + self.moments.below(80);
        let fails = [0, 0, 7][usize::try_from(self.moments.below(3)).expect("few")];
        let pause = self.moments.below(3);
        let (limit, slot) = match self.moments.below(2) {
            0 => (&[][..], ":"),
            _ => (&["--limit=slots"][..], SLOT),
        };
        let script = match fails {
            0 => format!("{NOTE}; {slot}; sleep 0.{pause}{MARK}"),
            _ => {
                let end = format!("exit $((HQ_TASK_ID % {fails} == 0))");
                format!("{NOTE}; {slot}; sleep 0.{pause}{MARK}; {end}")
            }
        };
        let output = match self.moments.below(3) {
            0 => vec!["--stream=streams"],
            1 => vec!["--stdout=out", "--stderr=none"],
            _ => vec!["--stdout=none", "--stderr=none"],
        };
        let array = format!("--array=1-{tasks}");
        let words = [
            &[&array[..], "--crash-limit=unlimited"],
            &output[..],
            limit,
            &["--", "bash", "-c", &script],
        ];
        let id = self.env.submit(&words.concat());
        self.acknowledged(&id, tasks, fails);
    }

    /// Submits a chain with four links, and two tasks that depend on each link.
    fn submit_graph(&mut self) {
        let task = |id: u32, deps: &str| {
            format!(
                "[[task]]\nid = {id}\ndeps = [{deps}]\ncrash_limit = \"unlimited\"\nstdout = \"none\"\nstderr = \"none\"\n\
                 command = [\"bash\", \"-c\", \"{NOTE}; sleep 0.0{MARK}\"]\n"
            )
        };
        let mut text = String::new();
        for link in 1..=4 {
            let before = (link > 1).then(|| (link - 1).to_string());
            text += &task(link, &before.unwrap_or_default());
            text += &task(link * 10, &link.to_string());
            text += &task(link * 10 + 1, &link.to_string());
        }
        self.env.write("graph.toml", text);
        let words = ["job", "submit-file", "graph.toml", "--output-mode=quiet"];
        let id = self.env.hq(&words).ok();
        self.acknowledged(&id, 12, 0);
    }

    fn submit_bit_by_bit(&mut self) {
        let id = self.env.hq(&["job", "open", "--output-mode=quiet"]).ok();
        let id = id.trim().to_owned();
        let script = format!("{NOTE}; sleep 0.1{MARK}");
        for _ in 0..3 {
            let job = format!("--job={id}");
            // The ids of the second and third batch follow the earlier ones.
            let words = [&job[..], "--each-line=lines", "--crash-limit=unlimited"];
            let output = ["--stdout=none", "--stderr=none"];
            let command = ["--", "bash", "-c", &script];
            self.env.submit(&[&words[..], &output, &command].concat());
        }
        self.env.hq(&["job", "close", &id]).ok();
        self.acknowledged(&id, 30, 0);
    }

    fn cancel(&mut self) {
        let count = self.jobs.len() as u64;
        if count == 0 {
            return;
        }
        let index = usize::try_from(self.moments.below(count)).expect("few");
        let job = &mut self.jobs[index];
        job.is_canceled = true;
        self.env.hq(&["job", "cancel", &job.id]).ok();
    }

    /// Sends commands about a job, which may have ended. None of them changes how it ends.
    fn control(&mut self) {
        let count = self.jobs.len() as u64;
        if count == 0 {
            return;
        }
        let index = usize::try_from(self.moments.below(count)).expect("few");
        let id = self.jobs[index].id.clone();
        let number = 1 + self.moments.below(SLOTS);
        let (slots, priority) = (number.to_string(), format!("--priority={number}"));
        let commands: [&[&[&str]]; 5] = [
            &[&["job", "hold", &id], &["job", "release", &id]],
            &[
                &["task", "hold", &id, "2-7"],
                &["task", "release", &id, "1-9"],
            ],
            &[&["job", "set", &id, &priority, "--time-limit=1h"]],
            &[&["limit", "set", "slots", &slots]],
            &[&["task", "signal", &id, "1-9", "--signal=WINCH"]],
        ];
        let index = usize::try_from(self.moments.below(5)).expect("few");
        for command in commands[index] {
            let output = self.env.hq(command);
            // A command may come too late.
            assert!(
                matches!(output.code, Some(0 | 1)),
                "{command:?}: {}{}",
                output.stdout,
                output.stderr
            );
        }
    }

    fn ask(&mut self) {
        let questions: [&[&str]; 6] = [
            &["job", "list", "--all"],
            &["worker", "list", "--all"],
            &["query", "SELECT state, count(*) FROM tasks GROUP BY state"],
            &["worker", "info", "1"],
            &["job", "info", "last"],
            &["task", "list", "last"],
        ];
        // Pruning forgets all jobs.
        let count = if self.jobs.is_empty() { 4 } else { 6 };
        let question = questions[usize::try_from(self.moments.below(count)).expect("few")];
        self.env.hq(question).ok();
    }

    fn kill_worker(&mut self) {
        let pid = self.any_worker();
        signal(pid, "KILL");
        self.replace(pid);
    }

    fn stop_worker(&mut self) {
        let pid = self.any_worker();
        signal(pid, "TERM");
        self.replace(pid);
    }

    fn replace(&mut self, pid: u32) {
        self.env.wait_exit_of(pid);
        self.workers.retain(|other| *other != pid);
        self.add_worker();
    }

    /// Suspends a worker for less than a heartbeat, or for longer than the server waits.
    fn suspend_worker(&mut self) {
        let pid = self.any_worker();
        signal(pid, "STOP");
        self.moments.pass(6_000);
        signal(pid, "CONT");
    }

    fn kill_server(&mut self) {
        self.judge_log();
        signal(self.server, "KILL");
        self.env.wait_exit("server");
        self.server = self.env.start_server_with(&["--journal=j.db"]);
        self.lives += 1;
    }

    /// Checks that the log contains no messages that should never occur.
    fn judge_log(&self) {
        let log = self.env.read("server.log");
        let is_bad = |line: &&str| line.contains(" ERROR ") || line.contains("panicked");
        let bad: Vec<&str> = log.lines().filter(is_bad).collect();
        assert!(bad.is_empty(), "{bad:#?}");
    }

    /// Checks ended jobs, and makes the server forget them.
    fn verify_ended(&mut self) {
        let listed = self.env.json(&["job", "list", "--all"]);
        let mut ended = BTreeSet::new();
        for job in listed.as_array().expect("jobs") {
            let stats = &job["task_stats"];
            if stats["waiting"] == 0 && stats["running"] == 0 {
                ended.insert(job["id"].to_string());
            }
        }
        let jobs = std::mem::take(&mut self.jobs);
        let (ended, others): (Vec<_>, Vec<_>) =
            jobs.into_iter().partition(|job| ended.contains(&job.id));
        self.jobs = others;
        let text = self.env.read("starts");
        let starts = starts(&text);
        for job in ended {
            self.verify(&job, &starts);
            self.env.hq(&["job", "forget", &job.id]).ok();
            self.verified += 1;
        }
    }

    /// Prunes the journal only when nothing is running: a job that ends after the check would be
    /// gone before the next one.
    fn prune(&mut self) {
        self.wait_until_unfinished(0);
        self.verify_ended();
        self.env.hq(&["journal", "prune"]).ok();
    }

    /// Waits until no more than this many tasks are left.
    fn wait_until_unfinished(&self, most: u64) {
        let patience = Duration::from_secs(300);
        wait_for_up_to(patience, "tasks end", || match self.unfinished() {
            count if count <= most => Ok(()),
            count => Err(count.to_string()),
        });
    }

    fn verify(&self, job: &Acknowledged, starts: &BTreeMap<(u64, u64, u64), u32>) {
        let id = &job.id;
        let sql = format!("SELECT task, instance, state FROM tasks WHERE job = {id}");
        let rows = self.env.json(&["query", &sql]);
        let rows = rows.as_array().expect("rows");
        let number = |row: &serde_json::Value, name: &str| row[name].as_u64().expect("a number");
        let job_number: u64 = id.parse().expect("a job id");
        let mut ended = 0;
        for row in rows {
            let (task, state) = (number(row, "task"), row["state"].as_str().expect("a state"));
            if job.is_canceled && !matches!(state, "finished" | "failed") {
                continue;
            }
            let fails = job.fails > 0 && task.is_multiple_of(job.fails);
            let expected = if fails { "failed" } else { "finished" };
            assert_eq!(state, expected, "task {task} of job {id}");
            let start = (job_number, task, number(row, "instance"));
            assert_eq!(starts.get(&start), Some(&1), "starts of {start:?}");
            ended += 1;
        }
        assert!(
            job.is_canceled || ended == job.tasks,
            "job {id}: {ended} of {}",
            job.tasks
        );
    }

    fn sample(&mut self) {
        let front = self.workers[0];
        let children = std::fs::read_to_string(format!("/proc/{front}/task/{front}/children"));
        let inner = children.expect("it lives");
        let inner = inner
            .split_whitespace()
            .next()
            .and_then(|pid| pid.parse().ok());
        let worker = resident(front) + inner.map_or(0, resident);
        let sample = (
            self.begun.elapsed(),
            self.lives,
            resident(self.server),
            worker,
        );
        self.samples.push(sample);
    }

    fn carry_out(&mut self, deed: Deed) {
        match deed {
            Deed::SubmitArray | Deed::SubmitGraph | Deed::SubmitToOpenJob => self.submit(deed),
            Deed::Cancel => self.cancel(),
            Deed::Control => self.control(),
            Deed::Ask => self.ask(),
            Deed::KillWorker => self.kill_worker(),
            Deed::StopWorker => self.stop_worker(),
            Deed::SuspendWorker => self.suspend_worker(),
            Deed::Prune => self.prune(),
            Deed::KillServer => self.kill_server(),
        }
        *self.deeds.entry(deed).or_default() += 1;
    }

    fn submit(&mut self, deed: Deed) {
        self.wait_until_unfinished(UNFINISHED_MAX);
        if deed == Deed::SubmitGraph {
            self.submit_graph();
        } else if deed == Deed::SubmitToOpenJob {
            self.submit_bit_by_bit();
        } else {
            self.submit_array();
        }
    }

    /// Ends everything and checks the result.
    fn end(mut self) {
        self.wait_until_unfinished(0);
        self.verify_ended();
        assert!(self.jobs.is_empty(), "every job is there and has ended");
        let text = self.env.read("starts");
        let twice: Vec<_> = starts(&text).into_iter().filter(|(_, n)| *n > 1).collect();
        assert!(twice.is_empty(), "instances that started twice: {twice:?}");
        let beyond = self.env.read("beyond");
        assert_eq!(beyond, "", "tasks that found no slot");
        self.judge_log();
        self.env.hq(&["server", "stop"]).ok();
        self.env.wait_exit("server");
        for pid in std::mem::take(&mut self.workers) {
            self.env.wait_exit_of(pid);
        }
        self.env.hq(&["journal", "check", "j.db"]).ok();
        wait_for("nothing of the tasks is left", || {
            let left = processes_with(MARK);
            let is_mine = |pid: &u32| {
                let cwd = std::fs::read_link(format!("/proc/{pid}/cwd"));
                cwd.is_ok_and(|cwd| cwd == self.env.path(""))
            };
            let left: Vec<u32> = left.into_iter().filter(is_mine).collect();
            left.is_empty().then_some(()).ok_or(format!("{left:?}"))
        });
        self.tell(text.lines().count());
    }

    fn tell(&self, starts: usize) {
        eprintln!(
            "{starts} starts, {} jobs verified, {:?}",
            self.verified, self.deeds
        );
        for life in 1..=self.lives {
            let of_life: Vec<_> = self.samples.iter().filter(|s| s.1 == life).collect();
            let Some((first, last)) = of_life.first().zip(of_life.last()) else {
                continue;
            };
            let (begin, end) = (first.0 + WARM_UP, last.0);
            let span = end.saturating_sub(begin);
            if span.is_zero() {
                continue;
            }
            let mean = |part: u32, pick: fn(&(Duration, u32, u64, u64)) -> u64| {
                let (from, to) = (begin + span * part / 3, begin + span * (part + 1) / 3);
                let part = of_life.iter().filter(|s| (from..=to).contains(&s.0));
                let part: Vec<f64> = part.map(|s| pick(s) as f64 / 1_024.0).collect();
                part.iter().sum::<f64>() / part.len().max(1) as f64
            };
            let [server, worker] = [
                [0, 1, 2].map(|part| mean(part, |s| s.2)),
                [0, 1, 2].map(|part| mean(part, |s| s.3)),
            ];
            eprintln!(
                "life {life}, {span:.0?}: server {server:.1?} MiB, first worker {worker:.1?} MiB by thirds"
            );
            for [_, before, last] in [server, worker] {
                let is_flat = last <= before * GROWTH_MAX;
                assert!(is_flat || span < LIFE_MIN, "{before} MiB, then {last}");
            }
        }
    }
}

/// Counts how often each instance of a task was started.
fn starts(text: &str) -> BTreeMap<(u64, u64, u64), u32> {
    let mut starts = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split(' ').filter_map(|word| word.parse().ok());
        let (Some(job), Some(task), Some(instance)) = (words.next(), words.next(), words.next())
        else {
            panic!("a line of a task: {line:?}");
        };
        *starts.entry((job, task, instance)).or_insert(0) += 1;
    }
    starts
}

#[test]
fn random_work_losses_and_restarts_lose_nothing_and_leave_nothing() {
    let seconds = setting("HQ_SOAK_SECONDS", 8);
    let mut soak = Soak::start();
    soak.env.write("lines", "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n");
    soak.env.write("starts", "");
    soak.env.write("beyond", "");
    let slots = SLOTS.to_string();
    soak.env.hq(&["limit", "set", "slots", &slots]).ok();
    let span = Duration::from_secs(seconds);
    // A server lives for a quarter of the time, which is long enough to see whether its memory is
    // flat.
    let mut next_end = span / 4;
    while soak.begun.elapsed() < span {
        if soak.begun.elapsed() >= next_end {
            next_end += span / 4;
            soak.carry_out(Deed::KillServer);
        }
        let deed = Deed::draw(&mut soak.moments);
        soak.carry_out(deed);
        soak.sample();
    }
    for deed in [
        Deed::SubmitArray,
        Deed::SubmitGraph,
        Deed::SubmitToOpenJob,
        Deed::Control,
        Deed::Cancel,
        Deed::KillWorker,
        Deed::Prune,
    ] {
        soak.carry_out(deed);
    }
    soak.end();
}
