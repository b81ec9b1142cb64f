// The page's beginning, and what keys and controls do.

import { $, unpackIndex } from "./data.js";
import { drawHistogram, makeScale, range, setRange } from "./histogram.js";
import {
  choose, drawList, filler, fillSelects, list, position, search, shown, showPair,
} from "./choose.js";
import {
  decide, download, makeVerdicts, restoreReviews, say, takeUp, writeNote,
} from "./review.js";

const KEYS = {
  j: () => step(1), ArrowRight: () => step(1), k: () => step(-1), ArrowLeft: () => step(-1),
  1: () => decideAndGoOn("keep"), 2: () => decideAndGoOn("flip"), 3: () => decideAndGoOn("drop"),
  4: () => decideAndGoOn("unsure"), 0: () => decide(null),
  e: () => $("note").focus(), "/": () => $("search").focus(),
};
const IN_LIST = { ArrowDown: () => step(1), ArrowUp: () => step(-1) };

function step(by) {
  const place = position + by;
  if (place >= 0 && place < shown.length) showPair(place);
}

// One key a pair.
function decideAndGoOn(verdict) {
  decide(verdict);
  step(1);
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") { document.activeElement.blur(); return; }
  const isTyping = event.target.matches("input:not([type=checkbox]), select, textarea");
  const inList = event.target === list && IN_LIST[event.key];
  const does = inList || (!isTyping && $("keys").checked && KEYS[event.key]);
  if (!does) return;
  event.preventDefault();
  does();
}

function listen() {
  for (const id of ["category", "split", "kind", "fact", "mine", "order"]) $(id).addEventListener("change", choose);
  $("filters").addEventListener("submit", (event) => event.preventDefault());
  let waiting;
  $("search").addEventListener("input", (event) => {
    clearTimeout(waiting);
    waiting = setTimeout(() => search(event.target.value), 300);
  });
  const typed = (id, otherwise) => ($(id).value === "" ? otherwise : Number($(id).value));
  for (const id of ["low", "high"]) {
    $(id).addEventListener("change", () => {
      Object.assign(range, { low: typed("low", -Infinity), high: typed("high", Infinity) });
      choose();
    });
  }
  $("everything").addEventListener("click", () => setRange(-Infinity, Infinity));
  $("previous").addEventListener("click", () => step(-1));
  $("next").addEventListener("click", () => step(1));
  $("note").addEventListener("input", writeNote);
  $("download").addEventListener("click", download);
  $("load").addEventListener("click", () => $("file").click());
  $("file").addEventListener("change", (event) => takeUp(event.target.files[0]));
  list.addEventListener("scroll", () => requestAnimationFrame(drawList));
  document.addEventListener("keydown", pressed);
  new ResizeObserver(() => requestAnimationFrame(drawHistogram)).observe($("histogram"));
}

async function start() {
  await unpackIndex();
  $("tool").hidden = false;
  list.append(filler);
  restoreReviews();
  makeVerdicts();
  fillSelects();
  makeScale();
  choose();
  listen();
}

// What fails is said, whoever waits for it: the start, a filter, a row of the list.
window.addEventListener("unhandledrejection", (event) => {
  event.preventDefault();
  $("problem").hidden = false;
  say("problem", `The pairs cannot be shown: ${event.reason.message}. It takes a browser of 2024 ` +
    "or later; the same data are in audited.jsonl.gz and audited.parquet beside this page.");
});
start();
