// One pair in full: prompt, both answers, the members' votes, what relabelling did.

import {
  counted, decimals, drawn, element, has, index, IS_DISPUTED, IS_FLIPPED, IS_UNSUPPORTED,
  LOOKS_WRONG, signed,
} from "./data.js";
import { marked } from "./words.js";

const FOLDED_CHARACTERS = 900;

function tags(row, content) {
  const strength = index.strength[row];
  const made = [
    [`strength ${signed(strength)}`, has(row, LOOKS_WRONG)],
    [`deviation ${content.std.toFixed(decimals())}`],
    [has(row, LOOKS_WRONG) ? "looks wrong" : "agrees with the label", has(row, LOOKS_WRONG)],
    has(row, IS_DISPUTED) && ["members disagree"],
    has(row, IS_UNSUPPORTED) && ["⚠ flipped, and no member supports it", true],
    [index.splits[index.split[row]]],
    [index.categories[index.category[row]]],
    [index.ids[row]],
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

function answer(title, name, text, nodes) {
  const words = text.split(/\s+/).filter(Boolean).length;
  return element("div", { className: name },
    element("span", { className: "label" }, `${title} (${counted(words)} words)`),
    element("div", { className: "text" }, ...nodes));
}

// Each member's vote as a dot on the scale that all pairs share, with mean and deviation.
export function strip(strength, content) {
  const x = (value) => 208 + 190 * Math.max(-1, Math.min(1, value / index.reach));
  const votes = content.differences.filter((vote) => vote !== null);
  const against = votes.filter((vote) => vote < 0).length;
  const words = `Votes of ${votes.length} members: ${votes.map((v) => signed(v)).join(", ")}; ` +
    `mean ${signed(strength)}, deviation ${content.std.toFixed(decimals())}; ` +
    `${against} against the label`;
  const picture = drawn("svg", {
    class: "strip", viewBox: "0 0 416 66", role: "img", "aria-label": words,
  });
  const line = (x1, y1, x2, y2, more) => drawn("line", { x1, y1, x2, y2, ...more });
  picture.append(
    line(18, 44, 398, 44, { stroke: "#767676" }),
    line(208, 2, 208, 48, { stroke: "#767676", "stroke-dasharray": "3 3" }),
    line(x(strength - content.std), 34, x(strength + content.std), 34,
      { stroke: "#222", "stroke-width": 2 }),
    line(x(strength), 28, x(strength), 40, { stroke: "#222", "stroke-width": 3 }),
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
  return [picture, element("p", { className: "note" }, words +
    (abstained ? `; ${abstained} were trained on it and have no vote` : "") + ".")];
}

export function decision(row, content) {
  if (index.splits[index.split[row]] !== "train") {
    return "Held out: not relabelled. A verdict on it is noted, and changes nothing.";
  }
  const what = content.weight === 0 ? "dropped" : has(row, IS_FLIPPED) ? "flipped" : "kept";
  const who = content.review && content.review !== "unsure" ? " by review" : "";
  return `Relabelling: ${what}${who}, label ${content.label.toFixed(2)}, ` +
    `margin ${signed(content.margin, 2)}.`;
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

export function pairNodes(row, content) {
  const [chosen, rejected, note] = marked(content.chosen, content.rejected);
  return [
    tags(row, content),
    ...promptBox(content.prompt),
    element("div", { className: "sides" },
      answer("labelled better", "chosen", content.chosen, chosen),
      answer("labelled worse", "rejected", content.rejected, rejected)),
    ...(note ? [element("p", { className: "note" }, note)] : []),
    ...strip(index.strength[row], content),
    element("p", {}, [decision(row, content), ...known(content)].join(" ")),
  ];
}
