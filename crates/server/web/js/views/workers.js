// Workers: where tasks run, where they fail, which workers are gone.

import { Meter } from "../charts.js";
import { actions, allow } from "../dialog.js";
import { h, rebuild, setText, show } from "../dom.js";
import { ago, bytes, count, moment, number, plain, zoned } from "../format.js";
import { List } from "../list.js";
import { loaders, state } from "../live.js";
import { suspectHosts } from "../problems.js";
import { choose, chosen } from "../url.js";
import { chip, emptiness, view } from "./view.js";

const MIB = 1024 * 1024;
const RANK = { suspect: 0, lost: 1, here: 2, ended: 3 };
/** Maximum tasks named in a row. */
const TASKS_NAMED = 3;

function rank(worker, suspects) {
  if (worker.state === "connected") return suspects.has(worker.host) ? RANK.suspect : RANK.here;
  return worker.state.endsWith("-lost") ? RANK.lost : RANK.ended;
}

export function workers() {
  const figures = h("span", { className: "muted", role: "status" });
  const search = h("input", { type: "search", placeholder: "Host, group, state (/)", "aria-label": "Search workers by host, id, group, state or allocation", value: chosen("q"), oninput: () => { choose({ q: search.value.trim() }, { isStep: false }); render(); } });
  const details = h("section", { className: "panel", hidden: true, "aria-label": "Selected worker" });
  const list = new List({
    label: "Workers, with problems first",
    template: "workers",
    id: (found) => found.worker?.id,
    columns: [{ label: "Worker", className: "right" }, { label: "Host" }, { label: "State" }, { label: "Runs" }, { label: "Cpus" }, { label: "Memory", className: "right" }, { label: "GPUs", className: "right" }, { label: "Failed there" }, { label: "Actions", className: "right" }],
    row,
    onOpen: (found) => {
      choose({ worker: chosen("worker") === String(found.worker.id) ? "" : found.worker.id });
      render();
    },
  });

  function render() {
    const suspects = suspectHosts(state.problems);
    const ends = new Map();
    for (const share of state.shares) {
      const sum = ends.get(share.worker) ?? { good: 0, bad: 0 };
      sum[share.error === null ? "good" : "bad"] += share.count;
      ends.set(share.worker, sum);
    }
    const words = search.value.trim().toLowerCase();
    const shown = state.workers
      .filter((worker) => !words || String(worker.id) === words || [worker.host, worker.group, worker.state, worker.allocation ?? ""].some((text) => text.toLowerCase().includes(words)))
      .map((worker) => ({ worker, rank: rank(worker, suspects), ends: ends.get(worker.id) ?? { good: 0, bad: 0 } }));
    // Gone workers: the last first.
    shown.sort((a, b) => a.rank - b.rank || (a.rank === RANK.here || a.rank === RANK.suspect ? a.worker.id - b.worker.id : (b.worker.ended_ms ?? 0) - (a.worker.ended_ms ?? 0)));
    list.update(shown);
    list.explain(!state.known.has("workers") ? null : state.workers.length === 0 ? emptiness("There is no worker yet; tasks wait until there is one.", "hq worker start", "hq alloc add slurm --time-limit 1h", "hq doc workers") : h("p", null, "No worker is like that."));
    const here = state.workers.filter((worker) => worker.state === "connected").length;
    setText(figures, `${count(here, "worker")} here, ${number(state.workers.length - here)} gone`);
    const worker = state.workers.find((one) => String(one.id) === chosen("worker"));
    show(details, worker !== undefined);
    if (worker) rebuild(details, JSON.stringify(worker), () => detailsOf(worker));
  }

  return view({
    title: "Workers",
    element: h("div", { className: "full" }, h("div", { className: "tools" }, h("h1", null, "Workers"), search, figures), list.element, details),
    render,
    list,
    commands: () => (list.isMoved && list.current ? commandsOn(list.current.worker) : []),
    fresh: [loaders.workers, loaders.shares, loaders.jobs],
    parts: [list],
  });
}

/** @returns {import("./view.js").Command[]} */
function commandsOn(worker) {
  if (worker.state !== "connected") return [];
  const stop = { name: `Stop worker ${worker.id} …`, key: "s", act: () => actions.stopWorker(worker) };
  const drain = { name: `Drain worker ${worker.id} …`, key: "d", act: () => actions.drainWorker(worker) };
  return worker.is_draining ? [stop] : [drain, stop];
}

const resource = (worker, name) => worker.resources.find((one) => one.name === name);

/** Its running tasks, or its end. */
function runsOn(worker) {
  if (worker.state !== "connected") return worker.ended_ms === null ? "" : `since ${moment(worker.ended_ms)}`;
  if (worker.running_tasks === 0) return "";
  const named = worker.tasks.slice(0, TASKS_NAMED).map(([job, task]) => `${job}.${task}`).join(", ");
  const more = worker.running_tasks - Math.min(TASKS_NAMED, worker.tasks.length);
  return more > 0 ? `${named}, +${number(more)}` : named;
}

/** Why it gets no tasks, if so. */
const reasonOf = (worker) => worker.quarantine?.reason ?? "";

/** Its state: style and words. @returns {[string, string]} */
function wordsOf({ worker, rank: found }) {
  if (found === RANK.suspect) return ["failed", "broken?"];
  if (worker.quarantine && worker.state === "connected") return ["canceled", worker.quarantine.stage];
  const words = worker.is_draining ? "draining" : worker.state.replace("-", " ");
  return [found === RANK.lost ? "failed" : worker.state === "connected" ? "finished" : "canceled", words];
}

function row() {
  let shown = null;
  const [id, host, running, memory, gpus] = [h("span"), h("span", { className: "cut" }), h("span", { className: "cut" }), h("span"), h("span")];
  const word = chip();
  const cpus = new Meter("");
  const fill = h("span", { className: "fill" });
  const failedText = h("span", { className: "figures" });
  const failed = h("span", { className: "meter failedthere" }, h("span", { className: "track" }, fill), failedText);
  const release = h("button", { type: "button", onclick: () => actions.releaseWorker(shown.worker) }, "Release …");
  const drain = h("button", { type: "button", onclick: () => actions.drainWorker(shown.worker) }, "Drain …");
  const stop = h("button", { type: "button", onclick: () => actions.stopWorker(shown.worker) }, "Stop …");
  return {
    cells: [id, host, h("span", null, word.element), running, h("span", null, cpus.element), memory, gpus, h("span", null, failed), h("span", null, release, " ", drain, " ", stop)],
    update(found) {
      shown = found;
      const { worker, ends } = found;
      setText(id, String(worker.id));
      setText(host, plain(worker.host));
      word.update(...wordsOf(found));
      word.element.title = reasonOf(worker);
      const isHere = worker.state === "connected";
      const runs = runsOn(worker);
      setText(running, runs);
      running.classList.toggle("muted", !isHere);
      running.title = isHere ? `${count(worker.running_tasks, "task")} ${worker.running_tasks === 1 ? "runs" : "run"} there` : found.rank === RANK.lost ? "what ran there runs again elsewhere" : "";
      const cpu = resource(worker, "cpus");
      const used = cpu?.used ?? worker.running_tasks;
      cpus.update(isHere ? used : 0, cpu?.total ?? 0, cpu ? (isHere ? `${number(used)}/${number(cpu.total)}` : `${number(cpu.total)}`) : "");
      const mem = resource(worker, "mem");
      setText(memory, mem ? `${mem.used ? `${bytes(mem.used * MIB)} of ` : ""}${bytes(mem.total * MIB)}` : "");
      const cards = worker.resources.filter((one) => one.name.startsWith("gpus/"));
      setText(gpus, cards.map((one) => `${isHere && typeof one.used === "number" ? `${number(one.used)}/` : ""}${number(one.total)}`).join(" + "));
      const all = ends.good + ends.bad;
      const width = `${all > 0 ? ((ends.bad / all) * 100).toFixed(1) : 0}%`;
      if (fill.style.width !== width) fill.style.width = width;
      setText(failedText, ends.bad > 0 ? `${number(ends.bad)} of ${number(all)}` : all > 0 ? "none" : "");
      show(release, isHere && worker.quarantine !== null);
      show(drain, isHere && !worker.is_draining);
      show(stop, isHere);
      allow(release, true);
      allow(drain, true);
      allow(stop, true);
    },
  };
}

function detailsOf(worker) {
  const now = state.summary?.now_ms ?? Date.now();
  const rows = worker.resources.map((one) => {
    const groups = one.groups.length > 0 ? `, NUMA nodes of ${one.groups.join(" + ")}` : "";
    const used = one.used === undefined || one.used === null ? "" : `${one.name === "mem" ? bytes(one.used * MIB) : number(one.used)} reserved of `;
    return [plain(one.name), `${used}${one.name === "mem" ? bytes(one.total * MIB) : number(one.total)}${groups}`];
  });
  const { load } = worker;
  if (load) {
    const percent = (share) => `${Math.round(share * 100)} %`;
    const gpus = load.gpus === null ? "" : `, gpus ${percent(load.gpus)}`;
    rows.push(["machine load", `cpus ${percent(load.cpus)}, memory ${bytes(load.memory_used_bytes)} used of ${bytes(load.memory_total_bytes)}${gpus}`]);
  }
  rows.push(["group", plain(worker.group)], ["connected", `${zoned(worker.started_ms)}, ${ago(worker.started_ms, worker.ended_ms ?? now)}`]);
  if (worker.ended_ms !== null) rows.push(["gone", `${zoned(worker.ended_ms)}, ${ago(worker.ended_ms, now)}`]);
  if (worker.state.endsWith("-lost")) rows.push(["its tasks", "its running tasks run again elsewhere, unless they reached their crash limit"]);
  if (worker.allocation) rows.push(["allocation", plain(worker.allocation)]);
  if (worker.tasks.length > 0) rows.push(["runs", worker.tasks.map(([job, task]) => h("a", { href: `#/job/${job}/task/${task}` }, `${plain(state.jobs.get(job)?.name ?? "")} ${job}.${task}`)).flatMap((link, at) => [at > 0 ? ", " : "", link])]);
  return [h("h2", null, `Worker ${worker.id} on ${plain(worker.host)}`), h("dl", { className: "facts" }, rows.flatMap(([name, value]) => [h("dt", null, name), h("dd", null, value)]))];
}
