// A boxed region of a heat map compared with the rest, dimension by dimension: what do these have in common?

import { ask, el, quoted } from "/words.js";

const VALUES_MAX = 5;
/** A difference below this many percent says nothing. */
const SAYS = 5;

/** Fills the chart's place for it. */
export async function compare(chart, box) {
  const { statistic, filters, dimensions } = chart.found.chart;
  const place = chart.compared;
  place.hidden = false;
  place.replaceChildren(el("p.muted", {}, "comparing ..."));
  const base = statistic + filters.map((filter) => filter.text).join("");
  const band = box.band.map((filter) => filter.text).join("");
  const fixed = filters.map((filter) => filter.by);
  const by = dimensions.filter((name) => name !== box.axis && !fixed.includes(name) && !(name === "process" && statistic.startsWith("file.")));
  const [from, to] = chart.page.window().map(Math.floor);
  const within = (query, from, to) => ask("/api/query", { q: query, from, to, step: 0, rows: 100 });
  try {
    const tables = await Promise.all(by.map(async (name) => {
      const [inside, all] = await Promise.all([within(`${base}${band}[${name}]`, box.from, box.to), within(`${base}[${name}]`, from, to)]);
      return table(name, inside, all);
    }));
    const rated = tables.filter((table) => table.rows.length).sort((a, b) => b.says - a.says);
    const first = rated[0];
    const verdict = first && first.says >= SAYS
      ? `What they have in common most: ${first.name} ${first.rows[0].value}, with ${first.rows[0].inside.toFixed(0)} % of these and ${first.rows[0].outside.toFixed(0)} % of the rest.`
      : "They have nothing in common that the rest does not have as well.";
    place.replaceChildren(el("p.verdict", {}, verdict), el("div.tables", {}, rated.map((table) => shown(chart, table))));
  } catch (error) {
    place.replaceChildren(el("p.says.wrong", {}, error.message));
  }
}

/** Shares of each value among those in the box and among all others, in percent. */
function table(name, inside, all) {
  // A mean counts as often as it lasted.
  const of = ({ rows, chart }) => {
    const seconds = chart.level ? chart.recorded.reduce((sum, n) => sum + n, 0) : 1;
    return new Map(rows.map((row) => [row.key[name], row.total * seconds]));
  };
  const [these, every] = [of(inside), of(all)];
  const sum = (values) => [...values].reduce((sum, value) => sum + value, 0);
  const rest = new Map([...every].map(([value, total]) => [value, Math.max(total - (these.get(value) ?? 0), 0)]));
  const [count, others] = [sum(these.values()), sum(rest.values())];
  const share = (part, whole) => (whole > 0 ? (part / whole) * 100 : 0);
  const rows = [...these].map(([value, total]) => ({ value, inside: share(total, count), outside: share(rest.get(value) ?? 0, others) }));
  rows.sort((a, b) => b.inside - b.outside - (a.inside - a.outside));
  return { name, rows, says: rows.length ? rows[0].inside - rows[0].outside : 0 };
}

function shown(chart, { name, rows }) {
  const bar = (share, kind) => {
    const made = el("i." + kind);
    made.style.width = Math.max(share, 0.5) + "%";
    return el("span.bar", {}, made, el("b", {}, share.toFixed(0) + " %"));
  };
  const into = (value) => chart.drill([{ by: name, text: `[${name}=${quoted(value)}]` }]);
  const row = ({ value, inside, outside }) => el("tr", {},
    el("td.name", {}, value.startsWith("(") ? value : el("button.row", { title: "go into it: " + value, onclick: () => into(value) }, el("bdi", {}, value))),
    el("td", {}, bar(inside, "these"), bar(outside, "rest")));
  return el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, name), el("th", {}, "these, and the rest"))), el("tbody", {}, rows.slice(0, VALUES_MAX).map(row)));
}
