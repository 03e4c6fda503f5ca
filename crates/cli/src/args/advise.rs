//! The advisor.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand, ValueHint};

use super::{common::Dir, dumps::ImportScale, lab::MeasuredOn};

pub const ADVISE: &str = "\
Examples:
  ropewalk advise                                the five findings that are expected to bring most
  ropewalk advise --all --role server            all that concern a server
  ropewalk advise explain bond-hash-inert        why, and where that stands
  ropewalk advise apply nvme-scheduler           what would be changed; with --yes it is
  ropewalk advise revert                         everything as it was before
  ropewalk advise /tmp/dumps                     outputs of commands: lsattr, mmdiag, ethtool
  ropewalk advise import-scale FILE              Scale's settings as tunables (mmdiag --config)
  ropewalk advise --cluster                      all machines of a cluster, and the odd one out
  ropewalk advise --probe n2                     also the size of packets on the way to n2
  ropewalk advise --over 10s                     drops, errors and waits of ten seconds, as rates
  ropewalk advise facts numa                     what it sees, with where that stood
  ropewalk advise --html host.html               one page of it, to be sent or printed
  ropewalk advise collect > host.tar             what it reads of this machine, for elsewhere
  ropewalk advise host.tar                       the same report there

Exit status of a report: 0 nothing or notes; 1 a warning; 2 something critical; 3 the machine could
not be read. The other commands: 0 done; 1 not done, stderr says why.";

#[derive(Args)]
pub struct Advise {
    #[command(subcommand)]
    pub command: Option<AdviseCommand>,
    #[command(flatten)]
    pub machine: Machine,
    /// All findings in full, not only the five best; of dumps also listings, evidence, whole run books, and what was not understood
    #[arg(long)]
    pub all: bool,
    /// For scripts
    #[arg(long)]
    pub json: bool,
    /// Write the report into this file instead, as one page that needs nothing else
    #[arg(long, value_name = "FILE", conflicts_with = "json", value_hint = ValueHint::FilePath)]
    pub html: Option<PathBuf>,
    /// Also try how large a packet may be on the way to this host, by echoes; can be given several times
    #[arg(long, value_name = "HOST", conflicts_with = "cluster")]
    pub probe: Vec<String>,
    /// Count for so long from now on, and judge drops, errors, repeated segments, stolen time and waits as rates of that
    /// time, not since boot: 1s to 1h
    #[arg(long, value_name = "DURATION", conflicts_with = "from", value_parser = span)]
    pub over: Option<Duration>,
    /// All machines of a cluster, asked over its own network: what each is told, and which is the odd one out
    #[arg(long, conflicts_with_all = ["from", "root"])]
    pub cluster: bool,
    #[command(flatten)]
    pub dir: Dir,
}

/// A second to an hour.
fn span(text: &str) -> Result<Duration, String> {
    let span = base::tunables::parse_duration(text)?;
    let bounds = Duration::from_secs(1)..=Duration::from_secs(3600);
    if bounds.contains(&span) { Ok(span) } else { Err("give 1s to 1h".into()) }
}

/// Which machine, and what is known about it.
#[derive(Args)]
pub struct Machine {
    /// An archive of `advise collect`, or a directory with a copy of /proc and /sys; or dumps: outputs of commands (of AIX,
    /// Storage Scale, MLNX-OS, PowerVM, Linux), files, articles, directories of them, - for standard input, each known by
    /// what it says. Without any, this machine
    #[arg(value_name = "FILE|DIR|-", value_hint = ValueHint::AnyPath)]
    pub from: Vec<PathBuf>,
    /// Read this tree instead of /
    #[arg(long, default_value = "/", value_hint = ValueHint::DirPath)]
    pub root: PathBuf,
    #[command(flatten)]
    pub context: Context,
}

#[derive(Args)]
pub struct Context {
    /// Only what concerns a client, server, manager, or (in dumps) a switch
    #[arg(long)]
    pub role: Option<advisor::Role>,
    /// What the machine cannot show, or another threshold, such as round_trip_us=100 (see `advise rules --assumptions`)
    #[arg(long = "assume", value_name = "NAME=VALUE")]
    pub assumed: Vec<String>,
}

#[derive(Subcommand)]
pub enum AdviseCommand {
    /// What a rule looks at and why; or the rules that look at a fact
    #[command(after_help = "Example:\n  ropewalk advise explain bond-hash-inert")]
    Explain {
        /// A rule, such as bond-hash-inert, or a part of a fact's name, such as tcp_rmem
        name: String,
    },
    /// The rules, or what they take for granted
    #[command(after_help = "Example:\n  ropewalk advise rules --assumptions")]
    Rules {
        /// What rules take for granted, and how to say otherwise
        #[arg(long)]
        assumptions: bool,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// What is seen: each fact with its value and where it stood
    #[command(
        after_help = "Examples:\n  ropewalk advise facts numa\n  ropewalk advise facts rss --from host.tar"
    )]
    Facts {
        /// Only facts with this in their name, from the beginning of a word on
        name: Option<String>,
        #[command(flatten)]
        seen: Seen,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// Memory nodes with their CPUs and distances, as numactl -H shows them, and how scattered the machine is over them
    #[command(after_help = "Example:\n  ropewalk advise topology")]
    Topology {
        #[command(flatten)]
        seen: Seen,
    },
    /// Pack what the advisor reads of this machine into one archive, on stdout
    #[command(after_help = "Example:\n  ropewalk advise collect > host.tar")]
    Collect {
        /// Read this tree instead of /
        #[arg(long, default_value = "/", value_hint = ValueHint::DirPath)]
        root: PathBuf,
    },
    /// The settings of a Storage Scale dump as tunables of Ropewalk, and what becomes of the rest
    #[command(after_help = "Example:\n  mmdiag --config | ropewalk advise import-scale -")]
    ImportScale(ImportScale),
    /// In what two machines differ
    #[command(after_help = "Example:\n  ropewalk advise diff host1.tar host2.tar")]
    Diff {
        /// An archive or a directory; / is this machine
        a: PathBuf,
        /// The other
        b: PathBuf,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// Make the settings of findings; without --yes only say which
    #[command(after_help = "Example:\n  ropewalk advise apply nvme-scheduler --yes")]
    Apply {
        /// Whose settings; without any, those of all findings that interrupt nothing and that no profile sets
        rules: Vec<String>,
        /// Do it
        #[arg(long)]
        yes: bool,
        /// Only say what would be set, as without --yes
        #[arg(long, conflicts_with = "yes")]
        dry_run: bool,
        /// Take it back after so many seconds unless `advise confirm` comes before; 0 for never. Without it: 120, if a
        /// change may cut the connection to this machine
        #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(..=86_400))]
        confirm_within: Option<u64>,
        /// Work on this tree instead of /
        #[arg(long, default_value = "/", value_hint = ValueHint::DirPath)]
        root: PathBuf,
        #[command(flatten)]
        context: Context,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// Run the lab's plan for a rule, make its settings, run the plan again; keep them if that is faster, else take them back
    #[command(
        after_help = "Example:\n  ropewalk advise measure block-read-ahead-large --device /dev/sdb --short"
    )]
    Measure {
        #[command(flatten)]
        args: MeasureArgs,
        #[command(flatten)]
        context: Context,
    },
    /// Keep what `apply` has set until it is confirmed
    #[command(after_help = "Example:\n  ropewalk advise confirm")]
    Confirm {
        /// Of this tree instead of /
        #[arg(long, default_value = "/", value_hint = ValueHint::DirPath)]
        root: PathBuf,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// Waits for a confirmation, and takes back what got none: `apply` starts it
    #[command(hide = true)]
    Guard {
        #[arg(long)]
        root: PathBuf,
        /// Seconds since 1970
        #[arg(long)]
        until: u64,
    },
    /// Take settings back, unless somebody has changed them since
    #[command(after_help = "Example:\n  ropewalk advise revert nvme-scheduler")]
    Revert {
        /// Rules or facts; without any, everything that `apply` has set
        names: Vec<String>,
        /// Work on this tree instead of /
        #[arg(long, default_value = "/", value_hint = ValueHint::DirPath)]
        root: PathBuf,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// What `apply` has set, and what became of it
    #[command(after_help = "Example:\n  ropewalk advise history")]
    History {
        /// Of this tree instead of /
        #[arg(long, default_value = "/", value_hint = ValueHint::DirPath)]
        root: PathBuf,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
}

/// Of which machine.
#[derive(Args)]
pub struct Seen {
    /// Of an archive of `advise collect`, a directory with a copy of /proc and /sys, or a dump, instead of this machine
    #[arg(long, value_hint = ValueHint::AnyPath)]
    pub from: Option<PathBuf>,
    /// Read this tree instead of /
    #[arg(long, default_value = "/", conflicts_with = "from", value_hint = ValueHint::DirPath)]
    pub root: PathBuf,
}

/// What is measured, and on what.
#[derive(Args)]
pub struct MeasureArgs {
    /// Whose settings
    pub rule: String,
    /// Another plan than the rule's: built in (`ropewalk lab list`) or a file
    #[arg(long, value_hint = ValueHint::FilePath)]
    pub plan: Option<String>,
    /// The short form of the plan
    #[arg(long)]
    pub short: bool,
    /// Where the results of both runs go
    #[arg(long, default_value = "ropewalk-measure", value_hint = ValueHint::DirPath)]
    pub out: PathBuf,
    #[command(flatten)]
    pub on: MeasuredOn,
    /// Work on this tree instead of /
    #[arg(long, default_value = "/", value_hint = ValueHint::DirPath)]
    pub root: PathBuf,
}
