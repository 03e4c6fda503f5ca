//! What tokens cost a mount, in the process's registry: waits for them, and giving them up.

use std::{sync::LazyLock, time::Instant};

use base::stats::{Histogram, histogram};
use wire::token::{Need, Use};

/// Tokens that the manager asked for, until they were answered.
pub struct GivenUp {
    /// Nothing was to be done.
    pub at_once: Histogram,
    /// Users, kernel pages and dirty pages came first.
    pub cleaned: Histogram,
}

/// The handles of all mounts of the process.
pub static GIVEN_UP: LazyLock<GivenUp> = LazyLock::new(|| {
    let of = |what| histogram("token_give_up_seconds", &[("what", what)]);
    GivenUp { at_once: of("at_once"), cleaned: of("cleaned") }
});

/// What tokens are waited for.
struct Waits {
    attributes: Histogram,
    names: Histogram,
    read: Histogram,
    write: Histogram,
}

static WAITS: LazyLock<Waits> = LazyLock::new(|| {
    let of = |need| histogram("token_wait_seconds", &[("need", need)]);
    Waits { attributes: of("attributes"), names: of("names"), read: of("read"), write: of("write") }
});

/// Shows them from now on, with nothing counted.
pub fn show() {
    LazyLock::force(&GIVEN_UP);
    LazyLock::force(&WAITS);
}

/// Somebody waits for a token; counted when it is over, however it ends.
pub struct TokenWait {
    begun: Instant,
    of: &'static Histogram,
}

impl TokenWait {
    /// From now on.
    pub fn begin(need: Need) -> TokenWait {
        let of = match need {
            Need::Size | Need::Attr => &WAITS.attributes,
            Need::Names | Need::Make => &WAITS.names,
            Need::Write | Need::Blocks(_, Use::Write) => &WAITS.write,
            Need::Read | Need::Blocks(..) => &WAITS.read,
        };
        TokenWait { begun: Instant::now(), of }
    }
}

impl Drop for TokenWait {
    fn drop(&mut self) {
        self.of.record(self.begun.elapsed());
    }
}
