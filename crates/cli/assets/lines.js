// Lines over time, by uPlot. A second in which nothing was recorded is a gap.

import { amount, clock, colour, el, ending, when } from "/words.js";

/** Rows that have a line of their own. */
const LINES_MAX = 8;

/** Numbers of the palette; `lines.js` alone decides who has which. */
export const PALETTE = ["c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7"];

/** Draws marks (events, cells of the lab) over a chart, within its edges. */
export function drawMarks(context, marks, x, { left, right, top, bottom }) {
  context.save();
  context.beginPath();
  context.rect(left, top, right - left, bottom - top);
  context.clip();
  context.lineWidth = devicePixelRatio;
  for (const mark of marks) {
    context.strokeStyle = context.fillStyle = colour("mark");
    const [from, to] = [x(mark.from), x(mark.to ?? mark.from)];
    if (to - from > 2) {
      context.globalAlpha = 0.1;
      context.fillRect(from, top, to - from, bottom - top);
      context.globalAlpha = 1;
    }
    context.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
    context.beginPath();
    context.moveTo(from, top);
    context.lineTo(from, bottom);
    context.stroke();
    context.setLineDash([]);
    context.beginPath();
    context.moveTo(from - 4 * devicePixelRatio, top);
    context.lineTo(from + 4 * devicePixelRatio, top);
    context.lineTo(from, top + 6 * devicePixelRatio);
    context.fill();
  }
  context.restore();
}

/** How far a hand may miss a mark. */
const NEAR = 5;

/** What the marks at a place say. */
export const marksNear = (marks, x, place) => marks.filter((mark) => Math.abs(x(mark.from) - place) <= NEAR).map((mark) => `${clock(mark.from)} ${mark.text}`);

/** Shows a tip beside the pointer: all of it is seen, however near the edge. */
export function tell(tip, lines, { x, y }) {
  tip.textContent = lines.join("\n");
  tip.hidden = false;
  tip.style.left = Math.max(Math.min(x + 12, tip.parentNode.clientWidth - tip.offsetWidth), 0) + "px";
  tip.style.top = Math.max(Math.min(y + 14, tip.parentNode.clientHeight - tip.offsetHeight), 0) + "px";
}

export class Lines {
  constructor(place, chart) {
    this.place = place;
    this.chart = chart;
    this.plot = null;
    this.shape = "";
    this.tip = el("div.tip", { hidden: true });
    place.append(this.tip);
  }

  /** What is under the pointer: the time, the figure of each line, marks. */
  under(plot) {
    const { idx, left, top } = plot.cursor;
    this.tip.hidden = idx === null || idx === undefined || left < 0 || top < 0;
    if (this.tip.hidden) return;
    const figure = (row) => `${ending(row.name)}: ${row.steps[idx] === null ? "not recorded" : amount(row.steps[idx], this.unit)}`;
    const marks = marksNear(this.chart.page.marks(), (at) => plot.valToPos(at, "x"), left);
    tell(this.tip, [when(plot.data[0][idx], this.span()), ...this.shown.map(figure), ...marks], { x: left + plot.over.offsetLeft, y: top });
  }

  /** Draws rows ({name, steps}) over times; a change of what is shown makes the plot anew, new seconds do not. */
  draw(times, rows, unit) {
    const shown = rows.slice(0, LINES_MAX);
    Object.assign(this, { shown, unit });
    const data = [times, ...shown.map((row) => row.steps)];
    const width = Math.max(this.place.clientWidth, 200);
    const height = window.innerWidth < 600 ? 150 : 190;
    const shape = [width, height, unit, colour("ink"), ...shown.map((row) => row.name)].join("\n");
    if (shape !== this.shape) {
      this.plot?.destroy();
      const axis = { stroke: colour("muted"), grid: { stroke: colour("rule"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
      this.plot = new uPlot({
        width, height,
        legend: { show: false },
        cursor: { drag: { x: true, y: false, setScale: false }, points: { size: 6 } },
        scales: { x: { time: true, range: () => this.chart.page.window() }, y: { range: (_, __, most) => [0, most > 0 ? most * 1.08 : 1] } },
        axes: [
          { ...axis, values: (_, all) => all.map((at) => when(at, this.span())), space: 80, size: 26 },
          { ...axis, size: 62, values: (_, all) => all.map((value) => amount(value, unit)) },
        ],
        series: [{}, ...shown.map((row, at) => ({ label: row.name, stroke: colour(PALETTE[at]), width: 1.6, points: { show: false }, spanGaps: false }))],
        hooks: {
          draw: [(plot) => {
            const { left, top, width, height } = plot.bbox;
            drawMarks(plot.ctx, this.chart.page.marks(), (at) => plot.valToPos(at, "x", true), { left, right: left + width, top, bottom: top + height });
          }],
          setCursor: [(plot) => this.under(plot)],
          // Dragging takes a time.
          setSelect: [(plot) => {
            if (plot.select.width < 4) return;
            const [from, to] = [plot.select.left, plot.select.left + plot.select.width].map((x) => plot.posToVal(x, "x"));
            plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
            this.chart.page.pin(Math.floor(from), Math.ceil(to));
          }],
        },
      }, data, this.place);
      this.shape = shape;
    } else {
      this.plot.setData(data);
    }
  }

  span() {
    const [from, to] = this.chart.page.window();
    return to - from;
  }

  destroy() {
    this.plot?.destroy();
    this.plot = null;
    this.shape = "";
    this.tip.remove();
  }
}
