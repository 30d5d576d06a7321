// LaTeX as MathML, which browsers draw themselves. Nothing in it may link, load or run, and nothing may hide.

import { h } from "./dom.js";

const BOUNDS = { trust: false, maxExpand: 200, maxSize: [25, 25], throwOnError: true };
const LONGEST = 4000;
const BOX = 400;
// What can be said without being seen stays as it was written: no ink, no width, no colour, names, macros, comments.
const HIDING = new RegExp([
  String.raw`\\(?:[hv]?phantom|\w*color\w*|smash|(?:math)?[rlc]lap|label|class|cssId|href|html\w*|[gex]?def|let|\w*newcommand|providecommand)(?![a-z])`,
  String.raw`\\\w*(?:kern|skip|space)\s*\*?\s*\{?\s*-`,
  String.raw`(?:^|[^\\])%`,
].join("|"), "i");
const NAMES = /^\\begin\{((?:align|alignat|aligned|gather|gathered|equation|split|multline|cases|array|[pbvBV]?matrix)\*?)\}/;

export function math(text, display) {
  const place = h(display ? "div" : "span", { class: display ? "math display" : "math" });
  if (globalThis.temml && text.length <= LONGEST && !HIDING.test(text)) {
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

// $...$, $$...$$, \(...\), \[...\], \begin{align}...\end{align} and \boxed{...}, before markdown-it takes the marks for its own.
const PAIRS = [["$$", "$$", true], ["\\[", "\\]", true], ["\\(", "\\)", false], ["$", "$", false]];

// The formula that begins at a place: its text, where it ends, and whether it stands on a line of its own.
function formula(source, at) {
  if (source[at] !== "$" && source[at] !== "\\") return null;
  if (source.startsWith("\\boxed{", at)) return boxed(source, at);
  const named = NAMES.exec(source.slice(at, at + 24));
  if (named) {
    const close = `\\end{${named[1]}}`;
    const end = closing(source, close, at);
    return end < 0 ? null : { text: source.slice(at, end + close.length), end: end + close.length, display: true };
  }
  const pair = PAIRS.find(([open]) => source.startsWith(open, at));
  if (!pair) return null;
  const [open, close, display] = pair;
  const start = at + open.length;
  const end = closing(source, close, start);
  if (end <= start) return null;
  const text = source.slice(start, end);
  if (open === "$" && (/^\s|\s$|\n\s*\n/.test(text) || /\d/.test(source[end + 1] || ""))) return null;
  return { text, end: end + close.length, display };
}

function boxed(source, at) {
  let depth = 0;
  for (let end = at + 6; end < Math.min(source.length, at + BOX); end += 1) {
    if (source[end] === "\\") end += 1;
    else if (source[end] === "{") depth += 1;
    else if (source[end] === "}" && (depth -= 1) === 0) return { text: source.slice(at, end + 1), end: end + 1, display: false };
  }
  return null;
}

export function mathRules(md) {
  md.inline.ruler.before("escape", "math", (state, silent) => {
    const found = formula(state.src, state.pos);
    if (!found || found.end > state.posMax) return false;
    if (!silent) push(state, found);
    state.pos = found.end;
    return true;
  });
  md.block.ruler.before("fence", "math", blockRule, { alt: ["paragraph", "blockquote", "list"] });
}

function push(state, { text, display }) {
  const token = state.push("math", "", 0);
  token.content = text;
  token.meta = { display };
}

function blockRule(state, first, last, silent) {
  const found = formula(state.src, state.bMarks[first] + state.tShift[first]);
  if (!found || !found.display || found.end > state.eMarks[last - 1]) return false;
  let line = first;
  while (line < last && state.eMarks[line] < found.end) line += 1;
  if (line >= last || state.src.slice(found.end, state.eMarks[line]).trim()) return false;
  if (silent) return true;
  push(state, found);
  state.line = line + 1;
  return true;
}
