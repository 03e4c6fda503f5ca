//! Years in seconds: what is kept of them, within which bound.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use base::stats::{Amount, Key, Row, Set};

use super::*;
use crate::{Question, Source, evaluate};

/// A second with operations on so many files.
fn second(at: u64, files: u64) -> Second {
    let row = |inode| {
        let latency = (20..32).map(|bucket| (bucket, 1)).collect();
        let amount = Amount { ops: 12, bytes: 12 << 12, ns: 12_000, latency };
        Row { key: Key { inode, op: 1, ..Key::default() }, amount, missed: 0 }
    };
    let operations =
        vec![Operations { set: Set::File, rows: (1..=files).map(row).collect(), other: Vec::new() }];
    Second { at, span: 1, recorded: 1, elapsed_us: 1_000_000, operations, series: Vec::new() }
}

/// Where the records of a tier begin, how many they are, and the operations in them.
fn kept(dir: &Path, tier: Tier) -> (u64, u64, u64) {
    let (mut begin, mut count, mut ops) = (u64::MAX, 0, 0);
    reader::tier(dir, tier, 0, u64::MAX - 1, &mut |second, _| {
        begin = begin.min(second.at - u64::from(second.span));
        count += 1;
        let rows = second.operations.iter().flat_map(|operations| &operations.rows);
        ops += rows.map(|row| row.amount.ops).sum::<u64>();
    })
    .unwrap();
    (begin, count, ops)
}

/// Records `days`, a second of each `every`, and says what is kept of them; the bound holds at every hour.
fn record(days: u64, every: u64, files: u64, all: u64) -> [(u64, u64, u64); 3] {
    let place = tempfile::tempdir().unwrap();
    let dir = &place.path().join("own");
    fs::create_dir(dir).unwrap();
    let begin = 1_700_000_000 / 3600 * 3600;
    let mut writer = Writer::new(dir.to_owned(), Origin::default(), Arc::default());
    let mut most = 0;
    for at in (1..=days * 86_400 / every).map(|n| begin + n * every) {
        writer.take(second(at, files), all).unwrap();
        writer.write_whole(all).unwrap();
        if at % 3600 == 0 {
            most = most.max(ended::bytes(dir));
        }
    }
    assert!(most <= all, "{most} bytes, {all} are the bound");
    let found = Tier::ALL.map(|tier| kept(dir, tier));
    for (tier, (first, count, _)) in Tier::ALL.into_iter().zip(found) {
        let back = (begin + days * 86_400 - first) as f64 / 86_400.0;
        println!(
            "{days} days within {all} bytes (most {most}): {count} records by the {tier:?}, {back:.2} days back"
        );
    }
    // No part of the time is in two tiers, and none is left out that one has.
    let (mut of_all, end) = (0, begin + days * 86_400);
    let mut last = u64::MAX;
    for part in reader::parts(dir, begin, end).unwrap() {
        assert!(part.to <= last);
        last = part.after;
        reader::tier(dir, part.tier, part.after, part.to, &mut |second, _| {
            of_all += u64::from(second.recorded)
        })
        .unwrap();
    }
    // What is left of the last minute and hour was not whole when it ended: the finer tier has that.
    assert!(
        last == begin && of_all.abs_diff((end - begin) / every) <= 1,
        "{of_all} recorded seconds, from {last} on"
    );
    found
}

#[test]
fn hours_reach_further_back_than_minutes_and_these_than_seconds() {
    let [seconds, minutes, hours] = record(10, 30, 1, 512 << 10);
    assert!(seconds.0 > minutes.0 && minutes.0 > hours.0, "{seconds:?} {minutes:?} {hours:?}");
    assert_eq!(hours.1, 10 * 24 - 1, "every hour that is over, but the last, which the next second ends");
    assert_eq!(hours.2, (10 * 24 - 1) * 120 * 12);
}

#[test]
fn a_kill_at_any_byte_of_a_minute_loses_nothing_of_it() {
    let place = tempfile::tempdir().unwrap();
    let all = 64 << 20;
    let writer = |dir: &Path| Writer::new(dir.to_owned(), Origin::default(), Arc::default());
    let feed = |writer: &mut Writer, seconds: std::ops::RangeInclusive<u64>| {
        for at in seconds {
            writer.take(second(1_699_999_200 + at, 2), all).unwrap();
            writer.write_whole(all).unwrap();
        }
    };
    let (before, dir) = (place.path().join("before"), place.path().join("own"));
    fs::create_dir(&before).unwrap();
    feed(&mut writer(&before), 1..=190);
    let minutes = tier::files(&before, Tier::Minute).unwrap().remove(0);
    for bytes in (0..=minutes.bytes).step_by(13) {
        fs::create_dir(&dir).unwrap();
        for file in Tier::ALL.iter().flat_map(|tier| tier::files(&before, *tier).unwrap()) {
            fs::copy(&file.path, dir.join(file.path.file_name().unwrap())).unwrap();
        }
        let torn = dir.join(minutes.path.file_name().unwrap());
        OpenOptions::new().write(true).open(torn).unwrap().set_len(bytes).unwrap();
        let mut again = writer(&dir);
        again.take_up().unwrap();
        feed(&mut again, 191..=250);
        assert_eq!(kept(&dir, Tier::Minute), (1_699_999_200, 4, 4 * 60 * 24), "cut at {bytes}");
        fs::remove_dir_all(&dir).unwrap();
    }
}

/// `cargo test --release -p ropewalk-analytics --lib years -- --ignored --nocapture`: two years of a mount that is always at work,
/// every minute of them, of the last two days every second, within the default bound; and what it takes to ask about all of it.
#[test]
#[ignore = "writes gigabytes"]
fn years_within_the_default_bound() {
    const DAYS: u64 = 730;
    const BY_SECOND: u64 = 2;
    let (all, files) = (512 << 20, 40);
    let place = tempfile::tempdir().unwrap();
    let dir = &place.path().join("own");
    fs::create_dir(dir).unwrap();
    let begin = 1_700_000_000 / 86_400 * 86_400;
    let day = |n: u64| begin + n * 86_400;
    let mut writer = Writer::new(dir.to_owned(), Origin::default(), Arc::default());
    let (mut most, begun) = (0, std::time::Instant::now());
    for n in 0..DAYS {
        // A minute is what its seconds are put together to: of long ago only that is made.
        let seconds = n >= DAYS - BY_SECOND;
        for at in (day(n)..day(n + 1)).step_by(if seconds { 1 } else { 60 }) {
            if seconds {
                writer.take(second(at + 1, files), all).unwrap();
            } else {
                writer.minute_is_whole(Second { span: 60, recorded: 60, ..second(at + 60, files) });
            }
            writer.write_whole(all).unwrap();
        }
        most = most.max(ended::bytes(dir));
        if n % 73 == 72 {
            println!("{} days in {:.0} s: {} MiB on disk", n + 1, begun.elapsed().as_secs_f64(), most >> 20);
        }
    }
    assert!(most <= all, "{most} bytes, {all} are the bound");
    let found = Tier::ALL.map(|tier| kept(dir, tier));
    for (tier, (first, count, _)) in Tier::ALL.into_iter().zip(found) {
        println!("{count} records by the {tier:?}, {:.1} days back", (day(DAYS) - first) as f64 / 86_400.0);
    }
    let [seconds, minutes, hours] = found;
    assert!(seconds.1 > 3600 && minutes.1 > 21 * 1440, "an hour, weeks: {seconds:?} {minutes:?}");
    assert!(hours.1 >= DAYS * 24 - 1, "years by the hour: {hours:?}");
    drop(writer);
    for (back, step) in [(3600, 1), (86_400, 240), (30 * 86_400, 7200), (DAYS * 86_400, 86_400 * 2)] {
        let question = Question {
            query: "file.ops[file]".to_owned(),
            you: "/mnt/a".to_owned(),
            fs: 1,
            after: day(DAYS) - back,
            to: day(DAYS),
            step,
            resolution: 0,
            ended: None,
        };
        let begun = std::time::Instant::now();
        let answer = evaluate(&question, &Source::Ended(dir)).unwrap();
        assert_eq!(answer.rows.len(), files as usize);
        println!(
            "file.ops[file] over {:.2} days: {:.2} s",
            back as f64 / 86_400.0,
            begun.elapsed().as_secs_f64()
        );
    }
    let status = fs::read_to_string("/proc/self/status").unwrap();
    status.lines().filter(|line| line.starts_with("VmHWM")).for_each(|line| println!("memory, {line}"));
}
