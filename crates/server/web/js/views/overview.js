// The first view: problems, then present activity.

import * as api from "../api.js";
import { Meter, StateBar, TimeChart } from "../charts.js";
import { actions, allow, jobCommands, obstacle, problemCommands } from "../dialog.js";
import { h, rebuild, setText, show } from "../dom.js";
import { STATES, compact, count, done, duration, ended, number, plain, total } from "../format.js";
import { keepFresh, loaders, state } from "../live.js";
import { ageOf, hiddenText, isOpen, jobWord, linkOf } from "../problems.js";
import { Steps } from "../steps.js";
import { choose, oneOf } from "../url.js";
import { chip, emptiness, panel, table, view } from "./view.js";

/** Period for averaging the rate. */
const RATE_MS = 10_000;
/** Choices of the visible period, with their names in the address. @type {[string, string, number][]} */
const SPANS = [["10min", "10 min", 600_000], ["1h", "1 h", 3_600_000], ["6h", "6 h", 21_600_000], ["24h", "24 h", 86_400_000], ["7d", "7 d", 604_800_000]];
export const STEPS = 120;
/** Minimum visible period: a server that has just started has no past. */
const SPAN_MIN_MS = 10_000;
/** Units of one whole of a resource. */
const UNITS = 10_000;
const JOBS_SHOWN = 8;
const LIMITS_SHOWN = 6;
/** Jobs that are named for a limit. */
const USERS_SHOWN = 5;
/** The history is read again after the longer of this time and this multiple of the last read; samples have newer data. A short
 * history is read more often, because it grows. */
const HISTORY_MS = 60_000;
const HISTORY_PART = 10;
const HISTORY_FACTOR = 400;

export function overview() {
  const problems = h("div", { className: "problems", "aria-live": "polite" });
  /** Acknowledged problems, and failures of ended jobs, on request. */
  const quietText = h("summary", { "data-step": "" });
  const quietList = h("div", { className: "problems" });
  const quiet = h("details", { className: "quiet", hidden: true }, quietText, quietList);
  const tiles = STATES.map((name) => tile(name));
  const rate = h("strong");
  const eta = h("span", { className: "muted" });
  const throughput = new TimeChart("Tasks that ended, over time");
  const cpus = new TimeChart("Cpus in use, over time", { unit: " cpus", isArea: true });
  const meters = h("div", { className: "meters" });
  const limits = h("div", { className: "limits", hidden: true });
  const known = new Map();
  const rows = Array.from({ length: JOBS_SHOWN }, jobRow);
  const active = h("div", { className: "cards" }, rows.map((row) => row.element));
  const idle = h("div");
  const names = SPANS.map(([name]) => name);
  const span = h("select", { "aria-label": "Time shown", onchange: () => { choose({ span: span.value === names[0] ? "" : span.value }); ask(); } },
    SPANS.map(([name, label]) => h("option", { value: name }, label)));
  span.value = oneOf("span", names);
  /** @type {(import("../live.js").Schemas["History"] & {span: string}) | null} */
  let history = null;
  let historyDue = 0;

  /** Reads the past occasionally, because that is a pass over all tasks; sums provide newer data. */
  async function loadHistory() {
    const to = state.summary?.now_ms;
    if (!to || !state.server || (performance.now() < historyDue && history?.span === span.value)) return;
    const begun = performance.now();
    const asked = span.value;
    const [, , ms] = SPANS.find(([name]) => name === asked) ?? SPANS[0];
    const from = Math.max(to - ms, Math.min(to - SPAN_MIN_MS, beginOf(state.server, state.jobs.values())));
    const answer = await api.get(`/history?from_ms=${from}&to_ms=${to}&steps=${STEPS}`).catch((error) => {
      // A server without a journal has no history; the charts begin with the samples of this page.
      if (error.status !== 404) throw error;
      return emptyHistory(from, to);
    });
    history = { ...answer, span: asked };
    if (api.report) historyDue = Infinity;
    const took = performance.now() - begun;
    historyDue = performance.now() + Math.max(Math.min(HISTORY_MS, (to - from) / HISTORY_PART), HISTORY_FACTOR * took);
  }

  let end = () => {};
  function ask() {
    end();
    end = keepFresh("history", loadHistory, 900);
  }
  ask();

  function render() {
    // The view also depends on whether the server has answered: no problems at first means that nothing is known.
    const key = JSON.stringify([state.known.has("problems"), state.problemCount, state.isProblemCut, state.problems, obstacle(), state.summary?.workers.connected === 0]);
    const open = state.problems.filter(isOpen);
    const others = state.problems.filter((found) => !isOpen(found));
    show(span, !api.report);
    rebuild(problems, key, () => (open.length > 0 ? [...open.map(problem), rest()] : healthy()));
    rebuild(quietList, key, () => others.map(problem));
    show(quiet, others.length > 0);
    setText(quietText, hiddenText(others));
    setText(title, open.length > 0 ? "What is wrong" : "Health");
    const { summary } = state;
    if (!summary) return;
    for (const [element, found] of ages) {
      if (element.isConnected) setText(element, ageOf(found, summary.now_ms));
      else ages.delete(element);
    }
    for (const one of tiles) one.update(summary.tasks[one.name]);
    const perSecond = rateOf(state.samples);
    setText(rate, `${compact(Number(perSecond.toPrecision(3)))} tasks/s`);
    const left = summary.tasks.waiting + summary.tasks.running;
    setText(eta, perSecond > 0 && left > 0 ? ` at this rate done in ${duration((left / perSecond) * 1000)}` : "");
    renderMeters(summary);
    show(limits, state.limits.length > 0);
    rebuild(limits, JSON.stringify(state.limits), () => limitsOf(state.limits));
    if (history) {
      throughput.update(ends(history, state.samples));
      cpus.update(usage(history, state.samples));
    }
    renderJobs();
  }

  function renderMeters(summary) {
    for (const resource of summary.resources) {
      if (resource.name === "mem" && resource.used_units === 0) continue;
      if (!known.has(resource.name)) {
        const meter = new Meter(plain(resource.name));
        known.set(resource.name, meter);
        meters.append(meter.element);
      }
      known.get(resource.name).update(resource.used_units, resource.total_units, `${number(resource.used_units / UNITS)} of ${number(resource.total_units / UNITS)}`);
    }
    if (!known.has(null)) {
      known.set(null, new Meter("workers"));
      meters.prepend(known.get(null).element);
    }
    const { connected, away, gone } = summary.workers;
    known.get(null).update(connected, connected + away + gone, `${connected} here${away ? `, ${away} away` : ""}${gone ? `, ${gone} gone` : ""}`);
  }

  function renderJobs() {
    const shown = [...state.jobs.values()].filter((job) => total(job.tasks) > ended(job.tasks)).sort((a, b) => b.tasks.running - a.tasks.running || b.id - a.id);
    rows.forEach((row, at) => row.update(shown[at]));
    setText(activeTitle, shown.length > JOBS_SHOWN ? `Active jobs (${JOBS_SHOWN} of ${number(shown.length)})` : `Active jobs (${shown.length})`);
    rebuild(idle, `${state.known.has("jobs")} ${shown.length > 0} ${state.jobs.size > 0}`, () => {
      if (shown.length > 0 || !state.known.has("jobs")) return null;
      return state.jobs.size > 0
        ? h("p", { className: "muted" }, "No job has anything left to do. ", h("a", { href: "#/jobs" }, "All jobs"))
        : emptiness("There is no job yet.", "hq submit -- hostname");
    });
  }

  const title = h("h1", null, "Health");
  const activeTitle = h("h2", null, "Active jobs");
  const element = h("div", { className: "overview" },
    h("section", { className: "panel problembox" }, title, problems, quiet),
    h("section", { className: "panel" }, h("h2", null, "Tasks"), h("div", { className: "tiles" }, tiles.map((one) => one.element)), h("p", { className: "rate" }, rate, eta)),
    panel("Cluster", meters, limits),
    h("section", { className: "panel charted" }, h("h2", null, "Tasks that ended ", span), throughput.element),
    h("section", { className: "panel charted" }, h("h2", null, "Cpus in use"), cpus.element),
    h("section", { className: "panel wide" }, activeTitle, active, idle));
  const moves = new Steps(element, "[data-step]");
  return view({
    title: "Overview",
    element,
    render,
    list: moves,
    focus() {},
    commands: () => commandsOn(moves.current),
    fresh: [loaders.jobs, loaders.workers, loaders.queues, loaders.limits],
    parts: [throughput, cpus],
    close: () => end(),
  });
}

/** Limits across jobs, those with the most waiting tasks first. */
function limitsOf(all) {
  const shown = [...all].sort((a, b) => b.waiting - a.waiting).slice(0, LIMITS_SHOWN);
  const more = all.length - shown.length;
  return [
    h("h3", null, "Limits"),
    table(["Name", ">Limit", ">In use", ">Waiting", "Used by jobs"], shown.map((one) => [plain(one.name), plain(one.bound), number(one.used), number(one.waiting), usersOf(one)])),
    more > 0 ? h("p", { className: "muted" }, `and ${number(more)} more; \`hq limit list\` lists them`) : null,
  ];
}

/** The jobs that use a limit, as links. */
function usersOf({ name, jobs, lost }) {
  const parts = jobs.slice(0, USERS_SHOWN).map(({ job, used }) => [h("a", { href: `#/job/${job}`, "data-focus": `${name} ${job}` }, String(job)), ` (${number(used)})`]);
  if (jobs.length > USERS_SHOWN) parts.push([`${number(jobs.length - USERS_SHOWN)} more`]);
  if (lost > 0) parts.push([`lost workers (${number(lost)})`]);
  return parts.map((part, at) => (at > 0 ? [", ", part] : part));
}

/** Text without problems, or without data. */
function healthy() {
  if (!state.known.has("problems")) return h("p", { className: "muted" }, "Asking the server …");
  const { summary } = state;
  if (summary && summary.workers.connected === 0) {
    return [h("p", { className: "fine" }, "✓ Nothing is wrong."), emptiness("No worker is connected yet; tasks wait until there is one.", "hq worker start")];
  }
  return h("p", { className: "fine" }, "✓ Nothing is wrong.");
}

/** Key commands of the focused problem or job. */
function commandsOn(element) {
  const found = things.get(element);
  if (!found) return [];
  if (found.job) {
    const job = state.jobs.get(found.job);
    return job ? jobCommands(job) : [];
  }
  const commands = problemCommands(found);
  const worker = workerOf(found);
  if (worker) commands.push({ name: `Drain worker ${worker.id}`, key: "d", act: () => actions.drainWorker(worker) });
  const queue = queueOf(found);
  if (queue) commands.push({ name: `Resume queue ${queue.id}`, key: "p", act: () => actions.pauseQueue(queue) });
  const job = found.kind === "failing-job" || found.kind === "failed-tasks" || found.kind === "starving-job" ? state.jobs.get(found.id) : undefined;
  if (job) commands.push(...jobCommands(job));
  return commands;
}

function tile(name) {
  const value = h("span", { className: "value" });
  const element = h("a", { className: `tile ${name}`, href: `#/jobs?state=${name}` }, value, h("span", { className: "label" }, name));
  return {
    name,
    element,
    update(tasks) {
      setText(value, compact(tasks));
      element.title = number(tasks);
      element.classList.toggle("zero", tasks === 0);
    },
  };
}

/** The number of hidden items. */
function rest() {
  const more = state.problemCount - state.problems.length;
  const cut = state.isProblemCut ? "Tasks ended in too many ways to look at all of them." : "";
  return more > 0 || cut ? h("p", { className: "muted" }, `${more > 0 ? `and ${number(more)} more; \`hq problems\` lists them. ` : ""}${cut}`) : null;
}

/** Elements with the age of a problem. @type {Map<Element, any>} */
const ages = new Map();

/** Subjects of the elements that keys move to. @type {WeakMap<Element, any>} */
const things = new WeakMap();

const workerOf = (found) => (found.kind === "node" ? state.workers.find((one) => one.id === found.worker && one.state === "connected" && !one.is_draining) : undefined);
const queueOf = (found) => (found.kind === "queue" ? state.queues.find((one) => one.id === found.id && one.is_paused) : undefined);

function problem(found) {
  const part = h("span", { className: "fill" });
  part.style.width = `${found.whole ? Math.max(1, (found.part / found.whole) * 100) : 0}%`;
  const [worker, queue] = [workerOf(found), queueOf(found)];
  const sentence = found.text.charAt(0).toUpperCase() + found.text.slice(1);
  const link = h("a", { href: linkOf(found), "data-focus": `${found.kind} ${found.title}`, "data-step": "" }, plain(found.title));
  things.set(link, found);
  const action = worker ? h("button", { type: "button", onclick: () => actions.drainWorker(worker) }, "Drain worker")
    : queue ? h("button", { type: "button", onclick: () => actions.pauseQueue(queue) }, "Resume queue") : null;
  const [note] = problemCommands(found);
  const noted = note ? h("button", { type: "button", "data-action": found.is_acknowledged ? "take-back" : "acknowledge", onclick: note.act }, found.is_acknowledged ? "Show again" : "Acknowledge") : null;
  const buttons = [action, noted].filter((one) => one !== null);
  for (const button of buttons) allow(button, true);
  // The whole card acts like the link in its title.
  const open = (event) => { if (!event.target.closest("a, button")) link.click(); };
  const age = h("span", { className: "age" });
  ages.set(age, found);
  if (state.summary) setText(age, ageOf(found, state.summary.now_ms));
  const again = found.resubmitted_as === null ? null : h("a", { href: `#/job/${found.resubmitted_as}`, className: "again" }, `submitted again as job ${number(found.resubmitted_as)}`);
  const said = found.cause ? h("span", { className: "said" }, "the last words: ", h("code", null, plain(found.cause))) : null;
  const look = isOpen(found) ? found.severity : "past";
  return h("article", { className: `problem ${look}`, onclick: open },
    h("span", { className: "kind" }, isOpen(found) ? (found.severity === "error" ? "✕ " : "! ") : "", found.heading),
    h("div", { className: "what" }, link, h("p", null, plain(`${sentence}.`)), found.whole ? h("span", { className: "track" }, part) : null,
      h("div", { className: "more" }, age, found.is_acknowledged ? h("span", null, "acknowledged") : null, said, again)),
    buttons.length > 0 ? h("div", { className: "acts" }, buttons) : null);
}

function jobRow() {
  const name = h("a", { "data-step": "" });
  const word = chip();
  const bar = new StateBar();
  const figures = h("span", { className: "figures" });
  const element = h("div", { className: "jobcard", hidden: true }, name, word.element, bar.element, figures);
  return {
    element,
    update(job) {
      element.hidden = !job;
      if (!job) return;
      things.set(name, { job: job.id });
      setText(name, `${job.id} ${plain(job.name)}`);
      name.href = `#/job/${job.id}`;
      word.update(jobWord(job));
      bar.update(job.tasks);
      const failed = job.tasks.failed ? `, ${number(job.tasks.failed)} failed` : "";
      setText(figures, `${number(done(job.tasks))} of ${count(total(job.tasks), "task")}${failed}`);
    },
  };
}

/** Start of the server, or of the oldest job if the server continues an earlier one. */
function beginOf(server, jobs) {
  let first = server.started_ms;
  for (const job of jobs) first = Math.min(first, job.submitted_ms);
  return first;
}

function emptyHistory(from, to) {
  const nothing = new Array(STEPS).fill(0);
  return { from_ms: from, to_ms: to, finished: nothing, failed: nothing, cpus_used: nothing, cpus_total: nothing };
}

function rateOf(samples) {
  const last = samples.at(-1);
  const first = samples.find((sample) => sample.at >= last.at - RATE_MS) ?? last;
  return last.at > first.at ? (Math.max(0, last.ended - first.ended) / (last.at - first.at)) * 1000 : 0;
}

/** Number of ended tasks up to now: the past, extended by the sums since it was read. */
function ends(history, samples) {
  const span = history.to_ms - history.from_ms;
  const to = Math.max(history.to_ms, samples.at(-1).at);
  const step = span / STEPS;
  const shift = Math.floor((to - history.to_ms) / step);
  const series = ["finished", "failed"].map((name) => {
    const values = [...history[name].slice(shift), ...new Array(Math.min(shift, STEPS)).fill(0)].slice(-STEPS);
    for (let at = 1; at < samples.length; at += 1) {
      const [before, sample] = [samples[at - 1], samples[at]];
      if (before.at < history.to_ms || sample[name] <= before[name]) continue;
      const bin = Math.floor((sample.at - history.from_ms) / step) - shift;
      if (bin >= 0 && bin < STEPS) values[bin] += sample[name] - before[name];
      else if (bin === STEPS) values[STEPS - 1] += sample[name] - before[name];
    }
    return { name, values, color: name };
  });
  return { from: history.from_ms + shift * step, to, series };
}

/** Busy cpus up to now: the past, extended by the sums since it was read. */
function usage(history, samples) {
  const span = history.to_ms - history.from_ms;
  const to = Math.max(history.to_ms, samples.at(-1).at);
  const step = span / STEPS;
  const shift = Math.min(STEPS, Math.floor((to - history.to_ms) / step));
  const moved = (past) => [...past.slice(shift), ...new Array(shift).fill(null)];
  const [used, offered] = [moved(history.cpus_used), moved(history.cpus_total)];
  /** Samples by step. @type {Map<number, typeof samples>} */
  const seen = new Map();
  for (const sample of samples) {
    const bin = Math.min(Math.floor((sample.at - history.from_ms) / step) - shift, STEPS - 1);
    if (sample.at >= history.to_ms && bin >= 0) seen.set(bin, [...(seen.get(bin) ?? []), sample]);
  }
  // A step without a sample equals the previous one.
  for (let at = 0; at < STEPS; at += 1) {
    const some = seen.get(at);
    used[at] = some ? some.reduce((sum, one) => sum + one.cpusUsed, 0) / some.length : used[at] ?? used[at - 1] ?? 0;
    offered[at] = some?.at(-1)?.cpusTotal ?? offered[at] ?? offered[at - 1] ?? 0;
  }
  return { from: history.from_ms + shift * step, to, series: [{ name: "in use", values: used, color: "running" }], limit: { name: "offered", values: offered } };
}
