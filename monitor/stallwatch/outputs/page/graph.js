// The wait-for graph: boxes of ranks, and arrows from who waits to whom they wait for.
"use strict";
const CYCLES = new Set(["group_order", "p2p_unmatched"]);
const MOST_CHIPS = 96;

function numbers(ranges) {  // "2,5-7" as [2, 5, 6, 7]; a broken one is empty
  const found = [];
  for (const range of ranges.split(",")) {
    const [first, last = first] = range.split("-").map(Number);
    if (!(first >= 0) || last - first > 100000) return [];
    for (let rank = first; rank <= last; rank++) found.push(rank);
  }
  return found;
}
function ranged(ranks) {  // [2, 5, 6, 7] as "2,5-7"
  const runs = [];
  for (const rank of [...ranks].sort((a, b) => a - b)) {
    const run = runs[runs.length - 1];
    if (run && rank === run[1] + 1) run[1] = rank; else runs.push([rank, rank]);
  }
  return runs.map(([first, last]) => first === last ? `${first}` : `${first}-${last}`).join(",");
}
function called(ranks) { return `${ranks.length === 1 ? "rank" : "ranks"} ${ranged(ranks)}`; }

function chips(ranks, className) {
  if (ranks.length > MOST_CHIPS) return element("span", "soft", `${ranks.length} ranks`);
  const row = element("span", "chips", ...ranks.map(rank => element("span", `chip ${className}`, `${rank}`)));
  row.setAttribute("aria-hidden", "true");  // the box's title says the same in words
  return row;
}
function waitersBox(ranks, words) {
  return element("li", "box waiters", element("span", "who", called(ranks)), chips(ranks, "waiter"), element("span", "soft", words));
}
function culpritBox(verdict, ranks) {
  const process = verdict.culprit_processes.find(one => ranks.includes(one.rank));
  const frame = process && process.frame;
  const where = (process && process.where) || verdict.where;
  return element("li", "box culprits", element("span", "who", called(ranks)), ranks.length > 1 ? chips(ranks, "blamed") : null,
    element("span", "", causeOf(verdict, where)),
    frame ? element("span", "mono", `${shortPath(frame.file)}:${frame.line} ${frame.function}`) : null);
}
function arrow(words) { return element("li", "arrow", element("span", "", words)); }

function edges(verdict) {
  // Boxes and arrows, who waits first. Nothing is drawn that the verdict does not say.
  const culprits = [...verdict.culprits], waiting = verdict.waiting ? numbers(verdict.waiting) : [];
  const others = waiting.filter(rank => !culprits.includes(rank));
  const operation = verdict.operation ? join([verdict.operation, verdict.seq !== null && `#${verdict.seq}`], " ") : "";
  const inside = join(["wait", operation && `in ${operation}`, verdict.process_group && `of ${verdict.process_group.description}`], " ");
  const members = new Set(verdict.process_group ? verdict.process_group.ranks : []);
  const direct = members.size ? others.filter(rank => members.has(rank)) : others;
  const behind = members.size && direct.length ? others.filter(rank => !members.has(rank)) : [];
  const parts = [];
  if (behind.length) parts.push(waitersBox(behind, "in other groups"), arrow("wait for these"));
  if ((direct.length || !behind.length) && others.length) parts.push(waitersBox(direct.length ? direct : others, inside));
  if (CYCLES.has(verdict.cause) && culprits.length > 1 && culprits.length <= 8) {
    if (parts.length) parts.push(arrow("wait for"));
    culprits.forEach((rank, i) => parts.push(...(i ? [arrow("and each other")] : []), culpritBox(verdict, [rank])));
    parts[parts.length - 1].classList.add("cycle");
  } else if (culprits.length) {
    if (parts.length) parts.push(arrow(verdict.cause === "slow_rank" ? "are held back by" : "wait for"));
    parts.push(culpritBox(verdict, culprits));
  } else if (parts.length && verdict.cause === "comm_stuck") {
    parts.push(arrow("all entered it"), element("li", "box nobody", element("span", "who", operation || "the operation"), element("span", "soft", "none finishes; no rank is to blame")));
  } else if (parts.length) {
    parts.push(arrow("wait for"), element("li", "box nobody", element("span", "who", "not known"), element("span", "soft", verdict.cause)));
  }
  return parts;
}
function graph(verdict) {
  const parts = edges(verdict);
  if (parts.length < 2) return null;
  const drawn = element("ol", "graph", ...parts);
  const figure = element("figure", "", element("figcaption", "", "Who waits for whom"), drawn);
  return figure;
}
