// SPDX-License-Identifier: Apache-2.0
// The views that are lists: devices, requests, allocations, operations, pools.
import { list, part, requests } from "./api.js";
import { at, badge, bar, because, el, link, said, table, time, uuid } from "./dom.js";

const NEWEST = { sort_key: "id", sort_dir: "desc" };

function pager(view, query, next) {
  const { marker, ...rest } = query;
  return el("p", { class: "pager" },
    marker ? el("a", { href: at(view, rest) }, "First page") : null, " ",
    next ? el("a", { href: at(view, { ...rest, marker: next }) }, "Next page") : null);
}

export const paged = (view, query, show) => ({ rows, next }) => [show(rows), pager(view, query, next)];

export const more = (next, looked) => (next
  ? el("p", {}, looked ? `Only the first ${looked} were looked at.` : "There are more.") : null);

export const condition = (device) => [
  because(device.missing ? "missing" : device.health, device.health_reason),
  device.status === "enabled" ? null : [" ", because(device.status, device.disabled_reason)],
  device.tainted ? [" ", because("tainted", device.taint_reason)] : null,
].flat(2);

export const deviceTable = (rows) => table("Devices", [
  ["Device", (row) => link(row.address, "device", { uuid: row.uuid })],
  ["Host", (row) => link(row.hostname, "devices", { hostname: row.hostname })],
  ["Type", (row) => said(row.type)],
  ["Vendor", (row) => said(row.vendor)],
  ["Model", (row) => said(row.model)],
  ["Condition", condition],
], rows);

export const requestTable = (rows) => table("Requests", [
  ["Request", (row) => uuid(row.uuid)],
  ["State", (row) => because(row.state, row.state_reason)],
  ["Profile", (row) => said(row.device_profile_name)],
  ["Host", (row) => said(row.hostname)],
  ["Instance", (row) => uuid(row.instance_uuid)],
  ["Project", (row) => said(row.project_id)],
  ["Health", (row) => (row.health ? badge(row.health) : said(null))],
  ["Made (UTC)", (row) => time(row.created_at)],
], rows);

export const allocationTable = (rows) => table("Allocations", [
  ["Consumer", (row) => [said(row.consumer.type), " ", said(row.consumer.name ?? row.uuid)]],
  ["State", (row) => because(row.state, row.state_reason)],
  ["Hosts", (row) => said(row.hosts.join(", "))],
  ["Accelerators", (row) => String(row.accelerators.length)],
  ["Project", (row) => said(row.project_id)],
  ["Made (UTC)", (row) => time(row.created_at)],
  ["Lease ends (UTC)", (row) => time(row.lease_ends_at)],
], rows);

export const operationTable = (rows) => table("Operations", [
  ["Deployable", (row) => link(row.deployable_uuid, "device", { deployable: row.deployable_uuid })],
  ["State", (row) => because(row.state, row.error)],
  ["Program", (row) => said(row.image_name ?? row.image_uuid ?? row.function_name
    ?? row.function_id)],
  ["Asked by", (row) => said(row.asked_by)],
  ["Last step", (row) => said(row.history.at(-1)?.text)],
  ["Asked (UTC)", (row) => time(row.created_at)],
  ["Ended (UTC)", (row) => time(row.ended_at)],
], rows);

export const poolTable = (rows) => table("Pools", [
  ["Pool", (row) => said(row.name)],
  ["Function", (row) => said(row.function_id)],
  ["Slots", (row) => bar(row.name, [
    ["in use", row.used, "used"],
    ["ready", row.ready, "free"],
    ["being programmed", row.pending, "busy"],
    ["missing", Math.max(0, row.wanted - row.ready - row.pending), "out"],
  ])],
  ["Wanted free", (row) => String(row.wanted)],
  ["Devices", (row) => `${row.devices} of at most ${row.max_devices}`],
  ["Reason", (row) => said(row.reason)],
], rows);

export const devices = {
  name: "Devices",
  filters: [
    ["hostname", "Host"], ["vendor", "Vendor"], ["model", "Model"],
    ["type", "Type", ["AICHIP", "FPGA", "GPU", "MDEV", "NIC", "NVME", "PCI", "QAT", "SSD"]],
    ["health", "Health", ["healthy", "unhealthy"]],
    ["status", "Status", ["enabled", "maintaining"]],
    ["missing", "Missing", ["true", "false"]],
  ],
  load: (query) => [part("Found", list("devices", query), paged("devices", query, deviceTable))],
};

export const asked = {
  name: "Requests",
  filters: [
    ["state", "State", ["Initial", "BindStarted", "Bound", "BindFailed", "Unbound", "Deleting"]],
    ["hostname", "Host"], ["device_profile_name", "Profile"], ["instance", "Instance"],
    ["project_id", "Project"],
  ],
  load: (query) => [part("Found, newest first", requests({ ...NEWEST, ...query }),
    paged("requests", query, requestTable))],
};

export const allocations = {
  name: "Allocations",
  filters: [
    ["state", "State", ["Claiming", "Binding", "Active", "Failing", "Failed", "Releasing"]],
    ["consumer_type", "Consumer type"], ["consumer_name", "Consumer name"],
    ["project_id", "Project"],
  ],
  load: (query) => [part("Found, newest first", list("allocations", { ...NEWEST, ...query }),
    paged("allocations", query, allocationTable))],
};

async function running() {
  const states = ["queued", "reserving", "writing"];
  const found = await Promise.all(states.map((state) => list("operations", { state })));
  return { rows: found.flatMap((each) => each.rows), next: found.some((each) => each.next) };
}

export const operations = {
  name: "Operations",
  filters: [],
  load: (query) => [
    part("In progress", running(), ({ rows, next }) => [operationTable(rows), more(next)]),
    part("All, newest first", list("operations", { ...NEWEST, ...query }),
      paged("operations", query, operationTable)),
  ],
};

export const pools = {
  name: "Pools",
  filters: [["name", "Name"], ["function_id", "Function"]],
  load: (query) => [part("Found", list("function_pools", query),
    paged("pools", query, poolTable))],
};
