// Dialogs and short messages.

import { ApiError, post, report } from "./api.js";
import { find, h, rebuild, show } from "./dom.js";
import { count, number, plain } from "./format.js";
import { state, touch } from "./live.js";

const TOAST_MS = 6_000;

/** Shows a short message in a corner. */
export function toast(text, isProblem = false) {
  const element = h("div", { className: isProblem ? "toast problem" : "toast" }, text);
  const box = find("#toasts");
  box.append(element);
  while (box.childElementCount > 4) box.firstElementChild?.remove();
  setTimeout(() => element.remove(), TOAST_MS);
}

/** Shows a dialog that must be answered or closed first; then the focus returns. */
export function modal(props, ...content) {
  const before = document.activeElement;
  const dialog = h("dialog", {
    ...props,
    onclose: () => {
      dialog.remove();
      if (before instanceof HTMLElement && before.isConnected) before.focus({ preventScroll: true });
    },
    onclick: (event) => { if (event.target === dialog) dialog.close(); },
  }, content);
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** Why no action is possible at present; "" if actions are possible. */
export function obstacle() {
  if (report) return "this is a report";
  if (state.server?.is_read_only) return "this link is for reading only";
  if (state.link === "away") return "the server is away; this can be done when it is back";
  if (state.link === "stranger") return "this page is of a server that has ended";
  return "";
}

/** Enables a button if its action is possible and the server is reachable. A report has no actions. */
export function allow(button, isPossible) {
  if (report) show(button, false);
  const why = obstacle();
  button.disabled = !isPossible || why !== "";
  if (why) button.title = why;
  else button.removeAttribute("title");
}

/** Buttons of those commands that have one. */
export class Buttons {
  constructor() {
    this.element = h("span", { className: "actions" });
    /** @type {import("./views/view.js").Command[]} */
    this.shown = [];
  }

  /** @param {import("./views/view.js").Command[]} commands */
  update(commands) {
    this.shown = commands.filter((one) => one.button);
    const looks = this.shown.map(({ button, isDanger }) => [button, isDanger]);
    rebuild(this.element, JSON.stringify(looks), () => looks.map(([button, isDanger], at) => h("button", { type: "button", className: isDanger ? "danger" : null, "data-focus": button, onclick: () => this.shown[at].act() }, button)));
    for (const button of this.element.children) allow(button, true);
  }
}

/**
 * A confirmation before an action.
 * @typedef {object} Question
 * @property {string} title
 * @property {string} text
 * @property {string} yes What the button says.
 * @property {string} path Of the request.
 * @property {boolean} [isHarmless] It can be undone: Enter does it.
 * @property {(answer: any) => void} then Gets the answer of the server.
 * @property {[string, string][]} [facts] States and what becomes of the tasks in them.
 * @property {Field} [field] What the user may add.
 */
/** A parameter of a request, and the element that has its value. @typedef {{name: string, label: string, element: HTMLInputElement | HTMLSelectElement}} Field */

/** Asks for confirmation, then acts. @param {Question} question */
export function confirmed({ title, text, yes, path, isHarmless = false, then, facts = [], field }) {
  const why = obstacle();
  if (why) {
    toast(`Not done: ${why}`, true);
    return;
  }
  if (field) field.element.id = "field";
  const act = async (event) => {
    event.preventDefault();
    for (const button of dialog.querySelectorAll("button")) button.disabled = true;
    try {
      const words = field?.element.value.trim();
      const answer = await post(field && words ? `${path}?${field.name}=${encodeURIComponent(words)}` : path);
      dialog.close();
      touch();
      then(answer);
    } catch (error) {
      dialog.close();
      toast(error instanceof ApiError ? `Not done: ${error.message}` : String(error), true);
    }
  };
  const dialog = modal({ "aria-labelledby": "question" }, h("form", { onsubmit: act }, h("h2", { id: "question" }, title), h("p", null, text),
    facts.length > 0 ? h("ul", { className: "counts" }, facts.map(([name, what]) => h("li", { className: `count ${name}` }, what))) : null,
    field ? h("p", null, h("label", { for: "field" }, field.label), " ", field.element) : null,
    h("div", { className: "buttons" },
      h("button", { type: "button", onclick: () => dialog.close(), autofocus: !isHarmless }, "No, leave it"),
      h("button", { type: "submit", className: isHarmless ? "primary" : "danger", "data-action": "yes", autofocus: isHarmless }, yes))));
}

/** The usual signals. */
const SIGNALS = ["SIGUSR1", "SIGUSR2", "SIGHUP", "SIGINT", "SIGTERM", "SIGSTOP", "SIGCONT"];

/** Actions on jobs, workers and queues. */
export const actions = {
  cancel(job) {
    const { running, waiting, finished } = job.tasks;
    /** @type {[string, string][]} */
    const facts = [];
    if (running > 0) facts.push(["running", `${count(running, "running task")} ${running === 1 ? "is" : "are"} ended; the work done so far is lost`]);
    if (waiting > 0) facts.push(["waiting", `${count(waiting, "waiting task")} ${waiting === 1 ? "is" : "are"} not started`]);
    if (finished > 0) facts.push(["finished", `${count(finished, "finished task")} ${finished === 1 ? "stays as it is" : "stay as they are"}`]);
    confirmed({
      title: `Cancel job ${job.id}?`,
      text: plain(job.name),
      facts,
      yes: `Cancel ${count(running + waiting, "task")}`,
      path: `/jobs/${job.id}/cancel`,
      field: { name: "reason", label: "Reason", element: h("input", { type: "text", maxlength: 200, autocomplete: "off", placeholder: "reason, shown to users who look for their tasks" }) },
      then: (answer) => toast(`${count(answer.canceled, "task")} of job ${job.id} canceled`),
    });
  },
  cancelTask(job, task) {
    confirmed({
      title: `Cancel task ${task.id} of job ${job}?`,
      text: task.state === "running" ? "The task is ended; the work done so far is lost." : "The task is not started.",
      yes: "Cancel the task",
      path: `/jobs/${job}/tasks/${task.id}/cancel`,
      then: (answer) => toast(answer.canceled > 0 ? `Task ${task.id} of job ${job} canceled` : `Task ${task.id} of job ${job} has ended already`),
    });
  },
  /** Holds or releases a job, or one task of it. */
  hold(job, task, isHeld) {
    const [verb, past] = isHeld ? ["Hold", "held"] : ["Release", "released"];
    const { running, waiting } = job.tasks ?? {};
    /** @type {[string, string][]} */
    const facts = [];
    if (isHeld && !task && waiting > 0) facts.push(["waiting", `${count(waiting, "waiting task")} ${waiting === 1 ? "does" : "do"} not start until a release`]);
    if (isHeld && !task && running > 0) facts.push(["running", `${count(running, "running task")} ${running === 1 ? "goes" : "go"} on`]);
    const what = task ? `task ${task.id} of job ${job.id}` : `job ${job.id}`;
    confirmed({
      title: `${verb} ${what}?`,
      text: !task ? plain(job.name) : isHeld ? "The task does not start until a release." : "The task may start.",
      facts,
      yes: verb,
      path: `/jobs/${job.id}${task ? `/tasks/${task.id}` : ""}/${verb.toLowerCase()}`,
      isHarmless: true,
      then: ({ changed, running: going }) => {
        const tasks = count(changed - going, "task");
        const rest = going > 0 ? `, ${count(going, "running task")} will go on` : "";
        if (task) toast(`Task ${task.id} of job ${job.id} is ${changed > 0 ? past : "running already"}`);
        else toast(isHeld ? `Job ${job.id} held: ${tasks} will wait${rest}` : `Job ${job.id} released: ${tasks}`);
      },
    });
  },
  signal: (job, task) => confirmed({
    title: `Send a signal to task ${task.id} of job ${job}?`,
    text: `The processes of the task on ${plain(task.host ?? "its worker")} get it.`,
    field: { name: "signal", label: "Signal", element: h("select", null, SIGNALS.map((name) => h("option", null, name))) },
    yes: "Send",
    path: `/jobs/${job}/tasks/${task.id}/signal`,
    then: () => toast(`Signal sent to task ${task.id} of job ${job}`),
  }),
  resubmit(job) {
    confirmed({
      title: `Submit the failed tasks of job ${job.id} again?`,
      text: `${count(job.tasks.failed, "failed task")} of ${plain(job.name)} ${job.tasks.failed === 1 ? "becomes" : "become"} a new job with the same ids.`,
      yes: "Submit again",
      path: `/jobs/${job.id}/resubmit`,
      isHarmless: true,
      then: (answer) => {
        toast(`Job ${answer.job} with ${count(answer.task_count, "task")} submitted`);
        location.hash = `#/job/${answer.job}`;
      },
    });
  },
  stopWorker: (worker) => confirmed({
    title: `Stop worker ${worker.id}?`,
    text: `${plain(worker.host)}: ${worker.running_tasks > 0 ? `the ${count(worker.running_tasks, "task")} that run there begin again on other workers.` : "nothing runs there."}`,
    yes: "Stop the worker",
    path: `/workers/${worker.id}/stop`,
    then: () => toast(`Worker ${worker.id} is stopped`),
  }),
  releaseWorker: (worker) => confirmed({
    title: `Give tasks again to worker ${worker.id}?`,
    text: `${plain(worker.host)}: ${plain(worker.quarantine?.reason || "tasks failed there")}.`,
    yes: "Release the worker",
    path: `/workers/${worker.id}/release`,
    then: () => toast(`Worker ${worker.id} gets tasks again`),
  }),
  drainWorker: (worker) => confirmed({
    title: `Drain worker ${worker.id}?`,
    text: `${plain(worker.host)}: it gets no new tasks and stops ${worker.running_tasks > 0 ? `when the ${number(worker.running_tasks)} that run there have ended` : "at once, as nothing runs there"}.`,
    yes: "Drain the worker",
    path: `/workers/${worker.id}/drain`,
    then: () => toast(`Worker ${worker.id} is draining`),
  }),
  acknowledge: (found) => confirmed({
    title: "Acknowledge this problem?",
    text: `${plain(`${found.heading} ${found.title}: ${found.text}`)}. Nobody is told of it again until there is more of it.`,
    yes: "Acknowledge",
    path: `/problems/${encodeURIComponent(found.key)}/acknowledge`,
    isHarmless: true,
    then: () => toast("The problem is acknowledged"),
  }),
  takeBack: (found) => confirmed({
    title: "Show this problem as an open one again?",
    text: `${plain(`${found.heading} ${found.title}: ${found.text}`)}.`,
    yes: "Show it again",
    path: `/problems/${encodeURIComponent(found.key)}/take-back`,
    isHarmless: true,
    then: () => toast("The problem is open again"),
  }),
  pauseQueue: (queue) => confirmed({
    title: queue.is_paused ? `Resume queue ${queue.id}?` : `Pause queue ${queue.id}?`,
    text: queue.is_paused ? "It requests allocations again." : "It requests no more allocations; existing ones stay.",
    yes: queue.is_paused ? "Resume" : "Pause",
    path: `/queues/${queue.id}/${queue.is_paused ? "resume" : "pause"}`,
    isHarmless: queue.is_paused,
    then: () => toast(`Queue ${queue.id} is ${queue.is_paused ? "resumed" : "paused"}`),
  }),
};

/** Actions on a problem. @returns {import("./views/view.js").Command[]} */
export function problemCommands(found) {
  if (found.is_acknowledged) return [{ name: "Show this problem as an open one again …", key: "A", act: () => actions.takeBack(found) }];
  return found.is_over ? [] : [{ name: "Acknowledge this problem …", key: "A", act: () => actions.acknowledge(found) }];
}

/** Actions on a job. @returns {import("./views/view.js").Command[]} */
export function jobCommands(job) {
  const commands = [];
  const { failed, waiting, running } = job.tasks;
  const left = waiting + running;
  // Lists do not tell how many tasks are held.
  const [held, holdsNew] = [job.held_count, job.holds_new];
  if (failed > 0) commands.push({ name: `Submit the failed tasks of job ${job.id} again …`, key: "R", button: `Resubmit ${number(failed)} failed …`, act: () => actions.resubmit(job) });
  if (held > 0 || holdsNew || (held === undefined && left > 0)) commands.push({ name: `Release job ${job.id} …`, key: "H", button: held > 0 ? `Release ${number(held)} held …` : "Release …", act: () => actions.hold(job, null, false) });
  if (left > (held ?? 0) || (job.is_open && !holdsNew)) commands.push({ name: `Hold job ${job.id} …`, key: "h", button: "Hold …", act: () => actions.hold(job, null, true) });
  if (left > 0) commands.push({ name: `Cancel job ${job.id} …`, key: "c", button: "Cancel …", isDanger: true, act: () => actions.cancel(job) });
  return commands;
}

/** Actions on a task of a job. @param {number} job @returns {import("./views/view.js").Command[]} */
export function taskCommands(job, task, isHeld) {
  const { id, state: now } = task;
  const hold = { name: `Hold task ${id} …`, key: "h", button: "Hold …", act: () => actions.hold({ id: job }, task, true) };
  const release = { name: `Release task ${id} …`, key: "H", button: "Release …", act: () => actions.hold({ id: job }, task, false) };
  const signal = { name: `Send a signal to task ${id} …`, key: "S", button: "Signal …", act: () => actions.signal(job, task) };
  const cancel = { name: `Cancel task ${id} …`, key: "x", button: "Cancel …", isDanger: true, act: () => actions.cancelTask(job, task) };
  if (now === "waiting") return [isHeld ? release : hold, cancel];
  return now === "running" ? [signal, cancel] : [];
}
