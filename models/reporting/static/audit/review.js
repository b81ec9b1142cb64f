// A person's verdicts: kept in the browser, downloaded as JSON lines, taken up again.

import { $, counted, element, has, index, LOOKS_WRONG, rowOf } from "./data.js";
import { drawList, position, shown } from "./choose.js";

const VERDICTS = ["keep", "flip", "drop", "unsure"];
export const reviews = new Map();  // by pair id: { verdict, note }
let storage = null;

export function restoreReviews() {
  try {
    storage = window.localStorage;
    const kept = JSON.parse(storage.getItem(storageKey()) ?? "[]");
    for (const [id, review] of kept) if (rowOf.has(id)) reviews.set(id, review);
    say("storage", "Kept in this browser as you go; a downloaded file is safer.");
  } catch {
    storage = null;
    say("storage", "This window may keep nothing and save no file: to review, download the page " +
      "and open it by itself.");
  }
}

const storageKey = () => `trimtab-review-${index.digest}`;
export const say = (id, text) => { $(id).textContent = text; };

function keepReviews() {
  try {
    storage?.setItem(storageKey(), JSON.stringify([...reviews]));
  } catch {
    say("storage", "The browser's storage is full: download the review now.");
  }
  drawReview();
  drawList();
}

// null takes a verdict back; the same verdict again changes nothing.
export function decide(verdict) {
  const row = shown[position];
  if (row === undefined) return;
  const id = index.ids[row];
  if (verdict === null) reviews.delete(id);
  else reviews.set(id, { verdict, note: reviews.get(id)?.note ?? "" });
  keepReviews();
}

export function writeNote() {
  const review = reviews.get(index.ids[shown[position]]);
  if (!review) return;
  review.note = $("note").value;
  keepReviews();
}

export function makeVerdicts() {
  const button = (id, name, key, verdict) => {
    const made = element("button", { type: "button", id }, `${name} `, element("kbd", {}, key));
    made.addEventListener("click", () => decide(verdict));
    return made;
  };
  $("verdicts").append(...VERDICTS.map((verdict, at) => button(`verdict-${verdict}`,
    verdict[0].toUpperCase() + verdict.slice(1), String(at + 1), verdict)),
  button("no-verdict", "None", "0", null));
}

export function drawReview() {
  const review = reviews.get(index.ids[shown[position]]);
  for (const verdict of VERDICTS) {
    $(`verdict-${verdict}`).ariaPressed = String(review?.verdict === verdict);
  }
  $("no-verdict").disabled = !review;
  const note = $("note");
  note.disabled = !review;
  note.placeholder = review ? "" : "after a verdict";
  if (document.activeElement !== note) note.value = review?.note ?? "";
  const numbers = Object.fromEntries(VERDICTS.map((verdict) => [verdict, 0]));
  let wrong = 0, agreed = 0;
  for (const [id, { verdict }] of reviews) {
    numbers[verdict]++;
    if (!has(rowOf.get(id), LOOKS_WRONG) || !["keep", "flip"].includes(verdict)) continue;
    wrong++;
    agreed += verdict === "flip";
  }
  const each = VERDICTS.map((verdict) => `${counted(numbers[verdict])} ${verdict}`).join(", ");
  say("progress", `${counted(reviews.size)} of ${counted(index.ids.length)} pairs reviewed: ` +
    `${each}.` + (wrong ? ` Of ${counted(wrong)} that look wrong and that you keep or flip, ` +
    `you flip ${counted(agreed)} (${(100 * agreed / wrong).toFixed(0)} %).` : ""));
  $("download").disabled = reviews.size === 0;
}

export function download() {
  const ids = [...reviews.keys()].sort((one, other) => rowOf.get(one) - rowOf.get(other));
  const lines = ids.map((id) => {
    const { verdict, note } = reviews.get(id);
    return `${JSON.stringify({ id, verdict, note: note || null })}\n`;
  });
  const address = URL.createObjectURL(new Blob(lines, { type: "application/jsonl" }));
  element("a", { href: address, download: "review.jsonl" }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
}

// Takes up the verdicts of a file; those on other pairs are counted and left out.
export async function takeUp(file) {
  let taken = 0, left = 0;
  for (const line of (await file.text()).split("\n").filter((each) => each.trim())) {
    try {
      const { id, verdict, note } = JSON.parse(line);
      if (!rowOf.has(id) || !VERDICTS.includes(verdict)) throw new Error();
      reviews.set(id, { verdict, note: String(note ?? "") });
      taken++;
    } catch {
      left++;
    }
  }
  say("storage", `${counted(taken)} verdicts taken up` +
    (left ? `; left out, as no verdict on a pair of this page: ${counted(left)}.` : "."));
  keepReviews();
}
