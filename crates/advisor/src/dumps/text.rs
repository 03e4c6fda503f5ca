//! Bytes of a dump to lines: any encoding, any line end, any length, never a failure.
//! A line keeps its number in the file, so that a finding can name it. Bounded in bytes; what is cut off is said.

/// Longer inputs are cut here, at 16 MiB.
const BYTES_MAX: usize = 16 << 20;
/// Further lines are cut off.
const LINES_MAX: usize = 1 << 20;
/// Longer lines are cut: no command prints such.
const LINE_BYTES_MAX: usize = 64 << 10;

/// What a word may stand in: in shell files the typographic ones are letters, not quotes.
pub(crate) const TYPOGRAPHIC_QUOTES: [char; 6] = ['“', '”', '„', '‘', '’', '‟'];

/// The text of one input.
#[derive(Clone, Debug)]
pub struct Text {
    /// Without line ends; the first one has number 1.
    pub lines: Vec<String>,
    /// Whether lines ended as on DOS.
    pub dos: bool,
    /// What the bytes were read as: `UTF-8`, `UTF-16`, `Latin-1`.
    pub encoding: &'static str,
    /// Whether a part was left out because the input is too long.
    pub cut: bool,
}

impl Text {
    /// Reads any bytes. UTF-16 is known by its mark; what is not UTF-8 is read as Latin-1.
    pub fn new(bytes: &[u8]) -> Text {
        let cut = bytes.len() > BYTES_MAX;
        let bytes = &bytes[..bytes.len().min(BYTES_MAX)];
        let (text, encoding) = match bytes {
            [0xff, 0xfe, rest @ ..] => (utf16(rest, u16::from_le_bytes), "UTF-16"),
            [0xfe, 0xff, rest @ ..] => (utf16(rest, u16::from_be_bytes), "UTF-16"),
            _ => match std::str::from_utf8(bytes) {
                Ok(text) => (text.to_owned(), "UTF-8"),
                // The cut may go through a letter.
                Err(error) if cut && error.valid_up_to() + 4 > bytes.len() => {
                    (String::from_utf8_lossy(bytes).into_owned(), "UTF-8")
                }
                Err(_) => (bytes.iter().map(|b| char::from(*b)).collect(), "Latin-1"),
            },
        };
        let text = text.trim_start_matches('\u{feff}');
        let dos = text.contains("\r\n");
        let lines = text.split('\n').take(LINES_MAX).map(tidy).collect();
        let cut = cut || text.split('\n').nth(LINES_MAX).is_some();
        Text { lines, dos, encoding, cut }
    }
}

fn utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> String {
    let units: Vec<u16> = bytes.chunks_exact(2).map(|pair| unit([pair[0], pair[1]])).collect();
    String::from_utf16_lossy(&units)
}

/// Without the line end, control characters and what is too long; hard spaces become spaces.
fn tidy(line: &str) -> String {
    let tidied = line.trim_end_matches('\r').chars().map(|c| match c {
        '\u{a0}' | '\u{2007}' | '\u{202f}' => ' ',
        c => c,
    });
    let mut text: String = tidied.filter(|c| *c == '\t' || !c.is_control()).collect();
    let mut end = text.len().min(LINE_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text.truncate(text.trim_end().len());
    text
}

/// A number as AIX, Scale and Linux write it: `9000`, `856K`, `8E-1` (less one), `0x10`, `1,048,576`.
pub(crate) fn number(text: &str) -> Option<f64> {
    let text = text.trim().trim_matches('"');
    if let Some(hex) = text.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).ok().map(|n| n as f64);
    }
    if let Some((head, less)) = text.split_once('-').filter(|(head, _)| !head.is_empty()) {
        return Some(number(head)? - less.parse::<u32>().ok().map(f64::from)?);
    }
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != ',').unwrap_or(text.len());
    let (digits, unit) = text.split_at(digits);
    let plain: f64 = digits.replace(',', "").parse().ok()?;
    let shift = match unit.trim().to_ascii_uppercase().trim_end_matches("IB").trim_end_matches('B') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        "P" => 50,
        "E" => 60,
        _ => return None,
    };
    Some(plain * (1u64 << shift) as f64)
}

/// `one` to `twelve`, or digits.
pub(crate) fn count_word(word: &str) -> Option<u64> {
    const WORDS: [&str; 21] = [
        "zero",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
        "thirteen",
        "fourteen",
        "fifteen",
        "sixteen",
        "seventeen",
        "eighteen",
        "nineteen",
        "twenty",
    ];
    let word = word.trim_matches(|c: char| !c.is_alphanumeric()).to_ascii_lowercase();
    word.parse().ok().or_else(|| WORDS.iter().position(|w| *w == word).map(|n| n as u64))
}

/// Whether a line reads like a sentence and not like the output of a command.
pub(crate) fn is_prose(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    let plain = |w: &&&str| w.chars().all(|c| c.is_alphabetic() || "'’,.;:-()".contains(c));
    words.len() >= 9 && words.iter().filter(plain).count() * 3 >= words.len() * 2 && !line.contains("  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_become_lines() {
        let text = Text::new(b"a\r\nb\xa0c\r\n");
        assert_eq!(
            (text.lines.as_slice(), text.dos, text.encoding),
            (&["a".into(), "b c".into(), "".into()][..], true, "Latin-1")
        );
        let wide: Vec<u8> =
            [0xff, 0xfe].into_iter().chain("x=“1”\ny".encode_utf16().flat_map(u16::to_le_bytes)).collect();
        assert_eq!(Text::new(&wide).lines, ["x=“1”", "y"]);
        assert_eq!(Text::new("\u{feff}mtu 9000 \n".as_bytes()).lines[0], "mtu 9000");
        assert!(Text::new(&vec![b'x'; BYTES_MAX + 1]).cut);
        let many = Text::new(&vec![b'\n'; LINES_MAX]);
        assert!(many.cut && many.lines.len() == LINES_MAX);
    }

    #[test]
    fn numbers_as_systems_write_them() {
        for (text, value) in [
            ("9000", 9000.0),
            ("856K", 876_544.0),
            ("64K-1", 65_535.0),
            ("0x10", 16.0),
            ("7.9T", 7.9 * (1u64 << 40) as f64),
            ("16 GiB", (16u64 << 30) as f64),
            ("1,048,576", 1_048_576.0),
        ] {
            assert_eq!(number(text), Some(value), "{text}");
        }
        assert_eq!(number("8E-1"), Some((8u64 << 60) as f64 - 1.0));
        assert!(["", "K", "yes", "-", "1-16,1", "12 monkeys"].iter().all(|t| number(t).is_none()));
        assert_eq!((count_word("Seven"), count_word("36"), count_word("many")), (Some(7), Some(36), None));
    }

    #[test]
    fn sentences_are_no_output() {
        assert!(is_prose(
            "The default value of the attribute is set to 8 and to have sufficient resources it is increased."
        ));
        assert!(!is_prose(
            "jumbo_size      9014               Requested jumbo frame size                       True"
        ));
        assert!(!is_prose("tcp_recvspace = 876544"));
    }
}
