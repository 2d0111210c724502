//! Ends of connections, and what a device without room has to do with them.

use super::*;

#[test]
fn closing_is_told_in_order() {
    let Connected { mut server, mut client, child, path, .. } = connected();
    server.received();
    client.received();
    client.send(path, control(Control::Written(3)));
    let sent = client.send(path, control(Control::Close));
    assert_eq!(state(&client, path), State::FinWait1);
    let sent = wire(&client, sent);
    // The data went with the first run; send it again by its timer.
    exchange(&mut server, &mut client, sent);
    let sent = client.expire(path, Duration::from_secs(1));
    let sent = wire(&client, sent);
    exchange(&mut server, &mut client, sent);
    let received = server.received();
    assert_eq!(check_pieces(&received), 3);
    assert_eq!(controls(&received), [Control::Readable(3), Control::PeerFinished]);
    let sent = server.send(child, control(Control::Consumed(3)));
    assert!(sent.is_empty());
    let sent = server.send(child, control(Control::Close));
    let sent = wire(&server, sent);
    exchange(&mut client, &mut server, sent);
    assert_eq!(state(&client, path), State::TimeWait);
    assert_eq!(controls(&server.received()), [Control::Closed]);
    client.received();
    client.expire(path, Duration::from_secs(61));
    assert_eq!(controls(&client.received()), [Control::Closed]);
    assert_eq!(client.path(path).next_timeout(), None);
}

#[test]
fn a_full_device_holds_segments_back() {
    let Connected { mut client, path, .. } = connected();
    client.transmit_room = 0;
    assert!(client.send(path, control(Control::Written(10))).is_empty());
    assert!(client.more);
    client.transmit_room = 8;
    let sent = client.send(path, control(Control::Consumed(0)));
    assert_eq!(sent.len(), 1);
    assert!(!client.more);
    // The end is told once the reset has left.
    client.received();
    client.transmit_room = 0;
    client.send(path, control(Control::Abort));
    assert!(client.received().is_empty());
    client.transmit_room = 8;
    assert_eq!(client.send(path, control(Control::Consumed(0))).len(), 1);
    assert_eq!(controls(&client.received()), [Control::Closed]);
}

/// As Linux: a reset by the program comes behind what it has written.
#[test]
fn what_was_written_has_room_before_a_reset() {
    for unread in [0, 1] {
        let Connected { mut server, mut client, child, path, .. } = connected();
        server.send(child, control(Control::Written(unread)));
        let question = server.expire(child, Duration::from_secs(1));
        let question = wire(&server, question);
        exchange(&mut client, &mut server, question);
        client.received();
        client.transmit_room = 0;
        client.send(path, control(Control::Written(10)));
        client.send(path, control(if unread > 0 { Control::Close } else { Control::Abort }));
        assert!(client.more && client.received().is_empty(), "the end waits as well");
        client.transmit_room = 8;
        let sent = client.send(path, control(Control::Consumed(0)));
        let sent = wire(&client, sent);
        let [data, reset] = &sent[..] else { panic!("{} segments", sent.len()) };
        let (data, reset) = (header_of(data), header_of(reset));
        assert!(!data.flags.contains(Flags::RST) && reset.flags.contains(Flags::RST));
        assert_eq!(reset.sequence, data.sequence.wrapping_add(10));
        assert_eq!(controls(&client.received()).last(), Some(&Control::Closed));
    }
}
