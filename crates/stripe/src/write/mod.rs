//! A block on its way to the strips: what each stores ([`plan`]), sent and sent again until the stripe is complete ([`writer`]).

mod block;
mod learn;
mod plan;
mod refused;
mod under_way;
mod whole;
mod writer;

pub use block::WriteStripe;
