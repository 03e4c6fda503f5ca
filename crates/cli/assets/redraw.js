// When what is drawn has to be drawn anew: the window has another size, colours are others, or it goes to paper.

/** Whether what is drawn now is printed. */
export const goesToPaper = () => document.documentElement.classList.contains("paper");

/** Has it drawn anew when it looks otherwise. */
export function whenever(draw) {
  let wait;
  addEventListener("resize", () => { clearTimeout(wait); wait = setTimeout(draw, 100); });
  for (const of of ["(prefers-color-scheme: dark)", "print"]) matchMedia(of).addEventListener("change", draw);
  // A printer does not wait for what is drawn later: so it is laid out and coloured as on paper before.
  for (const [event, on] of [["beforeprint", true], ["afterprint", false]]) {
    addEventListener(event, () => { document.documentElement.classList.toggle("paper", on); draw(); });
  }
}
