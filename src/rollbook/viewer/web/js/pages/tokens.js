// The exact tokens of a rollout: what is trained against what is context, by logprob, with every fork.

import { get } from "../api.js";
import { facts, fill, h, link } from "../dom.js";
import { count, number } from "../format.js";
import { route } from "../routes.js";

export async function tokens(place, [run, task, sample], options) {
  const sequence = Number(options.sequence || 0);
  const offset = Number(options.offset || 0);
  const data = await get("tokens", { run, task, sample, attempt: options.attempt, sequence, offset });
  const go = (more) => route("tokens", run, task, sample, { attempt: options.attempt, sequence: String(sequence), ...more });
  const about = h("div", { class: "about", role: "status" }, h("span", { class: "soft" }, "Point at a token."));
  fill(place, h("h1", {}, "Tokens"), h("p", { class: "soft" }, "Exactly the ids that the model saw and sampled, as a trainer gets them."),
    sequences(data, go), scale(), about, flow(data, about), pages(data, go));
  return {};
}

function sequences(data, go) {
  return h("ol", { class: "sequences", "aria-label": "Sequences" }, data.sequences.map((each, at) => h("li", { class: at === data.sequence ? "chosen" : "" },
    link(go({ sequence: String(at), offset: "" }), { "aria-current": at === data.sequence ? "true" : null }, `Sequence ${at + 1}`),
    h("span", { class: "soft" }, ` ${count(each.prompt)} prompt, ${count(each.tokens - each.prompt)} response, ${count(each.trained)} trained`),
    each.fork ? h("p", { class: "fork" }, `Forked at turn ${each.fork.turn + 1}, token ${each.fork.at}: ${each.fork.reason}`) : null)));
}

function scale() {
  const key = (logprob) => h("span", { class: "token trained", vars: { "--p": String(weight(logprob)) } }, String(logprob));
  return h("p", { class: "legend" }, h("span", { class: "token" }, "context"), "trained, by logprob:", [0, -0.5, -1, -2, -4, -8].map(key), h("span", { class: "edge" }, "⟩"), "begins or ends what was sampled");
}

// 0 for what was certain, 1 for what was all but impossible.
function weight(logprob) {
  return Math.min(1, Math.log1p(-Math.min(0, logprob)) / Math.log1p(8)).toFixed(3);
}

function flow(data, about) {
  const fork = data.sequences[data.sequence].fork;
  const place = h("div", { class: "tokens", role: "list", tabindex: "0", "aria-label": "Tokens; arrow keys move" });
  let before = data.offset ? null : 0;
  data.ids.forEach((id, at) => {
    const trained = data.mask[at];
    const position = data.offset + at;
    if (fork && position === fork.at) place.append(h("span", { class: "forked", title: fork.reason }, "fork"));
    if (before !== null && trained !== before) place.append(h("span", { class: "edge", "aria-hidden": "true" }, trained ? "⟨" : "⟩"));
    before = trained;
    place.append(h("span", { class: trained ? "token trained" : "token", role: "listitem", data: { at: String(at) },
      vars: trained ? { "--p": String(weight(data.logprobs[at])) } : {} }, shown(data, at, id)));
  });
  listen(place, data, about);
  return place;
}

// The text with its white space made visible, where it is known; else the id.
function shown(data, at, id) {
  const text = data.texts ? data.texts[at] : null;
  return text ? text.replace(/ /g, "·").replace(/\n/g, "⏎").replace(/\t/g, "⇥") : String(id);
}

function listen(place, data, about) {
  let chosen = null;
  const tell = (token) => {
    if (!token || token === chosen) return;
    if (chosen) chosen.classList.remove("at");
    chosen = token;
    token.classList.add("at");
    const at = Number(token.dataset.at);
    const logprob = data.logprobs[at];
    fill(about, facts([["position", count(data.offset + at)], ["id", String(data.ids[at])], ["kind", data.mask[at] ? "sampled, trained" : "context"],
      ["logprob", logprob === null ? null : number(logprob, 4)], ["probability", logprob === null ? null : number(Math.exp(logprob), 4)],
      ["text", data.texts ? h("code", {}, JSON.stringify(data.texts[at] ?? "unknown to the tokenizer")) : "not recorded; give --tokenizer FILE to see it"]]));
  };
  place.addEventListener("mouseover", (event) => tell(event.target.closest(".token")));
  place.addEventListener("click", (event) => tell(event.target.closest(".token")));
  place.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const all = [...place.querySelectorAll(".token")];
    tell(all[chosen ? Math.min(all.length - 1, Math.max(0, all.indexOf(chosen) + by)) : 0]);
    event.preventDefault();
  });
}

function pages(data, go) {
  const total = data.sequences[data.sequence].tokens;
  const shown = data.ids.length;
  const size = 4000;
  return h("div", { class: "row foot" }, h("span", { class: "soft" }, `${count(data.offset + (shown ? 1 : 0))}–${count(data.offset + shown)} of ${count(total)} tokens`),
    data.offset > 0 ? link(go({ offset: String(Math.max(0, data.offset - size)) }), { class: "button" }, "← Before") : null,
    data.offset + shown < total ? link(go({ offset: String(data.offset + size) }), { class: "button" }, "Next →") : null);
}
