// Markdown as elements: markdown-it says what the text is, and we make the elements. Links and images lead nowhere.
// Nothing of a text may be hidden: where some of it would be, it is shown as it was written.

import { code } from "./code.js";
import { h } from "./dom.js";
import { math, mathRules } from "./math.js";

const LONGEST = 200000;
const FORMULAS = 1000;  // more than that in one message stay as they were written
const PLAIN = new Set(["p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "strong", "em", "s",
  "table", "thead", "tbody", "tr", "th", "td"]);
let parser = null;

export function markdown(text) {
  const plain = h("pre", { class: "plain" }, text);
  if (!globalThis.markdownit || text.length > LONGEST) return plain;
  const place = h("div", { class: "prose" });
  const met = { formulas: 0, letters: 0 };
  parser ||= made();
  build(parser.parse(text, {}), place, met);
  if (met.letters >= letters(text) && place.textContent.trim()) return said(place, text);
  return h("div", {}, h("p", { class: "soft" }, "As it was written: as Markdown, some of it could not be seen."), plain);
}

// Something as we show it, and below it, on demand, as it was written.
export function said(shown, text) {
  shown.classList.add("shown");
  return h("div", { class: "said" }, shown, h("pre", { class: "plain written", tabindex: "0" }, text));
}

function made() {
  const one = globalThis.markdownit({ html: false, linkify: false, breaks: true, maxNesting: 40 });
  one.disable(["reference", "entity", "autolink"]);
  one.validateLink = (address) => /^(https?:|mailto:)/i.test(address);  // a[i](j) is no link
  one.inline.ruler.at("escape", backslash);
  one.inline.ruler.before("emphasis", "marks", marks);
  return one.use(mathRules);
}

// A backslash takes its meaning from what follows, and is shown all the same.
function backslash(state, silent) {
  if (state.src[state.pos] !== "\\") return false;
  const size = /[!-/:-@[-`{-~]/.test(state.src[state.pos + 1] || "") && state.pos + 1 < state.posMax ? 2 : 1;
  if (!silent) state.pending += state.src.substr(state.pos, size);
  state.pos += size;
  return true;
}

// __init__, a_b_c, 2*3*4 and 2**3**4 are names and products, and not meant to be read loud.
function marks(state, silent) {
  const mark = state.src[state.pos];
  if (mark !== "_" && mark !== "*") return false;
  let end = state.pos;
  while (end < state.posMax && state.src[end] === mark) end += 1;
  const around = `${state.src[state.pos - 1] || " "}${state.src[end] || " "}`;
  const product = end - state.pos > 1 ? /\d/.test(around) && /^\w\w$/.test(around) : /^\w\w$/.test(around);
  if (mark === "*" && !product) return false;
  if (!silent) state.pending += state.src.slice(state.pos, end);
  state.pos = end;
  return true;
}

// How much of a text is more than marks and spaces.
function letters(text) {
  return text.replace(/[\s\0!-/:-@[-`{-~]+/g, "").length;
}

function build(tokens, place, met) {
  const open = [place];
  for (const token of tokens) {
    const top = open[open.length - 1];
    if (token.hidden) continue;
    if (token.nesting === 1) {
      const element = started(token, met);
      top.append(element);
      open.push(element);
    } else if (token.nesting === -1) {
      if (token.tag === "a") top.after(target(top));
      if (open.length > 1) open.pop();
    } else {
      single(token, top, met);
    }
  }
}

function started(token, met) {
  if (token.tag === "a") return dead(token, "href", met);
  if (!PLAIN.has(token.tag)) return h("span");
  const name = /^h[1-6]$/.test(token.tag) ? "h4" : token.tag;  // what a model writes is no heading of this page
  const value = token.tag === "li" && token.info ? token.info : null;
  met.letters += letters(value || "");
  return h(name, { value, ...(name !== token.tag ? { class: token.tag } : {}) });
}

// A link or an image that cannot be followed; its address is shown next to it.
function dead(token, name, met, ...children) {
  const address = [token.attrGet(name), token.attrGet("title")].filter(Boolean).join(" ");
  met.letters += letters(address);
  return h("span", { class: "dead", title: "this link is disabled here", data: { address } }, ...children);
}

function target(element) {
  return h("span", { class: "soft" }, ` ‹${element.dataset.address}›`);
}

function single(token, top, met) {
  if (token.type === "inline") { build(token.children, top, met); return; }
  met.letters += letters(token.content || "") + letters(token.info || "");
  if (token.type === "text") top.append(token.content);
  else if (token.type === "softbreak" || token.type === "hardbreak") top.append(h("br"));
  else if (token.type === "code_inline") top.append(h("code", {}, token.content));
  else if (token.type === "fence") fence(token, top);
  else if (token.type === "code_block") top.append(code(token.content));
  else if (token.type === "math") top.append((met.formulas += 1) > FORMULAS ? h("code", { class: "tex" }, token.content) : math(token.content, token.meta.display));
  else if (token.type === "hr") top.append(h("hr"));
  else if (token.type === "image") {
    const image = dead(token, "src", met, `🖼 ${token.content || "image"}`);
    top.append(image, target(image));
  } else top.append(token.content || "");
}

function fence(token, top) {
  const info = token.info.trim();
  const known = globalThis.hljs && globalThis.hljs.getLanguage(info);
  if (info && !known) top.append(h("p", { class: "soft" }, info));
  top.append(code(token.content.replace(/\n$/, ""), info.split(/\s/)[0]));
}
