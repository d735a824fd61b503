// Queues of automatic allocation: why they request more allocations, or none, and their allocations.

import { actions, allow, obstacle } from "../dialog.js";
import { h, rebuild, setText } from "../dom.js";
import { count, duration, moment, number, plain, zone } from "../format.js";
import { List } from "../list.js";
import { loaders, state } from "../live.js";
import { isStarving } from "../problems.js";
import { chip, emptiness, view } from "./view.js";

const STATES = { queued: "waiting", running: "running", finished: "finished", failed: "failed" };

export function allocations() {
  const cards = h("div", { className: "queues" });
  const list = new List({
    label: "Allocations",
    template: "allocations",
    id: (found) => `${found.queue?.id} ${found.allocation?.id}`,
    rowHeight: 30,
    tall: 74,
    columns: [{ label: "Queue", className: "right" }, { label: "Allocation" }, { label: "State" }, { label: "Nodes", className: "right" }, { label: `Queued (${zone()})` }, { label: "Waited", className: "right" }, { label: "Ran", className: "right" }, { label: "Reason" }],
    row,
  });

  function render() {
    const isKnown = state.known.has("queues");
    rebuild(cards, `${isKnown}${obstacle()}${JSON.stringify(state.queues)}`, () => {
      if (state.queues.length > 0) return [...state.queues].sort((a, b) => Number(isStarving(b)) - Number(isStarving(a)) || a.id - b.id).map(card);
      return isKnown ? h("section", { className: "panel" }, emptiness("There is no queue of automatic allocation: workers are started by hand.", "hq alloc add slurm --time-limit 1h", "hq doc batch-systems")) : null;
    });
    const all = state.queues.flatMap((queue) => queue.allocations.map((allocation) => ({ queue, allocation })));
    const order = ["failed", "queued", "running", "finished"];
    all.sort((a, b) => order.indexOf(a.allocation.state) - order.indexOf(b.allocation.state) || b.allocation.queued_ms - a.allocation.queued_ms);
    list.update(all);
    list.explain(isKnown ? h("p", null, state.queues.length > 0 ? "Nothing was asked of the batch system yet." : "No allocations.") : null);
  }

  /** The queue of the selected allocation, or the only one. */
  const queue = () => (list.isMoved ? list.current?.queue : undefined) ?? (state.queues.length === 1 ? state.queues[0] : undefined);

  return view({
    title: "Allocations",
    element: h("div", { className: "full" }, h("div", { className: "tools" }, h("h1", null, "Allocations")), cards, list.element),
    render,
    list,
    commands: () => {
      const found = queue();
      return found ? [{ name: `${found.is_paused ? "Resume" : "Pause"} queue ${found.id} …`, key: "p", act: () => actions.pauseQueue(found) }] : [];
    },
    fresh: [loaders.queues],
    parts: [list],
  });
}

function card(queue) {
  const word = chip();
  const isBad = isStarving(queue);
  word.update(isBad ? "failed" : "finished", queue.is_paused ? "paused" : isBad ? "refused" : "active");
  const pause = h("button", { type: "button", "data-focus": `queue${queue.id}`, onclick: () => actions.pauseQueue(queue) }, queue.is_paused ? "Resume …" : "Pause …");
  allow(pause, true);
  const counts = Object.keys(STATES).map((name) => [name, queue.allocations.filter((one) => one.state === name).length]).filter(([, found]) => found > 0);
  return h("section", { className: isBad ? "panel queue starving" : "panel queue" },
    h("div", { className: "headline" }, h("h2", null, `Queue ${queue.id}${queue.name ? ` ${plain(queue.name)}` : ""}`), word.element, h("span", { className: "grow" }), pause),
    h("p", { className: isBad ? "why bad" : "why" }, plain(queue.reason.replace(/; Stdout:\s*$/, ""))),
    h("p", { className: "muted" }, counts.length > 0 ? counts.map(([name, found]) => `${number(found)} ${name}`).join(", ") : count(0, "allocation")));
}

function row() {
  const [queue, id, nodes, queued, waited, ran, reason] = Array.from({ length: 7 }, () => h("span"));
  const word = chip();
  return {
    cells: [queue, id, h("span", null, word.element), nodes, queued, waited, ran, reason],
    update({ queue: found, allocation }) {
      const now = state.summary?.now_ms ?? Date.now();
      setText(queue, String(found.id));
      setText(id, plain(allocation.id));
      word.update(STATES[allocation.state] ?? "waiting", allocation.state);
      setText(nodes, number(allocation.workers));
      setText(queued, moment(allocation.queued_ms));
      setText(waited, duration((allocation.started_ms ?? allocation.ended_ms ?? now) - allocation.queued_ms));
      setText(ran, allocation.started_ms ? duration((allocation.ended_ms ?? now) - allocation.started_ms) : "");
      setText(reason, plain(allocation.reason));
    },
  };
}
