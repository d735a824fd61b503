// Workers and their tasks over time. Bars are written into an image, pixel by pixel, which takes a few
// milliseconds for a hundred thousand of them; what is narrower than a pixel still shows, failures above all.

import * as api from "../api.js";
import { Bars, FAILED, FINISHED, RUNNING } from "../bars.js";
import { colors, pixel } from "../colors.js";
import { h, setText, show } from "../dom.js";
import { clock, count, duration, number, plain } from "../format.js";
import { loaders, onEvents, onGap, state } from "../live.js";
import { suspectHosts } from "../problems.js";
import { view } from "./view.js";

const GUTTER = 96;
const AXIS = 22;
const ROW_GAP = 3;
const LANE_MAX = 14;
const LANE_MIN = 2;
const SPAN_MIN = 50;
const SPAN_MAX = 400 * 86_400_000;
const STEPS = 400;
const BARS_MAX = 150_000;
const LOAD_PAUSE_MS = 250;
/** Sums grow old, tasks are kept up to date by events. */
const STEPS_FRESH_MS = 2_500;
/** What a look cost the server is waited for so many times over. */
const COST_FACTOR = 50;

export function timeline() {
  const asked = Number(new URLSearchParams(location.hash.split("?")[1] ?? "").get("job") ?? 0);
  const bars = new Bars();
  let [from, to] = [0, 0];
  let loaded = null;
  let isFollowing = true;
  let scroll = 0;
  let isDirty = true;
  let isLoading = false;
  let loadAt = 0;
  let byJob = false;
  let onlyJob = asked || null;
  let problem = "";
  let isClosed = false;
  let image = null;
  let place = null;
  let suspects = new Set();

  const canvas = h("canvas", { className: "gantt", tabindex: 0, role: "application", "aria-label": "Timeline of workers and tasks. Arrow keys move, plus and minus zoom, 0 shows all, n follows the present." });
  const tip = h("div", { className: "tip", hidden: true });
  const figures = h("span", { className: "muted", role: "status" });
  const button = (label, name, act) => h("button", { type: "button", title: name, "aria-label": name, onclick: () => { act(); canvas.focus({ preventScroll: true }); } }, label);
  const now = button("Now", "Follow the present (n)", () => follow());
  const palette = h("select", { "aria-label": "Colours", onchange: () => { byJob = palette.value === "job"; isDirty = true; } }, h("option", { value: "state" }, "colours: state"), h("option", { value: "job" }, "colours: job"));
  const which = h("input", { type: "search", inputmode: "numeric", placeholder: "only job", size: 9, "aria-label": "Show only this job", value: onlyJob ? String(onlyJob) : "", oninput: () => { onlyJob = Number(which.value) || null; isDirty = true; } });
  const legend = h("span", { className: "legend" }, ["finished", "running", "failed"].map((name) => h("span", { className: `key ${name}` }, name)));

  const clockNow = () => state.summary ? state.summary.now_ms + (performance.now() - seenAt) : Date.now();
  let [seenAt, seenMs] = [performance.now(), 0];

  function follow() {
    isFollowing = true;
    const span = to - from;
    to = clockNow() + span * 0.03;
    from = to - span;
    isDirty = true;
  }

  function fitAll() {
    const first = loaded?.first ?? clockNow() - 600_000;
    const span = Math.max(SPAN_MIN, clockNow() - first);
    [from, to] = [first - span * 0.01, clockNow() + span * 0.03];
    isFollowing = true;
    isDirty = true;
    wanted();
  }

  function zoom(factor, at = (from + to) / 2) {
    const span = Math.max(SPAN_MIN, Math.min(SPAN_MAX, (to - from) * factor));
    const part = (at - from) / (to - from);
    from = at - span * part;
    to = from + span;
    isFollowing = isFollowing && clockNow() <= to && clockNow() >= from;
    isDirty = true;
    wanted();
  }

  function pan(ms) {
    from += ms;
    to += ms;
    isFollowing = ms > 0 && to >= clockNow() && from < clockNow();
    isDirty = true;
    wanted();
  }

  /** Loads a little later what is not there yet. */
  function wanted() {
    if (loadAt === 0) loadAt = performance.now() + LOAD_PAUSE_MS;
  }

  function isCovered() {
    if (!loaded) return false;
    if (loaded.steps) return performance.now() - loaded.at < loaded.rest && from >= loaded.from && to - from > (loaded.to - loaded.from) / 4;
    return from >= loaded.from && (to <= loaded.to || loaded.isLive);
  }

  async function load() {
    loadAt = 0;
    if (isLoading || isCovered()) return;
    isLoading = true;
    try {
      const span = to - from;
      const present = clockNow();
      const [a, b] = [Math.max(0, Math.floor(from - span / 2)), Math.ceil(Math.min(to + span / 2, present + 60_000))];
      const answer = await api.get(`/timeline?from_ms=${Math.min(a, b - 1)}&to_ms=${b}&steps=${STEPS}`);
      if (isClosed) return;
      loaded = { from: answer.from_ms, to: answer.to_ms, first: answer.first_ms || present - 600_000, steps: answer.steps, stepMs: (answer.step_us ?? 0) / 1000, rest: Math.max(STEPS_FRESH_MS, (answer.cost_ms ?? 0) * COST_FACTOR), at: performance.now(), isCut: answer.is_cut === true, isLive: answer.tasks !== null && answer.to_ms >= present };
      for (const row of answer.tasks ?? []) row[1] += answer.from_ms;
      bars.load(answer.tasks ?? []);
      for (const worker of state.workers) if (worker.state === "connected") bars.rowOf(worker.id);
      for (const [worker] of answer.steps ?? []) bars.rowOf(worker);
      arrange();
      for (const found of missed.splice(0)) bars.take(found);
      problem = "";
      if (to - from < 0.5) fitAll();
    } catch (error) {
      problem = error.message;
    }
    isLoading = false;
    isDirty = true;
  }

  /** Rows in the order of the workers. */
  function arrange() {
    place = null;
  }

  const missed = [];
  const endEvents = onEvents((events) => {
    for (const found of events) {
      if (!found.event.type?.startsWith("task-")) continue;
      if (isLoading) {
        if (missed.length < BARS_MAX) missed.push(found);
      }
      if (loaded?.isLive) bars.take(found);
    }
    if (bars.length > BARS_MAX) {
      bars.prune(from - (to - from) / 2);
      if (loaded) loaded.from = Math.max(loaded.from, from - (to - from) / 2);
      // All of it is in view: from now on in steps.
      if (bars.length > BARS_MAX) loaded = null;
    }
    place = null;
    isDirty = true;
  });

  const endGaps = onGap(() => {
    loaded = null;
    missed.length = 0;
    isDirty = true;
  });

  /** Where each row is, in CSS pixels below the axis. */
  function layout(height) {
    const hosts = new Map(state.workers.map((worker) => [worker.id, worker]));
    const order = bars.rows.map((_, at) => at).sort((a, b) => bars.rows[a].worker - bars.rows[b].worker);
    const cpus = (row) => {
      const worker = hosts.get(bars.rows[row].worker);
      const found = worker?.resources.find((one) => one.name === "cpus")?.total ?? 1;
      return loaded?.steps ? 1 : Math.max(bars.rows[row].lanes.length, Math.min(4, found));
    };
    const lanes = order.reduce((sum, row) => sum + cpus(row), 0);
    const room = height - AXIS - order.length * ROW_GAP;
    const most = loaded?.steps ? 40 : LANE_MAX;
    const lane = Math.max(loaded?.steps ? 8 : LANE_MIN, Math.min(most, room / Math.max(1, lanes)));
    const tops = new Float64Array(bars.rows.length);
    const heights = new Float64Array(bars.rows.length);
    let y = 0;
    for (const row of order) {
      tops[row] = y;
      heights[row] = cpus(row) * lane;
      y += heights[row] + ROW_GAP;
    }
    place = { order, tops, heights, lane, total: y, hosts, height, width: 0 };
  }

  function draw() {
    const { clientWidth: width, clientHeight: height } = canvas;
    if (width === 0 || height === 0) return;
    const scale = Math.min(devicePixelRatio, 2);
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
      place = null;
    }
    if (!place || place.height !== height) layout(height);
    scroll = Math.max(0, Math.min(scroll, place.total - (height - AXIS)));
    const context = canvas.getContext("2d", { alpha: false });
    const theme = colors();
    const w = Math.max(1, Math.round((width - GUTTER) * scale));
    const tall = Math.max(1, Math.round((height - AXIS) * scale));
    if (!image || image.width !== w || image.height !== tall) image = new ImageData(w, tall);
    const pixels = new Uint32Array(image.data.buffer);
    pixels.fill(pixel(theme.surface));
    const shown = paint(pixels, w, tall, scale, theme);
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.fillStyle = theme.surface;
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.putImageData(image, Math.round(GUTTER * scale), Math.round(AXIS * scale));
    context.setTransform(scale, 0, 0, scale, 0, 0);
    drawAxis(context, width, height, theme);
    drawNames(context, height, theme);
    tell(shown);
  }

  function paint(pixels, w, tall, scale, theme) {
    const perMs = w / (to - from);
    const shades = palettes(theme);
    const fill = (x0, x1, y0, y1, color) => {
      const [left, right] = [Math.max(0, x0), Math.min(w, x1)];
      const [top, bottom] = [Math.max(0, y0), Math.min(tall, y1)];
      const isNarrow = right - left < 16;
      for (let y = top; y < bottom; y += 1) {
        // A call costs more than a few pixels.
        if (isNarrow) for (let at = y * w + left; at < y * w + right; at += 1) pixels[at] = color;
        else pixels.fill(color, y * w + left, y * w + right);
      }
    };
    const present = clockNow();
    const idle = pixel(theme.line);
    for (const row of place.order) {
      const worker = place.hosts.get(bars.rows[row].worker);
      const begin = worker?.started_ms ?? from;
      const end = worker?.ended_ms ?? (worker ? present : to);
      const y0 = Math.round((place.tops[row] - scroll) * scale);
      fill(Math.round((begin - from) * perMs), Math.round((end - from) * perMs), y0, y0 + Math.round(place.heights[row] * scale), idle);
    }
    return loaded?.steps ? paintSteps(fill, perMs, scale, shades) : paintTasks(fill, perMs, scale, shades, present);
  }

  function palettes(theme) {
    const states = [];
    states[RUNNING] = [pixel(theme.running), pixel(theme.running, 0.86)];
    states[FINISHED] = [pixel(theme.finished), pixel(theme.finished, 0.86)];
    states[FAILED] = [pixel(theme.failed), pixel(theme.failed, 0.86)];
    return { states, other: pixel(theme.muted, 0.8) };
  }

  function paintTasks(fill, perMs, scale, shades, present) {
    const { begin, end, row, lane, state: what, job, task, length } = bars;
    const laneHeight = place.lane * scale;
    const [offset, gapY] = [scroll * scale, laneHeight >= 5 ? 1 : 0];
    let [shown, failed] = [0, 0];
    // Failures come last, so that nothing hides them.
    for (const isLast of [false, true]) {
      for (let i = 0; i < length; i += 1) {
        const isBad = what[i] === FAILED;
        if (isBad !== isLast || begin[i] > to) continue;
        const until = end[i] === Infinity ? present : end[i];
        if (until < from) continue;
        shown += 1;
        if (isBad) failed += 1;
        const y0 = Math.round(place.tops[row[i]] * scale - offset + lane[i] * laneHeight);
        const x0 = Math.floor((begin[i] - from) * perMs);
        let x1 = Math.ceil((until - from) * perMs);
        if (x1 - x0 > 4) x1 -= 1;
        const isOther = onlyJob !== null && job[i] !== onlyJob;
        const color = isOther ? shades.other : byJob && !isBad ? jobColor(job[i]) : shades.states[what[i]][task[i] & 1];
        fill(x0, Math.max(x1, x0 + (isBad ? 2 * scale : 1)), y0, Math.max(y0 + 1, Math.round(y0 + laneHeight) - gapY), color);
      }
    }
    return { shown, failed };
  }

  function paintSteps(fill, perMs, scale, shades) {
    let [shown, failed] = [0, 0];
    const most = Math.max(1, ...loaded.steps.map((step) => step[2]));
    for (const [worker, step, busy, tasks, bad] of loaded.steps) {
      const row = bars.byWorker.get(worker);
      const begin = loaded.from + step * loaded.stepMs;
      if (begin + loaded.stepMs < from || begin > to) continue;
      shown += tasks;
      failed += bad;
      const [x0, x1] = [Math.floor((begin - from) * perMs), Math.ceil((begin + loaded.stepMs - from) * perMs)];
      const bottom = Math.round((place.tops[row] + place.heights[row] - scroll) * scale);
      const high = Math.max(2, place.heights[row] * scale * Math.min(1, busy / most));
      fill(x0, Math.max(x1, x0 + 1), Math.round(bottom - high), bottom, shades.states[FINISHED][0]);
      if (bad > 0) fill(x0, Math.max(x1, x0 + 2), Math.round(bottom - Math.max(3, (high * bad) / tasks)), bottom, shades.states[FAILED][0]);
    }
    return { shown, failed };
  }

  function drawAxis(context, width, height, theme) {
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = theme.muted;
    context.strokeStyle = theme.line;
    context.textBaseline = "middle";
    context.textAlign = "left";
    const step = tick(((to - from) / (width - GUTTER)) * 110);
    const zone = new Date(from).getTimezoneOffset() * 60_000;
    for (let at = Math.ceil((from - zone) / step) * step + zone; at < to; at += step) {
      const x = GUTTER + ((at - from) / (to - from)) * (width - GUTTER);
      context.globalAlpha = 0.6;
      context.beginPath();
      context.moveTo(Math.round(x) + 0.5, AXIS - 5);
      context.lineTo(Math.round(x) + 0.5, height);
      context.stroke();
      context.globalAlpha = 1;
      context.fillText(step < 1000 ? `${clock(at)}.${String(Math.round(at) % 1000).padStart(3, "0")}` : clock(at), x + 3, AXIS / 2);
    }
    const x = GUTTER + ((clockNow() - from) / (to - from)) * (width - GUTTER);
    if (x > GUTTER && x < width) {
      context.fillStyle = theme.accent;
      context.fillRect(Math.round(x), AXIS - 6, 1, height);
    }
  }

  function drawNames(context, height, theme) {
    context.fillStyle = theme.surface;
    context.fillRect(0, 0, GUTTER, height);
    context.textAlign = "left";
    context.textBaseline = "top";
    let last = -Infinity;
    for (const row of place.order) {
      const y = place.tops[row] - scroll + AXIS;
      if (y < AXIS - place.heights[row] || y > height || y - last < 12) continue;
      last = y;
      const worker = place.hosts.get(bars.rows[row].worker);
      const isGone = worker !== undefined && worker.state !== "connected";
      const isSuspect = suspects.has(worker?.host);
      context.fillStyle = isSuspect ? theme.failed : isGone ? theme.muted : theme.text;
      const name = plain(worker?.host ?? `worker ${bars.rows[row].worker}`).split(".")[0];
      context.fillText(`${isSuspect ? "✕ " : ""}${name}${isGone ? " (gone)" : ""}`, 4, Math.max(AXIS, y), GUTTER - 8);
    }
    context.fillStyle = theme.surface;
    context.fillRect(0, 0, GUTTER, AXIS);
  }

  function tell({ shown, failed }) {
    const what = problem || (loaded ? `${count(shown, "task")} on ${count(place.order.length, "worker")} in ${duration(to - from)}${failed ? `, ${number(failed)} failed` : ""}${loaded.steps ? " · zoom in for single tasks" : ""}${loaded.isCut ? " · some workers are left out: there are too many" : ""}` : "reading …");
    setText(figures, what);
  }

  function hit(x, y) {
    if (!place || loaded?.steps || x < GUTTER || y < AXIS) return -1;
    const at = from + ((x - GUTTER) / (canvas.clientWidth - GUTTER)) * (to - from);
    const slack = ((to - from) / (canvas.clientWidth - GUTTER)) * 2;
    const row = place.order.find((one) => y - AXIS + scroll >= place.tops[one] && y - AXIS + scroll < place.tops[one] + place.heights[one]);
    if (row === undefined) return -1;
    const lane = Math.floor((y - AXIS + scroll - place.tops[row]) / place.lane);
    let best = -1;
    for (let i = 0; i < bars.length; i += 1) {
      if (bars.row[i] !== row || bars.lane[i] !== lane || bars.begin[i] > at + slack || bars.end[i] < at - slack) continue;
      if (best < 0 || bars.state[i] === FAILED) best = i;
    }
    return best;
  }

  function describe(event) {
    const box = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const found = hit(x, y);
    show(tip, found >= 0);
    canvas.style.cursor = found >= 0 ? "pointer" : "grab";
    if (found < 0) return;
    const name = state.jobs.get(bars.job[found])?.name ?? "";
    const words = ["", "running", "finished", "failed"][bars.state[found]];
    const until = bars.end[found] === Infinity ? clockNow() : bars.end[found];
    setText(tip, `${plain(name)} · job ${bars.job[found]}, task ${number(bars.task[found])} · ${words} · ${duration(until - bars.begin[found])}`);
    tip.style.left = `${Math.max(0, Math.min(x + 12, box.width - 330))}px`;
    tip.style.top = `${y + 16}px`;
  }

  const pointers = new Map();
  let moved = 0;
  canvas.addEventListener("pointerdown", (event) => {
    pointers.set(event.pointerId, event);
    canvas.setPointerCapture(event.pointerId);
    moved = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) return describe(event);
    const perPixel = (to - from) / (canvas.clientWidth - GUTTER);
    if (pointers.size === 2) {
      const [other] = [...pointers.values()].filter((one) => one.pointerId !== event.pointerId);
      const [was, is] = [Math.abs(before.clientX - other.clientX), Math.abs(event.clientX - other.clientX)];
      const middle = (event.clientX + other.clientX) / 2 - canvas.getBoundingClientRect().left;
      if (was > 8 && is > 8) zoom(was / is, from + (middle - GUTTER) * perPixel);
    } else {
      moved += Math.abs(event.clientX - before.clientX) + Math.abs(event.clientY - before.clientY);
      if (moved > 3) {
        if (event.clientX !== before.clientX) pan((before.clientX - event.clientX) * perPixel);
        scroll += before.clientY - event.clientY;
        show(tip, false);
      }
    }
    pointers.set(event.pointerId, event);
    isDirty = true;
  });
  for (const kind of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(kind, (event) => {
      pointers.delete(event.pointerId);
      if (kind !== "pointerup" || moved > 3) return;
      const box = canvas.getBoundingClientRect();
      const found = hit(event.clientX - box.left, event.clientY - box.top);
      if (found >= 0) location.hash = `#/job/${bars.job[found]}/task/${bars.task[found]}`;
    });
  }
  canvas.addEventListener("pointerleave", () => show(tip, false));
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    if (event.shiftKey) scroll += event.deltaY;
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan((event.deltaX * (to - from)) / (canvas.clientWidth - GUTTER));
    else {
      const x = event.clientX - canvas.getBoundingClientRect().left;
      zoom(1.0015 ** event.deltaY, from + ((x - GUTTER) / (canvas.clientWidth - GUTTER)) * (to - from));
    }
    isDirty = true;
  }, { passive: false });
  const keys = {
    ArrowLeft: () => pan(-(to - from) / 8),
    ArrowRight: () => pan((to - from) / 8),
    ArrowUp: () => { scroll -= 60; },
    ArrowDown: () => { scroll += 60; },
    "+": () => zoom(0.7),
    "=": () => zoom(0.7),
    "-": () => zoom(1 / 0.7),
    0: fitAll,
    Home: fitAll,
    n: follow,
    End: follow,
  };
  const onKey = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, dialog, a, nav") || !(event.key in keys)) return;
    event.preventDefault();
    keys[event.key]();
    isDirty = true;
  };
  document.addEventListener("keydown", onKey);
  const observer = new ResizeObserver(() => { isDirty = true; });
  observer.observe(canvas);

  let frame = requestAnimationFrame(function next(time) {
    frame = requestAnimationFrame(next);
    if (to === from) {
      if (!state.summary) return;
      [from, to] = [state.summary.now_ms - 600_000, state.summary.now_ms + 18_000];
      void load().then(() => { if (loaded && loaded.first > from) fitAll(); });
    }
    if (isFollowing && pointers.size === 0) {
      const span = to - from;
      const target = clockNow() + span * 0.03;
      // Moves when it makes a pixel, at most a few times a second.
      if (target - to > Math.max(span / Math.max(1, canvas.clientWidth), 200)) {
        to = target;
        from = to - span;
        isDirty = true;
      }
    }
    if (loadAt > 0 && time >= loadAt) void load();
    if (!isLoading && loadAt === 0 && !isCovered() && !problem) wanted();
    if (!isDirty) return;
    isDirty = false;
    draw();
  });

  return view({
    title: "Timeline",
    element: h("div", { className: "full timeline" },
      h("div", { className: "tools" }, h("h1", null, "Timeline"), button("−", "Zoom out (-)", () => zoom(1 / 0.6)), button("+", "Zoom in (+)", () => zoom(0.6)), button("All", "Show all (0)", fitAll), now, palette, which, legend),
      h("div", { className: "ganttbox" }, canvas, tip), figures),
    render() {
      if (state.summary && state.summary.now_ms !== seenMs) [seenAt, seenMs] = [performance.now(), state.summary.now_ms];
      if (problem && state.link === "live") { problem = ""; }
      now.setAttribute("aria-pressed", String(isFollowing));
      setText(now, isFollowing ? "● Now" : "Now");
      suspects = suspectHosts(state.problems);
      place = null;
      isDirty = true;
    },
    fresh: [loaders.workers, loaders.jobs],
    close() {
      isClosed = true;
      cancelAnimationFrame(frame);
      endEvents();
      endGaps();
      observer.disconnect();
      document.removeEventListener("keydown", onKey);
    },
  });
}

/** A round step of at least so many ms. */
function tick(ms) {
  const steps = [1, 5, 10, 50, 100, 500, 1_000, 5_000, 10_000, 30_000, 60_000, 300_000, 600_000, 1_800_000, 3_600_000, 10_800_000, 21_600_000, 43_200_000, 86_400_000];
  return steps.find((step) => step >= ms) ?? Math.ceil(ms / 86_400_000) * 86_400_000;
}

const jobColors = new Map();

/** A colour of its own for each job. */
function jobColor(job) {
  let found = jobColors.get(job);
  if (found === undefined) {
    const hue = ((job * 137.508) % 300 + 40) / 60;
    const wave = (offset) => Math.round(120 + 75 * Math.max(-1, Math.min(1, 2 - Math.abs(((hue + offset) % 6) - 3))));
    found = pixel(`rgb(${wave(3)}, ${wave(1)}, ${wave(5)})`);
    if (jobColors.size > 10_000) jobColors.clear();
    jobColors.set(job, found);
  }
  return found;
}
