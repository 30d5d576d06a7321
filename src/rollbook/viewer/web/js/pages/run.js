// One run: its numbers, its charts, and the table of its tasks.

import { exported, get, stream } from "../api.js";
import { dots, histogram, passCurve, timeline } from "../charts.js";
import { facts, fill, h, link, redraw, section, table } from "../dom.js";
import { between, count, named, number, reward, seconds, when } from "../format.js";
import { follow } from "../live.js";
import { route } from "../routes.js";
import { legend, strip } from "../strip.js";
import { progress, state } from "./runs.js";

const PAGE = 50;
const COLUMNS = [["id", "Task"], ["", "Samples"], ["mean", "Mean"], ["std", "Std"], ["majority", "Majority"],
  ["majority_share", "Share"], ["completion_tokens", "Tokens"]];

export async function run(place, [name], options) {
  const whole = exported ? await get("run", { run: name }) : {};
  if (whole.sections) return report(place, whole);
  const asked = { keep: options.keep || "", sort: options.sort || "", desc: options.desc === "1", text: options.text || "", page: Number(options.page || 0) };
  const head = h("div", { class: "head" });
  const charts = h("div", { class: "charts" }, h("div"), h("div"), h("div"));
  const rows = h("div", {});
  const load = async () => {
    const data = await get("run", { run: name });
    asked.several = Object.keys(data.report.environments).length > 1;
    const { curve: _, version, histogram: rewards, timeline: times, ...rest } = data;
    redraw(head, rest, () => summary(data));
    redraw(charts.children[0], data.curve, () => passCurve(data.curve));
    redraw(charts.children[1], rewards, () => histogram(rewards));
    redraw(charts.children[2], times, () => timeline(times));
    await list();
  };
  const list = async () => {
    try {
      const data = await get("tasks", { run: name, keep: asked.keep, sort: asked.sort, desc: asked.desc ? "1" : "", offset: asked.page * PAGE, limit: PAGE });
      const { version, ...shown } = data;
      redraw(rows, shown, () => tasks(name, data, asked));
    } catch (error) {
      redraw(rows, error.message, () => h("p", { class: "error", role: "alert" }, error.message));
    }
  };
  await load();
  const finds = h("div", { "aria-live": "polite" });
  fill(place, head, charts, h("section", { "aria-label": "Tasks" }, h("h2", {}, "Tasks"),
    exported ? null : filters(name, asked, finds), finds, rows));
  if (asked.text && !exported) search(name, asked, finds);
  const stop = follow(name, load);
  return { leave: () => { stop(); if (finds.stop) finds.stop(); } };
}

// A report: the numbers, and for every environment its charts and its slowest tasks.
function report(place, data) {
  const slow = ({ id, seconds: took, n, mean, completion_tokens: tokens }) => [named(id), seconds(took), count(n), number(mean), number(tokens, 1)];
  const part = (each) => section(named(each.env), each.note ? h("p", { class: "soft" }, each.note) : [
    h("div", { class: "charts two" }, passCurve(each.curve), histogram(each.histogram, each.caption),
      dots("Tasks by mean reward", each.tasks, { heights: false }), dots("Reward by completion tokens", each.lengths)),
    h("h3", {}, "Slowest tasks"), table("Slowest tasks", ["Task", "A rollout", "Scored", "Mean", "Tokens"], each.slowest.map(slow), "list")]);
  fill(place, summary(data), data.sections.map(part));
  return {};
}

function summary(data) {
  const { report } = data;
  const all = report.overall;
  const big = (name, value, under) => h("div", { class: "big" }, h("b", {}, value), h("span", {}, name), h("small", {}, under || "\u00a0"));
  const ks = data.curve.map((point) => point.k);
  const last = ks[ks.length - 1];
  return [
    h("div", { class: "row" }, h("h1", {}, named(data.run)), state(data.state), progress({ ...report, failed: sum(report.failed) })),
    h("p", { class: "soft" }, `${data.environments.join(", ")} · ${data.model} · k = ${data.samples} · temperature ${data.sampling.temperature} · ${when(data.created)}`),
    h("div", { class: "bigs" },
      big("pass@1", number(all["pass@1"]), between(all["pass@1_interval"])),
      last > 1 ? big(`pass@${last}`, number(all[`pass@${last}`]), between(all[`pass@${last}_interval`])) : null,
      last > 1 && all[`maj@${last}`] !== undefined ? big(`maj@${last}`, number(all[`maj@${last}`])) : null,
      big("mean reward", number(all.mean), between(all.mean_interval)),
      big("tokens a rollout", all.scored ? number(all.completion_tokens / all.scored, 0) : "–", all.truncated ? `${count(all.truncated)} truncated` : ""),
      typeof report.cost === "number" ? big("cost", number(report.cost, report.cost >= 1 ? 2 : 4), "of all attempts") : null,
      report.cache ? big("cached", `${Math.round(100 * report.cache.share)}%`, "of the prompt tokens") : null,
      big("seconds, median", number(all.seconds_p50, 2), all.seconds_p95 ? `p95 ${seconds(all.seconds_p95)}` : "")),
    data.notes.length ? h("ul", { class: "notes" }, data.notes.map((words) => h("li", {}, words))) : null,
    h("details", { class: "more", open: Boolean(data.sections) }, h("summary", {}, "All numbers"), numbers(report)),
  ];
}

const TOTALS = [["Truncated", "truncated"], ["No answer", "no_answer"]];

function numbers(report) {
  const several = Object.entries(report.environments);
  const shown = several.length > 1 ? [...several, ["all", report.overall]] : several;
  const parts = several.flatMap(([env, one]) => Object.entries(one.parts).map(([name, value]) =>
    [env, name, number(value), `${count(one.part_coverage[name])} / ${count(one.scored)}`]));
  const continued = Object.entries(report.continuity);
  const forks = continued.flatMap(([env, one]) => Object.entries(one.reasons).map(([reason, n]) => [env, reason, count(n)]));
  const rates = continued.map(([env, one]) => [`Break rate, ${env}`, `${number(one.break_rate)} (${count(one.forks)} of ${count(one.turns)} later turns)`]);
  const kinds = Object.entries(report.failed).map(([kind, n]) => [kind, count(n)]);
  const missing = report.missing.slice(0, 10).map(([task, sample, why]) => [named(task), count(sample), why]);
  return h("div", { class: "stack" }, rewards(shown), costs(shown),
    h("div", { class: "pair" }, parts.length ? table("Reward parts", ["Environment", "Reward part", "Mean", "Rollouts"], parts, "list") : null,
      kinds.length ? table("Failures by kind", ["Failure", "Rollouts"], kinds, "list") : null,
      forks.length ? table("Forks by reason", ["Environment", "Fork", "Turns"], forks, "list") : null,
      missing.length ? table("Missing", ["Missing", "Sample", "Why"], missing, "list") : null,
      facts([["Scored", `${count(report.scored)} of ${count(report.requested)}`], ["Failed", count(sum(report.failed))], ["Pending", count(report.pending)],
        ["Prompt tokens", count(report.overall.prompt_tokens)], ["Completion tokens", count(report.overall.completion_tokens)],
        ["Turns", count(report.overall.turns)], ...rates])));
}

// Every number of every environment, with its interval where it has one.
function rewards(shown) {
  const names = [...new Set(shown.flatMap(([, one]) => Object.keys(one)))].filter((name) => /^(mean|std|(pass|maj|best)[@^]\d+)$/.test(name));
  const cells = (one) => names.flatMap((name) => (bounded(name) ? [number(one[name]), between(one[`${name}_interval`])] : [number(one[name])]));
  const bounded = (name) => shown.some(([, one]) => one[`${name}_interval`]);
  const heads = names.flatMap((name) => (bounded(name) ? [name, "95%"] : [name]));
  const rows = shown.map(([env, one]) => [env, count(one.tasks), `${count(one.scored)} / ${count(one.requested)}`, ...cells(one)]);
  return table("Numbers by environment", ["Environment", "Tasks", "Scored", ...heads], rows, "list");
}

function costs(shown) {
  const each = (one, name) => (one.scored ? number(one[name] / one.scored, 1) : "–");
  const rows = shown.map(([env, one]) => [env, each(one, "prompt_tokens"), each(one, "completion_tokens"), each(one, "turns"),
    ...TOTALS.map(([, name]) => count(one[name])), seconds(one.seconds_p50), seconds(one.seconds_p95)]);
  return table("Costs of a rollout", ["Environment", "Prompt tokens", "Completion tokens", "Turns", ...TOTALS.map(([words]) => words), "Median", "p95"], rows, "list");
}

function sum(counts) {
  return Object.values(counts).reduce((total, each) => total + each, 0);
}

function filters(name, asked, finds) {
  const go = (more) => { location.hash = route("run", name, { ...options(asked), ...more }); };
  const keep = h("input", { type: "search", name: "keep", placeholder: "0 < mean < 1 and n >= 8", "aria-label": "Filter tasks by an expression", spellcheck: "false", autocomplete: "off" });
  keep.value = asked.keep;
  const text = h("input", { type: "search", name: "text", placeholder: "Search what was said", "aria-label": "Search in messages and answers", autocomplete: "off" });
  text.value = asked.text;
  const again = () => { asked.text = text.value; kept = null; search(name, asked, finds); };
  const submit = (act) => (event) => { event.preventDefault(); act(); };
  return h("div", { class: "filters" },
    h("form", { onsubmit: submit(() => go({ keep: keep.value })) }, keep, h("button", {}, "Filter")),
    h("form", { onsubmit: submit(() => (text.value === asked.text ? again() : go({ text: text.value, page: asked.page }))) }, text, h("button", {}, "Search")));
}

let kept = null;  // what the last search has found: a reader who returns to it does not wait again

function search(name, asked, finds) {
  if (finds.stop) finds.stop();
  const { text } = asked;
  if (!text.trim()) { fill(finds); return; }
  const bar = h("progress", { max: "1", value: "0", "aria-label": "Progress of the search" });
  const words = h("span", { class: "soft" }, "searching");
  const hits = h("ol", { class: "hits" });
  const close = h("button", { type: "button", class: "plain", title: "Close", onclick: () => { location.hash = route("run", name, { ...options(asked), text: "", page: asked.page }); } }, "✕");
  fill(finds, h("div", { class: "row" }, bar, words, close), hits);
  let found = 0;
  const heard = (event) => {
    if (event.error || event.end) {
      if (finds.stop) finds.stop();
      words.textContent = event.error || `${count(found)} rollouts${found >= 200 ? ", the first ones" : ""}`;
      bar.remove();
      return;
    }
    bar.value = event.size ? event.done / event.size : 1;
    found += event.found.length;
    words.textContent = `${count(found)} found`;
    hits.append(...event.found.map((hit) => h("li", {}, link(route("rollout", name, hit.task, hit.sample), {}, `${named(hit.task)} #${hit.sample}`),
      h("span", { class: "soft" }, ` reward ${reward(hit.reward)} `), h("q", {}, hit.excerpt))));
  };
  const key = JSON.stringify([name, text]);
  if (kept && kept.key === key && kept.events.some((event) => event.end)) { kept.events.forEach(heard); return; }
  const mine = kept = { key, events: [] };
  finds.stop = stream("search", { run: name, text }, (event) => { mine.events.push(event); heard(event); });
}

function tasks(name, data, asked) {
  const last = Math.max(0, Math.ceil(data.kept / PAGE) - 1);
  const turn = (page, words) => link(route("run", name, { ...options(asked), page }), { class: "button", rel: "nofollow" }, words);
  const from = data.kept ? data.offset + 1 : 0;
  return [
    legend(data.scale),
    h("div", { class: "scroll" }, h("table", { class: "list tasks", "aria-label": "Tasks" },
      h("thead", {}, h("tr", {}, COLUMNS.map(([column, words]) => head(name, column, words, asked)))),
      h("tbody", {}, data.rows.map((row) => line(name, row, asked.several, data.scale))))),
    h("div", { class: "row foot" },
      h("span", { class: "soft", id: "counted" }, `${count(from)}–${count(data.offset + data.rows.length)} of ${count(data.kept)}${data.kept < data.tasks ? ` kept, ${count(data.tasks)} in all` : " tasks"}`),
      asked.page > 0 ? turn(asked.page - 1, "← Before") : null, asked.page < last ? turn(asked.page + 1, "Next →") : null),
  ];
}

function options(asked) {
  return { keep: asked.keep, sort: asked.sort, desc: asked.desc ? "1" : "", text: asked.text };
}

function head(name, column, words, asked) {
  const numeric = !["id", "", "majority"].includes(column);
  if (!column) return h("th", { scope: "col" }, words);
  const mine = asked.sort === column;
  const desc = mine ? !asked.desc : numeric;
  const order = mine ? (asked.desc ? "descending" : "ascending") : null;
  return h("th", { scope: "col", class: numeric ? "num" : "", "aria-sort": order },
    link(route("run", name, { ...options(asked), sort: column, desc: desc ? "1" : "" }), { class: "sort" }, words, mine ? (asked.desc ? " ↓" : " ↑") : ""));
}

function line(name, row, several, scale) {
  return h("tr", { data: { open: route("task", name, row.id) } },
    h("th", { scope: "row", class: "what" }, link(route("task", name, row.id), {}, named(row.id)), several ? h("span", { class: "tag" }, row.env) : null, h("span", { class: "prompt" }, row.prompt)),
    h("td", {}, strip(name, row.id, row.strip, { scale, samples: row.samples }), row.asked > row.strip.length ? h("small", {}, ` +${row.asked - row.strip.length}`) : null),
    h("td", { class: "num strong" }, number(row.mean)),
    h("td", { class: "num" }, number(row.std)),
    h("td", { class: "answer" }, row.majority ?? "–"),
    h("td", { class: "num" }, number(row.majority_share, 2)),
    h("td", { class: "num" }, count(row.completion_tokens)));
}
