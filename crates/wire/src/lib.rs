//! Header views: parse, emit, checksum. Pure.
