// Words and numbers for people, and the building of elements. No text of the cluster becomes markup: all of it is text nodes.

/** An element: its tag with classes (`div.card.wide`), attributes and handlers, children. */
export function el(tag, given = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const made = document.createElement(name);
  if (classes.length) made.className = classes.join(" ");
  for (const [key, value] of Object.entries(given)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key in made && key !== "list") made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

/** A figure with a unit's letter. */
export function amount(value, unit = "") {
  if (value === null || value === undefined) return "-";
  const size = Math.abs(value);
  const [scale, letter] = size >= 1e12 ? [1e12, "T"] : size >= 1e9 ? [1e9, "G"] : size >= 1e6 ? [1e6, "M"] : size >= 1e4 ? [1e3, "k"] : [1, ""];
  const scaled = value / scale;
  const digits = Number.isInteger(scaled) ? 0 : Math.abs(scaled) < 1 ? 2 : 1;
  const tail = unit === "bytes" ? letter + "B" : letter;
  return scaled.toFixed(digits) + (tail ? "\u00a0" + tail : "");
}

/** Microseconds. */
export function time(us) {
  if (us === null || us === undefined) return "-";
  const [scale, unit] = us >= 1e6 ? [1e6, "s"] : us >= 1e3 ? [1e3, "ms"] : [1, "us"];
  const scaled = us / scale;
  return scaled.toFixed(scaled >= 100 ? 0 : scaled >= 10 ? 1 : 2) + "\u00a0" + unit;
}

/** A time of day of the reader. */
export function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString([], { hour12: false });
}

/** The same with its day, where the time shown is longer than one. */
export function when(seconds, span) {
  if (span <= 86_400) return clock(seconds);
  const at = new Date(seconds * 1000);
  return `${at.toLocaleDateString([], { month: "short", day: "numeric" })} ${at.toLocaleTimeString([], { hour12: false, hour: "2-digit", minute: "2-digit" })}`;
}

/** How long a time is. */
export function lasting(seconds) {
  const [scale, unit] = seconds >= 86_400 ? [86_400, "day"] : seconds >= 3600 ? [3600, "h"] : seconds >= 60 ? [60, "min"] : [1, "s"];
  const number = +(seconds / scale).toFixed(1);
  return `${number} ${unit}${unit === "day" && number !== 1 ? "s" : ""}`;
}

/** A value as a query takes it. */
export function quoted(value) {
  return /[|\]"]/.test(value) || value.trim() !== value || value === ""
    ? '"' + value.replaceAll("\\", "\\\\").replaceAll('"', '\\"') + '"'
    : value;
}

/** A long name by its end, which tells more. */
export function ending(name, most = 44) {
  return name.length > most ? "\u2026" + name.slice(1 - most) : name;
}

/** A text for a shell. */
export function shell(text) {
  return "'" + text.replaceAll("'", "'\\''") + "'";
}

/** A colour of the page, as its style says. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}

/** Copies a text, and says so on the button. Where the clipboard is closed (plain HTTP from elsewhere) it is shown, marked. */
export async function copy(text, button) {
  const was = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    window.prompt("Copy this:", text);
  }
  setTimeout(() => { button.textContent = was; }, 1200);
}

/** Asks the page's process. Its refusals are errors with its words. */
export async function ask(path, params = {}) {
  const pairs = new URLSearchParams(params).toString();
  const answer = await fetch(path + (pairs ? "?" + pairs : ""));
  const text = await answer.text();
  let value;
  try { value = JSON.parse(text); } catch { throw new Error(text.trim() || answer.statusText); }
  if (!answer.ok) throw new Error(value.error ?? answer.statusText);
  return value;
}
