// One job: the results of its tasks, causes of failures, run times.

import * as api from "../api.js";
import { StateBar, Strip, histogram, parameterTable } from "../charts.js";
import { Buttons, jobCommands } from "../dialog.js";
import { h, rebuild, setText, show } from "../dom.js";
import { STATES, brief, count, duration, failure, moment, number, paramsText, plain, quoted, total, zone, zoned } from "../format.js";
import { List } from "../list.js";
import { loaders, state } from "../live.js";
import { explain, jobWord, starvation } from "../problems.js";
import { LogTail } from "../tail.js";
import { TaskTable } from "../tasks.js";
import { absence, chip, copyButton, missing, panel, typed, view } from "./view.js";

/** @typedef {import("../live.js").Schemas} Schemas */

const BINS = 600;
const GROUPS_SHOWN = 6;
/** Last line of a group of failures. */
const WORDS_SHOWN = 3;
const COMMAND_MAX = 200;

export function job(id) {
  /** @type {Schemas["JobDetail"] | null} */
  let detail = null;
  /** @type {Schemas["Strip"] | null} */
  let strip = null;
  /** @type {Schemas["Failures"] | null} */
  let failures = null;
  /** Last lines of failed tasks. @type {Schemas["Signatures"] | null} */
  let said = null;
  /** Why its first waiting task does not run. */
  let waits = "";
  let isUnknown = false;
  /** The task whose output is shown next to the failures. @type {number | null} */
  let picked = null;
  const title = h("h1", null, `Job ${id}`);
  const word = chip();
  const bar = new StateBar();
  const counts = h("span", { className: "counts" });
  const pace = h("span", { className: "muted pace" });
  const facts = h("dl", { className: "facts" });
  const why = h("p", { className: "why", hidden: true });
  const buttons = new Buttons();
  const graph = h("a", { className: "button", href: `#/job/${id}/graph`, hidden: true }, "Graph");
  const cells = new Strip((found) => { location.hash = `#/job/${id}/task/${found}`; });
  const times = h("div");
  const groups = h("div", { className: "groups" });
  const failuresTitle = h("h2");
  const tail = new LogTail(id, { isStderr: true, lines: 12 });
  // The first time it shows the output of the task, the second time everything about it.
  const failureList = failedTasks(id, (found) => { if (found.task === picked) location.hash = `#/job/${id}/task/${found.task}`; else pick(found.task); });
  const failureBox = h("section", { className: "panel failurebox", hidden: true }, failuresTitle, groups, h("div", { className: "split" }, failureList.element, tail.element));
  const table = new TaskTable(id);
  const parameters = new ParameterBox(id, table);

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
    await parameters.load();
    if (!detail || detail.tasks.failed > 0) failures = await api.get(`/jobs/${id}/failures`);
  }

  async function loadWhy() {
    if (!detail || detail.state === "waiting") waits = await waitReason(id);
  }

  /** Separate, because it is read on the nodes of the tasks, which may be slow. */
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
    parameters.render();
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
    const limits = known.waits.length > 0 ? `tasks wait for ${known.waits.join("; ")}` : "";
    const reason = starvation(known) || (known.state === "waiting" && waits) || limits;
    show(why, reason !== "");
    setText(why, plain(reason.charAt(0).toUpperCase() + reason.slice(1)));
    buttons.update(jobCommands(known));
    show(graph, known.submits.some((submit) => submit.is_graph));
  }

  /** @param {Schemas["JobDetail"]} known */
  function renderFailures(known) {
    show(failureBox, known.tasks.failed > 0);
    if (known.tasks.failed === 0 || !failures) return;
    setText(failuresTitle, `${count(known.tasks.failed, "task")} of ${number(total(known.tasks))} failed`);
    const alike = failures.groups;
    // A single host is not blamed: no other host shows that the job succeeds elsewhere.
    const hosts = new Set(state.workers.map((worker) => worker.host)).size;
    rebuild(groups, JSON.stringify([alike, said, hosts]), () => groupsOf(id, alike, said, hosts));
    failureList.element.classList.toggle("swept", failures.failures.some((found) => found.params));
    failureList.update(failures.failures);
    const isThere = failures.failures.some((found) => found.task === picked);
    if (!isThere && failures.failures.length > 0) pick(failures.failures[0].task);
  }

  const shown = h("div", { className: "job" },
    h("header", { className: "panel jobhead" }, h("div", { className: "headline" }, title, word.element, h("span", { className: "grow" }), graph, h("a", { className: "button", href: `#/timeline?job=${id}` }, "Timeline"), buttons.element), h("div", { className: "progress" }, bar.element, counts, pace), why, facts),
    failureBox,
    parameters.element,
    panel("All tasks, in the order of their ids", cells.element),
    panel("Run times", times),
    table.element);
  const unknown = absence(...missing(`job ${id}`, "It may have been forgotten, or it is of another server."), typed("hq job list --all"), h("p", null, h("a", { href: "#/jobs" }, "All jobs")));
  const reading = h("div", { className: "reading", role: "status" }, h("h1", null, `Job ${id}`), h("p", { className: "muted" }, "Reading …"));

  return view({
    title: `Job ${id}`,
    element: h("div", null, shown, unknown, reading),
    render,
    // Failures come first on the page, and so do their keys.
    list: () => (failureBox.hidden ? table.list : failureList),
    commands: () => (detail && !isUnknown ? [...commandsOn(detail, !graph.hidden, table), ...(failureBox.hidden ? [] : tail.commands())] : []),
    focus() {},
    fresh: [["job", load, 400, id], loaders.jobs, loaders.workers, ["why", loadWhy, 3_000], ["strip", loadStrip, 1_000, id], ["signatures", loadSignatures, 3_000, id], ["page", () => table.load(), 1_000, id]],
    parts: [cells, failureList, tail, table],
  });
}

/** Actions on a job, on its page. @returns {import("./view.js").Command[]} */
function commandsOn(detail, hasGraph, table) {
  const { id } = detail;
  const list = [...jobCommands(detail), { name: "Timeline of this job", key: "i", act: () => { location.hash = `#/timeline?job=${id}`; } }];
  if (hasGraph) list.push({ name: "Graph of this job", key: "v", act: () => { location.hash = `#/job/${id}/graph`; } });
  return [...list, { name: "Show its failed tasks", key: "f", act: () => table.filter("failed") }];
}

/** Why the first waiting task of a job does not run. @param {number} id */
async function waitReason(id) {
  const { tasks: [first] } = await api.get(`/jobs/${id}/tasks?state=waiting&limit=1`);
  if (!first) return "";
  const reason = explain(await api.get(`/jobs/${id}/tasks/${first.id}/explain`));
  return `task ${number(first.id)} ${reason.startsWith("it ") ? reason.slice(3) : `waits: ${reason}`}`;
}

/** The parameters of a job by state, and its tasks with a column for each. */
class ParameterBox {
  /** @param {number} id @param {TaskTable} table */
  constructor(id, table) {
    this.id = id;
    this.table = table;
    /** @type {Schemas["Parameter"][]} */
    this.list = [];
    this.values = h("div");
    this.element = h("section", { className: "panel wide", hidden: true }, h("h2", null, "Parameters"), this.values);
  }

  async load() {
    this.list = (await api.get(`/jobs/${this.id}/parameters`)).parameters;
  }

  render() {
    show(this.element, this.list.length > 0);
    rebuild(this.values, JSON.stringify(this.list), () => parameterTable(this.list, (name, value) => this.table.find(`${name}=${value}`)));
    this.table.showParameters(this.list.map(({ name }) => name));
  }
}

/** The list of failed tasks. */
function failedTasks(id, onOpen) {
  return new List({
    label: "Failed tasks, the last first",
    template: "failures",
    rowHeight: 30,
    tall: 52,
    id: (found) => found.task,
    columns: [{ label: "Task", className: "right" }, { label: "Failure" }, { label: "Parameters", className: "params" }, { label: "Host" }, { label: "Took", className: "right" }, { label: `At (${zone()})`, className: "right" }],
    row: () => failureRow(id),
    onOpen,
  });
}

/** The present rate and the expected end. */
function paceOf(detail) {
  const parts = [];
  if (detail.rate_per_s !== null && detail.finished_ms === null) parts.push(`${number(Number(detail.rate_per_s.toPrecision(2)))}/s`);
  if (detail.left_ms !== null) parts.push(`done in about ${duration(detail.left_ms)}`);
  return parts.join(", ");
}

/** Names, texts, and whether they can be copied. @returns {[string, string, boolean?][]} */
function factsOf(detail) {
  const [submit] = detail.submits;
  /** @type {[string, string, boolean?][]} */
  const rows = [];
  if (submit?.command) rows.push([submit.template_count > 1 ? `first of ${number(submit.template_count)} commands` : "command", brief(plain(submit.command.map(quoted).join(" ")), COMMAND_MAX), true]);
  if (submit) rows.push(["directory", plain(submit.submit_dir), true]);
  rows.push(["each task", plain(detail.resources) || "–"]);
  rows.push(["submitted", zoned(detail.submitted_ms)]);
  if (detail.finished_ms) rows.push(["ended", `${zoned(detail.finished_ms)}, after ${duration(detail.finished_ms - detail.submitted_ms)}`]);
  rows.push(["ran on", count(detail.worker_count, "worker")]);
  if (detail.held_count > 0 || detail.holds_new) rows.push(["held", `${count(detail.held_count, "task")}${detail.holds_new ? " and those that are submitted later" : ""}`]);
  if (detail.is_open) rows.push(["open", `for more tasks, until hq job close ${detail.id}`]);
  if (detail.max_fails !== null) rows.push(["ends", `at more than ${number(detail.max_fails)} failures`]);
  for (const told of detail.notifications) {
    if (told.state === "given-up") rows.push(["notification", `${brief(plain(told.target), 80)} was given up: ${plain(told.error ?? "")}`]);
  }
  if (detail.cancel_reason) rows.push(["canceled", plain(detail.cancel_reason)]);
  return rows;
}

/** The most common failures, their hosts, and the last lines of those tasks. */
function groupsOf(id, groups, said, hostCount) {
  const errors = new Map();
  for (const group of groups) {
    const found = errors.get(group.error) ?? { tasks: 0, hosts: [] };
    found.tasks += group.count;
    found.hosts.push(group);
    errors.set(group.error, found);
  }
  const all = [...errors].sort((a, b) => b[1].tasks - a[1].tasks);
  return all.slice(0, GROUPS_SHOWN).map(([error, found]) => {
    const host = plain(found.hosts[0].host ?? "no host");
    // One failure says nothing about a host.
    const where = found.hosts.length > 1 ? `on ${number(found.hosts.length)} hosts` : found.tasks > 1 && hostCount > 1 ? `only on ${host}` : `on ${host}`;
    const words = (said?.groups ?? []).filter((group) => group.error === error && group.last_words !== null).slice(0, WORDS_SHOWN);
    return h("div", { className: "group" }, h("span", { className: "right" }, count(found.tasks, "task")),
      h("div", null, h("strong", null, failure(error)), h("span", { className: "muted" }, ` ${where}`), words.map((group) => lastWords(id, group, said.read))));
  });
}

/** The last line of a group's tasks, the parameters that they share, and the number of outputs with it. */
function lastWords(id, group, read) {
  const shared = paramsText(group.params);
  return h("p", { className: "said" },
    h("a", { href: `#/job/${id}/task/${group.first}?stream=stderr`, "data-focus": `${group.error} ${group.last_words}` }, h("code", null, plain(group.example ?? group.last_words))),
    shared ? h("strong", null, ` with ${shared}`) : null,
    h("span", { className: "muted" }, ` seen in ${number(group.count)} of the ${count(read, "log")} read`));
}

function failureRow(id) {
  const link = h("a");
  const [error, params, host, took, at] = [h("span", { className: "cut bad" }), h("span", { className: "cut" }), h("span", { className: "cut" }), h("span"), h("span")];
  return {
    cells: [h("span", null, link), error, params, host, took, at],
    update(found) {
      setText(link, number(found.task));
      link.href = `#/job/${id}/task/${found.task}`;
      setText(error, failure(found.error));
      setText(params, paramsText(found.params));
      setText(host, plain(found.host ?? "–"));
      setText(took, duration(found.run_us / 1000));
      setText(at, moment(found.ended_ms));
    },
  };
}
