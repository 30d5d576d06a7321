// JSON without loss: whole numbers that no double can hold stay whole, and a text is laid out token by token.

const HUGE = /-?\d{16,}(?![\d.eE])/;

export function exact(text) {
  if (!HUGE.test(text)) return JSON.parse(text);
  return JSON.parse(text, (_, value, context) => (unsafe(value) && context && /^-?\d+$/.test(context.source) ? BigInt(context.source) : value));
}

function unsafe(value) {
  return typeof value === "number" && !Number.isSafeInteger(value);
}

BigInt.prototype.toJSON = function written() {
  return JSON.rawJSON ? JSON.rawJSON(String(this)) : String(this);
};

// The same tokens in the same order, with line breaks and indents between them.
export function laid(text) {
  const parts = [];
  let depth = 0;
  const line = () => `\n${"  ".repeat(Math.max(0, Math.min(depth, 60)))}`;
  for (let at = 0; at < text.length;) {
    const end = tokenEnd(text, at);
    const token = text.slice(at, end);
    at = end;
    if (token === "{" || token === "[") {
      depth += 1;
      parts.push(token, /[\]}]/.test(text[spaceEnd(text, at)]) ? "" : line());
    } else if (token === "}" || token === "]") {
      depth -= 1;
      parts.push(/^[{[]$/.test(parts[parts.length - 2]) && !parts[parts.length - 1] ? "" : line(), token);
    } else if (token.trim()) parts.push(token === "," ? `,${line()}` : token === ":" ? ": " : token);
  }
  return parts.join("");
}

const PLAIN = /[^\s"{}[\],:]+|\s+/y;
const SPACE = /\s*/y;

function spaceEnd(text, at) {
  SPACE.lastIndex = at;
  SPACE.test(text);
  return SPACE.lastIndex;
}

function tokenEnd(text, at) {
  if (text[at] === "\"") return stringEnd(text, at);
  PLAIN.lastIndex = at;
  return PLAIN.test(text) ? PLAIN.lastIndex : at + 1;
}

function stringEnd(text, at) {
  for (let end = text.indexOf("\"", at + 1); end >= 0; end = text.indexOf("\"", end + 1)) {
    let slash = end;
    while (text[slash - 1] === "\\") slash -= 1;
    if ((end - slash) % 2 === 0) return end + 1;
  }
  return text.length;
}
