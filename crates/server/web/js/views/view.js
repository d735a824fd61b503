// Parts that all views share.

import { report } from "../api.js";
import { h } from "../dom.js";
import { keepFresh } from "../live.js";

/**
 * An action with a key, a button or a name in the command palette.
 * @typedef {object} Command
 * @property {string} name
 * @property {string} [key]
 * @property {string} [button] The words on its button.
 * @property {boolean} [isDanger]
 * @property {() => void} act
 */
/**
 * @typedef {object} View
 * @property {string} title
 * @property {HTMLElement} element
 * @property {() => void} render Called when something has changed.
 * @property {() => Command[]} commands
 * @property {Moves | undefined} list
 * @property {(event: KeyboardEvent) => boolean} onKey Takes keys before all others; whether it did.
 * @property {() => void} focus
 * @property {() => void} close
 */

/** The target of moving keys. @typedef {{move: (key: string) => boolean, open: () => boolean, isMoved: boolean, focus: () => void}} Moves */
/** A source for `keepFresh`. @typedef {[string, () => Promise<void>, number?, (number | null)?]} Fresh */
/**
 * @typedef {object} Parts
 * @property {string} title
 * @property {HTMLElement} element
 * @property {() => void} render
 * @property {Fresh[]} [fresh] What it needs of the server.
 * @property {{close: () => void}[]} [parts] What is closed with it.
 * @property {() => void} [close]
 * @property {() => Command[]} [commands]
 * @property {Moves | (() => Moves | undefined)} [list] Where keys move; where there are several, a function tells.
 * @property {(event: KeyboardEvent) => boolean} [onKey]
 * @property {() => void} [focus]
 */

/** Creates a view. @param {Parts} made @returns {View} */
export function view({ title, element, render, fresh = [], parts = [], close, commands = () => [], list, onKey = () => false, focus }) {
  const ends = fresh.map((source) => keepFresh(...source));
  const listNow = () => (typeof list === "function" ? list() : list);
  return {
    title,
    element,
    render,
    // A name with an ellipsis asks for confirmation, so it belongs to an action.
    commands: () => (report ? commands().filter((one) => !one.name.endsWith("…")) : commands()),
    get list() {
      return listNow();
    },
    onKey,
    focus: focus ?? (() => listNow()?.focus()),
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

/** A table; a head that begins with ">" is of numbers. */
export function table(heads, rows) {
  const sides = heads.map((name) => (name.startsWith(">") ? "right" : ""));
  return h("div", { className: "scroll" }, h("table", { className: "sums" },
    h("thead", null, h("tr", null, heads.map((name, at) => h("th", { scope: "col", className: sides[at] }, name.replace(">", ""))))),
    h("tbody", null, rows.map((cells) => h("tr", null, cells.map((cell, at) => h("td", { className: sides[at] }, cell)))))));
}

/** A state as a colored word. */
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

/** A command to type, with a button that copies it. @param {string} text */
export function typed(text) {
  return h("div", { className: "typed" }, h("code", null, text), copyButton(text));
}

/** @param {string} text @param {string} [what] */
export function copyButton(text, what = "") {
  const button = h("button", {
    type: "button", className: "copy", title: "Copy", "data-focus": `copy ${what || text}`, "aria-label": `Copy ${what || text}`,
    onclick: async () => {
      const isDone = await copy(text);
      button.textContent = isDone ? "copied" : "not possible";
      setTimeout(() => { button.textContent = "copy"; }, 1_500);
    },
  }, "copy");
  return button;
}

/** Copies a text; returns whether that was possible. Pages from other machines may lack access to the clipboard. @param {string} text */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = h("textarea", { className: "offscreen", readonly: true }, text);
    document.body.append(field);
    field.select();
    const isDone = document.execCommand("copy");
    field.remove();
    return isDone;
  }
}

/** Empty view: a sentence, and commands to type next. @param {string} sentence @param {string[]} commands */
export function emptiness(sentence, ...commands) {
  return h("div", { className: "emptiness" }, h("p", null, sentence), commands.map((text) => typed(text)));
}

/** Why a job or a task cannot be shown: title and sentence. @param {string} what @param {string} sentence @returns {[string, string]} */
export const missing = (what, sentence) => (report ? [`${what} is not in this report`, "The report has the details of the most expensive jobs, of the slowest tasks and of examples of failures."] : [`There is no ${what}`, sentence]);

/** Replacement for a view that cannot be shown. @param {string} title @param {string} sentence @param {...Node} more */
export function absence(title, sentence, ...more) {
  return h("section", { className: "panel absence" }, h("h1", null, title), h("p", null, sentence), more);
}
