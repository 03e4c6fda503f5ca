//! Plans as users write them, right and wrong.

use super::*;

const GOOD: &str = "\
name = 'mine'
title = 'a test'
step = 'devices'
steps = [1, 2, 'n']
seconds = 2
[[series]]
name = 'r'
engine = 'fio'
figure = 'operations'
set = { rw = 'randread', bs = '4k' }
matrix = { iodepth = [1, 8], numjobs = [1, 2, 4] }
each = { ioengine = ['libaio', 'io_uring'] }
[short]
seconds = 0.5
steps = [1]
matrix = { iodepth = [4] }
";

/// Whoever wrote it: an error that names the place, or a plan.
#[test]
fn changed_plans_are_refused_or_mean_something() {
    let texts = crate::builtin::names().filter_map(crate::builtin::text).chain([GOOD]);
    let samples: Vec<Vec<u8>> = texts.map(|text| text.as_bytes().to_vec()).collect();
    crate::mutate::mutated(&samples, 3_000, |bytes| {
        let text = String::from_utf8_lossy(bytes);
        for short in [false, true] {
            match Plan::parse("t", &text, short) {
                Ok(plan) => assert!(plan.steps.resolve(5).len() <= text.len()),
                Err(error) => assert!(error.to_string().starts_with("t"), "{error}"),
            }
        }
    });
}

#[test]
fn both_forms_and_every_combination() {
    let full = Plan::parse("t", GOOD, false).unwrap();
    assert_eq!(full.series.len(), 2);
    assert_eq!(full.series[1].name, "r ioengine libaio".replace("libaio", "io_uring"));
    assert_eq!(full.series[0].combinations().len(), 6);
    assert_eq!((full.seconds, full.steps.resolve(5)), (2.0, vec![1, 2, 5]));
    let short = Plan::parse("t", GOOD, true).unwrap();
    assert_eq!(short.series[0].combinations().len(), 3);
    assert!(short.series[0].combinations().iter().all(|p| p["iodepth"] == "4" && p["rw"] == "randread"));
    assert_eq!((short.seconds, short.steps.resolve(5)), (0.5, vec![1]));
}

#[test]
fn errors_have_line_and_key() {
    let bad = |from: &str, to: &str| {
        assert!(GOOD.contains(from), "{from}");
        let error = Plan::parse("t.toml", &GOOD.replacen(from, to, 1), false).unwrap_err();
        (error.line, error.key.clone(), error.to_string())
    };
    for (from, to, line, key, part) in [
        ("name = 'mine'", "name = 'My Plan'", 1, "name", "a-z"),
        ("step = 'devices'", "step = 'disks'", 3, "step", "\"disks\" is none of devices, pairs"),
        ("steps = [1, 2, 'n']", "steps = [0]", 4, "steps", "1 to 4096"),
        ("steps = [1, 2, 'n']", "steps = 'all'", 4, "steps", "1..n"),
        ("name = 'mine'", "name = '-mine'", 1, "name", "the first no -"),
        ("title = 'a test'", "title = 5", 2, "title", "it is 5; write a text in quotes"),
        ("steps = [1, 2, 'n']", "steps = true", 4, "steps", "1..n"),
        ("steps = [1, 2, 'n']", "steps = [-1]", 4, "steps", "1..n"),
        ("steps = [1, 2, 'n']", "steps = [1.5]", 4, "steps", "1..n"),
        ("steps = [1, 2, 'n']", "steps = [1, true]", 4, "steps", "1..n"),
        ("steps = [1, 2, 'n']", "steps = [\n1,\n{}]", 4, "steps", "1..n"),
        ("steps = [1, 2, 'n']", "steps = { a = 1 }", 4, "steps", "1..n"),
        ("seconds = 2", "seconds = nan", 5, "seconds", "from 0.1"),
        ("seconds = 2", "seconds = 2\nrepeats = -1", 6, "repeats", "from 1 to 100"),
        ("seconds = 2", "seconds = 2\npick = 'x'", 6, "pick", "write a table such as"),
        ("seconds = 2", "seconds = 2\n[targets]\ndevices = 1", 7, "devices", "a list of texts"),
        ("name = 'r'", "name = \"a\\u001b\"", 7, "name", "control"),
        ("iodepth = [1, 8]", "iodepth = 8", 11, "iodepth", "it is 8; write a list"),
        ("rw = 'randread'", "rw = ['randread']", 10, "rw", "write a number, a text in quotes"),
        ("seconds = 2", "seconds = -1", 5, "seconds", "from 0.1"),
        ("seconds = 2", "seconds = 'long'", 5, "seconds", "it is the text \"long\"; write a number"),
        ("seconds = 2", "second = 2", 5, "second", "no key \"second\" here; possible are name, title"),
        ("engine = 'fio'", "engine = 'fia'", 8, "engine", "\"fia\" is none of"),
        ("rw = 'randread'", "rw = 'sideways'", 10, "rw", "none of"),
        ("bs = '4k'", "bs = '4x'", 10, "bs", "bad size"),
        ("bs = '4k'", "bz = '4k'", 10, "bz", "no parameter"),
        ("iodepth = [1, 8]", "iodepth = [1, 99999]", 11, "iodepth", "1 to 4096"),
        ("iodepth = [1, 8]", "iodepth = []", 11, "iodepth", "at least one"),
        ("iodepth = [4]", "iodepth = [0]", 16, "iodepth", "1 to 4096"),
        ("iodepth = [4]", "depth = [4]", 16, "depth", "no series has"),
        ("seconds = 0.5", "seconds = 0", 14, "seconds", "from 0.1"),
    ] {
        let (at, named, text) = bad(from, to);
        assert_eq!((at, named.as_str()), (line, key), "{to}: {text}");
        assert!(text.contains(part) && text.contains("t.toml, line"), "{to}: {text}");
    }
    let error = Plan::parse("t.toml", "name = ", false).unwrap_err();
    assert_eq!(error.line, 1);
    let missing = Plan::parse("t.toml", &GOOD.replace("step = 'devices'\n", ""), false).unwrap_err();
    assert_eq!(missing.to_string(), "t.toml, line 1: the key \"step\" is missing");
}

#[test]
fn any_bytes_are_a_plan_or_an_error() {
    for cut in 0..GOOD.len() {
        let _ = Plan::parse("t", &GOOD[..cut], true);
    }
    let many = GOOD.replace("[1, 8]", &format!("{:?}", vec![1; 5000]));
    assert!(Plan::parse("t", &many, false).unwrap_err().why.contains("more than"));
}

#[test]
fn plans_in_the_documentation_can_be_run() {
    let text = include_str!("../../../../docs/lab.md");
    let plans: Vec<&str> =
        text.split("```toml\n").skip(1).filter_map(|rest| rest.split("\n```").next()).collect();
    assert_eq!(plans.len(), 1);
    for text in plans {
        let plan = Plan::parse("nvme-coalescing", text, false).unwrap();
        assert_eq!(plan.series.len(), 4, "each time is a series");
        assert!(plan.series.iter().all(|series| series.set["nvme_count"] == "256"));
    }
}
