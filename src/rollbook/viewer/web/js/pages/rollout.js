// One rollout: what was said, what it was worth, where its time went, and how to play it again.

import { get } from "../api.js";
import { code } from "../code.js";
import { copyButton, facts, h, link, redraw, section } from "../dom.js";
import { count, named, number, reward, seconds, when } from "../format.js";
import { exact, laid } from "../json.js";
import { follow } from "../live.js";
import { route } from "../routes.js";
import { shade, strip } from "../strip.js";
import { message } from "../talk.js";
import { verifier } from "./task.js";

export async function rollout(place, [run, task, sample], options) {
  let data = null;
  const load = async () => {
    const { version, ...page } = await get("rollout", { run, task, sample, attempt: options.attempt });
    data = read(page);
    redraw(place, page, () => view(run, data));
  };
  await load();
  const over = data.line && data.line.status === "scored";
  return { step: (by) => step(run, data, by, "rollout"), leave: over ? () => {} : follow(run, load) };
}

// The line of a rollout, read from what is stored. What others put into it keeps every digit.
export function read(page) {
  if (!page.raw) return { ...page, line: null };
  const { info, outcome, seed } = exact(page.raw);
  return { ...page, line: { ...JSON.parse(page.raw), info, outcome, seed } };
}

export function step(run, data, by, name) {
  const at = data.samples.indexOf(data.sample) + by;
  if (data.samples[at] !== undefined) location.hash = route(name, run, data.task.id, data.samples[at]);
}

export function view(run, data, narrow = false) {
  const { line } = data;
  const head = h("div", { class: "row" }, h("h1", {}, `${named(data.task.id)} `, h("span", { class: "soft" }, `#${data.sample}`)), mark(line, data.scale),
    narrow ? null : strip(run, data.task.id, data.strip, { samples: data.samples, chosen: data.sample, scale: data.scale }));
  if (!line) return [head, h("p", { class: "soft" }, "pending: this rollout has not run yet")];
  const aside = h("aside", { class: "side", "aria-label": "About this rollout" }, score(data), roles(line), time(line), tries(run, data), again(data), raw(data));
  const talk = h("div", { class: "talk" }, conversation(run, data));
  return narrow ? [head, talk, aside] : [head, h("div", { class: "columns rollout-columns" }, section("Conversation", talk), aside)];
}

function mark(line, scale) {
  if (!line) return h("span", { class: "badge pending" }, "pending");
  if (line.status === "failed") return h("span", { class: "badge failed" }, `failed: ${line.failure.kind}`);
  return h("span", { class: "badge scored", vars: shade(line.reward, scale) }, `reward ${reward(line.reward)}`);
}

function conversation(run, data) {
  const { line } = data;
  let turn = -1;
  const shown = line.messages.map((each, at) => {
    const spoken = at >= data.task.asked && each.role === "assistant";
    if (spoken) turn += 1;
    return message(each, spoken && line.turns[turn] ? turned(line.turns[turn]) : null, run);
  });
  if (line.failure) shown.push(h("article", { class: "message broken", role: "note" }, h("header", {}, h("span", { class: "role" }, `failed: ${line.failure.kind}`),
    h("span", { class: "soft" }, `${line.failure.side} · ${line.failure.where}`)), h("pre", { class: "plain" }, line.failure.message)));
  if (line.ended) shown.push(h("p", { class: "soft" }, `the conversation was ended by ${line.ended}`));
  return shown;
}

function turned(turn) {
  const cut = ["length", "context_length"].includes(turn.finish_reason);
  return h("span", { class: "soft" }, `${count(turn.prompt_tokens)} → ${count(turn.completion_tokens)} tokens · ${seconds(turn.seconds)}`,
    cut ? h("span", { class: "tag bad" }, turn.finish_reason) : null, turn.model_version ? ` · ${turn.model_version}` : "");
}

function score(data) {
  const { line } = data;
  const parts = Object.entries(line.parts || {});
  const most = Math.max(1, ...parts.map(([, value]) => Math.abs(value)));
  const info = line.info && Object.keys(line.info).length ? code(JSON.stringify(line.info, null, 2), "json") : null;
  return section("Score",
    line.status === "scored" ? facts([["reward", reward(line.reward)], ["answer", line.answer ?? "none"]]) : h("p", {}, "none: a failure is not a score"),
    parts.length ? h("dl", { class: "parts" }, parts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {},
      h("span", { class: "meter", "aria-hidden": "true" }, h("i", { class: value < 0 ? "lost" : "done", vars: { width: `${(100 * Math.abs(value)) / most}%` } })), number(value, 2))))) : null,
    h("p", { class: "soft" }, "only for the verifier"), verifier(data.verifier),
    info ? h("details", {}, h("summary", {}, "Info"), info) : null,
    line.outcome !== null && line.outcome !== undefined ? h("details", {}, h("summary", {}, "Outcome"), code(JSON.stringify(line.outcome, null, 2), "json")) : null);
}

// The calls of models in roles: what each answered, apart from the conversation of the policy.
function roles(line) {
  const calls = line.role_calls || [];
  if (!calls.length) return null;
  return section("Role calls", h("ol", { class: "tries calls" }, calls.map((call) => h("li", {},
    h("b", {}, `${named(call.role)} ${call.number + 1} `), call.in_verification ? h("span", { class: "tag" }, "verification") : null,
    call.finish_reason === "length" ? h("span", { class: "tag bad" }, "length") : null,
    h("span", { class: "soft" }, [`${count(call.prompt_tokens || 0)} → ${count(call.completion_tokens || 0)} tokens`, seconds(call.seconds || 0),
      call.cost === undefined ? null : `cost ${number(call.cost, 4)}`, `seed ${call.seed}`].filter(Boolean).join(" · ")),
    h("details", { open: call.text.length <= 200 }, h("summary", {}, "Answer"), h("pre", { class: "plain", tabindex: "0" }, call.text || "(empty)"))))));
}

function time(line) {
  const { timing } = line;
  const turns = line.turns.length ? line.turns.map((turn, at) => [`turn ${at + 1}`, turn.seconds, "model"]) : [["model", timing.model_s, "model"]];
  const rest = [["environment", timing.environment_s, "world"], ["verify", timing.verify_s, "judge"]];
  const known = [...turns, ...rest].filter(([, size]) => size > 0);
  const total = Math.max(timing.seconds, known.reduce((sum, [, size]) => sum + size, 0)) || 1;
  const words = known.map(([name, size]) => `${name} ${seconds(size)}`).join(", ");
  return section("Time",
    h("div", { class: "timebar", role: "img", "aria-label": words }, known.map(([name, size, kind]) => h("i", { class: kind, title: `${name}: ${seconds(size)}`, vars: { width: `${(100 * size) / total}%` } }))),
    facts([["in all", seconds(timing.seconds)], ["model", seconds(timing.model_s)], ["environment", seconds(timing.environment_s)],
      ["verify", seconds(timing.verify_s)], ["began", when(timing.start)], ["seed", String(line.seed)], ["round, attempt", `${line.round}, ${line.attempt}`],
      ["tokens", `${count(line.usage.prompt_tokens)} + ${count(line.usage.completion_tokens)}`]]));
}

function tries(run, data) {
  if (!data.tries.length) return null;
  const shown = data.shown === undefined ? null : data.shown;
  return section("Failed tries", h("ol", { class: "tries" }, data.tries.map((each, at) => h("li", { class: shown === at ? "chosen" : "" },
    link(route("rollout", run, data.task.id, data.sample, { attempt: String(at) }), {}, `round ${each.round}, attempt ${each.attempt}`),
    h("span", { class: "tag bad" }, each.failure.kind), each.final ? h("span", { class: "tag" }, "final") : null,
    h("p", { class: "soft" }, each.failure.message)))),
    shown !== null ? link(route("rollout", run, data.task.id, data.sample), { class: "button" }, "Back to the result that counts") : null);
}

function again(data) {
  return section("Run it again", h("div", { class: "replay" }, h("pre", { class: "plain", tabindex: "0" }, data.replay), copyButton(data.replay)));
}

function raw(data) {
  const ids = data.line.turns.some((turn) => turn.tokens);
  const where = location.hash.split("?");
  const details = h("details", {}, h("summary", {}, "Raw JSON"));
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) details.append(code(laid(data.raw), "json"), copyButton(data.raw), h("p", { class: "soft" }, "Formatted in lines here; the copy is the line as it is stored."));
  });
  const tokens = `${where[0]}/tokens${where[1] ? `?${where[1]}` : ""}`;
  return section("Beneath", ids && !where[0].startsWith("#/compare") ? h("p", {}, link(tokens, { class: "button" }, "Tokens")) : ids ? null : h("p", { class: "soft" }, "no tokens were recorded"), details);
}

