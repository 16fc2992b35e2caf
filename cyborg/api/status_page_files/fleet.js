// SPDX-License-Identifier: Apache-2.0
// The fleet at a glance: by class and by host, how much there is, and how much of it is free.
import { PAGE, get, nextOf, part } from "./api.js";
import { bar, link, said, table } from "./dom.js";
import { paged } from "./lists.js";

const amounts = (row) => bar(`${row.resource_class} ${row.hostname ?? "in all"}`, [
  ["in use", row.used, "used"],
  ["free", row.free, "free"],
  ["being made ready", row.preparing, "busy"],
  ["out of service", row.out_of_service, "out"],
]);

const COLUMNS = [
  ["Class", (row) => said(row.resource_class)],
  ["Total", (row) => String(row.total)],
  ["Accelerators", amounts],
];
const OF_HOST = ["Host", (row) => link(row.hostname, "devices", { hostname: row.hostname })];

const totals = ({ totals: rows }) => table("Classes", COLUMNS, rows);
const hosts = (rows) => table("Hosts", [OF_HOST, ...COLUMNS], rows);

export const fleet = {
  name: "Fleet",
  filters: [["hostname", "Host"], ["resource_class", "Class"]],
  load: (query) => {
    const summary = get("summary", { limit: PAGE, ...query });
    const page = summary.then((body) => ({ rows: body.summary, next: nextOf(body, "summary") }));
    return [part("By class", summary, totals), part("By host", page, paged("", query, hosts))];
  },
};
