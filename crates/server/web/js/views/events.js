// Events of jobs, workers and allocations, newest first.

import * as api from "../api.js";
import { h, setText } from "../dom.js";
import { brief, count, moment, number, plain, total, zone } from "../format.js";
import { List } from "../list.js";
import { loaders, redraw, state } from "../live.js";
import { choose, chosen, oneOf } from "../url.js";
import { emptiness, view } from "./view.js";

/** Number of events per page of older ones. */
const PAGE = 500;
/** Number of events that a search examines before it pauses. */
const EVENTS_MAX = 20_000;

const BAD = /lost|fail|error|cancel|refus|pause/;

/** An event as a sentence. */
export function words(event) {
  const job = event.job ?? event.job_id;
  const worker = event.worker ?? (event.type?.startsWith("worker-") ? event.id : undefined);
  const named = (what, found) => (found === undefined || found === null || found === "" ? "" : `${what}${found}`);
  const parts = [
    named("job ", job), named("", event.job_desc?.name ?? event.name), named("worker ", worker), named("on ", event.configuration?.hostname),
    named("queue ", event["queue-id"]), named("allocation ", event["allocation-id"]),
  ].filter(Boolean);
  if (event.type === "job-completed") parts.push(...failures(state.jobs.get(job)));
  const tasks = tasksOf(event);
  if (tasks > 1) parts.push(count(tasks, "task"));
  const reason = event.reason ?? event.error;
  if (reason) parts.push(typeof reason === "string" ? reason : JSON.stringify(reason));
  return plain(brief(parts.join(" · "), 300));
}

/** Number of tasks that an event concerns: the tasks of a submit, or the dropped ones. */
function tasksOf(event) {
  const submitted = event.submit_desc?.task_desc?.ids?.ranges;
  if (submitted) return submitted.reduce((sum, range) => sum + range.count, 0);
  return event.task_count ?? event.tasks?.length ?? event.ranges?.reduce((sum, [, amount]) => sum + amount, 0) ?? 0;
}

/** Result of an ended job, unless all tasks finished. */
function failures(job) {
  if (!job?.tasks.failed) return [];
  return [job.name, `${number(job.tasks.failed)} of ${count(total(job.tasks), "task")} failed`];
}

export function events() {
  /** Events from the journal, newest first; older ones are read on demand. */
  let log = /** @type {{seq: number, at_ms: number, event: any}[]} */ ([]);
  let [isAll, isBusy, atSeq] = [false, false, -1];
  const search = h("input", { type: "search", placeholder: "Search events (/)", "aria-label": "Search events", value: chosen("q"), oninput: () => { choose({ q: search.value.trim() }, { isStep: false }); render(); } });
  const kind = h("select", { "aria-label": "Which events", onchange: () => { choose({ about: kind.value }); render(); } },
    [["", "all events"], ["job", "of jobs"], ["worker", "of workers"], ["alloc", "of allocations"], ["bad", "what went wrong"]].map(([value, label]) => h("option", { value }, label)));
  kind.value = oneOf("about", ["", "job", "worker", "alloc", "bad"]);
  const figures = h("span", { className: "muted", role: "status" });
  const list = new List({
    label: "Events, the newest first",
    template: "events",
    rowHeight: 28,
    tall: 50,
    id: (found) => found.seq,
    columns: [{ label: `Time (${zone()})` }, { label: "Event" }, { label: "What" }],
    row,
    onOpen: (found) => {
      const job = found.event.job ?? found.event.job_id;
      if (job !== undefined && job !== null) location.hash = `#/job/${job}`;
      else if (found.event.type.startsWith("worker-")) location.hash = `#/workers?worker=${found.event.worker ?? found.event.id}`;
    },
    onEnd: () => void older(),
  });

  const shaped = (found) => ({ seq: found.seq, at_ms: found.at_ms, event: { job: found.job, worker: found.worker, ...found.data, type: found.type } });

  async function load() {
    const answer = await api.get(`/log?limit=${PAGE}`);
    const fresh = answer.events.map(shaped);
    const last = fresh.at(-1)?.seq ?? 0;
    // Older events stay, unless some are missing in between.
    const kept = log.filter((found) => found.seq < last);
    const isJoined = log.length === 0 || (log[0].seq >= last);
    isAll = isJoined ? isAll || fresh.length < PAGE : fresh.length < PAGE;
    log = isJoined ? [...fresh, ...kept] : fresh;
    atSeq = log[0]?.seq ?? -1;
  }

  /** Reads the next page of older events. */
  async function older() {
    if (isBusy || isAll || log.length === 0 || log.length >= EVENTS_MAX) return;
    isBusy = true;
    try {
      const answer = await api.get(`/log?limit=${PAGE}&before=${log.at(-1)?.seq}`);
      log = [...log, ...answer.events.map(shaped)];
      isAll = answer.events.length < PAGE;
    } finally {
      isBusy = false;
    }
    redraw();
  }

  const isWanted = (found, asked) => {
    const { type } = found.event;
    if (kind.value === "bad" ? !isBadEvent(found) : kind.value && !type.startsWith(kind.value) && !type.startsWith(`${kind.value}ation`)) return false;
    return !asked || `${type.replaceAll("-", " ")} ${words(found.event)}`.toLowerCase().includes(asked);
  };

  function render() {
    const fresh = state.events.filter((found) => found.seq > atSeq).reverse();
    const asked = search.value.trim().toLowerCase();
    const all = [...fresh, ...log];
    const shown = all.filter((found) => isWanted(found, asked));
    list.update(shown);
    list.explain(!state.known.has("log") && state.hasStore ? null : all.length > 0 ? h("p", null, "No event is like that.") : emptiness("Nothing has happened yet.", "hq submit -- hostname"));
    setText(figures, `${number(shown.length)} of ${isAll ? "all" : "the last"} ${number(all.length)}`);
    // A search continues after the events that were read.
    if ((asked || kind.value) && shown.length < PAGE) void older();
  }

  return view({
    title: "Events",
    element: h("div", { className: "full" }, h("div", { className: "tools" }, h("h1", null, "Events"), search, kind, figures), list.element),
    render,
    list,
    fresh: [["log", load, 2_000], loaders.jobs],
    parts: [list],
  });
}

/** The event itself is a problem: a loss, a failure or a rejection. */
const isBadKind = (found) => BAD.test(found.event.type) || BAD.test(String(found.event.reason ?? ""));
/** A job ended with failed tasks. The end itself is not a problem. */
const isBadEnd = (found) => found.event.type === "job-completed" && (state.jobs.get(found.event.job ?? found.event.job_id)?.tasks.failed ?? 0) > 0;
const isBadEvent = (found) => isBadKind(found) || isBadEnd(found);

function row() {
  const [at, kind, text] = [h("span"), h("span", { className: "cut" }), h("span", { className: "cut" })];
  return {
    cells: [at, kind, text],
    update(found) {
      setText(at, moment(found.at_ms));
      setText(kind, found.event.type.replaceAll("-", " "));
      setText(text, words(found.event));
      kind.classList.toggle("bad", isBadKind(found));
      text.classList.toggle("bad", isBadEnd(found));
    },
  };
}
