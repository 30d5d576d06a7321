// Addresses within the page: everything behind the # sign.

const SHAPES = {
  runs: [],
  run: ["run", null],
  task: ["run", null, "task", null],
  rollout: ["run", null, "task", null, "sample", null],
  tokens: ["run", null, "task", null, "sample", null, "tokens"],
  compare: ["compare", null, null],
  pair: ["compare", null, null, "task", null, null, null],
};

export function route(name, ...values) {
  const left = [...values];
  const options = left.length && typeof left[left.length - 1] === "object" ? left.pop() : {};
  const parts = SHAPES[name].map((part) => part ?? encodeURIComponent(String(left.shift())));
  const kept = Object.entries(options).filter(([, value]) => value !== undefined && value !== null && value !== "" && value !== false);
  const query = new URLSearchParams(kept).toString();
  return `#/${parts.join("/")}${query ? `?${query}` : ""}`;
}

export function here() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path ? path.split("/") : [];
  for (const [name, shape] of Object.entries(SHAPES)) {
    if (shape.length === parts.length && shape.every((part, at) => part === null || part === parts[at])) {
      const values = parts.filter((_, at) => shape[at] === null).map(decoded);
      return { name, values, options: Object.fromEntries(new URLSearchParams(query || "")) };
    }
  }
  return { name: "runs", values: [], options: {} };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
