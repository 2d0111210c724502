//! `conn`: a new connection for each request, one byte as the answer, then close; one client and sixteen, in each
//! placement.
//!
//! The server is `load answer`, one thread with an epoll set, so nearly all that there is to do is the connection's own.
//! The clients are those of `web`; the server closes first.

use anyhow::Result;

use crate::Options;
use crate::placed::{Case, Load, Metric, Plan, Sides, compare};
use crate::report::{Better, Report, Target};

const METRICS: [Metric; 3] = [
    Metric::aimed(("rate", "connections/s", Better::Higher), |_| Some(Target::Ratio(1.5))),
    Metric::plain(("p50", "µs", Better::Lower)),
    Metric::plain(("p99", "µs", Better::Lower)),
];
const CLIENTS: [usize; 2] = [1, 16];
const PORT: u16 = 8000;

pub(crate) fn run(options: &Options) -> Result<Report> {
    let text =
        |clients: usize| if clients == 1 { "1 client".to_owned() } else { format!("{clients} clients") };
    let plan = Plan {
        name: "conn",
        title: "Connect, one request, close",
        cases: CLIENTS.map(|clients| Case::everywhere(text(clients), &METRICS)).into(),
        sides: Sides::TwoHosts,
        timing: [(5, 3.0, 0.5), (3, 0.7, 0.2)],
    };
    compare(options, &plan, |bed, arm, case, timing| {
        bed.serve_load(arm, "answer", &["answer", &format!("--port={PORT}")])?;
        let words = [format!("--clients={}", CLIENTS[case]), format!("--source={}", bed.client_address(arm))];
        let (report, mut seen) = bed.load(arm, &Load { words: &words, port: PORT }, timing)?;
        seen.figures = vec![report.throughput(), report.p50_us, report.p99_us];
        Ok(seen)
    })
}
