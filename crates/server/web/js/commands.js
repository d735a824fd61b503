// Keys, and the command palette (Ctrl-K): both, and the help, use one list of commands.

import { modal } from "./dialog.js";
import { h } from "./dom.js";
import { plain } from "./format.js";
import { state } from "./live.js";

const SHOWN_MAX = 12;
/** Keys that move; they are not commands. */
const MOVES = [
  ["j k ↓ ↑", "move in the list"], ["g G", "first and last of the list"], ["Enter", "open"], ["Backspace", "back"],
  ["/", "search"], ["Esc", "leave the search, close"], ["Tab", "next part of the page"],
];

/** How well `text` contains the letters of `asked` in order; 0 = not at all. Beginnings of words count more. */
export function likeness(text, asked) {
  const words = text.toLowerCase();
  let [at, sum] = [0, 1];
  for (const letter of asked.toLowerCase().replaceAll(" ", "")) {
    const found = words.indexOf(letter, at);
    if (found < 0) return 0;
    const isBegin = found === 0 || !/[a-z0-9]/.test(words[found - 1]);
    sum += found === at && at > 0 ? 4 : isBegin ? 3 : 1 / (1 + found - at);
    at = found + 1;
  }
  return sum / Math.sqrt(words.length + 8);
}

/** Destinations. @returns {import("./views/view.js").Command[]} */
function places(asked) {
  const go = (name, hash) => ({ name, act: () => { location.hash = hash; } });
  const found = [];
  const exact = /^(?:job\s*)?(\d+)(?:[@.\s]+(?:task\s*)?(\d+))?$/i.exec(asked.trim());
  if (exact) {
    const [, job, task] = exact;
    if (task !== undefined) found.push(go(`Task ${task} of job ${job}`, `#/job/${job}/task/${task}`));
    else found.push(go(`Job ${job}: ${plain(state.jobs.get(Number(job))?.name ?? "not listed")}`, `#/job/${job}`));
  }
  for (const job of state.jobs.values()) found.push(go(`Job ${job.id}: ${plain(job.name)}`, `#/job/${job.id}`));
  for (const worker of state.workers) found.push(go(`Worker ${worker.id} on ${plain(worker.host)}`, `#/workers?worker=${worker.id}`));
  if (asked.trim()) {
    found.push(go(`Search jobs, commands, hosts and failures for “${asked.trim()}”`, `#/jobs?q=${encodeURIComponent(asked.trim())}`));
  }
  return found;
}

/** Opens the command palette. @param {() => import("./views/view.js").Command[]} commands */
export function openPalette(commands) {
  if (document.querySelector("dialog[open]")) return;
  /** @type {import("./views/view.js").Command[]} */
  let shown = [];
  let at = 0;
  const field = h("input", {
    type: "text", role: "combobox", "aria-expanded": "true", "aria-controls": "palette-list", "aria-autocomplete": "list",
    "aria-label": "Action or destination", placeholder: "A job, a worker, an action …", autocomplete: "off", spellcheck: "false", autofocus: true,
    oninput: () => update(), onkeydown: (event) => onKey(event),
  });
  const list = h("div", { id: "palette-list", className: "palette", role: "listbox", "aria-label": "Commands" });
  const all = commands();

  function update() {
    const asked = field.value;
    const known = [...all, ...places(asked)];
    shown = asked.trim()
      ? known.map((command, order) => ({ command, order, weight: likeness(command.name, asked) })).filter((one) => one.weight > 0)
        .sort((a, b) => b.weight - a.weight || a.order - b.order).map((one) => one.command)
      : all;
    // Another name of the same destination.
    const names = new Set();
    shown = shown.filter((command) => !names.has(command.name) && names.add(command.name)).slice(0, SHOWN_MAX);
    at = 0;
    draw();
  }

  function draw() {
    list.replaceChildren(...shown.map((command, index) => h("div", {
      id: `command-${index}`, role: "option", "aria-selected": String(index === at), className: index === at ? "selected" : null, onclick: () => run(command),
    }, h("span", null, command.name), command.key ? h("kbd", null, command.key) : null)));
    if (shown.length === 0) list.append(h("div", { role: "option", "aria-disabled": "true", "aria-selected": "false" }, "nothing is called so"));
    field.setAttribute("aria-activedescendant", shown.length > 0 ? `command-${at}` : "");
  }

  function run(command) {
    dialog.close();
    command.act();
  }

  function onKey(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && shown.length > 0) at = (at + step + shown.length) % shown.length;
    else if (event.key === "Enter" && shown[at]) run(shown[at]);
    else return;
    event.preventDefault();
    draw();
  }

  const dialog = modal({ className: "finder", "aria-label": "Commands" }, field, list);
  update();
}

/** Shows the keys, first those of this view. @param {import("./views/view.js").Command[]} here @param {import("./views/view.js").Command[]} everywhere */
export function showKeys(here, everywhere) {
  if (document.querySelector("dialog[open]")) return;
  const rows = (commands) => commands.filter((one) => one.key).map((one) => [one.key, one.name]);
  const table = (title, pairs) => (pairs.length > 0 ? [h("h3", null, title), h("dl", { className: "keys" }, pairs.flatMap(([key, what]) => [h("dt", null, h("kbd", null, key)), h("dd", null, what)]))] : []);
  modal({ className: "keylist", "aria-labelledby": "keys-title" }, h("h2", { id: "keys-title" }, "Keys"), table("On this view", rows(here)), table("In lists", MOVES), table("Everywhere", rows(everywhere)),
    h("form", { method: "dialog", className: "buttons" }, h("button", { autofocus: true }, "Close")));
}
