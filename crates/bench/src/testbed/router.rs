//! Hosts that pass packets on between two devices.
//!
//! ```text
//!   client host                         router host                               server host
//!   eth0 10.78.0.2 ═══ out 10.78.0.1  the kernel or our daemon  in 10.77.0.254 ═══ eth0 10.77.0.1, drops all
//! ```
//! One router and one server host for each arm; the numbers in the addresses are the arm's.

use std::fs;

use anyhow::{Context as _, Result};

use super::link::{far_address, gateway};
use super::{Host, Owner, Steer, Testbed, address, join};

/// One instruction of classic BPF: return TC_ACT_SHOT.
const DROP: &str = "1,6 0 0 2";

impl Testbed {
    /// Makes a router for each entry of `owners`, with a server host behind it that drops what arrives, at no cost to
    /// speak of.
    ///
    /// # Errors
    /// As [`Testbed::new`]; also without the program `tc`.
    pub fn through_routers(owners: &[Owner], steer: Option<Steer>) -> Result<Testbed> {
        let (mut testbed, prefix) = Testbed::with_client()?;
        let drop = testbed.directory().join("drop");
        fs::write(&drop, DROP).with_context(|| format!("cannot write {}", drop.display()))?;
        for (index, owner) in owners.iter().enumerate() {
            let (client, server) = (&testbed.client, Host::create(format!("{prefix}-server{index}"))?);
            let middle = Host::create(format!("{prefix}-router{index}"))?;
            let device = format!("eth{index}");
            join((&server, "eth0"), (&middle, "in"))?;
            join((&middle, "out"), (client, &device))?;
            client.ip(&format!("addr add {}/24 dev {device}", far_address(index, 2)))?;
            server.ip(&format!("addr add {}/24 dev eth0", address(index, 1)))?;
            server.tc("qdisc add dev eth0 clsact")?;
            // What is no IP, neighbour discovery, gets through.
            server.tc(&format!(
                "filter add dev eth0 ingress protocol ip bpf da bytecode-file {}",
                drop.display()
            ))?;
            if *owner == Owner::Kernel {
                middle.ip(&format!("addr add {}/24 dev in", gateway(index)))?;
                middle.ip(&format!("addr add {}/24 dev out", far_address(index, 1)))?;
                middle.passes_on()?;
            }
            if let Some(steer) = steer {
                for device in ["in", "out"] {
                    middle.steer(device, steer.server_core)?;
                }
                server.steer("eth0", steer.client_core)?;
            }
            testbed.servers.push(server);
            testbed.forwarders.push(middle);
        }
        Ok(testbed)
    }

    /// The router of an arm, in a test bed made by [`Testbed::through_routers`].
    pub fn router(&self, index: usize) -> &Host {
        &self.forwarders[index]
    }

    /// The `[[device]]` and `[[forward]]` parts of its daemon's configuration; each device is driven by `driver`, and
    /// nothing is held back in front of it as a flood.
    pub fn router_configuration(&self, index: usize, driver: &str) -> String {
        let device = |name: &str, address| {
            format!(
                "[[device]]\nname = \"{name}\"\naddress = \"{address}/24\"\ndriver = \"{driver}\"\n\
                 [device.{driver}]\npolice_floods = false\n"
            )
        };
        let forward = |from: &str, to: &str| format!("[[forward]]\nfrom = \"{from}\"\nto = \"{to}\"\n");
        [
            device("in", gateway(index)),
            device("out", far_address(index, 1)),
            forward("out", "in"),
            forward("in", "out"),
        ]
        .concat()
    }
}
