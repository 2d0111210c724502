//! `[[class]]` and `[[permission]]`: what traffic is told apart by, and who may rise.

use serde::Deserialize;
use toml::Spanned;

use super::{AnyNetwork, Dscp, Percent, Policy, Ports, Rate, Requests, Size, User, values};

/// `[[class]]`. Conditions of different kinds must all hold; of one kind, any.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Class {
    /// Its name.
    pub name: Spanned<String>,
    /// Priority of its paths, 0 to 63; higher runs first.
    pub priority: Option<Spanned<u8>>,
    /// Served only when nothing else has work.
    #[serde(default)]
    pub idle: bool,
    /// Priority of its listen paths; default: `priority`.
    pub listen_priority: Option<Spanned<u8>>,
    /// Which policy serves its paths; default: `priority`.
    pub policy: Option<Spanned<Policy>>,
    /// EDF, BERT: in which time the work of a path is to be done.
    pub deadline_us: Option<Spanned<u32>>,
    /// EDF, BERT: engine time that it then takes.
    pub budget_us: Option<Spanned<u32>>,
    /// EDF: what a program's thread may run for a path in `deadline_us`; then it has SCHED_DEADLINE.
    pub thread_budget_us: Option<Spanned<u32>>,
    /// BERT: the share of the engine's CPU that is for each of its paths.
    pub cpu_percent: Option<Spanned<Percent>>,
    /// BERT: nothing is stolen from its paths, and they may steal to be in time.
    pub important: Option<Spanned<bool>>,
    /// EDF, BERT: of the engine's CPU, what may be promised to its paths together.
    pub cpu_limit_percent: Option<Spanned<Percent>>,
    /// Networks of the peer.
    #[serde(default, deserialize_with = "values::some")]
    pub source: Vec<AnyNetwork>,
    /// Networks of our own address.
    #[serde(default, deserialize_with = "values::some")]
    pub destination: Vec<AnyNetwork>,
    /// Our ports.
    #[serde(default, deserialize_with = "values::some")]
    pub local_port: Vec<Ports>,
    /// The peer's ports.
    #[serde(default, deserialize_with = "values::some")]
    pub remote_port: Vec<Ports>,
    /// DSCPs of the first packet that comes.
    #[serde(default, deserialize_with = "values::some")]
    pub dscp: Vec<Dscp>,
    /// Devices, by name.
    #[serde(default, deserialize_with = "values::some")]
    pub interface: Vec<Spanned<String>>,
    /// Programs, by the last part of the path of the executable.
    #[serde(default, deserialize_with = "values::some")]
    pub program: Vec<String>,
    /// Users, as whom the program was started.
    #[serde(default, deserialize_with = "values::some")]
    pub user: Vec<User>,
    /// Control groups of the program, or parents of them.
    #[serde(default, deserialize_with = "values::some")]
    pub cgroup: Vec<Spanned<String>>,
    /// Whose requests the next five are about; default: `incoming`.
    pub requests: Option<Spanned<Requests>>,
    /// TLS server names: `www.example.org`, `*.example.org`. The class follows the request.
    #[serde(default, deserialize_with = "values::some")]
    pub tls_name: Vec<Spanned<String>>,
    /// HTTP hosts, in the same notation.
    #[serde(default, deserialize_with = "values::some")]
    pub host: Vec<Spanned<String>>,
    /// Beginnings of URL paths: `/api/`.
    #[serde(default, deserialize_with = "values::some")]
    pub url: Vec<Spanned<String>>,
    /// HTTP header fields: `Name`, or `Name: value`.
    #[serde(default, deserialize_with = "values::some")]
    pub header: Vec<Spanned<String>>,
    /// Cookies: `name`, or `name=value`.
    #[serde(default, deserialize_with = "values::some")]
    pub cookie: Vec<Spanned<String>>,
    /// Packets that may wait in a path's input queue.
    pub queue_packets: Option<Spanned<u32>>,
    /// Buffer bytes that the paths of the class may hold together.
    pub memory: Option<Spanned<Size>>,
    /// TCP connections that the class may have at a time.
    pub connections: Option<Spanned<u32>>,
    /// The DSCP that packets of its paths leave with.
    pub mark: Option<Dscp>,
    /// Program threads may be scheduled with its paths; default: yes.
    pub extend: Option<bool>,
    /// Its part among the classes of its level, 1 to 10,000; default: 100.
    pub weight: Option<Spanned<u32>>,
    /// What its paths may send through one device.
    pub rate: Option<Spanned<Rate>>,
}

impl Class {
    /// Whether it takes every path.
    pub fn matches_everything(&self) -> bool {
        let any = |networks: &[AnyNetwork]| {
            networks.is_empty() || networks.iter().any(|network| network.prefix == 0)
        };
        any(&self.source)
            && any(&self.destination)
            && self.local_port.is_empty()
            && self.remote_port.is_empty()
            && self.dscp.is_empty()
            && self.interface.is_empty()
            && self.program.is_empty()
            && self.user.is_empty()
            && self.cgroup.is_empty()
            && !self.asks_request()
    }

    /// Whether it looks at what is asked on a connection.
    pub(crate) fn asks_request(&self) -> bool {
        self.request().iter().any(|(_, texts)| !texts.is_empty())
    }

    /// The conditions on the request, each with its key.
    pub(crate) fn request(&self) -> [(&'static str, &[Spanned<String>]); 5] {
        [
            ("tls_name", &self.tls_name),
            ("host", &self.host),
            ("url", &self.url),
            ("header", &self.header),
            ("cookie", &self.cookie),
        ]
    }
}

/// `[[permission]]`. Conditions of different kinds must all hold; of one kind, any.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Permission {
    /// Programs, by the last part of the path of the executable.
    #[serde(default, deserialize_with = "values::some")]
    pub program: Vec<Spanned<String>>,
    /// Users, as whom the program was started.
    #[serde(default, deserialize_with = "values::some")]
    pub user: Vec<User>,
    /// Control groups of the program, or parents of them.
    #[serde(default, deserialize_with = "values::some")]
    pub cgroup: Vec<Spanned<String>>,
    /// Up to this priority.
    pub priority: Option<Spanned<u8>>,
    /// Down to this deadline, in microseconds.
    pub deadline_us: Option<Spanned<u32>>,
    /// Up to this weight among the paths of wfq.
    pub weight: Option<Spanned<u32>>,
    /// Into these classes, by name.
    #[serde(default)]
    pub class: Vec<Spanned<String>>,
    /// Extended paths, where the class has none.
    pub extend: Option<Spanned<bool>>,
}
