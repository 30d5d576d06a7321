// Two runs of the same tasks: the paired numbers, then the tasks, those that flipped first.

import { get } from "../api.js";
import { fill, h, link, section, table } from "../dom.js";
import { between, count, named, number, reward, signed } from "../format.js";
import { route } from "../routes.js";
import { legend, strip } from "../strip.js";
import { read, view } from "./rollout.js";

const PAGE = 50;

export async function compare(place, [a, b], options) {
  const page = Number(options.page || 0);
  try {
    const data = await get("compare", { a, b, common: options.common, offset: page * PAGE, limit: PAGE });
    fill(place, whole(a, b, data, page, options));
  } catch (error) {
    const offer = error.message.includes("--common") ? link(route("compare", a, b, { common: "1" }), { class: "button" }, "Compare the tasks that both have") : null;
    fill(place, h("h1", {}, "Compare"), h("p", { class: "error", role: "alert" }, error.message.replace("; compare those with --common", "")), offer);
  }
  return {};
}

function whole(a, b, data, page, options) {
  const { comparison } = data;
  const side = (name, run, letter) => h("p", {}, h("b", { class: `letter ${letter}` }, letter.toUpperCase()), link(route("run", name), {}, named(name)),
    h("span", { class: "soft" }, ` ${run.model}, ${count(run.scored)} / ${count(run.requested)} scored`));
  const rows = (several, shown) => Object.entries(several).map(([name, each]) => [name.replace("_", " "), number(each.a), number(each.b), shown(each.difference, each.interval), between(each.interval), count(each.tasks)]);
  const chance = (p) => (p === null || p === undefined ? "–" : p < 0.0001 ? "< 0.0001" : p.toFixed(4));
  const heads = ["", "A", "B", "B − A", "95%", "tasks"];
  return [
    h("h1", {}, "Compare"), side(a, data.a, "a"), side(b, data.b, "b"),
    data.notes.length ? h("ul", { class: "notes" }, data.notes.map((note) => h("li", {}, note))) : null,
    h("div", { class: "bigs" }, big("most samples pass only in B", data.gained, "gain"), big("most samples pass only in A", data.lost, "loss"),
      big("better on", comparison.better), big("worse on", comparison.worse), big("permutation p", chance(comparison.permutation_p)), big("sign test p", chance(comparison.sign_p))),
    h("div", { class: "pair broad" }, section("Numbers", table("Paired numbers", heads, rows(comparison.metrics, moved), "list figures")),
      section("A rollout's cost", table("Costs", heads, rows(comparison.costs, (value) => signed(value)), "list figures"))),
    section("Tasks, flips first", legend(data.scale), pairs(a, b, data), foot(a, b, data, page, options)),
  ];
}

function big(name, value, kind = "") {
  return h("div", { class: `big ${kind}` }, h("b", {}, typeof value === "number" ? count(value) : value), h("span", {}, name));
}

// In colour only where it is more than chance: the interval has 0 outside.
function moved(value, bounds) {
  const sure = bounds && (bounds[0] > 0 || bounds[1] < 0);
  return h("span", { class: sure ? (value > 0 ? "gain" : "loss") : "" }, signed(value));
}

function pairs(a, b, data) {
  const heads = ["Task", "A", "mean", "B", "mean", "B − A", ""];
  return h("div", { class: "scroll" }, h("table", { class: "list tasks", "aria-label": "Paired tasks" },
    h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col", class: ["mean", "B − A"].includes(head) ? "num" : "" }, head)))),
    h("tbody", {}, data.rows.map((row) => {
      const open = route("pair", a, b, row.id, ...row.open);
      const gap = row.a.mean === null || row.b.mean === null ? null : row.b.mean - row.a.mean;
      return h("tr", { data: { open } }, h("th", { scope: "row", class: "what" }, link(open, {}, named(row.id)), h("span", { class: "prompt" }, row.prompt)),
        h("td", {}, strip(a, row.id, row.a.strip, { samples: row.a.samples, scale: data.scale })), h("td", { class: "num" }, number(row.a.mean)),
        h("td", {}, strip(b, row.id, row.b.strip, { samples: row.b.samples, scale: data.scale })), h("td", { class: "num" }, number(row.b.mean)),
        h("td", { class: "num strong" }, signed(gap)), h("td", {}, row.flip ? h("span", { class: `tag ${row.flip === "gained" ? "good" : "bad"}` }, row.flip) : null));
    }))));
}

function foot(a, b, data, page, options) {
  const last = Math.ceil(data.pairs / PAGE) - 1;
  const turn = (to, words) => link(route("compare", a, b, { common: options.common, page: String(to) }), { class: "button" }, words);
  return h("div", { class: "row foot" }, h("span", { class: "soft" }, `${count(data.rows.length ? data.offset + 1 : 0)}–${count(data.offset + data.rows.length)} of ${count(data.pairs)} tasks`),
    page > 0 ? turn(page - 1, "← Before") : null, page < last ? turn(page + 1, "Next →") : null);
}

export async function pair(place, [a, b, task, left, right]) {
  const [one, two] = (await Promise.all([get("rollout", { run: a, task, sample: left }), get("rollout", { run: b, task, sample: right })])).map(read);
  const choose = (name, data, letter, to) => h("div", { class: "row" }, h("b", { class: `letter ${letter}` }, letter.toUpperCase()), link(route("rollout", name, task, data.sample), {}, named(name)),
    h("span", { class: "picks" }, data.samples.map((sample, at) => pick(sample, data.strip[at], to(sample), sample === data.sample))));
  fill(place, h("div", { class: "pair even" },
    h("section", { "aria-label": `A: ${a}` }, choose(a, one, "a", (sample) => route("pair", a, b, task, sample, right)), view(a, one, true)),
    h("section", { "aria-label": `B: ${b}` }, choose(b, two, "b", (sample) => route("pair", a, b, task, left, sample)), view(b, two, true))));
  return {};
}

function pick(sample, mark, open, chosen) {
  const words = mark === undefined ? "" : mark === null ? "pending" : typeof mark === "string" ? "failed" : reward(mark);
  return link(open, { class: "pick", title: `sample ${sample}: ${words}`, "aria-current": chosen ? "true" : null }, `#${sample} `, h("small", {}, words));
}
