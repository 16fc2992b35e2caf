// SPDX-License-Identifier: Apache-2.0
// The API, read as any client reads it: what the policy refuses is told in the API's own sentence.
import { el, said, section } from "./dom.js";

const HEADERS = { "OpenStack-API-Version": "accelerator 2.4", Accept: "application/json" };
export const PAGE = 50;
let current = new AbortController();

export class Refused extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

export function cancel() {
  current.abort();
  current = new AbortController();
}

export async function get(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== undefined);
  const answer = await fetch(`v2/${path}?${new URLSearchParams(given)}`,
    { headers: HEADERS, signal: current.signal });
  const body = await answer.json().catch(() => ({}));
  if (answer.ok) return body;
  throw new Refused(answer.status, body.errors?.[0]?.detail ?? `HTTP status ${answer.status}`);
}

// The marker of the page behind this one, if there is one.
export function nextOf(body, key) {
  const next = body[`${key}_links`]?.find((each) => each.rel === "next");
  return next && new URL(next.href).searchParams.get("marker");
}

// One page of a list.
export async function list(path, query = {}, key = path) {
  const body = await get(path, { limit: PAGE, ...query });
  return { rows: body[key], next: nextOf(body, key) };
}

// Requests of all projects, where the caller may see them, or else of the caller's own.
export async function requests(query) {
  try {
    return await list("accelerator_requests", { all_projects: true, ...query }, "arqs");
  } catch (error) {
    if (error.status !== 403) throw error;
    return list("accelerator_requests", query, "arqs");
  }
}

export const refusal = (error) => el("p", { class: "refused" }, said(error.message));

// A part of a view, or null if nothing is to be shown; a refusal is told in the place of the part.
export async function part(heading, reading, show) {
  try {
    const content = show(await reading);
    return content && section(heading, content);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    return section(heading, refusal(error));
  }
}
