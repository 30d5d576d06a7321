// Numbers and times as people read them.

export function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) >= 1000) return value.toLocaleString("en");
  if (Math.abs(value) >= 1e6) return minus(value.toExponential(2));
  return minus(Math.abs(value) >= 100 ? value.toFixed(1) : value.toFixed(digits));
}

function minus(text) {
  return /^-0\.?0*$/.test(text) ? text.slice(1) : text.replace("-", "−");
}

// As short as it can be, and never whole where it is not.
export function reward(value) {
  const rounded = [3, 4, 5, 6].map((digits) => Number(Number(value).toPrecision(digits)));
  return Number.isInteger(value) ? String(value) : String(rounded.find((each) => !Number.isInteger(each)) ?? value);
}

// A name with what would turn or hide the letters around it made visible.
export function named(text) {
  return String(text).replace(/[\p{Cc}\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/gu, (each) => `‹U+${each.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}›`);
}

export function count(value) {
  return value === null || value === undefined ? "–" : Math.round(Number(value)).toLocaleString("en");
}

export function between(bounds) {
  return bounds ? `${number(bounds[0])} – ${number(bounds[1])}` : "";
}

export function signed(value) {
  return value === null || value === undefined ? "–" : `${value > 0 ? "+" : value < 0 ? "−" : "±"}${number(Math.abs(value))}`;
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 10) return `${value.toFixed(2)} s`;
  if (value < 120) return `${value.toFixed(1)} s`;
  return value < 7200 ? `${Math.round(value / 60)} min` : `${(value / 3600).toFixed(1)} h`;
}

export function age(unix) {
  const past = Math.max(0, Date.now() / 1000 - unix);
  const units = [[86400, "d"], [3600, "h"], [60, "min"]];
  for (const [size, name] of units) if (past >= size) return `${Math.floor(past / size)} ${name} ago`;
  return "just now";
}

export function when(unix) {
  return new Date(unix * 1000).toISOString().replace("T", " ").slice(0, 19) + " UTC";
}

// A time of day, as fine as the span that is shown asks for.
export function clock(unix, span) {
  const [date, time] = new Date(unix * 1000).toISOString().split("T");
  return span > 2 * 86400 ? date.slice(5) : time.slice(0, span < 1800 ? 8 : 5);
}
