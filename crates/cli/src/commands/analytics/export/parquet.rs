//! A table as Parquet: plain values, uncompressed, a page for each column of a row group. Figures, names and times are all
//! that there is, so the few lines here take the place of a library that is larger than the rest of the program.
//! The footer is Thrift's compact protocol; each struct of it is written in the order of its fields.

use super::table::{Column, Table};

const MAGIC: &[u8] = b"PAR1";
/// Lines of a row group: a page of the longest names stays below 2 GiB.
const GROUP: usize = 1 << 16;

// Types of the compact protocol.
const I32: u8 = 5;
const I64: u8 = 6;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

/// A struct that is being written.
struct Thrift<'a> {
    bytes: &'a mut Vec<u8>,
    last: u8,
}

impl Thrift<'_> {
    /// Writes a struct, and its end.
    fn write(bytes: &mut Vec<u8>, fill: impl FnOnce(&mut Thrift<'_>)) {
        fill(&mut Thrift { bytes, last: 0 });
        bytes.push(0);
    }

    fn field(&mut self, id: u8, kind: u8) {
        self.bytes.push((id - self.last) << 4 | kind);
        self.last = id;
    }

    fn i32(&mut self, id: u8, value: i32) {
        self.field(id, I32);
        varint(self.bytes, zigzag(value.into()));
    }

    fn i64(&mut self, id: u8, value: usize) {
        self.field(id, I64);
        varint(self.bytes, zigzag(value as i64));
    }

    fn text(&mut self, id: u8, text: &str) {
        self.field(id, BINARY);
        string(self.bytes, text);
    }

    fn inner(&mut self, id: u8, fill: impl FnOnce(&mut Thrift<'_>)) {
        self.field(id, STRUCT);
        Thrift::write(self.bytes, fill);
    }

    fn list<T>(&mut self, id: u8, kind: u8, all: &[T], each: impl Fn(&mut Vec<u8>, &T)) {
        self.field(id, LIST);
        match all.len() {
            few @ 0..15 => self.bytes.push((few as u8) << 4 | kind),
            many => {
                self.bytes.push(0xf0 | kind);
                varint(self.bytes, many as u64);
            }
        }
        all.iter().for_each(|one| each(self.bytes, one));
    }
}

fn varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn string(bytes: &mut Vec<u8>, text: &str) {
    varint(bytes, text.len() as u64);
    bytes.extend_from_slice(text.as_bytes());
}

/// Where a column of a row group lies.
struct Chunk {
    at: usize,
    bytes: usize,
    lines: usize,
}

/// The whole file.
pub fn file(table: &Table) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    let mut groups: Vec<Vec<Chunk>> = Vec::new();
    for begin in (0..table.len()).step_by(GROUP) {
        let end = (begin + GROUP).min(table.len());
        groups.push(table.0.iter().map(|(_, column)| chunk(&mut bytes, column, begin, end)).collect());
    }
    let footer = bytes.len();
    Thrift::write(&mut bytes, |file| {
        file.i32(1, 1);
        let root = std::iter::once(None);
        let elements: Vec<Option<&(String, Column)>> = root.chain(table.0.iter().map(Some)).collect();
        file.list(2, STRUCT, &elements, |bytes, element| {
            Thrift::write(bytes, |schema| match element {
                None => {
                    schema.text(4, "schema");
                    schema.i32(5, table.0.len() as i32);
                }
                Some((name, column)) => {
                    schema.i32(1, physical(column));
                    schema.i32(3, i32::from(optional(column)));
                    schema.text(4, name);
                    match column {
                        Column::Time(_) => schema.i32(6, 10), // TIMESTAMP_MICROS, UTC
                        Column::Text(_) => schema.i32(6, 0),  // UTF8
                        Column::Figure(_) => {}
                    }
                }
            });
        });
        file.i64(3, table.len());
        file.list(4, STRUCT, &groups, |bytes, chunks| {
            Thrift::write(bytes, |group| {
                let columns: Vec<(&Chunk, &(String, Column))> = chunks.iter().zip(&table.0).collect();
                group.list(1, STRUCT, &columns, |bytes, (chunk, (name, column))| {
                    Thrift::write(bytes, |of| {
                        of.i64(2, chunk.at);
                        of.inner(3, |meta| {
                            meta.i32(1, physical(column));
                            meta.list(2, I32, &[0, 3], |bytes, encoding| varint(bytes, zigzag(*encoding)));
                            meta.list(3, BINARY, &[name], |bytes, name| string(bytes, name));
                            meta.i32(4, 0); // uncompressed
                            meta.i64(5, chunk.lines);
                            meta.i64(6, chunk.bytes);
                            meta.i64(7, chunk.bytes);
                            meta.i64(9, chunk.at);
                        });
                    });
                });
                group.i64(2, chunks.iter().map(|chunk| chunk.bytes).sum());
                group.i64(3, chunks.first().map_or(0, |chunk| chunk.lines));
            });
        });
        file.text(6, "ropewalk version 1");
    });
    let length = (bytes.len() - footer) as u32;
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(MAGIC);
    bytes
}

/// INT64, BYTE_ARRAY or DOUBLE.
fn physical(column: &Column) -> i32 {
    match column {
        Column::Time(_) => 2,
        Column::Text(_) => 6,
        Column::Figure(_) => 5,
    }
}

fn optional(column: &Column) -> bool {
    !matches!(column, Column::Time(_))
}

/// Writes the only page of a column of a row group.
fn chunk(bytes: &mut Vec<u8>, column: &Column, begin: usize, end: usize) -> Chunk {
    let mut page = Vec::new();
    match column {
        Column::Time(times) => {
            for time in &times[begin..end] {
                page.extend_from_slice(&(time * 1_000_000).to_le_bytes());
            }
        }
        Column::Text(texts) => {
            present(&mut page, &texts[begin..end]);
            for text in texts[begin..end].iter().flatten() {
                page.extend_from_slice(&(text.len() as u32).to_le_bytes());
                page.extend_from_slice(text.as_bytes());
            }
        }
        Column::Figure(figures) => {
            present(&mut page, &figures[begin..end]);
            for figure in figures[begin..end].iter().flatten() {
                page.extend_from_slice(&figure.to_le_bytes());
            }
        }
    }
    let at = bytes.len();
    Thrift::write(bytes, |header| {
        header.i32(1, 0); // a page of data
        header.i32(2, page.len() as i32);
        header.i32(3, page.len() as i32);
        header.inner(5, |data| {
            data.i32(1, (end - begin) as i32);
            data.i32(2, 0); // plain
            data.i32(3, 3); // RLE and bits
            data.i32(4, 3);
        });
    });
    bytes.append(&mut page);
    Chunk { at, bytes: bytes.len() - at, lines: end - begin }
}

/// Which lines have a value: one bit each, after their length.
fn present<T>(page: &mut Vec<u8>, values: &[Option<T>]) {
    let mut bits = Vec::new();
    varint(&mut bits, (values.len().div_ceil(8) as u64) << 1 | 1);
    for eight in values.chunks(8) {
        bits.push(eight.iter().enumerate().fold(0, |byte, (n, value)| byte | u8::from(value.is_some()) << n));
    }
    page.extend_from_slice(&(bits.len() as u32).to_le_bytes());
    page.append(&mut bits);
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    #[test]
    fn a_file_as_other_programs_read_it() {
        let table = Table(vec![
            ("end".to_owned(), Column::Time(vec![1010, 1020])),
            ("file".to_owned(), Column::Text(vec![Some("/a".into()), None])),
            ("bytes".to_owned(), Column::Figure(vec![None, Some(1.5)])),
        ]);
        // pyarrow 26 and DuckDB 2.0 read what is written so (tried by hand): it must not change unseen.
        let hash: String =
            Sha256::digest(file(&table)).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hash, "64997e7dd81d2de9");
    }
}
