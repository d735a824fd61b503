// Workers: where it runs, where it fails, who is gone.

import { Meter } from "../charts.js";
import { actions } from "../dialog.js";
import { h, rebuild, setText, show } from "../dom.js";
import { ago, bytes, clock, count, number, plain } from "../format.js";
import { List } from "../list.js";
import { loaders, state } from "../live.js";
import { suspectHosts } from "../problems.js";
import { chip, view } from "./view.js";

const MIB = 1024 * 1024;
const RANK = { suspect: 0, lost: 1, here: 2, ended: 3 };

function rank(worker, suspects) {
  if (worker.state === "connected") return suspects.has(worker.host) ? RANK.suspect : RANK.here;
  return worker.state.endsWith("-lost") ? RANK.lost : RANK.ended;
}

export function workers() {
  let picked = null;
  const figures = h("span", { className: "muted" });
  const search = h("input", { type: "search", placeholder: "Search hosts (/)", "aria-label": "Search hosts", oninput: () => render() });
  const details = h("section", { className: "panel", hidden: true, "aria-label": "Selected worker" });
  const list = new List({
    label: "Workers, those with problems first",
    template: "workers",
    columns: [{ label: "Worker", className: "right" }, { label: "Host" }, { label: "State" }, { label: "Running", className: "right" }, { label: "Cpus" }, { label: "Memory", className: "right" }, { label: "GPUs", className: "right" }, { label: "Failed there" }, { label: "" }],
    row,
    onOpen: (found) => {
      picked = found.worker.id;
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
      .filter((worker) => !words || worker.host.toLowerCase().includes(words) || String(worker.id) === words)
      .map((worker) => ({ worker, rank: rank(worker, suspects), ends: ends.get(worker.id) ?? { good: 0, bad: 0 } }));
    shown.sort((a, b) => a.rank - b.rank || a.worker.id - b.worker.id);
    list.update(shown);
    const here = state.workers.filter((worker) => worker.state === "connected").length;
    setText(figures, `${count(here, "worker")} here, ${number(state.workers.length - here)} gone`);
    const worker = state.workers.find((one) => one.id === picked);
    show(details, worker !== undefined);
    if (worker) rebuild(details, JSON.stringify(worker), () => detailsOf(worker));
  }

  return view({
    title: "Workers",
    element: h("div", { className: "full" }, h("div", { className: "tools" }, h("h1", null, "Workers"), search, figures), list.element, details),
    render,
    fresh: [loaders.workers, loaders.shares],
    parts: [list],
  });
}

const resource = (worker, name) => worker.resources.find((one) => one.name === name);

function row() {
  let shown = null;
  const [id, host, running, memory, gpus] = [h("span"), h("span", { className: "cut" }), h("span"), h("span"), h("span")];
  const word = chip();
  const cpus = new Meter("");
  const fill = h("span", { className: "fill" });
  const failedText = h("span", { className: "figures" });
  const failed = h("span", { className: "meter failedthere" }, h("span", { className: "track" }, fill), failedText);
  const drain = h("button", { type: "button", onclick: () => actions.drainWorker(shown.worker) }, "Drain …");
  const stop = h("button", { type: "button", onclick: () => actions.stopWorker(shown.worker) }, "Stop …");
  return {
    cells: [id, host, h("span", null, word.element), running, h("span", null, cpus.element), memory, gpus, h("span", null, failed), h("span", { className: "right" }, drain, " ", stop)],
    update(found) {
      shown = found;
      const { worker, ends } = found;
      setText(id, String(worker.id));
      setText(host, plain(worker.host));
      const isSuspect = found.rank === RANK.suspect;
      const isLost = found.rank === RANK.lost;
      word.update(isSuspect || isLost ? "failed" : worker.state === "connected" ? "finished" : "canceled", isSuspect ? "broken?" : worker.is_draining ? "draining" : worker.state.replace("-", " "));
      setText(running, worker.running_tasks ? number(worker.running_tasks) : "");
      const cpu = resource(worker, "cpus");
      const isHere = worker.state === "connected";
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
      show(drain, isHere && !worker.is_draining);
      show(stop, isHere);
    },
  };
}

function detailsOf(worker) {
  const now = state.summary?.now_ms ?? Date.now();
  const rows = worker.resources.map((one) => {
    const groups = one.groups.length > 0 ? `, NUMA nodes of ${one.groups.join(" + ")}` : "";
    const used = one.used === undefined || one.used === null ? "" : `${one.name === "mem" ? bytes(one.used * MIB) : number(one.used)} of `;
    return [plain(one.name), `${used}${one.name === "mem" ? bytes(one.total * MIB) : number(one.total)}${groups}`];
  });
  const { load } = worker;
  if (load) {
    const percent = (share) => `${Math.round(share * 100)} %`;
    const gpus = load.gpus === null ? "" : `, gpus ${percent(load.gpus)}`;
    rows.push(["machine load", `cpus ${percent(load.cpus)}, memory ${bytes(load.memory_used_bytes)} of ${bytes(load.memory_total_bytes)}${gpus}`]);
  }
  rows.push(["group", plain(worker.group)], ["connected", `${clock(worker.started_ms)}, ${ago(worker.started_ms, worker.ended_ms ?? now)}`]);
  if (worker.ended_ms) rows.push(["gone", clock(worker.ended_ms)]);
  if (worker.allocation) rows.push(["allocation", plain(worker.allocation)]);
  return [h("h2", null, `Worker ${worker.id} on ${plain(worker.host)}`), h("dl", { className: "facts" }, rows.flatMap(([name, value]) => [h("dt", null, name), h("dd", null, value)]))];
}
