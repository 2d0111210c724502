//! Why a path could not be made.

use thiserror::Error;

/// Why creation or establishment of a path failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum CreateError {
    /// The caller gave too little.
    #[error("module {module} needs the attribute {attribute}")]
    MissingAttribute {
        /// Who asked.
        module: &'static str,
        /// What is missing.
        attribute: &'static str,
    },
    /// The caller asked for a module that the graph lacks.
    #[error("the module graph has no module {0}")]
    NoModule(String),
    /// A module routed through a service without a link.
    #[error("service {module}.{service} is not linked")]
    NotLinked {
        /// The module.
        module: &'static str,
        /// Its service.
        service: &'static str,
    },
    /// A module routed through a service with several links.
    #[error("service {module}.{service} has several links: the attributes determine no unique next module")]
    Ambiguous {
        /// The module.
        module: &'static str,
        /// Its service.
        service: &'static str,
    },
    /// The route goes round in a circle.
    #[error("the path is too long at module {module}: its route goes round")]
    Endless {
        /// Where it was given up.
        module: &'static str,
    },
    /// No module on the route made a stage.
    #[error("the path that starts at module {0} has no stages")]
    Empty(String),
    /// The address or port is taken.
    #[error("the flow is already in use")]
    InUse,
    /// No route or device reaches the peer.
    #[error("no device reaches the peer")]
    Unreachable,
    /// A budget is spent: memory, paths, backlog.
    #[error("out of {0}")]
    Exhausted(&'static str),
}
