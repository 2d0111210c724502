//! The control plane: configuration, control socket, JSON API.
