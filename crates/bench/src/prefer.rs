//! `prefer`: one preferred client among standard ones, with priorities for paths only: the server's threads are Linux's to
//! schedule (SILK §4.2). How it is measured: [`crate::preferred`].

use anyhow::Result;

use crate::Options;
use crate::preferred::{self, Experiment};
use crate::report::Report;
use crate::server::Priorities;

const PREFER: Experiment = Experiment {
    name: "prefer",
    title: "A preferred client among standard ones",
    priorities: Priorities::Preferred,
    standard: [0, 16, 48, 96],
};

pub(crate) fn run(options: &Options) -> Result<Report> {
    preferred::run(&PREFER, options)
}
