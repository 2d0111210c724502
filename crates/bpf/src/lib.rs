//! eBPF programs and their loader.
