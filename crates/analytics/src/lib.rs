//! Questions about statistics by second, as text ([`Query`]), what one process's history says to one ([`evaluate`]), and
//! the answers of many processes put together ([`Answer::merge`]).
//! A time travels as an age: "so many seconds ago" by the asked process's own clock. So clocks of hosts that differ shift
//! nothing; what an answer is off by is the time that the question was under way.
#![forbid(unsafe_code)]

mod answer;
mod evaluate;
mod query;

pub use answer::{Answer, AnswerRow, Value, quantile_ns};
pub use evaluate::{BINS_MAX, Question, evaluate};
pub use query::{Comparison, Filter, Query, QueryError, Want, bucket};
