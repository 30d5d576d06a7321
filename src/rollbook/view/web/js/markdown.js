// Markdown as elements: markdown-it says what the text is, and we make the elements. Links and images lead nowhere.

import { code } from "./code.js";
import { h } from "./dom.js";
import { math, mathRules } from "./math.js";

const LONGEST = 200000;
const FORMULAS = 1000;  // more than that in one message stay as they were written
const PLAIN = new Set(["p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "strong", "em", "s",
  "table", "thead", "tbody", "tr", "th", "td"]);
let parser = null;

export function markdown(text) {
  if (!globalThis.markdownit || text.length > LONGEST) return h("pre", { class: "plain" }, text);
  if (!parser) {
    parser = globalThis.markdownit({ html: false, linkify: false, breaks: true, maxNesting: 40 });
    parser.use(mathRules);
  }
  const place = h("div", { class: "prose" });
  build(parser.parse(text, {}), place, { formulas: 0 });
  return place;
}

function build(tokens, place, met) {
  const open = [place];
  for (const token of tokens) {
    const top = open[open.length - 1];
    if (token.hidden) continue;
    if (token.nesting === 1) {
      const element = started(token);
      top.append(element);
      open.push(element);
    } else if (token.nesting === -1) {
      if (open.length > 1) open.pop();
    } else {
      single(token, top, met);
    }
  }
}

function started(token) {
  if (token.tag === "a") return h("span", { class: "dead", title: `a link to ${token.attrGet("href")}; it leads nowhere here` });
  if (!PLAIN.has(token.tag)) return h("span");
  const start = token.tag === "ol" ? token.attrGet("start") : null;
  const name = /^h[1-6]$/.test(token.tag) ? "h4" : token.tag;  // what a model writes is no heading of this page
  return h(name, { ...(start ? { start } : {}), ...(name !== token.tag ? { class: token.tag } : {}) });
}

function single(token, top, met) {
  if (token.type === "inline") build(token.children, top, met);
  else if (token.type === "text") top.append(token.content);
  else if (token.type === "softbreak" || token.type === "hardbreak") top.append(h("br"));
  else if (token.type === "code_inline") top.append(h("code", {}, token.content));
  else if (token.type === "fence") top.append(code(token.content.replace(/\n$/, ""), token.info.trim().split(/\s/)[0]));
  else if (token.type === "code_block") top.append(code(token.content));
  else if (token.type === "math") top.append((met.formulas += 1) > FORMULAS ? h("code", { class: "tex" }, token.content) : math(token.content, token.meta.display));
  else if (token.type === "hr") top.append(h("hr"));
  else if (token.type === "image") top.append(h("span", { class: "dead", title: `an image at ${token.attrGet("src")}; it is not loaded` }, `🖼 ${token.content || "image"}`));
  else top.append(token.content || "");
}
