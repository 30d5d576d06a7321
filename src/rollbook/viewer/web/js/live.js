// Keeps a page fresh: the server says that something has changed, and the page asks for what it shows.

import { stream } from "./api.js";

const PAUSE_MS = 700;

// What somebody is about to copy is not drawn anew under the hand.
function selecting() {
  const selection = getSelection();
  return selection.type === "Range" && document.getElementById("main").contains(selection.anchorNode);
}

export function follow(run, changed) {
  const sign = document.getElementById("live");
  let first = true;
  let busy = false;
  let again = false;
  const refresh = async () => {
    if (busy || selecting()) { again = true; return; }
    busy = true;
    try {
      await changed();
    } catch { /* the next event tries again */ }
    setTimeout(() => { busy = false; caughtUp(); }, PAUSE_MS);
  };
  const caughtUp = () => {
    if (!again || busy || selecting()) return;
    again = false;
    refresh();
  };
  let stop = () => {};
  const listen = () => {
    stop();
    first = true;
    stop = stream("live", run ? { run } : {}, heard, () => {
      sign.className = "lost";
      sign.textContent = "no answer: is `rollbook view` still running?";
    });
  };
  const heard = (event) => {
    if (event.error) {
      stop();
      sign.className = "lost";
      sign.textContent = event.error;
      return;
    }
    sign.className = "";
    sign.textContent = event.state === "running" ? "live" : "";
    if (!first || event.state === "running") refresh();
    first = false;
  };
  // A browser has six connections for all pages of one address: a hidden page gives its connection back.
  const looked = () => {
    if (document.hidden) { stop(); return; }
    refresh();
    listen();
  };
  document.addEventListener("visibilitychange", looked);
  document.addEventListener("selectionchange", caughtUp);
  if (!document.hidden) listen();
  return () => {
    document.removeEventListener("visibilitychange", looked);
    document.removeEventListener("selectionchange", caughtUp);
    stop();
    sign.textContent = "";
  };
}
