// Draws the timeline. Writes bars into an image, pixel by pixel, which takes a few milliseconds for a hundred thousand
// of them; a bar narrower than a pixel still shows, failures above all.

import { colors, pixel } from "../colors.js";
import { clock, day, plain } from "../format.js";
import { ABORTED, CANCELED, FAILED, FINISHED, RUNNING } from "./bars.js";

/** Width of the names and height of the axis, in CSS pixels. */
export const GUTTER = 96;
export const AXIS = 22;
const ROW_GAP = 4;
/** Maximum height of a cpu: few workers fill the picture. */
const CPU_MAX = 72;
/** Minimum height of a worker, regardless of its cpus. */
const ROW_MIN = 12;
const ROW_MAX_OF_STEPS = 120;
const ROW_MIN_OF_STEPS = 8;
/** Lower lanes touch each other. */
const GAPPED_MIN = 5;

/**
 * Position of each row, in CSS pixels below the axis.
 * @typedef {{order: number[], tops: Float64Array, heights: Float64Array, lanes: Float64Array, total: number, height: number}} Places
 */
/** Present choices. @typedef {{byJob: boolean, onlyJob: number | null, scroll: number, suspects: Set<string>}} Look */

/** @param {import("./source.js").TimelineSource} source @param {number} height @returns {Places} */
export function placesOf(source, height) {
  const { bars: { rows }, loaded } = source;
  const hasSteps = Boolean(loaded?.steps);
  const order = rows.map((_, at) => at).sort((a, b) => rows[a].worker - rows[b].worker);
  // The height of a worker follows its cpus: a busy node is a full row.
  const weight = (row) => (hasSteps ? 1 : rows[row].cpus || Math.max(1, rows[row].lanes.length));
  const all = order.reduce((sum, row) => sum + weight(row), 0);
  const room = height - AXIS - order.length * ROW_GAP;
  const each = room / Math.max(1, all);
  const high = (row) => (hasSteps
    ? Math.max(ROW_MIN_OF_STEPS, Math.min(ROW_MAX_OF_STEPS, each))
    : Math.max(ROW_MIN, Math.min(CPU_MAX, each) * weight(row)));
  const [tops, heights, lanes] = Array.from({ length: 3 }, () => new Float64Array(rows.length));
  let y = 0;
  for (const row of order) {
    tops[row] = y;
    heights[row] = high(row);
    lanes[row] = heights[row] / Math.max(1, rows[row].lanes.length);
    y += heights[row] + ROW_GAP;
  }
  return { order, tops, heights, lanes, total: y, height };
}

/** Adapts the canvas to its element; returns whether the size has changed. @param {HTMLCanvasElement} canvas */
export function fitCanvas(canvas) {
  const scale = Math.min(devicePixelRatio, 2);
  const [width, height] = [Math.round(canvas.clientWidth * scale), Math.round(canvas.clientHeight * scale)];
  if (canvas.width === width && canvas.height === height) return false;
  [canvas.width, canvas.height] = [width, height];
  return true;
}

/** Draws into one canvas, and keeps its image. */
export class Painter {
  /** @param {HTMLCanvasElement} canvas @param {import("./source.js").TimelineSource} source */
  constructor(canvas, source) {
    this.canvas = canvas;
    this.source = source;
    /** @type {ImageData | null} */
    this.image = null;
  }

  /** @param {Places} places @param {Look} look @returns {{shown: number, failed: number, canceled: number}} */
  draw(places, look) {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const scale = Math.min(devicePixelRatio, 2);
    const context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d", { alpha: false }));
    const theme = colors();
    const w = Math.max(1, Math.round((width - GUTTER) * scale));
    const tall = Math.max(1, Math.round((height - AXIS) * scale));
    if (!this.image || this.image.width !== w || this.image.height !== tall) this.image = new ImageData(w, tall);
    const sheet = new Sheet(this.image, scale, this.source.window, look.scroll);
    sheet.clear(pixel(theme.surface));
    this.drawLives(sheet, places, pixel(theme.line));
    const shown = this.source.loaded?.steps ? this.drawSteps(sheet, places, theme) : this.drawTasks(sheet, places, look, theme);
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.fillStyle = theme.surface;
    context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    context.putImageData(this.image, Math.round(GUTTER * scale), Math.round(AXIS * scale));
    context.setTransform(scale, 0, 0, scale, 0, 0);
    this.drawAxis(context, width, height, theme);
    this.drawNames(context, height, places, look, theme);
    return shown;
  }

  /** Periods of each worker's connection. */
  drawLives(sheet, places, color) {
    const { window: { from, to }, bars: { rows } } = this.source;
    const present = this.source.window.now();
    for (const row of places.order) {
      const worker = this.source.worker(rows[row].worker);
      const [begin, end] = [worker?.started_ms ?? from, worker?.ended_ms ?? (worker ? present : Math.min(to, present))];
      const y = sheet.y(places.tops[row]);
      sheet.fill(sheet.x(begin), sheet.x(end), y, y + Math.round(places.heights[row] * sheet.scale), color);
    }
  }

  drawTasks(sheet, places, look, theme) {
    const { bars, window: { from, to } } = this.source;
    const { begin, end, row, lane, size, state: what, job, task, length } = bars;
    const present = this.source.window.now();
    const shades = shadesOf(theme);
    const other = pixel(theme.muted, 0.8);
    let [shown, failed, canceled] = [0, 0, 0];
    // Failures are drawn last, so that nothing hides them.
    for (const isLast of [false, true]) {
      for (let i = 0; i < length; i += 1) {
        const isBad = what[i] === FAILED;
        if (isBad !== isLast || begin[i] > to) continue;
        const until = end[i] === Infinity ? present : end[i];
        if (until < from) continue;
        shown += 1;
        if (isBad) failed += 1;
        else if (what[i] === CANCELED || what[i] === ABORTED) canceled += 1;
        const high = places.lanes[row[i]] * sheet.scale;
        const top = places.tops[row[i]] * sheet.scale - sheet.offset + lane[i] * high;
        const y0 = Math.round(top);
        const y1 = Math.round(top + size[i] * high) - (high * size[i] >= GAPPED_MIN ? 1 : 0);
        const x0 = Math.floor((begin[i] - from) * sheet.perMs);
        let x1 = Math.ceil((until - from) * sheet.perMs);
        if (x1 - x0 > 4) x1 -= 1;
        const isOther = look.onlyJob !== null && job[i] !== look.onlyJob;
        const isPlain = look.byJob && (what[i] === FINISHED || what[i] === RUNNING);
        const color = isOther ? other : isPlain ? jobColor(job[i]) : shades[what[i]][task[i] & 1];
        sheet.fill(x0, Math.max(x1, x0 + (isBad ? 2 * sheet.scale : 1)), y0, Math.max(y0 + 1, y1), color);
      }
    }
    return { shown, failed, canceled };
  }

  drawSteps(sheet, places, theme) {
    const { bars, loaded, window: { from, to } } = this.source;
    const shades = shadesOf(theme);
    const { scale } = sheet;
    let [shown, failed] = [0, 0];
    if (!loaded?.steps) return { shown, failed, canceled: 0 };
    const most = loaded.steps.reduce((max, step) => Math.max(max, step[2]), 1);
    for (const [worker, step, busy, tasks, bad] of loaded.steps) {
      const row = bars.byWorker.get(worker);
      const begin = loaded.from + step * loaded.stepMs;
      if (row === undefined || begin + loaded.stepMs < from || begin > to) continue;
      shown += tasks;
      failed += bad;
      const [x0, x1] = [Math.floor((begin - from) * sheet.perMs), Math.ceil((begin + loaded.stepMs - from) * sheet.perMs)];
      const bottom = sheet.y(places.tops[row] + places.heights[row]);
      const high = Math.max(2, places.heights[row] * scale * Math.min(1, busy / most));
      sheet.fill(x0, Math.max(x1, x0 + 1), Math.round(bottom - high), bottom, shades[FINISHED][0]);
      if (bad > 0) sheet.fill(x0, Math.max(x1, x0 + 2), Math.round(bottom - Math.max(3, (high * bad) / tasks)), bottom, shades[FAILED][0]);
    }
    return { shown, failed, canceled: 0 };
  }

  drawAxis(context, width, height, theme) {
    const { from, to, span } = this.source.window;
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = theme.muted;
    context.strokeStyle = theme.line;
    context.textBaseline = "middle";
    context.textAlign = "left";
    const step = tick((span / (width - GUTTER)) * 110);
    const zone = new Date(from).getTimezoneOffset() * 60_000;
    for (let at = Math.ceil((from - zone) / step) * step + zone; at < to; at += step) {
      const x = GUTTER + ((at - from) / span) * (width - GUTTER);
      context.globalAlpha = 0.6;
      context.beginPath();
      context.moveTo(Math.round(x) + 0.5, AXIS - 5);
      context.lineTo(Math.round(x) + 0.5, height);
      context.stroke();
      context.globalAlpha = 1;
      // The gutter shows the date of the left end.
      const date = day(at) === day(Math.max(from, at - step)) ? "" : `${day(at).slice(5)} `;
      context.fillText(step < 1000 ? `${clock(at)}.${String(Math.round(at) % 1000).padStart(3, "0")}` : `${date}${clock(at)}`, x + 3, AXIS / 2);
    }
    const x = GUTTER + ((this.source.window.now() - from) / span) * (width - GUTTER);
    if (x > GUTTER && x < width) {
      context.fillStyle = theme.accent;
      context.fillRect(Math.round(x), AXIS - 6, 1, height);
    }
  }

  drawNames(context, height, places, look, theme) {
    context.fillStyle = theme.surface;
    context.fillRect(0, 0, GUTTER, height);
    context.textAlign = "left";
    context.textBaseline = "top";
    let last = -Infinity;
    for (const row of places.order) {
      const y = places.tops[row] - look.scroll + AXIS;
      if (y < AXIS - places.heights[row] || y > height || y - last < 12) continue;
      last = y;
      const { worker: id, cpus } = this.source.bars.rows[row];
      const worker = this.source.worker(id);
      const isGone = worker !== undefined && worker.ended_ms !== null;
      const isSuspect = look.suspects.has(worker?.host ?? "");
      context.fillStyle = isSuspect ? theme.failed : isGone ? theme.muted : theme.text;
      // A host may have several workers.
      const name = `${id} ${plain(worker?.host ?? "").split(".")[0]}`;
      context.fillText(`${isSuspect ? "✕ " : ""}${name}${isGone ? " (gone)" : ""}`, 4, Math.max(AXIS, y), GUTTER - 8);
      if (cpus > 0 && places.heights[row] >= 26 && y >= AXIS) {
        context.fillStyle = theme.muted;
        context.fillText(`${cpus} cpu${cpus === 1 ? "" : "s"}`, 4, y + 12, GUTTER - 8);
      }
    }
    context.fillStyle = theme.surface;
    context.fillRect(0, 0, GUTTER, AXIS);
    context.fillStyle = theme.muted;
    context.textBaseline = "middle";
    context.fillText(day(this.source.window.from), 4, AXIS / 2);
  }
}

/** The image behind the bars. */
class Sheet {
  /** @param {ImageData} image @param {number} scale @param {import("./window.js").TimeWindow} shown @param {number} scroll */
  constructor(image, scale, shown, scroll) {
    this.pixels = new Uint32Array(image.data.buffer);
    this.width = image.width;
    this.height = image.height;
    this.scale = scale;
    this.from = shown.from;
    this.perMs = image.width / shown.span;
    this.offset = scroll * scale;
  }

  clear(color) {
    this.pixels.fill(color);
  }

  /** @param {number} ms */
  x(ms) {
    return Math.round((ms - this.from) * this.perMs);
  }

  /** In CSS pixels, from the top of all rows. */
  y(y) {
    return Math.round(y * this.scale - this.offset);
  }

  fill(x0, x1, y0, y1, color) {
    const { pixels, width } = this;
    const [left, right] = [Math.max(0, x0), Math.min(width, x1)];
    const [top, bottom] = [Math.max(0, y0), Math.min(this.height, y1)];
    if (right <= left) return;
    const isNarrow = right - left < 16;
    for (let y = top; y < bottom; y += 1) {
      // A call costs more than drawing a few pixels.
      if (isNarrow) for (let at = y * width + left; at < y * width + right; at += 1) pixels[at] = color;
      else pixels.fill(color, y * width + left, y * width + right);
    }
  }
}

/** Two shades for each state, to distinguish neighbors. */
function shadesOf(theme) {
  /** @type {number[][]} */
  const shades = [];
  for (const [state, color] of /** @type {[number, string][]} */ ([[RUNNING, theme.running], [FINISHED, theme.finished], [FAILED, theme.failed], [CANCELED, theme.canceled], [ABORTED, theme.aborted]])) {
    shades[state] = [pixel(color), pixel(color, 0.86)];
  }
  shades[0] = shades[RUNNING];
  return shades;
}

const TICKS = [1, 5, 10, 50, 100, 500, 1_000, 5_000, 10_000, 30_000, 60_000, 300_000, 600_000, 1_800_000, 3_600_000, 10_800_000, 21_600_000, 43_200_000, 86_400_000];

/** A round step of at least this many ms. */
function tick(ms) {
  return TICKS.find((step) => step >= ms) ?? Math.ceil(ms / 86_400_000) * 86_400_000;
}

/** @type {Map<number, number>} */
const jobColors = new Map();

/** A color for each job. @param {number} job */
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
