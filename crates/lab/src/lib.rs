//! Measures links, disks and the file system against raw ceilings.
