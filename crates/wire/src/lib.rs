//! Message and record formats. No I/O.
