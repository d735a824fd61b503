// The costs of a run and the use of its core time: the first page of a report.

import * as api from "../api.js";
import { TimeChart } from "../charts.js";
import { h, rebuild, show } from "../dom.js";
import { brief, bytes, count, duration, failure, number, paramsText, peakMemory, plain } from "../format.js";
import { state } from "../live.js";
import { linkOf } from "../problems.js";
import { STEPS } from "./overview.js";
import { chip, panel, table, view } from "./view.js";

/** @typedef {import("../live.js").Schemas} Schemas */

/** The figures are read again after this time: they take several passes over all tasks. */
const REST_MS = 60_000;
/** Below this share of the request, the use of memory is worth a hint. */
const MEMORY_HINT = 0.5;
/** A job with this many tasks, half of them shorter than this, is worth a hint. */
const [SHORT_COUNT, SHORT_US] = [1_000, 100_000];
/** Maximum problems; the overview shows all. */
const PROBLEMS_MAX = 20;
/** Maximum workers whose lines show how many there were. */
const LANES_FEW = 20;
/** Failures whose tasks ended by an exit code: what they wrote says more. */
const EXIT = /exit code|Program terminated/;

export function costs() {
  /** @type {Schemas["Costs"] | null} */
  let found = null;
  /** @type {Schemas["History"] | null} */
  let past = null;
  /** @type {TimeChart[]} */
  let charts = [];
  const element = h("div", { className: "costs" });
  const closeCharts = () => { for (const chart of charts.splice(0)) chart.close(); };

  async function load() {
    const read = await api.get("/costs");
    past = await api.get(`/history?from_ms=${read.from_ms}&to_ms=${Math.max(read.to_ms, read.from_ms + 1)}&steps=${STEPS}`);
    found = read;
  }

  function render() {
    const shown = found;
    rebuild(element, `${shown?.to_ms} ${state.problems.length}`, () => {
      closeCharts();
      if (!shown || !past) return panel("Costs", h("p", { className: "muted" }, "Reading …"));
      charts = [];
      return [head(shown), wrong(), common(shown), where(shown), hints(shown), ...overTime(shown, past, charts), jobTable(shown), slowest(shown), lives(shown)];
    });
    for (const chart of charts) chart.canvas.draw();
  }

  return view({
    title: "Costs",
    element,
    render,
    focus() {},
    fresh: [["costs", load, REST_MS]],
    close: closeCharts,
  });
}

const used = ({ finished, failed, dropped, repeated, running }) => finished + failed + dropped + repeated + running;
const wasted = ({ failed, dropped, repeated }) => failed + dropped + repeated;

/** Core-seconds as core-hours. More than nothing is never 0. */
function hours(coreS) {
  const value = coreS / 3600;
  if (value > 0 && value < 0.005) return "< 0.01";
  return value >= 100 ? number(Math.round(value)) : String(Number(value.toFixed(2)));
}

const percent = (part, whole) => `${Math.round((100 * part) / whole)} %`;

/** The run in one sentence. @param {Schemas["Costs"]} spent */
export function sentence({ finished, failed, offered_core_s: offered, core_s: core, jobs, failures }) {
  const done = `${count(finished, "task")} finished${failed > 0 ? ` and ${number(failed)} failed` : ""}; `;
  if (offered <= 0) return `${done}no worker was there.`;
  const use = `${done}${percent(used(core), offered)} of ${hours(offered)} core-hours were used`;
  if (wasted(core) <= 0) return `${use}.`;
  return `${use}, ${hours(wasted(core))} of them wasted${mostly(core, jobs, failures)}.`;
}

/** The main cause of waste. */
function mostly({ failed, dropped, repeated }, jobs, failures) {
  if (dropped > Math.max(failed, repeated)) return ", mostly by tasks that were canceled or given up";
  if (repeated > failed) return ", mostly by attempts that were repeated";
  const most = jobs.reduce((worst, job) => (job.failed_core_s > (worst?.failed_core_s ?? 0) ? job : worst), null);
  if (!most) return "";
  const why = failures.find((one) => one.job === most.id);
  const said = why?.last_words && EXIT.test(why.error) ? plain(why.last_words) : why ? failure(why.error) : "";
  return `, mostly by job ${most.id} (${plain(most.name)})${said ? `: ${said}` : ""}`;
}

function head(spent) {
  const { core_s: core, offered_core_s: offered } = spent;
  const tiles = [
    ["jobs", number(spent.job_count)], ["tasks finished", number(spent.finished)], ["tasks failed", number(spent.failed), spent.failed > 0],
    ["core-hours used", hours(used(core))], ["core-hours wasted", hours(wasted(core))], ["core-hours idle", hours(Math.max(0, offered - used(core)))],
    ["core-hours offered", hours(offered)], ["of the cores were used", offered > 0 ? percent(used(core), offered) : "–"],
  ];
  return h("section", { className: "panel" }, h("h1", null, "Costs"), h("p", { className: "lead" }, sentence(spent)),
    h("div", { className: "tiles" }, tiles.map(([name, value, isBad]) => h("div", { className: "tile" }, h("span", { className: isBad ? "value bad" : "value" }, value), h("span", { className: "label" }, name)))));
}

/** The worst problems. */
function wrong() {
  const shown = state.problems.slice(0, PROBLEMS_MAX);
  const more = state.problemCount - shown.length;
  if (shown.length === 0) return null;
  return panel("What went wrong", h("ul", null, shown.map((found) => h("li", null, found.heading, " ", h("a", { href: linkOf(found) }, plain(found.title)), `: ${plain(found.text)}.`))),
    more > 0 ? h("p", { className: "muted" }, `and ${number(more)} more`) : null);
}

const jobLink = (id) => h("a", { href: `#/job/${id}` }, String(id));
const taskLink = (job, task) => h("a", { href: `#/job/${job}/task/${task}` }, number(task));

function common({ failures }) {
  if (failures.length === 0) return null;
  return panel("Failures by reason and host", table([">Tasks", ">Job", "Reason", "For example", "Wrote last", "Host"], failures.map((one) => [
    number(one.count), jobLink(one.job), h("span", { className: "bad" }, failure(one.error)),
    ["task ", taskLink(one.job, one.task), one.params ? `: ${paramsText(one.params)}` : ""], h("code", null, plain(one.last_words ?? "")), plain(one.host ?? "?"),
  ])));
}

function bar(part, className) {
  const fill = h("span", { className: `fill ${className}` });
  fill.style.width = `${Math.min(100, 100 * part).toFixed(1)}%`;
  return h("span", { className: "track" }, fill);
}

function where({ core_s: core, offered_core_s }) {
  const offered = Math.max(offered_core_s, used(core));
  if (offered <= 0) return null;
  const rows = [
    ["finished tasks", core.finished, ""], ["failed tasks", core.failed, "lost"], ["tasks that were canceled or given up", core.dropped, "lost"],
    ["attempts that were repeated", core.repeated, "lost"], ["tasks that still ran", core.running, ""], ["idle", offered - used(core), "idle"],
  ];
  return panel("Where the core-hours went", table(["To", ">Core-hours", ">Share", ""], rows.filter(([, coreS]) => coreS > 0)
    .map(([name, coreS, className]) => [name, hours(coreS), `${((100 * coreS) / offered).toFixed(1)} %`, bar(coreS / offered, className)])));
}

/** What could have been saved. @param {Schemas["Costs"]} spent */
function hints(spent) {
  const all = [];
  if (spent.idle_workers > 0) all.push(`${number(spent.idle_workers)} of ${number(spent.worker_count)} workers were idle for more than half of their life: ${hours(spent.idle_core_s)} core-hours. Fewer workers, or a shorter --idle-timeout, would have sufficed.`);
  for (const job of spent.jobs) {
    const ended = job.finished + job.failed;
    if (job.memory_used_bytes > 0 && job.memory_used_bytes < MEMORY_HINT * job.memory_asked_bytes) all.push(`Tasks of job ${job.id} asked for ${bytes(job.memory_asked_bytes)} of memory and used at most ${bytes(job.memory_used_bytes)}: with a smaller request, more of them fit on a node.`);
    if (ended >= SHORT_COUNT && job.run_us[0] < SHORT_US) all.push(`Half of the ${number(ended)} tasks of job ${job.id} took less than ${duration(Math.max(1, job.run_us[0]) / 1000)}: batch several into one task to reduce the overhead.`);
  }
  return all.length > 0 ? panel("Hints", h("ul", null, all.map((text) => h("li", null, text)))) : null;
}

/** Connected workers at the end of each step. @param {Schemas["Costs"]} spent */
function connected({ from_ms: from, to_ms: to, workers }) {
  const at = (step) => from + ((to - from) * (step + 1)) / STEPS;
  return Array.from({ length: STEPS }, (_, step) => workers.filter((one) => one.from_ms <= at(step) && (one.reason === null || one.to_ms > at(step))).length);
}

/** @param {Schemas["Costs"]} spent @param {Schemas["History"]} past @param {TimeChart[]} charts */
function overTime(spent, past, charts) {
  const { from_ms: from, to_ms: to } = spent;
  const chart = (title, values, limit) => {
    if (!values.some((value) => value > 0)) return null;
    const made = new TimeChart(title, { isArea: true });
    charts.push(made);
    made.update({ from, to, series: [{ name: "", values, color: "running" }], ...(limit ? { limit: { name: "offered", values: limit } } : {}) });
    return h("section", { className: "panel charted" }, h("h2", null, title), made.element);
  };
  return [
    chart("Running tasks", spent.running, null),
    chart("Cores used, and offered (line)", past.cpus_used, past.cpus_total),
    ...spent.resources.map((one) => chart(`${plain(one.name)} reserved by tasks`, one.used, null)),
    // With few workers, their lines show the same.
    spent.worker_count > LANES_FEW ? chart("Connected workers", connected(spent), null) : null,
  ];
}

/** Small bars. @param {number[]} values @param {(at: number) => string} label */
function spark(values, label, name) {
  const most = Math.max(1e-9, ...values);
  return h("span", { className: "spark", role: "img", "aria-label": name }, values.map((value, at) => {
    const one = h("span", { title: label(at) });
    // A single task among a million stays visible.
    one.style.height = value > 0 ? `max(1px, ${((100 * value) / most).toFixed(1)}%)` : "0";
    return one;
  }));
}

/** How many tasks took how long; nothing if all are alike. */
function runTimes(counts, bounds) {
  const is = (value) => value > 0;
  const [first, last] = [counts.findIndex(is), counts.findLastIndex(is)];
  if (first === last) return "";
  const label = (at) => `${at + first < bounds.length ? `up to ${duration(bounds[at + first] / 1000)}` : "longer"}: ${number(counts[at + first])}`;
  return spark(counts.slice(first, last + 1), label, "run times");
}

function jobTable({ jobs, job_count, run_bounds_us: bounds }) {
  const heads = [">Job", "Name", ">Tasks", ">Finished", ">Failed", ">Core-hours", ">Median", ">90 %", ">99 %", ">Longest", "Run times", ">Peak memory"];
  const rows = jobs.map((job) => [
    jobLink(job.id), plain(job.name), number(job.task_count), number(job.finished), h("span", { className: job.failed > 0 ? "bad" : "" }, number(job.failed)), hours(job.core_s),
    ...[0, 1, 2, 3].map((at) => (job.run_us.length > 0 ? duration(job.run_us[at] / 1000) : "")), runTimes(job.run_times, bounds), job.memory_used_bytes > 0 ? peakMemory(job.memory_used_bytes) : "",
  ]);
  const more = job_count - jobs.length;
  return panel("Jobs by cost", table(heads, rows), more > 0 ? h("p", { className: "muted" }, `${count(more, "more job")} took less time than these.`) : null);
}

const GIB = (size) => (size === null ? "" : ` of ${bytes(size)}`);

/** Use over time, in cells. @param {Schemas["Usage"]} usage */
function useCells({ memory_bytes, memory_asked_bytes, cpu_milli, cpu_asked_milli, gpu }, hasGpus) {
  const mean = (values) => (values.reduce((sum, one) => sum + one, 0) / Math.max(1, values.length) / 1000).toFixed(2);
  const over = (values, name, words) => [spark(values.map((value) => value ?? 0), () => words, name), h("br"), words];
  const cores = `${mean(cpu_milli)} on average${cpu_asked_milli === null ? "" : ` of ${number(cpu_asked_milli / 1000)}`}`;
  const cells = [over(memory_bytes, "memory over time", `up to ${bytes(Math.max(0, ...memory_bytes))}${GIB(memory_asked_bytes)}`), over(cpu_milli, "cores over time", cores)];
  if (!hasGpus) return cells;
  if (!gpu) return [...cells, "–", "–"];
  const known = gpu.busy_milli.filter((value) => value !== null);
  const others = gpu.memory_of === "devices" ? ", others included" : "";
  const isKnown = gpu.memory_bytes.some((value) => value !== null);
  return [...cells,
    over(gpu.busy_milli, "GPUs over time", known.length > 0 ? `${mean(known)} on average of ${number(gpu.asked_milli / 1000)}${gpu.asked_milli % 1000 === 0 ? "" : ", others included"}` : "not known"),
    over(gpu.memory_bytes, "GPU memory over time", isKnown ? `up to ${bytes(Math.max(0, ...gpu.memory_bytes.map((value) => value ?? 0)))}${GIB(gpu.memory_of_devices_bytes)}${others}` : "not known")];
}

function slowest({ slowest: tasks }) {
  if (tasks.length === 0) return null;
  const [hasUse, hasGpus] = [tasks.some((task) => task.usage), tasks.some((task) => task.usage?.gpu)];
  const heads = [">Job", ">Task", ">Took", "Host", "End", ...(hasUse ? ["Memory over time", "Cores over time"] : []), ...(hasGpus ? ["GPUs over time", "GPU memory over time"] : [])];
  return panel("Slowest tasks", table(heads, tasks.map((task) => {
    const word = chip();
    word.update(task.is_failed ? "failed" : "finished");
    return [jobLink(task.job), taskLink(task.job, task.task), duration(task.run_us / 1000), plain(task.host ?? "?"), word.element,
      ...(task.usage ? useCells(task.usage, hasGpus) : heads.slice(5).map(() => "–"))];
  })));
}

/** A line for each worker, as long as it was connected. */
function lives({ from_ms, to_ms, workers, worker_count }) {
  const span = Math.max(1, to_ms - from_ms);
  const rows = workers.map((worker) => {
    const fill = h("span", { className: "fill" });
    fill.style.left = `${(100 * (worker.from_ms - from_ms)) / span}%`;
    fill.style.width = `max(1px, ${(100 * (worker.to_ms - worker.from_ms)) / span}%)`;
    const offered = (worker.cpus * (worker.to_ms - worker.from_ms)) / 1000;
    return [number(worker.id), brief(plain(worker.host), 60), number(worker.cpus), offered > 0 ? percent(worker.core_s, offered) : "–", plain(worker.reason ?? "connected"), h("span", { className: "track" }, fill)];
  });
  const section = panel("Workers over time", h("p", { className: "muted" }, `${number(worker_count)} in all${worker_count > workers.length ? `; these are the first ${number(workers.length)}` : ""}.`),
    table([">Worker", "Host", ">Cores", ">Used", "End", "Connected"], rows));
  section.classList.add("lives");
  show(section, workers.length > 0);
  return section;
}
