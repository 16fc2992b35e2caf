// SPDX-License-Identifier: Apache-2.0
// Which view is shown, by the address; and that it is read again by itself while somebody looks.
import { Refused, cancel, refusal } from "./api.js";
import { card } from "./card.js";
import { at, el, said } from "./dom.js";
import { fleet } from "./fleet.js";
import { allocations, asked, devices, operations, pools } from "./lists.js";
import { stuck } from "./stuck.js";

const VIEWS = { "": fleet, devices, device: card, requests: asked, allocations, operations, pools,
  stuck };
const PAUSE = 10_000;

const by = (id) => document.getElementById(id);
let timer;
let asking = 0;
let shown = [];
let isPaused = false;

function where() {
  const [name, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const known = Object.hasOwn(VIEWS, name) ? name : "";
  return { name: known, view: VIEWS[known], query: Object.fromEntries(new URLSearchParams(query)) };
}

function input([name, label, choices], query) {
  const options = ["", ...(choices ?? [])].map((each) =>
    el("option", { value: each, selected: query[name] === each ? "" : null }, each || "any"));
  const field = choices ? el("select", { name }, options)
    : el("input", { name, type: "search", value: query[name] ?? "", autocomplete: "off" });
  return el("label", {}, label, field);
}

function showFrame() {
  const { name, view, query } = where();
  by("views").replaceChildren(...Object.entries(VIEWS).filter(([, each]) => each !== card).map(
    ([path, each]) => el("a", { href: at(path), "aria-current": path === name ? "page" : null },
      each.name)));
  by("title").textContent = view.name;
  document.title = `${view.name} – Cyborg`;
  by("filters").hidden = !view.filters.length;
  by("filters").replaceChildren(...view.filters.map((each) => input(each, query)),
    el("button", {}, "Search"));
}

// What has not changed is left alone, with the focus and what is selected or opened in it.
function showContent(sections) {
  const old = [...by("content").children];
  sections.forEach((each, number) => {
    const text = each.outerHTML;
    if (shown[number] === text) return;
    shown[number] = text;
    const focused = old[number]?.contains(document.activeElement)
      && document.activeElement.getAttribute("href");
    if (old[number]) old[number].replaceWith(each);
    else by("content").append(each);
    if (focused) [...each.querySelectorAll("a")].find((a) => a.getAttribute("href") === focused)
      ?.focus();
  });
  old.slice(sections.length).forEach((each) => each.remove());
}

const tell = (...children) => by("freshness").replaceChildren(...children);

async function refresh() {
  clearTimeout(timer);
  const mine = ++asking;
  cancel();
  const { view, query } = where();
  by("content").setAttribute("aria-busy", "true");
  try {
    const sections = await Promise.all(await view.load(query));
    if (mine !== asking) return;
    showContent(sections);
    tell(`As of ${new Date().toLocaleTimeString()}`);
  } catch (error) {
    if (mine !== asking) return;
    if (error instanceof Refused) showContent([refusal(error)]);
    else tell("Not read: ", said(error.message));
  }
  by("content").setAttribute("aria-busy", "false");
  if (!isPaused && !document.hidden) timer = setTimeout(refresh, PAUSE);
}

function navigate() {
  shown = [];
  by("content").replaceChildren();
  showFrame();
  refresh();
}

by("filters").addEventListener("submit", (event) => {
  event.preventDefault();
  const given = [...new FormData(by("filters"))].map(([name, value]) => [name, value.trim()]);
  location.hash = at(where().name, Object.fromEntries(given.filter(([, value]) => value)));
});
by("pause").addEventListener("click", () => {
  isPaused = !isPaused;
  by("pause").setAttribute("aria-pressed", String(isPaused));
  if (isPaused) clearTimeout(timer);
  else refresh();
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) clearTimeout(timer);
  else if (!isPaused) refresh();
});
window.addEventListener("hashchange", (event) => {
  if (location.hash === "#view") return history.replaceState(null, "", event.oldURL);
  return navigate();
});
navigate();
