// One task: its samples side by side, and apart from them what only the verifier sees.

import { get } from "../api.js";
import { facts, h, link, redraw, section } from "../dom.js";
import { count, named, number, reward, seconds } from "../format.js";
import { follow } from "../live.js";
import { route } from "../routes.js";
import { legend, shade, strip } from "../strip.js";
import { message } from "../talk.js";

const PAGE = 64;

export async function task(place, [run, id], options) {
  const load = async () => {
    const { version, ...data } = await get("task", { run, task: id, offset: PAGE * Number(options.page || 0) });
    redraw(place, data, () => page(run, data));
  };
  await load();
  return { leave: follow(run, load) };
}

function page(run, data) {
  const marks = data.samples.map((each) => (each.status === "scored" ? each.reward : each.status === "failed" ? each.failure.kind : null));
  const samples = data.samples.map((each) => each.sample);
  return [
    h("div", { class: "row" }, h("h1", {}, named(data.id)), strip(run, data.id, marks, { samples, scale: data.scale }), legend(data.scale)),
    facts([["mean", number(data.numbers.mean)], ["std", number(data.numbers.std)], ["majority", data.numbers.majority],
      ["majority share", data.numbers.majority_share === null ? null : number(data.numbers.majority_share, 2)],
      ["tokens", count(data.numbers.completion_tokens)], ["environment", data.env]]),
    h("div", { class: "columns" },
      section("What the model is shown", h("div", { class: "talk" }, data.messages.map((each) => message(each, null, run)))),
      section("Only for the verifier", verifier(data.verifier))),
    section("Samples", alike(data), h("div", { class: "cards" }, data.samples.map((each) => card(run, data, each))), foot(run, data)),
  ];
}

function alike(data) {
  if (data.equal) return h("p", { class: "soft" }, `All scored samples shown are the same ${count(data.shared)} characters.`);
  return data.shared ? h("p", { class: "soft" }, `All scored samples shown begin with the same ${count(data.shared)} characters, shown faint; the first difference is marked.`) : null;
}

function foot(run, data) {
  const { offset, asked, samples } = data;
  if (asked <= samples.length) return null;
  const turn = (to, words) => link(route("task", run, data.id, { page: String(to) }), { class: "button" }, words);
  return h("div", { class: "row foot" }, h("span", { class: "soft" }, `${count(offset + 1)}–${count(offset + samples.length)} of ${count(asked)} samples`),
    offset > 0 ? turn(offset / PAGE - 1, "← Before") : null, offset + samples.length < asked ? turn(offset / PAGE + 1, "Next →") : null);
}

export function verifier({ answer, fields }) {
  const value = (each) => (typeof each === "string" ? each : JSON.stringify(each, null, 1));
  const pairs = [["answer", answer], ...Object.entries(fields || {})].filter(([, each]) => each !== null && each !== undefined);
  return h("div", { class: "secret" }, pairs.length ? facts(pairs.map(([name, each]) => [name, h("span", { class: "value" }, clipped(value(each)))]))
    : h("p", { class: "soft" }, "nothing"));
}

function clipped(text) {
  return text.length > 2000 ? `${text.slice(0, 2000)} … (${text.length.toLocaleString("en")} characters)` : text;
}

function card(run, data, each) {
  const open = route("rollout", run, data.id, each.sample);
  const head = (mark) => h("header", {}, link(open, {}, `sample ${each.sample}`), mark);
  if (each.status === "pending") return h("article", { class: "card pending", data: { open } }, head(h("span", { class: "badge pending" }, "pending")));
  if (each.status === "failed") {
    return h("article", { class: "card failed", data: { open } }, head(h("span", { class: "badge failed" }, "failed")),
      h("p", {}, h("b", {}, each.failure.kind), ` at ${each.failure.where}`), h("p", { class: "soft" }, each.failure.message));
  }
  const agrees = data.numbers.majority !== null && each.answer === data.numbers.majority;
  return h("article", { class: "card", data: { open } },
    head(h("span", { class: "badge scored", vars: shade(each.reward, data.scale) }, reward(each.reward))),
    h("p", {}, h("span", { class: "soft" }, "answer "), h("b", {}, each.answer ?? "none"), agrees ? h("span", { class: "tag" }, "majority") : null,
      each.truncated ? h("span", { class: "tag bad" }, "truncated") : null),
    Object.keys(each.parts).length ? h("p", { class: "soft" }, Object.entries(each.parts).map(([name, value]) => `${name} ${number(value, 2)}`).join(" · ")) : null,
    h("p", { class: "soft" }, `${count(each.completion_tokens)} tokens · ${each.turns} ${each.turns === 1 ? "turn" : "turns"} · ${seconds(each.seconds)}`),
    difference(each, data));
}

function difference({ before, after, cut }, { equal, samples }) {
  const [first = "", ...rest] = after;  // by characters, and not by halves of them
  const several = !equal && samples.filter((each) => each.status === "scored").length > 1;
  const marked = first ? h("mark", {}, first) : h("mark", { class: "ended" }, "ends here");
  return h("pre", { class: "excerpt" }, h("span", { class: "same" }, cut[0] ? "… " : "", before),
    several ? marked : first, rest.join(""), cut[1] ? " …" : "");
}
