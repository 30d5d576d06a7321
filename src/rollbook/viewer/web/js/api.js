// What the page knows comes from here: from the server it was served by, or from the data in an exported file.

import { exact } from "./json.js";
import { sealed, sealedMedia } from "./sealed.js";

export const exported = document.getElementById("rollbook-data") !== null;

export async function get(name, given = {}) {
  if (exported) return sealed(name, given);
  const response = await fetch(`api/${name}?${query(given)}`, { credentials: "same-origin" });
  const body = parsed(await response.text());
  if (!body) throw new Error(`the server answered ${response.status}: this request is not possible (is the address too long?)`);
  if (!response.ok) throw new Error(body.error || `the server answered ${response.status}`);
  return body;
}

// The address of a stored image or sound; of an exported file its data, if it is there.
export function mediaAddress(run, name) {
  return exported ? sealedMedia(name) : `api/media?${query({ run, name })}`;
}

function parsed(text) {
  try { return exact(text); } catch { return null; }
}

// Calls `told` with every event, and `lost` while the server does not answer, until the returned function is called.
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
