// Keeps a page fresh: the server says that something has changed, and the page asks for what it shows.

import { stream } from "./api.js";

const PAUSE_MS = 700;

export function follow(run, changed) {
  const sign = document.getElementById("live");
  let first = true;
  let busy = false;
  let again = false;
  const refresh = async () => {
    if (busy) { again = true; return; }
    busy = true;
    try {
      await changed();
    } catch { /* the next event tries again */ }
    setTimeout(() => { busy = false; if (again) { again = false; refresh(); } }, PAUSE_MS);
  };
  const stop = stream("live", run ? { run } : {}, (event) => {
    if (event.error) { stop(); return; }
    sign.className = "";
    sign.textContent = event.state === "running" ? "live" : "";
    if (!first || event.state === "running") refresh();
    first = false;
  }, () => {
    sign.className = "lost";
    sign.textContent = "no answer: is `rollbook view` still running?";
  });
  return () => { stop(); sign.textContent = ""; };
}
