//! The server's metrics as OpenMetrics text.
//!
//! [`read`] collects figures from the state on the core's thread. Its cost depends on the number of
//! workers and resources, never on the number of tasks or jobs. [`render`] is pure. The names are a
//! public interface, see `docs/metrics.md`. No label has more than [`LABEL_VALUES_MAX`] values.

use std::collections::BTreeMap;

use hq_core::job::JobState;
use hq_core::outcome::LostReason;
use hq_core::resource::amount::UNITS_PER_WHOLE;
use hq_core::server_state::{Ignored, JobTotals, TaskTotals, Totals};
use hq_core::task::TaskState;
use hq_core::time::Timestamp;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use crate::core_handle::View;
use crate::stats::Stats;

/// The maximum number of values per label. Further values are omitted, and `hq_hidden_resources`
/// counts them.
const LABEL_VALUES_MAX: usize = 32;

type Labels = Vec<(&'static str, String)>;

/// One resource summed over all connected workers, in units of 1/10 000.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ResourceFigures {
    pub(crate) total: u64,
    pub(crate) used: u64,
}

/// Figures from the state at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) now: Timestamp,
    pub(crate) totals: Totals,
    pub(crate) ready: u64,
    pub(crate) ignored: Ignored,
    pub(crate) connected: u64,
    /// The number of disconnected workers that are expected back.
    pub(crate) away: u64,
    pub(crate) lost: BTreeMap<&'static str, u64>,
    /// The number of tasks that were sent to workers ahead of time.
    pub(crate) backlog: u64,
    pub(crate) resources: BTreeMap<String, ResourceFigures>,
}

/// Reads the figures. O(connected workers).
pub(crate) fn read(view: &View<'_>) -> Figures {
    let state = view.state;
    let mut figures = Figures {
        now: view.now.wall,
        totals: *state.totals(),
        ready: state.ready_len(),
        ignored: state.ignored(),
        ..Figures::default()
    };
    for (reason, count) in state.ended_counts() {
        *figures.lost.entry(reason_label(*reason)).or_default() += count;
    }
    for worker in state.workers().values() {
        figures.connected += 1;
        figures.away += u64::from(worker.is_away());
        figures.backlog += worker.backlog_len() as u64;
        for (resource, total, free) in worker.units() {
            if total == 0 {
                continue;
            }
            let name = state.classes().resource_name(resource);
            if !figures.resources.contains_key(name) {
                figures
                    .resources
                    .insert(name.to_owned(), ResourceFigures::default());
            }
            if let Some(sum) = figures.resources.get_mut(name) {
                let free = u64::try_from(free).unwrap_or(0);
                sum.total = sum.total.saturating_add(total);
                sum.used = sum.used.saturating_add(total.saturating_sub(free));
            }
        }
    }
    figures
}

const fn reason_label(reason: LostReason) -> &'static str {
    match reason {
        LostReason::Stopped => "stopped",
        LostReason::ConnectionLost => "connection-lost",
        LostReason::AllocationEnded => "allocation-ended",
        LostReason::HeartbeatLost => "heartbeat-lost",
        LostReason::IdleTimeout => "idle-timeout",
        LostReason::TimeLimitReached => "time-limit",
    }
}

/// Figures that are not part of the state.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct ProcessFigures {
    /// The number of allocations by state.
    pub(crate) allocations: BTreeMap<&'static str, u64>,
    /// The number of allocation queues, active and paused.
    pub(crate) queues: BTreeMap<&'static str, u64>,
    /// The number of events that wait for the core's thread.
    pub(crate) events_waiting: u64,
    /// The size of the store's file and its log in bytes.
    pub(crate) store_bytes: u64,
    /// The memory of the process in bytes.
    pub(crate) resident_bytes: u64,
    /// When the server started, in seconds since 1970.
    pub(crate) start_unix_s: i64,
    /// The version of this program.
    pub(crate) version: String,
}

/// Returns all metrics as OpenMetrics text.
pub(crate) fn render(figures: &Figures, around: &ProcessFigures, stats: &Stats) -> String {
    let mut registry = Registry::with_prefix("hq");
    add_work(&mut registry, figures);
    add_workers(&mut registry, figures);
    add_server(&mut registry, figures, around, stats);
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = encode(&mut text, &registry);
    text
}

fn add_work(registry: &mut Registry, figures: &Figures) {
    let totals = &figures.totals;
    let tasks = by_label("state", task_states(totals.tasks));
    registry.register("tasks", "Tasks of known jobs by state", tasks);
    let jobs = by_label("state", job_states(totals.jobs));
    registry.register("jobs", "Known jobs by state", jobs);
    let ended = count_by_label("state", task_states(totals.ended).into_iter().skip(2));
    let help = "Tasks that ended since the server started, by how they ended";
    registry.register("tasks_ended", help, ended);
    let help = "Instances started since the server started";
    registry.register("instances_started", help, count(totals.started));
    let help = "Failed or lost instances that were followed by another one";
    registry.register("instances_superseded", help, count(totals.superseded));
    let help = "CPU seconds of instances that were lost because the lifetime of their worker ended";
    let cut_off = count(totals.cut_off.as_secs());
    registry.register("cut_off_cpu_seconds", help, cut_off);
    let help = "Tasks that could run if a worker had free resources";
    registry.register("tasks_ready", help, gauge(figures.ready));
    let help = "Tasks that were sent to workers ahead of time";
    registry.register("tasks_backlog", help, gauge(figures.backlog));
}

fn add_workers(registry: &mut Registry, figures: &Figures) {
    let states = [
        ("connected", figures.connected.saturating_sub(figures.away)),
        ("away", figures.away),
    ];
    let help = "Workers that are connected, or away and expected back";
    registry.register("workers", help, by_label("state", states));
    let lost = figures.lost.iter().map(|(reason, count)| (*reason, *count));
    let help = "Workers that are gone, by reason";
    registry.register("workers_lost", help, count_by_label("reason", lost));
    let (total, used) = (
        Family::<Labels, Gauge<f64, std::sync::atomic::AtomicU64>>::default(),
        Family::<Labels, Gauge<f64, std::sync::atomic::AtomicU64>>::default(),
    );
    for (name, sum) in figures.resources.iter().take(LABEL_VALUES_MAX) {
        let labels = vec![("resource", name.clone())];
        total.get_or_create(&labels).set(whole(sum.total));
        used.get_or_create(&labels).set(whole(sum.used));
    }
    let help = "Amount of a resource that connected workers offer";
    registry.register("resource_offered", help, total);
    let help = "Amount of a resource that tasks hold";
    registry.register("resource_used", help, used);
    let hidden = figures.resources.len().saturating_sub(LABEL_VALUES_MAX);
    let help = "Resources left out because of too many names";
    registry.register("hidden_resources", help, gauge(hidden as u64));
}

fn add_server(registry: &mut Registry, figures: &Figures, around: &ProcessFigures, stats: &Stats) {
    let mut time = |name: &str, help: &str, histogram| {
        registry.register_with_unit(name, help, Unit::Seconds, histogram);
    };
    let help = "Time of the core's thread for one batch of inputs";
    time("core_batch", help, stats.batches.0.clone());
    let help = "Time for one round of scheduling";
    time("scheduling_round", help, stats.rounds.0.clone());
    let help = "Time from a change of state until it is on disk";
    time("store_commit", help, stats.commits.0.clone());
    let help = "Inputs that wait for the core's thread";
    registry.register("core_queue_length", help, gauge(around.events_waiting));
    let size = gauge(around.store_bytes);
    registry.register_with_unit("store_size", "Size of the store", Unit::Bytes, size);
    let size = gauge(around.resident_bytes);
    let help = "Memory of the server's process";
    registry.register_with_unit("server_resident_memory", help, Unit::Bytes, size);
    let start: Gauge = Gauge::default();
    start.set(around.start_unix_s);
    let help = "When the server started, since 1970";
    registry.register_with_unit("server_start_time", help, Unit::Seconds, start);
    let info = Family::<Labels, Gauge>::default();
    info.get_or_create(&vec![("version", around.version.clone())])
        .set(1);
    registry.register("server_build", "Version of the server; always 1", info);
    let pairs = around
        .allocations
        .iter()
        .map(|(state, count)| (*state, *count));
    let help = "Allocations of batch systems by state";
    registry.register("allocations", help, by_label("state", pairs));
    let pairs = around.queues.iter().map(|(state, count)| (*state, *count));
    let help = "Queues of automatic allocation by state";
    registry.register("allocation_queues", help, by_label("state", pairs));
    add_connections(registry, stats);
    let ignored = [
        ("stale", figures.ignored.stale_rows),
        ("unknown-worker", figures.ignored.unknown_workers),
    ];
    let help = "Contradictions that the server detected in its own state; each is a bug";
    registry.register("internal_errors", help, count(hq_core::bug::count()));
    let help = "Messages of workers that were ignored, by reason";
    registry.register("messages_ignored", help, count_by_label("reason", ignored));
}

fn add_connections(registry: &mut Registry, stats: &Stats) {
    let planes = [("client", &stats.clients), ("worker", &stats.workers)];
    let open = Family::<Labels, Gauge>::default();
    for (plane, stats) in planes {
        open.get_or_create(&vec![("plane", plane.to_owned())])
            .set(stats.open.get());
    }
    registry.register("connections", "Open connections", open);
    let accepted = planes.map(|(plane, stats)| (plane, stats.accepted.get()));
    let help = "Connections that were accepted";
    registry.register(
        "connections_accepted",
        help,
        count_by_label("plane", accepted),
    );
    let refused = planes.map(|(plane, stats)| (plane, stats.refused.get()));
    let help = "Connections that were refused: wrong key, wrong version, no handshake";
    registry.register(
        "connections_refused",
        help,
        count_by_label("plane", refused),
    );
    let help = "Peers disconnected because they did not read their messages";
    registry.register("connections_cut_off", help, stats.cut_off.clone());
    let help = "HTTP requests with the token";
    registry.register("http_requests", help, stats.http_requests.clone());
    let help = "HTTP requests without the token";
    registry.register("http_requests_refused", help, stats.http_refused.clone());
}

fn task_states(mut totals: TaskTotals) -> [(&'static str, u64); TaskState::ALL.len()] {
    TaskState::ALL.map(|state| (state.name(), *totals.of(state)))
}

fn job_states(totals: JobTotals) -> [(&'static str, u64); JobState::ALL.len()] {
    JobState::ALL.map(|state| (state.name(), totals.of(state)))
}

fn gauge(value: u64) -> Gauge {
    let gauge = Gauge::default();
    gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
    gauge
}

fn count(value: u64) -> Counter {
    let counter = Counter::default();
    counter.inc_by(value);
    counter
}

fn by_label(
    label: &'static str,
    values: impl IntoIterator<Item = (&'static str, u64)>,
) -> Family<Labels, Gauge> {
    let family = Family::<Labels, Gauge>::default();
    for (name, value) in values.into_iter().take(LABEL_VALUES_MAX) {
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        family
            .get_or_create(&vec![(label, name.to_owned())])
            .set(value);
    }
    family
}

fn count_by_label(
    label: &'static str,
    values: impl IntoIterator<Item = (&'static str, u64)>,
) -> Family<Labels, Counter> {
    let family = Family::<Labels, Counter>::default();
    for (name, value) in values.into_iter().take(LABEL_VALUES_MAX) {
        family
            .get_or_create(&vec![(label, name.to_owned())])
            .inc_by(value);
    }
    family
}

#[expect(
    clippy::cast_precision_loss,
    reason = "amounts are far below 2^53 units"
)]
fn whole(units: u64) -> f64 {
    units as f64 / UNITS_PER_WHOLE as f64
}

/// Converts to the older text format of Prometheus, in which a counter's family has the same name
/// as its samples and units are not declared.
pub(crate) fn as_classic(text: &str) -> String {
    let mut counters = std::collections::BTreeSet::new();
    for line in text.lines() {
        if let Some(name) = line
            .strip_prefix("# TYPE ")
            .and_then(|rest| rest.strip_suffix(" counter"))
        {
            counters.insert(name);
        }
    }
    let mut classic = String::with_capacity(text.len());
    for line in text.lines() {
        if line == "# EOF" || line.starts_with("# UNIT ") {
            continue;
        }
        let mut words = line.splitn(4, ' ');
        let head = (words.next(), words.next(), words.next(), words.next());
        match head {
            (Some("#"), Some(kind @ ("HELP" | "TYPE")), Some(name), Some(rest))
                if counters.contains(name) =>
            {
                classic.push_str(&format!("# {kind} {name}_total {rest}\n"));
            }
            _ => {
                classic.push_str(line);
                classic.push('\n');
            }
        }
    }
    classic
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (Figures, ProcessFigures, Stats) {
        let mut figures = Figures::default();
        figures.totals.tasks.waiting = 999_990;
        figures.totals.tasks.finished = 10;
        figures.totals.ended.finished = 7;
        figures.connected = 3;
        figures.away = 1;
        figures.lost.insert("stopped", 2);
        let cpus = ResourceFigures {
            total: 80_000,
            used: 25_000,
        };
        figures.resources.insert("cpus".to_owned(), cpus);
        let around = ProcessFigures {
            version: "v\"1".to_owned(),
            ..ProcessFigures::default()
        };
        let stats = Stats::new();
        stats.rounds.observe(std::time::Duration::from_micros(20));
        (figures, around, stats)
    }

    fn shows(text: &str, line: &str) {
        assert!(
            text.lines().any(|shown| shown == line),
            "no `{line}` in:\n{text}"
        );
    }

    #[test]
    fn shows_figures_by_state_and_resource() {
        let (figures, around, stats) = sample();
        let text = render(&figures, &around, &stats);
        for line in [
            "hq_tasks{state=\"waiting\"} 999990",
            "hq_tasks_ended_total{state=\"finished\"} 7",
            "hq_workers{state=\"connected\"} 2",
            "hq_workers_lost_total{reason=\"stopped\"} 2",
            "hq_resource_offered{resource=\"cpus\"} 8.0",
            "hq_resource_used{resource=\"cpus\"} 2.5",
            "hq_scheduling_round_seconds_count 1",
            "hq_server_build{version=\"v\\\"1\"} 1",
            "# EOF",
        ] {
            shows(&text, line);
        }
        let ends =
            |state: &str| text.contains(&format!("hq_tasks_ended_total{{state=\"{state}\"}}"));
        assert!(!ends("waiting") && !ends("running") && ends("aborted"));
    }

    #[test]
    fn the_number_of_lines_does_not_grow_with_names() {
        let (mut figures, around, stats) = sample();
        for number in 0..1_000 {
            let item = ResourceFigures { total: 1, used: 0 };
            figures.resources.insert(format!("r{number}"), item);
        }
        let text = render(&figures, &around, &stats);
        assert_eq!(
            text.matches("hq_resource_offered{").count(),
            LABEL_VALUES_MAX
        );
        shows(&text, "hq_hidden_resources 969");
    }

    #[test]
    fn the_classic_text_names_counters_as_their_samples() {
        let (figures, around, stats) = sample();
        let text = as_classic(&render(&figures, &around, &stats));
        shows(&text, "# TYPE hq_tasks_ended_total counter");
        shows(&text, "# TYPE hq_tasks gauge");
        assert!(!text.contains("# EOF") && !text.contains("# UNIT"));
        let families = |text: &str, word: &str| -> Vec<String> {
            let lines = text.lines().filter_map(|line| line.strip_prefix(word));
            lines
                .filter_map(|rest| Some(rest.split_once(' ')?.0.to_owned()))
                .collect()
        };
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap_or_default();
            let bare = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|end| name.strip_suffix(end));
            let types = families(&text, "# TYPE ");
            let known = |name: &str| types.iter().any(|known| known == name);
            assert!(known(name) || bare.is_some_and(known), "{name} has no type");
        }
        assert_eq!(families(&text, "# TYPE "), families(&text, "# HELP "));
    }
}
