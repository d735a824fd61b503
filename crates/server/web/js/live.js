// State of the server, kept fresh: events report changes, and small requests fetch them.

import * as api from "./api.js";

/** Minimum interval of requests for one source. */
const FRESH_MS = 400;
/** Maximum interval of requests for one source, without events. */
const STALE_MS = 5_000;
/** A tab that was hidden for longer starts over instead of processing every missed event. */
const HIDDEN_MS_MAX = 60_000;
const SAMPLES_MAX = 1_500;
const EVENTS_MAX = 1_000;
const JOBS_MAX = 50_000;

/** @typedef {import("api").components["schemas"]} Schemas */

export const state = {
  /** @type {Schemas["Server"] | null} */
  server: null,
  /** @type {Schemas["Summary"] | null} */
  summary: null,
  /** @type {Map<number, Schemas["ListedJob"]>} */
  jobs: new Map(),
  hasAllJobs: false,
  /** @type {Schemas["Worker"][]} */
  workers: [],
  /** @type {Schemas["Queue"][]} */
  queues: [],
  /** @type {Schemas["Limit"][]} */
  limits: [],
  /** @type {Schemas["Share"][]} */
  shares: [],
  /** @type {Schemas["Problem"][]} */
  problems: [],
  problemCount: 0,
  /** Problems that are neither over nor acknowledged. */
  openProblemCount: 0,
  isProblemCut: false,
  hasProblems: false,
  /** Events of jobs, workers and allocations since the page was opened. @type {{seq: number, at_ms: number, event: any}[]} */
  events: [],
  /** Sums over time. @type {Sample[]} */
  samples: [],
  /** "live", "away", "polling", "none", "stranger" or "report". */
  link: "away",
  hasStore: true,
  /** Time of the last sign of life of the server, by our clock; 0 = never. */
  answeredAt: 0,
  /** Sources that have answered at least once. @type {Set<string>} */
  known: new Set(),
};

/**
 * @typedef {{at: number, running: number, ended: number, finished: number, failed: number, cpusUsed: number, cpusTotal: number}} Sample
 * @typedef {{name: string, load: () => Promise<void>, rest: number, job: number | null, users: number, seen: number, due: number, isBusy: boolean}} Source
 */

/** @type {Set<() => void>} */
const renderers = new Set();
/** @type {Set<(events: any[]) => void>} */
const listeners = new Set();
/** @type {Set<() => void>} */
const gapListeners = new Set();
/** @type {Map<string, Source>} */
const sources = new Map();
let changes = 0;
/** Changes that may concern any job, and changes of single jobs. */
let touches = 0;
const jobChanges = new Map();
let isScheduled = false;

/** Calls `render` before the next frame after each change; returns a function that stops it. */
export function onChange(render) {
  renderers.add(render);
  return () => renderers.delete(render);
}

/** Calls `listener` with all events; returns a function that stops it. */
export function onEvents(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Calls `listener` when events are missing: data built from them must be read again. Returns a function that stops it. */
export function onGap(listener) {
  gapListeners.add(listener);
  return () => gapListeners.delete(listener);
}

/** Redraws soon. */
export function redraw() {
  if (isScheduled) return;
  isScheduled = true;
  requestAnimationFrame(() => {
    isScheduled = false;
    for (const render of [...renderers]) render();
  });
}

/**
 * Keeps a source fresh while it is used: calls `load` again after events, at most every
 * `rest` ms; a source of one `job` only after events of this job. Returns a function that stops it.
 * @param {string} name @param {() => Promise<void>} load @param {number} [rest] @param {number | null} [job]
 */
export function keepFresh(name, load, rest = FRESH_MS, job = null) {
  const found = sources.get(name) ?? { name, load, rest, job, users: 0, seen: -1, due: 0, isBusy: false };
  found.load = load;
  found.job = job;
  found.users += 1;
  found.due = 0;
  found.seen = -1;
  sources.set(name, found);
  run(found);
  let isEnded = false;
  return () => {
    if (isEnded) return;
    isEnded = true;
    found.users -= 1;
    if (found.users === 0) sources.delete(name);
  };
}

const version = (source) => (source.job === null ? changes : touches + (jobChanges.get(source.job) ?? 0));

/** Notes the jobs that events concern. */
function note(events) {
  changes += 1;
  for (const { event } of events) {
    const job = event.job ?? event.job_id ?? event.tasks?.[0]?.job_id;
    if (typeof job === "number") jobChanges.set(job, (jobChanges.get(job) ?? 0) + 1);
    else if (!event.type?.startsWith("worker-")) touches += 1;
  }
  if (jobChanges.size > JOBS_MAX) {
    jobChanges.clear();
    touches += 1;
  }
}

/** An action was carried out: fetches everything again at once. */
export function touch() {
  changes += 1;
  touches += 1;
  for (const source of sources.values()) {
    source.due = 0;
    run(source);
  }
}

async function run(source) {
  if (state.link === "stranger") return;
  const now = performance.now();
  if (source.isBusy || (document.hidden && !api.report) || now < source.due) return;
  const current = version(source);
  if (source.seen === current && now < source.due + STALE_MS - source.rest) return;
  source.isBusy = true;
  source.seen = current;
  try {
    await source.load();
    state.answeredAt = Date.now();
    state.known.add(source.name);
    redraw();
  } catch (error) {
    if (error.status === 404) source.due = performance.now() + STALE_MS;
    else if (!(error instanceof api.ApiError) && error.name !== "AbortError") console.error(error);
  }
  source.isBusy = false;
  // A slow answer, because of a slow line or a busy server, is requested less often.
  const took = performance.now() - now;
  source.due = Math.max(source.due, performance.now() + Math.max(source.rest - took, took));
}

async function loadSummary() {
  const found = await api.get("/summary");
  state.summary = found;
  const cpus = found.resources.find((resource) => resource.name === "cpus");
  state.samples.push({
    at: found.now_ms,
    running: found.tasks.running,
    ended: found.ended_since_start,
    finished: found.tasks.finished,
    failed: found.tasks.failed,
    cpusUsed: (cpus?.used_units ?? 0) / 10_000,
    cpusTotal: (cpus?.total_units ?? 0) / 10_000,
  });
  if (state.samples.length > SAMPLES_MAX) state.samples.splice(0, SAMPLES_MAX / 3);
}

async function loadJobs() {
  const page = await api.get("/jobs?limit=1000");
  if (areJobsOld) state.jobs.clear();
  areJobsOld = false;
  take(page.jobs);
  // Jobs of older pages change as well, as long as they are not over.
  const lowest = page.jobs.at(-1)?.id ?? 0;
  const known = new Set(page.jobs.map((job) => job.id));
  for (const id of state.jobs.keys()) {
    if (id >= lowest && !known.has(id)) state.jobs.delete(id);
  }
  state.hasAllJobs = page.next_before === null;
  if (!state.hasAllJobs) void loadOlderJobs(page.next_before);
}

let olderDue = 0;
let isLoadingOlder = false;

/** @param {number} first */
async function loadOlderJobs(first) {
  if (isLoadingOlder || performance.now() < olderDue) return;
  isLoadingOlder = true;
  try {
    const begun = performance.now();
    /** @type {number | null} */
    let before = first;
    while (before !== null && state.jobs.size < JOBS_MAX) {
      const page = await api.get(`/jobs?limit=1000&before=${before}`);
      take(page.jobs);
      before = page.next_before;
      redraw();
    }
    olderDue = performance.now() + Math.max(STALE_MS, 10 * (performance.now() - begun));
  } catch {
    olderDue = performance.now() + STALE_MS;
  }
  isLoadingOlder = false;
}

function take(jobs) {
  for (const job of jobs) state.jobs.set(job.id, job);
}

/**
 * Loaders that several views share, as arguments of `keepFresh`.
 * @type {Record<"summary" | "jobs" | "workers" | "queues" | "limits" | "problems" | "shares", [string, () => Promise<void>, number?]>}
 */
export const loaders = {
  summary: ["summary", loadSummary],
  jobs: ["jobs", loadJobs],
  workers: ["workers", async () => { state.workers = (await api.get("/workers")).workers; }],
  queues: ["queues", async () => { state.queues = (await api.get("/queues")).queues; }, 1_000],
  limits: ["limits", async () => { state.limits = (await api.get("/limits")).limits; }, 1_000],
  problems: ["problems", async () => {
    const found = await api.get("/problems");
    state.problems = found.problems;
    state.problemCount = found.count;
    state.openProblemCount = found.open_count;
    state.isProblemCut = found.is_cut;
    state.hasProblems = true;
  }, 800],
  shares: ["shares", async () => { state.shares = (await api.get("/ended")).shares; }, 800],
};

/** @type {(() => void) | null} */
let end = null;
let hiddenAt = 0;
/** Whether known jobs may belong to another server. */
let areJobsOld = false;

/** Starts over: events are missing, or belong to another server. */
function forgetEvents() {
  state.events = [];
  areJobsOld = true;
  olderDue = 0;
  for (const listener of gapListeners) listener();
  touch();
}

function connect() {
  end?.();
  end = api.follow(
    (events) => {
      note(events);
      state.answeredAt = Date.now();
      for (const found of events) {
        const { type } = found.event;
        if (type && !type.startsWith("task-") && type !== "worker-overview") state.events.push(found);
      }
      if (state.events.length > EVENTS_MAX) state.events.splice(0, state.events.length - EVENTS_MAX);
      for (const listener of listeners) listener(events);
      for (const source of sources.values()) run(source);
    },
    (link) => {
      state.link = link;
      state.hasStore = link !== "none";
      if (link === "live") touch();
      redraw();
    },
    forgetEvents,
  );
}

/** Starts; never stops. */
export async function start() {
  await api.ready();
  connect();
  keepFresh("server", async () => { state.server = await api.get("/server"); }, 30_000);
  keepFresh(...loaders.summary);
  keepFresh(...loaders.problems);
  // Nothing changes any more.
  if (api.report) return;
  setInterval(() => {
    // Without events, everything may have changed.
    if (state.link === "none" || state.link === "polling") {
      changes += 1;
      touches += 1;
    }
    for (const source of sources.values()) run(source);
  }, FRESH_MS / 4);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) hiddenAt = performance.now();
    else {
      if (performance.now() - hiddenAt > HIDDEN_MS_MAX) {
        connect();
        forgetEvents();
      } else touch();
    }
  });
}
