//! What drawing takes, and what a page keeps.

use serde_json::Value;

use super::browser::Browser;

/// So often each is drawn.
const DRAWN: u32 = 20;

/// A minute of 16 processes, as lines and as a heat map; and a day, with a new name every ten seconds.
pub fn draws_fast_and_does_not_grow(browser: &Browser) {
    let made = "const chart = ropewalk.charts[0]; ropewalk.stream = () => {}; ropewalk.source?.close(); const now = Math.floor(ropewalk.now()); \
        const found = (rows, axis, by) => ({query: chart.query, unit: 'operations', from_at_us: (now - 60) * 1e6, told_apart_percent: 100, processes: [], \
          chart: {statistic: 'file.ops', filters: [], breakdowns: [by], dimensions: ['process', 'latency'], recorded: Array(60).fill(1), axis, \
            starts: Object.fromEntries(Array.from({length: 62}, (_, n) => [n, n + 'us']))}, \
          rows: Array.from({length: rows}, (_, n) => ({key: {[by]: axis ? n + 'us' : 'process ' + n}, bucket: n, total: 60, p50_us: 1, p99_us: 2, most_us: 3, \
            steps: Array.from({length: 60}, (_, at) => (n * at) % 17)}))});";
    for (what, rows, axis, by) in [("lines", 16, "null", "process"), ("heat map", 60, "'latency'", "latency")]
    {
        // What others take of the CPUs is not in it: a clock on the wall says more of them than of the page.
        let before = browser.cpu_ms();
        browser.js(&format!(
            "{made} ropewalk.pinned = [now - 60, now]; for (let n = 0; n < {DRAWN}; n++) {{ chart.take(found({rows}, {axis}, '{by}'), 1); \
             chart.place.getBoundingClientRect(); }}"
        ));
        let each = (browser.cpu_ms() - before) / f64::from(DRAWN);
        println!("60 s of 16 processes drawn as {what}: {each:.1} ms of a CPU");
        assert!(each > 0.0 && each < 100.0, "{what}: {each} ms of a CPU");
    }
    // Drawn a thousand times, no element more than after the first; by four scripts, since each has a time.
    for _ in 0..4 {
        let elements = browser.js(&format!(
            "{made} const count = () => document.getElementsByTagName('*').length; const counts = []; for (let n = 0; n < 250; n++) {{ \
             chart.take(found(16, null, 'process'), 1); if (n % 83 === 0) counts.push(count()); }} return counts"
        ));
        let counts = elements.as_array().unwrap();
        assert!(counts.len() == 4 && counts.iter().all(|count| *count == counts[0]), "{elements}");
    }
    browser.js(&format!(
        "{made} ropewalk.pinned = null; chart.shown = () => {{}}; ropewalk.newest = now; chart.take(found(16, null, 'process'), 1)"
    ));
    // Ten seconds at a time, an hour at a time.
    let hour = || {
        browser.js(&format!(
            "{made} const begun = ropewalk.newest; for (let second = begun + 10; second <= begun + 3600; second += 10) {{ ropewalk.newest = second; \
               const told = found(2, null, 'process'); told.from_at_us = (second - 10) * 1e6; told.chart.recorded = Array(10).fill(1); \
               told.rows.forEach((row, n) => {{ row.steps = Array(10).fill(n + 1); row.key.process = n ? 'p' + second : 'p'; }}); chart.live(told); }} gc(); \
               return performance.memory.usedJSHeapSize"
        ))
        .as_f64()
        .unwrap()
    };
    let after = |hours: u32| (1..hours).fold(hour(), |_, _| hour());
    let (first, last) = (after(2), after(22));
    println!("heap of the page after two hours {:.1} MB, after a day {:.1} MB", first / 1e6, last / 1e6);
    assert!(last < first + 2e6, "the page grew from {first} to {last} bytes");
    let kept = browser.js(&format!(
        "{made} delete chart.shown; return [chart.times.length, chart.recorded.length, chart.rows.size, Math.max(...[...chart.rows.values()].map((row) => row.steps.length))]"
    ));
    println!("after a day of seconds with ever new names: {kept} (times, recorded, rows, steps)");
    let numbers: Vec<u64> = kept.as_array().unwrap().iter().filter_map(Value::as_u64).collect();
    assert!(
        numbers.len() == 4
            && numbers[0] <= 62
            && numbers[1] == numbers[0]
            && numbers[2] <= 200
            && numbers[3] == numbers[0],
        "{kept}"
    );
}
