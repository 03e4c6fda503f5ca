//! The NSD server: strips in and out, catch-up, repair.
