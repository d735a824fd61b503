// All jobs: searched, sorted, with their progress.

import { StateBar } from "../charts.js";
import { h, setText } from "../dom.js";
import { STATES, ended, jobState, number, plain, total } from "../format.js";
import { List } from "../list.js";
import { loaders, state } from "../live.js";
import { jobWord, starvation } from "../problems.js";
import { chip, view } from "./view.js";

const KEYS = {
  id: (job) => job.id,
  name: (job) => job.name,
  state: (job) => ["running", "failed", "waiting", "aborted", "canceled", "opened", "finished"].indexOf(jobState(job)),
  progress: (job) => ended(job.tasks) / Math.max(1, total(job.tasks)),
  tasks: (job) => total(job.tasks),
  failed: (job) => job.tasks.failed,
};
/** Sorted with the largest first at the first click. */
const DOWN_FIRST = new Set(["id", "progress", "tasks", "failed"]);

export function jobs() {
  const asked = new URLSearchParams(location.hash.split("?")[1] ?? "");
  let sort = "id";
  let isDown = true;
  const wanted = STATES.includes(asked.get("state")) ? asked.get("state") : "";
  if (wanted === "failed") sort = "failed";
  const search = h("input", { type: "search", placeholder: "Search jobs (/)", "aria-label": "Search jobs by name or id", oninput: () => render() });
  const filter = h("select", { "aria-label": "State of tasks", onchange: () => render() }, h("option", { value: "" }, "all jobs"), STATES.map((name) => h("option", { value: name }, `with ${name} tasks`)));
  filter.value = wanted;
  const figures = h("span", { className: "muted" });
  const list = new List({
    label: "Jobs",
    template: "jobs",
    columns: [
      { name: "id", label: "Job", sort: true, className: "right" },
      { name: "name", label: "Name", sort: true },
      { name: "state", label: "State", sort: true },
      { name: "progress", label: "Progress", sort: true },
      { name: "tasks", label: "Tasks", sort: true, className: "right" },
      { name: "failed", label: "Failed", sort: true, className: "right" },
    ],
    row,
    onOpen: (job) => { location.hash = `#/job/${job.id}`; },
    onSort: (name) => {
      isDown = sort === name ? !isDown : DOWN_FIRST.has(name);
      sort = name;
      render();
    },
  });

  function render() {
    const words = search.value.trim().toLowerCase();
    const key = KEYS[sort];
    const shown = [...state.jobs.values()].filter((job) => (!filter.value || job.tasks[filter.value] > 0) && (!words || String(job.id) === words || job.name.toLowerCase().includes(words)));
    const order = isDown ? -1 : 1;
    shown.sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      return (x < y ? -order : x > y ? order : 0) || b.id - a.id;
    });
    list.showSort(sort, isDown);
    list.update(shown);
    setText(figures, `${number(shown.length)} of ${number(state.jobs.size)} jobs${state.hasAllJobs ? "" : " (older ones are being read)"}`);
  }

  return view({
    title: "Jobs",
    element: h("div", { className: "full" }, h("div", { className: "tools" }, h("h1", null, "Jobs"), search, filter, figures), list.element),
    render,
    fresh: [loaders.jobs],
    parts: [list],
  });
}

function row() {
  const id = h("span");
  const link = h("a");
  const name = h("span", { className: "cut" }, link);
  const word = chip();
  const bar = new StateBar();
  const tasks = h("span");
  const failed = h("span");
  return {
    cells: [id, name, h("span", null, word.element), h("span", { className: "barcell" }, bar.element), tasks, failed],
    update(job) {
      setText(id, String(job.id));
      setText(link, plain(job.name) || "–");
      link.href = `#/job/${job.id}`;
      word.update(jobWord(job));
      word.element.title = plain(starvation(job));
      bar.update(job.tasks);
      setText(tasks, `${number(ended(job.tasks))}/${number(total(job.tasks))}`);
      setText(failed, job.tasks.failed ? number(job.tasks.failed) : "");
      failed.classList.toggle("bad", job.tasks.failed > 0);
    },
  };
}
