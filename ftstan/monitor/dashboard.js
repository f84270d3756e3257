"use strict";
const EVERY_MS = 1000, WITHIN_MS = 2500, HISTORY_MS = 10000;
const MINUTES_MS = 120000, HOUR_MS = 3600000, WIDE = 240;
const $ = (selector) => document.querySelector(selector);
/* What a member of another release does not tell is a dash. */
const isNumber = Number.isFinite;
function numbers(options) {
  const made = new Intl.NumberFormat("en", options);
  return { format: (n) => isNumber(n) ? made.format(n) : "–" };
}
const count = numbers({}), short = numbers({ notation: "compact", maximumFractionDigits: 1 });
/* As ftstan/base/sizes.py writes them. */
const bytes = (n) => {
  if (!isNumber(n)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  let at = 0;
  while (n >= (at ? 1023.95 : 1024) && at < units.length - 1) { n /= 1024; at += 1; }
  return `${at ? n.toFixed(1) : Math.round(n)} ${units[at]}`;
};
const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");
const moment = (ms) => !isNumber(ms) ? "–" : Date.now() - ms < 43200000 ? clock(ms) : new Date(ms).toLocaleString("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
const span = (s) => !isNumber(s) ? "–" : s < 60 ? `${Math.floor(s)} s` : s < 3600 ? `${Math.floor(s / 60)} min`
  : s < 86400 ? `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} min` : `${Math.floor(s / 86400)} d ${Math.floor(s % 86400 / 3600)} h`;

/* Everything that a client chose the name of becomes text, never markup. */
function h(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) if (value !== null) node.setAttribute(name, value);
  node.append(...children.filter((child) => child !== null));
  return node;
}
function svg(tag, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

/* ---- which member to ask ---- */
const home = location.origin;
let current = home, peers = new Map(), paused = false, told = "", answered = 0;
/* Members that ask for a token get it only when somebody who saw their names has typed it; it is kept in this page alone. */
const asking = new Set(), trusted = new Set();
let token = "";

async function get(base, path = "data") {
  const stop = AbortSignal.timeout(WITHIN_MS);
  const headers = trusted.has(base) ? { Authorization: `Bearer ${token}` } : {};
  const answer = await fetch(`${base}/dashboard/${path}`, { signal: stop, cache: "no-store", headers, credentials: base === home ? "same-origin" : "omit" });
  if (answer.status === 401) { asking.add(base); trusted.delete(base); } else asking.delete(base);
  if (!answer.ok) throw new Error(answer.statusText);
  return answer.json();
}
function learn(base, data) {
  for (const member of data.members) {
    /* Another member's word: nothing but the address of a page is a link. */
    if (!/^https?:\/\/[^\s\/?#@\\]+:\d+$/.test(member.monitor)) member.monitor = "";
    if (member.monitor) peers.set(member.monitor, member);
  }
}
/* The page shows who serves: the member asked last if it still does, else whoever says so, else anybody who answers. */
async function look() {
  let fallback = null;
  for (const base of new Set([current, home, ...peers.keys()])) {
    let data;
    try { data = await get(base); } catch { continue; }
    learn(base, data);
    if (data.node.serving) { current = base; return [base, data]; }
    if (fallback === null || data.node.holder_epoch > fallback[1].node.holder_epoch) fallback = [base, data];
  }
  if (fallback !== null) current = fallback[0];
  return fallback;
}

/* ---- the plots ---- */
const plots = [
  { key: "in", title: "Published", unit: "/s", show: (v) => short.format(Math.round(v)) },
  { key: "out", title: "Delivered", unit: "/s", show: (v) => short.format(Math.round(v)) },
  { key: "commit", title: "Commit, mean", unit: "ms", show: (v) => v < 10 ? v.toFixed(1) : Math.round(v).toString() },
  { key: "pending", title: "Unacknowledged", unit: "", show: (v) => short.format(v) },
];
/* What this page has measured, each second, and what servers remember of the hour, each ten seconds; by the servers' clocks. */
let live = [], hour = [], epochs = [], shownMs = MINUTES_MS, now = 0, last = null, remembered = { base: "", server: "", at: 0 };
for (const plot of plots) {
  plot.value = h("strong", {}, "–");
  plot.svg = svg("svg", { viewBox: `0 0 ${WIDE} 40`, preserveAspectRatio: "none", role: "img", "aria-label": plot.title });
  plot.top = h("span", {}, "");
  plot.from = h("span", {}, "2 min ago");
  $("#plots").append(h("figure", { class: "plot" }, h("figcaption", {}, h("span", {}, plot.title), plot.value), plot.svg,
    h("div", { class: "axis", "aria-hidden": "true" }, plot.from, plot.top, h("span", {}, "now"))));
}
const counts = (node) => node.serving || node.role === "Follower";
function measure(data) {
  const seen = { at: data.now_ms, server: data.node.server, epoch: data.node.holder_epoch, ...data.counters, ...data.commits };
  // A member that does not serve counts none of this either.
  const knows = counts(data.node);
  const point = { t: data.now_ms, step: EVERY_MS, knows, pending: knows ? data.totals.pending : null, in: null, out: null, commit: null };
  if (knows && last !== null && last.server === seen.server && seen.at > last.at) {
    const seconds = (seen.at - last.at) / 1000, commits = seen.count - last.count;
    point.in = Math.max(seen.in_msgs - last.in_msgs, 0) / seconds;
    point.out = Math.max(seen.out_msgs - last.out_msgs, 0) / seconds;
    point.commit = commits > 0 ? (seen.seconds - last.seconds) / commits * 1000 : null;
  }
  last = seen;
  now = data.now_ms;
  live = [...live.filter((old) => old.t > now - MINUTES_MS && old.t < now), point];
}
/* A server that took over knows nothing of the time before: what its predecessor told stays. */
async function remember(base, data) {
  const fresh = remembered.base === base && remembered.server === data.node.server;
  if (fresh && Date.now() - remembered.at < HISTORY_MS) return;
  let found;
  try { found = await get(base, `history?since=${fresh && hour.length ? hour.at(-1).t : 0}`); } catch { return; }
  remembered = { base, server: data.node.server, at: Date.now() };
  const points = found.points.map(([t, into, out, commit, pending]) => ({ t, step: found.step_s * 1000, in: into, out, commit, pending }));
  const known = new Set(hour.map((point) => point.t));
  hour = [...hour, ...points.filter((point) => !known.has(point.t))].filter((point) => point.t > now - HOUR_MS).sort((a, b) => a.t - b.t);
}
function draw() {
  const begin = now - shownMs, measured = live.length ? live[0].t : Infinity;
  const points = (shownMs === HOUR_MS ? hour : [...hour.filter((point) => point.t < measured), ...live]).filter((point) => point.t >= begin);
  const marks = epochs.filter((entry) => entry.epoch > 1 && entry.since_ms > begin && entry.since_ms <= now);
  const x = (t) => ((t - begin) / shownMs * WIDE).toFixed(2);
  const spoken = shownMs === HOUR_MS ? "the last hour" : "two minutes";
  for (const plot of plots) {
    const known = points.filter((point) => point[plot.key] !== null);
    const newest = live.at(-1)?.knows === false ? undefined : (live.findLast((point) => point[plot.key] !== null) ?? known.at(-1))?.[plot.key];
    const top = Math.max(...known.map((point) => point[plot.key]), 0);
    const shown = newest === undefined ? "–" : plot.show(newest);
    plot.value.replaceChildren(shown, h("small", {}, plot.unit));
    plot.top.textContent = top > 0 ? `top ${plot.show(top)}` : "";
    plot.from.textContent = shownMs === HOUR_MS ? "1 hour ago" : "2 min ago";
    const y = (value) => (39 - (top > 0 ? value / top * 37 : 0)).toFixed(2);
    let line = "", area = "", open = null, before = null;
    const close = () => { if (open !== null) area += `L${x(before.t)} 39L${x(open.t)} 39Z`; open = null; };
    for (const point of points) {
      const value = point[plot.key];
      if (before !== null && point.t - before.t > 2.5 * Math.max(point.step, before.step) + 1500) close();
      if (value === null) { close(); before = point; continue; }
      const step = `${open === null ? "M" : "L"}${x(point.t)} ${y(value)}`;
      line += step; area += step;
      if (open === null) open = point;
      before = point;
    }
    close();
    plot.svg.replaceChildren(svg("path", { class: "area", d: area }), svg("line", { class: "base", x1: 0, x2: WIDE, y1: 39, y2: 39 }), svg("path", { class: "graph", d: line }),
      ...marks.map((entry) => svg("line", { class: "mark", x1: x(entry.since_ms), x2: x(entry.since_ms), y1: 0, y2: 39 })));
    plot.svg.setAttribute("aria-label", `${plot.title}: ${shown} ${plot.unit}, at most ${plot.show(top)} in ${spoken}`);
  }
}
function choose(ms) {
  shownMs = ms;
  $("#hour").setAttribute("aria-pressed", `${ms === HOUR_MS}`);
  $("#minutes").setAttribute("aria-pressed", `${ms === MINUTES_MS}`);
  draw();
}
$("#hour").addEventListener("click", () => choose(HOUR_MS));
$("#minutes").addEventListener("click", () => choose(MINUTES_MS));

/* ---- the tables ---- */
const tag = (text, kind) => h("span", { class: `tag ${kind}` }, text);
const cell = (kind, label, ...children) => h("td", { class: kind || null, role: "cell", "data-label": label || null }, ...children);
const number = (label, n) => cell("n", label, count.format(n));
const note = (...tags) => cell("note", "", ...tags.filter(Boolean));
function fill(selector, rows, empty, columns) {
  $(`${selector} tbody`).replaceChildren(...(rows.length ? rows : [h("tr", {}, h("td", { colspan: columns, class: "none" }, empty))]));
}
function lag(n, top) {
  const bar = h("i");
  bar.style.width = `${top ? Math.max(n / top * 100, n ? 4 : 0) : 0}%`;
  return cell("n", "Lag", count.format(n), h("span", { class: "bar", "aria-hidden": "true" }, bar));
}
const fact = ([name, value, kind]) => h("div", {}, h("dt", {}, name), h("dd", { class: kind || null }, value));
const STATES = { FT_ACTIVE: "active", FT_STANDBY: "standby", STANDALONE: "standalone" };
const READY = new Set(["listening for the active server", "trying the store lock"]);
const WORDS = { healthy: ["Healthy", "✓"], degraded: ["Degraded", "▲"], unserved: ["Not served", "✕"], silent: ["No member answers", "✕"] };

function verdict(kind, state, facts, problems, name) {
  const [word, sign] = WORDS[kind];
  document.title = `${sign} ${word} · ${name}`;
  document.body.classList.toggle("stale", kind === "silent");
  $("#verdict").className = kind;
  $("#word").textContent = word;
  $("#state").textContent = state;
  $("#facts").replaceChildren(...facts.map(fact));
  $("#problems").replaceChildren(...problems.map((problem) => h("li", {}, problem)));
  const said = [word, state, ...problems].filter(Boolean).join(". ");
  if (said !== told) { told = said; $("#said").textContent = said; }
}
function standing(member) {
  if (!member.present) return tag("no answer", "bad");
  if (member.role) return tag(member.role.toLowerCase(), { Leader: "on", Follower: "ready" }[member.role] || "warn");
  if (member.state === "FT_STANDBY") return member.phase.startsWith("paused") ? tag("paused", "warn") : tag("standby", READY.has(member.phase) ? "ready" : "warn");
  return tag(STATES[member.state] || member.state.toLowerCase(), STATES[member.state] ? "on" : "warn");
}
const doing = (member) => member.present ? member.phase || "–" : `last heard ${span(member.silent_s)} ago, ${STATES[member.state] || member.state || "–"} then`;
function behind(member) {
  if (!(member.lag_messages >= 0) || !member.present) return "";
  const late = member.lag_s < 0.1 ? "" : `, ${member.lag_s < 10 ? member.lag_s.toFixed(1) : Math.round(member.lag_s)} s`;
  return member.lag_messages === 0 ? "0" : `${short.format(member.lag_messages)} msgs${late}`;
}
function show(base, data) {
  const node = data.node, totals = data.totals, found = data.verdict;
  const name = [node.cluster, node.group].filter(Boolean).join(" / ");
  $("#title").textContent = name;
  const epoch = node.holder_epoch ? `, epoch ${node.holder_epoch}` : "";
  const other = node.serving ? null : data.members.find((member) => member.present && member.state === "FT_ACTIVE" && member.server !== node.server);
  const shows = counts(node);
  const elsewhere = other ? "Seen on the pages of the member that serves" : "Nobody serves";
  const state = node.serving ? `${node.name || node.host || node.server} serves${epoch}` : other ? `${other.name || other.host} serves${epoch}, but its pages do not answer here; ${node.name || node.host}: ${node.phase}` : `${node.name || node.host}: ${node.phase}${epoch}`;
  verdict(found.health, state, [["Members", `${count.format(found.present)} of ${count.format(found.expected)}`], ["Since", `${moment(found.since_ms)} (${span(Math.max(data.now_ms - found.since_ms, 0) / 1000)})`]], found.problems, name);
  $("#through").textContent = `${base === home ? "this member" : `seen through ${new URL(base).host}`}, up ${span(node.uptime)}${node.probe_age !== null && node.probe_age > 5 ? `, storage silent for ${span(node.probe_age)}` : ""}`;
  $("#version").textContent = `ftstan ${node.version || "–"}`;
  epochs = data.epochs;

  const members = data.members.length ? [...data.members] : [{ ...node, monitor: base, present: true, lag_messages: -1 }];
  members.sort((a, b) => b.present - a.present || (a.state > b.state) - (a.state < b.state));
  fill("#group", members.map((member) => h("tr", { class: member.present ? null : "absent" },
    cell("name", "", member.name || member.host || "–", " ", !member.name ? h("code", {}, member.server || "") : member.name === member.host || !member.host ? "" : h("span", { class: "where" }, member.host)), note(standing(member)), cell("wrap", "Doing", doing(member)),
    cell("n", behind(member) && "Behind", behind(member)), cell("", "Version", member.version || "–"),
    cell("", "Pages", member.monitor ? h("a", { href: `${member.monitor}/dashboard`, rel: "noreferrer", "aria-label": `Dashboard of ${member.name || member.host}` }, new URL(member.monitor).host) : "–"))), "", 6);

  const free = data.room ? [bytes(data.room.free_bytes), data.room.free_bytes * 10 < data.room.total_bytes ? "warn" : ""] : ["–", ""];
  $("#totals dl").replaceChildren(...[["Channels", short.format(totals.channels)], ["Messages", short.format(totals.msgs)], ["Size", bytes(totals.bytes)], ["Clients", short.format(totals.clients)],
    ["Subscriptions", short.format(totals.subscriptions)], ["Free space", ...free], ["Stalled", count.format(totals.stalled), totals.stalled ? "warn" : ""], ["Sent again", short.format(data.counters.redelivered)], ["Dead letters", short.format(data.counters.dead_letters ?? 0), data.counters.dead_letters_refused ? "warn" : ""], ["Quarantined", count.format(totals.quarantined), totals.quarantined ? "warn" : ""]].map(fact));

  // A member that does not serve counts none of this: no figure is not the figure 0.
  if (!shows) for (const value of document.querySelectorAll("#totals dd")) value.textContent = "–";

  const most = Math.max(...data.channels.map((row) => row.lag), 0);
  $("#channels h2 small").textContent = totals.channels > data.channels.length ? `${data.channels.length} of ${count.format(totals.channels)}` : "";
  fill("#channels", data.channels.map((row) => h("tr", {}, h("td", { class: "name", role: "cell", title: row.name }, row.name), number("Messages", row.msgs), cell("n", "Size", bytes(row.bytes)),
    number("Last sequence", row.last), number("Readers", row.subs), number("Pending", row.pending), lag(row.lag, most),
    note(row.quarantined && tag("quarantined", "bad"), row.moved && tag("moved", "warn"), row.unread > 0 && tag(`${short.format(row.unread)} removed unread`, "bad"), row.stalled > 0 && tag(`${row.stalled} stalled`, "bad"),
      row.full && row.unread === 0 && (row.lag ? tag("at its limit, a reader behind", "warn") : tag("at its limit", ""))))), shows ? "No channel yet" : elsewhere, 8);

  const worst = Math.max(...data.subscriptions.map((row) => row.lag), 0);
  $("#subs h2 small").textContent = totals.subscriptions > data.subscriptions.length ? `${data.subscriptions.length} of ${count.format(totals.subscriptions)}` : "";
  fill("#subs", data.subscriptions.map((row) => h("tr", {}, h("td", { class: "name", role: "cell", title: row.client }, row.client || "–"), h("td", { title: row.channel, role: "cell", "data-label": "Channel" }, row.channel),
    cell("", "Durable or group", row.queue || row.durable || "–"), cell("n", "Pending", count.format(row.pending), ` / ${count.format(row.max)}`), lag(row.lag, worst),
    note(row.offline ? tag("offline", "") : row.stalled ? tag("stalled", "bad") : null))), shows ? "No subscription" : elsewhere, 6);

  $("#takeovers ol").replaceChildren(...data.epochs.map((entry, i) => h("li", i ? {} : { class: "now" }, h("b", {}, `${entry.epoch}`), h("span", { class: "why" }, entry.cause),
    h("time", { datetime: new Date(entry.since_ms).toISOString() }, new Date(entry.since_ms).toLocaleString("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" })),
    h("span", { class: "where", title: `${entry.host}, server ${entry.server}` }, entry.name || entry.host, " ", entry.name ? "" : h("code", {}, entry.server)), h("span", { class: "where" }, span((entry.until_ms || Math.max(data.now_ms, entry.since_ms)) / 1000 - entry.since_ms / 1000)))));
  if (!data.epochs.length) $("#takeovers ol").replaceChildren(h("li", { class: "none" }, shows ? "No takeover yet" : elsewhere));
}
function lost() {
  const since = answered ? [["Last answer", `${clock(answered)} (${span((Date.now() - answered) / 1000)} ago)`]] : [];
  verdict("silent", answered ? "What is shown below was true then" : "", since, [], $("#title").textContent || location.host);
  $("#through").textContent = "asking again";
}

function ask() {
  $("#asking").textContent = [...asking].map((base) => new URL(base).host).join(", ");
  $("#token").hidden = asking.size === 0;
}
$("#token").addEventListener("submit", (event) => {
  event.preventDefault();
  token = $("#secret").value;
  $("#secret").value = "";
  for (const base of asking) trusted.add(base);
  asking.clear();
  ask();
});

async function turn() {
  if (!paused && !document.hidden) {
    const found = await look();
    ask();
    if (found === null) lost();
    else {
      answered = Date.now();
      measure(found[1]);
      await remember(...found);
      show(...found);
      draw();
    }
  }
  setTimeout(turn, EVERY_MS);
}
$("#pause").addEventListener("click", () => {
  paused = !paused;
  $("#pause").setAttribute("aria-pressed", `${paused}`);
});
turn();
