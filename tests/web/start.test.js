// The page as a whole: it starts, and keys and controls do what they say.

import assert from "node:assert/strict";
import { test } from "node:test";

import { content, happen, putData, putIndex, until } from "./document.js";

putIndex({
  ids: ["weak", "torn", "good"],
  strength: [-2, -1, 3],
  flags: [1, 1, 0],
  categories: ["a", "b"],
  category: [0, 1, 1],
});
putData("block-0", [content(), content({ chosen: "needle" }), content()]);
await import("../../models/reporting/static/audit/start.js");

const $ = (id) => document.getElementById(id);
const shows = (place) => until(() => $("place").textContent === place);
const press = (key, target = document.body, more = {}) => {
  // An event of a key goes up to the document; here it goes there at once.
  const event = Object.assign(new Event("keydown", { cancelable: true }), { key, ...more });
  Object.defineProperty(event, "target", { value: target });
  document.dispatchEvent(event);
  return event.defaultPrevented;
};
const reviewed = () => $("progress").textContent.split(".")[0];

test("the first pair is in view", async () => {
  await shows("Pair 1 of 3");
  assert.equal($("tool").hidden, false);
  assert.ok($("previous").disabled && !$("next").disabled);
  assert.equal($("count").textContent, "3 of 3 pairs");
  assert.equal($("content").all("span")[0].textContent, "strength −2.00");
});

test("keys go on and back, and not beyond the ends", async () => {
  for (const [key, place] of [
    ["j", 2],
    ["ArrowRight", 3],
    ["j", 3],
    ["k", 2],
    ["ArrowLeft", 1],
    ["k", 1],
  ]) {
    assert.ok(press(key));
    await shows(`Pair ${place} of 3`);
  }
  assert.ok(press("ArrowDown", $("list")));
  await shows("Pair 2 of 3");
  assert.ok(!press("ArrowDown")); // elsewhere it scrolls
  $("previous").click();
  await shows("Pair 1 of 3");
});

test("keys give verdicts, but not while a note is typed, with Ctrl, or where they are off", async () => {
  for (const [key, told] of [
    ["1", "1 keep, 0 flip, 0 drop, 0 unsure"],
    ["2", "0 keep, 1 flip, 0 drop, 0 unsure"],
    ["3", "0 keep, 0 flip, 1 drop, 0 unsure"],
    ["4", "0 keep, 0 flip, 0 drop, 1 unsure"],
  ]) {
    press(key);
    assert.equal(reviewed(), `1 of 3 pairs reviewed: ${told}`);
    await shows("Pair 2 of 3"); // one key a pair
    press("k");
    await shows("Pair 1 of 3");
  }
  press("0");
  assert.match(reviewed(), /^0 of 3/);
  assert.ok(!press("1", $("note")) && !press("1", document.body, { ctrlKey: true }));
  $("keys").checked = false;
  assert.ok(!press("1"));
  $("keys").checked = true;
  assert.match(reviewed(), /^0 of 3/);
  assert.ok(press("1", $("keys"))); // nothing is typed into a check box
  press("k");
  press("0");
});

test("e goes to the note, / to the search, Escape back", () => {
  press("e");
  assert.equal(document.activeElement, $("note"));
  press("Escape", $("note"));
  assert.equal(document.activeElement, null);
  press("/");
  assert.equal(document.activeElement, $("search"));
});

test("controls filter", async () => {
  const give = (id, value, type) => {
    $(id).value = value;
    happen($(id), type);
  };
  const counted = (number) => until(() => $("count").textContent === `${number} of 3 pairs`);
  give("category", "1", "change");
  await counted(2);
  give("low", "0", "change");
  await counted(1);
  $("everything").click();
  await counted(2);
  give("search", "need", "input");
  give("search", "needle", "input");
  await counted(1);
  give("search", "", "input");
  give("high", "-2", "change");
  give("category", "", "change");
  await counted(1);
  assert.equal($("low").value, "");
});

test("a file is taken up", async () => {
  $("file").files = [new Blob(['{"id": "good", "verdict": "keep"}'])];
  happen($("file"), "change");
  await until(() => reviewed() === "1 of 3 pairs reviewed: 1 keep, 0 flip, 0 drop, 0 unsure");
});
