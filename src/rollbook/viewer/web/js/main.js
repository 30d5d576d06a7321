// Finds the page for an address, shows it, keeps it fresh, and listens to the keyboard.

import { exported } from "./api.js";
import { fill, h, link, release } from "./dom.js";
import { named } from "./format.js";
import { compare, pair } from "./pages/compare.js";
import { rollout } from "./pages/rollout.js";
import { run } from "./pages/run.js";
import { runs } from "./pages/runs.js";
import { task } from "./pages/task.js";
import { tokens } from "./pages/tokens.js";
import { here, route } from "./routes.js";
import { left } from "./sealed.js";

const PAGES = { runs, run, task, rollout, tokens, compare, pair };
const main = document.getElementById("main");
const visited = new Map();  // the last address of every place: with its filter, its order, its page
const chosen = new Map();  // the row from which an address was left
let page = null;
let turn = 0;
let shown = "";

async function show() {
  const mine = ++turn;
  if (page && page.leave) page.leave();
  page = null;
  const from = main.querySelector(".at");
  if (from) chosen.set(shown, from.dataset.open);
  shown = location.hash;
  visited.set(path(shown), shown);
  const { name, values, options } = here();
  main.setAttribute("aria-busy", "true");
  trail(name, values);
  const place = h("div", { class: `page page-${name}` });
  try {
    const made = await PAGES[name](place, values, options);
    if (mine !== turn) { if (made && made.leave) made.leave(); release(place); return; }
    page = made || {};
  } catch (error) {
    if (mine !== turn) return;
    fill(place, h("p", { class: "error", role: "alert" }, error.message));
    page = {};
  }
  release(main);
  fill(main, exported ? h("p", { class: "note" }, `An exported file. ${left()}`) : null, place);
  main.setAttribute("aria-busy", "false");
  scrollTo(0, 0);
  const row = rows().find((each) => each.dataset.open === chosen.get(shown));
  if (row) mark(row, "center");
}

function path(address) {
  return address.split("?")[0];
}

// An address as it was when we were last there.
function last(address) {
  return visited.get(path(address)) || address;
}

function trail(name, values) {
  const [first, second, third] = values;
  const steps = [link(route("runs"), { class: "home" }, h("span", { class: "logo", "aria-hidden": "true" }), "Rollbook")];
  const to = (address, words) => link(path(address) === path(shown) ? address : last(address), {}, named(words));
  if (name === "compare" || name === "pair") steps.push(to(route("compare", first, second), `${first} · ${second}`));
  else if (first !== undefined) steps.push(to(route("run", first), first));
  if (name === "pair") steps.push(h("span", {}, named(third)));
  else if (second !== undefined && name !== "compare") steps.push(to(route("task", first, second), second));
  if (name === "rollout" || name === "tokens") steps.push(to(route("rollout", first, second, third), `#${third}`));
  if (name === "tokens") steps.push(h("span", {}, "tokens"));
  steps[steps.length - 1].setAttribute("aria-current", "page");
  fill(document.getElementById("trail"), h("ol", {}, steps.map((step) => h("li", {}, step))));
  document.title = [...values].reverse().concat("Rollbook").map(named).join(" · ");
}

function up() {
  const { name, values } = here();
  if (name === "tokens") return route("rollout", ...values);
  if (name === "rollout") return route("task", values[0], values[1]);
  if (name === "task") return route("run", values[0]);
  if (name === "pair") return route("compare", values[0], values[1]);
  return route("runs");
}

const rows = () => [...main.querySelectorAll("[data-open]")];

function step(by) {
  if (page && page.step) return page.step(by);
  const all = rows();
  const at = all.findIndex((row) => row.classList.contains("at"));
  const next = all[Math.min(all.length - 1, Math.max(0, at + by))];
  if (next) mark(next, "nearest");
  return undefined;
}

function mark(row, block) {
  rows().forEach((each) => each.classList.toggle("at", each === row));
  row.setAttribute("tabindex", "-1");
  row.focus({ preventScroll: true });
  row.scrollIntoView({ block });
}

function typed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const dialog = document.getElementById("keys");
  if (dialog.open) return;
  const writing = event.target.closest("input, textarea, select");
  if (writing) {
    if (event.key === "Escape") writing.blur();
    return;
  }
  const chosen = rows().find((row) => row.classList.contains("at"));
  const actions = {
    j: () => step(1),
    k: () => step(-1),
    Enter: () => { if (chosen && !event.target.closest("a, button, summary")) location.hash = chosen.dataset.open; },
    Escape: () => { location.hash = last(up()); },
    "/": () => { const field = main.querySelector("input[type=search]"); if (field) field.focus(); event.preventDefault(); },
    t: () => { const { name, values, options } = here(); if (name === "rollout") location.hash = route("tokens", ...values, { attempt: options.attempt }); },
    w: written,
    "?": () => dialog.showModal(),
  };
  if (actions[event.key]) actions[event.key]();
}

function clicked(event) {
  const row = event.target.closest("[data-open]");
  if (!row) return;
  if (event.target.closest("a")) rows().forEach((each) => each.classList.toggle("at", each === row));
  if (event.target.closest("a, button, input, summary") || String(getSelection())) return;
  mark(row, "nearest");
  location.hash = row.dataset.open;
}

function theme(name) {
  if (name) document.documentElement.dataset.theme = name;
  dispatchEvent(new Event("theme"));
}

// What was said as we show it, or just as it was written.
function written(choose = !("written" in document.documentElement.dataset)) {
  const root = document.documentElement;
  if (choose) root.dataset.written = "";
  else delete root.dataset.written;
  document.getElementById("written").setAttribute("aria-pressed", String(choose));
  store("written", choose ? "1" : "");
}

function store(name, value) {
  try { localStorage.setItem(name, value); } catch { /* a file has no storage */ }
}

function stored(name) {
  try { return localStorage.getItem(name); } catch { return null; }
}

document.getElementById("theme").addEventListener("click", () => {
  const dark = getComputedStyle(document.documentElement).getPropertyValue("--dark").trim() === "1";
  store("theme", dark ? "light" : "dark");
  theme(dark ? "light" : "dark");
});
document.getElementById("written").addEventListener("click", () => written());
document.getElementById("help").addEventListener("click", () => document.getElementById("keys").showModal());
document.getElementById("skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
document.addEventListener("keydown", typed);
main.addEventListener("click", clicked);
addEventListener("hashchange", show);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme(""));
theme(stored("theme") || "");
written(stored("written") === "1");
show();
