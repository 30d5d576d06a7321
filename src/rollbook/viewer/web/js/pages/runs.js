// Every run of the folder. Tick two to compare them.

import { get } from "../api.js";
import { fill, h, link, redraw } from "../dom.js";
import { age, between, count, named, number, signed, when } from "../format.js";
import { follow } from "../live.js";
import { route } from "../routes.js";

const NUMERIC = new Set(["k", "Scored", "pass@1", "95%", "Cost"]);
const WIDE = new Set(["Environment", "Model", "k", "95%", "Cost", "Age"]);

const chosen = [];  // what was ticked, also when one comes back from comparing

export async function runs(place) {
  const first = await get("runs");
  if (first.single) {
    location.replace(route("run", first.runs[0].run));
    return {};
  }
  const list = h("div", { class: "scroll" });
  const bar = h("div", { class: "bar", role: "group", "aria-label": "Compare" });
  const draw = (data) => {
    const there = data.runs.map((row) => row.run);
    chosen.splice(0, 2, ...chosen.filter((run) => there.includes(run)));
    redraw(list, [data.runs, Math.floor(Date.now() / 60000)], () => (data.runs.length ? grid(data.runs, chosen, () => { pick(bar, chosen); }) : h("p", {}, "no runs")));
    pick(bar, chosen);
  };
  draw(first);
  const board = h("section", { "aria-label": "Leaderboard" });
  const rank = async () => { if (first.models) leaderboard(board, await get("leaderboard")); };
  await rank();
  fill(place, h("h1", {}, named(first.folder)), board, h("p", { class: "soft" }, `${count(first.runs.length)} runs`), bar, list);
  return { leave: follow("", async () => { draw(await get("runs")); await rank(); }) };
}

// The models of `run --each`, the best first, with the paired differences from the reference.
function leaderboard(place, data) {
  const about = data.reference ? `Differences are from ${named(data.reference)}, paired by task, with 95% intervals; p by permutation test.` : "no scores yet";
  redraw(place, data, () => [h("h2", {}, "Leaderboard"), h("div", { class: "scroll" }, standings(data)),
    [about, ...data.notes].map((note) => h("p", { class: "soft" }, note))]);
}

function standings(data) {
  const priced = data.rows.some((row) => typeof row.cost === "number");
  const graded = data.rows.some((row) => row.mean !== row.pass_rate);
  const heads = ["Model", "Run", "Scored", ...(graded ? ["Mean", "95%"] : []), "pass@1", "95%", "Difference", "95%", "p", "Tokens", ...(priced ? ["Cost"] : []), "Failed"];
  const wide = (head) => (head === "95%" || head === "Tokens" || head === "Failed" || head === "Run" || head === "Cost" ? "wide" : "");
  return h("table", { class: "list", "aria-label": "Leaderboard" },
    h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col", class: `${head === "Model" || head === "Run" ? "" : "num"} ${wide(head)}` }, head)))),
    h("tbody", {}, data.rows.map((row) => standing(row, data.reference, graded, priced))));
}

function standing(row, reference, graded, priced) {
  const mean = row.differences.mean;
  const change = mean && mean.difference !== null ? link(route("compare", reference, row.name), {}, signed(mean.difference)) : "–";
  return h("tr", {},
    h("th", { scope: "row", class: "words" }, row.problem ? named(row.name) : link(route("run", row.name), {}, named(row.model || row.name)),
      h("span", { class: "narrow soft" }, named(row.name))),
    h("td", { class: "wide" }, named(row.name)),
    h("td", { class: "num" }, row.problem ? row.problem : progress({ ...row, failed: Object.values(row.failed).reduce((a, b) => a + b, 0) })),
    graded ? [h("td", { class: "num strong" }, number(row.mean)), h("td", { class: "num soft wide" }, between(row.mean_interval))] : null,
    h("td", { class: "num strong" }, number(row.pass_rate)),
    h("td", { class: "num soft wide" }, between(row.pass_interval)),
    h("td", { class: "num" }, change),
    h("td", { class: "num soft wide" }, between(mean ? mean.interval : null)),
    h("td", { class: "num" }, row.p === null ? "–" : row.p < 0.0001 ? "< 0.0001" : number(row.p, 4)),
    h("td", { class: "num wide" }, count(row.prompt_tokens + row.completion_tokens)),
    priced ? h("td", { class: "num wide" }, typeof row.cost === "number" ? number(row.cost, row.cost >= 1 ? 2 : 4) : "–") : null,
    h("td", { class: "num wide" }, count(Object.values(row.failed).reduce((a, b) => a + b, 0))));
}

function pick(bar, chosen) {
  const ready = chosen.length === 2;
  fill(bar, ready ? link(route("compare", ...chosen), { class: "button" }, `Compare ${named(chosen[0])} with ${named(chosen[1])}`)
    : h("span", { class: "soft" }, chosen.length ? "Tick one more to compare." : "Tick two runs to compare them."));
}

function grid(rows, chosen, changed) {
  const priced = rows.some((row) => typeof row.cost === "number");
  const heads = ["", "Run", "Environment", "Model", "k", "Scored", "pass@1", "95%", ...(priced ? ["Cost"] : []), "State", "Age"];
  return h("table", { class: "list runs", "aria-label": "Runs" },
    h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col", class: `${NUMERIC.has(head) ? "num" : ""} ${WIDE.has(head) ? "wide" : ""}` }, head)))),
    h("tbody", {}, rows.map((row) => (row.error ? broken(row) : line(row, chosen, changed, priced)))));
}

function broken(row) {
  return h("tr", {}, h("td"), h("th", { scope: "row" }, named(row.run)), h("td", { colspan: "9", class: "error" }, row.error));
}

function line(row, chosen, changed, priced) {
  const box = h("input", { type: "checkbox", "aria-label": `choose ${row.run} for comparison` });
  box.checked = chosen.includes(row.run);
  box.addEventListener("change", () => {
    const at = chosen.indexOf(row.run);
    if (at >= 0) chosen.splice(at, 1);
    if (box.checked) chosen.push(row.run);
    while (chosen.length > 2) chosen.shift();
    for (const other of box.closest("tbody").querySelectorAll("input")) other.checked = chosen.includes(other.closest("tr").dataset.run);
    changed();
  });
  return h("tr", { data: { open: route("run", row.run), run: row.run } },
    h("td", {}, box),
    h("th", { scope: "row" }, link(route("run", row.run), {}, named(row.run)), h("span", { class: "narrow soft" }, `${row.model}, k = ${row.samples}`)),
    h("td", { class: "wide words", title: row.environments.join(", ") }, row.environments.join(", ")),
    h("td", { class: "wide words", title: row.model }, row.model, row.scripted ? h("span", { class: "tag" }, "scripted") : null),
    h("td", { class: "num wide" }, count(row.samples)),
    h("td", { class: "num" }, progress(row)),
    h("td", { class: "num strong" }, number(row["pass@1"])),
    h("td", { class: "num soft wide" }, between(row.interval)),
    priced ? h("td", { class: "num soft wide" }, typeof row.cost === "number" ? number(row.cost, row.cost >= 1 ? 2 : 4) : "–") : null,
    h("td", {}, state(row.state)),
    h("td", { class: "soft wide", title: when(row.created) }, age(row.created)));
}

export function progress(row) {
  const words = `${count(row.scored)} / ${count(row.requested)}`;
  const share = (part) => `${(100 * part) / Math.max(1, row.requested)}%`;
  return h("span", { class: "progress", title: `${row.scored} scored, ${row.failed} failed, ${row.pending} pending` },
    h("span", { class: "meter", "aria-hidden": "true" }, h("i", { class: "done", vars: { width: share(row.scored) } }),
      h("i", { class: "lost", vars: { width: share(row.failed) } })), words);
}

export function state(name) {
  return h("span", { class: `state ${name}`, title: name }, name);
}
