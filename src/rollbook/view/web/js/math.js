// LaTeX as MathML, which browsers draw themselves. Nothing in it may link, load or run.

import { h } from "./dom.js";

const BOUNDS = { trust: false, maxExpand: 200, maxSize: [25, 25], throwOnError: true };
const LONGEST = 4000;

export function math(text, display) {
  const place = h(display ? "div" : "span", { class: display ? "math display" : "math" });
  if (globalThis.temml && text.length <= LONGEST) {
    try {
      globalThis.temml.render(text, place, { ...BOUNDS, displayMode: display });
      return inert(place);
    } catch {
      place.replaceChildren();
    }
  }
  place.append(h("code", { class: "tex" }, text));
  return place;
}

function inert(place) {
  for (const element of place.querySelectorAll("[href], [src], a, img")) element.replaceWith(element.textContent);
  return place;
}

// Looked for no further than a formula can reach: a text of nothing but openings must not take for ever.
function closing(text, close, start) {
  const at = text.slice(start, start + LONGEST).indexOf(close);
  return at < 0 ? -1 : start + at;
}

// Rules for markdown-it: $...$, $$...$$, \(...\) and \[...\], before it takes the backslashes for its own.
const PAIRS = [["$$", "$$", true], ["\\[", "\\]", true], ["\\(", "\\)", false], ["$", "$", false]];

export function mathRules(md) {
  md.inline.ruler.before("escape", "math", (state, silent) => {
    const pair = PAIRS.find(([open]) => state.src.startsWith(open, state.pos));
    if (!pair) return false;
    const [open, close, display] = pair;
    const start = state.pos + open.length;
    const end = closing(state.src, close, start);
    if (end < 0 || end === start || end > state.posMax - close.length) return false;
    const text = state.src.slice(start, end);
    if (open === "$" && (/^\s|\s$|\n\s*\n/.test(text) || /\d/.test(state.src[end + 1] || ""))) return false;
    if (!silent) {
      const token = state.push("math", "", 0);
      token.content = text;
      token.meta = { display };
    }
    state.pos = end + close.length;
    return true;
  });
  md.block.ruler.before("fence", "math", blockRule, { alt: ["paragraph", "blockquote", "list"] });
}

function blockRule(state, first, last, silent) {
  const start = state.bMarks[first] + state.tShift[first];
  const pair = PAIRS.slice(0, 2).find(([open]) => state.src.startsWith(open, start));
  if (!pair) return false;
  const [open, close] = pair;
  const end = closing(state.src, close, start + open.length);
  if (end < 0 || end > state.eMarks[last - 1]) return false;
  let line = first;
  while (line < last && state.eMarks[line] < end + close.length) line += 1;
  if (line >= last || state.src.slice(end + close.length, state.eMarks[line]).trim()) return false;
  if (silent) return true;
  const token = state.push("math", "", 0);
  token.content = state.src.slice(start + open.length, end);
  token.meta = { display: true };
  state.line = line + 1;
  return true;
}
