//! The questions, with their contestants and points. Does not know how answers are shown.

use super::contestants::{Contestant, Language, Programs, Setting};

/// The unit of a contestant's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Processes per second; more is better.
    Rate,
    /// Nanoseconds of one wait.
    WaitNs,
    /// Microseconds from the request to `main` of the process, p50 and p99.
    LatencyUs,
    /// Seconds to create a number of processes, until all were waited for as well, and CPU seconds
    /// of parent and children: user, system.
    Creation,
    /// CPU seconds of parent and children for a number of processes, system and user, and seconds
    /// on the clock.
    CpuSeconds,
    /// Microseconds from the creation of a process to the end of the wait for it; the mean.
    MeanUs,
    /// Microseconds of CPU time of the parent to create one process and to wait for it; the mean.
    ParentUs,
    /// Microseconds of one wait. One run of a contestant has the figures of all points.
    WaitUs,
}

/// One question, with one table and one plot.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    /// The name on the command line and of its files.
    pub(crate) name: &'static str,
    /// The question in words.
    pub(crate) title: &'static str,
    /// The name of the quantity that grows.
    pub(crate) x_label: &'static str,
    /// The unit of the answers.
    pub(crate) unit: Unit,
    /// The values of the quantity that grows.
    pub(crate) points: &'static [u32],
    /// The points of a quick run.
    pub(crate) quick_points: &'static [u32],
    /// The number of rounds and the milliseconds that one contestant runs in a round, in a full
    /// and in a quick run.
    pub(crate) effort: [(usize, u32); 2],
    /// The contestants that answer. Ratios are relative to the first one.
    pub(crate) contestants: Vec<Contestant>,
    pub(super) setting: fn(&Programs, &Contestant, u32) -> Setting,
}

/// The effort of most questions.
pub(super) const USUAL: [(usize, u32); 2] = [(7, 1000), (1, 150)];

impl Question {
    /// Returns the setting of a contestant at a point.
    pub(crate) fn setting(&self, programs: &Programs, contestant: &Contestant, x: u32) -> Setting {
        let mut setting = (self.setting)(programs, contestant, x);
        if !setting.args.iter().any(|arg| arg.starts_with("program=")) {
            let program = format!("program={}", programs.child.display());
            setting.args.push(program);
        }
        setting
    }
}

pub(super) const fn contestant(
    label: &'static str,
    language: Language,
    mechanism: &'static str,
    variant: &'static str,
) -> Contestant {
    Contestant {
        label,
        language,
        mechanism,
        variant,
    }
}

const CLONE: Contestant = contestant("C: clone, shared memory", Language::C, "clone", "");
const POOL: Contestant = contestant("ours: pool", Language::Rust, "pool", "");

fn everyone() -> Vec<Contestant> {
    use Language::{C, Python, Rust};
    vec![
        CLONE,
        POOL,
        contestant("ours: pool, batch task", Rust, "pool-task", ""),
        contestant("ours: single", Rust, "single", ""),
        contestant("ours: spawn-blocking", Rust, "spawn-blocking", ""),
        contestant("C: fork + exec", C, "fork", ""),
        contestant("C: posix_spawn", C, "posix_spawn", ""),
        contestant("C: zygote", C, "zygote", ""),
        contestant("C: helper process", C, "helper", ""),
        contestant("std Command", Rust, "command", ""),
        contestant("std Command, pre_exec", Rust, "command-pre-exec", ""),
        contestant("tokio Command", Rust, "tokio", ""),
        contestant("tokio Command, pre_exec", Rust, "tokio-pre-exec", ""),
        contestant("Python Popen", Python, "plain", ""),
        contestant("Python Popen, process_group", Python, "process_group", ""),
        contestant("Python Popen, preexec_fn", Python, "preexec_fn", ""),
    ]
}

/// Returns these contestants, once for each variant, which the label names.
fn variants(
    contestants: &[(Contestant, [&'static str; 2])],
    names: [&'static str; 2],
) -> Vec<Contestant> {
    let each = |(contestant, labels): &(Contestant, [&'static str; 2])| {
        let (contestant, labels) = (*contestant, *labels);
        [0, 1].map(|index| Contestant {
            label: labels[index],
            variant: names[index],
            ..contestant
        })
    };
    contestants.iter().flat_map(each).collect()
}

pub(super) fn key(name: &str, x: u32) -> Setting {
    Setting {
        args: vec![format!("{name}={x}"), "count=1000000".into()],
        ..Setting::default()
    }
}

/// The typical length of a variable; 180 of them are 30 KiB in total.
const VALUE_BYTES: usize = 160;

fn environment(contestant: &Contestant, x: u32) -> Setting {
    if contestant.variant == "set" {
        let mut setting = key("env", x);
        setting.args.push(format!("envlen={VALUE_BYTES}"));
        return setting;
    }
    let mut setting = key("env", 0);
    let value = "x".repeat(VALUE_BYTES);
    setting.env = (0..x)
        .map(|index| (format!("HQ_BENCH_{index:03}"), value.clone()))
        .collect();
    setting
}

/// Sets `PATH` to `x` directories, with the program in the last one. The others exist and are
/// empty.
fn path(programs: &Programs, contestant: &Contestant, x: u32) -> Setting {
    let mut directories = Vec::new();
    for index in 1..x {
        let directory = programs.dir.join(format!("path-{index}"));
        // A missing directory is searched the same way, so failure does not matter.
        let _ = std::fs::create_dir_all(&directory);
        directories.push(directory.display().to_string());
    }
    directories.push(programs.dir.display().to_string());
    let mut setting = key("env", 0);
    setting.env = vec![("PATH".into(), directories.join(":"))];
    if contestant.variant == "bare" {
        setting.args.push("program=spawn_child".into());
    }
    setting
}

fn with_variants() -> [Question; 2] {
    use Language::{C, Rust};
    let std = contestant("", Rust, "command", "");
    let posix = contestant("", C, "posix_spawn", "");
    let clone = ["C: clone, set", "C: clone, inherited"];
    let pool = ["ours, set", "ours, inherited"];
    let command = ["std Command, set", "std Command, inherited"];
    let bare = ["ours, bare", "ours, absolute"];
    let bare_posix = ["C: posix_spawn, bare", "C: posix_spawn, absolute"];
    let bare_command = ["std Command, bare", "std Command, absolute"];
    let rate = Question {
        name: "environment",
        title: "Spawn rate against environment variables (160 bytes each; 180 are 30 KiB)",
        x_label: "variables",
        unit: Unit::Rate,
        effort: USUAL,
        points: &[0, 20, 60, 180, 500],
        quick_points: &[0, 180, 500],
        contestants: variants(
            &[(CLONE, clone), (POOL, pool), (std, command)],
            ["set", "inherited"],
        ),
        setting: |_, contestant, x| environment(contestant, x),
    };
    let path = Question {
        name: "path",
        title: "Spawn rate against directories in PATH, the program in the last one",
        x_label: "directories in PATH",
        points: &[1, 3, 10, 30],
        quick_points: &[1, 30],
        contestants: variants(
            &[(posix, bare_posix), (POOL, bare), (std, bare_command)],
            ["bare", "absolute"],
        ),
        setting: path,
        ..rate.clone()
    };
    [rate, path]
}

/// Returns the questions whose answers are times. Other fields come from the template.
fn times(template: &Question) -> [Question; 2] {
    use Language::C;
    let latency = Question {
        name: "latency",
        title: "Time from request to main of the process, by offered load",
        x_label: "requests a second",
        unit: Unit::LatencyUs,
        points: &[100, 500, 1000, 2000],
        quick_points: &[100, 500],
        setting: |_, _, x| key("interval", 1_000_000_000 / x),
        ..template.clone()
    };
    let wait = Question {
        name: "wait",
        title: "Time of one wait against live children",
        x_label: "live children",
        unit: Unit::WaitNs,
        effort: USUAL,
        points: &[1, 10, 100, 1000, 8000],
        quick_points: &[1, 100, 1000],
        contestants: vec![
            contestant("waitpid(pid)", C, "wait-pid", ""),
            contestant("waitid(P_PIDFD)", C, "wait-pidfd", ""),
            contestant("waitid(P_ALL)", C, "wait-any", ""),
        ],
        setting: |_, _, x| key("children", x),
    };
    [wait, latency]
}

/// Returns the questions of this file.
pub(crate) fn all() -> Vec<Question> {
    let processes = Question {
        name: "processes",
        title: "Spawn rate against number of processes",
        x_label: "processes",
        unit: Unit::Rate,
        effort: USUAL,
        points: &[1000, 5000, 25_000],
        quick_points: &[250, 1000],
        contestants: everyone(),
        setting: |_, _, x| Setting {
            args: vec![format!("count={x}"), "limit=60000".into()],
            ..Setting::default()
        },
    };
    let of = |name, title, x_label, points, quick_points, setting| Question {
        name,
        title,
        x_label,
        points,
        quick_points,
        setting,
        ..processes.clone()
    };
    let memory = of(
        "memory",
        "Spawn rate against resident memory of the parent",
        "MiB resident",
        &[0, 64, 256, 1024, 4096],
        &[0, 1024],
        |_, _, x| key("rss", x),
    );
    let threads = of(
        "threads",
        "Spawn rate against threads of the parent",
        "threads",
        &[1, 8, 64, 512],
        &[1, 512],
        |_, _, x| key("threads", x),
    );
    let mut parallel = of(
        "parallel",
        "Spawn rate against threads that spawn",
        "spawning threads",
        &[1, 2, 4, 8],
        &[1, 2, 4],
        |_, _, x| key("parallel", x),
    );
    parallel.contestants.truncate(5);
    let [wait, latency] = times(&processes);
    let [environment, path] = with_variants();
    vec![
        processes,
        memory,
        environment,
        threads,
        parallel,
        path,
        wait,
        latency,
    ]
}
