// Heat maps: time to the right; latency, size, offset or utilisation upwards; darker where more was. One hue from the page's paper to ink, so that
// it can be read in grey, on paper and by who sees colours differently. The square root keeps what is rare visible; a cell
// with anything in it has at least a sixth of the colour, and single slow operations are drawn larger than their cell.

import { amount, colour, when } from "/words.js";
import { drawMarks, marksNear, tell } from "/lines.js";
import { goesToPaper } from "/redraw.js";

const LEFT = 62, RIGHT = 14, TOP = 22, BOTTOM = 26;
const FAINTEST = 0.16;
/** Share of all below which what lies above is an outlier. */
const OUTLIERS = 0.001;

/** Colours of the scale as it is now. */
function scale() {
  const numbers = (name) => colour(name).match(/[0-9a-f]{2}/gi).map((digits) => parseInt(digits, 16));
  const [paper, middle, ink] = [numbers("heat0"), numbers("heat1"), numbers("heat2")];
  const between = (a, b, share) => a.map((value, at) => Math.round(value + (b[at] - value) * share));
  return Array.from({ length: 65 }, (_, step) => {
    const share = step / 64;
    const [r, g, b] = share < 0.5 ? between(paper, middle, share * 2) : between(middle, ink, share * 2 - 1);
    return `rgb(${r},${g},${b})`;
  });
}

export class Heat {
  constructor(place, chart) {
    this.place = place;
    this.chart = chart;
    this.canvas = document.createElement("canvas");
    this.canvas.className = "heat";
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.tip = document.createElement("div");
    this.tip.className = "tip";
    this.tip.hidden = true;
    place.append(this.canvas, this.tip);
    this.box = null;
    this.canvas.addEventListener("pointerdown", (event) => this.begin(event));
    this.canvas.addEventListener("pointermove", (event) => this.move(event));
    this.canvas.addEventListener("pointerup", (event) => this.end(event));
    this.canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    this.canvas.addEventListener("keydown", (event) => this.press(event));
  }

  /** Draws rows ({bucket, steps}) over times (the ends of steps). */
  draw(times, rows, step, starts) {
    Object.assign(this, { times, rows, step, starts });
    const ratio = Math.max(devicePixelRatio || 1, goesToPaper() ? 3 : 1);
    const width = Math.max(this.place.clientWidth, 200);
    const buckets = rows.map((row) => row.bucket);
    // Of shares the whole range is shown: how far from the end things are is what one looks for.
    const range = this.chart.found.chart.axis === "utilisation" ? Object.keys(starts ?? {}).map(Number) : [];
    this.low = Math.min(...buckets, ...range);
    this.high = Math.max(...buckets, ...range);
    const count = rows.length ? this.high - this.low + 1 : 1;
    const height = Math.min(Math.max(count * 12, 130), 300) + TOP + BOTTOM;
    this.size = { width, height, row: (height - TOP - BOTTOM) / count };
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.height = height + "px";
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.fillStyle = colour("heat0");
    context.fillRect(LEFT, TOP, width - LEFT - RIGHT, height - TOP - BOTTOM);
    const [from, to] = this.chart.page.window();
    const inner = width - LEFT - RIGHT;
    this.x = (at) => LEFT + ((at - from) / (to - from)) * inner;
    this.at = (x) => from + ((x - LEFT) / inner) * (to - from);
    const y = (bucket) => TOP + (this.high - bucket) * this.size.row;
    this.gaps(context);
    let most = 0, all = 0;
    for (const row of rows) for (const n of row.steps) { if (n > most) most = n; all += n ?? 0; }
    this.most = most;
    this.outliers = this.beginning(rows, all);
    const colours = scale();
    const wide = Math.max((step / (to - from)) * inner, 1);
    for (const row of rows) {
      const rare = row.bucket >= this.outliers;
      for (let at = 0; at < times.length; at++) {
        const n = row.steps[at];
        if (!n) continue;
        const share = Math.max(Math.sqrt(n / most), rare ? 0.55 : FAINTEST);
        context.fillStyle = colours[Math.round(share * 64)];
        const x = this.x(times[at] - step);
        // Gaps between cells are for the eye: not where cells are thin.
        const gap = wide > 5 ? 0.6 : 0;
        const width = rare ? Math.max(wide - gap, 4) : wide - gap + (gap ? 0 : 0.4);
        // A long step may begin before the time shown, or end after it.
        const [left, right] = [Math.max(x, LEFT), Math.min(x + width, LEFT + inner)];
        if (right > left) context.fillRect(left, y(row.bucket), right - left, Math.max(this.size.row - (this.size.row > 6 ? 0.6 : 0), 1));
      }
    }
    this.axes(context, from, to);
    this.legend(context, colours);
    drawMarks(context, this.chart.page.marks(), this.x, { left: LEFT, right: width - RIGHT, top: TOP, bottom: height - BOTTOM });
    if (this.box) this.outline(context);
    this.canvas.setAttribute("aria-label", `heat map: ${amount(all)} in all, up to ${amount(most)} in a cell`);
  }

  /** The lowest bucket of the outliers: all from there on are a thousandth. */
  beginning(rows, all) {
    let sum = 0;
    const falling = [...rows].sort((a, b) => b.bucket - a.bucket);
    for (const row of falling) {
      sum += row.steps.reduce((sum, n) => sum + (n ?? 0), 0);
      if (sum > all * OUTLIERS) return row.bucket + 1;
    }
    return Infinity;
  }

  /** Times in which nothing was recorded are hatched. */
  gaps(context) {
    const bottom = this.size.height - BOTTOM;
    context.save();
    context.strokeStyle = colour("rule");
    context.beginPath();
    this.times.forEach((at, n) => {
      if (this.chart.recorded[n] !== 0) return;
      const [from, to] = [Math.max(this.x(at - this.step), LEFT), this.x(at)];
      for (let x = from; x < to; x += 5) { context.moveTo(x, bottom); context.lineTo(Math.min(x + 5, to), TOP); }
    });
    context.stroke();
    context.restore();
  }

  axes(context, from, to) {
    const { width, height, row } = this.size;
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = colour("muted");
    context.textAlign = "right";
    context.textBaseline = "middle";
    const every = Math.max(Math.ceil(18 / row), 1);
    if (this.rows.length) {
      for (let bucket = this.low; bucket <= this.high + 1; bucket += every) {
        context.fillText(this.start(bucket), LEFT - 6, TOP + (this.high + 1 - bucket) * row);
      }
    } else {
      context.textAlign = "center";
      context.fillText("nothing in this time", width / 2, height / 2);
    }
    context.textBaseline = "top";
    const ticks = Math.max(Math.floor((width - LEFT - RIGHT) / 90), 2);
    for (let n = 0; n <= ticks; n++) {
      const at = from + ((to - from) * n) / ticks;
      context.textAlign = n === 0 ? "left" : n === ticks ? "right" : "center";
      context.fillText(when(at, to - from), this.x(at), height - BOTTOM + 7);
    }
  }

  /** What the colours mean: square roots, up to the most of a cell. */
  legend(context, colours) {
    const wide = 65, x = this.size.width - RIGHT - wide - 44;
    colours.forEach((colour, n) => { context.fillStyle = colour; context.fillRect(x + n, 5, 1, 9); });
    context.strokeStyle = colour("rule");
    context.strokeRect(x - 0.5, 4.5, wide + 1, 10);
    context.fillStyle = colour("muted");
    context.textBaseline = "middle";
    context.textAlign = "right";
    context.fillText("0", x - 5, 10);
    context.textAlign = "left";
    context.fillText(amount(this.most), x + wide + 5, 10);
  }

  /** Where a pointer is: a time and a bucket. */
  place_of(event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const bucket = this.high - Math.floor((y - TOP) / this.size.row);
    return { x, y, at: this.at(x), bucket: Math.min(Math.max(bucket, this.low), this.high) };
  }

  begin(event) {
    if (!this.rows?.length) return;
    this.canvas.setPointerCapture(event.pointerId);
    const place = this.place_of(event);
    this.begun = place;
    this.box = this.between(place, place);
    this.redraw();
  }

  move(event) {
    if (!this.rows?.length) return;
    const place = this.place_of(event);
    if (this.begun) {
      this.box = this.between(this.begun, place);
      this.redraw();
    }
    const n = this.times.findIndex((at) => place.at <= at && place.at > at - this.step);
    const row = this.rows.find((row) => row.bucket === place.bucket);
    this.tip.hidden = n < 0;
    if (n < 0) return;
    const count = row?.steps[n];
    const [from, to] = this.chart.page.window();
    const band = this.band(place.bucket, place.bucket);
    const said = `${when(this.times[n], to - from)}  ${band}: ${count === null ? "not recorded" : amount(count ?? 0)}`;
    tell(this.tip, [said, ...marksNear(this.chart.page.marks(), this.x, place.x)], place);
  }

  end(event) {
    if (!this.begun) return;
    const place = this.place_of(event);
    const clicked = Math.abs(place.x - this.begun.x) < 4;
    this.box = this.between(this.begun, place);
    // A click takes the band over the whole time.
    if (clicked) [this.box.from, this.box.to] = this.chart.page.window();
    this.begun = null;
    this.redraw();
    this.chart.boxed(this.box);
  }

  /** Up and down move a band over the whole time, or with Shift its upper end; Enter takes it. */
  press(event) {
    const by = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    if (!this.rows?.length || (!by && event.key !== "Enter")) return;
    event.preventDefault();
    event.stopPropagation();
    if (!by) return this.box && this.chart.boxed(this.box);
    const [from, to] = this.chart.page.window();
    const within = (bucket) => Math.min(Math.max(bucket, this.low), this.high);
    const was = this.box ?? { low: this.high + 1, high: this.high + 1 };
    const high = within(was.high + by);
    const low = event.shiftKey && this.box ? Math.min(was.low, high) : high;
    this.box = { from, to, low, high };
    this.canvas.setAttribute("aria-label", this.band(low, high));
    this.redraw();
    this.chart.boxed(this.box);
  }

  /** Where a band begins and ends, for people. */
  band(low, high) {
    return `${this.start(low)} to ${this.start(high + 1)}`;
  }

  /** Where a bucket begins; that behind the last of shares is all. */
  start(bucket) {
    return this.starts?.[bucket] ?? (this.starts?.[bucket - 1]?.endsWith("%") ? "100%" : "");
  }

  between(a, b) {
    const [from, to] = [Math.min(a.at, b.at), Math.max(a.at, b.at)];
    return { from: Math.floor(from), to: Math.max(Math.ceil(to), Math.floor(from) + 1), low: Math.min(a.bucket, b.bucket), high: Math.max(a.bucket, b.bucket) };
  }

  redraw() {
    this.draw(this.times, this.rows, this.step, this.starts);
  }

  outline(context) {
    const { from, to, low, high } = this.box;
    const [x0, x1] = [Math.max(this.x(from), LEFT), Math.min(this.x(to), this.size.width - RIGHT)];
    const y = TOP + (this.high - high) * this.size.row;
    context.strokeStyle = colour("box");
    context.lineWidth = 2;
    context.strokeRect(x0, y, Math.max(x1 - x0, 2), (high - low + 1) * this.size.row);
  }

  destroy() {
    this.canvas.remove();
    this.tip.remove();
  }
}
