// The table of the tasks of a job: filtered and searched by the server, read page by page while scrolling.

import * as api from "./api.js";
import { h, setText } from "./dom.js";
import { STATES, count, duration, failure, number, peakMemory, plain } from "./format.js";
import { List } from "./list.js";
import { redraw, state } from "./live.js";
import { choose, chosen, oneOf } from "./url.js";
import { chip } from "./views/view.js";

const PAGE = 200;
/** Tasks that the table reads again after a change; later tasks are read once. */
const FRESH_MAX = 2_000;
/** Maximum parameters with a column; the page of the task shows the others. */
const COLUMNS_MAX = 6;
/** Position of the columns of parameters. */
const PARAMS_AT = 2;
/** Maximum tasks in the table. */
const TASKS_MAX = 200_000;
const TYPING_MS = 250;
/** Maximum tasks that one search request examines. */
const SEARCH_PAGE = 1_000;
/** Pause before a slow search is repeated, as a multiple of its duration: it examines all tasks. */
const REST_FACTOR = 20;

export class TaskTable {
  /** @param {number} job */
  constructor(job) {
    this.job = job;
    /** @type {any[]} */
    this.tasks = [];
    /** Cursor of the next page; `null` = none. */
    this.next = null;
    /** Number of the present query: answers to an older one are discarded. */
    this.question = 0;
    this.isBusy = false;
    this.isKnown = false;
    this.timer = 0;
    /** Parameters with a column. @type {string[]} */
    this.names = [];
    /** Earliest time of the next search. */
    this.restUntil = 0;
    this.state = h("select", { "aria-label": "State", onchange: () => this.filter(this.state.value) }, h("option", { value: "" }, "all tasks"), STATES.map((name) => h("option", { value: name }, name)));
    this.state.value = oneOf("state", ["", ...STATES]);
    this.search = h("input", { type: "search", placeholder: "Host, failure, name=value … (/)", "aria-label": "Search tasks by id, host, failure, command, entry or parameter", value: chosen("q"), oninput: () => this.#typed() });
    const field = h("input", { inputmode: "numeric", placeholder: "task id", "aria-label": "Open the task with this id", size: 9 });
    const open = h("form", { className: "inline", onsubmit: (event) => { event.preventDefault(); if (/^\d{1,10}$/.test(field.value)) location.hash = `#/job/${job}/task/${field.value}`; } }, field, " ", h("button", { type: "submit" }, "Open"));
    this.note = h("span", { className: "muted", role: "status" });
    this.list = new List({
      label: "Tasks",
      template: "tasks",
      rowHeight: 30,
      tall: 52,
      id: (task) => task.id,
      columns: [{ label: "Task", className: "right" }, { label: "State" }, { label: "Parameters", className: "params" }, { label: "Host" }, { label: "Took", className: "right" }, { label: "Memory", className: "right" }, { label: "Failure" }],
      row: () => taskRow(job, this.names),
      onOpen: (task) => { location.hash = `#/job/${job}/task/${task.id}`; },
      onEnd: () => void this.#more(),
    });
    this.element = h("section", { className: "panel wide" }, h("div", { className: "tools" }, h("h2", null, "Tasks"), this.search, this.state, open, this.note), this.list.element);
  }

  close() {
    clearTimeout(this.timer);
    this.question += 1;
    this.list.close();
  }

  /** Shows tasks of one state, or all. @param {string} name */
  filter(name) {
    this.state.value = name;
    choose({ state: name });
    void this.#begin();
    this.list.focus();
  }

  /** Shows the tasks that match a text. @param {string} text */
  find(text) {
    this.search.value = text;
    choose({ q: text });
    void this.#begin();
    this.list.focus();
  }

  /** A column for each parameter. @param {string[]} names */
  showParameters(names) {
    const shown = names.slice(0, COLUMNS_MAX);
    if (shown.join() === this.names.join()) return;
    this.names.splice(0, Infinity, ...shown);
    this.list.element.style.setProperty("--params", String(shown.length));
    this.list.element.classList.toggle("swept", shown.length > 0);
    this.list.heads[PARAMS_AT].replaceChildren(...shown.map((name) => h("span", { className: "cut" }, plain(name))));
    this.list.remake();
  }

  #typed() {
    choose({ q: this.search.value.trim() }, { isStep: false });
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.#begin(), TYPING_MS);
  }

  async #begin() {
    this.question += 1;
    [this.tasks, this.next, this.isKnown, this.isBusy, this.restUntil] = [[], null, false, false, 0];
    await this.load();
    redraw();
  }

  /** @param {number | null} cursor @param {number} limit */
  #ask(cursor, limit) {
    const isSearch = this.search.value.trim() !== "";
    const asked = new URLSearchParams({ limit: String(isSearch ? SEARCH_PAGE : limit) });
    if (this.state.value) asked.set("state", this.state.value);
    if (isSearch) asked.set("q", this.search.value.trim());
    if (cursor !== null) asked.set("cursor", String(cursor));
    return api.get(`/jobs/${this.job}/tasks?${asked}`);
  }

  /** Reads the first pages again, as many as were read. */
  async load() {
    const begun = performance.now();
    if (begun < this.restUntil) return;
    await this.#exclusively(async (isCurrent) => {
      const wanted = Math.max(PAGE, Math.min(FRESH_MAX, this.tasks.length));
      /** @type {any[]} */
      let found = [];
      let cursor = null;
      do {
        const answer = await this.#ask(cursor, Math.min(SEARCH_PAGE, wanted - found.length));
        if (!isCurrent()) return;
        found = found.concat(answer.tasks);
        cursor = answer.next_cursor;
        // A search may examine many tasks before the first match.
        if (found.length < PAGE && cursor !== null) this.#show(found, cursor);
      } while (cursor !== null && found.length < wanted);
      const isLonger = this.tasks.length > found.length && cursor !== null;
      this.#show(isLonger ? found.concat(this.tasks.slice(found.length)) : found, isLonger ? this.next : cursor);
    });
    if (this.search.value.trim()) this.restUntil = performance.now() + REST_FACTOR * (performance.now() - begun);
  }

  async #more() {
    if (this.next === null || this.tasks.length >= TASKS_MAX) return;
    await this.#exclusively(async (isCurrent) => {
      const answer = await this.#ask(this.next, PAGE * 2);
      if (!isCurrent()) return;
      this.#show(this.tasks.concat(answer.tasks), answer.next_cursor);
    });
    redraw();
  }

  #show(tasks, next) {
    [this.tasks, this.next, this.isKnown] = [tasks, next, true];
    redraw();
  }

  async #exclusively(work) {
    if (this.isBusy) return;
    const { question } = this;
    this.isBusy = true;
    try {
      await work(() => this.question === question);
    } catch (error) {
      if (!(error instanceof api.ApiError)) throw error;
      if (error.status === 400) setText(this.note, error.message);
    } finally {
      if (this.question === question) this.isBusy = false;
    }
  }

  render() {
    this.list.update(this.tasks);
    this.list.explain(this.isKnown && this.next === null ? h("p", null, this.search.value || this.state.value ? "No task is like that." : "This job has no tasks yet.") : null);
    if (!this.isKnown) setText(this.note, "reading …");
    else setText(this.note, this.next === null ? count(this.tasks.length, "task") : `the first ${number(this.tasks.length)}, more below`);
  }
}

/** @param {number} id @param {string[]} names */
function taskRow(id, names) {
  const values = names.map(() => h("span", { className: "cut" }));
  const link = h("a");
  const word = chip();
  const [host, took, memory, error] = [h("span", { className: "cut" }), h("span"), h("span"), h("span", { className: "cut bad" })];
  return {
    cells: [h("span", null, link), h("span", null, word.element), h("span", null, values), host, took, memory, error],
    update(task) {
      setText(link, number(task.id));
      link.href = `#/job/${id}/task/${task.id}`;
      word.update(task.state);
      names.forEach((name, at) => setText(values[at], plain(task.params?.[name] ?? "")));
      setText(host, plain(task.host ?? ""));
      const until = task.finished_ms ?? (task.state === "running" ? state.summary?.now_ms : null);
      setText(took, task.started_ms && until ? duration(until - task.started_ms) : "");
      setText(memory, task.max_rss_bytes ? peakMemory(task.max_rss_bytes) : "");
      setText(error, task.error ? failure(task.error) : "");
    },
  };
}
