// Bars, strips, charts over time and histograms.

import { colors } from "./colors.js";
import { h, setAttribute, setText, show } from "./dom.js";
import { STATES, clock, compact, day, duration, moment, number, plain, total } from "./format.js";

/** A bar of tasks by state. */
export class StateBar {
  constructor() {
    this.parts = ["finished", "failed", "canceled", "aborted", "running"].map((state) => h("span", { className: `part ${state}` }));
    this.element = h("span", { className: "statebar", role: "img" }, this.parts);
  }

  update(tasks) {
    const all = Math.max(1, total(tasks));
    const names = ["finished", "failed", "canceled", "aborted", "running"];
    names.forEach((state, at) => {
      const share = tasks[state] / all;
      // Shows one failure among a million.
      const width = tasks[state] > 0 ? `max(${(share * 100).toFixed(3)}%, ${state === "failed" ? 3 : 1}px)` : "0";
      if (this.parts[at].style.width !== width) this.parts[at].style.width = width;
    });
    const words = STATES.filter((state) => tasks[state] > 0).map((state) => `${number(tasks[state])} ${state}`).join(", ");
    setAttribute(this.element, "aria-label", words || "no tasks");
    setAttribute(this.element, "title", words);
  }
}

/** A bar for a fraction of a total. */
export class Meter {
  constructor(label) {
    this.fill = h("span", { className: "fill" });
    this.text = h("span", { className: "figures" });
    this.element = h("div", { className: "meter" }, h("span", { className: "name" }, label), h("span", { className: "track" }, this.fill), this.text);
  }

  update(part, whole, text) {
    const width = `${whole > 0 ? Math.min(100, (part / whole) * 100).toFixed(1) : 0}%`;
    if (this.fill.style.width !== width) this.fill.style.width = width;
    setText(this.text, text ?? `${number(part)} of ${number(whole)}`);
  }
}

/** A canvas of the size of its element; `draw(context, width, height)` in CSS pixels. */
export class Canvas {
  constructor(label, className, draw) {
    this.element = h("canvas", { className, role: "img", "aria-label": label });
    this.paint = draw;
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.element);
  }

  close() {
    this.observer.disconnect();
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.element;
    if (width === 0 || height === 0) return;
    const scale = Math.min(devicePixelRatio, 2);
    if (this.element.width !== Math.round(width * scale) || this.element.height !== Math.round(height * scale)) {
      this.element.width = Math.round(width * scale);
      this.element.height = Math.round(height * scale);
    }
    const context = /** @type {CanvasRenderingContext2D} */ (this.element.getContext("2d"));
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    this.paint(context, width, height);
  }
}

const FONT = "11px system-ui, sans-serif";

/** Space for the numbers and times of the axes, and above the highest value, in px. */
const [LEFT, BOTTOM, TOP] = [34, 16, 6];

/**
 * Numbers over time: `series` = [{name, values, color}], stacked; `limit` = {name, values}, an upper bound drawn as a line.
 * `isArea` = values are levels, not counts: bars touch each other, and the axis ends at the limit.
 */
export class TimeChart {
  constructor(label, { unit = "", isArea = false } = {}) {
    this.data = null;
    this.unit = unit;
    this.label = label;
    this.isArea = isArea;
    this.canvas = new Canvas(label, "chart", (context, width, height) => this.paint(context, width, height));
    this.tip = h("div", { className: "tip", hidden: true });
    this.element = h("div", { className: "chartbox" }, this.canvas.element, this.tip);
    this.canvas.element.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.element.addEventListener("pointerleave", () => show(this.tip, false));
  }

  close() {
    this.canvas.close();
  }

  /** `from` and `to` in ms. */
  update(data) {
    this.data = data;
    this.canvas.draw();
    const last = data.series.map((one) => `${one.name} ${number(Number(one.values.at(-1).toPrecision(3)))}${this.unit}`);
    if (data.limit) last.push(`${data.limit.name} ${number(data.limit.values.at(-1))}${this.unit}`);
    setAttribute(this.canvas.element, "aria-label", `${this.label}, from ${moment(data.from)}: at the end ${last.join(", ")}`);
  }

  paint(context, width, height) {
    const place = { w: width - LEFT - 2, tall: height - BOTTOM - TOP, max: 1 };
    const palette = colors();
    context.font = FONT;
    context.lineWidth = 1;
    if (!this.data) {
      grid(context, place, [0]);
      say(context, place, "reading …");
      return;
    }
    const { from, to, series, limit } = this.data;
    const steps = series[0].values.length;
    const sums = Array.from({ length: steps }, (_, at) => series.reduce((sum, one) => sum + one.values[at], 0));
    const offered = Math.max(0, ...(limit?.values ?? []));
    const most = Math.max(offered, ...sums);
    // Levels stay below the limit, so the axis ends there. For counts, the maximum is rounded up.
    place.max = this.isArea && most > 0 ? most : nice(Math.max(1, most));
    // Without data the axis has one number.
    grid(context, place, most > 0 ? [0, 0.5, 1] : [0]);
    const gap = !this.isArea && place.w / steps > 4 ? 1 : 0;
    const base = new Array(steps).fill(0);
    for (const one of series) {
      context.fillStyle = palette[one.color];
      for (let at = 0; at < steps; at += 1) {
        const value = one.values[at];
        if (value <= 0) continue;
        // Whole pixels: neighbors that meet within a pixel would show a line.
        const [x0, x1] = [Math.round(LEFT + (at / steps) * place.w), Math.round(LEFT + ((at + 1) / steps) * place.w)];
        const bar = Math.max((value / place.max) * place.tall, one.color === "failed" ? 2 : 0.5);
        context.fillRect(x0, TOP + place.tall - base[at] - bar, Math.max(1, x1 - x0 - gap), bar);
        base[at] += bar;
      }
    }
    if (limit) drawLimit(context, place, limit.values);
    if (Math.max(...sums) === 0) say(context, place, "nothing in this time");
    context.fillStyle = palette.muted;
    context.textBaseline = "bottom";
    context.textAlign = "left";
    context.fillText(moment(from), LEFT, height);
    context.textAlign = "right";
    context.fillText(day(from) === day(to) ? clock(to) : moment(to), width, height);
  }

  point(event) {
    if (!this.data) return;
    const { from, to, series, limit } = this.data;
    const box = this.canvas.element.getBoundingClientRect();
    const part = (event.clientX - box.left - LEFT) / (box.width - LEFT - 2);
    const steps = series[0].values.length;
    const at = Math.floor(part * steps);
    show(this.tip, at >= 0 && at < steps);
    if (this.tip.hidden) return;
    const words = series.map((one) => `${one.name ?? ""} ${number(Number(one.values[at].toPrecision(3)))}${this.unit}`.trim());
    if (limit) words.push(`${limit.name} ${number(limit.values[at])}`);
    setText(this.tip, `${moment(from + ((at + 0.5) / steps) * (to - from))}  ${words.join(", ")}`);
    this.tip.style.left = `${Math.min(Math.max(0, event.clientX - box.left - 60), box.width - 160)}px`;
  }
}

/** Horizontal lines at fractions of the highest value, with their numbers. */
function grid(context, { w, tall, max }, parts) {
  const palette = colors();
  context.fillStyle = palette.muted;
  context.strokeStyle = palette.line;
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const part of parts) {
    const y = Math.round(TOP + tall * (1 - part)) + 0.5;
    context.beginPath();
    context.moveTo(LEFT, y);
    context.lineTo(LEFT + w + 2, y);
    context.stroke();
    context.fillText(compact(Number((max * part).toPrecision(2))), LEFT - 5, y);
  }
}

/** The limit of the stacked values. */
function drawLimit(context, { w, tall, max }, values) {
  context.strokeStyle = colors().muted;
  context.beginPath();
  values.forEach((value, at) => {
    const y = Math.round(TOP + tall * (1 - value / max)) + 0.5;
    context.lineTo(LEFT + (at / values.length) * w, y);
    context.lineTo(LEFT + ((at + 1) / values.length) * w, y);
  });
  context.stroke();
}

/** Centered text. */
function say(context, { w, tall }, words) {
  context.fillStyle = colors().muted;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(words, LEFT + w / 2, TOP + tall / 2);
}

function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value) ?? 10 * power;
}

/** Height of a strip with many tasks, and size of a cell with few tasks, in px. */
const [STRIP_HEIGHT, CELL_MAX] = [130, 36];

/** All tasks of a job in the order of their ids: a cell covers several tasks if necessary, and shows a failure first. */
export class Strip {
  constructor(onPick) {
    this.data = null;
    this.canvas = new Canvas("Tasks in the order of their ids", "strip", (context, width) => this.paint(context, width));
    this.canvas.element.addEventListener("click", (event) => {
      const bin = this.binAt(event);
      if (bin !== null) onPick(this.firstOf(bin));
    });
    this.canvas.element.addEventListener("pointermove", (event) => this.point(event));
    this.note = h("div", { className: "stripnote" });
    this.element = h("div", { className: "stripbox" }, this.canvas.element, this.note);
  }

  close() {
    this.canvas.close();
  }

  update(data) {
    this.data = data;
    this.layout = null;
    this.canvas.draw();
    const words = this.words();
    setText(this.note, words);
    setAttribute(this.canvas.element, "aria-label", `Tasks ${data.first} to ${data.last} in the order of their ids. ${words}`);
  }

  words() {
    const { first, last, bins } = this.data;
    const each = Math.max(1, Math.round((last - first + 1) / bins.length));
    return each > 1 ? `Tasks ${number(first)}–${number(last)}, about ${number(each)} in each cell; a cell with a failure is always red.` : `Tasks ${number(first)}–${number(last)}, one cell each.`;
  }

  firstOf(bin) {
    const { first, last, bins } = this.data;
    return first + Math.ceil((bin * (last - first + 1)) / bins.length);
  }

  place(width, height) {
    const cells = this.data.bins.length;
    let size = Math.floor(Math.sqrt((width * height) / cells));
    while (size > 2 && Math.floor(width / size) * Math.floor(height / size) < cells) size -= 1;
    size = Math.max(2, Math.min(size, CELL_MAX));
    const columns = Math.max(1, Math.floor(width / size));
    return { size, columns, rows: Math.ceil(cells / columns) };
  }

  paint(context, width) {
    if (!this.data) return;
    const palette = colors();
    const { size, columns, rows } = this.place(width, STRIP_HEIGHT);
    this.layout = { size, columns };
    // The height of the canvas follows its number of rows.
    const wanted = `${Math.min(STRIP_HEIGHT, rows * size)}px`;
    if (this.canvas.element.style.height !== wanted) this.canvas.element.style.height = wanted;
    const gap = size > 5 ? 1 : 0;
    this.data.bins.forEach((bin, at) => {
      const [waiting, running, finished, failed, canceled, aborted] = bin;
      const all = waiting + running + finished + failed + canceled + aborted;
      const x = (at % columns) * size;
      const y = Math.floor(at / columns) * size;
      const rest = [["finished", finished], ["waiting", waiting], ["canceled", canceled], ["aborted", aborted]];
      const most = rest.reduce((a, b) => (b[1] > a[1] ? b : a))[0];
      context.fillStyle = palette[failed > 0 ? "failed" : running > 0 ? "running" : most];
      if (failed > 0 && failed < all && size >= 6) {
        // The height of the red part shows the fraction of failures.
        const part = Math.max(3, ((size - gap) * failed) / all);
        context.fillStyle = palette[running > 0 ? "running" : most === "waiting" ? "waiting" : "finished"];
        context.fillRect(x, y, size - gap, size - gap);
        context.fillStyle = palette.failed;
        context.fillRect(x, y + size - gap - part, size - gap, part);
      } else {
        context.fillRect(x, y, size - gap, size - gap);
      }
    });
  }

  binAt(event) {
    if (!this.layout) return null;
    const box = this.canvas.element.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / this.layout.size);
    const bin = Math.floor((event.clientY - box.top) / this.layout.size) * this.layout.columns + column;
    return column < this.layout.columns && bin >= 0 && bin < this.data.bins.length ? bin : null;
  }

  point(event) {
    const bin = this.binAt(event);
    if (bin === null) return;
    const [from, to] = [this.firstOf(bin), Math.max(this.firstOf(bin), Math.min(this.data.last, this.firstOf(bin + 1) - 1))];
    const words = STATES.map((state, at) => [state, this.data.bins[bin][at]]).filter(([, count]) => count > 0).map(([state, count]) => `${number(count)} ${state}`);
    setText(this.note, `${from === to ? `Task ${number(from)}` : `Tasks ${number(from)} to ${number(to)}`}: ${words.join(", ")}`);
  }
}

/** Run times in bins: [{up_to_us, count}]. */
export function histogram(bins) {
  const sum = (bin) => bin.count + bin.canceled;
  const used = bins.map((bin) => sum(bin) > 0);
  const [first, last] = [used.indexOf(true), used.lastIndexOf(true)];
  if (first < 0) return h("p", { className: "muted" }, "No task has ended yet.");
  const shown = bins.slice(first, last + 1);
  const most = Math.max(...shown.map(sum));
  return h("div", { className: "histogram", role: "list", "aria-label": "Run times" }, shown.map((bin) => {
    const all = sum(bin);
    const parts = [["finished", bin.count - bin.failed], ["failed", bin.failed], ["canceled", bin.canceled]].filter(([, part]) => part > 0);
    const fill = h("span", { className: "fill" }, parts.map(([name, part]) => {
      const element = h("span", { className: `fill-${name}` });
      element.style.width = `${(part / all) * 100}%`;
      return element;
    }));
    fill.style.width = `${Math.max(all > 0 ? 0.5 : 0, (all / most) * 100)}%`;
    const label = bin.up_to_us === null ? "longer" : `≤ ${duration(bin.up_to_us / 1000)}`;
    const bad = [["timed out", bin.timed_out], ["failed", bin.failed - bin.timed_out], ["canceled", bin.canceled]].filter(([, part]) => part > 0).map(([name, part]) => `${number(part)} ${name}`);
    return h("div", { role: "listitem" }, h("span", { className: "name" }, label), h("span", { className: "track" }, fill), h("span", { className: "figures" }, bad.length > 0 ? `${number(all)} (${bad.join(", ")})` : number(all)));
  }));
}

/** Values with most failures first, the others in their order. @param {import("./live.js").Schemas["ParameterValue"][]} values */
const failedFirst = (values) => [...values].sort((a, b) => b.tasks.failed - a.tasks.failed);

/**
 * Parameters × state: a row for each value, with the numbers of its tasks.
 * @param {import("./live.js").Schemas["Parameter"][]} parameters @param {(name: string, value: string) => void} onPick
 */
export function parameterTable(parameters, onPick) {
  const shown = parameters.filter((one) => one.values.length > 0);
  const used = STATES.filter((state) => shown.some((one) => one.values.some((value) => value.tasks[state] > 0)));
  const row = (name, { value, tasks }, isFirst) => {
    const bar = new StateBar();
    bar.update(tasks);
    return h("tr", { className: isFirst ? "first" : "" },
      h("th", { scope: "row" }, h("button", { type: "button", className: "plain", title: `Show the tasks with ${name}=${value}`, onclick: () => onPick(name, value) }, `${plain(name)}=${plain(value)}`)),
      h("td", { className: "bar" }, bar.element),
      used.map((state) => h("td", { className: `right ${state === "failed" && tasks.failed > 0 ? "bad" : ""}` }, tasks[state] > 0 ? number(tasks[state]) : "")));
  };
  const left = parameters.filter((one) => one.values.length === 0);
  return [
    shown.length > 0 ? h("div", { className: "scroll" }, h("table", { className: "parameters" },
      h("thead", null, h("tr", null, h("th", { scope: "col" }, "Parameter"), h("td", null), used.map((state) => h("th", { scope: "col", className: "right" }, state)))),
      h("tbody", null, shown.flatMap((one) => failedFirst(one.values).map((value, at) => row(one.name, value, at === 0)))))) : null,
    left.length > 0 ? h("p", { className: "muted" }, `${left.map((one) => `${plain(one.name)} has ${number(one.value_count)} values`).join(", ")}: too many for this table.`) : null,
  ].filter((one) => one !== null);
}
