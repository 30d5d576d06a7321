// The answers of an exported file: the same shapes as the server's, from the data that lies in the file.

let held = null;

function data() {
  if (!held) held = JSON.parse(document.getElementById("rollbook-data").textContent);
  return held;
}

export function left() {
  return data().left;
}

export async function sealed(name, given) {
  const answers = { runs, run: () => data().run, tasks, task, rollout, tokens };
  if (!answers[name]) throw new Error("this is not part of an exported file: open the run with `rollbook view`");
  return answers[name](given);
}

function runs() {
  return { single: true, folder: data().run.run, runs: [data().run] };
}

function tasks({ sort, desc, offset = 0, limit = 50 }) {
  const rows = [...data().tasks];
  if (sort) {
    const order = (a, b) => (a[sort] > b[sort] ? 1 : a[sort] < b[sort] ? -1 : 0) * (desc ? -1 : 1);
    rows.sort((a, b) => (a[sort] === null) - (b[sort] === null) || order(a, b));
  }
  const shown = rows.slice(Number(offset), Number(offset) + Number(limit));
  return { scale: data().scale, tasks: data().run.report.overall.tasks, kept: rows.length, offset: Number(offset), rows: shown };
}

function task(given) {
  return found(data().pages[given.task]);
}

function rollout(given) {
  return found((data().rollouts[given.task] || {})[given.sample]);
}

function tokens(given) {
  const sequences = found((data().tokens[given.task] || {})[given.sample]);
  return found(sequences[given.sequence || 0]);
}

function found(value) {
  if (!value) throw new Error("this was left out of the exported file: open the run with `rollbook view`");
  return value;
}
