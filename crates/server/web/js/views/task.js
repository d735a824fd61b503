// One task: its state, why it failed or waits, its command and its output.

import * as api from "../api.js";
import { TimeChart } from "../charts.js";
import { Buttons, jobCommands, taskCommands } from "../dialog.js";
import { h, rebuild, setText, show } from "../dom.js";
import { bytes, count, duration, failure, number, paramsText, peakMemory, plain, quoted, zoned } from "../format.js";
import { loaders, state } from "../live.js";
import { explain } from "../problems.js";
import { LogTail } from "../tail.js";
import { choose, chosen } from "../url.js";
import { absence, chip, copyButton, missing, typed, view } from "./view.js";

/** @typedef {import("../live.js").Schemas} Schemas */

/** Maximum environment variables that are shown at once. */
const ENV_OPEN_MAX = 5;

export function task(jobId, id) {
  /** @type {Schemas["TaskDetail"] | null} */
  let found = null;
  let [reason, isHeld, isUnknown] = ["", false, false];
  const title = h("h1", null, `Task ${number(id)} of job ${jobId}`);
  const word = chip();
  const why = h("p", { className: "why", hidden: true });
  const facts = h("dl", { className: "facts" });
  const attempts = h("div");
  const usage = new UsageCharts();
  const job = () => state.jobs.get(jobId);
  const buttons = new Buttons();
  const tail = new LogTail(jobId, { isStderr: chosen("stream") === "stderr", isAlone: true });
  tail.onChoose = () => choose({ stream: tail.stream });

  async function load() {
    try {
      found = await api.get(`/jobs/${jobId}/tasks/${id}`);
      isUnknown = false;
    } catch (error) {
      if (error.status !== 404) throw error;
      isUnknown = true;
      return;
    }
    if (found?.state !== "waiting") return;
    const answer = await api.get(`/jobs/${jobId}/tasks/${id}/explain`);
    [reason, isHeld] = [explain(answer), answer.is_held];
  }

  function render() {
    show(unknown, isUnknown);
    show(shown, !isUnknown && found !== null);
    show(reading, !isUnknown && found === null);
    if (isUnknown || !found) return;
    const known = job();
    setText(title, `Task ${number(id)} of job ${jobId}${known ? `: ${plain(known.name)}` : ""}`);
    word.update(found.state);
    const text = whyOf(found, known, reason);
    show(why, text !== "");
    setText(why, text);
    why.classList.toggle("bad", Boolean(found.error));
    // Concerns the whole job, not this task alone; the text says so.
    const again = found.state === "failed" && known ? jobCommands(known).filter((one) => one.key === "R") : [];
    const words = `Resubmit ${known?.tasks.failed === 1 ? "it" : `all ${number(known?.tasks.failed ?? 0)} failed of job ${jobId}`} …`;
    buttons.update([...again.map((one) => ({ ...one, button: words })), ...taskCommands(jobId, found, isHeld)]);
    const rows = factsOf(found, state.summary?.now_ms);
    rebuild(facts, JSON.stringify(rows), () => rows.flatMap(([name, value, isCopied]) => [h("dt", null, name), h("dd", null, h("span", null, value), isCopied ? copyButton(value, name) : null)]));
    const shownNow = found;
    rebuild(definition, JSON.stringify([found.env, found.deps]), () => definitionOf(jobId, shownNow));
    usage.update(found);
    rebuild(attempts, JSON.stringify(found.attempts), () => attemptsOf(shownNow.attempts));
    tail.setPaths({ stdout: found.stdout, stderr: found.stderr });
    if (tail.task === null) {
      if (found.state === "failed" && !chosen("stream")) tail.stream = "stderr";
      tail.open(id);
    }
  }

  const definition = h("div");
  const neighbour = (by) => { if (id + by >= 0) location.hash = `#/job/${jobId}/task/${id + by}`; };
  const shown = h("div", { className: "task" },
    h("header", { className: "panel" }, h("div", { className: "headline" }, title, word.element, h("span", { className: "grow" }), buttons.element, h("a", { className: "button", href: `#/job/${jobId}` }, `Job ${jobId}`)), why, facts, usage.element, definition, attempts),
    h("section", { className: "panel logbox" }, h("h2", null, "Output"), tail.element));
  const unknown = absence(...missing(`task ${number(id)} in job ${jobId}`, "The job has no task with this id, or it may have been forgotten."), typed(`hq task list ${jobId}`), h("p", null, h("a", { href: `#/job/${jobId}` }, `Job ${jobId}`)));
  const reading = h("div", { className: "reading", role: "status" }, h("h1", null, `Task ${number(id)} of job ${jobId}`), h("p", { className: "muted" }, "Reading …"));

  /** @returns {import("./view.js").Command[]} */
  function commands() {
    if (isUnknown) return [];
    const known = job();
    const own = found ? taskCommands(jobId, found, isHeld) : [];
    const keys = own.map((one) => one.key);
    return [
      ...tail.commands(),
      { name: "Next task", key: "j", act: () => neighbour(1) },
      { name: "Task before", key: "k", act: () => neighbour(-1) },
      { name: `Job ${jobId}`, key: "u", act: () => { location.hash = `#/job/${jobId}`; } },
      ...own,
      ...(known ? jobCommands(known).filter((one) => !keys.includes(one.key)) : []),
    ];
  }

  return view({
    title: `Task ${id} of job ${jobId}`,
    element: h("div", { className: "whole" }, shown, unknown, reading),
    render,
    commands,
    focus() {},
    fresh: [["task", load], loaders.jobs],
    parts: [tail, usage],
  });
}

function whyOf(found, job, reason) {
  if (found.error) return failure(found.error);
  if (found.state === "waiting") return reason;
  if (found.state !== "canceled") return "";
  const after = found.started_ms && found.finished_ms ? `canceled after ${duration(found.finished_ms - found.started_ms)}` : "canceled before it ran";
  return job?.cancel_reason ? `${after}: ${plain(job.cancel_reason)}` : after;
}

/** Names, values, and whether they can be copied. @returns {[string, string, boolean?][]} */
function factsOf(found, now) {
  const until = found.finished_ms ?? now;
  /** @type {[string, string | null, boolean?][]} */
  const rows = [
    ["command", found.command ? plain(found.command.map(quoted).join(" ")) : null, true],
    ["parameters", found.params === null ? null : paramsText(found.params), true],
    ["entry", found.entry === null ? null : plain(found.entry), true],
    ["directory", found.cwd === null ? null : plain(found.cwd), true],
    ["resources", plain(found.resources)],
    ["host", found.host ? `${plain(found.host)} (worker ${found.worker})` : "–"],
    ["started", zoned(found.started_ms)],
    ["ended", zoned(found.finished_ms)],
    ["took", found.started_ms && until ? `${duration(until - found.started_ms)}${found.time_limit_ms === null ? "" : ` of at most ${duration(found.time_limit_ms)}`}` : found.time_limit_ms === null ? "–" : `at most ${duration(found.time_limit_ms)}`],
    ["cpu time", found.cpu_ms === null ? null : duration(found.cpu_ms)],
    ["peak memory", found.max_rss_bytes === null ? null : peakMemory(found.max_rss_bytes)],
    ["priority", found.priority === 0 ? null : String(found.priority)],
    ["attempt", `${found.instance + 1}${found.crash_count ? `, ${number(found.crash_count)} lost with their worker` : ""}${found.retry_count ? `, ${count(found.retry_count, "retry").replace("retrys", "retries")}` : ""}`],
  ];
  return /** @type {[string, string, boolean?][]} */ (rows.filter(([, value]) => value !== null));
}

const MIB = 2 ** 20;

/** Memory and cpus over time, and GPUs if it has some, next to the requests. */
class UsageCharts {
  constructor() {
    this.memory = new TimeChart("Memory", { unit: " MiB" });
    this.cpus = new TimeChart("Busy cpus");
    this.gpus = new GpuCharts();
    this.words = h("p", { className: "muted" });
    this.element = h("div", { hidden: true, "data-usage": "" }, this.words, h("h2", null, "Memory, MiB"), this.memory.element, h("h2", null, "Busy cpus"), this.cpus.element, this.gpus.element);
  }

  close() {
    this.memory.close();
    this.cpus.close();
    this.gpus.close();
  }

  /** @param {Schemas["TaskDetail"]} found */
  update(found) {
    const { usage, started_ms: from } = found;
    show(this.element, usage !== null && from !== null);
    if (usage === null || from === null) return;
    const to = from + usage.spacing_ms * usage.memory_bytes.length;
    this.gpus.update(usage.gpu, from, to);
    const memory = usage.memory_bytes.map((size) => size / MIB);
    const cpus = usage.cpu_milli.map((milli) => milli / 1000);
    const bound = usage.memory_asked_bytes === null ? null : usage.memory_asked_bytes / MIB;
    const given = usage.cpu_asked_milli === null ? null : usage.cpu_asked_milli / 1000;
    this.memory.update({ from, to, series: [{ name: "used", values: memory, color: "running" }], ...limit(usage.is_memory_limit ? "limit" : "asked for", bound, memory) });
    this.cpus.update({ from, to, series: [{ name: "busy", values: cpus, color: "running" }], ...limit("asked for", given, cpus) });
    const mean = cpus.reduce((sum, one) => sum + one, 0) / cpus.length;
    const most = usage.memory_bytes.reduce((high, one) => Math.max(high, one), 0);
    setText(this.words, `up to ${bytes(most)} of memory${bound === null ? "" : ` of ${bytes(usage.memory_asked_bytes ?? 0)} ${usage.is_memory_limit ? "at most" : "asked for"}`}, ${mean.toFixed(2)} cpus on average${given === null ? "" : ` of ${number(given)}`}; a bar is ${duration(usage.spacing_ms)}`);
  }
}

/** @param {string} name @param {number | null} asked @param {number[]} values */
function limit(name, asked, values) {
  return asked === null ? {} : { limit: { name, values: values.map(() => asked) } };
}

/** Busy GPUs and their memory. Without data from the driver, the bar is missing. */
class GpuCharts {
  constructor() {
    this.busy = new TimeChart("Busy GPUs");
    this.memory = new TimeChart("Memory of GPUs", { unit: " MiB" });
    this.words = h("p", { className: "muted" });
    this.element = h("div", { hidden: true, "data-gpus": "" }, h("h2", null, "Busy GPUs"), this.busy.element, h("h2", null, "Memory of GPUs, MiB"), this.memory.element, this.words);
  }

  close() {
    this.busy.close();
    this.memory.close();
  }

  /** @param {Schemas["UsageOfGpus"] | null} gpu @param {number} from @param {number} to */
  update(gpu, from, to) {
    show(this.element, gpu !== null);
    if (gpu === null) return;
    const busy = gpu.busy_milli.map((milli) => (milli ?? 0) / 1000);
    const memory = gpu.memory_bytes.map((size) => (size ?? 0) / MIB);
    const room = gpu.memory_of_devices_bytes;
    this.busy.update({ from, to, series: [{ name: "busy", values: busy, color: "running" }], ...limit("asked for", gpu.asked_milli / 1000, busy) });
    this.memory.update({ from, to, series: [{ name: "used", values: memory, color: "running" }], ...limit("of its devices", room === null ? null : room / MIB, memory) });
    const known = gpu.busy_milli.filter((milli) => milli !== null);
    const mean = known.reduce((sum, one) => sum + Number(one), 0) / Math.max(1, known.length) / 1000;
    const most = Math.max(0, ...gpu.memory_bytes.map((size) => size ?? 0));
    const parts = [
      known.length > 0 ? `${mean.toFixed(2)} GPUs busy on average of ${number(gpu.asked_milli / 1000)} asked for${gpu.asked_milli % 1000 === 0 ? "" : ", with that of others there"}` : "how busy its GPUs were is not known",
      gpu.memory_bytes.every((size) => size === null) ? "how much of their memory was used is not known" : `up to ${bytes(most)} of their memory${room === null ? "" : ` of ${bytes(room)}`}${gpu.memory_of === "devices" ? ", with that of others there" : ""}`,
    ];
    if (known.length > 0 && known.length < busy.length) parts.push("no bar where the driver did not tell");
    setText(this.words, parts.join("; "));
  }
}

/** Environment and dependencies. */
function definitionOf(job, found) {
  const parts = [];
  if (found.deps.length > 0) {
    parts.push(h("p", null, "waits for task ", found.deps.map((dep, at) => [at > 0 ? ", " : "", h("a", { href: `#/job/${job}/task/${dep}` }, number(dep))])));
  }
  if (found.env.length > 0) {
    const rows = found.env.map(([name, value]) => [h("dt", null, plain(name)), h("dd", null, plain(value))]);
    parts.push(h("details", { open: found.env.length <= ENV_OPEN_MAX }, h("summary", null, `environment, ${count(found.env.length, "variable")}`), h("dl", { className: "facts env" }, rows.flat())));
  }
  return parts;
}

/** Earlier attempts, oldest first. */
function attemptsOf(attempts) {
  if (attempts.length === 0) return null;
  return h("details", { open: true }, h("summary", null, `${count(attempts.length, "earlier attempt")}`),
    h("ol", { className: "attempts" }, attempts.map((attempt) => h("li", null, `${zoned(attempt.started_ms)} on ${plain(attempt.host)}, after ${duration(attempt.finished_ms - attempt.started_ms)}: `, h("span", { className: "bad" }, failure(attempt.error))))));
}
