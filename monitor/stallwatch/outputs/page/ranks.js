"use strict";
// Ranks: a table for each job, its rows kept and only their changed cells written.
const COLUMNS = [
  ["rank", "number", rank => `${rank.rank}`],
  ["state", "", (rank, isBlamed) => join([rank.state, rank.ended, isBlamed && "culprit"], ", ")],
  ["step", "number", rank => rank.step === null ? "?" : `${rank.step}`],
  ["step time", "number wide", rank => duration(rank.step_seconds)],
  ["since step", "number", rank => duration(rank.beat_age_seconds)],
  ["limit", "number wide", rank => duration(rank.limit_seconds)],
  ["phase", "", rank => rank.phase],
  ["pid", "number wide", rank => `${rank.pid}`],
  ["GPU", "mono wide", rank => rank.gpu_uuid ? rank.gpu_uuid.slice(0, 12) : ""],
];
const MANY = 48;  // from more ranks on, a map of all and a table of those that differ
const tables = new Map();
function jobTable(key) {
  if (!tables.has(key)) {
    const heading = element("h2", "");
    const body = element("tbody");
    const head = element("tr", "", ...COLUMNS.map(([title, className]) => {
      const cell = element("th", className, title); cell.scope = "col"; return cell; }));
    const table = element("table", "", element("thead", "", head), body);
    const scroll = element("div", "scroll", table);
    scroll.tabIndex = 0;  // a narrow window scrolls it by keyboard too
    scroll.setAttribute("role", "region");
    const map = element("div", "map"), said = element("p", "soft"), all = element("button", "all", "");
    all.type = "button";
    const made = {box: element("div", "", heading, said, map, all, scroll), heading, table, scroll, said, map, all, body, rows: new Map(), cells: [], whole: false};
    all.addEventListener("click", () => { made.whole = !made.whole; refresh(); });
    map.setAttribute("role", "img");
    tables.set(key, made);
  }
  return tables.get(key);
}
function jobKey(of) { return JSON.stringify([of.owner, of.training_job, of.epoch]); }  // names are free to every user
function showRanks(ranks, culprits) {
  const jobs = new Map();
  for (const rank of ranks) {
    const key = jobKey(rank);
    if (!jobs.has(key)) jobs.set(key, []);
    jobs.get(key).push(rank);
  }
  for (const key of tables.keys()) if (!jobs.has(key)) { tables.get(key).box.remove(); tables.delete(key); }
  // A job that stands comes first, one that is over last.
  const over = members => members.every(rank => rank.state === "gone" || rank.state === "ending");
  const blamed = rank => culprits.has(`${jobKey(rank)} ${rank.rank}`);
  const stands = members => members.some(blamed);
  const names = [...jobs.values()].map(members => members[0].training_job);
  const ordered = [...jobs].sort(([, a], [, b]) => over(a) - over(b) || stands(b) - stands(a));
  ordered.forEach(([key, members], place) => {
    const table = jobTable(key);
    const missing = members[0].world_size - members.length;
    table.box.classList.toggle("no-phase", !members.some(rank => rank.phase));
    table.box.classList.toggle("no-gpu", !members.some(rank => rank.gpu_uuid));
    const name = members[0].training_job, lives = names.filter(other => other === name).length;
    const isGone = members.every(rank => rank.state === "gone"), ends = [...new Set(members.map(rank => rank.ended).filter(Boolean))];
    const gone = isGone ? `, all gone${ends.length ? `: ${ends.slice(0, 3).join(", ")}` : ""}` : "";  // as `status` says it
    const which = lives > 1 ? ` (one of ${lives} of this name: ${join([members[0].owner, members[0].epoch])})` : "";
    setText(table.heading, `${name}: ${members.length} of ${members[0].world_size} ranks${missing > 0 ? " are on this node" : ""}${gone}${which}`);
    table.table.setAttribute("aria-label", `Ranks of ${name}${which}`);
    table.scroll.setAttribute("aria-label", `Table of the ranks of ${name}${which}`);  // two of one name are told apart
    const isFolded = isGone && !stands(members), many = members.length > MANY && !isFolded;
    for (const part of [table.said, table.map]) part.hidden = !many;
    table.all.hidden = !many && !isFolded;
    table.scroll.hidden = isFolded && !table.whole;
    if (many) drawMap(table, members, blamed);
    setText(table.all, table.whole ? many ? "Show only those that differ" : "Hide them" : `Show all ${members.length} ranks`);
    drawRows(table, many && !table.whole ? outliers(members, blamed) : members, blamed);
    const section = byId("ranks");
    if (section.children[place] !== table.box) section.insertBefore(table.box, section.children[place] || null);
  });
}
function counts(members) {
  const found = new Map();
  for (const rank of members) found.set(rank.state, (found.get(rank.state) || 0) + 1);
  return [...found].sort((a, b) => b[1] - a[1]);
}
function outliers(members, blamed) {  // culprits first, then the states of the fewest
  const usual = counts(members)[0][0];
  const odd = members.filter(rank => blamed(rank) || rank.state !== usual);
  return odd.sort((a, b) => blamed(b) - blamed(a) || a.rank - b.rank).slice(0, 24);
}
function drawMap(table, members, blamed) {
  const words = counts(members).map(([state, count]) => `${count} ${state}`).join(", ");
  setText(table.said, words);
  table.map.setAttribute("aria-label", `Map of ranks: ${words}`);
  while (table.cells.length < members.length) { const cell = element("span"); table.cells.push(cell); table.map.append(cell); }
  while (table.cells.length > members.length) table.cells.pop().remove();
  members.forEach((rank, i) => {
    const name = `cell ${rank.state}${blamed(rank) ? " blamed" : ""}`, cell = table.cells[i];
    if (cell.className !== name) { cell.className = name; cell.title = `rank ${rank.rank}: ${rank.state}`; }
  });
}
function drawRows(table, members, blamed) {
  const present = new Set();
  let before = null;
  for (const rank of members) {
    const id = `${rank.rank} ${rank.pid}`;
    present.add(id);
    let row = table.rows.get(id);
    if (!row) {
      row = element("tr", "", ...COLUMNS.map(([, className]) => element("td", className)));
      table.rows.set(id, row);
    }
    const place = before ? before.nextSibling : table.body.firstChild;
    if (place !== row) table.body.insertBefore(row, place);
    before = row;
    COLUMNS.forEach(([, , read], i) => setText(row.children[i], read(rank, blamed(rank))));
    row.children[1].className = `state ${rank.state}`;
    row.children[5].title = rank.limit_reason;
    row.className = blamed(rank) ? "culprit-row" : "";
  }
  for (const [id, row] of table.rows) if (!present.has(id)) { row.remove(); table.rows.delete(id); }
}
