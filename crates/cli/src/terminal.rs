//! A whole terminal for a command that draws: keys one by one, an alternate screen, both given back when it ends,
//! however it ends. Ctrl-C stays the signal that it is.

use std::io::{IsTerminal, Read, Write, stdin, stdout};

use anyhow::{Context, Result, bail};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::sync::mpsc;

/// Alternate screen, no cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// Keys that wait to be looked at; further ones are lost.
const KEYS_MAX: usize = 64;

/// A key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Key {
    /// A character.
    Char(char),
    /// Arrows.
    Up,
    /// Down.
    Down,
    /// Left.
    Left,
    /// Right.
    Right,
    /// Enter.
    Enter,
    /// Tab.
    Tab,
    /// Backspace, or Escape.
    Back,
}

/// The terminal, while it is ours.
pub struct Screen {
    before: Termios,
}

impl Screen {
    /// Takes the terminal.
    pub fn take() -> Result<Screen> {
        if !stdin().is_terminal() || !stdout().is_terminal() {
            bail!("this is no terminal: --once prints one table, --json is for scripts");
        }
        let before = tcgetattr(stdin()).context("ask how the terminal is set")?;
        let mut ours = before.clone();
        ours.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        tcsetattr(stdin(), OptionalActions::Now, &ours).context("set the terminal to single keys")?;
        let screen = Screen { before };
        write!(stdout(), "{ENTER}").context("write to the terminal")?;
        Ok(screen)
    }

    /// Columns and lines.
    pub fn size(&self) -> (usize, usize) {
        let size = tcgetwinsize(stdout()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
        size.map_or((80, 24), |size| (size.ws_col.into(), size.ws_row.into()))
    }

    /// Shows lines from the top; each is no longer than the screen is wide, colours aside.
    pub fn show(&self, lines: &[String]) -> Result<()> {
        let body: String = lines.join("\x1b[K\r\n");
        let mut out = stdout().lock();
        write!(out, "\x1b[H{body}\x1b[K\x1b[J").and_then(|()| out.flush()).context("write to the terminal")
    }

    /// Keys as they are pressed, until the process ends. They are read by a thread of their own.
    pub fn keys(&self) -> Result<mpsc::Receiver<Key>> {
        let (pressed, keys) = mpsc::channel(KEYS_MAX);
        let read = move || {
            let mut bytes = [0; 64];
            // Ends with the terminal, or with the command.
            while let Ok(n @ 1..) = stdin().read(&mut bytes) {
                for key in decode(&bytes[..n]) {
                    if let Err(mpsc::error::TrySendError::Closed(_)) = pressed.try_send(key) {
                        return;
                    }
                }
            }
        };
        std::thread::Builder::new().name("keys".to_owned()).spawn(read).context("start a thread")?;
        Ok(keys)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing back.
        let _ = write!(stdout(), "{LEAVE}").and_then(|()| stdout().flush());
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.before);
    }
}

/// The keys in what one read gave. A sequence that is not known is no key.
fn decode(bytes: &[u8]) -> Vec<Key> {
    let text = String::from_utf8_lossy(bytes);
    let (mut keys, mut rest) = (Vec::new(), &*text);
    while let Some(first) = rest.chars().next() {
        let sequence = rest.strip_prefix("\x1b[").or_else(|| rest.strip_prefix("\x1bO"));
        if let Some(after) = sequence {
            let end = after.find(|c: char| ('@'..='~').contains(&c)).map_or(after.len(), |at| at + 1);
            keys.extend(match &after[..end] {
                "A" => Some(Key::Up),
                "B" => Some(Key::Down),
                "C" => Some(Key::Right),
                "D" => Some(Key::Left),
                _ => None,
            });
            rest = &after[end..];
            continue;
        }
        keys.extend(match first {
            '\r' | '\n' => Some(Key::Enter),
            '\t' => Some(Key::Tab),
            '\x1b' | '\x7f' | '\x08' => Some(Key::Back),
            c if c.is_control() => None,
            c => Some(Key::Char(c)),
        });
        rest = &rest[first.len_utf8()..];
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_sequences() {
        assert_eq!(decode(b"q\x1b[A\x1bOB\r"), [Key::Char('q'), Key::Up, Key::Down, Key::Enter]);
        assert_eq!(decode("é\x1b[15~\x7f".as_bytes()), [Key::Char('é'), Key::Back]);
        assert_eq!(decode(b"\x1b"), [Key::Back]);
        assert_eq!(decode(b"\x1b["), []);
        assert_eq!(decode(&[0xff, 1]), [Key::Char('\u{fffd}')]);
    }
}
