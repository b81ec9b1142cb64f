// Opens a written page of the label audit and prints, as JSON, what it shows of its first pair.

import { readFileSync } from "node:fs";
import { runInThisContext } from "node:vm";

import { happen, openPage, until } from "./document.js";

const html = readFileSync(process.argv[2], "utf-8");
openPage(html);
process.on("unhandledRejection", (reason) => happen(window, "unhandledrejection", { reason }));
const $ = (id) => document.getElementById(id);
for (const [, id, text] of html.matchAll(/<script type="text\/plain" id="([\w-]+)">([^<]*)</g)) {
  $(id).textContent = text;
}
const scripts = [...html.matchAll(/<script>(.*?)<\/script>/gs)];
for (const [, script] of scripts) runInThisContext(script);
await until(() => $("place").textContent || $("problem").textContent);
console.log(
  JSON.stringify({
    scripts: scripts.length,
    problem: $("problem").textContent,
    place: $("place").textContent,
    texts: $("content")
      .all("div")
      .filter((each) => each.className === "text")
      .map((each) => each.textContent),
  }),
);
