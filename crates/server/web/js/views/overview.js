// The first view: what is wrong, then what is going on.

import * as api from "../api.js";
import { Meter, StateBar, TimeChart } from "../charts.js";
import { actions } from "../dialog.js";
import { h, rebuild, setText } from "../dom.js";
import { STATES, compact, count, duration, ended, number, plain, total } from "../format.js";
import { keepFresh, loaders, state } from "../live.js";
import { jobWord, linkOf } from "../problems.js";
import { chip, panel, view } from "./view.js";

/** Time over which the rate is averaged. */
const RATE_MS = 10_000;
const SPANS = [["10 min", 600_000], ["1 h", 3_600_000], ["6 h", 21_600_000], ["24 h", 86_400_000]];
const STEPS = 120;
const JOBS_SHOWN = 8;
/** The past is read again after this time, and so many times what it took: what is newer is known anyway. */
const HISTORY_MS = 60_000;
const HISTORY_FACTOR = 400;

export function overview() {
  const problems = h("div", { className: "problems", "aria-live": "polite" });
  const tiles = STATES.map((name) => tile(name));
  const rate = h("strong");
  const eta = h("span", { className: "muted" });
  const throughput = new TimeChart("Tasks that ended, over time");
  const cpus = new TimeChart("Use of the cpus in percent, since this page was opened", { unit: " %", isPercent: true });
  const meters = h("div", { className: "meters" });
  const known = new Map();
  const rows = Array.from({ length: JOBS_SHOWN }, jobRow);
  const active = h("div", { className: "cards" }, rows.map((row) => row.element));
  const span = h("select", { "aria-label": "Time shown", onchange: () => { end(); end = keepFresh("history", loadHistory, 900); } },
    SPANS.map(([label, ms]) => h("option", { value: String(ms) }, label)));
  let history = null;
  let historyDue = 0;

  /** Reads the past now and then, as it takes a pass over all tasks; what is newer is known from the sums. */
  async function loadHistory() {
    const to = state.summary?.now_ms;
    if (!to || (performance.now() < historyDue && history?.span === span.value)) return;
    const begun = performance.now();
    history = await api.get(`/history?from_ms=${to - Number(span.value)}&to_ms=${to}&steps=${STEPS}`);
    history.span = span.value;
    const took = performance.now() - begun;
    historyDue = performance.now() + Math.max(HISTORY_MS, HISTORY_FACTOR * took);
  }

  let end = keepFresh("history", loadHistory, 900);

  function render() {
    rebuild(problems, JSON.stringify(state.problems), () => (state.problemCount > 0 ? [...state.problems.map(problem), rest()] : h("p", { className: "fine" }, state.hasProblems ? "✓ Nothing is wrong." : "Asking the server …")));
    const { summary } = state;
    if (!summary) return;
    for (const one of tiles) one.update(summary.tasks[one.name]);
    const perSecond = rateOf(state.samples);
    setText(rate, `${compact(Number(perSecond.toPrecision(3)))} tasks/s`);
    const open = summary.tasks.waiting + summary.tasks.running;
    setText(eta, perSecond > 0 && open > 0 ? ` at this rate done in ${duration((open / perSecond) * 1000)}` : "");
    for (const resource of summary.resources) {
      if (resource.name === "mem" && resource.used_units === 0) continue;
      if (!known.has(resource.name)) {
        const meter = new Meter(plain(resource.name));
        known.set(resource.name, meter);
        meters.append(meter.element);
      }
      known.get(resource.name).update(resource.used_units, resource.total_units, `${number(resource.used_units / 1e4)} of ${number(resource.total_units / 1e4)}`);
    }
    if (!known.has(null)) {
      known.set(null, new Meter("workers"));
      meters.prepend(known.get(null).element);
    }
    const { connected, away, gone } = summary.workers;
    known.get(null).update(connected, connected + away + gone, `${connected} here${away ? `, ${away} away` : ""}${gone ? `, ${gone} gone` : ""}`);
    if (history) throughput.update(ends(history, state.samples));
    cpus.update(usage(state.samples));
    const shown = [...state.jobs.values()].filter((job) => total(job.tasks) > ended(job.tasks)).sort((a, b) => b.tasks.running - a.tasks.running || b.id - a.id);
    rows.forEach((row, at) => row.update(shown[at]));
    setText(activeTitle, shown.length > JOBS_SHOWN ? `Active jobs (${JOBS_SHOWN} of ${number(shown.length)})` : `Active jobs (${shown.length})`);
  }

  const activeTitle = h("h2", null, "Active jobs");
  const element = h("div", { className: "overview" },
    h("section", { className: "panel problembox" }, h("h1", null, "What is wrong"), problems),
    h("section", { className: "panel" }, h("h2", null, "Tasks"), h("div", { className: "tiles" }, tiles.map((one) => one.element)), h("p", { className: "rate" }, rate, eta)),
    panel("Cluster", meters),
    h("section", { className: "panel" }, h("h2", null, "Tasks that ended ", span), throughput.element),
    panel("Use of the cpus, %", cpus.element),
    h("section", { className: "panel wide" }, activeTitle, active));
  return view({
    title: "Overview",
    element,
    render,
    fresh: [loaders.jobs, loaders.workers, loaders.queues],
    parts: [throughput, cpus],
    close: () => end(),
  });
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

/** How many more there are than are shown. */
function rest() {
  const more = state.problemCount - state.problems.length;
  const cut = state.isProblemCut ? "Tasks ended in too many ways to look at all of them." : "";
  return more > 0 || cut ? h("p", { className: "muted" }, `${more > 0 ? `and ${number(more)} more. ` : ""}${cut}`) : null;
}

function problem(found) {
  const part = h("span", { className: "fill" });
  part.style.width = `${found.whole ? Math.max(1, (found.part / found.whole) * 100) : 0}%`;
  const worker = found.kind === "node" ? state.workers.find((one) => one.id === found.worker && one.state === "connected" && !one.is_draining) : undefined;
  const queue = found.kind === "queue" ? state.queues.find((one) => one.id === found.id && one.is_paused) : undefined;
  const sentence = found.text.charAt(0).toUpperCase() + found.text.slice(1);
  return h("article", { className: `problem ${found.severity}` },
    h("span", { className: "kind" }, found.severity === "error" ? "✕ " : "! ", found.heading),
    h("div", { className: "what" }, h("a", { href: linkOf(found), "data-focus": `${found.kind} ${found.title}` }, plain(found.title)), h("p", null, plain(`${sentence}.`)), found.whole ? h("span", { className: "track" }, part) : null),
    worker ? h("button", { type: "button", onclick: () => actions.drainWorker(worker) }, "Drain worker") : null,
    queue ? h("button", { type: "button", onclick: () => actions.pauseQueue(queue) }, "Resume queue") : null);
}

function jobRow() {
  const name = h("a");
  const word = chip();
  const bar = new StateBar();
  const figures = h("span", { className: "figures" });
  const element = h("div", { className: "jobcard", hidden: true }, name, word.element, bar.element, figures);
  return {
    element,
    update(job) {
      element.hidden = !job;
      if (!job) return;
      setText(name, `${job.id} ${plain(job.name)}`);
      name.href = `#/job/${job.id}`;
      word.update(jobWord(job));
      bar.update(job.tasks);
      const failed = job.tasks.failed ? `, ${number(job.tasks.failed)} failed` : "";
      setText(figures, `${number(ended(job.tasks))} of ${count(total(job.tasks), "task")}${failed}`);
    },
  };
}

function rateOf(samples) {
  const last = samples.at(-1);
  const first = samples.find((sample) => sample.at >= last.at - RATE_MS) ?? last;
  return last.at > first.at ? (Math.max(0, last.ended - first.ended) / (last.at - first.at)) * 1000 : 0;
}

/** Tasks that ended, up to now: the past, moved on by what the sums tell since it was read. */
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

/** The samples of this page as percent in steps. */
function usage(samples) {
  const to = samples.at(-1).at;
  const from = Math.max(samples[0].at, to - 600_000);
  const values = new Array(STEPS).fill(0);
  const counts = new Array(STEPS).fill(0);
  for (const sample of samples) {
    if (sample.at < from) continue;
    const at = Math.min(STEPS - 1, Math.floor(((sample.at - from) / Math.max(1, to - from)) * STEPS));
    values[at] += sample.cpus * 100;
    counts[at] += 1;
  }
  let before = 0;
  for (let at = 0; at < STEPS; at += 1) {
    values[at] = counts[at] > 0 ? values[at] / counts[at] : before;
    before = values[at];
  }
  return { from, to, series: [{ name: "cpus", values, color: "running" }] };
}
