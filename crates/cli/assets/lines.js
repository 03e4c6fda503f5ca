// Lines over time, by uPlot. A second in which nothing was recorded is a gap.

import { amount, colour, when } from "/words.js";

/** Rows that have a line of their own. */
const LINES_MAX = 8;

/** Numbers of the palette; `lines.js` alone decides who has which. */
export const PALETTE = ["c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7"];

/** Draws marks (events, cells of the lab) over a chart. */
export function drawMarks(context, marks, x, top, bottom) {
  context.save();
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

export class Lines {
  constructor(place, chart) {
    this.place = place;
    this.chart = chart;
    this.plot = null;
    this.shape = "";
  }

  /** Draws rows ({name, steps}) over times; a change of what is shown makes the plot anew, new seconds do not. */
  draw(times, rows, unit) {
    const shown = rows.slice(0, LINES_MAX);
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
          draw: [(plot) => drawMarks(plot.ctx, this.chart.page.marks(), (at) => plot.valToPos(at, "x", true), plot.bbox.top, plot.bbox.top + plot.bbox.height)],
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
  }
}
