// SPDX-License-Identifier: Apache-2.0
// What the page is made of. Whatever comes from the API becomes text here, and never markup.

const LONGEST = 400;

export const el = (tag, attributes = {}, ...children) =>
  fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

// Text of others stands apart, so that its direction does not reach what is beside it.
export function said(value) {
  if (value === null || value === undefined || value === "") return el("span", {}, "–");
  const text = String(value);
  const rest = text.length - LONGEST;
  const cut = rest > 0 ? `${text.slice(0, LONGEST)}… (${rest} more characters)` : text;
  return el("bdi", {}, cut);
}

export const time = (value) =>
  value ? el("time", { datetime: value }, value.slice(0, 19).replace("T", " ")) : said(null);

export const at = (view, query = {}) => `#/${view}?${new URLSearchParams(query)}`;
export const link = (text, view, query) => el("a", { href: at(view, query) }, said(text));
export const uuid = (value) => (value ? el("code", {}, value) : said(null));

// Where an attach handle is: a PCI address, or whatever its driver says.
export function place(info) {
  const { domain, bus, device, function: number } = info;
  const isPci = [domain, bus, device, number].every((each) => each !== undefined);
  return said(isPci ? `${domain}:${bus}:${device.padStart(2, "0")}.${number}` : Object.values(info).join(" "));
}

const TONES = {
  good: "up enabled healthy Bound Active succeeded free",
  busy: "BindStarted Claiming Binding queued reserving writing cleaning Releasing Deleting in_use",
  bad: "down unhealthy missing BindFailed Failed Failing failed clean_failed unavailable",
};

export function badge(state) {
  const tone = Object.keys(TONES).find((name) => TONES[name].split(" ").includes(state));
  return el("span", { class: `badge ${tone ?? ""}` }, String(state).replaceAll("_", " "));
}

export const because = (state, reason) => [badge(state), ...(reason ? [" ", said(reason)] : [])];

export function section(heading, ...children) {
  return el("section", {}, el("h2", {}, heading), ...children);
}

// Columns are pairs: a heading, and what a row has below it.
export function table(caption, columns, rows, none = "There are none.") {
  if (!rows.length) return el("p", { class: "none" }, none);
  const head = columns.map(([heading]) => el("th", { scope: "col" }, heading));
  const line = (row) => columns.map(([name, show]) => el("td", { "data-name": name }, show(row)));
  return el("table", {}, el("caption", {}, caption),
    el("thead", {}, el("tr", {}, head)),
    el("tbody", {}, rows.map((row) => el("tr", {}, line(row)))));
}

export function facts(pairs) {
  const known = pairs.filter(([, value]) => value !== null && value !== undefined);
  return el("dl", {}, known.map(([name, value]) =>
    el("div", {}, el("dt", {}, name), el("dd", {}, value instanceof Node ? value : said(value)))));
}

// One bar; each part is a name, its amount and its colour's class.
export function bar(label, parts) {
  const shown = parts.filter(([, amount]) => amount > 0);
  const words = parts.map(([name, amount]) => `${amount} ${name}`).join(", ");
  const pieces = shown.map(([, amount, colour]) => {
    const piece = el("span", { class: colour });
    piece.style.flexGrow = amount;
    return piece;
  });
  return el("div", { class: "measure" },
    el("div", { class: "bar", role: "img", "aria-label": `${label}: ${words}` }, pieces),
    el("p", { class: "amounts" }, shown.length ? shown.map(([name, amount, colour]) =>
      el("span", {}, el("i", { class: colour }), `${amount} ${name}`)) : "nothing"));
}
