//! Building a graph: every check that a configuration can fail, and the order of initialisation (Scout §3.1).

use thiserror::Error;

use super::{Graph, Hop, Link, ModuleId, Node};
use crate::rules::{Rule, RuleSet};
use crate::{Arity, CreateError, Module, Service, ServiceKind, Side};

/// Collects modules, links and rules; [`GraphBuilder::build`] checks them.
#[derive(Default)]
pub struct GraphBuilder {
    modules: Vec<Box<dyn Module>>,
    links: Vec<(String, String)>,
    rules: RuleSet,
}

/// What is wrong with a graph. A link is written `TCP.down -> IP4.up`; a missing end as `?`.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum GraphError {
    /// Two modules have one name.
    #[error("there are two modules named {0}")]
    DuplicateModule(&'static str),
    /// An end of a link is not written `MODULE.service`.
    #[error("link {link}: \"{end}\" is not written MODULE.service")]
    BadName {
        /// The link.
        link: String,
        /// The end that cannot be read.
        end: String,
    },
    /// A link names a module that the graph lacks.
    #[error("link {link}: there is no module {module}")]
    NoModule {
        /// The link.
        link: String,
        /// The name.
        module: String,
    },
    /// A link names a service that its module lacks.
    #[error("link {link}: module {module} has no service {service} (it has: {available})")]
    NoService {
        /// The link.
        link: String,
        /// The module.
        module: &'static str,
        /// The name.
        service: String,
        /// The services that it has, separated by commas.
        available: String,
    },
    /// The services are of different types.
    #[error("link {link}: a service of type {from:?} cannot be joined to one of type {to:?}")]
    KindMismatch {
        /// The link.
        link: String,
        /// Type of the first.
        from: ServiceKind,
        /// Type of the second.
        to: ServiceKind,
    },
    /// A link must lead from a `Lower` service (which uses) to an `Upper` one (which is used).
    #[error(
        "link {link}: leads from a service looking {from} to one looking {to}; it must lead from down to up"
    )]
    WrongSides {
        /// The link.
        link: String,
        /// Where the first looks.
        from: &'static str,
        /// Where the second looks.
        to: &'static str,
    },
    /// The same link twice.
    #[error("link {link}: is there twice")]
    DuplicateLink {
        /// The link.
        link: String,
    },
    /// A service has more links than it takes.
    #[error("link {link}: service {service} takes one link and has {other} already")]
    TooManyLinks {
        /// The link that is too many.
        link: String,
        /// The service.
        service: String,
        /// The link that was there first.
        other: String,
    },
    /// A service that needs a link has none.
    #[error("link {link}: is missing; the service needs exactly one")]
    MissingLink {
        /// The link, with `?` for the end that nobody gave.
        link: String,
    },
    /// Two modules above one service have one protocol number.
    #[error("link {link}: protocol {protocol:#x} is taken by {other}")]
    DuplicateProtocol {
        /// The later link.
        link: String,
        /// The earlier one.
        other: String,
        /// The number.
        protocol: u32,
    },
    /// Each of these modules wants another of them initialised first.
    #[error("no order of initialisation: each of these wants its end initialised first: {}", .links.join(", "))]
    InitialisationCycle {
        /// The links of one cycle.
        links: Vec<String>,
    },
    /// A module could not start.
    #[error("module {module} failed to initialise: {source}")]
    Initialise {
        /// The module.
        module: &'static str,
        /// Why.
        source: CreateError,
    },
}

impl GraphBuilder {
    /// An empty graph.
    pub fn new() -> GraphBuilder {
        GraphBuilder::default()
    }

    /// Adds a module.
    #[must_use]
    pub fn module(mut self, module: Box<dyn Module>) -> GraphBuilder {
        self.modules.push(module);
        self
    }

    /// Joins two services, each written `MODULE.service`: the one that uses first, the one that is used second.
    #[must_use]
    pub fn link(mut self, from: &str, to: &str) -> GraphBuilder {
        self.links.push((from.to_owned(), to.to_owned()));
        self
    }

    /// Adds a transformation rule; rules are tried in the order in which they were given.
    #[must_use]
    pub fn rule(mut self, rule: Box<dyn Rule>) -> GraphBuilder {
        self.rules.push(rule);
        self
    }

    /// Checks the graph and initialises its modules in order.
    ///
    /// # Errors
    /// The first thing that is wrong; see [`GraphError`].
    ///
    /// # Panics
    /// When there are more than 65,535 modules.
    pub fn build(self) -> Result<Graph, GraphError> {
        assert!(self.modules.len() < usize::from(u16::MAX), "too many modules");
        let mut modules = self.modules;
        check_names(&modules)?;
        let links = resolve(&modules, &self.links)?;
        check_arity(&modules, &links)?;
        check_protocols(&modules, &links)?;
        let order = initialisation_order(&modules, &links)?;
        for id in &order {
            let module = &mut modules[id.0 as usize];
            let name = module.name();
            module.initialise().map_err(|source| GraphError::Initialise { module: name, source })?;
        }
        let nodes = modules
            .into_iter()
            .enumerate()
            .map(|(index, module)| node(module, index, &links))
            .collect::<Vec<_>>();
        // The protocol numbers of those above are asked once, here: demux only compares.
        let protocols: Vec<Option<u32>> = nodes.iter().map(|node| node.module.protocol()).collect();
        let mut graph = Graph { nodes, links, initialised: order, rules: self.rules };
        for link in &graph.links {
            // Who only answers questions about addresses does not take packets.
            if let (Some(protocol), true) =
                (protocols[link.from.0 as usize], link.kind != ServiceKind::Resolve)
            {
                graph.nodes[link.to.0 as usize].above.push((protocol, link.from));
            }
        }
        Ok(graph)
    }
}

fn check_names(modules: &[Box<dyn Module>]) -> Result<(), GraphError> {
    for (index, module) in modules.iter().enumerate() {
        if modules[..index].iter().any(|earlier| earlier.name() == module.name()) {
            return Err(GraphError::DuplicateModule(module.name()));
        }
    }
    Ok(())
}

/// Turns names into links, checking that they exist, that the types are equal and that the sides meet.
fn resolve(modules: &[Box<dyn Module>], names: &[(String, String)]) -> Result<Vec<Link>, GraphError> {
    let mut links: Vec<Link> = Vec::with_capacity(names.len());
    for (from, to) in names {
        let text = || format!("{from} -> {to}");
        let (from_id, from_service) = resolve_end(modules, from, &text)?;
        let (to_id, to_service) = resolve_end(modules, to, &text)?;
        if from_service.kind != to_service.kind {
            return Err(GraphError::KindMismatch {
                link: text(),
                from: from_service.kind,
                to: to_service.kind,
            });
        }
        if (from_service.side, to_service.side) != (Side::Lower, Side::Upper) {
            let looks = |service: &Service| if service.side == Side::Lower { "down" } else { "up" };
            return Err(GraphError::WrongSides {
                link: text(),
                from: looks(from_service),
                to: looks(to_service),
            });
        }
        let link = Link {
            from: from_id,
            from_module: modules[from_id.0 as usize].name(),
            from_service: from_service.name,
            to: to_id,
            to_module: modules[to_id.0 as usize].name(),
            to_service: to_service.name,
            kind: from_service.kind,
        };
        if links.contains(&link) {
            return Err(GraphError::DuplicateLink { link: text() });
        }
        links.push(link);
    }
    Ok(links)
}

fn resolve_end(
    modules: &[Box<dyn Module>],
    end: &str,
    link: &dyn Fn() -> String,
) -> Result<(ModuleId, &'static Service), GraphError> {
    let Some((name, service)) = end.split_once('.') else {
        return Err(GraphError::BadName { link: link(), end: end.to_owned() });
    };
    let Some(index) = modules.iter().position(|module| module.name() == name) else {
        return Err(GraphError::NoModule { link: link(), module: name.to_owned() });
    };
    let services = modules[index].services();
    let Some(found) = services.iter().find(|candidate| candidate.name == service) else {
        return Err(GraphError::NoService {
            link: link(),
            module: modules[index].name(),
            service: service.to_owned(),
            available: services.iter().map(|service| service.name).collect::<Vec<_>>().join(", "),
        });
    };
    Ok((ModuleId(index as u16), found))
}

/// The links that end at a service, in order.
fn links_at<'a>(
    links: &'a [Link],
    module: ModuleId,
    service: &'a Service,
) -> impl Iterator<Item = &'a Link> + 'a {
    links.iter().filter(move |link| match service.side {
        Side::Lower => link.from == module && link.from_service == service.name,
        Side::Upper => link.to == module && link.to_service == service.name,
    })
}

fn check_arity(modules: &[Box<dyn Module>], links: &[Link]) -> Result<(), GraphError> {
    for (index, module) in modules.iter().enumerate() {
        for service in module.services() {
            let mut at = links_at(links, ModuleId(index as u16), service);
            let (first, second) = (at.next(), at.next());
            let name = format!("{}.{}", module.name(), service.name);
            match (service.arity, first, second) {
                (Arity::One | Arity::Optional, Some(first), Some(second)) => {
                    return Err(GraphError::TooManyLinks {
                        link: second.to_string(),
                        service: name,
                        other: first.to_string(),
                    });
                }
                (Arity::One, None, _) => {
                    let link = match service.side {
                        Side::Lower => format!("{name} -> ?"),
                        Side::Upper => format!("? -> {name}"),
                    };
                    return Err(GraphError::MissingLink { link });
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// `Verdict::Up` names a protocol number, not a service: it must be unique among all that are above a module.
fn check_protocols(modules: &[Box<dyn Module>], links: &[Link]) -> Result<(), GraphError> {
    let takes_packets = |link: &&Link| link.kind != ServiceKind::Resolve;
    for (index, link) in links.iter().enumerate().filter(|(_, link)| takes_packets(link)) {
        let Some(protocol) = modules[link.from.0 as usize].protocol() else { continue };
        let earlier = links[..index].iter().filter(takes_packets).find(|other| {
            // One module may reach another by two services; that is one answer, not two.
            other.to == link.to
                && other.from != link.from
                && modules[other.from.0 as usize].protocol() == Some(protocol)
        });
        if let Some(other) = earlier {
            return Err(GraphError::DuplicateProtocol {
                link: link.to_string(),
                other: other.to_string(),
                protocol,
            });
        }
    }
    Ok(())
}

/// A link's demand: `first` is to be initialised before `then`.
struct Demand {
    first: ModuleId,
    then: ModuleId,
    link: usize,
}

fn demands(modules: &[Box<dyn Module>], links: &[Link]) -> Vec<Demand> {
    let wants = |id: ModuleId, service: &str| {
        modules[id.0 as usize].services().iter().any(|s| s.name == service && s.initialise_first)
    };
    let mut demands = Vec::new();
    for (index, link) in links.iter().enumerate() {
        if wants(link.from, link.from_service) {
            demands.push(Demand { first: link.to, then: link.from, link: index });
        }
        if wants(link.to, link.to_service) {
            demands.push(Demand { first: link.from, then: link.to, link: index });
        }
    }
    demands
}

/// A topological order over `initialise_first`; among modules that are free to start, the one given first.
fn initialisation_order(modules: &[Box<dyn Module>], links: &[Link]) -> Result<Vec<ModuleId>, GraphError> {
    let demands = demands(modules, links);
    let mut done = vec![false; modules.len()];
    let mut order = Vec::with_capacity(modules.len());
    while order.len() < modules.len() {
        let free = (0..modules.len()).find(|&index| {
            !done[index]
                && demands
                    .iter()
                    .all(|demand| demand.then.0 as usize != index || done[demand.first.0 as usize])
        });
        let Some(index) = free else {
            return Err(GraphError::InitialisationCycle { links: cycle(&demands, &done, links) });
        };
        done[index] = true;
        order.push(ModuleId(index as u16));
    }
    Ok(order)
}

/// The links of one cycle. Every module that is left waits for another that is left, so following "waits for"
/// from any of them comes round.
fn cycle(demands: &[Demand], done: &[bool], links: &[Link]) -> Vec<String> {
    let waits_for = |module: usize| {
        demands.iter().find(|demand| demand.then.0 as usize == module && !done[demand.first.0 as usize])
    };
    let mut at = done.iter().position(|&done| !done).unwrap_or_default();
    // After as many steps as there are modules we are inside the cycle, not on a tail that leads to it.
    for _ in 0..done.len() {
        at = waits_for(at).map_or(at, |demand| demand.first.0 as usize);
    }
    let start = at;
    let mut cycle = Vec::new();
    while let Some(demand) = waits_for(at) {
        cycle.push(demand.link);
        at = demand.first.0 as usize;
        if at == start {
            break;
        }
    }
    // A circle has no start; tell it from the link that was given first.
    let first = (0..cycle.len()).min_by_key(|&index| cycle[index]).unwrap_or_default();
    cycle.rotate_left(first);
    cycle.into_iter().map(|link| links[link].to_string()).collect()
}

fn node(module: Box<dyn Module>, index: usize, links: &[Link]) -> Node {
    let below = module
        .services()
        .iter()
        .filter(|service| service.side == Side::Lower)
        .map(|service| {
            let mut at = links_at(links, ModuleId(index as u16), service);
            let hop = match (at.next(), at.next()) {
                (None, _) => Hop::Nowhere,
                (Some(link), None) => Hop::To(link.to),
                (Some(_), Some(_)) => Hop::Several,
            };
            (service.name, hop)
        })
        .collect();
    Node { module, above: Vec::new(), below }
}
