//! Questions about statistics by second, as text ([`Query`]), what one process's history says to one ([`evaluate`]), and
//! the answers of many processes put together ([`Answer::merge`]). A history is in memory, and on disk ([`Store`]).
//! Who asks knows by how much the asked process's clock is off ([`Reply::Hello`]), and asks in its time. So clocks of hosts that
//! differ shift nothing by more than half of the time that a message takes, or a second's fraction.
#![forbid(unsafe_code)]

mod answer;
mod evaluate;
mod files;
mod known;
mod legend;
mod query;
mod recording;
mod request;
mod source;
mod value;

pub use answer::{Answer, AnswerRow, quantile_bucket, quantile_ns};
pub use evaluate::{BINS_MAX, EvaluateError, Question, evaluate};
pub use files::{
    ended::{Ended, histories},
    record::Origin,
    tier::Tier,
    writer::Store,
};
pub use known::Known;
pub use query::{Comparison, Filter, Query, QueryError, Want, bucket, is_ordered, quoted};
pub use recording::{Recorder, Recording, Section};
pub use request::{Reply, Request, RequestError, answer, now_us, unhex};
pub use source::Source;
pub use value::Value;
