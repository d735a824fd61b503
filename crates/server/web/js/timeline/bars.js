// The tasks of the timeline as columns of numbers: a hundred thousand take a few megabytes.

/** Maximum lanes of one worker; further simultaneous tasks share the last ones. */
const LANES_MAX = 128;
const CAPACITY = 16_384;
/** Minimum size of a lane, as a fraction of a cpu. */
const QUANTUM_MIN = 1 / 16;
/** Shorter overlaps are ignored if the cpus are unknown. */
const OVERLAP_MS = 50;
const STRIDE = 2 ** 32;

/** States as the store's numbers. */
export const RUNNING = 1;
export const FINISHED = 2;
export const FAILED = 3;
export const CANCELED = 4;
export const ABORTED = 5;
/** Names of the states, by number. */
export const STATE_NAMES = ["waiting", "running", "finished", "failed", "canceled", "aborted"];

const COLUMNS = /** @type {const} */ (["begin", "end", "job", "task", "row", "lane", "size", "state"]);

/**
 * A worker: `lanes` are the times when each lane becomes free, and a lane is `quantum` cpus; `cpus` is 0 if unknown,
 * and then lanes are added as needed.
 * @typedef {{worker: number, cpus: number, quantum: number, lanes: number[]}} BarRow
 */

/** `[worker, begin, run time or null, state, job, task, cpus or null]`, times in ms. @typedef {[number, number, number | null, number, number, number, (number | null)?]} Bar */

export class Bars {
  begin = new Float64Array(0);
  end = new Float64Array(0);
  job = new Uint32Array(0);
  task = new Uint32Array(0);
  row = new Uint16Array(0);
  lane = new Uint8Array(0);
  size = new Uint8Array(0);
  state = new Uint8Array(0);
  length = 0;
  /** @type {BarRow[]} */
  rows = [];
  /** @type {Map<number, number>} */
  byWorker = new Map();
  /** @type {Map<number, number>} */
  running = new Map();

  /**
   * @param {(worker: number) => number} cpusOf How many cpus a worker has; 0 = not known.
   * @param {(job: number) => number} askedBy How many cpus a task of a job takes.
   */
  constructor(cpusOf, askedBy) {
    this.cpusOf = cpusOf;
    this.askedBy = askedBy;
    this.clear();
  }

  clear() {
    this.length = 0;
    this.begin = new Float64Array(CAPACITY);
    this.end = new Float64Array(CAPACITY);
    this.job = new Uint32Array(CAPACITY);
    this.task = new Uint32Array(CAPACITY);
    this.row = new Uint16Array(CAPACITY);
    this.lane = new Uint8Array(CAPACITY);
    this.size = new Uint8Array(CAPACITY);
    this.state = new Uint8Array(CAPACITY);
    this.rows = [];
    this.byWorker = new Map();
    this.running = new Map();
  }

  /** @param {number} worker @param {number} [quantum] */
  rowOf(worker, quantum = 1) {
    let row = this.byWorker.get(worker);
    if (row === undefined) {
      row = this.rows.length;
      const cpus = this.cpusOf(worker);
      const fine = Math.max(QUANTUM_MIN, Math.min(1, quantum), cpus / LANES_MAX);
      const lanes = cpus > 0 ? new Array(Math.min(LANES_MAX, Math.ceil(cpus / fine - 1e-9))).fill(-Infinity) : [];
      this.rows.push({ worker, cpus, quantum: fine, lanes });
      this.byWorker.set(worker, row);
    }
    return row;
  }

  grow() {
    for (const name of COLUMNS) {
      const old = this[name];
      const larger = /** @type {any} */ (new /** @type {any} */ (old).constructor(old.length * 2));
      larger.set(old);
      /** @type {any} */ (this)[name] = larger;
    }
  }

  /**
   * Lanes for a task: free neighbors, or the next ones to become free, because the next task of a cpu may start a moment
   * before the end of the previous one is recorded.
   * @param {BarRow} row @param {number} begin @param {number} cpus
   * @returns {[number, number]} The first, and how many.
   */
  placeFor({ lanes, quantum, cpus: all }, begin, cpus) {
    const size = Math.max(1, Math.min(lanes.length || LANES_MAX, Math.round(cpus / quantum)));
    if (all === 0) {
      const free = lanes.findIndex((end) => end <= begin + OVERLAP_MS);
      return [free >= 0 ? free : Math.min(lanes.length, LANES_MAX - 1), 1];
    }
    let [best, soonest, free] = [0, Infinity, 0];
    for (let at = 0; at < lanes.length; at += 1) {
      free = lanes[at] <= begin ? free + 1 : 0;
      if (free >= size) return [at - size + 1, size];
    }
    for (let at = 0; at + size <= lanes.length; at += 1) {
      let latest = -Infinity;
      for (let one = at; one < at + size; one += 1) latest = Math.max(latest, lanes[one]);
      if (latest < soonest) [best, soonest] = [at, latest];
    }
    return [best, size];
  }

  /** Adds a task; calls must be in the order of the starts. `end` is `Infinity` while it runs. @param {number | null} cpus `null` = the whole worker. */
  add(worker, begin, end, state, job, task, cpus) {
    if (this.length === this.begin.length) this.grow();
    const at = this.length;
    const row = this.rowOf(worker);
    const found = this.rows[row];
    const [lane, size] = this.placeFor(found, begin, cpus ?? Math.max(1, found.cpus));
    for (let one = lane; one < lane + size; one += 1) found.lanes[one] = Math.max(end, found.lanes[one] ?? -Infinity);
    this.begin[at] = begin;
    this.end[at] = end;
    this.job[at] = job;
    this.task[at] = task;
    this.row[at] = row;
    this.lane[at] = lane;
    this.size[at] = size;
    this.state[at] = state;
    if (end === Infinity) this.running.set(job * STRIDE + task, at);
    this.length += 1;
  }

  /** Takes rows of `/timeline`. @param {Bar[]} rows */
  load(rows) {
    this.clear();
    rows.sort((a, b) => a[1] - b[1]);
    /** @type {Map<number, number>} */
    const finest = new Map();
    for (const [worker, , , , job, , cpus] of rows) {
      const asked = cpus === undefined ? this.askedBy(job) : cpus;
      if (asked !== null) finest.set(worker, Math.min(finest.get(worker) ?? 1, asked > 0 ? asked : 1));
    }
    for (const [worker, quantum] of finest) this.rowOf(worker, quantum);
    for (const [worker, begin, run, state, job, task, cpus] of rows) {
      const end = run === null || state === RUNNING ? Infinity : begin + run;
      this.add(worker, begin, end, state, job, task, cpus === undefined ? this.askedBy(job) : cpus);
    }
  }

  /** Notes the end of a running task. */
  finish(job, task, at, state) {
    const key = job * STRIDE + task;
    const found = this.running.get(key);
    if (found === undefined) return;
    this.running.delete(key);
    this.end[found] = Math.max(at, this.begin[found]);
    this.state[found] = state;
    const { lanes } = this.rows[this.row[found]];
    const first = this.lane[found];
    for (let one = first; one < first + this.size[found]; one += 1) {
      if (lanes[one] === Infinity) lanes[one] = this.end[found];
    }
  }

  /** Applies an event of the stream. */
  take({ event, at_ms: at }) {
    if (event.type === "task-started") {
      this.finish(event.job, event.task, at, RUNNING);
      const isWide = event.workers !== undefined && event.workers.length > 1;
      for (const worker of event.workers ?? [event.worker]) this.add(worker, at, Infinity, RUNNING, event.job, event.task, isWide ? null : this.askedBy(event.job));
    } else if (event.type === "task-finished") {
      this.finish(event.job, event.task, at, FINISHED);
    } else if (event.type === "task-failed") {
      this.finish(event.job, event.task, at, FAILED);
    } else if (event.type === "task-canceled" || event.type === "task-aborted") {
      this.drop(event, at, event.type === "task-aborted" ? ABORTED : CANCELED);
    }
  }

  /** Tasks were canceled or aborted; running ones have ended. An event about very many tasks names only the job. */
  drop(event, at, state) {
    const named = new Set((event.tasks ?? []).map((one) => one.job_id * STRIDE + one.job_task_id));
    const inRange = (task) => event.ranges?.some(([first, count, step]) => task >= first && task <= first + (count - 1) * step && (task - first) % step === 0);
    for (const key of [...this.running.keys()]) {
      const [job, task] = [Math.floor(key / STRIDE), key % STRIDE];
      if (named.has(key) || (job === event.job && (event.is_cut || inRange(task)))) this.finish(job, task, at, state);
    }
  }

  /** Drops tasks that ended before `at`. @param {number} at */
  prune(at) {
    /** @type {Bar[]} */
    const rows = [];
    for (let i = 0; i < this.length; i += 1) {
      if (this.end[i] < at) continue;
      const { worker, quantum, cpus } = this.rows[this.row[i]];
      const end = this.end[i];
      const asked = cpus === 0 ? this.askedBy(this.job[i]) : this.size[i] * quantum;
      rows.push([worker, this.begin[i], end === Infinity ? null : end - this.begin[i], this.state[i], this.job[i], this.task[i], asked]);
    }
    this.load(rows);
  }
}
