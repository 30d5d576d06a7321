// The answers of an exported file: the same shapes as the server's, from the data in the file.

import { exact } from "./json.js";

let held = null;

function data() {
  if (!held) held = exact(document.getElementById("rollbook-data").textContent);
  return held;
}

export function left() {
  return data().left;
}

export function sealedMedia(name) {
  return (data().media || {})[name];
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
  return begun(data().pages[given.task], given);
}

// Of failed tries the file has the one that stands for its rollout, and no other.
function rollout(given) {
  const page = found((data().rollouts[given.task] || {})[given.sample]);
  if (!given.attempt) return page;
  const last = JSON.parse(page.raw).status === "failed" && Number(given.attempt) === page.tries.length - 1;
  return found(last && { ...page, shown: Number(given.attempt) });
}

function tokens(given) {
  const sequences = found(!given.attempt && (data().tokens[given.task] || {})[given.sample]);
  return begun(sequences[given.sequence || 0], given);
}

// Only the first page of anything is in the file.
function begun(page, given) {
  return found(Number(given.offset || 0) === 0 && page);
}

function found(value) {
  if (!value) throw new Error("this was left out of the exported file: open the run with `rollbook view`");
  return value;
}
