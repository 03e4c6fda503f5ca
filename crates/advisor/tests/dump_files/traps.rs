//! What is wrong in the articles themselves, one by one: each trap has its rule, which tells of it at a line of its article.
//! `docs/advisor-dumps.md` has the table; `ROPEWALK_UPDATE_DOCS=1` writes it anew.

use std::fs;

use advisor::dumps::{ROWS, document, judge};

use super::articles::articles;

/// The letter is the article's (A is 000, ...); what is wrong; the rule.
const TRAPS: [(&str, &str, &str); 37] = [
    ("A1", "MLNX-OS in two versions", "version-contradiction"),
    ("A2", "a hash policy under balance-alb has no effect", "bond-policy-inert"),
    ("A3", "typographic quotes in a shell file", "typographic-quotes"),
    ("A4", "`seqDiscardThreshhold`, spelt so by the daemon", "scale-double-h"),
    ("A5", "lines that stand twice", "duplicate-lines"),
    ("A5", "a name with a parenthesis", "remark-in-name"),
    ("A6", "40 Gbit/s in the dump, 56 in the tests", "link-speed-differs"),
    ("A7", "a file system is full", "filesystem-full"),
    ("A8", "seven links, six ports", "links-do-not-add-up"),
    ("A9", "marks of the dump and of the text", "scale-autotuned-marked"),
    ("A10", "the interface's value wins over the global one", "aix-interface-wins"),
    ("A11", "a condition left over from another paper", "leftover-condition"),
    ("A12", "a table without its first ruler", "table-without-ruler"),
    ("A13", "GBps, decimal or binary", "unit-decimal-or-binary"),
    ("A14", "32 sub-blocks as a law", "block-rule-old-format"),
    ("A15", "sizes without a unit", "size-without-unit"),
    ("B1", "a forecast in another unit than the steps", "extrapolation-unit"),
    ("B2", "a database size that is a record size", "record-size-meant"),
    ("B3", "files of three sizes, of three tests", "tests-with-other-files"),
    ("B4", "753 and 752 are one figure", "difference-is-noise"),
    ("B5", "a QDR fabric on DDR adapters", "fabric-above-adapter"),
    ("C1", "round robin with the number of active-backup", "bond-mode-number"),
    ("C2", "formulas whose parentheses do not match", "formula-parentheses"),
    ("C2", "formulas of older kernels", "hash-formula-old"),
    ("C3", "a range that was widened later", "range-of-which-release"),
    ("D1", "28.9 and 28.5 million of two runs", "figure-contradiction"),
    ("D2", "placeholders of two forms in a profile", "uperf-placeholders"),
    ("D3", "a duration without a unit", "uperf-duration-unit"),
    ("D4", "CPUs that are threads", "cpus-are-threads"),
    ("D5", "the coalescing threshold counts from 0", "nvme-coalescing-encoding"),
    ("D6", "a list broken over two lines", "broken-line"),
    ("D7", "less memory than configured", "numa-less-than-configured"),
    ("D8", "steps counted in ports and in pairs", "steps-of-two-units"),
    ("E1", "a default that depends on the release", "default-of-which-release"),
    ("E2", "rmdev -R takes down all below", "aix-rmdev-recursive"),
    ("E3", "type R is no reboot", "aix-odm-type-r"),
    ("E4", "one busy disk gains nothing from queues", "aix-fc-one-disk-one-queue"),
];

#[test]
fn every_trap_of_the_articles_is_told_of_at_its_line() {
    let mut told = Vec::new();
    for path in articles() {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let doc = document(&name, &fs::read(&path).unwrap());
        for verdict in judge(&doc).into_iter().filter(|v| !v.judgement.good) {
            let line = verdict.judgement.evidence.first().map_or(0, |(line, _)| *line);
            told.push((name[..3].to_owned(), verdict.judgement.rule, line));
        }
    }
    let article = |trap: &str| format!("00{}", trap.as_bytes()[0] - b'A');
    let mut table = "| trap | what is wrong in the article | rule | line |\n|---|---|---|---|\n".to_owned();
    for (trap, what, rule) in TRAPS {
        assert!(ROWS.iter().any(|row| row.id == rule), "{rule} is no rule");
        let at = told.iter().find(|(name, told, _)| *name == article(trap) && *told == rule);
        // 0 is the text as a whole.
        let line = at.map_or_else(String::new, |(name, _, line)| format!("{name}:{line}"));
        assert!(told.is_empty() || at.is_some(), "{trap}: {rule} is not told of in {}", article(trap));
        table.push_str(&format!("| {trap} | {what} | {rule} | {line} |\n"));
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/advisor-dumps.md");
    let page = fs::read_to_string(path).unwrap();
    let (head, rest) = page.split_once("| trap | ").expect("docs/advisor-dumps.md has the table of traps");
    let (_, tail) = rest.split_once("\n\n").unwrap_or((rest, ""));
    let wanted = format!("{head}{table}\n{tail}");
    if std::env::var_os("ROPEWALK_UPDATE_DOCS").is_some() && !told.is_empty() {
        fs::write(path, &wanted).unwrap();
    } else if told.is_empty() {
        // Without the articles what stands before the lines.
        for (trap, what, rule) in TRAPS {
            assert!(page.contains(&format!("| {trap} | {what} | {rule} | ")), "{trap} is not in the table");
        }
    } else {
        assert_eq!(page, wanted, "ROPEWALK_UPDATE_DOCS=1 writes it anew");
    }
}
