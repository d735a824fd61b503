//! The page: pure. Every text of a user goes through [`escape`].

use std::fmt::Write as _;

use super::gather::float;
use super::svg::{self, short};
use super::{Report, SlowTask, Totals, WorkerLife};
use crate::dashboard::view::run_time;
use crate::output::format::{file_size, local_seconds, peak_memory, zone};
use crate::text::is_hidden;
use hq_core::curve::{Curve, GpuCurve};
use hq_core::diagnosis::{Severity, number};
use hq_store::reader::RUN_BOUNDS;

/// A worker that was idle for more than this part of its life is worth a hint.
const IDLE_HINT: f64 = 0.5;
/// So is memory of which less than this part was ever used.
const MEMORY_HINT: f64 = 0.5;
/// Findings that are shown: of a hundred thousand jobs that wait for the same node nobody reads each.
const FINDINGS_MAX: usize = 100;
/// Workers that are drawn.
const LANES_MAX: usize = 400;

const STYLE: &str = "\
:root{color-scheme:light dark;--bar:#2f7ed8;--soft:#2f7ed855;--bad:#c0392b;--line:#8885}\
body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem;border-bottom:1px solid var(--line)}\
table{border-collapse:collapse;width:100%;font-size:.9rem}th,td{text-align:left;padding:.25rem .6rem;\
border-bottom:1px solid var(--line)}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}\
svg{width:100%;height:auto}svg.small{width:auto;max-width:100%}svg text{font:11px system-ui,sans-serif;fill:currentColor}\
.end{text-anchor:end}.area{fill:var(--soft);stroke:var(--bar)}.limit{fill:none;stroke:currentColor;stroke-dasharray:4 3}\
.bar{fill:var(--bar)}.bad{color:var(--bad);font-weight:600}.figures{display:flex;flex-wrap:wrap;gap:.8rem 1.5rem;font-size:.85rem}\
.figures div{min-width:4rem}.figures b{display:block;font-size:1.5rem}.wide{overflow-x:auto}td.n,th.n,.figures b{white-space:nowrap}\
.findings{list-style:none;padding:0}.findings li{margin:.4rem 0;padding:.3rem .8rem;border-left:4px solid #d08a1d;background:#d08a1d1c}\
.findings .error{border-color:var(--bad);background:#c0392b1c}\
.share{width:45%}.cost{height:.9rem;min-width:1px;background:var(--bar)}.lost{background:var(--bad)}.idle{background:var(--line)}";

/// Text as text: nothing in it is markup.
pub(crate) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            // It would change the direction of what stands beside it.
            c if is_hidden(c) && !matches!(c, '\n' | '\t') => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

/// The whole page.
pub(crate) fn render(report: &Report) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <title>hq: {title}</title><style>{STYLE}</style></head><body><h1>{title}</h1>\
         <p>From {from} to {to}, {zone}.</p>",
        title = escape(&report.title),
        from = local_seconds(report.from_ns),
        to = local_seconds(report.to_ns),
        zone = escape(&zone(report.to_ns)),
    );
    add_figures(&mut page, report);
    add_costs(&mut page, report);
    add_findings(&mut page, report);
    add_hints(&mut page, report);
    add_timeline(&mut page, report);
    add_failures(&mut page, report);
    add_jobs(&mut page, report);
    add_slowest(&mut page, report);
    add_workers(&mut page, report);
    page.push_str("</body></html>\n");
    page
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
        ("core-hours used", short(used / 3600.0)),
        ("core-hours wasted", short(wasted / 3600.0)),
        ("core-hours idle", short((offered - used).max(0.0) / 3600.0)),
        ("core-hours offered", short(offered / 3600.0)),
        ("of the cores were used", used_share),
    ];
    page.push_str("<div class=\"figures\">");
    for (name, value) in rows {
        let class = if name == "tasks failed" && failed > 0 {
            " class=\"bad\""
        } else {
            ""
        };
        let _ = write!(page, "<div{class}><b>{value}</b>{name}</div>");
    }
    page.push_str("</div>");
}

/// Where the time of the cores went, as bars.
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
            short(core_s / 3600.0)
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
        let _ = write!(page, "<li class=\"{class}\">{text}.</li>");
    }
    page.push_str("</ul>");
    let more = report.findings.len().saturating_sub(FINDINGS_MAX);
    if more > 0 {
        let more = number(more as u64);
        let _ = write!(page, "<p>And {more} more, none of them worse.</p>");
    }
}

/// Savings that were possible, in words.
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
             Fewer workers, or a shorter --idle-timeout, would have done.",
            idle.len(),
            report.workers.len(),
            short(hours)
        ));
    }
    for job in &report.jobs {
        let (asked, used) = (job.memory_asked, job.memory_used);
        if used > 0 && float(used) < MEMORY_HINT * float(asked) {
            hints.push(format!(
                "Tasks of job {} asked for {} of memory and used at most {}: more of them fit on a node with less.",
                job.id,
                file_size(asked),
                file_size(used)
            ));
        }
        let all = job.finished + job.failed;
        if all >= 1_000 && job.run_us[0] < 100_000 {
            hints.push(format!(
                "Half of the {all} tasks of job {} took less than {}: several of them in one task cost less.",
                job.id,
                run_time(job.run_us[0].max(1))
            ));
        }
        if job.core_s > 0.0 && job.failed_core_s > 0.2 * job.core_s {
            hints.push(format!(
                "{:.0} % of the core time of job {} went into tasks that failed.",
                100.0 * job.failed_core_s / job.core_s,
                job.id
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
    let (from, to) = (local_seconds(report.from_ns), local_seconds(report.to_ns));
    let series = |of: fn(&super::Step) -> f64| report.steps.iter().map(of).collect::<Vec<f64>>();
    let mut chart = |title: &str, values: &[f64], limit: &[f64]| {
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
        chart(&format!("{name} used"), values, &[]);
    }
    chart("Connected workers", &series(|step| step.workers), &[]);
}

fn add_failures(page: &mut String, report: &Report) {
    if report.failures.is_empty() {
        return;
    }
    page.push_str("<h2>Failures by reason and host</h2><div class=\"wide\"><table><tr><th class=\"n\">Tasks<th class=\"n\">Job<th>Reason<th>Said last<th>Host</tr>");
    for row in &report.failures {
        let _ = write!(
            page,
            "<tr><td class=\"n\">{}<td class=\"n\">{}<td>{}<td>{}<td>{}</tr>",
            number(row.count),
            row.job,
            escape(&row.error),
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
         <th class=\"n\">Longest<th class=\"n\">Most memory</tr>",
    );
    for job in &report.jobs {
        let bad = if job.failed > 0 { " bad" } else { "" };
        let _ = write!(
            page,
            "<tr><td class=\"n\">{}<td>{}<td class=\"n\">{}<td class=\"n\">{}<td class=\"n{bad}\">{}<td class=\"n\">{}",
            job.id,
            escape(&job.name),
            number(job.task_count),
            number(job.finished),
            number(job.failed),
            short(job.core_s / 3600.0)
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
        let _ = write!(page, "<td class=\"n\">{memory}</tr>");
    }
    page.push_str("</table></div>");
    let more = report.totals.jobs.saturating_sub(report.jobs.len() as u64);
    if more > 0 {
        let more = number(more);
        let _ = write!(page, "<p>{more} more jobs took less time than these.</p>");
    }
    page.push_str("<h2>Run times by job</h2>");
    for job in report
        .jobs
        .iter()
        .filter(|job| job.finished + job.failed > 0)
    {
        let labels = RUN_BOUNDS
            .iter()
            .map(|bound| format!("<{}", run_time(*bound)));
        let bins: Vec<(String, u64)> = labels
            .chain([String::from("more")])
            .map(|label| escape(&label.replace(".0", "")))
            .zip(job.run_times.iter().copied())
            .collect();
        let _ = write!(
            page,
            "<p>Job {} {}</p><div class=\"wide\">{}</div>",
            job.id,
            escape(&job.name),
            svg::histogram(&bins)
        );
    }
}

fn add_slowest(page: &mut String, report: &Report) {
    page.push_str("<h2>Slowest tasks</h2><div class=\"wide\"><table><tr><th class=\"n\">Job<th class=\"n\">Task<th class=\"n\">Took<th>Host<th>End");
    // Workers of earlier releases do not look.
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
            task.job,
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

/// Two cells: busy GPUs and their memory over time. Gaps are drawn as nothing.
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

/// Two cells: memory and cores over time, beside what was asked for.
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
mod tests {
    use super::super::{Failures, JobFigures, Step};
    use super::*;

    const HOUR_NS: i64 = 3_600_000_000_000;

    fn sample() -> Report {
        Report {
            title: "<b>run</b>.db".to_owned(),
            from_ns: 0,
            to_ns: HOUR_NS,
            steps: vec![
                Step {
                    running: 2.0,
                    cores_used: 2.0,
                    cores: 8.0,
                    workers: 1.0
                };
                401
            ],
            workers: vec![WorkerLife {
                id: 1,
                host: "n\"1".to_owned(),
                from_ns: 0,
                to_ns: HOUR_NS,
                cores: 8.0,
                used_core_s: 7_200.0,
                reason: None,
            }],
            totals: Totals {
                jobs: 1,
                finished: 9,
                failed: 1,
            },
            costs: super::super::Costs {
                finished: 3_600.0,
                failed: 1_800.0,
                dropped: 900.0,
                repeated: 900.0,
                running: 0.0,
            },
            jobs: vec![JobFigures {
                id: 7,
                name: "<script>alert(1)</script>".to_owned(),
                task_count: 10,
                finished: 9,
                failed: 1,
                core_s: 7_200.0,
                failed_core_s: 3_600.0,
                run_us: [1_000_000, 2_000_000, 3_000_000, 4_000_000],
                run_times: vec![0; RUN_BOUNDS.len() + 1],
                memory_asked: 4 << 30,
                memory_used: 1 << 30,
            }],
            failures: vec![Failures {
                job: 7,
                error: "exit code 3 & more".to_owned(),
                host: "n1".to_owned(),
                count: 1,
                task: 4,
                said: Some("no <index> for chr#".to_owned()),
            }],
            ..Report::default()
        }
    }

    #[test]
    fn nothing_that_a_user_named_is_markup() {
        let page = render(&sample());
        assert!(page.starts_with("<!DOCTYPE html>"));
        assert!(!page.contains("<script") && !page.contains("<b>run") && !page.contains("n\"1"));
        assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
        assert!(page.contains("exit code 3 &amp; more"));
        assert!(page.contains("<td>no &lt;index&gt; for chr#<td>"));
        assert!(
            !page.contains("http://") && !page.contains("https://"),
            "nothing is loaded from elsewhere"
        );
    }

    #[test]
    fn cost_and_hints_follow_from_the_figures() {
        let report = sample();
        let page = render(&report);
        for part in [
            "<b>2</b>core-hours used",
            "<b>1</b>core-hours wasted",
            "<b>6</b>core-hours idle",
            "canceled or given up<td class=\"n\">0.25<td class=\"n\">3.1 %",
            "<b>8</b>core-hours offered",
            "<b>25 %</b>of the cores",
        ] {
            assert!(page.contains(part), "no {part}");
        }
        let hints = hints(&report);
        assert!(
            hints[0].starts_with(
                "1 of 1 workers were idle for more than half of their life: 6 core-hours"
            ),
            "{hints:?}"
        );
        assert!(hints[1].contains("of memory and used at most"), "{hints:?}");
        assert!(
            hints[2].starts_with("50 % of the core time of job 7"),
            "{hints:?}"
        );
    }

    #[test]
    fn a_page_about_very_many_jobs_is_short_and_says_what_it_leaves_out() {
        use hq_core::diagnosis::{Finding, Subject};
        let finding = |job| Finding {
            subject: Subject::StarvingJob(job),
            severity: Severity::Warning,
            title: format!("job {job}"),
            text: "waits".to_owned(),
            part: 1,
            whole: 1,
        };
        let mut report = sample();
        report.totals.jobs = 100_000;
        report.findings = (0..100_000).map(finding).collect();
        let page = render(&report);
        assert!(page.len() < 200_000, "{} bytes", page.len());
        assert!(page.contains("And 99 900 more"), "no count");
        assert!(page.contains("99 999 more jobs took less time"), "no count");
    }

    #[test]
    fn nothing_offered_is_nothing_and_times_have_a_zone() {
        let page = render(&Report::default());
        assert!(page.contains("<b>0</b>core-hours offered"), "{page}");
        assert!(page.contains("UTC"), "{page}");
    }
}
