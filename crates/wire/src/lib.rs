//! Header views: parse, emit, checksum. Pure.

pub mod tcp;
