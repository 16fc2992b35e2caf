// SPDX-License-Identifier: Apache-2.0
// One card: what it is, where it is, what it runs, who has it, and what has happened to it.
import { get, list, part } from "./api.js";
import { badge, bar, because, el, facts, link, place, said, svg, table, time, uuid } from "./dom.js";
import { condition, more } from "./lists.js";
import { sensors } from "./sensors.js";

const WIDTH = 360;
const SQUARE = 12;
const PER_ROW = 27;
const COLOURS = { in_use: "used", free: "free", cleaning: "busy" };
const colour = ({ state }) => COLOURS[state] ?? "out";
const MOST = 1000;

const words = (text, x, y, most = 46) =>
  svg("text", { x, y }, text.length > most ? `${text.slice(0, most - 1)}…` : text);
const box = (x, y, width, height) => svg("rect", { x, y, width, height, rx: 4, class: "box" });
const line = (x1, y1, x2, y2) => svg("line", { x1, y1, x2, y2, class: "line" });

// What the facts of the deployables say about the card as a whole.
function fact(deployables, name) {
  return deployables.map((each) => each.attributes[name]).find((value) => value !== undefined);
}

function drawPart(deployable, handles, y) {
  const own = handles.filter((each) => each.deployable_uuid === deployable.uuid);
  const height = 26 + SQUARE * Math.ceil(own.length / PER_ROW) + (own.length ? 6 : 0);
  const squares = own.map((each, number) => svg("rect", {
    x: 16 + SQUARE * (number % PER_ROW), y: y + 24 + SQUARE * Math.floor(number / PER_ROW),
    width: SQUARE - 3, height: SQUARE - 3, class: colour(each),
  }));
  return [height, [box(8, y, WIDTH - 16, height), words(deployable.name, 16, y + 17), squares]];
}

// Host, slot, card, the cards that it has links to, and its deployables with their attach handles.
function draw(device, deployables, handles) {
  const numa = fact(deployables, "numa_node");
  const peers = String(fact(deployables, "nvlink_peers") ?? "").split(" ").filter(Boolean);
  const where = numa === undefined ? device.hostname : `${device.hostname}, NUMA node ${numa}`;
  const head = [box(0, 0, WIDTH, 28), words(where, 8, 18), line(40, 28, 40, 66),
    words(String(fact(deployables, "link") ?? ""), 50, 51), box(0, 66, 190, 28),
    words(`${device.type} ${device.address}`, 8, 84, 26)];
  const linked = peers.map((peer, number) => [line(190, 80, 232, 80 + 24 * number),
    box(232, 68 + 24 * number, 128, 22), words(peer, 240, 84 + 24 * number, 17)]);
  let y = Math.max(104, 80 + 24 * peers.length);
  const parts = deployables.map((each) => {
    const [height, drawn] = drawPart(each, handles, y);
    y += height + 6;
    return drawn;
  });
  const about = `${device.type} at ${device.address} on ${where}: ${deployables.length} deployables, `
    + `${handles.length} attach handles, links to ${peers.length} other cards`;
  const amount = (name) => handles.filter((each) => colour(each) === name).length;
  return [svg("svg", { viewBox: `-1 -1 ${WIDTH + 2} ${y + 2}`, role: "img", class: "drawing",
    "aria-label": about }, [head, linked, parts].flat(4)),
  bar("Attach handles", [["in use", amount("used"), "used"], ["free", amount("free"), "free"],
    ["being cleaned", amount("busy"), "busy"], ["out of service", amount("out"), "out"]])];
}

function whatItIs(device) {
  return facts([["Host", link(device.hostname, "devices", { hostname: device.hostname })],
    ["Address", device.address], ["Type", device.type], ["Vendor", device.vendor],
    ["Model", device.model], ["Condition", el("span", {}, condition(device))],
    ["UUID", uuid(device.uuid)], ["Facts are those of", device.managed_by],
    ["Board", device.std_board_info], ["Board, by its vendor", device.vendor_board_info],
    ["First seen (UTC)", time(device.created_at)]]);
}

const runs = ({ program }) => (program
  ? [said(program.function_name ?? program.function_id ?? program.image_uuid),
    program.in_doubt ? [" ", badge("in doubt")] : [],
    program.programmed_at ? [" since ", time(program.programmed_at)] : []].flat()
  : said(null));

const deployableTable = (rows) => table("Deployables", [
  ["Deployable", (row) => said(row.name)],
  ["Class", (row) => said(row.attributes.rc)],
  ["Accelerators", (row) => String(row.num_accelerators)],
  ["Runs", runs],
  ["Withheld because", (row) => said(row.withheld_reason)],
  ["Attributes", (row) => el("details", {}, el("summary", {}, "Show"),
    facts(Object.entries(row.attributes)))],
], rows);

const handleTable = (rows) => table("Attach handles", [
  ["Attach handle", (row) => place(row.attach_handle_info)],
  ["State", (row) => because(row.state, row.state_reason)],
  ["Class", (row) => said(row.resource_class)],
  ["Project", (row) => said(row.project_id)],
  ["Instance", (row) => uuid(row.instance_uuid)],
  ["Request", (row) => uuid(row.arq_uuid)],
], rows);

// A line for each entry, from when it began to when it ended, and the words for it.
function story(entries) {
  if (!entries.length) return el("p", { class: "none" }, "Nothing is known.");
  const begun = (each) => Date.parse(each.started_at);
  const ended = (each) => (each.ended_at ? Date.parse(each.ended_at) : Date.now());
  const first = Math.min(...entries.map(begun));
  const whole = Math.max(1, Math.max(...entries.map(ended)) - first);
  const span = (each) => svg("svg", { viewBox: "0 0 100 4", preserveAspectRatio: "none",
    "aria-hidden": "true", class: "span" }, svg("rect", {
    x: (98 * (begun(each) - first)) / whole, y: 0, height: 4, class: each.kind,
    width: 2 + (98 * (ended(each) - begun(each))) / whole }));
  return el("ol", { class: "story" }, entries.map((each) => el("li", {},
    span(each), el("p", {}, badge(each.kind), " ", time(each.started_at), " to ",
      each.ended_at ? time(each.ended_at) : "now",
      each.project_id ? [", project ", said(each.project_id)] : null,
      each.instance_uuid ? [", instance ", uuid(each.instance_uuid)] : null,
      each.function_id ? [", function ", said(each.function_id)] : null,
      each.actor ? [", by ", said(each.actor)] : null,
      each.reason ? [": ", said(each.reason)] : null))));
}

async function load(query) {
  const id = query.uuid ?? (await get(`deployables/${query.deployable}`)).device_uuid;
  const own = { device_uuid: id, limit: MOST };
  const device = get(`devices/${id}`);
  const deployables = list("deployables", own).then(({ rows }) => rows);
  const handles = list("attach_handles", own);
  const past = list(`devices/${id}/history`, { sort_key: "started_at", sort_dir: "desc" },
    "history");
  const parts = await Promise.all([
    part("Facts", device, whatItIs),
    part("Sensors", device, sensors),
    part("Place and links", Promise.all([device, deployables, handles]),
      ([its, parts, { rows, next }]) => [...draw(its, parts, rows), more(next, rows.length)]),
    part("Deployables and their programs", deployables, deployableTable),
    part("Attach handles and their users", handles,
      ({ rows, next }) => [handleTable(rows), more(next)]),
    part("History, newest first", past, ({ rows }) => story(rows)),
  ]);
  return parts.filter(Boolean);
}

export const card = { name: "Card", filters: [], load };
