// A file that was exported: its charts as they were. There is nobody to ask, so one can look closer, not go into anything:
// dragging in a chart takes a time.

import { Chart } from "/chart.js";
import { whenever } from "/redraw.js";
import { clock, el, when } from "/words.js";

const told = JSON.parse(document.getElementById("told").textContent);

class Still extends Chart {
  asks = false;
  about = "the whole time";

  parts() {
    this.place = el("div.plot");
    this.says = el("p.says");
    this.table = el("div.wide");
    this.order = [];
    this.card = el("article", {}, el("code", {}, this.query), this.place, this.says, this.table);
  }

  words() { this.remarks(); }

  boxed(box) {
    this.drawer.box = null;
    this.page.pin(box.from, box.to);
  }
}

class File {
  constructor() {
    const first = told.charts[0];
    this.whole = [first.from_at_us / 1e6, first.to_at_us / 1e6];
    this.shown = this.whole;
    this.all = told.marks.map((mark) => ({ from: mark.from_at_us / 1e6, to: mark.to_at_us / 1e6, text: mark.text }));
    document.getElementById("name").textContent = told.name ?? "analytics";
    if (told.name) document.title = told.name + " - Ropewalk analytics";
    document.getElementById("whole").addEventListener("click", () => this.pin(...this.whole));
    this.charts = told.charts.map((found) => {
      const chart = new Still(this, found.query);
      document.getElementById("charts").append(chart.card);
      chart.take(found, 1);
      return chart;
    });
    this.words();
    whenever(() => this.redraw());
  }

  window() { return this.shown; }

  marks() { return this.all.filter((mark) => mark.to >= this.shown[0] && mark.from <= this.shown[1]); }

  pin(from, to) {
    this.shown = [Math.max(from, this.whole[0]), Math.min(to, this.whole[1])];
    this.words();
    this.redraw();
  }

  words() {
    const [from, to] = this.shown;
    const span = Math.max(to - from, 86_401); // with the day in any case
    document.getElementById("when").textContent = to - from > 7200 ? `${when(from, span)} to ${when(to, span)}` : `${when(from, span)} (${clock(from)} to ${clock(to)})`;
    document.getElementById("whole").hidden = from === this.whole[0] && to === this.whole[1];
    document.getElementById("status").textContent = this.marks().slice(0, 5).map((mark) => `${clock(mark.from)} ${mark.text}`).join("  \u00b7  ");
  }

  redraw() { this.charts.forEach((chart) => chart.shown()); }
}

globalThis.ropewalk = new File();
