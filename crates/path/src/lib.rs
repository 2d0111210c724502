//! Modules, services, graph, attributes, paths, stages, demultiplexing, accounts. Pure.
