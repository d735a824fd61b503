// All jobs: searched, filtered and sorted, with their progress.

import * as api from "../api.js";
import { StateBar } from "../charts.js";
import { jobCommands } from "../dialog.js";
import { h, setText } from "../dom.js";
import { STATES, done, duration, moment, number, plain, total, zone } from "../format.js";
import { List } from "../list.js";
import { loaders, redraw, state } from "../live.js";
import { jobWord, starvation } from "../problems.js";
import { choose, chosen, oneOf } from "../url.js";
import { chip, emptiness, view } from "./view.js";

/** Order of states: first running jobs, then jobs that need attention. @type {Record<import("../live.js").Schemas["Job"]["state"], number>} */
const STATE_ORDER = { running: 0, failed: 1, waiting: 2, aborted: 3, canceled: 4, opened: 5, finished: 6 };
/** Sort key of each column. @type {Record<string, (job: any) => number | string>} */
const KEYS = {
  id: (job) => job.id,
  name: (job) => job.name,
  state: (job) => STATE_ORDER[job.state],
  progress: (job) => done(job.tasks) / Math.max(1, total(job.tasks)),
  tasks: (job) => total(job.tasks),
  failed: (job) => job.tasks.failed,
  submitted: (job) => job.submitted_ms,
  elapsed: (job) => (job.finished_ms ?? Infinity) - job.submitted_ms,
  left: (job) => job.left_ms ?? -1,
  workers: (job) => job.worker_count,
  resources: (job) => job.resources,
};
/** Columns that sort the largest first at the first click. */
const DOWN_FIRST = new Set(["id", "progress", "tasks", "failed", "submitted", "elapsed", "left", "workers"]);
/** Delay between typing and the request. */
const TYPING_MS = 250;
/** Pause before a slow search is repeated, as a multiple of its duration: it examines all jobs. */
const REST_FACTOR = 20;

export function jobs() {
  const search = h("input", { type: "search", placeholder: "Name, command, host, failure (/)", "aria-label": "Search jobs by id, name, command, directory, host or failure", value: chosen("q"), oninput: () => typed() });
  const filter = h("select", { "aria-label": "State of tasks", onchange: () => { choose({ state: filter.value }); render(); } }, h("option", { value: "" }, "all jobs"), STATES.map((name) => h("option", { value: name }, `with ${name} tasks`)));
  filter.value = oneOf("state", ["", ...STATES]);
  const figures = h("span", { className: "muted", role: "status" });
  /** Matches from the server, which knows more about jobs than this page. @type {{words: string, ids: Set<number>, isAll: boolean} | null} */
  let found = null;
  let [timer, restUntil] = [0, 0];

  const sorted = () => {
    const name = chosen("sort").replace(/^-/, "");
    if (!(name in KEYS)) return { name: filter.value === "failed" ? "failed" : "id", isDown: true };
    return { name, isDown: chosen("sort").startsWith("-") };
  };
  const columns = [
    { name: "id", label: "Job", className: "right" }, { name: "name", label: "Name" }, { name: "state", label: "State" },
    { name: "progress", label: "Progress" }, { name: "tasks", label: "Tasks", className: "right" }, { name: "failed", label: "Failed", className: "right" },
    { name: "submitted", label: `Submitted (${zone()})` }, { name: "elapsed", label: "Elapsed", className: "right" }, { name: "left", label: "Left", className: "right" },
    { name: "workers", label: "Workers", className: "right" }, { name: "resources", label: "Each task" },
  ].map((column) => ({ ...column, sort: true }));
  const list = new List({
    label: "Jobs",
    template: "jobs",
    id: (job) => job.id,
    columns,
    row,
    onOpen: (job) => { location.hash = `#/job/${job.id}`; },
    onSort: (name) => {
      const before = sorted();
      const isDown = before.name === name ? !before.isDown : DOWN_FIRST.has(name);
      choose({ sort: `${isDown ? "-" : ""}${name}` });
      render();
    },
  });

  const words = () => search.value.trim().toLowerCase();

  function typed() {
    choose({ q: search.value.trim() }, { isStep: false });
    render();
    clearTimeout(timer);
    timer = setTimeout(() => void ask().then(redraw), TYPING_MS);
  }

  /** Asks the server for matches in data that is missing here: commands, directories, hosts, failures. */
  async function ask() {
    const asked = words();
    if (!asked) {
      found = null;
      return;
    }
    const begun = performance.now();
    if (found?.words === asked && begun < restUntil) return;
    /** @type {Set<number>} */
    const ids = new Set();
    let before = null;
    do {
      const page = await api.get(`/jobs?limit=1000&q=${encodeURIComponent(asked)}${before === null ? "" : `&before=${before}`}`);
      if (words() !== asked) return;
      for (const job of page.jobs) {
        ids.add(job.id);
        state.jobs.set(job.id, job);
      }
      before = page.next_before;
      found = { words: asked, ids, isAll: before === null };
      redraw();
    } while (before !== null);
    restUntil = performance.now() + REST_FACTOR * (performance.now() - begun);
  }

  function matches(job, asked) {
    if (!asked) return true;
    if (String(job.id) === asked || job.name.toLowerCase().includes(asked)) return true;
    return found !== null && found.words === asked && found.ids.has(job.id);
  }

  function render() {
    const asked = words();
    const { name, isDown } = sorted();
    const key = KEYS[name];
    const shown = [...state.jobs.values()].filter((job) => (!filter.value || job.tasks[filter.value] > 0) && matches(job, asked));
    const order = isDown ? -1 : 1;
    shown.sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      return (x < y ? -order : x > y ? order : 0) || b.id - a.id;
    });
    list.showSort(name, isDown);
    list.update(shown);
    list.explain(!state.known.has("jobs") ? null : state.jobs.size === 0 ? emptiness("There is no job yet.", "hq submit -- hostname", "hq doc quickstart") : h("p", null, "No job is like that."));
    const isSearching = asked && !(found?.words === asked && found.isAll);
    setText(figures, `${number(shown.length)} of ${number(state.jobs.size)} jobs${isSearching ? ", searching …" : state.hasAllJobs ? "" : " (older ones are being read)"}`);
  }

  return view({
    title: "Jobs",
    element: h("div", { className: "full" }, h("div", { className: "tools" }, h("h1", null, "Jobs"), search, filter, figures), list.element),
    render,
    list,
    commands: () => (list.isMoved && list.current ? jobCommands(list.current) : []),
    fresh: [loaders.jobs, ["search", ask, 2_000]],
    parts: [list],
    close: () => clearTimeout(timer),
  });
}

function row() {
  const [id, tasks, failed, submitted, elapsed, left, workers] = Array.from({ length: 7 }, () => h("span"));
  const resources = h("span", { className: "cut" });
  const link = h("a");
  const name = h("span", { className: "cut" }, link);
  const word = chip();
  const bar = new StateBar();
  return {
    cells: [id, name, h("span", null, word.element), h("span", { className: "barcell" }, bar.element), tasks, failed, submitted, elapsed, left, workers, resources],
    update(job) {
      setText(id, String(job.id));
      setText(link, plain(job.name) || "–");
      link.href = `#/job/${job.id}`;
      word.update(jobWord(job));
      word.element.title = plain(starvation(job));
      bar.update(job.tasks);
      setText(tasks, `${number(done(job.tasks))} of ${number(total(job.tasks))}`);
      setText(failed, job.tasks.failed ? number(job.tasks.failed) : "");
      failed.classList.toggle("bad", job.tasks.failed > 0);
      setText(submitted, moment(job.submitted_ms));
      setText(elapsed, duration((job.finished_ms ?? state.summary?.now_ms ?? job.submitted_ms) - job.submitted_ms));
      setText(left, job.left_ms === null ? "" : duration(job.left_ms));
      setText(workers, job.worker_count ? number(job.worker_count) : "");
      setText(resources, plain(job.resources));
    },
  };
}
