//! What bounds or delays an interface's sending, in what tc lists.

/// The value where nothing shapes.
pub(crate) const UNSHAPED: &str = "none";
/// Disciplines that bound or delay.
const SHAPING: [&str; 2] = ["tbf", "netem"];

/// What shapes the sending of an interface, as tc takes it again: `tbf rate 1Gbit burst 4Mb lat 50ms`; or `none`. Unknown if
/// somebody has put others below it: these would be gone with it, and nobody could put them back.
pub(crate) fn shaper_of(listing: &str, device: &str) -> Option<String> {
    let mut shaper = UNSHAPED.to_owned();
    let mut others_below = false;
    for line in listing.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["qdisc", kind, _, "dev", name, "root", "refcnt", _, options @ ..]
                if *name == device && SHAPING.contains(kind) =>
            {
                shaper = [&[*kind], options].concat().join(" ");
            }
            // What is received passes by the root.
            ["qdisc", _, _, "dev", name, "parent", parent, ..] if *name == device => {
                others_below |= !parent.starts_with("ffff:");
            }
            _ => {}
        }
    }
    (shaper == UNSHAPED || !others_below).then_some(shaper)
}
