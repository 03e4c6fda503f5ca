// The network and the pdisks, as the cluster tells of them. What is wrong is red and says what to do, as a line to copy:
// nothing is changed from here.

import { amount, ask, copy, el, time } from "/words.js";

const EVERY_MS = 5000;

export class Hardware {
  constructor(place) {
    this.place = place;
    this.timer = null;
  }

  show(on) {
    this.place.hidden = !on;
    clearInterval(this.timer);
    this.timer = null;
    if (!on) return;
    this.load();
    this.timer = setInterval(() => { if (!document.hidden) this.load(); }, EVERY_MS);
  }

  async load() {
    try {
      const found = await ask("/api/hardware");
      if (this.place.matches(":active")) return;
      this.place.replaceChildren(...parts(found));
    } catch (error) {
      this.place.replaceChildren(el("p.says.wrong", {}, error.message));
    }
  }
}

function part(title, head, rows) {
  const cell = (value) => {
    const made = el(value?.bad ? "td.bad" : "td");
    const said = value?.text ?? value;
    if (typeof said === "string" && said.length > LONG) made.classList.add("long");
    made.append(value?.text ?? (value === null || value === undefined ? "-" : value));
    return made;
  };
  return el("article", {}, el("h2", {}, title), el("div.wide", {}, el("table", {},
    el("thead", {}, el("tr", {}, head.map((text) => el("th", {}, text)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map(cell)))))));
}

/** Letters of a cell that may be broken anywhere where there is no room. */
const LONG = 14;
/** Members of a group that are named; those that are not well come first. */
const MEMBERS_MAX = 16;

/** Members by name and state. */
function members(all) {
  if (all.length === 0) return null;
  const sorted = [...all].sort((a, b) => b.bad - a.bad);
  const shown = sorted.slice(0, MEMBERS_MAX).map((m) => el(m.bad ? "span.member.bad" : "span.member", { title: m.about ?? "" }, m.name, " ", el("i", {}, m.state)));
  const more = sorted.slice(MEMBERS_MAX);
  if (more.length > 0) shown.push(el(more.some((m) => m.bad) ? "span.member.bad" : "span.member", {}, `and ${more.length} more`));
  return el("div.members", {}, shown);
}

const bad = (text, is) => (is ? { text: text ?? "-", bad: true } : text);

/** A remark with its command, if one stands in it, to copy. */
function remark(text) {
  const found = text.match(/`((?:ropewalk|ethtool|lspci) [^`]+)`/) ?? text.match(/: (ropewalk [^;]+)$/);
  const button = found && el("button", { onclick: (event) => copy(found[1], event.target) }, "Copy: " + found[1]);
  return el("li", {}, text, " ", button);
}

/** What is wrong with a port of a card; nothing of what software made. */
function wrongPort(p) {
  if (!p.card) return {};
  const hardware = p.hardware ?? {};
  return {
    state: p.state === "down",
    duplex: p.duplex === "half",
    errors: p.receive_errors > 0 || p.send_errors > 0,
    link: !!hardware.link && !!hardware.best_link && hardware.link !== hardware.best_link,
  };
}

/** What to do about the ports of a host: each a line of text with a command in it. */
function portRemarks(host) {
  return (host.ports ?? []).flatMap((p) => {
    const wrong = wrongPort(p);
    const says = [];
    if (wrong.state && p.bond) says.push(`${host.name} ${p.name}: no link; ${p.bond} goes on by its other ports. Look at cable and switch port: \`ethtool ${p.name}\``);
    if (wrong.state && !p.bond) says.push(`${host.name} ${p.name}: no link. Look at cable and switch port: \`ethtool ${p.name}\``);
    if (wrong.duplex) says.push(`${host.name} ${p.name}: half duplex. The two ends do not agree: \`ethtool ${p.name}\``);
    if (wrong.errors) says.push(`${host.name} ${p.name}: errors were counted. Which, says \`ethtool -S ${p.name}\``);
    if (wrong.link) says.push(`${host.name} ${p.name}: its card is linked at ${p.hardware.link}, and could be at ${p.hardware.best_link}: another slot, or seat it anew: \`lspci -vv -s ${p.hardware.address}\``);
    return says;
  });
}

/** What to do about rails that are left: each once, whoever has left it. Where a process is gone all are: that is said already. */
function railRemarks(rails, processes) {
  const gone = processes.filter((p) => !p.answers).map((p) => p.process);
  const left = Map.groupBy(rails.filter((r) => !r.up && !gone.includes(r.peer)), (r) => `${r.peer}: rail ${r.rail}`);
  return [...left].map(([rail, all]) => `${rail} is left by ${all.map((r) => r.process).join(", ")} (${all[0].last_error ?? "no reason is told"}). ` +
    "Look at the network there; what each connection does, says `ropewalk net status --details`");
}

function parts(found) {
  const used = (p) => (p.size_bytes ? `${amount(p.used_bytes, "bytes")} of ${amount(p.size_bytes, "bytes")}` : "-");
  const ports = found.hosts.flatMap(portRemarks);
  const remarks = [...found.remarks, ...railRemarks(found.rails, found.processes), ...ports];
  const health = remarks.length === 0
    ? el("p.verdict.good", {}, "Nothing is wrong.")
    : el("div.verdict.bad", {}, el("strong", {}, "What is wrong, and what to do"), el("ul", {}, remarks.map(remark)));
  const disks = new Map(found.hosts.flatMap((host) => (host.disks ?? []).map((disk) => [disk.pdisk, disk])));
  const pdisks = found.pdisks.map((p) => {
    const disk = disks.get(p.name) ?? {};
    return [p.name, p.node, p.rack, bad(p.state, p.state !== "ok"), used(p), p.last_report_s === null ? bad("never", true) : p.last_report_s.toFixed(1) + " s ago",
      disk.device, [disk.model, disk.serial].filter(Boolean).join(" ") || null, disk.firmware, disk.enclosure ?? disk.card?.slot ?? disk.card?.address];
  });
  const pools = found.pools.map((p) => {
    const [whole, ...lack] = p.by_missing;
    return [p.name, p.code, p.groups, whole, bad(lack.join(" / ") || "-", lack.some((n) => n > 0)), bad(p.unreadable, p.unreadable > 0), p.pdisks_counting, p.spare_pdisks, p.moving];
  });
  const processes = found.processes.map((p) => [p.process, p.role, p.host, p.address, p.pid, bad(p.answers ? "answers" : "does not answer", !p.answers)]);
  const rails = found.rails.map((r) => [r.process, r.peer, r.rail, bad(r.up ? (r.connections.length ? "up" : "not connected") : "left: " + (r.last_error ?? ""), !r.up),
    members(r.connections), amount(r.bytes_per_second, "bytes") + "/s", time(r.rtt_us)]);
  const groups = found.groups.map((g) => [g.kind, g.name, g.how || null, members(g.members)]);
  const rows = found.hosts.flatMap((host) => (host.ports ?? []).map((p) => {
    const [wrong, card] = [wrongPort(p), p.hardware ?? {}];
    const speed = p.mbit_per_second ? p.mbit_per_second / 1000 + " Gbit/s" : null;
    return [host.name, p.name, bad(p.state, wrong.state), bad(p.duplex === "half" ? `${speed ?? ""} half` : speed, wrong.duplex), p.mtu, card.slot ?? p.card,
      bad(card.link, wrong.link), card.id, p.driver, p.firmware, p.bond, p.address, bad(`${p.receive_errors ?? "-"} / ${p.send_errors ?? "-"}`, wrong.errors)];
  }));
  return [
    health,
    part("Pools", ["pool", "code", "groups", "whole", "with 1 / 2 / .. lost", "unreadable", "pdisks", "spare", "to move"], pools),
    part("Groups and their members", ["kind", "group", "how", "members"], groups),
    part("Pdisks", ["pdisk", "node", "rack", "state", "used", "last report", "disk", "model, serial", "firmware", "enclosure or slot"], pdisks),
    part("Links and rails", ["from", "to", "rail", "state", "connections", "rate", "round trip"], rails),
    part("Processes", ["process", "role", "host", "address", "pid", "state"], processes),
    part("Ports and cards", ["host", "port", "state", "speed", "MTU", "slot", "card's link", "id", "driver", "firmware", "bond", "address", "errors in / out"], rows),
  ];
}
