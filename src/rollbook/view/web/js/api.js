// What the page knows comes from here: from the server it was served by, or from the data in an exported file.

import { sealed } from "./sealed.js";

export const exported = document.getElementById("rollbook-data") !== null;

export async function get(name, given = {}) {
  if (exported) return sealed(name, given);
  const response = await fetch(`api/${name}?${query(given)}`, { credentials: "same-origin" });
  const body = await response.json();
  if (!response.ok) throw new Error(body.error || `the server answered ${response.status}`);
  return body;
}

// Calls `told` with every event, and `lost` while nobody answers, until the function it gives back is called.
export function stream(name, given, told, lost = () => {}) {
  if (exported) return () => {};
  const source = new EventSource(`api/${name}?${query(given)}`);
  source.onerror = lost;
  source.onmessage = (event) => told(JSON.parse(event.data));
  return () => source.close();
}

function query(given) {
  const kept = Object.entries(given).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return new URLSearchParams(kept).toString();
}
