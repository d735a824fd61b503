// Pointers, wheel and keys that move the timeline.

import { FAILED } from "./bars.js";
import { AXIS, GUTTER } from "./paint.js";

/** Actions of pointers. @typedef {{scrollBy: (y: number) => void, hover: (x: number, y: number) => void, leave: () => void, pick: (x: number, y: number) => void, change: () => void}} Acts */

/** A pointer that moves less has clicked. */
const CLICK_MAX = 3;
/** Minimum pixels between two fingers for zooming. */
const PINCH_MIN = 8;
const WHEEL_BASE = 1.0015;
const SCROLL_STEP = 60;

/** Lets pointers drag, pinch and click. @param {HTMLCanvasElement} canvas @param {import("./window.js").TimeWindow} shown @param {Acts} acts */
export function followPointers(canvas, shown, acts) {
  /** @type {Map<number, PointerEvent>} */
  const pointers = new Map();
  let moved = 0;
  const perPixel = () => shown.span / (canvas.clientWidth - GUTTER);
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };

  function pinch(event, before) {
    const other = [...pointers.values()].find((one) => one.pointerId !== event.pointerId);
    if (!other) return;
    const [was, is] = [Math.abs(before.clientX - other.clientX), Math.abs(event.clientX - other.clientX)];
    const middle = (event.clientX + other.clientX) / 2 - canvas.getBoundingClientRect().left;
    if (was > PINCH_MIN && is > PINCH_MIN) shown.zoom(was / is, shown.from + (middle - GUTTER) * perPixel());
  }

  function drag(event, before) {
    moved += Math.abs(event.clientX - before.clientX) + Math.abs(event.clientY - before.clientY);
    if (moved <= CLICK_MAX) return;
    if (event.clientX !== before.clientX) shown.pan((before.clientX - event.clientX) * perPixel());
    acts.scrollBy(before.clientY - event.clientY);
    acts.leave();
  }

  canvas.addEventListener("pointerdown", (event) => {
    pointers.set(event.pointerId, event);
    canvas.setPointerCapture(event.pointerId);
    moved = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) {
      const [x, y] = place(event);
      acts.hover(x, y);
      return;
    }
    if (pointers.size === 2) pinch(event, before);
    else drag(event, before);
    pointers.set(event.pointerId, event);
    acts.change();
  });
  canvas.addEventListener("pointerup", (event) => {
    pointers.delete(event.pointerId);
    const [x, y] = place(event);
    if (moved <= CLICK_MAX) acts.pick(x, y);
  });
  canvas.addEventListener("pointercancel", (event) => pointers.delete(event.pointerId));
  canvas.addEventListener("pointerleave", () => acts.leave());
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    if (event.shiftKey) acts.scrollBy(event.deltaY);
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) shown.pan(event.deltaX * perPixel());
    else shown.zoom(WHEEL_BASE ** event.deltaY, shown.from + (place(event)[0] - GUTTER) * perPixel());
    acts.change();
  }, { passive: false });
  return { isHeld: () => pointers.size > 0 };
}

/** Actions by key. @param {import("./window.js").TimeWindow} shown @param {Acts} acts @returns {Record<string, () => void>} */
export function keysOf(shown, acts) {
  return {
    ArrowLeft: () => shown.pan(-shown.span / 8),
    ArrowRight: () => shown.pan(shown.span / 8),
    h: () => shown.pan(-shown.span / 8),
    l: () => shown.pan(shown.span / 8),
    ArrowUp: () => acts.scrollBy(-SCROLL_STEP),
    ArrowDown: () => acts.scrollBy(SCROLL_STEP),
    k: () => acts.scrollBy(-SCROLL_STEP),
    j: () => acts.scrollBy(SCROLL_STEP),
    "+": () => shown.zoom(0.7),
    "=": () => shown.zoom(0.7),
    "-": () => shown.zoom(1 / 0.7),
  };
}

/**
 * The task at a point of the canvas; -1 = none. Prefers a failure among tasks that share a pixel.
 * @param {import("./source.js").TimelineSource} source @param {import("./paint.js").Places} places
 */
export function taskAt(source, places, scroll, width, x, y) {
  const { bars, loaded, window: { from, span } } = source;
  if (loaded?.steps || x < GUTTER || y < AXIS) return -1;
  const perPixel = span / (width - GUTTER);
  const at = from + (x - GUTTER) * perPixel;
  const slack = perPixel * 2;
  const below = y - AXIS + scroll;
  const row = places.order.find((one) => below >= places.tops[one] && below < places.tops[one] + places.heights[one]);
  if (row === undefined) return -1;
  const lane = Math.floor((below - places.tops[row]) / places.lanes[row]);
  let best = -1;
  for (let i = 0; i < bars.length; i += 1) {
    if (bars.row[i] !== row || lane < bars.lane[i] || lane >= bars.lane[i] + bars.size[i]) continue;
    if (bars.begin[i] > at + slack || bars.end[i] < at - slack) continue;
    if (best < 0 || bars.state[i] === FAILED) best = i;
  }
  return best;
}
