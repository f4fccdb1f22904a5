"use strict";
// One incident, drawn anew only when it changed: open <details> and selections stay.
const MOVES = new Set(["slow_rank", "healthy"]);  // of a job that goes on
function list(title, lines, tag = "ul") {
  if (!lines.length) return null;
  return element("div", "", element("h3", "", title), element(tag, "", ...lines.map(line => element("li", "", ...prose(line)))));
}
function culprit(processes, verdict) {  // one card for those that stand at the same line
  const [first] = processes, one = processes.length === 1, where = placeOf(first.where || verdict.where);
  const name = called(processes.map(process => process.rank));
  const hosts = [...new Set(processes.map(process => process.host).filter(Boolean))];
  const who = join([name[0].toUpperCase() + name.slice(1), hosts.length > 4 ? `${hosts.length} nodes` : hosts.join(", "),
    one && first.pid && `pid ${first.pid}`, one && first.gpu_uuid, where && `in ${where}`]);
  const box = element("div", "culprit", element("div", "who", who));
  const frame = first.frame;
  if (frame) {
    box.append(element("div", "mono", `${frame.file}:${frame.line} in ${frame.function}`));
    if (frame.source) box.append(element("pre", "", frame.source.trim()));
  }
  return box;
}
function byLine(processes) {
  const alike = new Map();
  for (const process of processes) {
    const key = process.frame ? JSON.stringify([process.where, process.frame]) : `rank ${process.rank}`;
    alike.set(key, [...alike.get(key) || [], process]);
  }
  return [...alike.values()];
}
function others(verdict) {  // where the rest of the job stands: often the line with the missing call
  if (!verdict.waiting || !verdict.waiting_at) return null;
  const ranks = numbers(verdict.waiting);
  return element("div", "others", element("div", "who", `The others (${ranks.length ? called(ranks) : verdict.waiting})`), element("div", "", ...prose(verdict.waiting_at)));
}
const DIFFERS = {op: "operation", size: "size", dtype: "element type", count: "number of calls"};
function whoAndNext(verdict, over) {  // who, at which line, and what to do about it: all that is needed at three in the morning
  const [most, here] = verdict.culprits.length ? ["the others", "here"] : ["some ranks", "others"];  // else nothing tells who is right
  const differs = verdict.mismatch && `Differs in ${DIFFERS[verdict.mismatch.kind] || verdict.mismatch.kind}: ${most} ${verdict.mismatch.expected}, ${here} ${verdict.mismatch.found}`;
  const groups = byLine(verdict.culprit_processes), shown = groups.slice(0, 8), rest = others(verdict);
  const more = groups.slice(8).flatMap(group => group.map(process => process.rank));
  const who = shown.length || differs || rest ? element("div", "", ...shown.map(group => culprit(group, verdict)),
    more.length ? element("p", "soft", `and ${called(more)}`) : null, differs ? element("p", "", differs) : null, rest) : null;
  const next = list(over ? "What is left to do" : "What to do", verdict.next_steps, "ol");
  return who || next ? element("div", "columns first", who, next) : null;
}
function verdictParts(verdict, over) {
  const operation = join([verdict.operation, verdict.seq !== null && verdict.operation && `#${verdict.seq}`], " ");
  const group = verdict.process_group && `of ${verdict.process_group.description}`;
  const waiting = verdict.waiting && `Waiting: ranks ${verdict.waiting}` + (operation ? ` in ${join([operation, group], " ")}` : "");
  return [
    whoAndNext(verdict, over),
    graph(verdict),
    waiting && edges(verdict).length < 2 ? element("p", "", waiting) : null,
    list("Because", verdict.because.map(fact => `${fact.fact} (${fact.source})`)),
    list("Missing", verdict.missing),
  ];
}
function history(incident) {
  // A sentence that stands above, or was said before, is not said again (cli/incident_view.py does the same).
  const said = incident.verdicts.slice(0, 1).map(verdict => verdict.summary);
  const lines = incident.events.filter(event => !/^look \d+ done$/.test(event.what)).map(event => {
    const what = said.reduce((text, sentence) => text.replace(`: ${sentence}`, ", as above").replace(sentence, "as above"), event.what);
    const sentence = /^verdict: \w+ \(\w+\): ([^]+)$/.exec(what);
    if (sentence) said.push(sentence[1]);
    return `${clock(event.at)} ${what}`;
  });
  const box = folded(incident, "history", false, element("summary", "", "History and raw evidence"), element("ol", "", ...lines.map(line => element("li", "", line))));
  const link = element("a", "", "Download the raw evidence");
  link.href = `api/v1/incidents/${encodeURIComponent(incident.incident_id)}/bundle.tar.gz`;
  box.append(element("p", "", link), element("p", "soft mono", incident.bundle));
  return box;
}
function how(incident) { return incident.state === "ended" && incident.resolution === "the job ended" ? "" : incident.resolution; }  // the state says it
function isOver(incident) { return incident.state === "resolved" || incident.state === "ended"; }  // ended: dead, and not well again
function safety(incident) {
  if (!incident.verdicts.length || isOver(incident)) return null;
  const cause = incident.verdicts[0].cause, moves = MOVES.has(cause);
  const [className, words] = !incident.evidence_complete ? ["unsafe", "Evidence not complete: ending the job now loses some of it"]
    : ["safe", moves ? "Evidence complete; the job moves, nothing has to be ended"
      : cause === "waiting" ? "Evidence complete; the wait may end by itself" : "Evidence complete, safe to kill"];
  const left = element("span", "left");
  left.dataset.until = incident.deadline || "";
  return element("p", "", element("span", className, words),
    ...incident.deadline && !moves ? [` · torch's own timeout ends the job at ${clock(incident.deadline)}`, left] : []);
}
function when(incident) {
  const began = clock(incident.opened_at);
  if (isOver(incident)) return `${began}, for ${lasting((Date.parse(incident.resolved_at) - Date.parse(incident.opened_at)) / 1000)}`;
  const lasts = element("span", "lasts");
  lasts.dataset.since = incident.opened_at;
  return element("span", "", `since ${began}`, lasts);
}
function untold(incident) {  // who looks at a verdict that wakes nobody must not take it for a fault
  if (isOver(incident) || incident.severity !== "none") return null;
  if (incident.state === "suspect") return element("p", "", "Its ranks are being looked at, which takes some seconds. Nobody is told yet.");
  if (!incident.verdicts.length) return null;
  if (incident.tell_at) {
    const left = element("span", "left");
    left.dataset.until = incident.tell_at;
    return element("p", "", `Nobody is told yet: ${incident.tell_reason}. Told at ${clock(incident.tell_at)}`, left, " unless it moves.");
  }
  const said = incident.events.map(event => /^nobody is told(?: yet)?: ([^;]+)/.exec(event.what)).filter(Boolean).pop();
  const elsewhere = incident.together && !incident.together.speaks && incident.together.why;
  const why = incident.tell_reason || elsewhere || said && said[1];
  return why ? element("p", "", `Nobody is told: ${why}.`) : null;
}
const folds = new Map();  // what a person has opened or closed stays so when a card is drawn anew
function folded(incident, name, open, ...children) {
  const key = `${incident.incident_id} ${name}`, box = element("details", "", ...children);
  box.open = folds.has(key) ? folds.get(key) : open;
  box.addEventListener("toggle", () => { if (box.isConnected) folds.set(key, box.open); });
  return box;
}
function countDown(now) {  // a deadline is felt as the time that is left
  for (const lasts of document.querySelectorAll(".lasts"))
    setText(lasts, `, for ${lasting((Date.parse(now) - Date.parse(lasts.dataset.since)) / 1000)}`);
  for (const left of document.querySelectorAll(".left")) {
    const seconds = (Date.parse(left.dataset.until) - Date.parse(now)) / 1000;
    setText(left, Number.isNaN(seconds) ? "" : seconds < 0 ? " (that is over)" : ` (in ${lasting(seconds)})`);
  }
}
function silence(incident) {  // whoever may silence a job is a member of the socket's group; the page's token only reads
  if (isOver(incident) || incident.state === "suspect" && !incident.muted) return null;
  const command = words => code(`stallwatch mute ${shellWord(incident.training_job)}${incident.owner ? ` --owner ${shellWord(incident.owner)}` : ""} --for ${words}`);
  // Of a mute, a maintenance and a mode the last that was noted holds.
  const said = incident.events.map(event => /\S+ is in maintenance.*|the mode is .*|the job is muted/.exec(event.what)).filter(Boolean).pop();
  if (incident.muted && said && said[0] !== "the job is muted")
    return element("p", "soft", `Muted: nobody is told, for ${said[0].replace(/; it would have been told.*/, "")}.`);
  return incident.muted
    ? element("p", "soft", "Muted: nobody is told of this job. On the node ", command("0"), " ends that.")
    : element("p", "soft", "To hear nothing of this job for a while, on the node: ", command("2h"));
}
function shellWord(text) { return /^[\w@%+=:,.\/-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`; }
function acknowledgement(incident) {
  if (isOver(incident)) return null;
  if (incident.acknowledged_by) return element("p", "", element("span", "safe", `${person(incident.acknowledged_by)} is on it`));
  const button = element("button", "all", "Acknowledge"), said = element("span", "soft", "");
  said.setAttribute("role", "status");
  const form = element("form", "acknowledge", button, said);
  form.addEventListener("submit", async event => {
    event.preventDefault();
    button.disabled = true;
    try {
      const {by} = await api(`incidents/${encodeURIComponent(incident.incident_id)}/acknowledge`, {});
      said.textContent = `noted: ${by}`;
    } catch (error) {
      said.textContent = error.message;
      button.disabled = false;
    }
  });
  return form;
}
function person(name) { return name.startsWith("slack:") ? "somebody in Slack" : name; }
function incidentCard(incident, timeline, ranks, first) {
  const verdict = incident.verdicts[0];
  const standing = isOver(incident) ? incident.state : incident.severity;
  const card = element("article", standing);
  card.id = incident.incident_id;
  card.append(element("div", "tags",
    element("span", `tag ${standing}`, incident.state === "suspect" ? "suspect" : standing === "none" ? "nobody told" : standing),
    verdict ? element("span", "tag mono", causeOf(verdict)) : null,
    verdict ? element("span", "tag", verdict.confidence) : null,
    incident.muted ? element("span", "tag", "muted") : null,
    element("span", "", `job ${incident.training_job}${incident.owner ? ` of ${incident.owner}` : ""}`),
    element("span", "soft", `${incident.incident_id} on ${incident.node}`), element("span", "soft", when(incident))));
  card.append(element("h2", "sentence", ...prose(verdict ? verdict.summary : incident.findings.map(finding => finding.reason).join("; ") || "No verdict yet")));
  if (isOver(incident)) card.append(element("p", "", join([`${incident.state === "ended" ? "Ended" : "Resolved"} at ${clock(incident.resolved_at)}`, how(incident)], ": ")));
  const kill = safety(incident), quiet = untold(incident);  // what to do with the job is asked first: where it may end by itself, wait
  card.append(...[...incident.tell_at ? [quiet, kill] : [kill, quiet], acknowledgement(incident)].filter(Boolean));
  const rest = [...verdict ? verdictParts(verdict, isOver(incident)) : [], incident.stacks ? stacks(incident, verdict) : null,
    ...timelineParts(incident, timeline, ranks), silence(incident), history(incident)].filter(Boolean);
  // Of several the first is read; who wants another one opens it.
  card.append(...first ? rest : [folded(incident, "rest", false, element("summary", "", "Why, where, and what to do"), ...rest)]);
  return card;
}

