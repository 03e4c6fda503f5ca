//! Names of any bytes: in tables, queries, files.

use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt, path::Path, process::Command};

use serde_json::Value;

use super::{
    closed,
    common::{Cluster, ok, until},
    mounts::Mounts,
    query, read_by_others, write_direct,
};

/// Every byte that a name can hold, and names that look like something else: what is shown of each is found by that again.
pub fn find_themselves(cluster: &Cluster, mounts: &Mounts) {
    let directory = mounts.at(0, "odd \"|]");
    fs::create_dir(&directory).unwrap();
    let mut names: Vec<Vec<u8>> =
        (1..=255u8).filter(|byte| *byte != b'/').collect::<Vec<_>>().chunks(24).map(<[u8]>::to_vec).collect();
    for name in [
        "a\nb",
        "a\\nb",
        "a\\x0ab",
        " a ",
        "[op=read]",
        "a]b",
        "a|b",
        "=,;",
        "<img src=x onerror=alert(1)>",
        "<script>",
        "(others)",
        "\u{202e}a",
    ] {
        names.push(name.as_bytes().to_vec());
    }
    names.extend([b"\xff\xfe".to_vec(), b"\xfe\xff".to_vec(), b"\\xff\\xfe".to_vec(), [b'l'; 255].to_vec()]);
    // Each was written another number of times; few in one second, so that a row of the second's table is there for each: what finds
    // none is counted among the others. A second that a machine misses counts in the one that follows.
    for (n, name) in names.iter().enumerate() {
        if n % 6 == 5 {
            closed(cluster);
        }
        write_direct(&directory.join(OsStr::from_bytes(name)), n as u64 + 1, 4096);
    }
    let count = names.len() as f64;
    let of = "file.ops[op=write][directory=\"/odd \\\"|]\"]";
    until("all are counted", || {
        let found = cluster.json(&["analytics", "query", "file.ops[op=write][directory]", "--from", "-59m"]);
        let odd = found["rows"]
            .as_array()
            .unwrap()
            .iter()
            .find(|row| row["key"]["directory"] == "/odd \"|]")
            .cloned();
        odd.is_some_and(|row| row["total"] == count * (count + 1.0) / 2.0)
    });
    let found = query(cluster, &format!("{of}[file]"));
    let rows = found["rows"].as_array().unwrap();
    let shown: Vec<&str> = rows.iter().map(|row| row["key"]["file"].as_str().unwrap()).collect();
    assert!(shown.iter().all(|file| !file.contains(|c: char| c.is_control())), "{shown:?}");
    let mut totals: Vec<f64> = rows.iter().map(|row| row["total"].as_f64().unwrap()).collect();
    totals.sort_by(f64::total_cmp);
    assert_eq!(totals, (1..=names.len()).map(|n| n as f64).collect::<Vec<_>>(), "no two are shown alike");

    let quoted = |file: &&str| format!("\"{}\"", file.replace('\\', "\\\\").replace('"', "\\\""));
    let all: Vec<String> = shown.iter().map(quoted).collect();
    // Rates are of another moment.
    let counted = |found: &Value| -> Vec<(Value, Value)> {
        let rows = found["rows"].as_array().unwrap().iter();
        rows.map(|row| (row["key"].clone(), row["total"].clone())).collect()
    };
    let found_again = query(cluster, &format!("file.ops[op=write][file={}][file]", all.join("|")));
    assert_eq!(counted(&found_again), counted(&found));

    // As the table shows them, pasted.
    let dir = cluster.dir();
    let dir = dir.to_str().unwrap();
    let ask =
        |text: &str| ok(&["analytics", "query", text, "--dir", dir, "--from", "-59m", "--rows", "1000"]);
    let table = ask(&format!("{of}[file]"));
    let names_of = |table: &str| -> Vec<String> {
        let lines = table.lines().filter(|line| line.contains(" %"));
        lines.map(|line| line.trim_start().split_once("  ").unwrap().0.to_owned()).collect()
    };
    let pasted = names_of(&table);
    assert_eq!(pasted.len(), names.len(), "{table}");
    let again = ask(&format!("file.ops[op=write][file={}][file]", pasted.join("|")));
    assert_eq!(names_of(&again), pasted);

    // Lines and columns of files stay lines and columns.
    let out = mounts.more.path().join("odd.csv");
    let export = |out: &Path| {
        ok(&[
            "analytics",
            "export",
            &format!("{of}[file]"),
            "--dir",
            dir,
            "--from",
            "-59m",
            "--step",
            "1h",
            "--rows",
            "1000",
            "--out",
            out.to_str().unwrap(),
        ])
    };
    export(&out);
    let read = "import csv, sys; rows = list(csv.reader(open(sys.argv[1], newline=''))); assert all(len(r) == 3 for r in rows), rows; print(len({r[1] for r in rows[1:]}))";
    let read = Command::new("python3").args(["-c", read]).arg(&out).output().unwrap();
    assert_eq!(
        String::from_utf8_lossy(&read.stdout).trim(),
        names.len().to_string(),
        "{}",
        String::from_utf8_lossy(&read.stderr)
    );
    let out = mounts.more.path().join("odd.html");
    export(&out);
    let html = fs::read_to_string(&out).unwrap();
    assert!(!html.contains("<img") && html.matches("</script").count() == 3, "no name is markup");
    let out = mounts.more.path().join("odd.json");
    export(&out);
    let exported: Value = serde_json::from_slice(&fs::read(&out).unwrap()).unwrap();
    assert_eq!(counted(&exported), counted(&found));
    let out = mounts.more.path().join("odd.parquet");
    export(&out);
    for (engine, sums) in read_by_others(&out) {
        let sums = sums.as_object().unwrap();
        assert_eq!(sums.len(), names.len(), "{engine}: {sums:?}");
        for row in rows {
            assert_eq!(sums.get(row["key"]["file"].as_str().unwrap()), Some(&row["total"]), "{engine}");
        }
    }
}
