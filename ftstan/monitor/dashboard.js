"use strict";
const EVERY_MS = 1000, WITHIN_MS = 2500, POINTS = 120;
const $ = (selector) => document.querySelector(selector);
const count = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const bytes = (n) => {
  const units = ["B", "KB", "MB", "GB", "TB", "PB"];
  let at = 0;
  while (n >= 1000 && at < units.length - 1) { n /= 1000; at += 1; }
  return `${at && n < 100 ? n.toFixed(1) : Math.round(n)} ${units[at]}`;
};
const span = (s) => s < 60 ? `${Math.floor(s)} s` : s < 3600 ? `${Math.floor(s / 60)} min`
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
let current = home, peers = new Map(), paused = false, told = "";
/* Members that ask for a token get it only when somebody who saw their names has typed it; it is kept in this page alone. */
const asking = new Set(), trusted = new Set();
let token = "";

async function get(base) {
  const stop = AbortSignal.timeout(WITHIN_MS);
  const headers = trusted.has(base) ? { Authorization: `Bearer ${token}` } : {};
  const answer = await fetch(`${base}/dashboard/data`, { signal: stop, cache: "no-store", headers, credentials: base === home ? "same-origin" : "omit" });
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
const points = [];
let last = null;
for (const plot of plots) {
  plot.value = h("strong", {}, "–");
  plot.svg = svg("svg", { viewBox: `0 0 ${POINTS - 1} 40`, preserveAspectRatio: "none", role: "img", "aria-label": plot.title });
  plot.top = h("span", {}, "");
  $("#plots").append(h("figure", { class: "plot" }, h("figcaption", {}, h("span", {}, plot.title), plot.value), plot.svg,
    h("div", { class: "axis", "aria-hidden": "true" }, h("span", {}, "2 min ago"), plot.top, h("span", {}, "now"))));
}
function measure(data) {
  const point = { epoch: data.node.holder_epoch, taken: last !== null && data.node.holder_epoch > last.epoch, pending: data.totals.pending, in: null, out: null, commit: null };
  const now = { at: data.now_ms, server: data.node.server, epoch: data.node.holder_epoch, ...data.counters, ...data.commits };
  if (last !== null && last.server === now.server && now.at > last.at) {
    const seconds = (now.at - last.at) / 1000, commits = now.count - last.count;
    point.in = Math.max(now.in_msgs - last.in_msgs, 0) / seconds;
    point.out = Math.max(now.out_msgs - last.out_msgs, 0) / seconds;
    point.commit = commits > 0 ? (now.seconds - last.seconds) / commits * 1000 : null;
  }
  last = now;
  return point;
}
function draw() {
  for (const plot of plots) {
    const values = points.map((point) => point === null ? null : point[plot.key]);
    const known = values.filter((value) => value !== null), top = Math.max(...known, 0);
    const newest = values.findLast((value) => value !== null);
    const shown = newest === undefined ? "–" : plot.show(newest);
    plot.value.replaceChildren(shown, h("small", {}, plot.unit));
    plot.top.textContent = top > 0 ? `top ${plot.show(top)}` : "";
    const offset = POINTS - values.length, y = (value) => 39 - (top > 0 ? value / top * 37 : 0);
    let line = "", area = "", open = -1;
    const close = (at) => { if (open >= 0) area += `L${at} 39L${open} 39Z`; open = -1; };
    values.forEach((value, i) => {
      const x = offset + i;
      if (value === null) { close(x - 1); return; }
      const step = `${open < 0 ? "M" : "L"}${x} ${y(value).toFixed(2)}`;
      line += step; area += step;
      if (open < 0) open = x;
    });
    close(POINTS - 1);
    const marks = points.flatMap((point, i) => point !== null && point.taken ? [svg("line", { class: "mark", x1: offset + i, x2: offset + i, y1: 0, y2: 39 })] : []);
    plot.svg.replaceChildren(svg("path", { class: "area", d: area }), svg("line", { class: "base", x1: 0, x2: POINTS - 1, y1: 39, y2: 39 }), svg("path", { class: "graph", d: line }), ...marks);
    plot.svg.setAttribute("aria-label", `${plot.title}: ${shown} ${plot.unit}, at most ${plot.show(top)} in two minutes`);
  }
}

/* ---- the tables ---- */
const tag = (text, kind) => h("span", { class: `tag ${kind}` }, text);
const number = (n, wide) => h("td", { class: wide ? "n wide" : "n" }, count.format(n));
function fill(selector, rows, empty, columns) {
  $(`${selector} tbody`).replaceChildren(...(rows.length ? rows : [h("tr", {}, h("td", { colspan: columns, class: "none" }, empty))]));
}
function lag(n, top) {
  const bar = h("i");
  bar.style.width = `${top ? Math.max(n / top * 100, n ? 4 : 0) : 0}%`;
  return h("td", { class: "n" }, count.format(n), h("span", { class: "bar", "aria-hidden": "true" }, bar));
}
const STATES = { FT_ACTIVE: "active", FT_STANDBY: "standby", STANDALONE: "standalone" };
function show(base, data) {
  const node = data.node, totals = data.totals;
  document.title = `${node.serving ? "●" : "○"} ${node.cluster} · ftstan`;
  $("#title").textContent = [node.cluster, node.group].filter(Boolean).join(" / ");
  const epoch = node.holder_epoch ? `, epoch ${node.holder_epoch}` : "";
  const state = node.serving ? `${node.name || node.host} serves${epoch}` : `${node.name || node.host}: ${node.phase}${epoch}`;
  $("#state").textContent = state;
  $("#state").className = node.serving ? "serving" : "";
  if (state !== told) { told = state; $("#said").textContent = state; }
  $("#through").textContent = `${base === home ? "this member" : `seen through ${new URL(base).host}`}, up ${span(node.uptime)}${node.probe_age !== null && node.probe_age > 5 ? `, storage silent for ${span(node.probe_age)}` : ""}`;
  $("#version").textContent = `ftstan ${node.version}`;

  const members = data.members.length ? [...data.members] : [{ ...node, monitor: base }];
  members.sort((a, b) => (a.state > b.state) - (a.state < b.state));
  fill("#group", members.map((member) => h("tr", {},
    h("td", { class: "name", title: `${member.host}, server ${member.server}` }, member.name || member.host), h("td", { class: "wide" }, member.name ? member.host : h("code", {}, member.server)),
    h("td", {}, tag(STATES[member.state] || member.state, member.state === "FT_STANDBY" ? "" : "on")), h("td", { class: "wrap" }, member.phase),
    h("td", {}, member.monitor ? h("a", { href: `${member.monitor}/dashboard`, rel: "noreferrer", "aria-label": `Dashboard of ${member.name || member.host}` }, new URL(member.monitor).host) : "–"))), "", 5);

  $("#totals dl").replaceChildren(...[["Channels", short.format(totals.channels)], ["Messages", short.format(totals.msgs)], ["Size", bytes(totals.bytes)], ["Clients", short.format(totals.clients)],
    ["Subscriptions", short.format(totals.subscriptions)], ["Stalled", count.format(totals.stalled)], ["Sent again", short.format(data.counters.redelivered)], ["Quarantined", count.format(totals.quarantined)]]
    .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));

  const most = Math.max(...data.channels.map((row) => row.lag), 0);
  $("#channels h2 small").textContent = totals.channels > data.channels.length ? `${data.channels.length} of ${count.format(totals.channels)}` : "";
  fill("#channels", data.channels.map((row) => h("tr", {}, h("td", { class: "name", title: row.name }, row.name), number(row.msgs, true), h("td", { class: "n wide" }, bytes(row.bytes)),
    number(row.last, true), number(row.subs, true), number(row.pending), lag(row.lag, most),
    h("td", {}, row.quarantined ? tag("quarantined", "bad") : row.stalled ? tag(`${row.stalled} stalled`, "bad") : ""))), node.serving ? "No channel yet" : "Nobody serves", 8);

  const worst = Math.max(...data.subscriptions.map((row) => row.lag), 0);
  $("#subs h2 small").textContent = totals.subscriptions > data.subscriptions.length ? `${data.subscriptions.length} of ${count.format(totals.subscriptions)}` : "";
  fill("#subs", data.subscriptions.map((row) => h("tr", {}, h("td", { class: "name", title: row.client }, row.client || "–"), h("td", { title: row.channel }, row.channel), h("td", { class: "wide" }, row.queue || row.durable || "–"),
    h("td", { class: "n" }, count.format(row.pending), h("span", { class: "wide" }, ` / ${count.format(row.max)}`)), lag(row.lag, worst),
    h("td", {}, row.offline ? tag("offline", "") : row.stalled ? tag("stalled", "bad") : ""))), "No subscription", 6);

  $("#takeovers ol").replaceChildren(...(data.epochs.length ? data.epochs : []).map((entry, i) => h("li", i ? {} : { class: "now" }, h("b", {}, `${entry.epoch}`), h("span", { class: "why" }, entry.cause),
    h("time", { datetime: new Date(entry.since_ms).toISOString() }, new Date(entry.since_ms).toLocaleString("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" })),
    h("span", { class: "where", title: `${entry.host}, server ${entry.server}` }, entry.name || entry.host, " ", entry.name ? "" : h("code", {}, entry.server)), h("span", { class: "where" }, span((entry.until_ms || Math.max(data.now_ms, entry.since_ms)) / 1000 - entry.since_ms / 1000)))));
  if (!data.epochs.length) $("#takeovers ol").replaceChildren(h("li", { class: "none" }, "None"));
}
function lost() {
  $("#state").textContent = "No member answers";
  $("#state").className = "";
  $("#through").textContent = "asking again";
  if (told !== "No member answers") { told = "No member answers"; $("#said").textContent = told; }
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
    if (found === null) { points.push(null); lost(); } else { points.push(measure(found[1])); show(...found); }
    if (points.length > POINTS) points.splice(0, points.length - POINTS);
    draw();
  }
  setTimeout(turn, EVERY_MS);
}
$("#pause").addEventListener("click", () => {
  paused = !paused;
  $("#pause").setAttribute("aria-pressed", `${paused}`);
});
turn();
