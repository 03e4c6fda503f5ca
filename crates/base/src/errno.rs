//! What the system's error numbers mean, in words.

use std::io;

/// What an error number (Linux) means, without the number: "No such file or directory".
pub fn text(errno: i32) -> String {
    let said = io::Error::from_raw_os_error(errno).to_string();
    match said.split_once(" (os error") {
        Some((words, _)) => words.to_owned(),
        None => said,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn errors_are_words() {
        assert_eq!(super::text(2), "No such file or directory");
        assert_eq!(super::text(28), "No space left on device");
    }
}
