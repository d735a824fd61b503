// Colors of states for canvases, from the style sheet.

import { STATES } from "./format.js";

let cached = null;

/** `{waiting: "#…", …, text, muted, line, surface}` of the present theme. */
export function colors() {
  if (cached) return cached;
  const style = getComputedStyle(document.documentElement);
  cached = {};
  for (const name of [...STATES, "text", "muted", "line", "surface", "accent"]) {
    cached[name] = resolve(style.getPropertyValue(`--${name}`).trim());
  }
  return cached;
}

const probe = document.createElement("span");

function resolve(value) {
  probe.hidden = true;
  document.body.append(probe);
  probe.style.color = value;
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/** Resets the colors after a change of the theme. */
export function forget() {
  cached = null;
}

/** `rgb(…)` as a pixel of an image. */
export function pixel(color, shade = 1) {
  const [r, g, b] = (color.match(/[\d.]+/g) ?? [0, 0, 0]).map((part) => Math.min(255, Number(part) * shade));
  return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
}
