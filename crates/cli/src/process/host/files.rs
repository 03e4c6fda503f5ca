//! What small files of /sys say.

use std::{fs, path::Path};

/// A file's text without the space around it.
pub fn text(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned()).filter(|text| !text.is_empty())
}
