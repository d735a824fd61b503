// The tasks of the timeline as columns of numbers: a hundred thousand take a few megabytes.

/** Side by side on one worker; more share the last lane. */
const LANES_MAX = 128;
const CAPACITY = 16_384;

/** States as numbers of the store. */
export const RUNNING = 1;
export const FINISHED = 2;
export const FAILED = 3;

const STRIDE = 2 ** 32;

export class Bars {
  constructor() {
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
    this.state = new Uint8Array(CAPACITY);
    /** Rows: `{worker, lanes}`, where `lanes` are the times from which they are free. */
    this.rows = [];
    this.byWorker = new Map();
    this.running = new Map();
  }

  rowOf(worker) {
    let row = this.byWorker.get(worker);
    if (row === undefined) {
      row = this.rows.length;
      this.rows.push({ worker, lanes: [] });
      this.byWorker.set(worker, row);
    }
    return row;
  }

  grow() {
    for (const name of ["begin", "end", "job", "task", "row", "lane", "state"]) {
      const larger = new this[name].constructor(this[name].length * 2);
      larger.set(this[name]);
      this[name] = larger;
    }
  }

  /** Adds a task; the calls are in the order of the starts. `end` is `Infinity` while it runs. */
  add(worker, begin, end, state, job, task) {
    if (this.length === this.begin.length) this.grow();
    const at = this.length;
    const row = this.rowOf(worker);
    const { lanes } = this.rows[row];
    let lane = lanes.findIndex((free) => free <= begin);
    if (lane < 0) lane = Math.min(lanes.length, LANES_MAX - 1);
    lanes[lane] = Math.max(end, lanes[lane] ?? 0);
    this.begin[at] = begin;
    this.end[at] = end;
    this.job[at] = job;
    this.task[at] = task;
    this.row[at] = row;
    this.lane[at] = lane;
    this.state[at] = state;
    if (end === Infinity) this.running.set(job * STRIDE + task, at);
    this.length += 1;
  }

  /** Takes rows of `/timeline`: worker, start, run time or `null`, state, job, task; times in ms. */
  load(rows) {
    this.clear();
    rows.sort((a, b) => a[1] - b[1]);
    for (const [worker, begin, run, state, job, task] of rows) {
      this.add(worker, begin, run === null || state === RUNNING ? Infinity : begin + run, state, job, task);
    }
  }

  /** A running task ended. */
  finish(job, task, at, state) {
    const key = job * STRIDE + task;
    const found = this.running.get(key);
    if (found === undefined) return;
    this.running.delete(key);
    this.end[found] = Math.max(at, this.begin[found]);
    this.state[found] = state;
    const { lanes } = this.rows[this.row[found]];
    if (lanes[this.lane[found]] === Infinity) lanes[this.lane[found]] = this.end[found];
  }

  /** What happened, as the stream tells it. */
  take({ event, at_ms: at }) {
    if (event.type === "task-started") {
      this.finish(event.job, event.task, at, RUNNING);
      for (const worker of event.workers ?? [event.worker]) this.add(worker, at, Infinity, RUNNING, event.job, event.task);
    } else if (event.type === "task-finished") {
      this.finish(event.job, event.task, at, FINISHED);
    } else if (event.type === "task-failed") {
      this.finish(event.job, event.task, at, FAILED);
    }
  }

  /** Forgets what ended before `at`. */
  prune(at) {
    const rows = [];
    for (let i = 0; i < this.length; i += 1) {
      if (this.end[i] < at) continue;
      const end = this.end[i];
      rows.push([this.rows[this.row[i]].worker, this.begin[i], end === Infinity ? null : end - this.begin[i], this.state[i], this.job[i], this.task[i]]);
    }
    this.load(rows);
  }
}
