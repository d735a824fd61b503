// What waits for what in a task graph: its tasks collapsed by template, from left to right.

import * as api from "../api.js";
import { h, rebuild, setText, svg } from "../dom.js";
import { STATES, brief, compact, count, number, plain, total } from "../format.js";
import { loaders } from "../live.js";
import { view } from "./view.js";

const [WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN] = [176, 86, 60, 22, 12];
/** More are not readable; what is left out is said. */
const NODES_MAX = 300;

export function graph(id) {
  let found = null;
  const title = h("h1", null, `Graph of job ${id}`);
  const note = h("p", { className: "muted" });
  const box = h("div", { className: "graphbox", tabindex: 0, role: "region", "aria-label": "Graph of templates" });

  function render() {
    if (!found) return;
    const { templates, edges } = found;
    setText(note, templates.length === 0 ? "This job has no task graph: its tasks wait for nothing." : `${count(templates.length, "template")}, ${number(templates.reduce((sum, one) => sum + total(one.tasks), 0))} tasks. An arrow leads to what waits; its number tells how many dependencies it stands for.${templates.length > NODES_MAX ? ` Only ${NODES_MAX} are drawn.` : ""}`);
    rebuild(box, JSON.stringify(found), () => (templates.length > 0 ? drawing(templates.slice(0, NODES_MAX), edges) : null));
  }

  return view({
    title: `Graph of job ${id}`,
    element: h("div", { className: "full" }, h("div", { className: "tools" }, title, h("a", { className: "button", href: `#/job/${id}` }, `Job ${id}`)), note, box),
    render,
    fresh: [["graph", async () => { found = await api.get(`/jobs/${id}/graph`); }, 900, id], loaders.jobs],
  });
}

/** Column of each node: one behind the last of those that it waits for. A cycle between templates is cut. */
export function layers(nodes, edges) {
  const before = new Map(nodes.map((node) => [node.id, []]));
  for (const { source, target } of edges) {
    if (source !== target && before.has(source) && before.has(target)) before.get(target).push(source);
  }
  const layer = new Map();
  const open = new Set();
  const depth = (id) => {
    if (layer.has(id)) return layer.get(id);
    if (open.has(id)) return -1;
    open.add(id);
    let most = -1;
    for (const one of before.get(id)) most = Math.max(most, depth(one));
    open.delete(id);
    layer.set(id, most + 1);
    return most + 1;
  };
  for (const node of nodes) depth(node.id);
  return layer;
}

function drawing(nodes, edges) {
  const layer = layers(nodes, edges);
  const columns = [];
  for (const node of nodes) (columns[layer.get(node.id)] ??= []).push(node);
  const place = new Map();
  const tallest = Math.max(...columns.map((column) => column.length));
  columns.forEach((column, x) => {
    // Near those that it waits for, so that few arrows cross.
    const middle = (node) => {
      const ys = edges.filter((edge) => edge.target === node.id && place.has(edge.source)).map((edge) => place.get(edge.source).y);
      return ys.length > 0 ? ys.reduce((a, b) => a + b, 0) / ys.length : 0;
    };
    if (x > 0) column.sort((a, b) => middle(a) - middle(b));
    const top = ((tallest - column.length) * (HEIGHT + GAP_Y)) / 2;
    column.forEach((node, y) => place.set(node.id, { x: MARGIN + x * (WIDTH + GAP_X), y: MARGIN + top + y * (HEIGHT + GAP_Y) }));
  });
  const width = columns.length * (WIDTH + GAP_X) - GAP_X + 2 * MARGIN;
  const height = tallest * (HEIGHT + GAP_Y) - GAP_Y + 2 * MARGIN;
  const arrow = svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 9, markerHeight: 9, markerUnits: "userSpaceOnUse", orient: "auto" }, svg("path", { d: "M0 0L8 4L0 8z", className: "arrowhead" }));
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "list" }, svg("defs", null, arrow),
    edges.filter((edge) => edge.source !== edge.target && place.has(edge.source) && place.has(edge.target)).map((edge) => line(edge, place)),
    nodes.map((node) => box(node, place.get(node.id))));
}

function line({ source, target, count: amount }, place) {
  const [a, b] = [place.get(source), place.get(target)];
  const [x0, y0, x1, y1] = [a.x + WIDTH, a.y + HEIGHT / 2, b.x - 2, b.y + HEIGHT / 2];
  const bend = Math.max(GAP_X / 2, (x1 - x0) / 2);
  return svg("g", { "aria-hidden": "true" },
    svg("path", { className: "edge", d: `M${x0} ${y0}C${x0 + bend} ${y0} ${x1 - bend} ${y1} ${x1} ${y1}`, "stroke-width": Math.min(6, 1 + Math.log10(amount)), "marker-end": "url(#arrow)" }),
    svg("text", { className: "edgecount", x: (x0 + x1) / 2, y: (y0 + y1) / 2 - 5, "text-anchor": "middle" }, compact(amount)));
}

function box(node, { x, y }) {
  const { tasks } = node;
  const all = Math.max(1, total(tasks));
  const state = tasks.failed > 0 ? "failed" : tasks.running > 0 ? "running" : tasks.finished === all ? "finished" : "waiting";
  const lost = tasks.canceled + tasks.aborted;
  let at = x + 10;
  const parts = ["finished", "failed", "canceled", "aborted", "running"].filter((name) => tasks[name] > 0).map((name) => {
    const w = Math.max(2, ((WIDTH - 20) * tasks[name]) / all);
    const part = svg("rect", { className: `fill-${name}`, x: at, y: y + HEIGHT - 20, width: Math.min(w, x + WIDTH - 10 - at), height: 8 });
    at += w;
    return part;
  });
  const words = STATES.filter((name) => tasks[name] > 0).map((name) => `${compact(tasks[name])} ${name}`);
  const label = plain(node.label);
  return svg("g", { role: "listitem", className: `node ${state}`, "aria-label": `${label}: ${words.join(", ")}` },
    svg("title", null, `${label}\n${words.join(", ")}`),
    svg("rect", { className: "frame", x, y, width: WIDTH, height: HEIGHT, rx: 6 }),
    svg("text", { className: "label", x: x + 10, y: y + 22 }, brief(label, 24)),
    svg("text", { className: tasks.failed > 0 ? "sub bad" : "sub", x: x + 10, y: y + 40 }, tasks.failed > 0 ? `${compact(tasks.failed)} of ${compact(all)} failed` : lost > 0 ? `${compact(lost)} of ${compact(all)} not run` : `${compact(tasks.finished)} of ${compact(all)} done`),
    svg("text", { className: "sub", x: x + 10, y: y + 56 }, [tasks.running ? `${compact(tasks.running)} running` : "", tasks.waiting ? `${compact(tasks.waiting)} waiting` : ""].filter(Boolean).join(", ")),
    svg("rect", { className: "track", x: x + 10, y: y + HEIGHT - 20, width: WIDTH - 20, height: 8 }), parts);
}
