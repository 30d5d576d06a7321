// A conversation: who spoke, what was thought, what was called and what came back.

import { mediaAddress } from "./api.js";
import { code } from "./code.js";
import { h } from "./dom.js";
import { named } from "./format.js";
import { exact, laid } from "./json.js";
import { markdown, said } from "./markdown.js";

const FOLDED = 6000;

export function message(each, turn = null, run = "") {
  const text = textOf(each.content);
  const tool = each.role === "tool";
  return h("article", { class: `message ${["system", "user", "assistant", "tool"].includes(each.role) ? each.role : "other"}` },
    h("header", {}, h("span", { class: "role" }, named(tool && each.name ? `tool · ${each.name}` : each.role)), turn),
    each.reasoning ? h("details", { class: "reasoning" }, h("summary", {}, `Reasoning, ${each.reasoning.length.toLocaleString("en")} characters`), markdown(each.reasoning)) : null,
    text ? folded(text, tool ? result(text) : markdown(text)) : null,
    parts(each.content, run),
    (each.tool_calls || []).map(call),
    each.written && each.written !== text ? h("details", { class: "reasoning" }, h("summary", {}, "As the model wrote it"), h("pre", { class: "plain" }, each.written)) : null);
}

function textOf(content) {
  if (Array.isArray(content)) return content.map((part) => String(part.text ?? "")).join("");
  return content || "";
}

function parts(content, run) {
  if (!Array.isArray(content)) return [];
  return content.filter((part) => part.text === undefined).map((part) => media(part, run) || h("p", { class: "dead" }, `${part.type || "a part"} (not shown)`));
}

const STORED = /^media:([0-9a-f]{64}\.[a-z0-9]+)$/;
const DRAWN = /^data:image\/(png|jpeg|gif|webp|bmp);base64,/;

// An image or a sound that is stored with the run, or in the line itself. Nothing is loaded from other addresses.
function media(part, run) {
  const image = part.type === "image_url" ? part.image_url : null;
  const audio = part.type === "input_audio" ? part.input_audio : null;
  const source = String(image ? image.url ?? image : audio ? audio.data : "");
  const stored = STORED.exec(source);
  const address = stored ? mediaAddress(run, stored[1]) : image && DRAWN.test(source) ? source : null;
  const kind = image ? "image" : "audio";
  if (!image && !audio) return null;
  if (!address || /\.(svg|bin)$/.test(source)) return h("p", { class: "dead" }, `${kind} (not shown): ${named(source.slice(0, 120))}`);
  const shown = image ? h("img", { class: "media", src: address, alt: "image of the message", loading: "lazy" })
    : h("audio", { class: "media", src: address, controls: true, preload: "none" });
  shown.addEventListener("error", () => { shown.replaceWith(h("p", { class: "error" }, `${kind} cannot be shown: its file is missing or damaged (rollbook verify)`)); });
  return h("figure", { class: "media" }, shown);
}

function folded(text, element) {
  if (text.length <= FOLDED) return element;
  return h("details", { open: text.length <= 4 * FOLDED }, h("summary", {}, `${text.length.toLocaleString("en")} characters`), element);
}

function result(text) {
  return structured(text) ? said(code(laid(text), "json"), text) : h("pre", { class: "plain", tabindex: "0" }, text);
}

// The object or the list that a text is, if it is one.
function structured(text) {
  try {
    const value = exact(text);
    return value && typeof value === "object" ? value : null;
  } catch {
    return null;
  }
}

function call(each) {
  const { name, arguments: written } = each.function;
  return h("div", { class: "call" }, h("p", {}, "calls ", h("b", {}, named(name))), argumentsOf(written));
}

function argumentsOf(written) {
  const value = structured(written);
  if (!value) return h("pre", { class: "plain" }, written);
  const long = Object.values(value).some((each) => typeof each === "string" && each.includes("\n"));
  const program = typeof value.code === "string" && Object.keys(value).length === 1;
  if (program) return said(code(value.code, "python"), written);
  return said(long ? h("div", {}, Object.entries(value).map(([name, each]) => h("div", {}, h("p", { class: "soft" }, name),
    code(typeof each === "string" ? each : JSON.stringify(each, null, 2), typeof each === "string" ? "" : "json")))) : code(laid(written), "json"), written);
}
