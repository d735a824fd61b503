// Data of the timeline: tasks around the visible period, or sums if there are too many; updated by
// events, and read again after gaps.

import * as api from "../api.js";
import { onEvents, onGap, state } from "../live.js";
import { Bars } from "./bars.js";

const STEPS = 400;
const BARS_MAX = 150_000;
const LOAD_PAUSE_MS = 250;
/** Sums age; events keep tasks up to date. */
const STEPS_FRESH_MS = 2_500;
/** Pause between requests, as a multiple of the server's time for the last one. */
const COST_FACTOR = 50;

/**
 * A worker of the timeline, including workers that the server has forgotten.
 * @typedef {{id: number, host: string, started_ms: number, ended_ms: number | null, cpus: number}} TimelineWorker
 */
/**
 * @typedef {object} Loaded
 * @property {number} from
 * @property {number} to
 * @property {number} first When the first job was submitted.
 * @property {[number, number, number, number, number][] | null} steps Sums, if there are too many tasks.
 * @property {number} stepMs
 * @property {number} rest For how many ms the sums will do.
 * @property {number} at When they were read.
 * @property {boolean} isCut
 * @property {boolean} isLive Whether events keep it up to date.
 */

export class TimelineSource {
  /** @param {import("./window.js").TimeWindow} shown @param {() => void} onChange */
  constructor(shown, onChange) {
    this.window = shown;
    this.onChange = onChange;
    /** @type {Map<number, TimelineWorker>} */
    this.past = new Map();
    this.bars = new Bars((worker) => this.cpusOf(worker), (job) => state.jobs.get(job)?.cpus ?? 1);
    /** @type {Loaded | null} */
    this.loaded = null;
    this.problem = "";
    this.isLoading = false;
    this.isClosed = false;
    this.loadAt = 0;
    /** Events that arrived while it was loading. @type {any[]} */
    this.missed = [];
    this.ends = [onEvents((events) => this.take(events)), onGap(() => this.forget())];
  }

  close() {
    this.isClosed = true;
    for (const end of this.ends) end();
  }

  /** A worker from the server's state, or from the journal. @param {number} id @returns {TimelineWorker | undefined} */
  worker(id) {
    const found = state.workers.find((worker) => worker.id === id);
    if (!found) return this.past.get(id);
    const cpus = found.resources.find((one) => one.name === "cpus")?.total ?? 0;
    return { id, host: found.host, started_ms: found.started_ms, ended_ms: found.ended_ms, cpus };
  }

  /** @param {number} id */
  cpusOf(id) {
    return this.worker(id)?.cpus ?? 0;
  }

  /** Loads missing data a little later. */
  want() {
    if (this.loadAt === 0) this.loadAt = performance.now() + LOAD_PAUSE_MS;
  }

  /** Loads due data. @param {number} time As frames count it. */
  tick(time) {
    if (this.loadAt > 0 && time >= this.loadAt) void this.load();
    if (!this.isLoading && this.loadAt === 0 && !this.isCovered() && !this.problem) this.want();
  }

  isCovered() {
    const { loaded, window: { from, to, span } } = this;
    if (!loaded) return false;
    // There is nothing more.
    if (api.report) return true;
    if (loaded.steps) return performance.now() - loaded.at < loaded.rest && from >= loaded.from && span > (loaded.to - loaded.from) / 4;
    return from >= loaded.from && (to <= loaded.to || loaded.isLive);
  }

  async load() {
    this.loadAt = 0;
    if (this.isLoading || this.isCovered()) return;
    this.isLoading = true;
    try {
      const { from, to, span } = this.window;
      const present = this.window.now();
      const [a, b] = [Math.max(0, Math.floor(from - span / 2)), Math.ceil(Math.min(to + span / 2, present + 60_000))];
      const answer = await api.get(`/timeline?from_ms=${Math.min(a, b - 1)}&to_ms=${b}&steps=${STEPS}`);
      if (this.isClosed) return;
      this.use(answer, present);
      this.problem = "";
    } catch (error) {
      this.problem = error.message;
    } finally {
      this.isLoading = false;
    }
    this.onChange();
  }

  use(answer, present) {
    const { tasks, steps } = answer;
    this.loaded = {
      from: answer.from_ms,
      to: answer.to_ms,
      first: answer.first_ms || present - 600_000,
      steps,
      stepMs: (answer.step_us ?? 0) / 1000,
      rest: Math.max(STEPS_FRESH_MS, (answer.cost_ms ?? 0) * COST_FACTOR),
      at: performance.now(),
      isCut: answer.is_cut === true,
      isLive: tasks !== null && answer.to_ms >= present,
    };
    this.past = new Map(answer.workers.map((worker) => [worker.id, worker]));
    for (const row of tasks ?? []) row[1] += answer.from_ms;
    this.bars.load(tasks ?? []);
    for (const worker of state.workers) if (worker.state === "connected") this.bars.rowOf(worker.id);
    for (const [worker] of steps ?? []) this.bars.rowOf(worker);
    for (const found of this.missed.splice(0)) this.bars.take(found);
  }

  /** @param {any[]} events */
  take(events) {
    const { bars, loaded, window: { from, span } } = this;
    for (const found of events) {
      if (!/^tasks?-/.test(found.event.type ?? "")) continue;
      if (this.isLoading && this.missed.length < BARS_MAX) this.missed.push(found);
      if (loaded?.isLive) bars.take(found);
    }
    if (bars.length > BARS_MAX) {
      bars.prune(from - span / 2);
      if (loaded) loaded.from = Math.max(loaded.from, from - span / 2);
      // The whole period is visible: from now on in steps.
      if (bars.length > BARS_MAX) this.loaded = null;
    }
    this.onChange();
  }

  /** Events are missing: reads everything again. */
  forget() {
    this.loaded = null;
    this.missed.length = 0;
    this.onChange();
  }
}
