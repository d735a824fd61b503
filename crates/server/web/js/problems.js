// Problems of a run, as found by the server (`/problems`), which shares the rules with the terminal.

import { count, duration, number, plain } from "./format.js";
import { state } from "./live.js";

const LINKS = {
  node: () => "#/workers",
  "failing-job": (found) => `#/job/${found.id}`,
  "failed-tasks": (found) => `#/job/${found.id}`,
  "starving-job": (found) => `#/job/${found.id}`,
  "doubtful-job": (found) => `#/job/${found.id}`,
  "lost-workers": () => "#/workers",
  unkillable: () => "#/workers",
  queue: () => "#/allocations",
};

/** Address with details of a problem. */
export const linkOf = (found) => (LINKS[found.kind] ?? (() => "#/overview"))(found);

/** Whether it needs attention now. */
export const isOpen = (found) => !found.is_over && !found.is_acknowledged;

/** Since when, or when it last happened, as in `hq problems`; "" if unknown. */
export function ageOf(found, now) {
  // A page that is redrawn each second needs no fractions of a second.
  const passed = (from) => Math.floor((now - from) / 1000) * 1000;
  if (found.last_ms !== null) return passed(found.last_ms) <= 0 ? "just now" : `${duration(passed(found.last_ms))} ago`;
  if (found.since_ms !== null) return passed(found.since_ms) <= 0 ? "since now" : `for ${duration(passed(found.since_ms))}`;
  return "";
}

/** Text about hidden problems, as in `hq problems`. */
export function hiddenText(problems) {
  const over = problems.filter((found) => found.is_over).length;
  const known = problems.filter((found) => found.is_acknowledged && !found.is_over).length;
  const parts = [];
  if (over > 0) parts.push(over === 1 ? "1 ended job had failures" : `${number(over)} ended jobs had failures`);
  if (known > 0) parts.push(`${number(known)} acknowledged`);
  return parts.join(", ");
}

/** Hosts of nodes that seem broken. */
export const suspectHosts = (problems) => new Set(problems.filter((found) => found.kind === "node").map((found) => found.host));

/** Why no task of a job runs; "" = tasks run, or the reason is unknown. */
export const starvation = (job) => (job.state === "waiting" && state.problems.find((found) => found.kind === "starving-job" && found.id === job.id)?.text) || "";

/** A word for the state of a job; a job that cannot run is not merely waiting. */
export const jobWord = (job) => (starvation(job) ? "starving" : job.state);

/** A queue that gets no allocations: it is paused, or the batch system rejects them. */
export const isStarving = (queue) => queue.is_paused || queue.is_failing;

/** Why a task does not run, from an answer to `/explain`. */
export function explain(answer) {
  if (answer.reasons.length > 0) return answer.reasons.map(plain).join("; ");
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
