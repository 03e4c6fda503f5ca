//! Who does to the page's port what no browser does: garbage, half questions, far too much of something, streams that nobody
//! reads, more connections than there are places. It answers each, holds up nobody for it, and its memory stays what it was.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpStream},
    time::Duration,
};

use serde_json::Value;
use tokio::net::TcpSocket;

use super::browser::http;

const PATIENCE: Duration = Duration::from_secs(60);
/// As `MemoryMax` of a small unit would allow: far above what the page needs, far below what each attack could make of it.
const GROWTH_MAX_KIB: u64 = 48 << 10;

/// What a process has in memory, KiB.
fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

fn connected(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// What is answered to these bytes, after which nothing more comes; nothing, if the connection is closed instead.
fn said_to(port: u16, bytes: &[u8]) -> Option<u16> {
    let mut stream = connected(port);
    // It may be closed before all is sent.
    let _ = stream.write_all(bytes).and_then(|()| stream.shutdown(Shutdown::Write));
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).split_whitespace().nth(1).and_then(|word| word.parse().ok())
}

/// The manager may not be heard at once.
fn answers(port: u16, after: &str) {
    let ask = || http(port, "GET", "/api/query?q=file.ops&step=0", &[], "").0;
    super::common::until(&format!("it answers after {after}"), || ask() == 200);
}

/// All of it, against the page of a process.
pub fn hold(port: u16, pid: u32) {
    answers(port, "nothing");
    let before = resident(pid);
    what_is_no_question(port);
    what_is_no_path(port);
    what_is_no_query(port);
    streams_that_nobody_reads(port);
    a_stream_that_is_not_read_for_a_while(port);
    more_connections_than_places(port);
    let grown = resident(pid).saturating_sub(before);
    assert!(grown < GROWTH_MAX_KIB, "the page grew by {grown} KiB from {before}");
}

fn what_is_no_question(port: u16) {
    let host = format!("Host: 127.0.0.1:{port}\r\n");
    let with = |head: String| format!("GET / HTTP/1.1\r\n{host}{head}\r\n").into_bytes();
    let garbage: Vec<u8> = (0..100_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for (what, bytes) in [
        ("bytes that are no HTTP", garbage),
        ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec()),
        ("half a question", b"GET /api/q".to_vec()),
        ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec()),
        ("a header of 8 MiB", with(format!("X: {}\r\n", "a".repeat(8 << 20)))),
        ("10,000 headers", with("X: a\r\n".repeat(10_000))),
        ("an address of 8 MiB", format!("GET /{} HTTP/1.1\r\n{host}\r\n", "a".repeat(8 << 20)).into_bytes()),
        ("two lengths", with("Content-Length: 1\r\nContent-Length: 2\r\n".into())),
        ("a length beyond all", with("Content-Length: 99999999999999999999\r\n".into())),
    ] {
        let status = said_to(port, &bytes);
        assert!(status.is_none_or(|status| (400..600).contains(&status)), "{what}: {status:?}");
        answers(port, what);
    }
}

fn what_is_no_path(port: u16) {
    for path in [
        "/../../etc/passwd",
        "/..%2f..%2fetc%2fpasswd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/page.css/../../cluster.toml",
        "/keys/machine.key",
        "/analytics.password",
        "/page.css%00.png",
        "/api/query/../../keys",
        "/api",
    ] {
        let (status, head, text) = http(port, "GET", path, &[], "");
        assert!(matches!(status, 400 | 404), "{path}: {head}");
        assert!(!text.contains("root:") && !text.contains("KEY"), "{path}: {text}");
    }
}

fn what_is_no_query(port: u16) {
    let long = "client%3D/m%5D%5B".repeat(3000);
    for (query, says) in [
        ("q=%3Cscript%3Ealert(1)%3C/script%3E", "possible: "),
        ("q=file.ops%5B", "file.ops"),
        ("q=%00%FF%FE", "error"),
        ("q=file.ops%5Blatency%3E%3D99999999999999999999999s%5D", "latency"),
        ("q=file.ops%5Bsize%3E%3D1e308g%5D", "size"),
        ("from=1&to=2", "q is missing"),
        ("q=file.ops&from=-1", "from"),
        ("q=file.ops&from=0&to=99999999999", "from must be before to"),
        ("q=file.ops&from=18446744073709551615&to=18446744073709551615", "from must be before to"),
        ("q=file.ops&step=x", "step"),
        (&format!("q=file.ops%5B{long}"), "error"),
    ] {
        let (status, head, text) = http(port, "GET", &format!("/api/query?{query}"), &[], "");
        let shown: String = query.chars().take(80).collect();
        assert!(matches!(status, 400 | 414 | 431), "{shown}: {head} {text}");
        assert!(text.contains(says) && text.len() < 1 << 20, "{shown}: {} bytes: {text:.400}", text.len());
        // Whatever it repeats of the question, it is no page.
        assert!(head.to_ascii_lowercase().contains("content-type: application/json"), "{shown}: {head}");
    }
    let bound = "/api/query?q=file.ops&rows=18446744073709551615&step=18446744073709551615";
    super::common::until("a bound is a bound", || http(port, "GET", bound, &[], "").0 == 200);
}

/// As many as may be live are: one more is told so; who asks for something else is answered; they have room when they end.
fn streams_that_nobody_reads(port: u16) {
    let question = format!(
        "GET /api/live?{} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n",
        "q=file.ops%5Bfile%5D%5Blatency%5D&q=host.cpu_utilisation%5Bcpu%5D&".repeat(8)
    );
    let streams: Vec<TcpStream> = (0..16)
        .map(|_| {
            let mut stream = connected(port);
            stream.write_all(question.as_bytes()).unwrap();
            let mut head = String::new();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut head).unwrap();
            assert!(head.contains("200"), "{head}");
            stream
        })
        .collect();
    assert_eq!(http(port, "GET", "/api/live?q=file.ops", &[], "").0, 429);
    for _ in 0..4 {
        answers(port, "streams that nobody reads");
        std::thread::sleep(Duration::from_millis(500)); // some events go out meanwhile
    }
    drop(streams);
    super::common::until("there is room for another live page", || {
        let mut stream = connected(port);
        stream.write_all(question.as_bytes()).unwrap();
        let mut head = String::new();
        BufReader::new(stream).read_line(&mut head).unwrap();
        head.contains("200")
    });
}

/// What an event of a live page says of the first chart's figures: when they begin, and how many seconds they are.
type Told = (u64, u64);

/// A live page's events, as soon as there is room for one more. There is hardly any room for what it does not read.
fn live(port: u16, queries: &str) -> impl Iterator<Item = Told> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let connect = async || {
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(4096)?;
        socket.connect(([127, 0, 0, 1], port).into()).await?.into_std()
    };
    let question = format!("GET /api/live?{queries} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n");
    let mut begun = None;
    super::common::until("there is room for another live page", || {
        let mut stream = runtime.block_on(connect()).unwrap();
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(question.as_bytes()).unwrap();
        let (mut reader, mut head) = (BufReader::new(stream), String::new());
        reader.read_line(&mut head).unwrap();
        begun = Some(reader).filter(|_| head.contains("200"));
        begun.is_some()
    });
    let lines = begun.unwrap().lines().map_while(Result::ok);
    lines.filter_map(|line| {
        let told: Value = serde_json::from_str(line.strip_prefix("data: ")?).unwrap();
        let chart = &told["charts"][0];
        let seconds = chart["chart"]["recorded"].as_array().unwrap().len();
        Some((chart["from_at_us"].as_u64().unwrap() / 1_000_000, seconds as u64))
    })
}

/// Who stops reading for a while: another page gets every second meanwhile, and when it reads on, no second is missing.
fn a_stream_that_is_not_read_for_a_while(port: u16) {
    // What is said of each of these is as long as it is itself.
    let long = format!("&q=file.ops%5Bclient%3D{}%5D", "n".repeat(4000));
    let large = format!("q=process.cpu_us%5Bprocess%5D{}", long.repeat(15));
    // Streams that have just been dropped ask once more, within the next two seconds: of all their questions each waits for its turn.
    std::thread::sleep(Duration::from_secs(2));
    answers(port, "streams that nobody reads any more");
    let (mut unread, mut read) = (live(port, &large), live(port, "q=process.cpu_us%5Bprocess%5D"));
    // The first second that is not in it.
    let end = |(begins, seconds): Told| begins + seconds;
    let (mut known, mut told) = (end(unread.next().unwrap()), end(read.next().unwrap()));
    let begun = told;
    while told < begun + 9 {
        let next = read.next().unwrap();
        assert!(next.0 <= told, "the seconds from {told} to {} are missing", next.0);
        told = end(next);
    }
    let mut longest = 0;
    while known < told {
        let next = unread.next().unwrap();
        assert!(next.0 <= known, "the seconds from {known} to {} are missing", next.0);
        (known, longest) = (end(next), longest.max(next.1));
    }
    // How much fits into the reader's own buffers is the system's.
    println!("unread for 9 s: up to {longest} seconds in one event");
}

fn more_connections_than_places(port: u16) {
    // All at once.
    std::thread::scope(|scope| {
        let asked: Vec<_> =
            (0..100).map(|_| scope.spawn(|| http(port, "GET", "/api/statistics", &[], "").0)).collect();
        assert!(asked.into_iter().all(|asked| asked.join().unwrap() == 200));
    });
    // These never ask: they make room after a while.
    let silent: Vec<TcpStream> = (0..100).map(|_| connected(port)).collect();
    answers(port, "a hundred connections that ask nothing");
    drop(silent);
}
