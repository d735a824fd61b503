//! The questions of the measurements that began this project, asked in the same way as there.
//!
//! Their figures and ours stand side by side in `docs/spawn.md`.

use super::contestants::{Contestant, Language, Programs, Setting};
use super::questions::{Question, Unit, contestant};

/// The numbers of children of [`Unit::WaitUs`]: every hundred.
const HUNDREDS: [u32; 80] = {
    let mut points = [100; 80];
    let mut index = 1;
    while index < points.len() {
        points[index] += points[index - 1];
        index += 1;
    }
    points
};

/// The arguments of a question that starts all processes before it waits for one of them.
fn creation(contestant: &Contestant, count: u32) -> Setting {
    // Ours has its default number of threads, the others have one.
    let parallel = u32::from(contestant.mechanism != "pool");
    Setting {
        args: vec![
            format!("count={count}"),
            format!("parallel={parallel}"),
            "after=1".into(),
            "program=/usr/bin/sleep".into(),
            "arg=0".into(),
        ],
        ..Setting::default()
    }
}

const OURS: Contestant = contestant("ours", Language::Rust, "pool", "");
const FORK: Contestant = contestant("C: fork", Language::C, "fork", "");
const VFORK: Contestant = contestant("C: vfork", Language::C, "vfork", "");
const POSIX: Contestant = contestant("C: posix_spawn", Language::C, "posix_spawn", "");
const STD: Contestant = contestant("std Command", Language::Rust, "command", "");
const PYTHON: Contestant = contestant("Python Popen", Language::Python, "plain", "");

fn every_language() -> Vec<Contestant> {
    use Language::{Cpp, Go, Java, Rust};
    vec![
        OURS,
        contestant("ours: single", Rust, "single", ""),
        FORK,
        VFORK,
        POSIX,
        contestant("C++: fork", Cpp, "fork", ""),
        contestant("C++: posix_spawn", Cpp, "posix_spawn", ""),
        PYTHON,
        contestant("Go os/exec", Go, "exec", ""),
        contestant("OpenJDK: posix_spawn", Java, "POSIX_SPAWN", ""),
        contestant("OpenJDK: vfork", Java, "VFORK", ""),
        STD,
        contestant("tokio Command", Rust, "tokio", ""),
    ]
}

/// Returns the questions whose contestants create all processes before they wait for one.
fn of_creation() -> Vec<Question> {
    let count = Question {
        name: "seeds-count",
        title: "A: `sleep 0`, all created before the first wait, by number of processes",
        x_label: "processes",
        unit: Unit::Creation,
        effort: [(1, 20_000), (1, 1500)],
        points: &[1000, 5000, 10_000, 25_000],
        quick_points: &[1000],
        contestants: every_language(),
        setting: |_, contestant, x| creation(contestant, x),
    };
    let shorter = Question {
        effort: [(1, 7000), (1, 1500)],
        ..count.clone()
    };
    let mut memory = Question {
        name: "seeds-memory",
        title: "A: 10 000 × `sleep 0`, by resident memory of the parent",
        x_label: "MiB resident",
        points: &[0, 1024, 5120],
        quick_points: &[0, 1024],
        setting: |_, contestant, x| {
            let mut setting = creation(contestant, 10_000);
            setting.args.push(format!("rss={x}"));
            let huge = contestant.variant == "huge";
            setting.args.extend(huge.then(|| "huge=1".into()));
            setting
        },
        ..shorter.clone()
    };
    let huge = contestant("C: fork, huge pages", Language::C, "fork", "huge");
    memory.contestants.insert(3, huge);
    let runtime = Question {
        name: "seeds-tokio",
        title: "A: 20 000 × `sleep 0` from tokio, by threads",
        x_label: "threads",
        points: &[1, 2, 4, 8, 16, 32, 64, 128],
        quick_points: &[1, 2],
        contestants: runtimes(),
        setting: runtime,
        ..shorter.clone()
    };
    let [environment, path] = of_commands(&shorter);
    vec![count, memory, environment, path, runtime]
}

/// Returns the questions about what is set on the command.
fn of_commands(template: &Question) -> [Question; 2] {
    let environment = Question {
        name: "seeds-environment",
        title: "A: 10 000 × `sleep 0`, by variables set on the command",
        x_label: "variables",
        points: &[50, 100, 150, 200, 250],
        quick_points: &[50, 250],
        contestants: vec![OURS, POSIX, PYTHON, STD],
        setting: |_, contestant, x| {
            let mut setting = creation(contestant, 10_000);
            setting
                .args
                .extend([format!("env={x}"), "envlen=16".into()]);
            setting
        },
        ..template.clone()
    };
    let path = Question {
        name: "seeds-path",
        title: "A: 10 000 × `sleep 0` by name, by entries of PATH",
        x_label: "entries of PATH",
        points: &[1, 14],
        quick_points: &[14],
        contestants: vec![
            contestant("ours, `/usr/bin/sleep`", Language::Rust, "pool", ""),
            contestant("ours, `sleep`", Language::Rust, "pool", "bare"),
            contestant(
                "C: posix_spawn, `/usr/bin/sleep`",
                Language::C,
                "posix_spawn",
                "",
            ),
            contestant(
                "C: posix_spawn, `sleep`",
                Language::C,
                "posix_spawn",
                "bare",
            ),
            contestant(
                "std Command, `/usr/bin/sleep`",
                Language::Rust,
                "command",
                "",
            ),
            contestant("std Command, `sleep`", Language::Rust, "command", "bare"),
        ],
        setting: path,
        ..template.clone()
    };
    [environment, path]
}

/// Sets `PATH` to `x` directories. Only the last one has the program.
fn path(programs: &Programs, contestant: &Contestant, x: u32) -> Setting {
    let mut setting = creation(contestant, 10_000);
    let empty = |index| {
        programs
            .dir
            .join(format!("path-{index}"))
            .display()
            .to_string()
    };
    let mut entries: Vec<String> = (1..x).map(empty).collect();
    entries.push("/usr/bin".into());
    setting.env = vec![("PATH".into(), entries.join(":"))];
    if contestant.variant == "bare" {
        setting.args.insert(0, "program=sleep".into());
        setting.args.retain(|arg| arg != "program=/usr/bin/sleep");
    }
    setting
}

fn runtimes() -> Vec<Contestant> {
    use Language::Rust;
    let of = |labels: [&'static str; 2], mechanism| {
        let plain = contestant(labels[0], Rust, mechanism, "");
        [plain, contestant(labels[1], Rust, mechanism, "set")]
    };
    [
        of(["ours", "ours, one variable"], "pool"),
        of(
            ["tokio: one thread", "tokio: one thread, one variable"],
            "tokio",
        ),
        of(
            [
                "tokio: spawn_blocking",
                "tokio: spawn_blocking, one variable",
            ],
            "tokio-blocking",
        ),
        of(
            ["tokio: threads", "tokio: threads, one variable"],
            "tokio-threads",
        ),
    ]
    .concat()
}

/// Ours and tokio's multi-thread runtime have `x` threads. The others have one, so they only take
/// part at 1.
fn runtime(_: &Programs, contestant: &Contestant, x: u32) -> Setting {
    /// The highest number of threads, if there are fewer CPUs.
    const LEAST: usize = 4;
    let mut setting = creation(contestant, 20_000);
    setting.args.retain(|arg| !arg.starts_with("parallel="));
    setting.args.push(format!("parallel={x}"));
    if contestant.variant == "set" {
        setting.args.extend(["env=1".into(), "envlen=1".into()]);
    }
    let most = std::thread::available_parallelism().map_or(LEAST, |n| n.get().max(LEAST));
    let one = matches!(contestant.mechanism, "tokio" | "tokio-blocking");
    let many = contestant.mechanism == "tokio-threads";
    setting.skip = x as usize > most || (one && x > 1) || (many && x == 1);
    setting
}

/// Returns the questions about waiting among other children.
fn of_waiting() -> [Question; 2] {
    use Language::{C, Rust};
    let among = Question {
        name: "seeds-among",
        title: "B: create one child and wait for it while others live",
        x_label: "other children",
        unit: Unit::ParentUs,
        effort: [(1, 0), (1, 0)],
        points: &[1, 10, 100, 500, 1000, 5000, 8000],
        quick_points: &[1, 1000],
        contestants: vec![
            contestant("C: fork, waitpid(pid)", C, "one-fork", ""),
            contestant("C: posix_spawn, waitpid(pid)", C, "one-posix_spawn", ""),
            contestant("C: fork, waitpid(-1)", C, "one-fork-any", ""),
            contestant("ours", Rust, "one", ""),
        ],
        setting: |_, _, x| Setting {
            args: vec![format!("children={x}"), "count=500".into()],
            ..Setting::default()
        },
    };
    let reverse = Question {
        name: "seeds-reverse",
        title: "B: wait for children in reverse order of creation, by children left",
        x_label: "children left",
        unit: Unit::WaitUs,
        points: &HUNDREDS,
        quick_points: HUNDREDS.split_at(20).0,
        contestants: vec![
            contestant("C: waitpid(pid), ended before", C, "reverse", ""),
            contestant("C: kill, waitpid(pid)", C, "reverse-kill", ""),
            contestant("ours: kill, Event::Exited", Rust, "reverse", ""),
        ],
        setting: |_, _, x| Setting {
            args: vec![format!("children={x}")],
            ..Setting::default()
        },
        ..among.clone()
    };
    [among, reverse]
}

/// Returns the questions whose processes are waited for one by one, by each thread that creates
/// them.
fn of_threads() -> [Question; 3] {
    let requesters = contestant(
        "ours, requested by threads",
        Language::Rust,
        "requesters",
        "",
    );
    let touch = Question {
        name: "seeds-touch",
        title: "D: 32 768 × `touch` of a file of its own, by threads that create processes",
        x_label: "threads",
        unit: Unit::CpuSeconds,
        effort: [(1, 7000), (1, 2000)],
        points: &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512],
        quick_points: &[1, 512],
        contestants: vec![requesters, FORK, VFORK],
        setting: |programs, _, x| {
            let mut setting = key_of("parallel", x, 32_768, "/usr/bin/touch");
            let dir = programs.dir.join("touched");
            setting.args.push(format!("dir={}", dir.display()));
            setting
        },
    };
    let python = Question {
        name: "seeds-python",
        title: "D: 10 000 × `true` from Python, by threads that create processes",
        points: &[64],
        quick_points: &[64],
        contestants: vec![
            requesters,
            PYTHON,
            contestant(
                "Python Popen, preexec_fn",
                Language::Python,
                "preexec_fn",
                "",
            ),
        ],
        setting: |_, _, x| key_of("parallel", x, 10_000, "/usr/bin/true"),
        ..touch.clone()
    };
    let mean = Question {
        name: "seeds-mean",
        title: "C: 10 000 × `true`, one after the other, by resident memory of the parent",
        x_label: "MiB resident",
        unit: Unit::MeanUs,
        points: &[0, 64, 512, 4096],
        quick_points: &[0, 512],
        contestants: vec![
            contestant("ours, a lane", Language::Rust, "pool", ""),
            contestant(
                "ours, one request at a time",
                Language::Rust,
                "requesters",
                "",
            ),
            FORK,
            VFORK,
            POSIX,
        ],
        setting: |_, _, x| {
            let mut setting = key_of("rss", x, 10_000, "/usr/bin/true");
            setting.args.push("parallel=1".into());
            setting
        },
        ..touch.clone()
    };
    [mean, touch, python]
}

fn key_of(name: &str, x: u32, count: u32, program: &str) -> Setting {
    Setting {
        args: vec![
            format!("{name}={x}"),
            format!("count={count}"),
            format!("program={program}"),
        ],
        ..Setting::default()
    }
}

/// Returns all questions of this group.
pub(super) fn all() -> Vec<Question> {
    let mut questions = of_creation();
    questions.extend(of_waiting());
    questions.extend(of_threads());
    questions
}
