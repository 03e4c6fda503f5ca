//! Charts as one HTML file that needs nothing else: the page's own scripts and style are in it, and what it shows. A policy in the
//! file itself keeps it from loading or sending anything.

use anyhow::Result;
use serde_json::Value;

macro_rules! asset {
    ($file:literal) => {
        include_str!(concat!("../../../../assets/", $file))
    };
}

/// Modules, each behind those that it needs; they become one script.
const MODULES: [&str; 7] = [
    asset!("words.js"),
    asset!("redraw.js"),
    asset!("lines.js"),
    asset!("heat.js"),
    asset!("compare.js"),
    asset!("chart.js"),
    asset!("still.js"),
];

/// The whole file, which shows what `told` says: `name`, `charts` as the page gets them, `marks`.
pub fn file(told: &Value) -> Result<String> {
    // Nothing in it may look like the end of its element.
    let told = serde_json::to_string(told)?.replace('<', "\\u003c");
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'\">\n\
         <title>Ropewalk analytics</title>\n<style>{}{}</style>\n</head>\n<body>\n\
         <header><h1>Ropewalk <span id=\"name\"></span></h1><div class=\"tools\"><output id=\"when\"></output>\
         <button id=\"whole\" hidden>Whole time</button></div></header>\n<p id=\"status\"></p>\n<main id=\"charts\"></main>\n\
         <noscript>The charts of this file are drawn by the script in it.</noscript>\n\
         <script type=\"application/json\" id=\"told\">{told}</script>\n<script>{}</script>\n<script>\"use strict\";\n{}</script>\n</body>\n</html>\n",
        asset!("uplot/uPlot.min.css"),
        asset!("page.css"),
        asset!("uplot/uPlot.iife.min.js"),
        script(),
    ))
}

/// The modules as one script: what they import from one another is in it.
fn script() -> String {
    let lines = MODULES.iter().flat_map(|module| module.lines());
    let kept = lines.filter(|line| !line.starts_with("import "));
    kept.map(|line| line.strip_prefix("export ").unwrap_or(line).to_owned() + "\n").collect()
}
