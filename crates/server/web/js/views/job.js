// One job: what became of its tasks, why some failed, how long they took.

import * as api from "../api.js";
import { StateBar, Strip, histogram } from "../charts.js";
import { actions, allow, jobCommands } from "../dialog.js";
import { h, rebuild, setText, show } from "../dom.js";
import { STATES, brief, clock, count, duration, failure, number, plain, quoted, total } from "../format.js";
import { List } from "../list.js";
import { loaders, state } from "../live.js";
import { jobWord, starvation } from "../problems.js";
import { LogTail } from "../tail.js";
import { TaskTable } from "../tasks.js";
import { absence, chip, copyButton, panel, typed, view } from "./view.js";

/** @typedef {import("../live.js").Schemas} Schemas */

const BINS = 600;
const GROUPS_SHOWN = 6;
/** Last words of a group of failures. */
const WORDS_SHOWN = 3;
const COMMAND_MAX = 200;

export function job(id) {
  /** @type {Schemas["JobDetail"] | null} */
  let detail = null;
  /** @type {Schemas["Strip"] | null} */
  let strip = null;
  /** @type {Schemas["Failures"] | null} */
  let failures = null;
  /** What failed tasks said last. @type {{read: number, groups: {error: string, last_words: string | null, count: number, first: number}[]} | null} */
  let said = null;
  let isUnknown = false;
  /** The task whose output is shown beside the failures. @type {number | null} */
  let picked = null;
  const title = h("h1", null, `Job ${id}`);
  const word = chip();
  const bar = new StateBar();
  const counts = h("span", { className: "counts" });
  const pace = h("span", { className: "muted pace" });
  const facts = h("dl", { className: "facts" });
  const why = h("p", { className: "why", hidden: true });
  const cancel = h("button", { type: "button", className: "danger", "data-action": "cancel", disabled: true, onclick: () => actions.cancel(detail) }, "Cancel …");
  const resubmit = h("button", { type: "button", "data-action": "resubmit", disabled: true, onclick: () => actions.resubmit(detail) }, "Resubmit failed …");
  const graph = h("a", { className: "button", href: `#/job/${id}/graph`, hidden: true }, "Graph");
  const cells = new Strip((found) => { location.hash = `#/job/${id}/task/${found}`; });
  const times = h("div");
  const groups = h("div", { className: "groups" });
  const failuresTitle = h("h2");
  const tail = new LogTail(id, { isStderr: true, lines: 12 });
  // The first time it shows what the task wrote, the second time everything about it.
  const failureList = failedTasks(id, (found) => { if (found.task === picked) location.hash = `#/job/${id}/task/${found.task}`; else pick(found.task); });
  const failureBox = h("section", { className: "panel failurebox", hidden: true }, failuresTitle, groups, h("div", { className: "split" }, failureList.element, tail.element));
  const table = new TaskTable(id);

  function pick(task) {
    picked = task;
    tail.open(task);
  }

  async function load() {
    try {
      detail = await api.get(`/jobs/${id}`);
      isUnknown = false;
    } catch (error) {
      if (error.status !== 404) throw error;
      isUnknown = true;
    }
  }

  async function loadStrip() {
    strip = await api.get(`/jobs/${id}/strip?bins=${BINS}`);
    if (!detail || detail.tasks.failed > 0) failures = await api.get(`/jobs/${id}/failures`);
  }

  /** On its own: it is read where the tasks ran, and a node may be slow. */
  async function loadSignatures() {
    if (!isUnknown && (!detail || detail.tasks.failed > 0)) said = await api.get(`/jobs/${id}/signatures`);
  }

  function render() {
    show(unknown, isUnknown);
    show(shown, !isUnknown && detail !== null);
    show(reading, !isUnknown && detail === null);
    if (isUnknown || !detail) return;
    const fresher = state.jobs.get(id);
    if (fresher) Object.assign(detail, { tasks: fresher.tasks, state: fresher.state, is_open: fresher.is_open, left_ms: fresher.left_ms, rate_per_s: fresher.rate_per_s });
    renderHead(detail);
    if (strip) {
      cells.update(strip);
      const bins = strip.run_times;
      rebuild(times, JSON.stringify(bins), () => histogram(bins));
    }
    renderFailures(detail);
    table.render();
  }

  /** @param {Schemas["JobDetail"]} known */
  function renderHead(known) {
    setText(title, `Job ${id}: ${plain(known.name)}`);
    word.update(jobWord(known));
    bar.update(known.tasks);
    rebuild(counts, JSON.stringify(known.tasks), () => STATES.filter((name) => known.tasks[name] > 0).map((name) => h("a", { className: `count ${name}`, href: `#/job/${id}?state=${name}` }, `${number(known.tasks[name])} ${name}`)));
    setText(pace, paceOf(known));
    const rows = factsOf(known);
    rebuild(facts, JSON.stringify(rows.map(([name, text]) => [name, text])), () => rows.flatMap(([name, text, isCopied]) => [h("dt", null, name), h("dd", null, h("span", null, text), isCopied ? copyButton(text, name) : null)]));
    const reason = starvation(known);
    show(why, reason !== "");
    setText(why, plain(reason.charAt(0).toUpperCase() + reason.slice(1)));
    allow(cancel, known.tasks.waiting + known.tasks.running > 0);
    allow(resubmit, known.tasks.failed > 0);
    setText(resubmit, known.tasks.failed > 0 ? `Resubmit ${number(known.tasks.failed)} failed …` : "Resubmit failed …");
    show(graph, known.submits.some((submit) => submit.is_graph));
  }

  /** @param {Schemas["JobDetail"]} known */
  function renderFailures(known) {
    show(failureBox, known.tasks.failed > 0);
    if (known.tasks.failed === 0 || !failures) return;
    setText(failuresTitle, `${count(known.tasks.failed, "task")} of ${number(total(known.tasks))} failed`);
    const alike = failures.groups;
    rebuild(groups, JSON.stringify([alike, said]), () => groupsOf(id, alike, said));
    failureList.update(failures.failures);
    const isThere = failures.failures.some((found) => found.task === picked);
    if (!isThere && failures.failures.length > 0) pick(failures.failures[0].task);
  }

  const shown = h("div", { className: "job" },
    h("header", { className: "panel jobhead" }, h("div", { className: "headline" }, title, word.element, h("span", { className: "grow" }), graph, h("a", { className: "button", href: `#/timeline?job=${id}` }, "Timeline"), resubmit, cancel), h("div", { className: "progress" }, bar.element, counts, pace), why, facts),
    failureBox,
    panel("All tasks, in the order of their ids", cells.element),
    panel("Run times", times),
    table.element);
  const unknown = absence(`There is no job ${id}`, "It may have been forgotten, or it is of another server.", typed("hq job list --all"), h("p", null, h("a", { href: "#/jobs" }, "All jobs")));
  const reading = h("div", { className: "reading", role: "status" }, h("h1", null, `Job ${id}`), h("p", { className: "muted" }, "Reading …"));

  /** @returns {import("./view.js").Command[]} */
  function commands() {
    if (!detail || isUnknown) return [];
    const list = [...jobCommands(detail), { name: "Timeline of this job", key: "i", act: () => { location.hash = `#/timeline?job=${id}`; } }];
    if (!graph.hidden) list.push({ name: "Graph of this job", key: "v", act: () => { location.hash = `#/job/${id}/graph`; } });
    list.push({ name: "Show its failed tasks", key: "f", act: () => table.filter("failed") });
    return [...list, ...(failureBox.hidden ? [] : tail.commands())];
  }

  return view({
    title: `Job ${id}`,
    element: h("div", null, shown, unknown, reading),
    render,
    // Failures come first on the page, and so do keys.
    list: () => (failureBox.hidden ? table.list : failureList),
    commands,
    focus() {},
    fresh: [["job", load, 400, id], loaders.jobs, ["strip", loadStrip, 1_000, id], ["signatures", loadSignatures, 3_000, id], ["page", () => table.load(), 1_000, id]],
    parts: [cells, failureList, tail, table],
  });
}

/** The list of failed tasks. */
function failedTasks(id, onOpen) {
  return new List({
    label: "Failed tasks, the last first",
    template: "failures",
    rowHeight: 30,
    tall: 52,
    id: (found) => found.task,
    columns: [{ label: "Task", className: "right" }, { label: "Failure" }, { label: "Host" }, { label: "Took", className: "right" }, { label: "At", className: "right" }],
    row: () => failureRow(id),
    onOpen,
  });
}

/** How fast it goes and when it is done. */
function paceOf(detail) {
  const parts = [];
  if (detail.rate_per_s !== null && detail.finished_ms === null) parts.push(`${number(Number(detail.rate_per_s.toPrecision(2)))}/s`);
  if (detail.left_ms !== null) parts.push(`done in about ${duration(detail.left_ms)}`);
  return parts.join(", ");
}

/** Names, texts, and whether one wants to copy them. @returns {[string, string, boolean?][]} */
function factsOf(detail) {
  const [submit] = detail.submits;
  /** @type {[string, string, boolean?][]} */
  const rows = [];
  if (submit?.command) rows.push([submit.template_count > 1 ? `first of ${number(submit.template_count)} commands` : "command", brief(plain(submit.command.map(quoted).join(" ")), COMMAND_MAX), true]);
  if (submit) rows.push(["directory", plain(submit.submit_dir), true]);
  rows.push(["each task", plain(detail.resources) || "–"]);
  const ended = detail.finished_ms ? `, ended ${clock(detail.finished_ms)}, after ${duration(detail.finished_ms - detail.submitted_ms)}` : "";
  rows.push(["submitted", `${clock(detail.submitted_ms)}${ended}`]);
  rows.push(["ran on", count(detail.worker_count, "worker")]);
  if (detail.is_open) rows.push(["open", `for more tasks, until hq job close ${detail.id}`]);
  if (detail.max_fails !== null) rows.push(["ends", `at more than ${number(detail.max_fails)} failures`]);
  for (const told of detail.notifications) {
    if (told.state === "given-up") rows.push(["notification", `${brief(plain(told.target), 80)} was given up: ${plain(told.error ?? "")}`]);
  }
  if (detail.cancel_reason) rows.push(["canceled", plain(detail.cancel_reason)]);
  return rows;
}

/** The most common failures, where they happened, and what those tasks said last. */
function groupsOf(id, groups, said) {
  const errors = new Map();
  for (const group of groups) {
    const found = errors.get(group.error) ?? { tasks: 0, hosts: [] };
    found.tasks += group.count;
    found.hosts.push(group);
    errors.set(group.error, found);
  }
  const all = [...errors].sort((a, b) => b[1].tasks - a[1].tasks);
  const most = Math.max(...all.map(([, found]) => found.tasks));
  return all.slice(0, GROUPS_SHOWN).map(([error, found]) => {
    const fill = h("span", { className: "fill" });
    fill.style.width = `${(found.tasks / most) * 100}%`;
    const host = plain(found.hosts[0].host ?? "no host");
    // One failure says nothing about a host.
    const where = found.hosts.length > 1 ? `on ${number(found.hosts.length)} hosts` : found.tasks > 1 ? `only on ${host}` : `on ${host}`;
    const words = (said?.groups ?? []).filter((group) => group.error === error && group.last_words !== null).slice(0, WORDS_SHOWN);
    return h("div", { className: "group" }, h("strong", null, failure(error)), h("span", { className: "track" }, fill), h("span", null, `${count(found.tasks, "task")}, ${where}`),
      words.map((group) => h("span", { className: "said" }, h("a", { href: `#/job/${id}/task/${group.first}?stream=stderr`, "data-focus": `${error} ${group.last_words}` }, h("code", null, plain(group.last_words))), ` ${number(group.count)} of ${number(said.read)} that were read`)));
  });
}

function failureRow(id) {
  const link = h("a");
  const [error, host, took, at] = [h("span", { className: "cut bad" }), h("span", { className: "cut" }), h("span"), h("span")];
  return {
    cells: [h("span", null, link), error, host, took, at],
    update(found) {
      setText(link, number(found.task));
      link.href = `#/job/${id}/task/${found.task}`;
      setText(error, failure(found.error));
      setText(host, plain(found.host ?? "–"));
      setText(took, duration(found.run_us / 1000));
      setText(at, clock(found.ended_ms));
    },
  };
}
