//! Writes the page. All functions are pure, and [`escape`] processes every text of a user.

use std::fmt::Write as _;

use super::gather::float;
use super::svg::{self, short};
use super::{Costs, Failures, JobFigures, Report, SlowTask, Totals, WorkerLife};
use crate::output::format::run_time;
use crate::output::format::{file_size, local_time, peak_memory, zone};
use crate::text::is_hidden;
use hq_core::curve::{Curve, GpuCurve};
use hq_core::diagnosis::{Severity, Subject};
use hq_core::words::number;
use hq_store::reader::RUN_BOUNDS;

/// If a worker is idle for more than this share of its lifetime, the page shows a hint.
const IDLE_HINT: f64 = 0.5;
/// If the peak use of requested memory is below this share, the page shows a hint.
const MEMORY_HINT: f64 = 0.5;
/// The maximum number of findings, because a hundred thousand jobs may wait for the same node.
const FINDINGS_MAX: usize = 100;
/// The number of workers whose lines can be counted at a glance.
const LANES_FEW: usize = 20;
/// The maximum number of workers that are drawn.
const LANES_MAX: usize = 400;

const STYLE: &str = "\
:root{color-scheme:light dark;--bar:#2f7ed8;--soft:#2f7ed855;--bad:#c0392b;--line:#8885}\
body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.5rem}.lead{font-size:1.15rem}a{color:inherit}code{font:12.5px/1.5 ui-monospace,monospace;overflow-wrap:anywhere}h2{font-size:1.15rem;margin-top:2.2rem;border-bottom:1px solid var(--line)}\
table{border-collapse:collapse;width:100%;font-size:.9rem}th,td{text-align:left;padding:.25rem .6rem;\
border-bottom:1px solid var(--line)}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}\
svg{width:100%;height:auto}svg.small{width:auto;max-width:100%}svg text{font:11px system-ui,sans-serif;fill:currentColor}\
.end{text-anchor:end}.area{fill:var(--soft);stroke:var(--bar)}.limit{fill:none;stroke:currentColor;stroke-dasharray:4 3}\
.bar{fill:var(--bar)}.bad{color:var(--bad);font-weight:600}.figures{display:flex;flex-wrap:wrap;gap:.8rem 1.5rem;font-size:.85rem}\
.figures div{min-width:4rem}.figures b{display:block;font-size:1.5rem}.wide{overflow-x:auto}td.n,th.n,.figures b{white-space:nowrap}\
.findings{list-style:none;padding:0}.findings li{margin:.4rem 0;padding:.3rem .8rem;border-left:4px solid #d08a1d;background:#d08a1d1c}\
.findings .error{border-color:var(--bad);background:#c0392b1c}\
.share{width:45%}.cost{height:.9rem;min-width:1px;background:var(--bar)}.lost{background:var(--bad)}.idle{background:var(--line)}";

/// Escapes text so that it contains no markup.
pub(crate) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            // Such a character would change the direction of adjacent text.
            c if is_hidden(c) && !matches!(c, '\n' | '\t') => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

/// Returns the whole page.
pub(crate) fn render(report: &Report) -> String {
    let (from, to) = (local_time(report.from_ns), local_time(report.to_ns));
    let zone = zone(report.to_ns);
    let begin = escape(&format!("{from} {zone}"));
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <title>hq: run of {begin}</title><style>{STYLE}</style></head><body><h1>Run of {begin}</h1>\
         <p class=\"lead\">{}</p><p>From {from} to {to}, {}. Journal: {}.</p>",
        escape(&summary(report)),
        escape(&zone),
        escape(&report.journal),
    );
    add_figures(&mut page, report);
    add_findings(&mut page, report);
    add_failures(&mut page, report);
    add_costs(&mut page, report);
    add_hints(&mut page, report);
    add_timeline(&mut page, report);
    add_jobs(&mut page, report);
    add_slowest(&mut page, report);
    add_workers(&mut page, report);
    page.push_str("</body></html>\n");
    page
}

/// Summarizes the run in one sentence: `1 390 tasks finished and 22 failed; 64 % of 0.59 core-hours
/// were used, 0.02 of them wasted, mostly by job 11 (train): no space left on device.`
fn summary(report: &Report) -> String {
    let Totals {
        finished, failed, ..
    } = report.totals;
    let tasks = |count: u64| if count == 1 { "task" } else { "tasks" };
    let mut text = format!("{} {} finished", number(finished), tasks(finished));
    if failed > 0 {
        let _ = write!(text, " and {} failed", number(failed));
    }
    let offered = offered(&report.workers);
    if offered <= 0.0 {
        text.push_str("; no worker was there.");
        return text;
    }
    let costs = &report.costs;
    let _ = write!(
        text,
        "; {:.0} % of {} core-hours were used",
        100.0 * costs.used() / offered,
        core_hours(offered)
    );
    if costs.wasted() > 0.0 {
        let _ = write!(text, ", {} of them wasted", core_hours(costs.wasted()));
        text.push_str(&mostly(report));
    }
    text.push('.');
    text
}

/// Describes the main cause of waste.
fn mostly(report: &Report) -> String {
    let Costs {
        failed,
        dropped,
        repeated,
        ..
    } = report.costs;
    if dropped > failed.max(repeated) {
        return ", mostly by tasks that were canceled or given up".to_owned();
    }
    if repeated > failed {
        return ", mostly by attempts that were repeated".to_owned();
    }
    let most = report.jobs.iter().filter(|job| job.failed_core_s > 0.0);
    let most = most.max_by(|a, b| a.failed_core_s.total_cmp(&b.failed_core_s));
    most.map_or_else(String::new, |job| {
        let why = failure_of(report, job.id).map_or_else(String::new, |row| {
            // An exit code explains little. Other errors are themselves the cause.
            let said = row.said.as_deref();
            let said = said.filter(|_| row.error.starts_with("exit code"));
            format!(": {}", said.unwrap_or(&row.error))
        });
        format!(", mostly by job {} ({}){why}", job.id, job.name)
    })
}

/// Returns the most frequent failure of a job.
fn failure_of(report: &Report, job: u32) -> Option<&Failures> {
    report.failures.iter().find(|row| row.job == job)
}

/// Formats core-seconds as core-hours. A value above zero is never shown as 0.
fn core_hours(core_s: f64) -> String {
    let hours = core_s / 3600.0;
    if hours > 0.0 && hours < 0.005 {
        "< 0.01".to_owned()
    } else {
        short(hours)
    }
}

fn offered(workers: &[WorkerLife]) -> f64 {
    workers
        .iter()
        .map(|worker| worker.cores * life_s(worker))
        .sum()
}

fn life_s(worker: &WorkerLife) -> f64 {
    float((worker.to_ns - worker.from_ns).max(0).unsigned_abs()) / 1e9
}

fn add_figures(page: &mut String, report: &Report) {
    let Totals {
        jobs,
        finished,
        failed,
    } = report.totals;
    let (used, wasted) = (report.costs.used(), report.costs.wasted());
    let offered = offered(&report.workers);
    let used_share = if offered > 0.0 {
        format!("{:.0} %", 100.0 * used / offered)
    } else {
        "–".to_owned()
    };
    let rows = [
        ("jobs", number(jobs)),
        ("tasks finished", number(finished)),
        ("tasks failed", number(failed)),
        ("core-hours used", core_hours(used)),
        ("core-hours wasted", core_hours(wasted)),
        ("core-hours idle", core_hours((offered - used).max(0.0))),
        ("core-hours offered", core_hours(offered)),
        ("of the cores were used", used_share),
    ];
    page.push_str("<div class=\"figures\">");
    for (name, value) in rows {
        let class = if name == "tasks failed" && failed > 0 {
            " class=\"bad\""
        } else {
            ""
        };
        let _ = write!(page, "<div{class}><b>{}</b>{name}</div>", escape(&value));
    }
    page.push_str("</div>");
}

/// Adds bars that show how the time of the cores was used.
fn add_costs(page: &mut String, report: &Report) {
    let costs = &report.costs;
    let offered = offered(&report.workers).max(costs.used());
    if offered <= 0.0 {
        return;
    }
    let rows = [
        ("finished tasks", costs.finished, ""),
        ("failed tasks", costs.failed, " lost"),
        (
            "tasks that were canceled or given up",
            costs.dropped,
            " lost",
        ),
        ("attempts that were repeated", costs.repeated, " lost"),
        ("tasks that still ran", costs.running, ""),
        ("idle", offered - costs.used(), " idle"),
    ];
    page.push_str(
        "<h2>Where the core-hours went</h2><div class=\"wide\"><table><tr><th>To<th class=\"n\">Core-hours\
         <th class=\"n\">Share<th class=\"share\"></tr>",
    );
    for (name, core_s, class) in rows.into_iter().filter(|(_, core_s, _)| *core_s > 0.0) {
        let percent = 100.0 * core_s / offered;
        let _ = write!(
            page,
            "<tr><td>{name}<td class=\"n\">{}<td class=\"n\">{percent:.1} %<td class=\"share\">\
             <div class=\"cost{class}\" style=\"width:{percent:.1}%\"></div></tr>",
            escape(&core_hours(core_s))
        );
    }
    page.push_str("</table></div>");
}

fn add_findings(page: &mut String, report: &Report) {
    if report.findings.is_empty() {
        return;
    }
    page.push_str("<h2>What went wrong</h2><ul class=\"findings\">");
    for finding in report.findings.iter().take(FINDINGS_MAX) {
        let class = match finding.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        let text = escape(&finding.to_string());
        let _ = write!(page, "<li class=\"{class}\">{text}.");
        if let Subject::FailingJob(job) | Subject::FailedTasks(job) = finding.subject
            && let Some(row) = failure_of(report, job)
        {
            add_example(page, row);
        }
        page.push_str("</li>");
    }
    page.push_str("</ul>");
    let more = report.findings.len().saturating_sub(FINDINGS_MAX);
    if more > 0 {
        let more = number(more as u64);
        let _ = write!(page, "<p>And {more} more, none of them worse.</p>");
    }
}

/// Adds a failed task with its parameters and its last words.
fn add_example(page: &mut String, row: &Failures) {
    if row.said.is_none() && row.params.is_empty() {
        return;
    }
    let _ = write!(page, "<br>Task {}", row.task);
    if !row.params.is_empty() {
        let _ = write!(page, " with <b>{}</b>", escape(&row.params));
    }
    match &row.said {
        Some(said) => {
            let _ = write!(page, " wrote last: <code>{}</code>", escape(said));
        }
        None => page.push_str(" wrote nothing that is still here."),
    }
}

/// Returns a job as a link to its row in the table of jobs.
fn job_link(report: &Report, job: u32) -> String {
    if report.jobs.iter().any(|known| known.id == job) {
        format!("<a href=\"#job-{job}\">{job}</a>")
    } else {
        job.to_string()
    }
}

/// Describes savings that were possible.
pub(crate) fn hints(report: &Report) -> Vec<String> {
    let mut hints = Vec::new();
    let is_idle = |worker: &&WorkerLife| {
        let offered = worker.cores * life_s(worker);
        offered > 0.0 && 1.0 - worker.used_core_s / offered > IDLE_HINT
    };
    let idle: Vec<&WorkerLife> = report.workers.iter().filter(is_idle).collect();
    let hours: f64 = idle
        .iter()
        .map(|worker| worker.cores * life_s(worker) - worker.used_core_s)
        .sum::<f64>()
        / 3600.0;
    if !idle.is_empty() {
        hints.push(format!(
            "{} of {} workers were idle for more than half of their life: {} core-hours. \
             Fewer workers, or a shorter --idle-timeout, would have sufficed.",
            idle.len(),
            report.workers.len(),
            short(hours)
        ));
    }
    for job in &report.jobs {
        let (asked, used) = (job.memory_asked, job.memory_used);
        if used > 0 && float(used) < MEMORY_HINT * float(asked) {
            hints.push(format!(
                "Tasks of job {} asked for {} of memory and used at most {}: with a smaller request, more of them fit on a node.",
                job.id,
                file_size(asked),
                file_size(used)
            ));
        }
        let all = job.finished + job.failed;
        if all >= 1_000 && job.run_us[0] < 100_000 {
            hints.push(format!(
                "Half of the {all} tasks of job {} took less than {}: batch several into one task to reduce the overhead.",
                job.id,
                run_time(job.run_us[0].max(1))
            ));
        }
    }
    hints
}

fn add_hints(page: &mut String, report: &Report) {
    let hints = hints(report);
    if hints.is_empty() {
        return;
    }
    page.push_str("<h2>Hints</h2><ul>");
    for hint in hints {
        let _ = write!(page, "<li>{}</li>", escape(&hint));
    }
    page.push_str("</ul>");
}

fn add_timeline(page: &mut String, report: &Report) {
    let (from, to) = (local_time(report.from_ns), local_time(report.to_ns));
    let series = |of: fn(&super::Step) -> f64| report.steps.iter().map(of).collect::<Vec<f64>>();
    let mut chart = |title: &str, values: &[f64], limit: &[f64]| {
        if !values.iter().any(|value| *value > 0.0) {
            return;
        }
        let _ = write!(
            page,
            "<h2>{}</h2>{}",
            escape(title),
            svg::area(values, limit, (&from, &to))
        );
    };
    chart("Running tasks", &series(|step| step.running), &[]);
    chart(
        "Cores used, and offered (dashed)",
        &series(|step| step.cores_used),
        &series(|step| step.cores),
    );
    for (name, values, _) in &report.resources {
        chart(&format!("{name} reserved by tasks"), values, &[]);
    }
    // With few workers, the lines below show the same information.
    if report.workers.len() > LANES_FEW {
        chart("Connected workers", &series(|step| step.workers), &[]);
    }
}

fn add_failures(page: &mut String, report: &Report) {
    if report.failures.is_empty() {
        return;
    }
    page.push_str(
        "<h2>Failures by reason and host</h2><div class=\"wide\"><table><tr><th class=\"n\">Tasks<th class=\"n\">Job<th>Reason\
         <th>For example<th>Wrote last<th>Host</tr>",
    );
    for row in &report.failures {
        let mut example = format!("task {}", row.task);
        if !row.params.is_empty() {
            let _ = write!(example, ": {}", row.params);
        }
        let _ = write!(
            page,
            "<tr><td class=\"n\">{}<td class=\"n\">{}<td>{}<td>{}<td>{}<td>{}</tr>",
            number(row.count),
            job_link(report, row.job),
            escape(&row.error),
            escape(&example),
            escape(row.said.as_deref().unwrap_or_default()),
            escape(&row.host)
        );
    }
    page.push_str("</table></div>");
}

fn add_jobs(page: &mut String, report: &Report) {
    page.push_str(
        "<h2>Jobs</h2><div class=\"wide\"><table><tr><th class=\"n\">Job<th>Name<th class=\"n\">Tasks<th class=\"n\">Finished\
         <th class=\"n\">Failed<th class=\"n\">Core-hours<th class=\"n\">Median<th class=\"n\">90 %<th class=\"n\">99 %\
         <th class=\"n\">Longest<th>Run times<th class=\"n\">Peak memory</tr>",
    );
    for job in &report.jobs {
        let bad = if job.failed > 0 { " bad" } else { "" };
        let _ = write!(
            page,
            "<tr id=\"job-{id}\"><td class=\"n\">{id}<td>{}<td class=\"n\">{}<td class=\"n\">{}<td class=\"n{bad}\">{}<td class=\"n\">{}",
            escape(&job.name),
            number(job.task_count),
            number(job.finished),
            number(job.failed),
            escape(&core_hours(job.core_s)),
            id = job.id,
        );
        for us in job.run_us {
            let text = if job.finished + job.failed > 0 {
                run_time(us)
            } else {
                String::new()
            };
            let _ = write!(page, "<td class=\"n\">{text}");
        }
        let memory = if job.memory_used > 0 {
            escape(&peak_memory(job.memory_used))
        } else {
            String::new()
        };
        let _ = write!(page, "<td>{}<td class=\"n\">{memory}</tr>", run_times(job));
    }
    page.push_str("</table></div>");
    let more = report.totals.jobs.saturating_sub(report.jobs.len() as u64);
    if more > 0 {
        let more = number(more);
        let _ = write!(page, "<p>{more} more jobs took less time than these.</p>");
    }
}

/// Returns a histogram of run times, from the shortest to the longest. Empty if all are equal.
fn run_times(job: &JobFigures) -> String {
    let labels = RUN_BOUNDS
        .iter()
        .map(|bound| format!("up to {}", run_time(*bound)));
    let labels = labels.chain([String::from("longer")]);
    let bins: Vec<(String, u64)> = labels
        .map(|label| escape(&label.replace(".0", "")))
        .zip(job.run_times.iter().copied())
        .collect();
    let used = |(_, count): &(String, u64)| *count > 0;
    match (bins.iter().position(used), bins.iter().rposition(used)) {
        (Some(first), Some(last)) if first < last => {
            svg::bars(bins.get(first..=last).unwrap_or_default())
        }
        (_, _) => String::new(),
    }
}

fn add_slowest(page: &mut String, report: &Report) {
    if report.slowest.is_empty() {
        return;
    }
    page.push_str("<h2>Slowest tasks</h2><div class=\"wide\"><table><tr><th class=\"n\">Job<th class=\"n\">Task<th class=\"n\">Took<th>Host<th>End");
    // Workers of earlier releases do not record curves.
    let has_curves = report.slowest.iter().any(|task| task.curve.is_some());
    let has_gpus = report.slowest.iter().any(|task| gpu_of(task).is_some());
    if has_curves {
        page.push_str("<th>Memory over time<th>Cores over time");
    }
    if has_gpus {
        page.push_str("<th>GPUs over time<th>GPU memory over time");
    }
    page.push_str("</tr>");
    for task in &report.slowest {
        let end = if task.is_failed {
            "<td class=\"bad\">failed"
        } else {
            "<td>finished"
        };
        let _ = write!(
            page,
            "<tr><td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{}<td>{}{end}",
            job_link(report, task.job),
            task.task,
            run_time(task.run_us),
            escape(&task.host)
        );
        match &task.curve {
            Some(curve) => add_curve(page, curve),
            None if has_curves => page.push_str("<td>–<td>–"),
            None => {}
        }
        match gpu_of(task) {
            Some(curve) => add_gpu_curve(page, curve),
            None if has_gpus => page.push_str("<td>–<td>–"),
            None => {}
        }
        page.push_str("</tr>");
    }
    page.push_str("</table></div>");
}

fn gpu_of(task: &SlowTask) -> Option<&GpuCurve> {
    task.curve.as_ref()?.gpu.as_deref()
}

/// Adds two cells with the busy GPUs and their memory over time. Gaps remain empty.
fn add_gpu_curve(page: &mut String, curve: &GpuCurve) {
    const OTHERS: &str = ", others included";
    let given = curve.given;
    let number = |value: Option<u64>| float(value.unwrap_or(0));
    let busy: Vec<f64> = curve
        .points()
        .map(|point| number(point.busy_milli) / 1e3)
        .collect();
    let memory: Vec<f64> = curve
        .points()
        .map(|point| number(point.memory_kib))
        .collect();
    let asked = float(given.units) / 1e4;
    let busy_words = match curve.busy_mean_milli() {
        Some(mean) => format!(
            "{} on average of {}{}",
            short(float(mean) / 1e3),
            short(asked),
            if given.is_shared() { OTHERS } else { "" }
        ),
        None => "not known".to_owned(),
    };
    let size = |kib: u64| file_size(kib.saturating_mul(1024));
    let mut memory_words = format!("up to {}", size(curve.memory_peak_kib));
    if given.memory_kib > 0 {
        let _ = write!(memory_words, " of {}", size(given.memory_kib));
    }
    if given.is_memory_of_devices {
        memory_words.push_str(OTHERS);
    }
    if !curve.is_memory_known() {
        "not known".clone_into(&mut memory_words);
    }
    let total = (given.memory_kib > 0).then(|| float(given.memory_kib));
    let _ = write!(
        page,
        "<td>{}<br>{busy_words}<td>{}<br>{memory_words}",
        svg::spark(&busy, Some(asked), "GPUs over time"),
        svg::spark(&memory, total, "GPU memory over time"),
    );
}

/// Adds two cells with memory and cores over time, and the requests.
fn add_curve(page: &mut String, curve: &Curve) {
    let asked = curve.asked;
    let size = |kib: u64| file_size(kib.saturating_mul(1024));
    let cores = |milli: u64| short(float(milli) / 1e3);
    let memory: Vec<f64> = curve
        .points()
        .map(|point| float(point.memory_kib))
        .collect();
    let cpus: Vec<f64> = curve
        .points()
        .map(|point| float(point.cpu_milli) / 1e3)
        .collect();
    let memory_asked = (asked.memory_kib > 0).then(|| float(asked.memory_kib));
    let cpus_asked = (asked.cpu_units > 0).then(|| float(asked.cpu_units) / 1e4);
    let of = |words: Option<String>| words.map_or_else(String::new, |words| format!(" of {words}"));
    let memory_words = format!(
        "up to {}{}",
        size(curve.memory_peak_kib),
        of(memory_asked.map(|_| size(asked.memory_kib)))
    );
    let cpu_words = format!(
        "{} on average{}",
        cores(curve.cpu_mean_milli()),
        of(cpus_asked.map(short))
    );
    let _ = write!(
        page,
        "<td>{}<br>{memory_words}<td>{}<br>{cpu_words}",
        svg::spark(&memory, memory_asked, "memory over time"),
        svg::spark(&cpus, cpus_asked, "cores over time"),
    );
}

fn add_workers(page: &mut String, report: &Report) {
    let whole = float((report.to_ns - report.from_ns).max(1).unsigned_abs());
    let part = |at: i64| float((at - report.from_ns).max(0).unsigned_abs()) / whole;
    let spans: Vec<(f64, f64, String)> = report
        .workers
        .iter()
        .take(LANES_MAX)
        .map(|worker| {
            let offered = worker.cores * life_s(worker);
            let percent = if offered > 0.0 {
                100.0 * worker.used_core_s / offered
            } else {
                0.0
            };
            let reason = worker.reason.as_deref().unwrap_or("connected");
            let text = format!(
                "worker {} on {}: {} cores, {percent:.0} % used, {reason}",
                worker.id,
                worker.host,
                short(worker.cores)
            );
            (part(worker.from_ns), part(worker.to_ns), escape(&text))
        })
        .collect();
    let _ = write!(
        page,
        "<h2>Workers</h2><p>{} in all; a line each, for as long as it was connected.</p>{}",
        report.workers.len(),
        svg::lanes(&spans)
    );
}

#[cfg(test)]
mod tests;
