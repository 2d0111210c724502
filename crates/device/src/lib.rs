//! Partners at the edge of the machine: packet, tap, memory, pcap.
