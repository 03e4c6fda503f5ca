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
    made.append(value?.text ?? (value === null || value === undefined ? "-" : value));
    return made;
  };
  return el("article", {}, el("h2", {}, title), el("div.wide", {}, el("table", {},
    el("thead", {}, el("tr", {}, head.map((text) => el("th", {}, text)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map(cell)))))));
}

const bad = (text, is) => (is ? { text: text ?? "-", bad: true } : text);

/** A remark with its command, if one stands in it, to copy. */
function remark(text) {
  const found = text.match(/`(ropewalk [^`]+)`/) ?? text.match(/: (ropewalk [^;]+)$/);
  const button = found && el("button", { onclick: (event) => copy(found[1], event.target) }, "Copy: " + found[1]);
  return el("li", {}, text, " ", button);
}

function parts(found) {
  const used = (p) => (p.size_bytes ? `${amount(p.used_bytes, "bytes")} of ${amount(p.size_bytes, "bytes")}` : "-");
  const health = found.healthy
    ? el("p.verdict.good", {}, "Nothing is wrong.")
    : el("div.verdict.bad", {}, el("strong", {}, "What is wrong, and what to do"), el("ul", {}, found.remarks.map(remark)));
  const pdisks = found.pdisks.map((p) => [p.name, p.node, p.rack, bad(p.state, p.state !== "ok"), used(p), p.last_report_s === null ? bad("never", true) : p.last_report_s.toFixed(1) + " s ago"]);
  const processes = found.processes.map((p) => [p.process, p.role, p.address, p.pid, bad(p.answers ? "answers" : "does not answer", !p.answers)]);
  const rails = found.rails.map((r) => [r.process, r.peer, r.rail, bad(r.up ? "up" : "left: " + (r.last_error ?? ""), !r.up),
    bad(`${r.active} of ${r.connections}`, r.active < r.connections), amount(r.bytes_per_second, "bytes") + "/s", time(r.rtt_us)]);
  const ports = found.hosts.flatMap((host) => (host.ports ?? []).map((p) => [host.name, p.name, bad(p.state, p.card !== null && p.state === "down"),
    p.mbit_per_second ? p.mbit_per_second / 1000 + " Gbit/s" : null, p.mtu, p.card, p.driver, p.bond, p.address,
    bad(`${p.receive_errors ?? "-"} / ${p.send_errors ?? "-"}`, p.receive_errors > 0 || p.send_errors > 0)]));
  return [
    health,
    part("Pdisks", ["pdisk", "node", "rack", "state", "used", "last report"], pdisks),
    part("Rails", ["from", "to", "rail", "state", "connections", "rate", "round trip"], rails),
    part("Processes", ["process", "role", "address", "pid", "state"], processes),
    part("Ports", ["host", "port", "state", "speed", "MTU", "card", "driver", "bond", "address", "errors in / out"], ports),
  ];
}
