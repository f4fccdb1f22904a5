"use strict";
// Everything shown comes from jobs and is set as text, never as markup. Nothing is loaded but our own API.
const REFRESH_MS = 1000, HIDDEN_MS = 10000, TIMEOUT_MS = 5000;
const byId = id => document.getElementById(id);

function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children.filter(child => child !== null && child !== undefined && child !== ""));
  return made;
}
function prose(text) {  // `code` between backticks, as our sentences write it
  return text.split("`").flatMap((part, i, parts) => i % 2 && i < parts.length - 1 ? code(part) : unbroken(part));
}
function code(text) { return element("code", "", ...unbroken(text)); }
function unbroken(text) {  // a line that ends within "0-31" reads as another range, one that ends in "--" as another option
  return text.split(/(\b\d+-\d+\b|(?<!\S)--[\w-]+)/).map((part, i) => i % 2 ? element("span", "range", part) : part).filter(Boolean);
}
function shortPath(file) {
  const parts = file.split("/");
  return parts.length > 3 ? `…/${parts.slice(-2).join("/")}` : file;
}
function setText(node, text) { if (node.textContent !== text) node.textContent = text; }
function duration(seconds) {
  if (seconds === null || seconds === undefined) return "?";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 120) return `${seconds.toFixed(1)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}
function lasting(seconds) {  // of what goes on and is counted: no tenths
  return seconds < 1 ? "under 1 s" : seconds < 120 ? `${Math.floor(seconds)} s` : duration(seconds);
}
function zone(iso) {  // messages say UTC: which zone the page's times are of stands once, at its top
  const part = new Intl.DateTimeFormat(undefined, {timeZoneName: "short"}).formatToParts(new Date(iso)).find(one => one.type === "timeZoneName");
  return part ? part.value : "";
}
function clock(iso) {  // as commands and messages write it: 1/2/2026 is another day to half of the readers
  const moment = new Date(iso), two = number => String(number).padStart(2, "0");
  const time = [moment.getHours(), moment.getMinutes(), moment.getSeconds()].map(two).join(":");
  return moment.toDateString() === new Date().toDateString()
    ? time : `${moment.getFullYear()}-${two(moment.getMonth() + 1)}-${two(moment.getDate())} ${time}`;
}
function join(words, between = " · ") { return words.filter(Boolean).join(between); }
function placeOf(where) { return where && !["user_code", "unknown"].includes(where) ? where : ""; }  // the line says as much
function causeOf(verdict, where = verdict.where) {  // "collective_mismatch · collective" says nothing more
  return join([verdict.cause, !verdict.cause.includes(placeOf(where)) && placeOf(where)]);
}
function within(ranges, ranks) {  // whether "2,5-7" holds only numbers of the set
  return ranges.split(",").every(range => {
    const [first, last = first] = range.split("-").map(Number);
    if (last - first >= ranks.size) return false;
    for (let rank = first; rank <= last; rank++) if (!ranks.has(rank)) return false;
    return true;
  });
}

async function api(path, body) {  // with a body, a change is asked for
  const asked = body ? {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body)} : {};
  const response = await fetch(`api/v1/${path}`, {...asked, credentials: "same-origin", signal: AbortSignal.timeout(TIMEOUT_MS)});
  if (response.status === 401) throw new Error("your session has ended: load this page again, or open the address that `stallwatch status --url` prints");
  if (!response.ok) throw new Error((await response.json().catch(() => ({}))).error || `status ${response.status}`);
  return response.json();
}

