// One task: its samples side by side, and apart from them what only the verifier sees.

import { get } from "../api.js";
import { facts, fill, h, link, section } from "../dom.js";
import { count, number, reward, seconds } from "../format.js";
import { follow } from "../live.js";
import { route } from "../routes.js";
import { legend, shade, strip } from "../strip.js";
import { message } from "../talk.js";

export async function task(place, [run, id]) {
  const load = async () => {
    const data = await get("task", { run, task: id });
    fill(place, page(run, data));
  };
  await load();
  return { leave: follow(run, load) };
}

function page(run, data) {
  const marks = data.samples.map((each) => (each.status === "scored" ? each.reward : each.status === "failed" ? each.failure.kind : null));
  const samples = data.samples.map((each) => each.sample);
  return [
    h("div", { class: "row" }, h("h1", {}, data.id), strip(run, data.id, marks, { samples, scale: data.scale }), legend(data.scale)),
    facts([["mean", number(data.numbers.mean)], ["std", number(data.numbers.std)], ["majority", data.numbers.majority],
      ["majority share", data.numbers.majority_share === null ? null : number(data.numbers.majority_share, 2)],
      ["tokens", count(data.numbers.completion_tokens)], ["environment", data.env]]),
    h("div", { class: "columns" },
      section("What the model is shown", h("div", { class: "talk" }, data.messages.map((each) => message(each)))),
      section("Only for the verifier", verifier(data.verifier))),
    section("Samples", data.shared ? h("p", { class: "soft" }, `All scored samples begin with the same ${count(data.shared)} characters, shown faint; the first difference is marked.`) : null,
      h("div", { class: "cards" }, data.samples.map((each) => card(run, data, each))),
      data.asked > data.samples.length ? h("p", { class: "soft" }, `the first ${data.samples.length} of ${data.asked} samples`) : null),
  ];
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
    h("p", { class: "said" }, h("span", { class: "soft" }, "answer "), h("b", {}, each.answer ?? "none"), agrees ? h("span", { class: "tag" }, "majority") : null,
      each.truncated ? h("span", { class: "tag bad" }, "truncated") : null),
    Object.keys(each.parts).length ? h("p", { class: "soft" }, Object.entries(each.parts).map(([name, value]) => `${name} ${number(value, 2)}`).join(" · ")) : null,
    h("p", { class: "soft" }, `${count(each.completion_tokens)} tokens · ${each.turns} ${each.turns === 1 ? "turn" : "turns"} · ${seconds(each.seconds)}`),
    difference(each.text, data.shared));
}

function difference(text, shared) {
  const from = Math.max(0, shared - 120);
  const same = text.slice(from, shared);
  const rest = text.slice(shared, shared + 500);
  return h("pre", { class: "excerpt" }, h("span", { class: "same" }, from ? "… " : "", same),
    rest ? h("mark", {}, rest[0]) : null, rest.slice(1), text.length > shared + 500 ? " …" : "");
}
