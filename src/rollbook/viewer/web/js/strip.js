// The k samples of a task in one line: rewards by colour; what failed and what is pending look like neither.

import { h, link } from "./dom.js";
import { reward } from "./format.js";
import { route } from "./routes.js";

export function strip(run, task, marks, { scale, samples = null, chosen = null }) {
  const cells = marks.map((mark, at) => cell(run, task, mark, samples ? samples[at] : at, chosen, scale));
  return h("span", { class: "strip", role: "group", "aria-label": said(marks), vars: { "--n": String(marks.length) } }, cells);
}

function cell(run, task, mark, sample, chosen, scale) {
  const kind = mark === null ? "pending" : typeof mark === "string" ? "failed" : "scored";
  const words = kind === "scored" ? `reward ${reward(mark)}` : kind === "failed" ? `failed: ${mark}` : "pending";
  return link(route("rollout", run, task, sample), {
    class: `cell ${kind}${sample === chosen ? " chosen" : ""}`,
    vars: kind === "scored" ? shade(mark, scale) : {},
    title: `sample ${sample}: ${words}`,
    "aria-label": `sample ${sample}: ${words}`,
    "aria-current": sample === chosen ? "true" : null,
    tabindex: "-1",
  });
}

export function said(marks) {
  const failed = marks.filter((mark) => typeof mark === "string").length;
  const pending = marks.filter((mark) => mark === null).length;
  return `${marks.length - failed - pending} scored, ${failed} failed, ${pending} pending`;
}

// The position of a reward between the least and the most, which determines its colour.
export function shade(value, [low, high]) {
  return { "--r": String((value - low) / (high - low)) };
}

export function legend([low, high]) {
  const key = (kind, part, words) => [h("span", { class: `cell ${kind}`, vars: { "--r": part } }), words];
  const at = (part) => key("scored", part, reward(low + part * (high - low)));
  return h("p", { class: "legend" }, at(1), at(0.5), at(0), key("failed", 0, "failed, no reward"), key("pending", 0, "pending"));
}
