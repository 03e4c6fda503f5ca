//! The small language in which the catalogue states its conditions and values.
//!
//! ```text
//! .mode in ["802.3ad", "balance-xor"] and count(.members) > 1      a name with a leading point: below the rule's device
//! sysctl.net.core.rmem_max < 16MiB                                 a name with points inside: any fact
//! max(net.*.port_speed) >= 25Gbit and not exists(x.y)              `*`: the values of all of them, as a list
//! need > 2 * .size                                                 one word: a `let` of the rule; `name` is the device
//! fact("net", .members, "mtu")                                     a fact whose name is put together
//! ```
//! From loosest to tightest: `or`, `and`, `not`, comparisons and `in`, `+ -`, `* / %`, `-x`, `x[2]`. Whole numbers only.
//! A fact's name may hold a `-` (`sysctl.fs.aio-max-nr`), so minus has spaces around it.
//! Units: KiB MiB GiB TiB, k M G (decimal), us ms s (in microseconds), Mbit Gbit (in Mbit/s).
//! What is not known stays unknown through everything; `and` and `or` use what is known. A rule applies only to what is
//! surely so. Nothing here panics, on any text or any facts; parsing and evaluating are bounded in depth.

mod ast;
mod eval;
mod parse;
mod template;

pub use ast::{Expr, ExprError, Function, Operator};
pub use eval::Scope;
pub use parse::parse;
pub use template::Template;
pub(crate) use template::rate_text;
