//! What a handler answers.

use std::fmt;

use wire::frame::Status;

use crate::calls::payload::Payload;

/// What a handler answers.
#[derive(Clone, Debug, Default)]
pub struct Response {
    /// How it ended as far as the transport is concerned.
    pub status: Status,
    /// The encoded message.
    pub body: Vec<u8>,
    /// Sent as it lies in memory.
    pub payload: Payload,
}

impl Response {
    /// `Ok` with a message.
    pub fn ok(body: Vec<u8>) -> Response {
        Response { status: Status::Ok, body, payload: Payload::new() }
    }
    /// `Ok` with a message and a payload.
    pub fn with_payload(body: Vec<u8>, payload: impl Into<Payload>) -> Response {
        Response { status: Status::Ok, body, payload: payload.into() }
    }
    /// Another status, with a text for a person.
    pub fn error(status: Status, text: impl fmt::Display) -> Response {
        Response { status, body: text.to_string().into_bytes(), payload: Payload::new() }
    }
}
