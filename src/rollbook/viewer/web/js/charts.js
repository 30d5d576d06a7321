// Charts by uPlot, in the colours of the page, each with its numbers in words for readers who cannot see it.

import { h } from "./dom.js";
import { clock, number } from "./format.js";

const HEIGHT = 190;
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 432000, 864000, 2592000];

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function axis(more = {}) {
  return { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false },
    font: "11px system-ui, sans-serif", size: 38, ...more };
}

function figure(title, words, options, data, under = null) {
  const place = h("div", { class: "plot", role: "img", "aria-label": `${title}: ${words}` });
  const made = h("figure", {}, h("figcaption", {}, title), place, under);
  if (!globalThis.uPlot || !data[0].length) {
    place.append(h("p", { class: "soft" }, "nothing to draw yet"));
    return made;
  }
  let plot = null;
  const draw = () => {
    const width = Math.floor(place.clientWidth);
    if (!width) return;
    if (plot) plot.setSize({ width, height: HEIGHT });
    else plot = new globalThis.uPlot({ width, height: HEIGHT, legend: { show: false }, cursor: { drag: { x: false, y: false } },
      padding: [10, 10, 0, 0], ...options() }, data, place);
  };
  const end = () => {
    if (plot) plot.destroy();
    plot = null;
  };
  const watch = new ResizeObserver(draw);
  watch.observe(place);
  made.recolour = () => { end(); draw(); };
  made.release = () => { watch.disconnect(); end(); };
  return made;
}

addEventListener("theme", () => {
  for (const each of document.querySelectorAll("figure")) if (each.recolour) each.recolour();
});

export function passCurve(points) {
  const column = (name) => points.map((point) => point[name]);
  const words = points.map((point) => `pass@${point.k} ${number(point.pass)}`).join(", ");
  const voted = points.some((point) => point.maj !== null && point.maj !== undefined && point.k > 1);
  const options = () => ({
    scales: { x: { time: false, distr: points.length > 1 ? 3 : 1, log: 2 }, y: { range: [0, 1] } },
    axes: [axis({ values: (_, ticks) => ticks.map((tick) => (points.some((point) => point.k === tick) ? tick : "")), size: 26 }), axis()],
    series: [{}, { stroke: colour("--accent"), width: 2, points: { size: 6, fill: colour("--accent") } },
      { stroke: "transparent", points: { show: false } }, { stroke: "transparent", points: { show: false } },
      { stroke: colour("--second"), width: 1.5, dash: [5, 4], points: { size: 4 } }],
    bands: [{ series: [3, 2], fill: colour("--band") }],
  });
  const data = [column("k"), column("pass"), column("low"), column("high"), voted ? column("maj") : points.map(() => null)];
  return figure(voted ? "pass@k with its 95% band, maj@k dashed" : "pass@k with its 95% band", words, options, data);
}

function bars(size) {
  return globalThis.uPlot ? globalThis.uPlot.paths.bars({ size: [size, Infinity], align: 1, gap: 1 }) : null;
}

export function histogram({ edges, counts }, caption = "") {
  const words = counts.map((count, at) => (count ? `${count} from ${number(edges[at])}` : "")).filter(Boolean).join(", ");
  const options = () => ({
    scales: { x: { time: false, range: [edges[0], edges[edges.length - 1]] }, y: { range: (_, low, high) => [0, (high || 1) * 1.05] } },
    axes: [axis({ size: 26 }), axis({ size: 46 })],
    series: [{}, { stroke: colour("--accent"), fill: colour("--band-strong"), width: 1, paths: bars(1), points: { show: false } }],
  });
  return figure("Rewards of the scored rollouts", words, options, [edges.slice(0, -1), counts.map((each) => each || null)],
    caption ? h("small", { class: "soft" }, caption) : null);
}

// A dot each, from left to right; the one nearest to the pointer is described below the chart.
export function dots(title, { x, y, x_range: across, y_range: up, labels, caption }, { heights = true } = {}) {
  const under = h("small", { class: "soft" }, caption);
  const pointed = (plot) => {
    const { left, top } = plot.cursor;
    const far = (at) => Math.hypot(plot.valToPos(x[at], "x") - left, plot.valToPos(y[at], "y") - top);
    const nearest = left < 0 ? -1 : x.reduce((best, _, at) => (best < 0 || far(at) < far(best) ? at : best), -1);
    under.textContent = nearest >= 0 && far(nearest) < 12 ? labels[nearest] : caption;
  };
  const options = () => ({
    scales: { x: { time: false, range: across }, y: { range: up } },
    axes: [axis({ size: 26 }), axis({ size: 46, show: heights })],
    series: [{}, { stroke: "transparent", paths: () => null, points: { show: true, size: 5, width: 0, fill: colour("--accent") } }],
    hooks: { setCursor: [pointed] },
  });
  return figure(title, caption, options, [x, y], under);
}

export function timeline({ edges, scored, failed, counts, unit }) {
  const words = `${counts[0]} rollouts scored and ${counts[1]} attempts failed`;
  const span = edges[edges.length - 1] - edges[0];
  const options = () => ({
    scales: { x: { range: [edges[0], edges[edges.length - 1]] }, y: { range: (_, low, high) => [0, (high || 1) * 1.05] } },
    axes: [axis({ size: 26, space: 64, incrs: STEPS, values: (_, ticks) => ticks.map((tick) => clock(tick, span)) }), axis({ size: 46 })],
    series: [{}, { stroke: colour("--accent"), fill: colour("--band-strong"), width: 1, paths: bars(1), points: { show: false } },
      { stroke: colour("--bad"), fill: colour("--bad"), width: 1, paths: bars(1), points: { show: false } }],
  });
  return figure(`Rollouts scored, and attempts failed (red), per ${unit}`, words, options, [edges.slice(0, -1), ...[scored, failed].map((each) => each.map((n) => n || null))]);
}
