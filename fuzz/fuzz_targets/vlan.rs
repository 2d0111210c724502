#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scoutline_fuzz::vlan::vlan(data));
