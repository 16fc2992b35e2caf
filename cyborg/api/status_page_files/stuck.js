// SPDX-License-Identifier: Apache-2.0
// What does not go on by itself, and what an operator does about it.
import { list, part, requests } from "./api.js";
import { el, link, place, said, section, table, time, uuid } from "./dom.js";
import { allocationTable, deviceTable, more, poolTable, requestTable } from "./lists.js";

const remedy = (sentence, command) =>
  el("p", { class: "remedy" }, sentence, command ? [" ", el("code", {}, command)] : null);

// A reading, how it is shown, and what to do; nothing is shown where nothing is found for certain.
function kind(heading, reading, show, sentence, command) {
  return part(heading, reading, ({ rows, next, looked }) => (rows.length || next
    ? [rows.length ? show(rows) : null, rows.length ? remedy(sentence, command) : null,
      more(next, looked)] : null));
}

const serviceTable = (rows) => table("Services", [
  ["Service", (row) => said(row.binary)],
  ["Host", (row) => link(row.host, "devices", { hostname: row.hostname ?? row.host })],
  ["Last sign of life (UTC)", (row) => time(row.last_seen)],
  ["Errors", (row) => Object.entries(row.driver_errors).map(([driver, text]) =>
    el("p", {}, said(driver), ": ", said(text)))],
], rows);

const handleTable = (rows) => table("Attach handles", [
  ["Device", (row) => link(row.device_uuid, "device", { uuid: row.device_uuid })],
  ["Host", (row) => said(row.hostname)],
  ["Attach handle", (row) => place(row.attach_handle_info)],
  ["Request", (row) => uuid(row.arq_uuid)],
  ["Reason", (row) => said(row.state_reason)],
], rows);

// The API does not narrow these lists so: the longest page is read, and narrowed here.
const only = async (path, query, condition) => {
  const { rows, next } = await list(path, { ...query, limit: 1000 });
  return { rows: rows.filter(condition), next, looked: rows.length };
};

const kinds = () => [
  kind("Services that are down", list("services", { state: "down" }), serviceTable,
    "Start the service on its host. If the host is gone for good, remove its record:",
    "openstack accelerator service delete SERVICE"),
  kind("Drivers with errors",
    only("services", { binary: "cyborg-agent" },
      (row) => Object.keys(row.driver_errors).length), serviceTable,
    "Mend on the host what the error names; the agent looks again by itself."),
  kind("Unhealthy devices", list("devices", { health: "unhealthy" }), deviceTable,
    "Nobody new is given the device, and whoever has it keeps it. Repair it, or first:",
    "openstack accelerator device set --disable --reason WHY DEVICE"),
  kind("Devices that are gone from their host", list("devices", { missing: true }), deviceTable,
    "Put the card back. If it is gone for good, remove its record:",
    "openstack accelerator device delete DEVICE"),
  kind("Attach handles that could not be cleaned", list("attach_handles",
    { state: "clean_failed" }), handleTable,
    "Mend what the reason names; Cyborg tries again by itself. To give the handle out as it is:",
    "openstack accelerator arq release REQUEST --force"),
  kind("Requests whose bind failed", requests({ state: "BindFailed" }), requestTable,
    "The reason says what is missing. Delete the instance, or have it bound again."),
  kind("Requests that wait for their host to be deleted", requests({ state: "Deleting" }),
    requestTable, "Start the agent of the host. If it never comes back:",
    "openstack accelerator arq release REQUEST --force"),
  kind("Allocations that failed", list("allocations", { state: "Failed" }), allocationTable,
    "The reason says what is missing. Free it, and ask again, or delete the allocation:",
    "openstack accelerator allocation delete CONSUMER"),
  kind("Pools that lack slots", only("function_pools", {}, (row) => row.reason), poolTable,
    "The reason says what the pool waits for."),
];

export const stuck = {
  name: "Stuck",
  filters: [],
  load: async () => {
    const found = (await Promise.all(kinds())).filter(Boolean);
    return found.length ? found : [section("Nothing is stuck.")];
  },
};
