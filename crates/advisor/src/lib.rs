//! Reads host facts, applies rules, says what to tune and why.
