// One task: its state, why it failed or waits, what it writes.

import * as api from "../api.js";
import { actions } from "../dialog.js";
import { h, rebuild, setText, show } from "../dom.js";
import { bytes, clock, duration, failure, number, plain } from "../format.js";
import { loaders, state } from "../live.js";
import { explain } from "../problems.js";
import { LogTail } from "../tail.js";
import { chip, view } from "./view.js";

export function task(jobId, id) {
  let [found, reason, isKnown] = [null, "", true];
  const title = h("h1", null, `Task ${number(id)}`);
  const word = chip();
  const why = h("p", { className: "why", hidden: true });
  const facts = h("dl", { className: "facts" });
  const resubmit = h("button", { type: "button", "data-action": "resubmit", hidden: true, onclick: () => actions.resubmit(state.jobs.get(jobId), (hash) => { location.hash = hash; }) }, "Resubmit failed …");
  const tail = new LogTail(jobId, { isStderr: false });

  async function load() {
    found = await api.get(`/jobs/${jobId}/tasks/${id}`).catch((error) => {
      if (error.status !== 404) throw error;
      isKnown = false;
      return null;
    });
    if (found?.state === "waiting") reason = explain(await api.get(`/jobs/${jobId}/tasks/${id}/explain`));
  }

  function render() {
    if (!isKnown) setText(title, `There is no task ${id} in job ${jobId}.`);
    if (!found) return;
    const job = state.jobs.get(jobId);
    setText(title, `Task ${number(id)} of job ${jobId}${job ? `: ${plain(job.name)}` : ""}`);
    word.update(found.state);
    const text = found.error ? failure(found.error) : found.state === "waiting" ? reason : "";
    show(why, text !== "");
    setText(why, text);
    why.classList.toggle("bad", Boolean(found.error));
    show(resubmit, found.state === "failed" && job !== undefined);
    const until = found.finished_ms ?? state.summary?.now_ms;
    const rows = [
      ["host", found.host ? `${plain(found.host)} (worker ${found.worker})` : "–"],
      ["started", clock(found.started_ms)],
      ["ended", clock(found.finished_ms)],
      ["took", found.started_ms ? duration(until - found.started_ms) : "–"],
      ["memory at most", bytes(found.max_rss_bytes)],
      ["attempt", `${found.instance + 1}${found.crash_count ? `, ${number(found.crash_count)} lost with their worker` : ""}`],
      ["directory", plain(found.cwd ?? "–")],
    ];
    rebuild(facts, JSON.stringify(rows), () => rows.flatMap(([name, value]) => [h("dt", null, name), h("dd", null, value)]));
    if (tail.task === null) {
      if (found.state === "failed") tail.stream = "stderr";
      tail.open(id);
    }
  }

  return view({
    title: `Task ${id} of job ${jobId}`,
    element: h("div", { className: "task" }, h("header", { className: "panel" }, h("div", { className: "headline" }, title, word.element, h("span", { className: "grow" }), resubmit, h("a", { className: "button", href: `#/job/${jobId}` }, `Job ${jobId}`)), why, facts), h("section", { className: "panel logbox" }, h("h2", null, "Output"), tail.element)),
    render,
    fresh: [["task", load], loaders.jobs],
    parts: [tail],
  });
}
