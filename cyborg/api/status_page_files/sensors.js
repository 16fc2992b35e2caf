// SPDX-License-Identifier: Apache-2.0
// The sensors of one card: each reading of now, with a line through those that the page has seen.
import { el, facts, svg } from "./dom.js";

const MIB = 2 ** 20;
const KNOWN = {
  temperature_celsius: ["Temperature", " °C"],
  power_watts: ["Power", " W"],
  memory_used_bytes: ["Memory in use", " MiB", MIB],
  ecc_correctable_errors: ["Corrected ECC errors", ""],
  ecc_uncorrectable_errors: ["Uncorrectable ECC errors", ""],
};
// An hour, as the page is read every ten seconds.
const MOST = 360;
let kept = { uuid: null, seen: {} };

// What is not read any more has no past either.
function remember({ uuid, readings }) {
  const before = kept.uuid === uuid ? kept.seen : {};
  const now = Date.now();
  const seen = Object.entries(readings ?? {}).map(([name, value]) =>
    [name, [...(before[name] ?? []), { at: now, value }].slice(-MOST)]);
  kept = { uuid, seen: Object.fromEntries(seen) };
}

function spark(label, points, text) {
  const values = points.map(({ value }) => value);
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const [first, last] = [points[0].at, points.at(-1).at];
  const place = ({ at, value }) => [
    last > first ? (100 * (at - first)) / (last - first) : 0,
    most > least ? 22 - (20 * (value - least)) / (most - least) : 12];
  const placed = points.map(place);
  // One value alone is a level line.
  if (last === first) placed.push([100, placed.at(-1)[1]]);
  const range = most > least ? `, lowest ${text(least)}, highest ${text(most)}` : "";
  const line = placed.map((each) => each.map((number) => number.toFixed(1)).join()).join(" ");
  return el("span", { class: "reading" },
    el("span", {}, text(values.at(-1)), el("small", {}, range)),
    svg("svg", { viewBox: "0 0 100 24", preserveAspectRatio: "none", role: "img", class: "spark",
      "aria-label": `${label}: ${text(values.at(-1))}${range}` },
    svg("polyline", { points: line })));
}

export function sensors(device) {
  remember(device);
  const lines = Object.entries(kept.seen).map(([name, points]) => {
    const [label, unit, per = 1] = KNOWN[name] ?? [name.replaceAll("_", " "), ""];
    const text = (value) => `${Number((value / per).toFixed(1))}${unit}`;
    return [label, spark(label, points, text)];
  });
  return lines.length ? facts(lines) : null;
}
