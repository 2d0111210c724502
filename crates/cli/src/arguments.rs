//! The one definition of the command line: help, manual pages and completions are made from it.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use scoutline_bench::{Options, Peer, Setting};
use scoutline_daemon::config::{DEFAULT_CONTROL, Network};

/// Paths for unmodified programs on unmodified Linux.
///
/// A path is one flow of data from device to program, with its own queues, stages, account and place in the
/// schedule. `scoutline up` runs the daemon that owns a network interface; `scoutline run` starts a program whose
/// sockets live on paths.
#[derive(Debug, Parser)]
#[command(
    name = "scoutline",
    version,
    arg_required_else_help = true,
    max_term_width = 100,
    after_help = "\
Examples:
  scoutline doctor                                   what this machine can do, and what it lacks
  scoutline demo                                     see it work, in under two minutes
  scoutline up --device eth1 --address 10.0.0.1/24   serve an interface
  scoutline run -- nginx -g 'daemon off;'            a server on paths
  scoutline ps                                       the live paths
  scoutline class set preferred priority=5           change a class, live

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no daemon reached; run: 126 the program cannot run on paths, \
127 no such program, else the program's own."
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the daemon in the foreground
    Up(Up),
    /// Run a program with its sockets on paths
    Run(Run),
    /// List the live paths
    Ps(Ps),
    /// Watch the busiest paths live
    Top(Top),
    /// Show the totals of engine, devices, classes and programs
    Stat(Listing),
    /// Draw the module graph and the live paths
    Graph(Graph),
    /// Look at the classes and change them live
    Class(Class),
    /// Look at the other settings that can change live, and change them
    Set(Set),
    /// Have the daemon read its configuration file again
    #[command(after_help = "\
Example:
  scoutline reload

The classes of the file take the place of those that are there, at once and without loss: existing connections are \
classified again. So do the settings that `scoutline set` lists. What cannot change live (devices, the engine's core, …) is named in the answer; a restart takes it \
over. A file with a mistake changes nothing. SIGHUP to the daemon does the same, and its log says what it came to.")]
    Reload(Control),
    /// Stop the daemon
    Stop(Control),
    /// Check what this machine offers and say how to get what is missing
    Doctor(Doctor),
    /// Show a preferred client staying fast, on hosts made for it and removed again
    Demo(Experiment),
    /// Run an experiment: ours, the kernel's figure, the ratio
    Bench(Bench),
    /// Generate load (the experiments use it)
    #[command(hide = true, disable_help_flag = true)]
    Load {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Answer the trapped calls of a program (`run --trap` starts this by itself)
    #[command(hide = true)]
    Supervise {
        /// The program's process
        pid: u32,
        /// Start the supervisor as nobody's child
        #[arg(long)]
        detach: bool,
    },
    /// Undo what the daemon changed, once it has ended (it starts this by itself)
    #[command(hide = true, name = scoutline_daemon::guard::COMMAND)]
    Guard,
    /// Write the manual pages
    #[command(hide = true)]
    Man {
        /// Where to
        #[arg(long, default_value = ".")]
        dir: PathBuf,
    },
    /// Print a completion script for a shell
    #[command(after_help = "\
Example:
  scoutline completions bash > /etc/bash_completion.d/scoutline")]
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

/// Where the daemon is.
#[derive(Debug, Args)]
pub(crate) struct Control {
    /// The daemon's control socket
    #[arg(long, value_name = "PATH", env = "SCOUTLINE_CONTROL", default_value = DEFAULT_CONTROL)]
    pub(crate) control: PathBuf,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  scoutline up                                              with /etc/scoutline.toml
  scoutline up --config my.toml
  scoutline up --device eth1 --address 10.0.0.1/24          no file needed

It stays in the foreground, prints one line beginning with `ready` once programs can attach, and stops cleanly on \
Ctrl-C, SIGTERM or `scoutline stop`. SIGHUP or `scoutline reload` has it read its file again (started without a \
file, SIGHUP stops it). SCOUTLINE_LOG=debug says more.")]
pub(crate) struct Up {
    /// Configuration file (TOML) [default: /etc/scoutline.toml]
    #[arg(long, value_name = "FILE", conflicts_with = "device")]
    pub(crate) config: Option<PathBuf>,
    /// The control socket, whatever the configuration says
    #[arg(long, value_name = "PATH", env = "SCOUTLINE_CONTROL")]
    pub(crate) control: Option<PathBuf>,
    /// Serve this interface with all other settings at their defaults; `auto`: the one that is up and free, with the
    /// driver that suits it
    #[arg(long, value_name = "NAME", requires = "address")]
    pub(crate) device: Option<String>,
    /// Our address on it and the length of the network's prefix
    #[arg(long, value_name = "CIDR", requires = "device", value_parser = own_network)]
    pub(crate) address: Option<Network>,
    /// Where packets for other networks go
    #[arg(long, value_name = "ADDRESS", requires = "device")]
    pub(crate) gateway: Option<Ipv4Addr>,
    /// Check the configuration, and that this machine has the interfaces, cores, users and group that it names, and
    /// end
    #[arg(long)]
    pub(crate) check: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  scoutline run -- nginx -g 'daemon off;'
  scoutline run -- curl http://10.0.0.2/
  scoutline run -- python3 -m http.server --bind 10.0.0.1 80
  scoutline run --background -- rsync -a /data/ 10.0.0.2::backup
  scoutline run --trap -- ./server-in-go

The program is started with libscoutline_preload.so under it. Statically linked programs, those in Go, and setuid \
ones cannot be served that way; they are refused with the reason.

With --trap the program's calls about sockets are trapped instead (seccomp user notification), and a second process \
answers them and moves the bytes. That serves static programs and Go's, and whatever they start; it is slower.

A program has io_uring, and its sockets stay on paths. Those that an operation of a ring names become the kernel's \
where they are in no use yet; connections, and listening sockets at addresses that only paths have, stay on paths by \
way of a socket pair, with two copies more. With --io-uring all that it makes from its first ring on are the kernel's. \
With --io-uring=refuse it gets no rings (ENOSYS), and nearly all programs fall back to calls, which paths serve best.

With --background the program gets what nobody else wants: its paths stand at the idle level, whatever their class, \
its threads are on SCHED_IDLE and its disk I/O is in the idle class; so it is for all that it starts. Where its \
sockets cannot be on paths (no daemon, a static program), it runs on the kernel's, with threads and disk in idle \
time all the same.")]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) control: Control,
    /// Only in idle time of network, processor and disk
    #[arg(long)]
    pub(crate) background: bool,
    /// Trap the program's calls instead of preloading: for static programs and those in Go
    #[arg(long)]
    pub(crate) trap: bool,
    /// What becomes of io_uring, other than that the sockets which its operations name are the kernel's or have stand-ins
    #[arg(long, conflicts_with = "trap", value_enum, value_name = "HOW", num_args = 0..=1, require_equals = true,
          default_missing_value = "kernel")]
    pub(crate) io_uring: Option<IoUring>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<OsString>,
}

/// What becomes of a program's rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum IoUring {
    /// From its first ring on all sockets that it makes are the kernel's
    Kernel,
    /// It gets none (ENOSYS)
    Refuse,
}

fn own_network(text: &str) -> Result<Network, String> {
    let network = text.parse()?;
    if text.contains('/') {
        return Ok(network);
    }
    Err(format!(
        "the length of the network's prefix is missing; write {text}/24 if the network's mask is 255.255.255.0"
    ))
}

#[derive(Debug, Args)]
pub(crate) struct Listing {
    #[command(flatten)]
    pub(crate) control: Control,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The live paths: connections, and sockets that wait for some.
///
/// A socket that waits has a path for each class that its peers may be of, on each device; `local` is the device of
/// programs of this machine among each other.
#[derive(Debug, Args)]
pub(crate) struct Ps {
    #[command(flatten)]
    pub(crate) listing: Listing,
    /// Also the daemon's own: ARP, ICMP, answers to what is nobody's (as JSON they are always there)
    #[arg(long)]
    pub(crate) all: bool,
    /// Only those of this class
    #[arg(long, value_name = "NAME")]
    pub(crate) class: Option<String>,
    /// Only those of programs of this name
    #[arg(long, value_name = "NAME")]
    pub(crate) program: Option<String>,
}

/// What paths have in common: who is served first, and how much each may take.
///
/// The rules of classes are tried in order, the first match wins. Changes are live: new connections follow the new
/// rules at once, existing ones are classified again, and nothing is lost. They last until the daemon ends or reads
/// its file again; `scoutline class show NAME` prints what to write into the file to keep them.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  scoutline class list
  scoutline class add preferred source=10.0.0.7/32,10.1.0.0/16 priority=2 --before web
  scoutline class set preferred priority=5 connections=100 mark=EF
  scoutline class add api url=/api/,/login host=www.example.org priority=3
  scoutline class set preferred priority= idle=true          an empty value: back to the default
  scoutline class move backup --before preferred
  scoutline class remove backup
  scoutline class show preferred >> /etc/scoutline.toml

Keys: policy, priority, idle, listen_priority, deadline_us, budget_us, thread_budget_us, cpu_percent, important, \
cpu_limit_percent, queue_packets, memory, connections, mark, extend, weight, rate; and the conditions source, destination, local_port, \
remote_port, dscp, interface, program, user, cgroup, tls_name, host, url, header, cookie, which are lists with \
commas (requests says whose requests the last five are about). They mean what they mean in the configuration file. The class `default` takes what no other takes.")]
pub(crate) struct Class {
    #[command(subcommand)]
    pub(crate) command: ClassCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ClassCommand {
    /// List the classes in the order of their rules, with what lives in them
    List(Listing),
    /// Show one class as the configuration file would have it
    Show {
        /// Which class
        name: String,
        #[command(flatten)]
        listing: Listing,
    },
    /// Add a class, behind all others that have conditions unless --before says where
    Add {
        /// Its name
        name: String,
        /// Conditions and settings
        #[arg(value_name = "KEY=VALUE", value_parser = key_value)]
        keys: Vec<(String, String)>,
        /// The class whose rules come next
        #[arg(long, value_name = "OTHER")]
        before: Option<String>,
        #[command(flatten)]
        control: Control,
    },
    /// Change keys of a class; an empty value puts a key back to its default
    Set {
        /// Which class
        name: String,
        /// What changes
        #[arg(required = true, value_name = "KEY=VALUE", value_parser = key_value)]
        keys: Vec<(String, String)>,
        #[command(flatten)]
        control: Control,
    },
    /// Remove a class; its connections go to the classes that now take them
    Remove {
        /// Which class
        name: String,
        #[command(flatten)]
        control: Control,
    },
    /// Give a class another place in the order
    Move {
        /// Which class
        name: String,
        /// The class whose rules come next; without it, behind all others that have conditions
        #[arg(long, value_name = "OTHER")]
        before: Option<String>,
        #[command(flatten)]
        control: Control,
    },
}

/// Settings of the daemon that change while it runs.
///
/// Without arguments they are listed: what each is now, what it would be by default, and what it may be. Changes are
/// live and last until the daemon ends or reads its file again. One that is wrong changes nothing.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  scoutline set                                     what there is, and what it is now
  scoutline set extend=off                          every thread has its own priority again, at once
  scoutline set linux.share=30                      Linux gets 30 % of the core if both have work
  scoutline set device.eth1.rate=100Mbit/s quantum_us=500
  scoutline set linux.share=                        an empty value: back to the default

A setting is named as in the configuration file, SECTION.KEY or device.NAME.KEY; the key alone is enough where only \
one setting has it. `extend` is short for extension.enabled. Classes are changed with `scoutline class`; what is in \
neither list needs a restart.")]
pub(crate) struct Set {
    /// What changes
    #[arg(value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) keys: Vec<(String, String)>,
    #[command(flatten)]
    pub(crate) listing: Listing,
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').map(|(key, value)| (key.trim().to_owned(), value.to_owned()));
    pair.filter(|(key, _)| !key.is_empty()).ok_or_else(|| "write KEY=VALUE, such as priority=2".into())
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  scoutline top
  scoutline top --json --count 10 --interval 1 | jq .classes

Keys: q leaves, c p b sort by CPU, packets, bytes. Without a terminal each round is printed as text.")]
pub(crate) struct Top {
    #[command(flatten)]
    pub(crate) control: Control,
    /// Print one JSON object per round
    #[arg(long)]
    pub(crate) json: bool,
    /// End after so many rounds
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
    /// Seconds between rounds
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    pub(crate) interval: f64,
}

fn interval(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.05..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("give seconds, 0.05 to 3600".into()),
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  scoutline graph --format svg > paths.svg
  scoutline graph | dot -Tpdf > paths.pdf")]
pub(crate) struct Graph {
    #[command(flatten)]
    pub(crate) control: Control,
    /// What to print
    #[arg(long, value_enum, default_value_t = GraphFormat::Dot, conflicts_with = "json")]
    pub(crate) format: GraphFormat,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GraphFormat {
    /// Text for graphviz
    Dot,
    /// A picture, drawn without graphviz
    Svg,
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What `demo` and `bench` share.
#[derive(Debug, Args)]
pub(crate) struct Experiment {
    /// A shorter run of the same cases
    #[arg(long)]
    pub(crate) quick: bool,
    /// Where to draw the figure (SVG)
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
    /// How often each arm is measured
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: Option<u32>,
    /// How long each measurement takes, 0.05 to 3600 seconds
    #[arg(long, value_name = "SECONDS", value_parser = interval)]
    pub(crate) seconds: Option<f64>,
    /// Only cases whose text contains this
    #[arg(long, value_name = "TEXT")]
    pub(crate) only: Option<String>,
    /// Whether each host's protocol work stays on its own core (receive packet steering); else the experiment's
    /// own choice
    #[arg(long, value_name = "BOOL")]
    pub(crate) steer: Option<bool>,
    /// How long the preferred client thinks between its requests, on average: the more it asks, the more of the
    /// server's time goes into requests that are served alone
    #[arg(long, value_name = "MICROSECONDS", default_value_t = Options::default().think_us,
          value_parser = clap::value_parser!(u64).range(..=10_000_000))]
    pub(crate) think: u64,
    /// The kernel in our place too: what then differs is the bias of the method
    #[arg(long)]
    pub(crate) baseline: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  scoutline bench                                  what there is
  scoutline bench prefer --quick --plot prefer.svg
  scoutline bench extend --only '96 clients' --seconds 2
  scoutline bench web --json > web.json
  scoutline bench rr --peer smoltcp
  scoutline bench udp --try engine.spin_us=0 --try device.driver=xdp
  scoutline bench udp --only 'recvmmsg, pinned apart' --flame udp.svg
  scoutline bench micro --callgrind --only demux")]
pub(crate) struct Bench {
    /// Which experiment; without it they are listed
    pub(crate) name: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Sample the server's core while it is measured and list the functions that it was in (needs perf)
    #[arg(long)]
    pub(crate) perf: bool,
    /// The same, drawn as a flame graph (SVG)
    #[arg(long, value_name = "FILE")]
    pub(crate) flame: Option<PathBuf>,
    /// Count instructions for each operation instead of time, whatever else the machine does (`micro`; needs valgrind)
    #[arg(long, conflicts_with_all = ["perf", "flame"])]
    pub(crate) callgrind: bool,
    /// Further stacks to compare with, beside the kernel (`stream` and `rr`; `make peers` builds them)
    #[arg(long = "peer", value_name = "NAME", value_delimiter = ',')]
    pub(crate) peers: Vec<Peer>,
    /// A further arm: ours with this setting of the daemon; several times for several (`web` and what has placements)
    #[arg(long = "try", value_name = "TABLE.KEY=VALUE")]
    pub(crate) settings: Vec<Setting>,
    /// The same by another build of scoutline, with its library beside it
    #[arg(long = "try-build", value_name = "FILE")]
    pub(crate) build: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) common: Experiment,
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use scoutline_bench::Peer;

    use super::{Arguments, Command};

    fn all(command: &clap::Command) -> Vec<&clap::Command> {
        command.get_subcommands().flat_map(all).chain([command]).collect()
    }

    /// What is wrapped by hand clap wraps once more, and single words stand on lines of their own.
    #[test]
    fn only_clap_wraps_what_stands_behind_the_help() {
        let arguments = Arguments::command();
        let mut paragraphs = 0;
        for command in all(&arguments) {
            let Some(text) = command.get_after_help().map(ToString::to_string) else { continue };
            let lines: Vec<&str> = text.lines().collect();
            for (line, next) in lines.iter().zip(lines.iter().skip(1)) {
                let is_prose =
                    |line: &str| !line.is_empty() && !line.starts_with("  ") && !line.ends_with(':');
                assert!(!is_prose(line) || next.is_empty(), "{}: {line}\n{next}", command.get_name());
            }
            let long = lines.iter().find(|line| line.starts_with("  ") && line.chars().count() > 100);
            assert_eq!(long, None, "{}: clap wraps this example", command.get_name());
            paragraphs += lines.len();
        }
        assert!(paragraphs > 50, "{paragraphs}");
    }

    #[test]
    fn help_about_classes_names_every_key() {
        let text = "[[device]]\nname = \"eth1\"\naddress = \"10.0.0.1/24\"\n[[class]]\nname = \"a\"\nnosuchkeyatall = 1\n";
        let error = scoutline_daemon::Config::parse(text, "s.toml".as_ref()).unwrap_err().to_string();
        let (_, known) = error.split_once("known keys here: name, ").unwrap();
        let arguments = Arguments::command();
        let help = arguments.find_subcommand("class").unwrap().get_after_help().unwrap().to_string();
        let words: Vec<&str> = help.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        for key in known.split(", ") {
            assert!(words.contains(&key), "{key} is not in: {help}");
        }
    }

    #[test]
    fn peers_are_a_list() {
        let peers = |words: &[&str]| {
            let words = ["scoutline", "bench", "rr"].iter().chain(words);
            match Arguments::try_parse_from(words).map(|arguments| arguments.command) {
                Ok(Command::Bench(bench)) => bench.peers,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(peers(&[]), []);
        assert_eq!(peers(&["--peer", "smoltcp"]), [Peer::Smoltcp]);
        let both = [Peer::Smoltcp, Peer::Gvisor, Peer::Smoltcp];
        assert_eq!(peers(&["--peer", "smoltcp,gvisor", "--peer=smoltcp"]), both);
    }

    #[test]
    fn the_readme_lists_every_experiment() {
        let readme = include_str!("../../../README.md");
        for (name, _) in scoutline_bench::names() {
            assert!(readme.contains(&format!("\n| `{name}` | ")), "{name}");
        }
    }
}
