// One pair in full: prompt, both answers, the members' votes, what relabelling did.

import {
  categoryOf, counted, decimals, drawn, element, has, index, IS_DISPUTED, IS_EXPLAINED_BY_LENGTH, IS_FLIPPED,
  IS_UNSUPPORTED, LOOKS_WRONG, signed,
} from "./data.js";
import { marked } from "./words.js";

const FOLDED_CHARACTERS = 900;

function tags(row, content) {
  const strength = index.strength[row];
  const made = [
    [`strength ${signed(strength)}`, has(row, LOOKS_WRONG)],
    [`deviation ${index.deviation[row].toFixed(decimals())}`],
    [has(row, LOOKS_WRONG) ? "looks wrong" : "agrees with the label", has(row, LOOKS_WRONG)],
    has(row, IS_DISPUTED) && ["members disagree"],
    has(row, IS_UNSUPPORTED) && ["⚠ flipped, and no member supports it", true],
    [index.splits[index.split[row]]],
    categoryOf(row) && [categoryOf(row)],
    [index.ids[row]],
    content.source && [content.source],
  ];
  return element("div", {}, ...made.filter(Boolean).map(([text, worse]) =>
    element("span", { className: worse ? "tag worse" : "tag" }, text)));
}

// A prompt; of a long one the end, which the answers reply to.
function promptBox(text) {
  const box = element("div", { className: "text", tabIndex: 0, role: "group" }, text);
  box.ariaLabel = "Prompt";
  if (text.length <= FOLDED_CHARACTERS) return [box];
  const fold = element("button", { type: "button" });
  const turn = (folded) => {
    box.classList.toggle("folded", folded);
    fold.ariaExpanded = String(!folded);
    fold.textContent = folded
      ? `Unfold all ${counted(text.length)} characters` : "Fold";
    if (folded) box.scrollTop = box.scrollHeight;
  };
  fold.addEventListener("click", () => turn(!box.classList.contains("folded")));
  queueMicrotask(() => turn(true));
  return [box, fold];
}

// Of a script without blanks between words each letter counts as one.
const UNSPACED = new RegExp(`[${["Han", "Hiragana", "Katakana", "Bopomofo", "Thai", "Lao", "Khmer",
  "Myanmar", "Tibetan"].map((script) => `\\p{Script=${script}}`).join("")}]`, "gu");
const numWords = (text) => {
  const parts = text.replace(UNSPACED, " $& ");
  const words = parts.split(/\s+/).filter(Boolean);
  return parts === text ? words.length : words.filter((word) => /[\p{L}\p{N}]/u.test(word)).length;
};

function answer(title, name, text, nodes) {
  const words = numWords(text);
  return element("div", { className: name },
    element("span", { className: "label" }, `${title} (${counted(words)} words)`),
    element("div", { className: "text" }, ...nodes));
}

// Each member's vote as a dot on the scale that all pairs share, with mean and deviation.
export function strip(row, content) {
  const strength = index.strength[row], deviation = index.deviation[row];
  const x = (value) => 208 + 190 * Math.max(-1, Math.min(1, value / index.reach));
  const votes = content.differences.filter((vote) => vote !== null);
  const against = votes.filter((vote) => vote < 0).length;
  const said = content.differences
    .map((vote, at) => vote !== null && [index.voters?.[at], signed(vote)].filter(Boolean).join(" "))
    .filter(Boolean);
  const words = `Votes of ${votes.length} members: ${said.join(", ")}; ` +
    `${index.voters?.length ? "together" : "mean"} ${signed(strength)}, deviation ${deviation.toFixed(decimals())}; ` +
    `${against} against the label`;
  const picture = drawn("svg", {
    class: "strip", viewBox: "0 0 416 66", role: "img", "aria-label": words,
  });
  const line = (x1, y1, x2, y2, more) => drawn("line", { x1, y1, x2, y2, ...more });
  picture.append(
    line(18, 44, 398, 44, { stroke: "#767676" }),
    line(208, 2, 208, 48, { stroke: "#767676", "stroke-dasharray": "3 3" }),
    line(x(strength - deviation), 34, x(strength + deviation), 34,
      { stroke: "currentColor", "stroke-width": 2 }),
    line(x(strength), 28, x(strength), 40, { stroke: "currentColor", "stroke-width": 3 }),
    ...votes.map((vote, at) => drawn("circle", {
      cx: x(vote), cy: 7 + 7 * (at % 3), r: 4.5, "fill-opacity": 0.8,
      fill: vote < 0 ? "#d55e00" : "#0072b2", stroke: "#fff",
    })),
    drawn("text", { x: 18, y: 61 }, `${signed(-index.reach)} against the label`),
    drawn("text", { x: 208, y: 61, "text-anchor": "middle" }, "0"),
    drawn("text", { x: 398, y: 61, "text-anchor": "end" },
      `for it ${signed(index.reach)}`),
  );
  const abstained = content.differences.length - votes.length;
  const silent = index.voters?.filter((_, at) => content.differences[at] === null) ?? [];
  let without = abstained ? `; ${abstained} were trained on it and have no vote` : "";
  if (silent.length) without = `; no vote by ${silent.join(", ")}`;
  return [picture, element("p", { className: "note" }, `${words}${without}.`)];
}

export function decision(row, content) {
  if (index.splits[index.split[row]] !== "train") {
    return "Held out: not relabelled. A verdict on it is noted, and changes nothing.";
  }
  const what = content.weight === 0 ? "dropped" : has(row, IS_FLIPPED) ? "flipped" : "kept";
  const who = content.review && content.review !== "unsure" ? " by review" : "";
  const counts = content.weight % 1 ? `, weight ${content.weight.toFixed(2)}` : "";
  return `Relabelling: ${what}${who}, label ${content.label.toFixed(2)}, ` +
    `margin ${signed(content.margin, 2)}${counts}.`;
}

export function known(content) {
  const said = [];
  const votes = content.votes;
  if (votes) {
    said.push(`People's votes: ${votes.chosen} for the label, ${votes.rejected} against, ` +
      `${votes.equal ?? 0} undecided.`);
  }
  if (content.truth) {
    const kinds = { flipped: "a flip", ambiguous: "a near-tie", clear: "no flip" };
    said.push(`Truth: the label is ${content.truth.is_wrong ? "wrong" : "right"} ` +
      `(${kinds[content.truth.kind]}).`);
  }
  return said;
}

// Why a label may be doubted, besides the members' votes: what else is known of the pair.
export function reasons(row, content) {
  const said = [];
  const others = (ids) => `pair ${ids.join(", ")}`;
  if (content.contradicts.length) {
    said.push(`Contradiction: ${others(content.contradicts)} has the same two answers, labelled ` +
      "the other way round.");
  }
  if (content.repeats.length) {
    said.push(`Repeat: ${others(content.repeats)} is the same, labelled alike.`);
  }
  if (has(row, IS_EXPLAINED_BY_LENGTH)) {
    said.push(`Length: the answer labelled worse is the longer one ` +
      `(${counted(numWords(content.rejected))} words, the other ` +
      `${counted(numWords(content.chosen))}), so a model that only prefers length would vote alike.`);
  }
  return said.length ? [element("ul", { className: "why" },
    ...said.map((text) => element("li", {}, text)))] : [];
}

export function pairNodes(row, content) {
  const [chosen, rejected, note] = marked(content.chosen, content.rejected);
  return [
    tags(row, content),
    ...promptBox(content.prompt),
    element("div", { className: "sides" },
      answer("labelled better", "chosen", content.chosen, chosen),
      answer("labelled worse", "rejected", content.rejected, rejected)),
    ...(note ? [element("p", { className: "note" }, note)] : []),
    ...reasons(row, content),
    ...strip(row, content),
    element("p", {}, [decision(row, content), ...known(content)].join(" ")),
  ];
}
