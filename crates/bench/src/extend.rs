//! `extend`: one preferred client among standard ones, with the server's threads scheduled as their paths are (SILK
//! §4.3). How it is measured: [`crate::preferred`].

use anyhow::Result;

use crate::Options;
use crate::preferred::{self, Experiment};
use crate::report::Report;
use crate::server::Priorities;

const EXTEND: Experiment = Experiment {
    name: "extend",
    title: "A preferred client whose server threads are scheduled with its paths",
    priorities: Priorities::Extended,
    standard: [0, 8, 32, 96],
};

pub(crate) fn run(options: &Options) -> Result<Report> {
    preferred::run(&EXTEND, options)
}
