// What all views have in common.

import { h } from "../dom.js";
import { keepFresh } from "../live.js";

/**
 * A view: `element` is shown, `render()` is called when something changed, `close()` at the end. `fresh` are the
 * sources that it needs, `parts` what has to be closed with it.
 */
export function view({ title, element, render, fresh = [], parts = [], close }) {
  const ends = fresh.map((source) => keepFresh(...source));
  return {
    title,
    element,
    render,
    close() {
      for (const end of ends) end();
      for (const part of parts) part.close();
      close?.();
    },
  };
}

/** A titled box. */
export function panel(title, ...content) {
  return h("section", { className: "panel" }, h("h2", null, title), ...content);
}

/** A state as a coloured word. */
export function chip() {
  const element = h("span", { className: "chip" });
  return {
    element,
    update(state, text) {
      if (element.dataset.state !== state) element.dataset.state = state;
      const words = text ?? state;
      if (element.textContent !== words) element.textContent = words;
    },
  };
}
