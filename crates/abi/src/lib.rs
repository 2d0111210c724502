//! What daemon, shim and tools share: memory layout, control messages, versions.
