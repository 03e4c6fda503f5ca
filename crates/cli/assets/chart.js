// One chart: a query, what it found over the page's time, and the ways into it. What it keeps is bounded by the time it shows
// and by ROWS_MAX: new seconds push old ones out.

import { Heat } from "/heat.js";
import { Lines, PALETTE } from "/lines.js";
import { compare } from "/compare.js";
import { amount, ask, clock, colour, copy, el, ending, quoted, shell, time } from "/words.js";

const ROWS_MAX = 200;
/** Rows that the table shows. */
const TABLE_MAX = 8;
/** What one goes into next, by what is looked at. */
const NEXT = { file: ["client", "file", "op", "latency", "size", "offset"], strip: ["process", "pdisk", "file", "op", "latency"] };
/** Values within which there is nothing. */
const CLOSED = ["(others)", "(no file)"];

/** A filter on its chip: of a long value the end. */
const chip = (text) => text.slice(1, -1).replace(/^(\w+(?:[!>]?=|<))(.*)$/s, (_, by, value) => by + ending(value, 36));

/** Whether things are counted by how much of a second they were in use. */
const axisOfShares = (chart) => chart.dimensions.includes("utilisation");

export class Chart {
  /** Whether there is somebody to ask. */
  asks = true;
  /** What the figures are about. */
  about = "this time";

  constructor(page, query) {
    this.page = page;
    this.query = query;
    this.rows = new Map();
    this.times = [];
    this.recorded = [];
    this.kind = null;
    this.parts();
  }

  parts() {
    const button = (text, title, does) => el("button", { title, onclick: does }, text);
    this.statistic = el("select.statistic", { ariaLabel: "statistic", onchange: () => this.turn_to(this.statistic.value) });
    const groups = Map.groupBy(this.page.statistics, (s) => s.name.split(".")[0]);
    for (const [name, all] of groups) {
      this.statistic.append(el("optgroup", { label: name }, all.map((s) => el("option", { value: s.name, title: s.meaning }, s.name))));
    }
    this.by = el("select", { ariaLabel: "broken down by", onchange: () => this.set(this.built(this.found.chart.filters, this.by.value ? [this.by.value] : [])) });
    this.chips = el("span.chips");
    this.input = el("input.query", { ariaLabel: "query", spellcheck: false, autocomplete: "off", value: this.query, onchange: () => this.set(this.input.value.trim()) });
    this.place = el("div.plot");
    this.band = el("div.band", { hidden: true });
    this.table = el("div.wide");
    /** Names as the table shows them. */
    this.order = [];
    this.compared = el("div.compared", { hidden: true });
    this.says = el("p.says", { role: "status" });
    this.card = el("article", { tabIndex: -1 },
      el("div.head", {}, this.statistic, el("label.short", {}, "by ", this.by), this.chips, el("span.grow"),
        button("Copy command", "the same for the command line", (event) => copy(this.command(), event.target)),
        button("\u2715", "remove this chart", () => this.page.remove(this))),
      this.input, this.place, this.band, this.compared, this.says, this.table);
    this.card.chart = this;
  }

  /** The same question on the command line. */
  command() {
    const now = this.page.now();
    const [from, to] = this.page.window();
    const ago = (at) => (at >= now - 1 ? "now" : `-${Math.round(now - at)}s`);
    return `ropewalk analytics query ${shell(this.query)} --from ${ago(from)} --to ${ago(to)}`;
  }

  /** Asks something else. */
  set(query) {
    this.query = query;
    this.input.value = query;
    this.compared.hidden = this.band.hidden = true;
    this.order = [];
    if (this.drawer instanceof Heat) this.drawer.box = null;
    this.load();
    this.page.changed();
  }

  built(filters, breakdowns, statistic = this.found.chart.statistic) {
    return statistic + filters.map((filter) => filter.text).join("") + breakdowns.map((by) => `[${by}]`).join("");
  }

  /** Another statistic, as far as it can be asked the same. */
  turn_to(name) {
    const known = this.page.statistics.find((s) => s.name === name).dimensions;
    const fits = (by) => known.includes(by);
    const chart = this.found?.chart ?? { filters: [], breakdowns: [] };
    const breakdowns = chart.breakdowns.filter(fits);
    if (!breakdowns.length) breakdowns.push(known.includes("utilisation") ? "utilisation" : known.find((by) => by !== "process") ?? "process");
    this.set(this.built(chart.filters.filter((filter) => fits(filter.by)), breakdowns, name));
  }

  /** Into values: filters {by, text} are added, and what comes next is shown. */
  drill(added) {
    const names = added.map((filter) => filter.by);
    const chart = this.found.chart;
    const filters = [...chart.filters.filter((filter) => !names.includes(filter.by)), ...added];
    const taken = filters.map((filter) => filter.by);
    const order = NEXT[chart.statistic.split(".")[0]] ?? chart.dimensions;
    const next = order.find((by) => chart.dimensions.includes(by) && !taken.includes(by));
    this.set(this.built(filters, next ? [next] : []));
    this.card.focus({ preventScroll: true });
  }

  /** Out of what was drilled into last. */
  out() {
    const filters = this.found?.chart.filters ?? [];
    const last = filters.at(-1);
    if (last) this.set(this.built(filters.filter((filter) => filter.by !== last.by), [last.by]));
  }

  /** Asks for the whole time. */
  async load() {
    const [from, to] = this.page.window();
    const step = this.page.step();
    const asked = (this.asked = Symbol());
    try {
      const found = await ask("/api/query", { q: this.query, from: Math.floor(from), to: Math.floor(to), step, rows: ROWS_MAX });
      if (asked !== this.asked) return;
      this.page.heard(found.chart.now_at_us / 1e6);
      this.take(found, step);
    } catch (error) {
      if (asked !== this.asked) return;
      this.says.textContent = error.message;
      this.says.classList.add("wrong");
    }
  }

  /** All that is known of the time shown. Of long ago only minutes or hours are kept: then steps are longer than asked for. */
  take(found, asked) {
    const step = (this.step = found.step_s ?? asked);
    this.found = found;
    const begins = found.from_at_us / 1e6;
    this.times = found.chart.recorded.map((_, n) => begins + (n + 1) * step);
    this.recorded = [...found.chart.recorded];
    this.rows = new Map(found.rows.map((row) => [this.name(row), { ...row, name: this.name(row) }]));
    this.shown();
  }

  name(row) {
    const values = Object.values(row.key);
    return values.length ? this.found.chart.breakdowns.map((by) => row.key[by]).join("  ") : "all";
  }

  /** The newest seconds. What is older than the time shown goes. */
  live(found) {
    if (!this.found || this.step !== 1) return;
    if (found.error) { this.says.textContent = found.error; this.says.classList.add("wrong"); return; }
    if (found.query !== this.found.query || (found.step_s ?? 1) !== 1) return;
    const begins = found.from_at_us / 1e6;
    const at = (second) => second - this.times[0];
    const last = begins + found.chart.recorded.length;
    // What lies between is not in it.
    if (!this.times.length || begins > this.times.at(-1)) return void this.load();
    while (this.times.at(-1) < last) {
      this.times.push(this.times.at(-1) + 1);
      this.recorded.push(0);
      for (const row of this.rows.values()) row.steps.push(null);
    }
    for (const row of found.rows) {
      const name = this.name(row);
      if (!this.rows.has(name)) this.rows.set(name, { ...row, name, total: 0, steps: this.recorded.map((n) => (n ? 0 : null)) });
    }
    if (found.chart.starts) this.found.chart.starts = { ...this.found.chart.starts, ...found.chart.starts };
    const fresh = new Map(found.rows.map((row) => [this.name(row), row]));
    // A process that is gone has a gap, whatever the others recorded.
    const by = found.chart.recorded_by;
    const gone = (row, n) => !!by && row.key[by.by] !== "(others)" && !(by.of[row.key[by.by]]?.[n] > 0);
    found.chart.recorded.forEach((recorded, n) => {
      const second = at(begins + n + 1);
      if (second < 0 || recorded < this.recorded[second]) return;
      this.recorded[second] = recorded;
      for (const [name, row] of this.rows) row.steps[second] = recorded && !gone(row, n) ? fresh.get(name)?.steps[n] ?? 0 : null;
    });
    const old = this.times.findIndex((time) => time > this.page.window()[0]);
    if (old > 0) {
      this.times.splice(0, old);
      this.recorded.splice(0, old);
      for (const row of this.rows.values()) row.steps.splice(0, old);
    }
    for (const [name, row] of this.rows) {
      row.total = row.steps.reduce((sum, n) => sum + (n ?? 0), 0);
      if (found.chart.level) row.total /= Math.max(this.seconds(), 1);
      if (row.total === 0 && !fresh.has(name)) this.rows.delete(name);
    }
    if (this.rows.size > ROWS_MAX) {
      const lightest = [...this.rows.values()].sort((a, b) => a.total - b.total).slice(0, this.rows.size - ROWS_MAX);
      lightest.forEach((row) => this.rows.delete(row.name));
    }
    // Who is gone recorded nothing of these seconds; what he had recorded before is in the sums still.
    const had = new Map(this.found.processes.map((p) => [p.process, p.recorded_s]));
    const processes = found.processes.map((p) => ({ ...p, recorded_s: p.recorded_s ?? had.get(p.process) ?? null }));
    Object.assign(this.found, { told_apart_percent: found.told_apart_percent, processes });
    this.shown();
  }

  seconds() {
    return this.recorded.reduce((sum, n) => sum + n, 0);
  }

  /** Draws all of it. */
  shown() {
    const begun = performance.now();
    const { chart, unit } = this.found;
    const heat = chart.breakdowns.length === 1 && chart.axis !== null;
    const kind = heat ? Heat : Lines;
    if (!(this.drawer instanceof kind)) {
      this.drawer?.destroy();
      this.drawer = new kind(this.place, this);
    }
    const rows = this.sorted(heat);
    if (heat) this.drawer.draw(this.times, rows.filter((row) => row.bucket !== null && row.bucket !== undefined), this.step, chart.starts ?? this.starts);
    else this.drawer.draw(this.times, rows, unit);
    this.starts = chart.starts ?? this.starts;
    this.words();
    this.tabled(rows, heat);
    this.card.dataset.drawMs = (performance.now() - begun).toFixed(1);
    this.card.dataset.seconds = this.times.length;
  }

  sorted(axis) {
    const rows = [...this.rows.values()];
    const held = (row) => (CLOSED.includes(row.name) ? 1 : 0);
    return axis ? rows.sort((a, b) => (b.bucket ?? -1) - (a.bucket ?? -1)) : rows.sort((a, b) => held(a) - held(b) || b.total - a.total || a.name.localeCompare(b.name));
  }

  words() {
    const { chart } = this.found;
    this.statistic.value = chart.statistic;
    const options = ["", ...chart.dimensions];
    const several = chart.breakdowns.length > 1 ? [chart.breakdowns.join(" and ")] : [];
    this.by.replaceChildren(...[...options, ...several].map((by) => el("option", { value: several.includes(by) ? "" : by, disabled: several.includes(by) }, by || "(nothing)")));
    this.by.selectedIndex = several.length ? options.length : options.indexOf(chart.breakdowns[0] ?? "");
    const without = (filter) => this.set(this.built(chart.filters.filter((other) => other !== filter), chart.breakdowns));
    // A button that is pressed must not be gone before it is let go.
    if (!this.chips.matches(":active")) this.chips.replaceChildren(...chart.filters.map((filter) =>
      el("button.chip", { title: "take this filter away: " + filter.text, onclick: () => without(filter) }, el("span", {}, chip(filter.text)), el("span.cross", {}, "\u2715"))));
    this.remarks();
  }

  /** What must be known of the figures. */
  remarks() {
    const says = [];
    const silent = this.found.processes.filter((p) => !p.answers);
    const named = (left) => silent.filter((p) => (p.recorded_s !== null) === left).map((p) => p.process).join(", ");
    if (named(false)) says.push(`does not answer, and is not in the sums: ${named(false)}`);
    if (named(true)) says.push(`does not answer; in the sums is what it had recorded: ${named(true)}`);
    if (this.found.told_apart_percent < 99.95) says.push(`told apart: ${this.found.told_apart_percent.toFixed(1)} %; the rest is in (others), and no row lacks more than that`);
    const gaps = this.recorded.filter((n) => n === 0).length * this.step;
    if (gaps > 0) says.push(`nothing was recorded in ${gaps} s of ${this.about}`);
    this.says.textContent = says.join(" \u00b7 ");
    this.says.classList.toggle("wrong", silent.length > 0);
  }

  tabled(rows, heat) {
    const { chart, unit } = this.found;
    // A button that is pressed must not be gone before it is let go, and nothing changes places under the hand.
    if (this.table.matches(":active")) return;
    const kept = this.table.matches(":hover") ? this.order : [];
    const place = (row) => (kept.includes(row.name) ? kept.indexOf(row.name) : kept.length);
    const shown = rows.filter((row) => !heat || row.total > 0).sort((a, b) => place(a) - place(b)).slice(0, TABLE_MAX);
    this.order = shown.map((row) => row.name);
    const sum = rows.reduce((sum, row) => sum + row.total, 0) || 1;
    // What is distributed: latencies, or shares of a second.
    const given = (name) => rows.some((row) => row[name] !== null && row[name] !== undefined);
    const latencies = given("p50_us") && chart.axis !== "latency";
    const shares = given("p50_percent") && chart.axis !== "utilisation";
    const seconds = Math.max(this.seconds(), 1);
    const cells = (row) => {
      const open = this.asks && chart.breakdowns.length > 0 && !CLOSED.includes(row.name);
      const into = () => this.drill(chart.breakdowns.map((by) => ({ by, text: `[${by}=${quoted(row.key[by])}]` })));
      const dot = heat ? null : el("i.dot");
      if (dot) dot.style.background = rows.indexOf(row) < PALETTE.length ? colour(PALETTE[rows.indexOf(row)]) : "transparent";
      const name = open ? el("button.row", { title: "go into it: " + row.name, onclick: into }, el("bdi", {}, ending(row.name))) : el("span", {}, row.name);
      const figures = chart.level ? [amount(row.total, unit)]
        : [amount(row.total, unit), amount(row.total / seconds, unit), ((row.total / sum) * 100).toFixed(1) + "\u00a0%"];
      const percent = (value) => (value === null || value === undefined ? "-" : value + "\u00a0%");
      const quantiles = latencies ? [time(row.p50_us), time(row.p99_us), time(row.most_us)]
        : shares ? [percent(row.p50_percent), percent(row.p99_percent), percent(row.most_percent)] : [];
      return el("tr", {}, el("td.name", {}, dot, name), [...figures, ...quantiles].map((text) => el("td.n", {}, text)));
    };
    const by = chart.breakdowns.join(", ") || "all";
    const head = [chart.axis && heat ? by + ", from" : by, ...(chart.level ? [axisOfShares(chart) ? "mean " + unit : "mean"] : [unit, "a second", "share"]), ...(latencies || shares ? ["p50", "p99", "most"] : [])];
    const focused = this.table.contains(document.activeElement) ? document.activeElement.textContent : null;
    this.table.replaceChildren(el("table", {}, el("thead", {}, el("tr", {}, head.map((text, n) => el(n ? "th.n" : "th", {}, text)))),
      el("tbody", {}, shown.map(cells))));
    if (rows.length > shown.length) this.table.append(el("p.muted", {}, `${rows.length - shown.length} more`));
    if (focused) [...this.table.querySelectorAll("button.row")].find((row) => row.textContent === focused)?.focus({ preventScroll: true });
  }

  /** A part of the heat map was taken: what can be done with it. */
  boxed(box) {
    const axis = this.found.chart.axis;
    const [low, high] = [this.starts[box.low], this.starts[box.high + 1]];
    const band = [{ by: axis, text: `[${axis}>=${low}]` }, ...(high ? [{ by: axis, text: `[${axis}<${high}]` }] : [])];
    const whole = box.from <= this.page.window()[0];
    const into = () => { if (!whole) this.page.pin(box.from, box.to); this.drill(band); };
    const against = () => compare(this, { ...box, axis, band });
    const away = () => { this.drawer.box = null; this.band.hidden = this.compared.hidden = true; this.drawer.redraw(); };
    this.band.replaceChildren(
      el("strong", {}, `${axis} ${this.drawer.band(box.low, box.high)}`), whole ? " " : ` \u00b7 ${clock(box.from)} to ${clock(box.to)} `,
      el("button.into", { onclick: into }, "Go into it"), el("button.against", { onclick: against }, "Compare with the rest"),
      el("button", { onclick: away, title: "let it be" }, "\u2715"));
    this.band.hidden = false;
  }

  destroy() {
    this.asked = null;
    this.drawer?.destroy();
    this.card.remove();
  }
}
