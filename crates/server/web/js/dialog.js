// Questions, short messages, and the list of keys.

import { ApiError, post } from "./api.js";
import { h } from "./dom.js";
import { touch } from "./live.js";

const TOAST_MS = 6_000;

/** Tells something in a corner. */
export function toast(text, isProblem = false) {
  const element = h("div", { className: isProblem ? "toast problem" : "toast" }, text);
  const box = document.querySelector("#toasts");
  box.append(element);
  while (box.childElementCount > 4) box.firstElementChild.remove();
  setTimeout(() => element.remove(), TOAST_MS);
}

function open(...content) {
  const dialog = h("dialog", { onclose: () => dialog.remove(), onclick: (event) => { if (event.target === dialog) dialog.close(); } }, content);
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** Asks, and does it if the answer is yes. `then` gets the answer of the server. */
export function confirmed({ title, text, yes, path, isHarmless = false, then }) {
  const act = async (event) => {
    event.preventDefault();
    for (const button of dialog.querySelectorAll("button")) button.disabled = true;
    try {
      const answer = await post(path);
      dialog.close();
      touch();
      then(answer);
    } catch (error) {
      dialog.close();
      toast(error instanceof ApiError ? `Not done: ${error.message}` : String(error), true);
    }
  };
  const dialog = open(h("form", { onsubmit: act }, h("h2", null, title), h("p", null, text), h("div", { className: "buttons" },
    h("button", { type: "button", onclick: () => dialog.close(), autofocus: !isHarmless }, "No, leave it"),
    h("button", { type: "submit", className: isHarmless ? "primary" : "danger", "data-action": "yes" }, yes))));
}

const KEYS = [
  ["1 … 6", "views"], ["/", "search"], ["↑ ↓ j k", "move in a list"], ["Enter", "open"], ["Backspace", "back"],
  ["← → + −", "move and zoom in the timeline"], ["↑ ↓", "scroll the workers of the timeline"],
  ["0", "all of the timeline"], ["n", "now"], ["t", "dark or light"], ["?", "this list"], ["Esc", "close"],
];

/** Shows the keys. */
export function showKeys() {
  if (document.querySelector("dialog[open]")) return;
  const dialog = open(h("h2", null, "Keys"), h("dl", { className: "keys" }, KEYS.map(([key, what]) => [h("dt", null, h("kbd", null, key)), h("dd", null, what)])),
    h("form", { method: "dialog", className: "buttons" }, h("button", null, "Close")));
  return dialog;
}

/** Actions on jobs, workers and queues. */
export const actions = {
  cancel: (job) => confirmed({
    title: `Cancel job ${job.id}?`,
    text: `${job.name}: tasks that run are ended, tasks that wait are not started.`,
    yes: "Cancel the job",
    path: `/jobs/${job.id}/cancel`,
    then: (answer) => toast(`${answer.canceled} tasks of job ${job.id} canceled`),
  }),
  resubmit: (job, go) => confirmed({
    title: `Submit the failed tasks of job ${job.id} again?`,
    text: `${job.tasks.failed} failed tasks of ${job.name} become a new job.`,
    yes: "Submit again",
    path: `/jobs/${job.id}/resubmit`,
    isHarmless: true,
    then: (answer) => {
      toast(`Job ${answer.job} with ${answer.task_count} tasks submitted`);
      go(`#/job/${answer.job}`);
    },
  }),
  stopWorker: (worker) => confirmed({
    title: `Stop worker ${worker.id}?`,
    text: `${worker.host}: what runs on it (${worker.running_tasks} tasks) is run again on others.`,
    yes: "Stop the worker",
    path: `/workers/${worker.id}/stop`,
    then: () => toast(`Worker ${worker.id} is stopped`),
  }),
  drainWorker: (worker) => confirmed({
    title: `Drain worker ${worker.id}?`,
    text: `${worker.host}: it gets no new tasks and stops when the ${worker.running_tasks} that run on it have ended.`,
    yes: "Drain the worker",
    path: `/workers/${worker.id}/drain`,
    then: () => toast(`Worker ${worker.id} is draining`),
  }),
  pauseQueue: (queue) => confirmed({
    title: queue.is_paused ? `Resume queue ${queue.id}?` : `Pause queue ${queue.id}?`,
    text: queue.is_paused ? "It asks for allocations again." : "It asks for no more allocations; those that exist stay.",
    yes: queue.is_paused ? "Resume" : "Pause",
    path: `/queues/${queue.id}/${queue.is_paused ? "resume" : "pause"}`,
    isHarmless: queue.is_paused,
    then: () => toast(`Queue ${queue.id} is ${queue.is_paused ? "resumed" : "paused"}`),
  }),
};
