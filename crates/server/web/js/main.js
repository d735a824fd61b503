// The frame around the views: which one is shown, keys, theme, whether the server is there.

import { forget } from "./colors.js";
import { showKeys } from "./dialog.js";
import { h, setText } from "./dom.js";
import { compact } from "./format.js";
import { onChange, redraw, start, state } from "./live.js";
import { allocations } from "./views/allocations.js";
import { events } from "./views/events.js";
import { graph } from "./views/graph.js";
import { job } from "./views/job.js";
import { jobs } from "./views/jobs.js";
import { overview } from "./views/overview.js";
import { task } from "./views/task.js";
import { timeline } from "./views/timeline.js";
import { workers } from "./views/workers.js";

const VIEWS = [
  ["overview", "Overview", overview],
  ["jobs", "Jobs", jobs],
  ["workers", "Workers", workers],
  ["timeline", "Timeline", timeline],
  ["allocations", "Allocations", allocations],
  ["events", "Events", events],
];
const THEME = "hq-theme";

const main = document.querySelector("#main");
const live = document.querySelector("#live");
let current = { close() {}, render() {} };

/** `#/job/3/task/7?x=y` as `["job", "3", "task", "7"]`. */
function parts() {
  return location.hash.replace(/^#\/?/, "").split("?")[0].split("/").filter(Boolean);
}

const isId = (text) => /^\d{1,10}$/.test(text ?? "");

function make() {
  const [name, id, what, second] = parts();
  if (name === "job" && isId(id)) {
    if (what === "task" && isId(second)) return ["jobs", () => task(Number(id), Number(second))];
    if (what === "graph") return ["jobs", () => graph(Number(id))];
    return ["jobs", () => job(Number(id))];
  }
  const [found, , open] = VIEWS.find(([known]) => known === name) ?? VIEWS[0];
  return [found, open];
}

function route() {
  const [name, open] = make();
  current.close();
  main.replaceChildren();
  for (const link of document.querySelectorAll("#nav a")) {
    if (link.dataset.view === name) {
      link.setAttribute("aria-current", "page");
      link.scrollIntoView({ block: "nearest", inline: "nearest" });
    } else {
      link.removeAttribute("aria-current");
    }
  }
  current = open();
  main.append(current.element);
  main.dataset.view = parts()[0] ?? "overview";
  document.title = `${current.title} · hq`;
  scrollTo(0, 0);
  current.render();
}

function renderFrame() {
  const stranger = "another server or program has this address now; hq dashboard --web prints a new link";
  const texts = { stranger, live: "live", away: "server away, trying again", none: "live, without journal", polling: "live" };
  setText(live, texts[state.link]);
  live.dataset.state = state.link;
  if (state.server) setText(document.querySelector("#server"), `${state.server.host} · ${state.server.version}`);
  const badge = document.querySelector("#problems");
  badge.hidden = state.problemCount === 0;
  setText(badge, compact(state.problemCount));
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

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (event.target.closest("input, textarea, select, dialog")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const view = VIEWS[Number(event.key) - 1];
  if (view) location.hash = `#/${view[0]}`;
  else if (event.key === "/") document.querySelector("#main input[type=search]")?.focus();
  else if (event.key === "?") showKeys();
  else if (event.key === "t") switchTheme();
  else if (event.key === "Backspace" && parts().length > 1) history.back();
  else return;
  event.preventDefault();
}

VIEWS.forEach(([name, label], at) => {
  const badge = name === "overview" ? h("span", { id: "problems", className: "badge", hidden: true, title: "problems" }) : null;
  document.querySelector("#nav").append(h("a", { href: `#/${name}`, "data-view": name, title: `${label} (${at + 1})` }, label, badge));
});
const kept = localStorage.getItem(THEME);
setTheme(kept === "dark" || kept === "light" ? kept : null);
document.querySelector("#theme").addEventListener("click", switchTheme);
document.querySelector("#help").addEventListener("click", showKeys);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(null));
document.addEventListener("keydown", onKey);
await start();
onChange(renderFrame);
addEventListener("hashchange", route);
route();
