// What each rank and each GPU did around the incident. Ranks that did the same share a band.
"use strict";
const SVG = byId("drawing").namespaceURI;
const LETTERS = {s: "stepping", w: "in a collective", p: "in a phase", n: "neither steps nor waits", b: "before its first step", h: "hook still too", x: "ended", "?": "unknown"};
const EACH_RANK = 16;  // from more ranks on, those that did the same share a band
const MOST_BANDS = 40;
const MOST_WORDS = 8;

function svg(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}
function seconds(document) {  // of each look since the first
  const start = Date.parse(document.at[0]);
  return document.at.map(at => (Date.parse(at) - start) / 1000);
}
function settled(looks) {
  // A step is shorter or longer than a look: between two steps within three looks a rank is stepping.
  return looks.replace(/s[wnh?]{1,3}(?=s)/g, run => "s".repeat(run.length));
}
function bands(document, culprits) {
  const shared = new Map();
  for (const {rank, looks} of document.ranks) {
    const shape = settled(looks);
    const key = document.ranks.length > EACH_RANK ? `${shape}${culprits.has(rank) ? "!" : ""}` : `${rank}`;
    if (!shared.has(key)) shared.set(key, {ranks: [], looks: shape});
    shared.get(key).ranks.push(rank);
  }
  const all = [...shared.values()];
  const first = band => band.ranks.some(rank => culprits.has(rank)) ? 0 : 1;
  if (document.ranks.length > EACH_RANK) all.sort((a, b) => first(a) - first(b) || a.ranks.length - b.ranks.length || a.ranks[0] - b.ranks[0]);
  return all;
}
function bandLine(looks, at, width) {
  const line = svg("svg", {viewBox: `0 0 ${width} 10`, preserveAspectRatio: "none", class: "band", "aria-hidden": "true"});
  for (let i = 0; i < looks.length;) {
    let end = i + 1;
    while (end < looks.length && looks[end] === looks[i]) end++;
    const from = at[i], to = end < at.length ? at[end] : width;
    line.append(svg("rect", {x: from, width: Math.max(to - from, 0.01), y: 0, height: 10, class: `look-${"?" === looks[i] ? "u" : looks[i]}`}));
    i = end;
  }
  return line;
}
function last(looks) { return LETTERS[looks[looks.length - 1]] || "unknown"; }

function told(incident) {  // that another look was taken is for the history
  return incident.events.filter(event => !/^look \d+/.test(event.what));
}
function marks(incident, document, width) {
  const start = Date.parse(document.at[0]);
  const line = element("div", "marks");
  const closest = matchMedia("(max-width: 44rem)").matches ? 14 : 2.5;  // per cent of the line that a number takes
  let before = null;
  told(incident).forEach((event, i) => {
    const at = (Date.parse(event.at) - start) / 1000, place = 100 * at / width;
    if (at < 0 || at > width) return;
    const title = `${i + 1}. ${clock(event.at)} ${event.what}`;
    if (before && place - before.place < closest) {
      before.mark.textContent = `${before.first}–${i + 1}`;
      before.mark.title += `\n${title}`;
      return;
    }
    const mark = element("span", "mark", `${i + 1}`);
    mark.style.left = `${place}%`;
    mark.title = title;
    before = {place, mark, first: i + 1};
    line.append(mark);
  });
  line.setAttribute("aria-hidden", "true");  // the history lists the same
  return line;
}
function markWords(incident, document, width) {  // what the numbers on the line mean, in short: the history has it in full
  const start = Date.parse(document.at[0]);
  const inside = at => (Date.parse(at) - start) / 1000 >= 0 && (Date.parse(at) - start) / 1000 <= width;
  const words = told(incident).map((event, i) => inside(event.at) && `${i + 1} ${shortened(event.what.split(/[:;]/)[0].replace("verdict still", "verdict, the same"))}`).filter(Boolean);
  return words.length ? element("p", "legend marked", ...words.slice(0, MOST_WORDS).map(text => element("span", "", text)),
    words.length > MOST_WORDS ? element("span", "", "… see the history") : null) : null;
}
function shortened(text) { return text.length > 40 ? `${text.slice(0, 39)}…` : text; }
function rankBands(incident, document, culprits) {
  const at = seconds(document), width = (at[at.length - 1] || 0) + 1;
  const all = bands(document, culprits), shown = all.slice(0, MOST_BANDS);
  const rows = shown.map(band => {
    const label = called(band.ranks);
    const name = element("span", band.ranks.some(rank => culprits.has(rank)) ? "name blamed" : "name", label.length > 26 ? `${band.ranks.length} ranks` : label);
    name.title = label;
    const row = element("li", "", name, element("span", "track", bandLine(band.looks, at, width)), element("span", "hidden", `at the end ${last(band.looks)}`));
    return row;
  });
  const used = Object.keys(LETTERS).filter(letter => all.some(band => band.looks.includes(letter)));
  const legend = element("p", "legend", ...used.map(letter => element("span", "", element("span", `key look-${letter === "?" ? "u" : letter}`), LETTERS[letter])));
  return element("figure", "timeline", element("figcaption", "", `What each rank did, ${clock(document.at[0])} to ${clock(document.at[document.at.length - 1])}`),
    element("ol", "", ...rows, element("li", "", element("span", "name soft", "events"), element("span", "track", marks(incident, document, width)))),
    all.length > shown.length ? element("p", "soft", `and ${all.length - shown.length} more kinds of course`) : null, legend, markWords(incident, document, width));
}

function curve(values, at, width, most, className) {
  let path = "", open = false;
  values.forEach((value, i) => {
    if (value === null) { open = false; return; }
    path += `${open ? "L" : "M"}${at[i].toFixed(2)} ${(38 - 36 * value / most).toFixed(2)}`;
    open = true;
  });
  return svg("path", {d: path, class: className, "vector-effect": "non-scaling-stroke"});
}
function gpuChart(gpu, at, width, mostWatts, rank, blamed) {
  const busy = gpu.busy[gpu.busy.length - 1], power = gpu.power_watts[gpu.power_watts.length - 1];
  const now = join([busy === null ? "" : `${Math.round(busy * 100)} % busy`, power === null ? "" : `${Math.round(power)} W`]);
  const chart = svg("svg", {viewBox: `0 0 ${width} 40`, preserveAspectRatio: "none", "aria-hidden": "true"},
    curve(gpu.busy, at, width, 1, "busy"), curve(gpu.power_watts, at, width, mostWatts, "power"));
  return element("li", blamed ? "blamed" : "", element("span", "name", join([`GPU ${gpu.index}`, rank !== undefined && `rank ${rank}`])), chart, element("span", "soft", now || "no data"));
}
function gpuCharts(document, verdict, ranks) {
  const known = document.gpus.filter(gpu => [...gpu.busy, ...gpu.power_watts].some(value => value !== null));
  if (!known.length) return null;
  const at = seconds(document), width = (at[at.length - 1] || 0) + 1;
  const mostWatts = Math.max(...known.flatMap(gpu => gpu.power_watts.map(value => value || 0)), 1);
  const of = new Map([...ranks, ...(verdict ? verdict.culprit_processes : [])].filter(rank => rank.gpu_uuid).map(rank => [rank.gpu_uuid, rank.rank]));
  const culprits = new Set(verdict ? verdict.culprits : []);
  return element("figure", "gpus", element("figcaption", "", "GPUs: busy against power"),
    element("ol", "", ...known.map(gpu => gpuChart(gpu, at, width, mostWatts, of.get(gpu.uuid), culprits.has(of.get(gpu.uuid))))),
    element("p", "legend", element("span", "", element("span", "key busy"), "busy, which counts waiting in NCCL"), element("span", "", element("span", "key power"), `power, up to ${Math.round(mostWatts)} W`)));
}
function timelineParts(incident, document, ranks) {
  if (!document || document.at.length < 2) return [];
  const culprits = new Set(incident.verdicts.length ? incident.verdicts[0].culprits : []);
  return [rankBands(incident, document, culprits), gpuCharts(document, incident.verdicts[0], ranks)].filter(Boolean);
}
