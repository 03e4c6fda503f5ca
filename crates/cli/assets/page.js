// The page: its charts, the time they show, marks on it. All that is needed to show the same again stands in the address
// behind #. One stream of server-sent events brings the newest seconds of all charts; it is closed while the page is hidden.

import { Chart } from "/chart.js";
import { Hardware } from "/hardware.js";
import { whenever } from "/redraw.js";
import { ask, clock, copy, lasting, when } from "/words.js";

const CHARTS_MAX = 16;
const FIRST = ["file.ops[client]", "file.ops[latency]", "file.bytes[file]", "strip.ops[pdisk]"];
/** Longest time that is shown by the second. */
const BY_SECOND_MAX = 900;
/** Longest time that is shown: hours are kept for years. */
const SPAN_MAX = 366 * 86_400;
const SPANS = [60, 300, 900, 3600, 86_400, 7 * 86_400, 30 * 86_400, 365 * 86_400];
/** How often what a stream does not bring (quantiles, events, long times) is asked for. */
const REFRESH_MS = 10_000;

const at = (id) => document.getElementById(id);

class Page {
  charts = [];
  statistics = [];
  worksheets = [];
  /** Marks of a worksheet, and events. */
  given = [];
  events = [];
  span = 300;
  /** [from, to], where it is paused. */
  pinned = null;
  /** The server's clock less ours, seconds. */
  ahead = 0;

  async begin() {
    this.hardware = new Hardware(at("hardware"));
    this.controls();
    try {
      let present;
      [this.statistics, present] = await Promise.all([ask("/api/statistics"), ask("/api/now"), this.knowSheets()]);
      this.ahead = present.now - Date.now() / 1000;
      at("recorded").hidden = !present.recorded;
      at("view-hardware").hidden = present.recorded;
    } catch (error) {
      return this.says(error.message, true);
    }
    await this.refreshEvents();
    this.open(location.hash.slice(1));
    setInterval(() => { if (!document.hidden) this.refresh(); }, REFRESH_MS);
    addEventListener("hashchange", () => { if (location.hash.slice(1) !== this.address()) this.open(location.hash.slice(1)); });
    document.addEventListener("visibilitychange", () => { this.stream(); if (!document.hidden) this.reload(); });
    whenever(() => this.redraw());
  }

  async knowSheets() {
    this.worksheets = await ask("/api/worksheets");
    const list = at("worksheets");
    list.replaceChildren(list.options[0], ...this.worksheets.map((sheet) => new Option(sheet.name, sheet.name)));
  }

  /** `of`: what takes it back when it is so no more. */
  says(text, wrong = false, of = "") {
    at("status").dataset.of = of;
    at("status").textContent = text;
    at("status").className = wrong ? "wrong" : "";
  }

  now() { return Date.now() / 1000 + this.ahead; }

  /** The server told its time. */
  heard(now) { if (Math.abs(now - this.now()) > 1.5) this.ahead = now - Date.now() / 1000; }

  /** The time shown, seconds since 1970. */
  window() {
    if (this.pinned) return this.pinned;
    const now = this.newest ?? Math.floor(this.now());
    return [now - this.span, now];
  }

  step() {
    const [from, to] = this.window();
    const long = to - from;
    return long <= BY_SECOND_MAX ? 1 : Math.ceil(long / 360);
  }

  marks() {
    const [from, to] = this.window();
    return [...this.events, ...this.given].filter((mark) => (mark.to ?? mark.from) > from && mark.from < to);
  }

  /** Shows what an address says. */
  async open(text) {
    const given = new URLSearchParams(text);
    const named = given.get("worksheet");
    const known = () => this.worksheets.find((sheet) => sheet.name === named);
    if (named !== null && !known()) {
      // It may have been kept since the page was opened.
      await this.knowSheets().catch(() => {});
      if (!known()) this.says(`there is no worksheet ${named}`, true);
    }
    const number = (name) => (given.has(name) && Number.isFinite(+given.get(name)) ? +given.get(name) : null);
    const sheet = known();
    const queries = sheet ? sheet.charts : given.getAll("q");
    this.span = Math.min(Math.max(number("span") ?? 300, 10), SPAN_MAX);
    const seconds = (us) => (us === null || us === undefined ? null : us / 1e6);
    const [from, to] = [number("from") ?? seconds(sheet?.from_at_us), number("to") ?? seconds(sheet?.to_at_us)];
    this.pinned = from !== null && to > from ? [from, to] : null;
    this.given = (sheet?.marks ?? []).map((mark) => ({ from: mark.from_at_us / 1e6, to: mark.to_at_us / 1e6, text: mark.text }));
    this.sheet = sheet?.name;
    this.charts.forEach((chart) => chart.destroy());
    this.charts = [];
    for (const query of (queries.length ? queries : FIRST).slice(0, CHARTS_MAX)) this.add(query, false);
    this.view(given.get("view") ?? "charts");
    this.reload();
    this.stream();
    this.times();
  }

  address() {
    const said = new URLSearchParams();
    if (this.shownView !== "charts") said.set("view", this.shownView);
    if (this.sheet) said.set("worksheet", this.sheet);
    else this.charts.forEach((chart) => said.append("q", chart.query));
    if (this.pinned) { said.set("from", this.pinned[0]); said.set("to", this.pinned[1]); } else said.set("span", this.span);
    return said.toString();
  }

  /** Charts, or their queries, are others now. */
  changed() {
    this.sheet = undefined;
    this.remember();
    this.stream();
  }

  remember() { history.replaceState(null, "", "#" + this.address()); }

  add(query, told = true) {
    if (this.charts.length >= CHARTS_MAX) return this.says(`${CHARTS_MAX} charts are the most`, true);
    const chart = new Chart(this, query);
    this.charts.push(chart);
    at("charts").append(chart.card);
    if (told) { chart.load(); this.changed(); chart.card.scrollIntoView({ block: "nearest" }); chart.input.select(); }
  }

  remove(chart) {
    this.charts = this.charts.filter((other) => other !== chart);
    chart.destroy();
    this.changed();
  }

  reload() {
    this.loaded = Date.now();
    this.charts.forEach((chart) => chart.load());
  }

  redraw() { this.charts.forEach((chart) => chart.found && chart.shown()); }

  refresh() {
    this.refreshEvents();
    // Of a long time a step is minutes or hours: it is not asked for anew before one has passed.
    const due = Date.now() - this.loaded >= Math.min(this.step(), 3600) * 1000;
    if (!this.pinned && (due || this.step() === 1)) this.reload();
  }

  async refreshEvents() {
    try {
      const events = (await ask("/api/events")).map((event) => ({ from: event.at_us / 1e6, text: event.text }));
      const was = JSON.stringify(this.marks());
      this.events = events;
      // Where nothing else brings them onto the charts.
      if (JSON.stringify(this.marks()) !== was) this.redraw();
      if (at("status").dataset.of === "events") this.says("");
      this.shownMarks();
    } catch (error) {
      this.says(error.message, true, "events");
    }
  }

  shownMarks() {
    const newest = this.marks().slice(-3).reverse().map((mark) => `${clock(mark.from)} ${mark.text}`);
    if (!at("status").classList.contains("wrong")) this.says(newest.join("  \u00b7  "));
  }

  /** One stream for all charts, while it is live and seen. */
  stream() {
    clearTimeout(this.opening);
    this.source?.close();
    this.source = null;
    this.newest = null;
    if (this.pinned || document.hidden || this.span > BY_SECOND_MAX || this.shownView !== "charts") return;
    const charts = [...this.charts];
    this.opening = setTimeout(() => {
      const asked = new URLSearchParams(charts.map((chart) => ["q", chart.query]));
      this.source = new EventSource("/api/live?" + asked);
      this.source.onmessage = (event) => {
        const told = JSON.parse(event.data);
        this.heard(told.now);
        this.newest = told.now;
        told.charts.forEach((found, n) => charts[n].live(found));
        this.times();
        this.shownMarks();
      };
      this.source.onerror = () => { this.newest = null; this.says("the page's process does not answer; trying again", true, "events");
        // Refused (too many pages, no password): the browser does not try by itself.
        if (this.source?.readyState === EventSource.CLOSED) this.opening = setTimeout(() => this.stream(), 5000);
      };
    }, 200);
  }

  /** Shows this time, and stays there. */
  pin(from, to) {
    this.pinned = [Math.floor(from), Math.max(Math.ceil(to), Math.floor(from) + 1)];
    this.moved();
  }

  /** Goes on with the present. */
  resume() {
    this.pinned = null;
    this.moved();
  }

  moved() {
    this.times();
    this.remember();
    this.stream();
    this.reload();
    this.shownMarks();
  }

  scroll(share) {
    const [from, to] = this.window();
    const by = Math.max(Math.round((to - from) * Math.abs(share)), 1) * Math.sign(share);
    if (to + by > this.now()) return this.pinned && this.resume();
    this.pin(from + by, to + by);
  }

  zoom(factor) {
    const [from, to] = this.window();
    const span = Math.min(Math.max((to - from) * factor, 10), SPAN_MAX);
    if (!this.pinned) { this.span = Math.round(span); return this.moved(); }
    const middle = (from + to) / 2;
    this.pin(middle - span / 2, Math.min(middle + span / 2, Math.floor(this.now())));
  }

  times() {
    const [from, to] = this.window();
    at("when").textContent = `${when(from, to - from)} to ${when(to, to - from)}`;
    at("pause").textContent = this.pinned ? "Live" : "Pause";
    at("pause").setAttribute("aria-pressed", !!this.pinned);
    at("when").className = this.pinned ? "paused" : "live";
    // One that a zoom or a link has made stands in the list for as long as it is shown.
    const other = SPANS.includes(this.span) ? null : new Option(lasting(this.span), this.span);
    at("span").querySelector("[data-other]")?.remove();
    if (other) { other.dataset.other = ""; at("span").prepend(other); }
    at("span").value = this.span;
  }

  view(name) {
    this.shownView = name === "hardware" ? "hardware" : "charts";
    const charts = this.shownView === "charts";
    at("charts").hidden = at("more").hidden = at("time").hidden = !charts;
    this.hardware.show(!charts);
    at("view-charts").setAttribute("aria-pressed", charts);
    at("view-hardware").setAttribute("aria-pressed", !charts);
  }

  turn(name) {
    this.view(name);
    this.remember();
    this.stream();
    if (this.shownView === "charts") this.reload();
  }

  controls() {
    const press = (id, does) => at(id).addEventListener("click", does);
    const pause = () => (this.pinned ? this.resume() : this.pin(...this.window()));
    const help = () => { at("keys").hidden = !at("keys").hidden; at("help").setAttribute("aria-expanded", !at("keys").hidden); };
    press("pause", pause);
    press("back", () => this.scroll(-0.5));
    press("forth", () => this.scroll(0.5));
    press("add", () => this.add("file.ops[op]"));
    press("help", help);
    press("link", () => copy(location.href, at("link")));
    press("view-charts", () => this.turn("charts"));
    press("view-hardware", () => this.turn("hardware"));
    at("span").addEventListener("change", () => { this.span = +at("span").value; this.resume(); });
    at("worksheets").addEventListener("change", () => { this.open(new URLSearchParams({ worksheet: at("worksheets").value }).toString()); this.remember(); });
    const keys = {
      " ": pause, ArrowLeft: () => this.scroll(-0.5), ArrowRight: () => this.scroll(0.5), "+": () => this.zoom(0.5), "-": () => this.zoom(2),
      n: () => this.add("file.ops[op]"), "?": help, 1: () => this.turn("charts"), 2: () => this.turn("hardware"),
      Backspace: () => (document.activeElement.closest("article")?.chart ?? this.charts[0])?.out(),
    };
    addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.altKey || event.metaKey || event.target.closest("input, select") || (event.key === " " && event.target.closest("button"))) return;
      const does = keys[event.key];
      if (does) { event.preventDefault(); does(); }
    });
  }
}

const page = new Page();
page.begin();
// For who drives the page from outside, as the tests do.
globalThis.ropewalk = page;
