//! `ropewalk analytics` and `ropewalk top`.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

use base::tunables::parse_duration;
use clap::{Args, Subcommand};

use super::common::{Dir, ListenAt, Listing};

const QUERY_EXAMPLES: &str = "\
Examples:
  ropewalk analytics query 'file.bytes[file]'                       the files with most bytes, of the last minute
  ropewalk analytics query 'file.ops[client=/mnt/rope][latency]' --from -5m
  ropewalk analytics query 'strip.ops[latency>=10ms][pdisk][op]' --from -10m --json
  ropewalk analytics query 'file.ops[op]' --from -30s --step 1s     a line a second
  ropewalk analytics query 'file.ops[op]' --from 2026-11-25T10:00 --to 2026-11-26T10:00 --step 1h

A query is a statistic (`ropewalk analytics statistics`), then groups: [DIMENSION=VALUE|VALUE] filters (also != and, of size and
latency, >= and <), [DIMENSION] breaks down. Sizes are counted by powers of two, latencies by halves of them.";

#[derive(Subcommand)]
pub enum Analytics {
    /// Who did what to which file with what latency, now or at any time that is kept
    #[command(after_help = QUERY_EXAMPLES)]
    Query(AnalyticsQuery),
    /// What a query finds, step by step, as a file for other programs
    #[command(after_help = "Examples:
  ropewalk analytics export 'file.ops[client][latency]' --from -1h --format csv --out latency.csv
  ropewalk analytics export 'file.ops[latency]' --from -1h --out latency.html     to be looked at, without a network
  ropewalk analytics export 'file.bytes[file][op]' --from -1d --step 1min --out files.parquet
  ropewalk analytics export 'strip.bytes[pdisk]' --from -10m --step 10s --format json --out - | jq '.rows[0].steps'")]
    Export(AnalyticsExport),
    /// What can be asked: every statistic with its unit and dimensions
    #[command(after_help = "Example:\n  ropewalk analytics statistics --json | jq -r '.[].name'")]
    Statistics {
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// What every process has kept of a time, into a file: for another machine, or for later
    #[command(after_help = "Examples:
  ropewalk analytics record --from -10m --out slow.rwhist
  ropewalk analytics record --from 2026-11-25T10:00 --to 2026-11-25T10:20 --out slow.rwhist
  ropewalk analytics query 'file.ops[client]' --recording slow.rwhist --from -20m")]
    Record(AnalyticsRecord),
    /// A recording, as `top` would have shown it
    #[command(after_help = "Examples:
  ropewalk analytics replay slow.rwhist
  ropewalk analytics replay slow.rwhist --speed 10 --view files")]
    Replay(AnalyticsReplay),
    /// How many seconds each process has kept, in how much memory and disk, since when, and what that costs
    #[command(after_help = "Example:\n  ropewalk analytics history --dir /data/rope")]
    History(Listing),
    /// The same as a page for a browser: live charts, heat maps, drill-down, the network and the pdisks; it only looks
    #[command(after_help = "Examples:
  ropewalk analytics serve                              at http://127.0.0.1:9470/, for whoever is on this machine
  ssh -L 9470:127.0.0.1:9470 admin@n1                   the same from elsewhere, protected by SSH
  ropewalk analytics serve --recording slow.rwhist --speed 10       a recording, as if it were live, on any machine
  ropewalk analytics password && ropewalk analytics serve --listen 10.0.0.1:9470
  ropewalk up --analytics                               with the cluster, from now on")]
    Serve(AnalyticsServe),
    /// Draw a new password for the page and show it, once
    #[command(after_help = "Example:\n  ropewalk analytics password --dir /data/rope")]
    Password {
        #[command(flatten)]
        dir: Dir,
    },
    /// Sets of charts by name
    #[command(subcommand)]
    Worksheet(Worksheet),
}

#[derive(Args)]
pub struct AnalyticsServe {
    #[command(flatten)]
    pub dir: Dir,
    /// Where it can be reached; without a password on a loopback address only. On others it speaks HTTPS [default: where
    /// `up --analytics` has it, else 127.0.0.1:9470]
    #[arg(long, value_name = "ADDR", default_value = "", hide_default_value = true)]
    pub listen: Listen,
    /// Speak HTTPS on a loopback address as well
    #[arg(long)]
    pub tls: bool,
    /// Show a recording instead of a cluster, as if it were live
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub recording: Option<PathBuf>,
    /// Seconds of the recording that pass in one, from its beginning; 0: all of it is there, and its end is the present
    #[arg(long, default_value_t = 1.0, requires = "recording", value_parser = speed)]
    pub speed: f64,
}

/// Where the page is, unless told otherwise.
pub const PAGE_ADDR: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9470);

/// An address, or nothing: as systemd's unit gives what nobody has set.
#[derive(Clone, Copy)]
pub struct Listen(pub Option<SocketAddr>);

impl FromStr for Listen {
    type Err = std::net::AddrParseError;
    fn from_str(text: &str) -> Result<Listen, Self::Err> {
        if text.is_empty() { Ok(Listen(None)) } else { text.parse().map(|addr| Listen(Some(addr))) }
    }
}

/// The page as one of the processes of a cluster.
#[derive(Args)]
pub struct PageArgs {
    /// Serve the page of analytics as well: at 127.0.0.1:9470, at this PORT of loopback, or at this ADDRESS:PORT, which wants a
    /// password if it is not loopback; `off`: no longer. Remembered for the next `up`
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = "127.0.0.1:9470")]
    pub analytics: Option<ListenAt>,
    /// Draw a password for that page and show it, once; it is asked for on every address
    #[arg(long, requires = "analytics")]
    pub analytics_password: bool,
}

impl PageArgs {
    /// Where it is to be; nowhere if nothing is said.
    pub fn addr(&self) -> Option<SocketAddr> {
        self.analytics.and_then(|at| at.0)
    }
}

#[derive(Subcommand)]
pub enum Worksheet {
    /// Save charts under a name
    #[command(after_help = "Examples:
  ropewalk analytics worksheet save writes 'file.ops[op=write][latency]' 'pdisk.commits[pdisk][latency]'
  ropewalk analytics worksheet save outage 'http://127.0.0.1:9470/#q=...'     what the page shows, by its link")]
    Save(WorksheetSave),
    /// The names of all, with their charts
    #[command(after_help = "Example:\n  ropewalk analytics worksheet list --json | jq -r '.[].name'")]
    List(Listing),
    /// The charts of one, as JSON
    #[command(after_help = "Example:\n  ropewalk analytics worksheet show writes > writes.json")]
    Show(WorksheetName),
    /// What one shows, all of its charts in one file
    #[command(after_help = "Examples:
  ropewalk analytics worksheet export outage --out outage.html             to be looked at, without a network
  ropewalk analytics worksheet export writes --from -1h --step 10s --out writes.parquet
  ropewalk analytics worksheet export writes --recording slow.rwhist --out slow.html")]
    Export(WorksheetExport),
    /// Forget one
    #[command(after_help = "Example:\n  ropewalk analytics worksheet remove writes")]
    Remove(WorksheetName),
}

#[derive(Args)]
pub struct WorksheetSave {
    #[command(flatten)]
    pub dir: Dir,
    /// Its name; one that is there is replaced
    pub name: String,
    /// Queries, or a link of the page
    #[arg(required = true)]
    pub charts: Vec<String>,
}

#[derive(Args)]
pub struct WorksheetName {
    #[command(flatten)]
    pub dir: Dir,
    /// Its name
    pub name: String,
}

#[derive(Args)]
pub struct WorksheetExport {
    #[command(flatten)]
    pub dir: Dir,
    /// Its name
    pub name: String,
    /// From so long ago, or from this time on [default: the worksheet's own, else -5m]
    #[arg(long, value_parser = when, allow_hyphen_values = true)]
    pub from: Option<When>,
    /// Up to so long ago, or to this time [default: the worksheet's own, else now]
    #[arg(long, value_parser = when, allow_hyphen_values = true)]
    pub to: Option<When>,
    /// Of a recording, all of it unless a time is given, instead of a cluster
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub recording: Option<PathBuf>,
    /// A figure for each step of so long, 1 s at least [default: some 360 steps]
    #[arg(long, value_parser = span)]
    pub step: Option<Duration>,
    /// Rows of each chart; the rest is summed up as (others)
    #[arg(long, default_value_t = 100)]
    pub rows: usize,
    #[command(flatten)]
    pub to_file: ExportTo,
}

/// A point in time, as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// So many seconds ago.
    Ago(u64),
    /// Seconds since 1970.
    At(u64),
}

impl When {
    /// Seconds ago; none if it is yet to come.
    pub fn ago(self, now: u64) -> Option<u64> {
        match self {
            When::Ago(seconds) => Some(seconds),
            When::At(at) => now.checked_sub(at),
        }
    }
}

/// Of when.
#[derive(Args, Clone, Copy)]
pub struct Time {
    /// From so long ago, or from this time on: 2026-11-25T10:00, UTC if there is no +02:00 behind it
    #[arg(long, default_value = "-1m", value_parser = when, allow_hyphen_values = true)]
    pub from: When,
    /// Up to so long ago, or to this time
    #[arg(long, default_value = "now", value_parser = when, allow_hyphen_values = true)]
    pub to: When,
}

/// What is asked, and of when.
#[derive(Args)]
pub struct Asked {
    #[command(flatten)]
    pub dir: Dir,
    /// What is asked
    pub query: String,
    #[command(flatten)]
    pub time: Time,
    /// Of a recording instead of a cluster
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub recording: Option<PathBuf>,
    /// A figure for each step of so long, 1 s at least
    #[arg(long, value_parser = span)]
    pub step: Option<Duration>,
    /// Rows; the rest is summed up as (others)
    #[arg(long, default_value_t = 20)]
    pub rows: usize,
}

#[derive(Args)]
pub struct AnalyticsQuery {
    #[command(flatten)]
    pub asked: Asked,
    /// For scripts
    #[arg(long)]
    pub json: bool,
}

/// A form of exported figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum ExportFormat {
    /// One file for a browser: charts and heat maps, without a network
    Html,
    /// Comma-separated values: a line for each row and step
    Csv,
    /// As `query --json`
    Json,
    /// The same lines as csv, for DuckDB, pandas and the like
    Parquet,
}

/// Where an export goes.
#[derive(Args)]
pub struct ExportTo {
    /// Its form [default: by the end of the file's name, else csv]
    #[arg(long, value_enum)]
    pub format: Option<ExportFormat>,
    /// Where it goes; `-` is standard output
    #[arg(long, value_hint = clap::ValueHint::FilePath)]
    pub out: PathBuf,
}

#[derive(Args)]
pub struct AnalyticsExport {
    #[command(flatten)]
    pub asked: Asked,
    #[command(flatten)]
    pub to: ExportTo,
}

/// `-5m`, `5m`, `now` and `2026-11-25T10:00`.
fn when(text: &str) -> Result<When, String> {
    if text == "now" {
        return Ok(When::Ago(0));
    }
    if let Some(at) = base::when::parse(text) {
        return Ok(When::At(at));
    }
    let ago = text.strip_prefix('-').unwrap_or(text);
    // Minutes are one letter here; days and weeks nobody else needs.
    let days = |letter, days: u64| {
        let count: u64 = ago.strip_suffix(letter)?.parse().ok()?;
        count.checked_mul(days * 86_400)
    };
    if let Some(seconds) = days('d', 1).or_else(|| days('w', 7)) {
        return Ok(When::Ago(seconds));
    }
    span(ago).map(|ago| When::Ago(ago.as_secs())).map_err(|_| {
        "write how long ago, as -30s, -5m, -2h, -3d or -2w, or a time, as 2026-11-25T10:00".to_owned()
    })
}

#[derive(Args)]
pub struct AnalyticsRecord {
    #[command(flatten)]
    pub dir: Dir,
    #[command(flatten)]
    pub time: Time,
    /// The file that is made
    #[arg(long, value_hint = clap::ValueHint::FilePath)]
    pub out: PathBuf,
}

#[derive(Args)]
pub struct AnalyticsReplay {
    /// The recording
    #[arg(value_hint = clap::ValueHint::FilePath)]
    pub file: PathBuf,
    /// Seconds of it that pass in one; 0: its end
    #[arg(long, default_value_t = 1.0, value_parser = speed)]
    pub speed: f64,
    #[command(flatten)]
    pub look: Look,
}

/// How fast a recording passes.
fn speed(text: &str) -> Result<f64, String> {
    let speed = text.parse::<f64>().ok().filter(|speed| (0.0..=86_400.0).contains(speed));
    speed.ok_or_else(|| "write it as 1, 0.5 or 60; 86400 at most".to_owned())
}

/// As elsewhere, and `m` for minutes, which nothing else could mean here.
fn span(text: &str) -> Result<Duration, String> {
    match text.strip_suffix('m') {
        Some(minutes) => parse_duration(&format!("{minutes}min")),
        None => parse_duration(text),
    }
}

#[derive(Args)]
pub struct Top {
    #[command(flatten)]
    pub dir: Dir,
    #[command(flatten)]
    pub look: Look,
}

/// What `top` shows, and how.
#[derive(Args)]
pub struct Look {
    /// What is shown first
    #[arg(long, value_enum, default_value_t = TopView::Clients)]
    pub view: TopView,
    /// Over so many of the last seconds
    #[arg(long, default_value = "5s", value_parser = span)]
    pub over: Duration,
    /// Print it once and end
    #[arg(long)]
    pub once: bool,
    /// Print it once, for scripts
    #[arg(long)]
    pub json: bool,
}

/// What `top` has a line for each of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum TopView {
    /// Mounts
    Clients,
    /// Files
    Files,
    /// Operations of mounts
    Operations,
    /// Servers
    Nodes,
    /// Pdisks
    Pdisks,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_on_loopback_unless_an_address_is_named() {
        let at = |text: &str| text.parse::<ListenAt>();
        assert_eq!(at("off"), Ok(ListenAt(None)));
        assert_eq!(at("9470"), Ok(ListenAt(Some(PAGE_ADDR))));
        for addr in ["10.0.0.1:80", "[::1]:9470"] {
            assert_eq!(at(addr), Ok(ListenAt(addr.parse().ok())));
        }
        for wrong in ["0", "127.0.0.1:0", "127.0.0.1", "n1:9470", "70000", ""] {
            assert!(at(wrong).is_err(), "{wrong}");
        }
    }
}
