// One job: what became of its tasks, why some failed, how long they took.

import * as api from "../api.js";
import { StateBar, Strip, histogram } from "../charts.js";
import { actions } from "../dialog.js";
import { h, rebuild, setText, show } from "../dom.js";
import { STATES, brief, bytes, clock, count, duration, failure, number, plain, total } from "../format.js";
import { List } from "../list.js";
import { loaders, state } from "../live.js";
import { jobWord, starvation } from "../problems.js";
import { LogTail } from "../tail.js";
import { chip, panel, view } from "./view.js";

const BINS = 600;
const GROUPS_SHOWN = 6;
const PAGE = 200;
/** Tasks that the table holds; who looks for others filters or opens them by id. */
const TASKS_MAX = 5_000;

export function job(id) {
  let [detail, strip, failures] = [null, null, null];
  let problem = "";
  let picked = null;
  const title = h("h1");
  const word = chip();
  const bar = new StateBar();
  const counts = h("span", { className: "counts" });
  const facts = h("p", { className: "muted facts" });
  const why = h("p", { className: "why", hidden: true });
  const cancel = h("button", { type: "button", className: "danger", "data-action": "cancel", onclick: () => actions.cancel(detail) }, "Cancel …");
  const resubmit = h("button", { type: "button", "data-action": "resubmit", onclick: () => actions.resubmit(detail, (hash) => { location.hash = hash; }) }, "Resubmit failed …");
  const graph = h("a", { className: "button", href: `#/job/${id}/graph`, hidden: true }, "Graph");
  const cells = new Strip((found) => { location.hash = `#/job/${id}/task/${found}`; });
  const times = h("div");
  const groups = h("div", { className: "groups" });
  const failuresTitle = h("h2");
  const tail = new LogTail(id, { isStderr: true, lines: 12 });
  const failureList = new List({
    label: "Failed tasks, the last first",
    template: "failures",
    rowHeight: 30,
    tall: 52,
    columns: [{ label: "Task", className: "right" }, { label: "Failure" }, { label: "Host" }, { label: "Took", className: "right" }, { label: "At", className: "right" }],
    row: () => failureRow(id),
    onOpen: (found) => pick(found.task),
  });
  const failureBox = h("section", { className: "panel failurebox", hidden: true }, failuresTitle, groups, h("div", { className: "split" }, failureList.element, tail.element));
  const table = taskTable(id);

  function pick(task) {
    picked = task;
    tail.open(task);
  }

  async function load() {
    try {
      detail = await api.get(`/jobs/${id}`);
      problem = "";
    } catch (error) {
      if (error.status !== 404) throw error;
      problem = `There is no job ${id}; it may have been forgotten.`;
      return;
    }
  }

  async function loadStrip() {
    strip = await api.get(`/jobs/${id}/strip?bins=${BINS}`);
    if (!detail || detail.tasks.failed > 0) failures = await api.get(`/jobs/${id}/failures`);
  }

  function render() {
    if (problem) {
      setText(title, problem);
      return;
    }
    if (!detail) return;
    const fresher = state.jobs.get(id);
    if (fresher) Object.assign(detail, { tasks: fresher.tasks, is_open: fresher.is_open });
    setText(title, `Job ${id}: ${plain(detail.name)}`);
    word.update(jobWord(detail));
    bar.update(detail.tasks);
    rebuild(counts, JSON.stringify(detail.tasks), () => STATES.filter((name) => detail.tasks[name] > 0).map((name) => h("span", { className: `count ${name}` }, `${number(detail.tasks[name])} ${name}`)));
    setText(facts, factsOf(detail));
    const reason = starvation(detail);
    show(why, reason !== "");
    setText(why, plain(reason));
    cancel.disabled = detail.tasks.waiting + detail.tasks.running === 0;
    resubmit.disabled = detail.tasks.failed === 0;
    show(graph, detail.submits.some((submit) => submit.is_graph));
    if (strip) {
      cells.update(strip);
      rebuild(times, JSON.stringify(strip.run_times), () => histogram(strip.run_times));
    }
    renderFailures();
    table.render();
  }

  function renderFailures() {
    show(failureBox, detail.tasks.failed > 0);
    if (detail.tasks.failed === 0 || !failures) return;
    setText(failuresTitle, `${count(detail.tasks.failed, "task")} of ${number(total(detail.tasks))} failed`);
    rebuild(groups, JSON.stringify(failures.groups), () => groupsOf(failures.groups));
    failureList.update(failures.failures);
    const known = failures.failures.some((found) => found.task === picked);
    if (!known && failures.failures.length > 0) pick(failures.failures[0].task);
  }

  return view({
    title: `Job ${id}`,
    element: h("div", { className: "job" },
      h("header", { className: "panel jobhead" }, h("div", { className: "headline" }, title, word.element, h("span", { className: "grow" }), graph, h("a", { className: "button", href: `#/timeline?job=${id}` }, "Timeline"), resubmit, cancel), h("div", { className: "progress" }, bar.element, counts), why, facts),
      failureBox,
      panel("All tasks, in the order of their ids", cells.element),
      panel("Run times", times),
      table.element),
    render,
    fresh: [["job", load, 400, id], loaders.jobs, ["strip", loadStrip, 1_000, id], ["page", () => table.load(), 1_000, id]],
    parts: [cells, failureList, tail, table],
  });
}

function factsOf(detail) {
  const [submit] = detail.submits;
  const parts = [`submitted ${clock(detail.submitted_ms)}`];
  if (detail.finished_ms) parts.push(`ended ${clock(detail.finished_ms)}, after ${duration(detail.finished_ms - detail.submitted_ms)}`);
  parts.push(count(detail.worker_count, "worker"));
  if (detail.is_open) parts.push("open for more tasks");
  if (detail.max_fails !== null) parts.push(`ends at more than ${number(detail.max_fails)} failures`);
  for (const told of detail.notifications) {
    if (told.state === "given-up") parts.push(`the notification ${brief(plain(told.target), 80)} was given up: ${plain(told.error ?? "")}`);
  }
  if (detail.cancel_reason) parts.push(`canceled: ${plain(detail.cancel_reason)}`);
  if (submit?.command) parts.push(brief(plain(submit.command.join(" ")), 200));
  if (submit) parts.push(`in ${plain(submit.submit_dir)}`);
  return parts.join(" · ");
}

/** The most common failures and where they happened. */
function groupsOf(groups) {
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
    const [first] = found.hosts;
    const where = found.hosts.length === 1 ? `only on ${plain(first.host)}` : `on ${number(found.hosts.length)} hosts`;
    return h("div", { className: "group" }, h("strong", null, failure(error)), h("span", { className: "track" }, fill), h("span", null, `${count(found.tasks, "task")}, ${where}`));
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

/** Tasks in pages; the pages that were read are read again when something changed. */
function taskTable(id) {
  let [tasks, next, pages, isBusy] = [[], null, 1, false];
  const filter = h("select", { "aria-label": "State", onchange: () => { [tasks, next, pages] = [[], null, 1]; load().then(render); } }, h("option", { value: "" }, "all tasks"), STATES.map((name) => h("option", { value: name }, name)));
  const open = h("form", { className: "inline", onsubmit: (event) => { event.preventDefault(); if (/^\d+$/.test(field.value)) location.hash = `#/job/${id}/task/${field.value}`; } });
  const field = h("input", { inputmode: "numeric", placeholder: "task id", "aria-label": "Open the task with this id", size: 9 });
  open.append(field, h("button", { type: "submit" }, "Open"));
  const note = h("span", { className: "muted" });
  const list = new List({
    label: "Tasks",
    template: "tasks",
    rowHeight: 30,
    tall: 52,
    columns: [{ label: "Task", className: "right" }, { label: "State" }, { label: "Host" }, { label: "Took", className: "right" }, { label: "Memory", className: "right" }, { label: "Failure" }],
    row: () => taskRow(id),
    onOpen: (task) => { location.hash = `#/job/${id}/task/${task.id}`; },
    onEnd: () => { if (next !== null && tasks.length < TASKS_MAX && !isBusy) { pages += 1; load().then(render); } },
  });

  async function load() {
    if (isBusy) return;
    isBusy = true;
    try {
      const state = filter.value ? `&state=${filter.value}` : "";
      let [found, cursor] = [[], null];
      for (let page = 0; page < pages; page += 1) {
        const answer = await api.get(`/jobs/${id}/tasks?limit=${PAGE}${state}${cursor === null ? "" : `&cursor=${cursor}`}`);
        found = found.concat(answer.tasks);
        cursor = answer.next_cursor;
        if (cursor === null) break;
      }
      [tasks, next] = [found, cursor];
    } finally {
      isBusy = false;
    }
  }

  function render() {
    list.update(tasks);
    setText(note, next === null ? count(tasks.length, "task") : `the first ${number(tasks.length)}`);
  }

  return {
    element: h("section", { className: "panel wide" }, h("div", { className: "tools" }, h("h2", null, "Tasks"), filter, open, note), list.element),
    load,
    render,
    close: () => list.close(),
  };
}

function taskRow(id) {
  const link = h("a");
  const word = chip();
  const [host, took, memory, error] = [h("span", { className: "cut" }), h("span"), h("span"), h("span", { className: "cut bad" })];
  return {
    cells: [h("span", null, link), h("span", null, word.element), host, took, memory, error],
    update(task) {
      setText(link, number(task.id));
      link.href = `#/job/${id}/task/${task.id}`;
      word.update(task.state);
      setText(host, plain(task.host ?? ""));
      const until = task.finished_ms ?? (task.state === "running" ? state.summary?.now_ms : null);
      setText(took, task.started_ms && until ? duration(until - task.started_ms) : "");
      setText(memory, task.max_rss_bytes ? bytes(task.max_rss_bytes) : "");
      setText(error, task.error ? failure(task.error) : "");
    },
  };
}
