// Elements from plain values. Text is always text: nothing in this page ever sets HTML.

export function h(name, given = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(given)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "class") element.className = value;
    else if (key === "data") Object.assign(element.dataset, value);
    else if (key === "vars") for (const [name, each] of Object.entries(value)) element.style.setProperty(name, each);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function link(route, given, ...children) {
  return h("a", { ...given, href: route }, ...children);
}

export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
}

// Draws a place anew if what it shows has changed; folds, focus, the chosen row and how far a table was moved stay.
export function redraw(place, shown, make) {
  const text = JSON.stringify(shown);
  if (place.drawn === text) return;
  const stay = standing(place);
  release(place);
  fill(place, make());
  place.drawn = text;
  stay();
}

// Lets go of what charts hold on to.
export function release(place) {
  for (const each of place.querySelectorAll("figure")) if (each.release) each.release();
}

function standing(place) {
  const folds = new Map(alike(place, "details").map(([name, each]) => [name, each.open]));
  const moved = new Map(alike(place, ".scroll, .code").map(([name, each]) => [name, [each.scrollLeft, each.scrollTop]]));
  const at = place.querySelector(".at");
  const active = document.activeElement;
  const focused = place.contains(active) ? alike(place, active.tagName).find(([, each]) => each === active) : null;
  return () => {
    for (const [name, each] of alike(place, "details")) if (folds.has(name)) each.open = folds.get(name);
    for (const [name, each] of alike(place, ".scroll, .code")) if (moved.has(name)) [each.scrollLeft, each.scrollTop] = moved.get(name);
    if (at) for (const each of place.querySelectorAll("[data-open]")) each.classList.toggle("at", each.dataset.open === at.dataset.open);
    const again = focused && alike(place, active.tagName).find(([name]) => name === focused[0]);
    if (!again) return;
    if (active.getAttribute("tabindex") === "-1") again[1].setAttribute("tabindex", "-1");
    again[1].focus({ preventScroll: true });
  };
}

// Elements with names that they keep when they are made again: what they lead to or say, and which of such they are.
function alike(place, kind) {
  const met = new Map();
  return [...place.querySelectorAll(kind)].map((each) => {
    const said = each.dataset.open || each.getAttribute("href") || each.getAttribute("aria-label") || (each.querySelector("summary") || {}).textContent || "";
    met.set(said, (met.get(said) || 0) + 1);
    return [`${met.get(said)} ${said}`, each];
  });
}

export function section(title, ...children) {
  return h("section", { "aria-label": title }, h("h2", {}, title), ...children);
}

export function table(label, heads, rows, kind = "") {
  const cells = (row) => row.map((cell, at) => h(at ? "td" : "th", at ? {} : { scope: "row" }, cell));
  return h("div", { class: "scroll" }, h("table", { class: kind, "aria-label": label },
    h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, cells(row))))));
}

export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

export function copyButton(text) {
  const button = h("button", { type: "button", class: "copy" }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select and copy by hand";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  return button;
}
