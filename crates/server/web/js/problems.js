// What is wrong with a run, worst first. The same rules as in the terminal: a node is suspect if most of what
// ends there fails while the same jobs go well elsewhere; otherwise failures are blamed on the job.

import { count, failure, number, plain, total } from "./format.js";

/** Fewer failures than this say nothing about a node. */
const NODE_FAILURES_MIN = 3;
const SHOWN_MAX = 50;

const bad = (ends) => ends.bad > ends.good;

function add(map, key, share) {
  const ends = map.get(key) ?? { good: 0, bad: 0 };
  if (share.error === null) ends.good += share.count;
  else ends.bad += share.count;
  map.set(key, ends);
}

/** Hosts of which the node seems broken, with what ended there. */
export function suspectHosts(shares) {
  const [hosts, byJob] = [new Map(), new Map()];
  for (const share of shares) {
    add(hosts, share.host, share);
    if (!byJob.has(share.job)) byJob.set(share.job, new Map());
    add(byJob.get(share.job), share.host, share);
  }
  const failsElsewhere = (job, host) => {
    const elsewhere = { good: 0, bad: 0 };
    for (const [at, ends] of byJob.get(job)) {
      if (at === host) continue;
      elsewhere.good += ends.good;
      elsewhere.bad += ends.bad;
    }
    return elsewhere.good === 0 || bad(elsewhere);
  };
  const suspects = new Map();
  for (const [host, ends] of hosts) {
    if (!bad(ends)) continue;
    let own = 0;
    for (const [job, places] of byJob) {
      const there = places.get(host);
      if (there && !failsElsewhere(job, host)) own += there.bad;
    }
    if (own >= NODE_FAILURES_MIN) suspects.set(host, ends);
  }
  return suspects;
}

function mostCommon(shares) {
  const errors = new Map();
  for (const share of shares) errors.set(share.error, (errors.get(share.error) ?? 0) + share.count);
  return [...errors].sort((a, b) => b[1] - a[1])[0]?.[0] ?? null;
}

/**
 * All findings: `{severity, kind, title, text, part, whole, link}`, where `part` of `whole` tasks are touched.
 * `explained` tells per job why its first waiting task does not run.
 */
export function find({ jobs, workers, queues, shares }, explained = new Map()) {
  const suspects = suspectHosts(shares);
  const found = [
    ...brokenNodes(shares, suspects),
    ...failingJobs(jobs, shares, suspects),
    ...lostWorkers(workers),
    ...starvingQueues(queues),
    ...starvingJobs(jobs, workers, explained),
  ];
  found.sort((a, b) => (a.severity === b.severity ? 0 : a.severity === "error" ? -1 : 1));
  return found.slice(0, SHOWN_MAX);
}

function brokenNodes(shares, suspects) {
  return [...suspects].map(([host, ends]) => {
    const there = shares.filter((share) => share.host === host && share.error !== null);
    const why = mostCommon(there);
    const worker = there.at(-1)?.worker;
    return {
      severity: "error",
      kind: "Broken node",
      title: plain(host),
      text: `${number(ends.bad)} of ${number(ends.bad + ends.good)} tasks failed on it, mostly: ${failure(why)}. Elsewhere the same jobs go well.`,
      part: ends.bad,
      whole: ends.bad + ends.good,
      link: "#/workers",
      fix: worker === undefined ? null : { worker },
    };
  });
}

function failingJobs(jobs, shares, suspects) {
  const found = [];
  for (const job of jobs) {
    if (job.tasks.failed === 0) continue;
    const own = shares.filter((share) => share.job === job.id && share.error !== null);
    const rest = own.filter((share) => !suspects.has(share.host));
    // The sums are a little behind the counts: what they do not know yet is not blamed on anybody.
    const left = own.length > 0 ? rest.reduce((sum, share) => sum + share.count, 0) : job.tasks.failed;
    if (left === 0) continue;
    const why = mostCommon(rest);
    const ended = job.tasks.failed + job.tasks.finished;
    found.push({
      severity: left * 20 >= ended ? "error" : "warning",
      kind: left * 2 >= ended ? "Failing job" : "Failed tasks",
      title: `${job.id} ${plain(job.name)}`,
      text: `${number(left)} of ${count(total(job.tasks), "task")} failed${why ? `, mostly: ${failure(why)}` : ""}.`,
      part: left,
      whole: total(job.tasks),
      link: `#/job/${job.id}`,
    });
  }
  return found.sort((a, b) => b.part / b.whole - a.part / a.whole);
}

function lostWorkers(workers) {
  const lost = workers.filter((worker) => worker.state.endsWith("-lost"));
  if (lost.length === 0) return [];
  const last = lost.reduce((a, b) => ((a.ended_ms ?? 0) > (b.ended_ms ?? 0) ? a : b));
  return [{
    severity: "warning",
    kind: lost.length === 1 ? "Lost worker" : "Lost workers",
    title: plain(last.host),
    text: lost.length === 1 ? `Its ${last.state.replace("-", " was ")}.` : `${count(lost.length, "worker")} lost, this one last.`,
    link: "#/workers",
  }];
}

/** A queue that gets no allocations: it is paused, or the batch system refuses. */
export const isStarving = (queue) => queue.is_paused || /\bfail/.test(queue.reason);

function starvingQueues(queues) {
  return queues.filter(isStarving).map((queue) => ({
    severity: "error",
    kind: "Starving queue",
    title: `queue ${queue.id}${queue.name ? ` ${plain(queue.name)}` : ""}`,
    text: queue.is_paused ? `It asks for no allocations: ${plain(queue.reason) || "it is paused"}` : `It gets no allocations: ${plain(queue.reason)}`,
    link: "#/allocations",
    fix: queue.is_paused ? { queue: queue.id } : null,
  }));
}

/** Jobs of which nothing runs, although tasks wait. */
export const waitsOnly = (job) => job.tasks.waiting > 0 && job.tasks.running === 0;

function starvingJobs(jobs, workers, explained) {
  const connected = workers.filter((worker) => worker.state === "connected").length;
  return jobs.filter(waitsOnly).map((job) => ({
    severity: "warning",
    kind: "Starving job",
    title: `${job.id} ${plain(job.name)}`,
    text: `${count(job.tasks.waiting, "task")} wait${job.tasks.waiting === 1 ? "s" : ""} and none runs: ${
      connected === 0 ? "there is no worker" : explained.get(job.id) ?? "all workers are busy, or none is suitable"}.`,
    part: job.tasks.waiting,
    whole: total(job.tasks),
    link: `#/job/${job.id}`,
  }));
}

/** Why a task does not run, out of an answer to `/explain`. */
export function explain(answer) {
  if (answer.waiting_dep_count > 0) return `it waits for ${count(answer.waiting_dep_count, "other task")}`;
  const { workers } = answer;
  if (workers.length === 0) return "there is no worker";
  const suitable = workers.filter((worker) => worker.blocked.length === 0);
  if (suitable.length > 0) {
    const hindrance = suitable.flatMap((worker) => worker.hindrances ?? [])[0];
    return `${count(suitable.length, "worker")} could run it${hindrance ? `, but ${plain(hindrance)}` : suitable.length === 1 ? " and is busy" : " and are busy"}`;
  }
  const lacks = new Map();
  for (const worker of workers) {
    for (const item of worker.blocked) {
      const known = lacks.get(item.resource ?? item.kind) ?? item;
      lacks.set(item.resource ?? item.kind, item.offered > known.offered ? item : known);
    }
  }
  const words = [...lacks.values()].map((item) => {
    if (item.kind === "resource") return `it needs ${number(item.requested)} ${plain(item.resource)}, the best worker has ${number(item.offered)}`;
    if (item.kind === "time") return "no worker stays long enough";
    return `it needs ${number(item.requested)} nodes of one group, there are ${number(item.offered)}`;
  });
  return `no worker is suitable: ${words.join("; ")}`;
}
