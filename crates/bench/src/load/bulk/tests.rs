use super::*;

#[test]
fn a_stamp_is_read_as_it_was_written_and_nothing_else_is_one() {
    let mut message = vec![7; Protocol::Udp.message_len()];
    assert_eq!(Stamp::read(&message), None);
    let stamp = Stamp { number: 9, due_ns: 123_456_789_012 };
    stamp.write(&mut message);
    assert_eq!(Stamp::read(&message), Some(stamp));
    assert_eq!(Stamp::read(&message[..23]), None);
}
