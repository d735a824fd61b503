// Dependencies in a task graph: its tasks collapsed by template. From left to right; on narrow screens downwards.

import * as api from "../api.js";
import { h, rebuild, setText, show, svg } from "../dom.js";
import { STATES, brief, compact, count, number, plain, total } from "../format.js";
import { loaders } from "../live.js";
import { Steps } from "../steps.js";
import { LogTail } from "../tail.js";
import { choose, chosen } from "../url.js";
import { absence, copyButton, typed, view } from "./view.js";

const MARGIN = 12;
const BAR_HEIGHT = 8;
const PAD = 10;
const NARROW = "(max-width: 700px)";
/** Maximum places on edges; larger graphs are unreadable anyway. */
const STOPS_MAX = 150;
/** Maximum enlargement of boxes. */
const SCALE_MAX = 1.6;
/** Maximum shown; the page mentions the rest. */
const NODES_MAX = 300;
/** Width of a character of a name, and maximum lines. */
const CHARACTER_PX = 8;
const LINES_MAX = 2;

/** Sizes: from left to right on wide screens, downwards on narrow ones. */
const WIDE = { width: 200, height: 102, gapX: 64, gapY: 24, isDown: false };
const TALL = { width: 164, height: 102, gapX: 14, gapY: 46, isDown: true };

/**
 * The relevant part of a command: the shell's line of `bash -c 'align …'`, the last part of `/opt/tools/bin/align`.
 * @param {string} label
 */
export function telling(label) {
  const script = /^\S*\b(?:ba|da|z|k)?sh\s+-\w*c\s+(.*)$/s.exec(label);
  const words = (script ? script[1] : label).trim().split(/\s+/);
  // An interpreter is less relevant than its script.
  if (words.length > 1 && /(?:^|\/)(?:python[\d.]*|perl|Rscript|julia|ruby|node|sh|bash)$/.test(words[0]) && !words[1].startsWith("-")) words.shift();
  return words.map((word) => (/^\/?(?:[\w.-]+\/)+[\w.-]+$/.test(word) ? word.split("/").at(-1) : word)).join(" ");
}

/** Lines of at most `width` characters; the last one is cut. */
function folded(text, width) {
  const lines = [];
  let rest = text;
  while (rest && lines.length < LINES_MAX) {
    if (rest.length <= width || lines.length === LINES_MAX - 1) {
      lines.push(brief(rest, width));
      break;
    }
    const space = rest.lastIndexOf(" ", width);
    const at = space > width / 3 ? space : width;
    lines.push(rest.slice(0, at));
    rest = rest.slice(at).trimStart();
  }
  return lines;
}

export function graph(id) {
  let found = null;
  let isUnknown = false;
  const note = h("p", { className: "muted" });
  const area = h("div", { className: "graphbox", tabindex: 0, role: "region", "aria-label": "Graph of steps" });
  const details = h("section", { className: "panel graphdetails", hidden: true, "aria-label": "Selected step" });
  const tail = new LogTail(id, { isStderr: true, lines: 20 });
  const narrow = matchMedia(NARROW);
  const steps = new Steps(area, ".node");

  async function load() {
    try {
      found = await api.get(`/jobs/${id}/graph`);
    } catch (error) {
      if (error.status !== 404) throw error;
      isUnknown = true;
    }
  }

  /** Shows details of a template, or hides them. */
  function pick(template) {
    choose({ template: chosen("template") === String(template) ? "" : template });
    render();
  }

  function render() {
    show(unknown, isUnknown);
    show(shown, !isUnknown);
    if (isUnknown || !found) return;
    const { templates, edges } = found;
    const tasks = templates.reduce((sum, one) => sum + total(one.tasks), 0);
    setText(note, templates.length === 0 ? "This job has no task graph: its tasks wait for nothing." : `${count(templates.length, "step")}, ${count(tasks, "task")}. Arrows point from a step to the steps that wait for it; a number counts dependencies.${edges.some((edge) => edge.source === edge.target) ? " Tasks of one step may wait for each other." : ""}${templates.length > NODES_MAX ? ` Only ${NODES_MAX} are drawn.` : ""}`);
    const picked = chosen("template");
    const room = { width: area.clientWidth, height: area.clientHeight };
    rebuild(area, JSON.stringify([found, narrow.matches, picked, room]), () => (templates.length > 0 ? drawing(templates.slice(0, NODES_MAX), edges, { ...(narrow.matches ? TALL : WIDE), room }, picked, pick) : null));
    const template = templates.find((one) => String(one.id) === picked);
    show(details, template !== undefined);
    if (!template) return;
    rebuild(facts, JSON.stringify(template), () => factsOf(id, template));
    if (details.dataset.shown !== picked) {
      details.dataset.shown = picked;
      area.querySelector(".picked")?.scrollIntoView({ block: "nearest", inline: "nearest" });
    }
    const example = template.first.failed ?? template.first.running ?? template.first.finished;
    show(tail.element, example !== null);
    if (example !== null) tail.open(example);
  }

  const facts = h("div");
  details.append(facts, tail.element);
  const title = h("h1", null, `Graph of job ${id}`);
  const shown = h("div", { className: "full" }, h("div", { className: "tools" }, title, h("a", { className: "button", href: `#/job/${id}` }, `Job ${id}`)), note, area, details);
  const unknown = absence(`There is no job ${id}`, "It may have been forgotten, or it is of another server.", typed("hq job list --all"));
  narrow.addEventListener("change", render);
  return view({
    title: `Graph of job ${id}`,
    element: h("div", { className: "whole" }, shown, unknown),
    render,
    list: steps,
    commands: () => [{ name: `Job ${id}`, key: "u", act: () => { location.hash = `#/job/${id}`; } }, ...(details.hidden ? [] : tail.commands())],
    focus: () => area.focus({ preventScroll: true }),
    fresh: [["graph", load, 900, id], loaders.jobs],
    parts: [tail],
    close: () => narrow.removeEventListener("change", render),
  });
}

/** The chosen template: its whole command, its tasks by state, with links to the first of each. */
function factsOf(job, template) {
  const states = STATES.filter((name) => template.tasks[name] > 0);
  const label = plain(template.label);
  return [
    h("h2", null, plain(template.name ?? telling(template.label))),
    h("p", null, h("code", null, label), " ", copyButton(label, "command")),
    h("p", { className: "counts" }, states.map((name) => {
      const first = template.first[name];
      const words = `${number(template.tasks[name])} ${name}`;
      return h("span", { className: `count ${name}` }, words, first === null ? "" : [", first ", h("a", { href: `#/job/${job}/task/${first}`, "data-focus": name }, `task ${number(first)}`)]);
    })),
  ];
}

/** Column of each node: one after the last of its dependencies. A cycle between templates is cut. */
export function layers(nodes, edges) {
  /** @type {Map<number, number[]>} */
  const before = new Map(nodes.map((node) => [node.id, []]));
  for (const { source, target } of edges) {
    if (source !== target && before.has(source)) before.get(target)?.push(source);
  }
  const layer = new Map();
  const open = new Set();
  const depth = (id) => {
    if (layer.has(id)) return layer.get(id);
    if (open.has(id)) return -1;
    open.add(id);
    let most = -1;
    for (const one of before.get(id) ?? []) most = Math.max(most, depth(one));
    open.delete(id);
    layer.set(id, most + 1);
    return most + 1;
  };
  for (const node of nodes) depth(node.id);
  return layer;
}

/**
 * Places in layers that an edge passes, so that it does not run behind boxes there.
 * @returns {{id: string, layer: number}[]}
 */
function stops({ source, target }, layer) {
  const [from, to] = [layer.get(source), layer.get(target)];
  return Array.from({ length: Math.max(0, to - from - 1) }, (_, at) => ({ id: `${source} ${target} ${at}`, layer: from + 1 + at }));
}

/** Position of each node, and the total size. `ways` has the places that each edge passes. */
function placed(nodes, edges, sizes) {
  const layer = layers(nodes, edges);
  const ways = new Map(edges.map((edge) => [edge, stops(edge, layer)]));
  const passes = [...ways.values()].flat();
  if (passes.length > STOPS_MAX) ways.clear();
  const shown = passes.length > STOPS_MAX ? nodes : [...nodes, ...passes];
  // From each place to the next one.
  const links = edges.flatMap((edge) => {
    const all = [edge.source, ...(ways.get(edge) ?? []).map((stop) => stop.id), edge.target];
    return all.slice(1).map((target, at) => ({ source: all[at], target }));
  });
  /** @type {any[][]} */
  const all = [];
  for (const node of shown) (all[node.layer ?? layer.get(node.id)] ??= []).push(node);
  const place = new Map();
  const { width, height, gapX, gapY, isDown } = sizes;
  // Along a layer and across layers.
  const [step, next] = isDown ? [width + gapX, height + gapY] : [height + gapY, width + gapX];
  const most = Math.max(...all.map((one) => one.length));
  all.forEach((one, depth) => {
    // Near its dependencies, so that few arrows cross.
    const middle = (node) => {
      const found = links.filter((link) => link.target === node.id && place.has(link.source)).map((link) => place.get(link.source)[isDown ? "x" : "y"]);
      return found.length > 0 ? found.reduce((a, b) => a + b, 0) / found.length : 0;
    };
    if (depth > 0) one.sort((a, b) => middle(a) - middle(b));
    const begin = ((most - one.length) * step) / 2;
    one.forEach((node, at) => {
      const [along, across] = [MARGIN + begin + at * step, MARGIN + depth * next];
      place.set(node.id, isDown ? { x: along, y: across } : { x: across, y: along });
    });
  });
  const [along, across] = [most * step, all.length * next];
  return { place, ways, width: (isDown ? along - gapX : across - gapX) + 2 * MARGIN, height: (isDown ? across - gapY : along - gapY) + 2 * MARGIN };
}

function drawing(nodes, edges, sizes, picked, pick) {
  const known = new Set(nodes.map((node) => node.id));
  const drawn = edges.filter((edge) => edge.source !== edge.target && known.has(edge.source) && known.has(edge.target));
  const { place, ways, width, height } = placed(nodes, drawn, sizes);
  const arrow = svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 9, markerHeight: 9, markerUnits: "userSpaceOnUse", orient: "auto" }, svg("path", { d: "M0 0L8 4L0 8z", className: "arrowhead" }));
  // With few boxes, the boxes grow into the free space.
  const { room } = sizes;
  const scale = Math.max(1, Math.min(SCALE_MAX, room.width / width, room.height / height));
  return svg("svg", { width: Math.floor(width * scale), height: Math.floor(height * scale), viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Steps" }, svg("defs", null, arrow),
    drawn.map((edge) => line(edge, (ways.get(edge) ?? []).map((stop) => place.get(stop.id)), place, sizes)), drawn.map((edge) => amount(edge, ways.get(edge)?.at(-1), place, sizes)),
    nodes.map((node) => box(node, place.get(node.id), sizes, picked === String(node.id), pick)));
}

/** Ends of an arrow between two places. */
function ends(a, b, { width, height, isDown }) {
  return isDown ? [a.x + width / 2, a.y + height, b.x + width / 2, b.y - 2] : [a.x + width, a.y + height / 2, b.x - 2, b.y + height / 2];
}

function line(edge, stopped, place, sizes) {
  const all = [place.get(edge.source), ...stopped, place.get(edge.target)];
  const path = all.slice(1).map((to, at) => {
    const [x0, y0, x1, y1] = ends(all[at], to, sizes);
    const bend = sizes.isDown ? Math.max(sizes.gapY / 2, (y1 - y0) / 2) : Math.max(sizes.gapX / 2, (x1 - x0) / 2);
    // Straight through a passed place.
    return `${at === 0 ? "M" : "L"}${x0} ${y0}${sizes.isDown ? `C${x0} ${y0 + bend} ${x1} ${y1 - bend} ${x1} ${y1}` : `C${x0 + bend} ${y0} ${x1 - bend} ${y1} ${x1} ${y1}`}`;
  }).join("");
  return svg("path", { "aria-hidden": "true", className: "edge", d: path, "stroke-width": Math.min(6, 1 + Math.log10(edge.count)), "marker-end": "url(#arrow)" });
}

/** The number of dependencies of an arrow, near its head, where the arrows of a node are apart. */
function amount(edge, lastStop, place, sizes) {
  if (edge.count === 1) return null;
  const [x0, y0, x1, y1] = ends(place.get(lastStop?.id ?? edge.source), place.get(edge.target), sizes);
  const part = 0.7;
  // The point of the curve at that fraction.
  const smooth = part * part * (3 - 2 * part);
  const [x, y] = sizes.isDown ? [x0 + (x1 - x0) * smooth, y0 + (y1 - y0) * part] : [x0 + (x1 - x0) * part, y0 + (y1 - y0) * smooth];
  return svg("text", { "aria-hidden": "true", className: "edgecount", x, y: y + 4, "text-anchor": "middle" }, compact(edge.count));
}

function box(node, { x, y }, { width, height }, isPicked, pick) {
  const { tasks } = node;
  const all = Math.max(1, total(tasks));
  const state = tasks.failed > 0 ? "failed" : tasks.running > 0 ? "running" : tasks.finished === all ? "finished" : "waiting";
  const lost = tasks.canceled + tasks.aborted;
  const room = width - 2 * PAD;
  const barY = y + height - PAD - BAR_HEIGHT;
  let at = x + PAD;
  const parts = ["finished", "failed", "canceled", "aborted", "running"].filter((name) => tasks[name] > 0).map((name) => {
    const w = Math.max(2, (room * tasks[name]) / all);
    const part = svg("rect", { className: `fill-${name}`, x: at, y: barY, width: Math.max(0, Math.min(w, x + PAD + room - at)), height: BAR_HEIGHT });
    at += w;
    return part;
  });
  const words = STATES.filter((name) => tasks[name] > 0).map((name) => `${compact(tasks[name])} ${name}`);
  const label = plain(node.label);
  const rest = [tasks.running ? `${compact(tasks.running)} running` : "", tasks.waiting ? `${compact(tasks.waiting)} waiting` : ""].filter(Boolean).join(", ");
  const done = tasks.failed > 0 ? `${compact(tasks.failed)} of ${compact(all)} failed` : lost > 0 ? `${compact(lost)} of ${compact(all)} not run` : `${compact(tasks.finished)} of ${compact(all)} done`;
  const act = () => pick(node.id);
  const onkeydown = (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    event.stopPropagation();
    act();
  };
  const lines = folded(plain(node.name ?? telling(node.label)), Math.floor(room / CHARACTER_PX));
  return svg("g", { role: "button", tabindex: 0, "aria-pressed": String(isPicked), "data-focus": `node${node.id}`, className: `node ${state}${isPicked ? " picked" : ""}`, onclick: act, onkeydown },
    svg("title", null, `${label}\n${words.join(", ")}`),
    svg("rect", { className: "frame", x, y, width, height, rx: 6 }),
    lines.map((text, row) => svg("text", { className: "label", x: x + PAD, y: y + 20 + row * 16 }, text)),
    svg("text", { className: tasks.failed > 0 ? "sub bad" : "sub", x: x + PAD, y: y + 55 }, done),
    svg("text", { className: "sub", x: x + PAD, y: y + 71 }, rest),
    svg("rect", { className: "track", x: x + PAD, y: barY, width: room, height: BAR_HEIGHT }), parts);
}
