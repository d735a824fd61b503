// The frame around the views: the current view, keys, theme, and whether the server is reachable.

import { report } from "./api.js";
import { forget } from "./colors.js";
import { openPalette, showKeys } from "./commands.js";
import { find, h, setAttribute, setText, show } from "./dom.js";
import { compact, count, moment, plain, zoned } from "./format.js";
import { onChange, redraw, start, state } from "./live.js";
import { parts } from "./url.js";
import { allocations } from "./views/allocations.js";
import { costs } from "./views/costs.js";
import { events } from "./views/events.js";
import { graph } from "./views/graph.js";
import { job } from "./views/job.js";
import { jobs } from "./views/jobs.js";
import { overview } from "./views/overview.js";
import { task } from "./views/task.js";
import { timeline } from "./views/timeline.js";
import { absence } from "./views/view.js";
import { workers } from "./views/workers.js";

/** @typedef {import("./views/view.js").View} View */
/** @typedef {import("./views/view.js").Command} Command */

/** @type {[string, string, () => View][]} */
const VIEWS = [
  ["overview", "Overview", overview],
  ["jobs", "Jobs", jobs],
  ["workers", "Workers", workers],
  ["timeline", "Timeline", timeline],
  ["allocations", "Allocations", allocations],
  ["events", "Events", events],
  ["costs", "Costs", costs],
];
/** The view of an address without one. */
const FIRST = report ? "costs" : "overview";
const THEME = "hq-theme";

const main = find("#main");
const live = find("#live");
const away = find("#away");
/** @type {View} */
let current = nothing("");
/** Address of `current`, without its choices. */
let place = parts().join("/");
/** The address that a key opened before the corresponding event; that event then has no effect. */
let opened = "";

const isId = (text) => /^\d{1,10}$/.test(text ?? "") && Number(text) < 2 ** 32;

/** The view does not exist. @returns {View} */
function nothing(name) {
  const element = absence("There is nothing here", `No view is called “${name}”.`, h("p", null, h("a", { href: "#/overview" }, "To the overview")));
  return { title: "Nothing", element, render() {}, commands: () => [], list: undefined, onKey: () => false, focus() {}, close() {} };
}

/** The part of the navigation that it belongs to, and the function that creates the view. @returns {[string, () => View]} */
function make() {
  const [name, id, what, second] = parts();
  if (name === "job" && isId(id)) {
    if (what === "task" && isId(second)) return ["jobs", () => task(Number(id), Number(second))];
    if (what === "graph") return ["jobs", () => graph(Number(id))];
    if (what === undefined) return ["jobs", () => job(Number(id))];
  }
  const found = VIEWS.find(([known]) => known === (name ?? FIRST));
  return found ? [found[0], found[2]] : ["", () => nothing(parts().join("/"))];
}

function route() {
  const [name, open] = make();
  current.close();
  main.replaceChildren();
  for (const link of document.querySelectorAll("#nav a")) {
    if (link.getAttribute("data-view") === name) {
      link.setAttribute("aria-current", "page");
      link.scrollIntoView({ block: "nearest", inline: "nearest" });
    } else {
      link.removeAttribute("aria-current");
    }
  }
  current = open();
  main.append(current.element);
  place = parts().join("/");
  main.dataset.view = parts()[0] ?? FIRST;
  document.title = `${current.title} · hq`;
  scrollTo(0, 0);
  current.render();
  // Keys act on the visible item. A pointer's choice keeps no focus ring.
  if (!document.querySelector("dialog[open]")) current.focus();
  if (!main.contains(document.activeElement)) main.focus({ preventScroll: true });
}

const LINKS = { stranger: "another server has this address now", live: "live", away: "server away, trying again", none: "live, without journal", polling: "live", report: report && `recorded until ${zoned(report.to_ms)}` };

function renderFrame() {
  setText(live, LINKS[state.link]);
  live.dataset.state = state.link;
  if (report) setText(find("#server"), plain(report.title));
  else if (state.server) setText(find("#server"), `${state.server.host} · ${state.server.version}${state.server.is_read_only ? " · read only" : ""}`);
  const isAway = state.link === "away" && state.answeredAt > 0;
  show(away, isAway || state.link === "stranger");
  setText(away, state.link === "stranger"
    ? "Another server or program has this address now. hq dashboard --web prints a new link."
    : `The server cannot be reached. What is shown is as of ${zoned(state.answeredAt)}; it goes on by itself when the server is back.`);
  const badge = find("#problems");
  // Acknowledged problems and ended ones need no attention.
  show(badge, state.openProblemCount > 0);
  setText(badge, compact(state.openProblemCount));
  setAttribute(badge, "aria-label", count(state.openProblemCount, "problem"));
  current.render();
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  forget();
  redraw();
}

function switchTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  const next = now === "dark" ? "light" : "dark";
  localStorage.setItem(THEME, next);
  setTheme(next);
}

/** Commands of every view. @type {Command[]} */
const EVERYWHERE = [
  ...VIEWS.map(([name, label], at) => ({ name: label, key: String(at + 1), act: () => { location.hash = `#/${name}`; } })),
  { name: "All commands and places", key: "Ctrl-K", act: () => openPalette(allCommands) },
  { name: "Dark or light", key: "t", act: switchTheme },
  { name: "Keys", key: "?", act: () => showKeys(current.commands(), EVERYWHERE) },
];

const allCommands = () => [...current.commands(), ...EVERYWHERE.filter((one) => one.key !== "Ctrl-K")];

function onKey(event) {
  if (event.defaultPrevented) return;
  if ((event.ctrlKey || event.metaKey) && !event.altKey && event.key.toLowerCase() === "k") {
    event.preventDefault();
    openPalette(allCommands);
    return;
  }
  // Boxes show a focus ring only to users who move with Tab.
  if (event.key === "Tab") document.documentElement.dataset.tab = "";
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const { target } = event;
  if (target.closest("dialog")) return;
  // Browsers handle keys before other events: this key is meant for the view that the previous key opened.
  if (parts().join("/") !== place) {
    opened = location.href;
    route();
  }
  if (target.closest("input:not([type=checkbox]), textarea, select")) {
    // Moves the focus from the field to its result.
    if (event.key === "Escape" || (event.key === "Enter" && target.type === "search")) {
      target.blur();
      current.focus();
      event.preventDefault();
    }
    return;
  }
  if (take(event)) event.preventDefault();
}

/** Runs the command of a key; returns whether the key has one. */
function take(event) {
  const { key, target } = event;
  if (current.onKey(event)) return true;
  const known = [...current.commands(), ...EVERYWHERE].find((one) => one.key === key);
  if (known) {
    known.act();
    return true;
  }
  if (key === "/") {
    const field = [...main.querySelectorAll("input")].find((one) => one.type === "search" && one.checkVisibility());
    field?.focus();
    return field !== undefined;
  }
  if (key === "Backspace" && parts().length > 1) {
    history.back();
    return true;
  }
  // Keys of a list work everywhere, unless the focused element needs them.
  const { list } = current;
  if (!list || target.closest("[role=grid], .log")) return false;
  if (key === "Enter") return !target.closest("a, button, summary") && list.isMoved && list.open();
  if (!list.move(key)) return false;
  list.focus();
  return true;
}

VIEWS.forEach(([name, label], at) => {
  const badge = name === "overview" ? h("span", { id: "problems", className: "badge", hidden: true, role: "img", title: "problems" }) : null;
  find("#nav").append(h("a", { href: `#/${name}`, "data-view": name, title: `${label} (${at + 1})` }, label, badge));
});
const kept = localStorage.getItem(THEME);
setTheme(kept === "dark" || kept === "light" ? kept : null);
find("#theme").addEventListener("click", switchTheme);
find("#help").addEventListener("click", () => showKeys(current.commands(), EVERYWHERE));
find("#commands").addEventListener("click", () => openPalette(allCommands));
// The skip link names an element, not a view.
find(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(null));
document.addEventListener("keydown", onKey);
document.addEventListener("pointerdown", () => { delete document.documentElement.dataset.tab; });
if (report) {
  document.body.dataset.report = "";
  document.body.append(h("footer", null, `A recording of a journal. Costs and charts: ${moment(report.from_ms)} to ${zoned(report.to_ms)}. Lists: the end of the journal. What is left out: ${report.notes.join("; ")}.`));
}
await start();
onChange(renderFrame);
// Also fires for "back" to an address that differs only in choices.
addEventListener("hashchange", ({ newURL }) => {
  const isOpen = newURL === opened;
  opened = "";
  if (!isOpen) route();
});
route();
