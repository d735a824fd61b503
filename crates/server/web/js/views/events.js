// What happened to jobs, workers and allocations, the newest first.

import * as api from "../api.js";
import { h, setText } from "../dom.js";
import { brief, clock, count, number, plain, total } from "../format.js";
import { List } from "../list.js";
import { loaders, state } from "../live.js";
import { view } from "./view.js";

const BAD = /lost|fail|error|cancel|refus|pause/;

/** An event as a sentence. */
export function words(event) {
  const parts = [];
  const job = event.job ?? event.job_id;
  const worker = event.worker ?? (event.type?.startsWith("worker-") ? event.id : undefined);
  if (job !== undefined && job !== null) parts.push(`job ${job}`);
  if (event.job_desc?.name ?? event.name) parts.push(event.job_desc?.name ?? event.name);
  if (worker !== undefined && worker !== null) parts.push(`worker ${worker}`);
  if (event.configuration?.hostname) parts.push(`on ${event.configuration.hostname}`);
  if (event["queue-id"] !== undefined) parts.push(`queue ${event["queue-id"]}`);
  if (event["allocation-id"]) parts.push(`allocation ${event["allocation-id"]}`);
  if (event.type === "job-completed") parts.push(...failures(state.jobs.get(job)));
  const reason = event.reason ?? event.error;
  if (reason) parts.push(typeof reason === "string" ? reason : JSON.stringify(reason));
  return plain(brief(parts.join(" · "), 300));
}

/** What came of a job that has ended, if it was not all good. */
function failures(job) {
  if (!job?.tasks.failed) return [];
  return [job.name, `${number(job.tasks.failed)} of ${count(total(job.tasks), "task")} failed`];
}

export function events() {
  let log = [];
  const search = h("input", { type: "search", placeholder: "Search events (/)", "aria-label": "Search events", oninput: () => render() });
  const figures = h("span", { className: "muted" });
  const list = new List({
    label: "Events, the newest first",
    template: "events",
    rowHeight: 28,
    tall: 50,
    columns: [{ label: "Time" }, { label: "Event" }, { label: "What" }],
    row,
    onOpen: (found) => {
      const job = found.event.job ?? found.event.job_id;
      if (job !== undefined && job !== null) location.hash = `#/job/${job}`;
    },
  });

  async function load() {
    const answer = await api.get("/log?limit=500");
    log = answer.events.map((found) => ({ seq: found.seq, at_ms: found.at_ms, event: { job: found.job, worker: found.worker, ...found.data, type: found.type } }));
  }

  function render() {
    const newest = log[0]?.seq ?? -1;
    const fresh = state.events.filter((found) => found.seq > newest).reverse();
    const asked = search.value.trim().toLowerCase();
    const all = [...fresh, ...log];
    const shown = asked ? all.filter((found) => `${found.event.type} ${words(found.event)}`.toLowerCase().includes(asked)) : all;
    list.update(shown);
    setText(figures, `the last ${number(shown.length)}`);
  }

  return view({
    title: "Events",
    element: h("div", { className: "full" }, h("div", { className: "tools" }, h("h1", null, "Events"), search, figures), list.element),
    render,
    fresh: [["log", load, 2_000], loaders.jobs],
    parts: [list],
  });
}

function row() {
  const [at, kind, text] = [h("span"), h("span", { className: "cut" }), h("span", { className: "cut" })];
  return {
    cells: [at, kind, text],
    update(found) {
      setText(at, clock(found.at_ms));
      setText(kind, found.event.type.replaceAll("-", " "));
      setText(text, words(found.event));
      const isBad = BAD.test(found.event.type) || BAD.test(String(found.event.reason ?? "")) || (found.event.type === "job-completed" && state.jobs.get(found.event.job ?? found.event.job_id)?.tasks.failed > 0);
      kind.classList.toggle("bad", isBad);
    },
  };
}
