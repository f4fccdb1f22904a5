"use strict";
const cards = new Map();  // id -> {key, card}
async function cardFor(incident, ranks, first) {
  const key = JSON.stringify([incident, first]);
  const known = cards.get(incident.incident_id);
  if (known && known.key === key) return known.card;
  const path = `incidents/${encodeURIComponent(incident.incident_id)}`;
  const [whole, timeline] = incident.verdicts.length
    ? await Promise.all([api(path).catch(() => null), api(`${path}/timeline`).catch(() => null)]) : [incident, null];
  const card = incidentCard(whole || incident, timeline, ranks, first);
  const complete = whole && (timeline || !incident.verdicts.length);  // what a busy node did not answer in time is asked for again
  cards.set(incident.incident_id, {key: complete ? key : "", card});
  return card;
}
// Messages name it as a query, which a login on the way here keeps; this page's own links are fragments.
const named = () => decodeURIComponent(location.hash.slice(1)) || new URLSearchParams(location.search).get("incident") || "";
let linked = named();
addEventListener("hashchange", () => { linked = named(); refresh(); });

// A suspicion that a look at the ranks has not borne out: nobody needs to hear of it.
const isWell = incident => incident.severity === "none" && incident.verdicts.length > 0 && incident.verdicts[0].cause === "healthy";
const URGENCY = {critical: 0, warning: 1, none: 2};
async function showIncidents(incidents, ranks) {
  const open = incidents.filter(incident => !isOver(incident) && (!isWell(incident) || incident.incident_id === linked)).sort((a, b) => URGENCY[a.severity] - URGENCY[b.severity]);
  const shown = [...open];
  if (linked && !open.some(incident => incident.incident_id === linked)) {
    const past = incidents.find(incident => incident.incident_id === linked) || await api(`incidents/${encodeURIComponent(linked)}`).catch(() => null);
    if (past) shown.push({...past, stacks: null}); else linked = "";
  }
  // Read at once: the one that a link names, else the most urgent.
  const first = shown.some(incident => incident.incident_id === linked) ? linked : shown.length ? shown[0].incident_id : "";
  const present = await Promise.all(shown.map(incident => cardFor(incident, ranks, incident.incident_id === first)));
  const place = byId("open");
  const quiet = open.length ? open.length > 1 ? [overview(open)] : [] : [calm(ranks, incidents.filter(isOver))];
  const wanted = [...quiet, ...present];
  if (wanted.length !== place.children.length || wanted.some((card, i) => card !== place.children[i])) {
    place.replaceChildren(...wanted);
    if (linked && cards.has(linked)) cards.get(linked).card.scrollIntoView();
  }
  for (const id of cards.keys()) if (!shown.some(incident => incident.incident_id === id)) cards.delete(id);
  const told = open.filter(incident => incident.severity !== "none");
  setText(byId("news"), open.length ? join(open.map(incident => incident.verdicts.length ? incident.verdicts[0].summary : "")) : "");
  const slow = told.every(incident => incident.verdicts.length && incident.verdicts[0].cause === "slow_rank");
  document.title = told.length ? `(${told.length}) ${slow ? "slow" : "stalled"} · stallwatch` : "stallwatch";
  showPast(incidents.filter(isOver));
}
const summary = element("nav", "overview");
summary.setAttribute("aria-label", "Open incidents");
let summaryKey = "";
function overview(open) {  // several stalls at once: which there are is seen before the first is read
  const key = JSON.stringify(open.map(incident => [incident.incident_id, incident.severity, incident.state, incident.verdicts]));
  if (key !== summaryKey) {
    summaryKey = key;
    const kind = open.some(incident => incident.state !== "suspect") ? "open incidents" : "suspicions, being looked at";
    summary.replaceChildren(element("h2", "", `${open.length} ${kind}`), element("ul", "", ...open.map(incident => {
      const link = element("a", "", incident.training_job), verdict = incident.verdicts[0];
      link.href = `#${encodeURIComponent(incident.incident_id)}`;
      return element("li", "", element("span", `tag ${incident.severity}`, incident.severity === "none" ? "nobody told" : incident.severity), " ", link, " ",
        element("span", "soft", verdict ? join([verdict.culprits.length && called(verdict.culprits), causeOf(verdict)]) : "no verdict yet"));
    })));
  }
  return summary;
}
const calmNote = element("p", "note calm");
let calmKey = "";
function calm(ranks, past) {  // the last that is over comes first: who opens the page late looks for it
  const [last] = past, died = new Set(past.filter(incident => incident.state === "ended").map(jobKey));
  const quiet = !ranks.length || ranks.some(rank => died.has(jobKey(rank)));  // a job that died is not well
  const words = ranks.length ? "No open incident." : "No rank on this node: no process has attached, and none looks like one.";
  const key = JSON.stringify([words, last]);
  if (key !== calmKey) {
    calmKey = key;
    calmNote.replaceChildren(words, ...last ? [" The last: ", lastLink(last), ` ${last.state} at ${clock(last.resolved_at)}.`] : []);
  }
  calmNote.classList.toggle("quiet", quiet);
  return calmNote;
}
function lastLink(incident) {
  const verdict = incident.verdicts[0];
  const link = element("a", "", join([incident.training_job, ...verdict ? [verdict.culprits.length && called(verdict.culprits), verdict.cause] : []]));
  link.href = `#${encodeURIComponent(incident.incident_id)}`;
  return link;
}
const LISTED = 20, AT_ONCE = 5;
let kept = [], keptKey = null;
async function withKept(incidents) {  // who opens the page late, or after the daemon has started again, looks for the last one
  const key = JSON.stringify(incidents.map(incident => [incident.incident_id, isOver(incident)]));
  if (key !== keptKey) {
    keptKey = key;
    const listed = await api(`incidents?past=${LISTED}`).catch(() => null);
    if (listed) kept = listed.incidents.filter(isOver);
  }
  const here = new Set(incidents.map(incident => incident.incident_id));
  const over = [...incidents.filter(isOver), ...kept.filter(incident => !here.has(incident.incident_id))];
  over.sort((a, b) => Date.parse(b.resolved_at) - Date.parse(a.resolved_at));
  return [...incidents.filter(incident => !isOver(incident)), ...over];
}
let pastKey = "";
function showPast(past) {
  const key = JSON.stringify(past);
  if (key === pastKey) return;
  pastKey = key;
  byId("past").hidden = !past.length;
  const lines = past.map(incident => {
    const link = element("a", "", incident.incident_id);
    link.href = `#${encodeURIComponent(incident.incident_id)}`;
    const verdict = incident.verdicts[0];
    return element("li", "", link, " ", element("span", "soft", join([`${incident.state} ${clock(incident.resolved_at)}`, how(incident)])),
      element("div", "", ...prose(verdict ? `It was: ${verdict.summary}` : "")));
  });
  const older = lines.slice(AT_ONCE), list = byId("past").querySelector("ul");
  list.replaceChildren(...lines.slice(0, AT_ONCE), ...older.length
    ? [element("li", "", element("details", "", element("summary", "", `${older.length} more`), element("ul", "past", ...older)))] : []);
}

function byReason(sensors) {  // those that are silent for the same reason share its sentence
  const names = new Map();
  for (const {sensor, reason} of sensors) names.set(reason, [...names.get(reason) || [], sensor]);
  return [...names].map(([reason, sharing]) => `${sharing.join(", ")}: ${reason}`);
}
let notesKey = "";
function showNotes(ranks) {
  const notes = [
    ...byReason(ranks.sensors.filter(sensor => !sensor.up && sensor.required)),
    ...ranks.problems,
    ...ranks.held.map(held => `${held.output}: ${held.messages} messages${held.owner ? ` about jobs of ${held.owner}` : ""} wait until ${clock(held.until)}: ${held.reason}`)];
  const key = JSON.stringify(notes);
  if (key === notesKey) return;
  notesKey = key;
  byId("notes").replaceChildren(...notes.map(text => element("p", "note", text)));
}

byId("leave").addEventListener("click", async () => {
  await fetch("logout", {method: "POST", credentials: "same-origin", signal: AbortSignal.timeout(TIMEOUT_MS)}).catch(() => null);
  location.replace("./");
});

let lastGood = null, timer = 0, running = false;
async function refresh() {
  if (running) return;
  running = true;
  clearTimeout(timer);
  try {
    const [ranks, incidents] = await Promise.all([api("ranks"), api("incidents")]);
    setText(byId("node"), `on ${ranks.node}`);
    const absent = byReason(ranks.sensors.filter(sensor => !sensor.up && !sensor.required)).map(words => `${words}.`);
    setText(byId("footer"), join([`stallwatch ${ranks.tool_version}. It observes only: it ends and restarts nothing.`, ...absent], " "));
    showNotes(ranks);
    const culprits = new Set(incidents.incidents.filter(incident => incident.state === "open")
      .flatMap(incident => (incident.verdicts[0] || {culprits: []}).culprits.map(rank => `${jobKey(incident)} ${rank}`)));
    showRanks(ranks.ranks, culprits);
    await showIncidents(await withKept(incidents.incidents), ranks.ranks);
    countDown(ranks.at);
    lastGood = new Date();
    byId("connection").className = "soft";
    setText(byId("connection"), `live · ${clock(ranks.at)} ${zone(ranks.at)}`);
    document.body.classList.remove("stale");
  } catch (error) {
    byId("connection").className = "lost";
    const since = lastGood ? ` What follows is from ${clock(lastGood)}.` : "";
    setText(byId("connection"), `not reached: ${error.message}.${since}`);
    document.body.classList.add("stale");
  } finally {
    running = false;
    timer = setTimeout(refresh, document.hidden ? HIDDEN_MS : REFRESH_MS);
  }
}
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
refresh();
