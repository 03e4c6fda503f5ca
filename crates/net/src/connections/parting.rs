//! Two processes that have no version of the protocol in common tell each other which they have, and part: both can then name
//! the other one, and which of the two is to be upgraded. What is said here stays the same in all versions:
//!
//! ```text
//! least, greatest version (u16 each, little-endian), length of the name (u8), who it is, for people (UTF-8)
//! ```

use wire::version::Span;

use crate::{
    connections::{handshake_error::HandshakeError, socket::Socket},
    core::Core,
    names,
};

/// What one side says.
struct Said {
    speaks: Span,
    name: String,
}

/// Says what `name` speaks, and hears the other side; always an error.
pub(crate) async fn part(socket: &Socket, speaks: Span, name: &str) -> HandshakeError {
    match exchange(socket, speaks, name).await {
        Ok(said) => HandshakeError::NoCommonVersion(text(&said, speaks)),
        Err(error) => error,
    }
}

/// What people call this process.
pub(crate) fn own_name(core: &Core) -> String {
    let config = &core.config;
    match &config.name {
        name if name.is_empty() => {
            format!("a {} of {}", format!("{:?}", config.role).to_lowercase(), config.node)
        }
        name => name.clone(),
    }
}

async fn exchange(socket: &Socket, speaks: Span, name: &str) -> Result<Said, HandshakeError> {
    let name = names::shown(name);
    let numbers = [speaks.least.to_le_bytes(), speaks.greatest.to_le_bytes()].concat();
    socket.write_all(&[&numbers[..], &[name.len() as u8], name.as_bytes()].concat()).await?;
    let mut head = [0; 5];
    socket.read_exact(&mut head).await?;
    let [a, b, c, d, len] = head;
    let mut name = vec![0; len.into()];
    socket.read_exact(&mut name).await?;
    let name = names::shown(&String::from_utf8_lossy(&name));
    let speaks = Span { least: u16::from_le_bytes([a, b]), greatest: u16::from_le_bytes([c, d]) };
    Ok(Said { speaks, name })
}

fn text(other: &Said, own: Span) -> String {
    let Said { speaks: theirs, name } = other;
    let speaks = format!("{name} speaks version {theirs} of the protocol, and this process {own}");
    if theirs.greatest < own.least {
        let needed = own.least;
        format!("{speaks}: {name} is too old; install a ropewalk there that speaks version {needed} first")
    } else {
        let needed = theirs.least;
        format!("{speaks}: {name} is too new; install a ropewalk here that speaks version {needed} first")
    }
}

#[cfg(test)]
mod tests {
    use wire::version::Build;

    use super::*;

    #[test]
    fn who_is_too_old_is_told_with_the_remedy() {
        let [old, new] = [9, 11].map(|protocol| Build::with(protocol, 1).protocols);
        let said = |speaks, name: &str| Said { speaks, name: name.to_owned() };
        assert_eq!(
            text(&said(old, "n3"), new),
            "n3 speaks version 9 of the protocol, and this process 10 to 11: n3 is too old; install a ropewalk there that speaks \
             version 10 first"
        );
        assert_eq!(
            text(&said(new, "manager"), old),
            "manager speaks version 10 to 11 of the protocol, and this process 9: manager is too new; install a ropewalk here \
             that speaks version 10 first"
        );
    }
}
