// Finds the page for an address, shows it, keeps it fresh, and listens to the keyboard.

import { exported } from "./api.js";
import { fill, h, link } from "./dom.js";
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
let page = null;
let turn = 0;

async function show() {
  const mine = ++turn;
  if (page && page.leave) page.leave();
  page = null;
  const { name, values, options } = here();
  main.setAttribute("aria-busy", "true");
  trail(name, values);
  const place = h("div", { class: `page page-${name}` });
  try {
    const made = await PAGES[name](place, values, options);
    if (mine !== turn) { if (made && made.leave) made.leave(); return; }
    page = made || {};
  } catch (error) {
    if (mine !== turn) return;
    fill(place, h("p", { class: "error", role: "alert" }, error.message));
    page = {};
  }
  fill(main, exported ? h("p", { class: "note" }, `An exported file. ${left()}`) : null, place);
  main.setAttribute("aria-busy", "false");
  scrollTo(0, 0);
}

function trail(name, values) {
  const [first, second, third] = values;
  const steps = [link(route("runs"), { class: "home" }, h("span", { class: "logo", "aria-hidden": "true" }), "Rollbook")];
  if (name === "compare" || name === "pair") steps.push(link(route("compare", first, second), {}, `${first} · ${second}`));
  else if (first !== undefined) steps.push(link(route("run", first), {}, first));
  if (name === "pair") steps.push(h("span", {}, third));
  else if (second !== undefined && name !== "compare") steps.push(link(route("task", first, second), {}, second));
  if (name === "rollout" || name === "tokens") steps.push(link(route("rollout", first, second, third), {}, `#${third}`));
  if (name === "tokens") steps.push(h("span", {}, "tokens"));
  steps[steps.length - 1].setAttribute("aria-current", "page");
  fill(document.getElementById("trail"), h("ol", {}, steps.map((step) => h("li", {}, step))));
  document.title = [...values].reverse().concat("Rollbook").join(" · ");
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
  if (!next) return undefined;
  all.forEach((row) => row.classList.toggle("at", row === next));
  next.setAttribute("tabindex", "-1");
  next.focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
  return undefined;
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
    Escape: () => { location.hash = up(); },
    "/": () => { const field = main.querySelector("input[type=search]"); if (field) field.focus(); event.preventDefault(); },
    t: () => { const { name, values } = here(); if (name === "rollout") location.hash = route("tokens", ...values); },
    "?": () => dialog.showModal(),
  };
  if (actions[event.key]) actions[event.key]();
}

function clicked(event) {
  const row = event.target.closest("[data-open]");
  if (row && !event.target.closest("a, button, input, summary") && !String(getSelection())) location.hash = row.dataset.open;
}

function theme(name) {
  if (name) document.documentElement.dataset.theme = name;
  dispatchEvent(new Event("theme"));
}

function stored(name) {
  try { return localStorage.getItem(name); } catch { return null; }
}

document.getElementById("theme").addEventListener("click", () => {
  const dark = getComputedStyle(document.documentElement).getPropertyValue("--dark").trim() === "1";
  try { localStorage.setItem("theme", dark ? "light" : "dark"); } catch { /* a file has no storage */ }
  theme(dark ? "light" : "dark");
});
document.getElementById("help").addEventListener("click", () => document.getElementById("keys").showModal());
document.getElementById("skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
document.addEventListener("keydown", typed);
main.addEventListener("click", clicked);
addEventListener("hashchange", show);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme(""));
if (location.search) history.replaceState(null, "", location.pathname + location.hash);  // the token is in the cookie now
theme(stored("theme") || "");
show();
