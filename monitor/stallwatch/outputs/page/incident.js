"use strict";
// One incident, drawn anew only when it changed: open <details> and selections stay.
const MOVES = new Set(["slow_rank", "healthy"]);  // of a job that goes on
function list(title, lines, tag = "ul") {
  if (!lines.length) return null;
  return element("div", "", element("h3", "", title), element(tag, "", ...lines.map(line => element("li", "", ...prose(line)))));
}
function culprit(process, verdict) {
  const who = join([`Rank ${process.rank}`, process.host, process.pid && `pid ${process.pid}`, process.gpu_uuid,
    (process.where || verdict.where) && `in ${process.where || verdict.where}`]);
  const box = element("div", "culprit", element("div", "who", who));
  const frame = process.frame;
  if (frame) {
    box.append(element("div", "mono", `${frame.file}:${frame.line} in ${frame.function}`));
    if (frame.source) box.append(element("pre", "", frame.source.trim()));
  }
  return box;
}
const DIFFERS = {op: "operation", size: "size", dtype: "element type", count: "number of calls"};
function whoAndNext(verdict) {  // who, at which line, and what to do about it: all that is needed at three in the morning
  const differs = verdict.mismatch && `Differs in ${DIFFERS[verdict.mismatch.kind] || verdict.mismatch.kind}: the others ${verdict.mismatch.expected}, here ${verdict.mismatch.found}`;
  const shown = verdict.culprit_processes.slice(0, 16);
  const more = verdict.culprit_processes.length - shown.length;
  const who = shown.length || differs ? element("div", "", ...shown.map(process => culprit(process, verdict)),
    more > 0 ? element("p", "soft", `and ${more} more`) : null, differs ? element("p", "", differs) : null) : null;
  const next = list("What to do", verdict.next_steps, "ol");
  return who || next ? element("div", "columns first", who, next) : null;
}
function verdictParts(verdict) {
  const operation = join([verdict.operation, verdict.seq !== null && verdict.operation && `#${verdict.seq}`], " ");
  const group = verdict.process_group && `of ${verdict.process_group.description}`;
  const waiting = verdict.waiting && `Waiting: ranks ${verdict.waiting}` + (operation ? ` in ${join([operation, group], " ")}` : "");
  return [
    whoAndNext(verdict),
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
  const box = element("details", "", element("summary", "", "History and raw evidence"), element("ol", "", ...lines.map(line => element("li", "", line))));
  const link = element("a", "", "Download the raw evidence");
  link.href = `api/v1/incidents/${encodeURIComponent(incident.incident_id)}/bundle.tar.gz`;
  box.append(element("p", "", link), element("p", "soft mono", incident.bundle));
  return box;
}
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
function countDown(now) {  // a deadline is felt as the time that is left
  for (const left of document.querySelectorAll(".left")) {
    const seconds = (Date.parse(left.dataset.until) - Date.parse(now)) / 1000;
    setText(left, Number.isNaN(seconds) ? "" : seconds < 0 ? " (that is over)" : ` (in ${duration(seconds)})`);
  }
}
function silence(incident) {  // whoever may silence a job is a member of the socket's group; the page's token only reads
  if (isOver(incident)) return null;
  const command = words => element("code", "", `stallwatch mute ${shellWord(incident.training_job)}${incident.owner ? ` --owner ${shellWord(incident.owner)}` : ""} --for ${words}`);
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
function incidentCard(incident, timeline, ranks) {
  const verdict = incident.verdicts[0];
  const standing = isOver(incident) ? incident.state : incident.severity;
  const card = element("article", standing);
  card.id = incident.incident_id;
  card.append(element("div", "tags",
    element("span", `tag ${standing}`, incident.state === "suspect" ? "suspect" : standing === "none" ? "nobody told" : standing),
    verdict ? element("span", "tag mono", join([verdict.cause, verdict.where])) : null,
    verdict ? element("span", "tag", verdict.confidence) : null,
    incident.muted ? element("span", "tag", "muted") : null,
    element("span", "", `job ${incident.training_job}${incident.owner ? ` of ${incident.owner}` : ""}`),
    element("span", "soft", `${incident.incident_id} on ${incident.node} · since ${clock(incident.opened_at)}`)));
  card.append(element("p", "sentence", ...prose(verdict ? verdict.summary : incident.findings.map(finding => finding.reason).join("; ") || "No verdict yet")));
  if (isOver(incident)) card.append(element("p", "", `${incident.state === "ended" ? "Ended" : "Resolved"}: ${incident.resolution}`));
  card.append(...[safety(incident), acknowledgement(incident)].filter(Boolean));  // what to do with the job is asked first
  if (verdict) card.append(...verdictParts(verdict).filter(Boolean));
  if (incident.stacks) card.append(stacks(incident.stacks, verdict));
  card.append(...timelineParts(incident, timeline, ranks));
  card.append(...[silence(incident), history(incident)].filter(Boolean));
  return card;
}

