// Highlighted code: the highlighter's tree of scopes, made into elements.

import { h } from "./dom.js";

const LONGEST = 60000;

export function code(text, language = "") {
  const block = h("code", { class: "hljs" });
  block.append(...highlighted(text, language.toLowerCase()));
  return h("pre", { class: "code", tabindex: "0", data: language ? { language } : {} }, block);
}

function highlighted(text, language) {
  const hljs = globalThis.hljs;
  if (!hljs || text.length > LONGEST || !language || !hljs.getLanguage(language)) return [text];
  try {
    const found = hljs.highlight(text, { language, ignoreIllegals: true });
    return found._emitter.rootNode.children.map(element);
  } catch {
    return [text];
  }
}

function element(node) {
  if (typeof node === "string") return document.createTextNode(node);
  const name = (node.scope || "").split(".")[0].replace(/[^\w-]/g, "");
  return h("span", name ? { class: `hl-${name}` } : {}, node.children.map(element));
}
