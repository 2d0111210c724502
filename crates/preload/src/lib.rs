//! The socket shim that LD_PRELOAD puts under an unmodified program.
