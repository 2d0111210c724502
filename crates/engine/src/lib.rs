//! The loop that joins devices, paths, scheduler and sockets.
