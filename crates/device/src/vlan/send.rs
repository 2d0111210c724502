//! Putting tags on.

use scoutline_path::{Burst, Checksum, Message};

use crate::partner::DeviceError;
use crate::vlan::receive::{ADDRESSES_LEN, TYPE};
use crate::vlan::{TAG_LEN, VlanPartner};

/// Tags what there is and gives it to the parent; what that does not take stays, tagged.
pub(super) fn push(network: &mut VlanPartner, burst: &mut Burst) -> Result<usize, DeviceError> {
    for message in burst.iter_mut() {
        tag(message, network.tci);
    }
    let lens: Vec<usize> =
        burst.iter().map(|message| message.head.as_slice().len() + message.body_len()).collect();
    let done = network.parent.borrow_mut().push(burst)?;
    network.counters.tx_packets += done as u64;
    network.counters.tx_bytes += lens[..done].iter().sum::<usize>() as u64;
    network.counters.tx_full += u64::from(done < lens.len());
    Ok(done)
}

/// Puts a tag behind the link addresses, unless there is one: what the parent did not take comes again.
fn tag(message: &mut Message, tci: u16) {
    let head = message.head.as_slice();
    let Some(addresses) = head.first_chunk::<ADDRESSES_LEN>().copied() else { return };
    if head.get(ADDRESSES_LEN..ADDRESSES_LEN + 2) == Some(&TYPE) {
        return;
    }
    let _ = message.head.prepend(TAG_LEN);
    let out = message.head.as_mut_slice();
    out[..ADDRESSES_LEN].copy_from_slice(&addresses);
    out[ADDRESSES_LEN..ADDRESSES_LEN + 2].copy_from_slice(&TYPE);
    out[ADDRESSES_LEN + 2..ADDRESSES_LEN + TAG_LEN].copy_from_slice(&tci.to_be_bytes());
    if let Checksum::Partial { start, .. } = &mut message.facts.checksum {
        *start += TAG_LEN as u16;
    }
    if let Some(how) = &mut message.facts.segmentation {
        how.header_len += TAG_LEN as u16;
    }
}
