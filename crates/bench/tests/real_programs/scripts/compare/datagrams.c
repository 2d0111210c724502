/* Datagrams: what stands beside them, many at once, errors about them (ip(7), ipv6(7), udp(7), cmsg(3), recv(2)). */
#include "datagrams.h"

enum { REFUSED_MS = 1000 }; /* until an ICMP error is there; by trap it tells nobody */

static int started(const char *role) { return role == NULL; }

CASE(what_is_told_beside_a_datagram) {
    int port, fd = pair(&port);
    const int names[][2] = {{PKTINFO}, {RECVTTL}, {RECVTOS}, {RECVORIGDSTADDR}};
    for (int i = 0; i < 4; i++) {
        T(option(fd, names[i][0], names[i][1]));
        T(set_option(fd, names[i][0], names[i][1], 1));
        T(option(fd, names[i][0], names[i][1]));
    }
    tell("ip D tos 184");
    tell("ip D ttl 17");
    told("abc", fd);
    receive(fd, 0);
    for (int i = 0; i < 4; i++) T(set_option(fd, names[i][0], names[i][1], 0));
    told("def", fd);
    receive(fd, 0);
    T(set_option(fd, SOL_SOCKET, SO_TIMESTAMP, 1));
    T(option(fd, SOL_SOCKET, SO_TIMESTAMP));
    told("ghi", fd);
    receive(fd, 0);
    T(set_option(fd, SOL_SOCKET, SO_TIMESTAMPNS, 1));
    T(option(fd, SOL_SOCKET, SO_TIMESTAMP));
    T(option(fd, SOL_SOCKET, SO_TIMESTAMPNS));
    told("jkl", fd);
    receive(fd, 0);
    T(set_option(fd, SOL_SOCKET, SO_TIMESTAMPNS, 0));
    T(set_option(fd, SOL_SOCKET, SO_RXQ_OVFL, 1));
    T(option(fd, SOL_SOCKET, SO_RXQ_OVFL));
    told("mno", fd);
    receive(fd, 0);
}

enum { SOFTWARE = 1 << 4, RECEIVING = 1 << 3, HARDWARE = 1 << 2 | 1 << 6 };

/* Linux begins to note when packets come once a first socket of the machine asks, and leaves that to a worker
 * (net_enable_timestamp): whether the next datagram bears a time is chance. The other host's socket asks, and goes on
 * asking; from the first time that it is told all packets of the machine have one. */
static void await_times(int fd, int port) {
    struct name to = name_of(peer, port);
    tell("option D %d %d %d", SOL_SOCKET, SO_TIMESTAMPING, SOFTWARE | RECEIVING);
    do NEED(sendto(fd, "t", 1, 0, ADDRESS(to)) == 1);
    while (strcmp(tell("watch_times D"), "told"));
}

CASE(times_of_software) {
    static const int asked[] = {SOFTWARE | RECEIVING, HARDWARE, SOFTWARE | RECEIVING | HARDWARE, 0};
    int port, fd = pair(&port);
    await_times(fd, port);
    for (int i = 0; i < 4; i++) {
        T(set_option(fd, SOL_SOCKET, SO_TIMESTAMPING, asked[i]));
        T(option(fd, SOL_SOCKET, SO_TIMESTAMPING));
        told("abc", fd);
        receive(fd, 0);
        /* Beside the older kind. */
        T(set_option(fd, SOL_SOCKET, SO_TIMESTAMPNS, 1));
        told("def", fd);
        receive(fd, 0);
        T(set_option(fd, SOL_SOCKET, SO_TIMESTAMPNS, 0));
    }
    T(set_option(fd, SOL_SOCKET, SO_TIMESTAMPING, -1));
    T(set_option(fd, SOL_SOCKET, SO_TIMESTAMPING, 1 << 30));
}

/* The same by the numbers that 32-bit programs with 64-bit time use. */
CASE(times_by_new_numbers) {
    enum { TIME = 63, TIME_NS, TIMING, SOFTWARE = 1 << 4, RECEIVING = 1 << 3 };
    int port, fd = pair(&port);
    T(set_option(fd, SOL_SOCKET, TIME, 1));
    T(option(fd, SOL_SOCKET, TIME));
    T(option(fd, SOL_SOCKET, SO_TIMESTAMP));
    told("abc", fd);
    receive(fd, 0);
    T(set_option(fd, SOL_SOCKET, TIME_NS, 1));
    T(option(fd, SOL_SOCKET, TIME_NS));
    told("def", fd);
    receive(fd, 0);
    T(set_option(fd, SOL_SOCKET, SO_TIMESTAMPNS, 1));
    told("ghi", fd);
    receive(fd, 0);
    T(set_option(fd, SOL_SOCKET, SO_TIMESTAMPNS, 0));
    T(set_option(fd, SOL_SOCKET, TIMING, SOFTWARE | RECEIVING));
    T(option(fd, SOL_SOCKET, TIMING));
    T(option(fd, SOL_SOCKET, SO_TIMESTAMPING));
    T(set_option(fd, SOL_SOCKET, TIMING, 0));
    T(option(fd, SOL_SOCKET, SO_TIMESTAMPING));
    struct timeval last;
    T(ioctl(fd, 0x8906 /* SIOCGSTAMP */, &last));
}

/* What no fragments shall be made of (IPV6_DONTFRAG). */
CASE(whole_datagrams) {
    if (!over_inet6) return;
    int port, fd = pair(&port);
    struct name to = name_of(peer, port);
    T(connect(fd, ADDRESS(to)));
    T(set_option(fd, IPPROTO_IPV6, IPV6_DONTFRAG, 1));
    T(option(fd, IPPROTO_IPV6, IPV6_DONTFRAG));
    T(send(fd, bytes, WHOLE + 1, 0));
    T(send(fd, bytes, WHOLE, 0));
    char space[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec one = {bytes, 3000};
    struct msghdr given = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    struct cmsghdr *head = CMSG_FIRSTHDR(&given);
    *head = (struct cmsghdr){CMSG_LEN(sizeof(int)), IPPROTO_IPV6, IPV6_DONTFRAG};
    T(sendmsg(fd, &given, 0));
    T(set_option(fd, IPPROTO_IPV6, IPV6_DONTFRAG, 0));
    T(send(fd, bytes, 3000, 0));
    memcpy(CMSG_DATA(head), &on, sizeof on);
    T(sendmsg(fd, &given, 0));
    T(set_option(fd, IPPROTO_IPV6, IPV6_MTU, 1300));
    T(set_option(fd, IPPROTO_IPV6, IPV6_RECVPATHMTU, 1));
}

/* SO_RCVBUF bounds what is held, as near as two ways of counting it come. */
/* By sendfile and splice what is moved at once is a datagram. */
CASE(moved_without_memory_between) {
    int port, fd = pair(&port), ends[2];
    char name[] = "/tmp/scoutline-moved-XXXXXX", bytes[16] = {0};
    int file = mkstemp(name);
    NEED(file >= 0 && unlink(name) == 0 && write(file, "0123456789", 10) == 10);
    struct name to = name_of(peer, port);
    NEED(pipe(ends) == 0 && connect(fd, ADDRESS(to)) == 0);
    off_t at = 2;
    T(sendfile(fd, file, &at, 4));
    T((int)at);
    tell("recvfrom D");
    NEED(lseek(file, 7, SEEK_SET) == 7);
    T(sendfile(fd, file, NULL, 3));
    tell("recvfrom D");
    T(sendfile(fd, file, NULL, 3));
    T((int)lseek(file, 0, SEEK_CUR));
    NEED(write(ends[1], "through", 7) == 7);
    T(splice(ends[0], NULL, fd, NULL, 100, 0));
    tell("recvfrom D");
    T(send(fd, "behind", 6, 0));
    tell("recvfrom D");
    told("abcdef", fd);
    told("second", fd);
    T(splice(fd, NULL, ends[1], NULL, 3, 0));
    T(read(ends[0], bytes, sizeof bytes));
    out("%.3s", bytes);
    T(splice(fd, NULL, ends[1], NULL, 100, 0));
    T(read(ends[0], bytes, sizeof bytes));
    out("%.6s", bytes);
    T(recv(fd, bytes, sizeof bytes, MSG_DONTWAIT));
    T(splice(fd, NULL, file, NULL, 100, 0));
    T(splice(file, NULL, fd, NULL, 100, 0));
    T(splice(fd, NULL, 900, NULL, 100, 0));
}

/* What splice cannot send stays in the pipe, and what it sends is out of it. */
CASE(moved_in_vain) {
    int port, fd = pair(&port), ends[2], left = 0, alone = socket(family, SOCK_DGRAM, 0);
    static char much[65536] = "sent and the rest";
    struct name to = name_of(peer, port);
    NEED(connect(fd, ADDRESS(to)) == 0);
    NEED(pipe(ends) == 0 && write(ends[1], much, sizeof much) == sizeof much);
    T(splice(ends[0], NULL, fd, NULL, 4, 0));
    tell("recvfrom D");
    NEED(ioctl(ends[0], FIONREAD, &left) == 0);
    T(left);
    T(splice(ends[0], NULL, alone, NULL, 100, 0));
    T(splice(ends[0], NULL, fd, NULL, sizeof much, 0));
    NEED(ioctl(ends[0], FIONREAD, &left) == 0);
    T(left);
}

CASE(small_buffers) {
    tell("bind D");
    for (int early = 0; early < 2; early++) {
        int fd = socket(family, SOCK_DGRAM, 0), held = 0;
        struct name here = name_of(own, 0);
        if (early) T(set_option(fd, SOL_SOCKET, SO_RCVBUF, 20000));
        NEED(bind(fd, ADDRESS(here)) == 0);
        if (!early) T(set_option(fd, SOL_SOCKET, SO_RCVBUF, 20000));
        T(option(fd, SOL_SOCKET, SO_RCVBUF));
        for (int i = 0; i < 120; i++) tell("sendto_long D %s %d 1000", own, port_of(fd));
        struct pollfd one = {fd, POLLIN, 0};
        while (poll(&one, 1, 200) == 1 && recv(fd, bytes, 1000, MSG_DONTWAIT) == 1000) held++;
        out("some, and few: %d", held > 5 && held < 60);
        close(fd);
    }
}

CASE(options_set_before_the_socket_is_bound) {
    int fd = socket(family, SOCK_DGRAM, 0);
    T(set_option(fd, RECVTTL, 1));
    T(set_option(fd, TTL, 9));
    T(set_option(fd, TOS, 0x20));
    int port = atoi(tell("bind D"));
    tell("ip D recvttl 1");
    tell("ip D recvtos 1");
    struct name name = name_of(own, 0), to = name_of(peer, port);
    T(bind(fd, ADDRESS(name)));
    T(sendto(fd, "early", 5, 0, ADDRESS(to)));
    tell("recvmsg D");
    told("abc", fd);
    receive(fd, 0);
    T(option(fd, TTL));
    T(option(fd, TOS));
}

CASE(control_messages_that_do_not_fit) {
    int port, fd = pair(&port);
    T(set_option(fd, PKTINFO, 1));
    T(set_option(fd, RECVTTL, 1));
    static const size_t rooms[] = {0, 8, 16, 20, 28, 32, 40, 48, 52, 56, 64};
    for (unsigned i = 0; i < sizeof rooms / sizeof *rooms; i++) {
        told("abc", fd);
        T(await(fd, POLLIN));
        room(2, rooms[i]);
        T(recvmsg(fd, &message, i % 2 ? MSG_TRUNC : 0));
        out("flags %x, %d beside", message.msg_flags, (int)message.msg_controllen);
    }
    told("abc", fd);
    T(await(fd, POLLIN));
    room(8, 64);
    message.msg_control = NULL;
    T(recvmsg(fd, &message, 0));
    out("flags %x, %d beside", message.msg_flags, (int)message.msg_controllen);
}

CASE(peeking_cutting_and_empty_datagrams) {
    int port, fd = pair(&port);
    T(set_option(fd, RECVTTL, 1));
    told("abcdef", fd);
    receive(fd, MSG_PEEK);
    T(recv(fd, bytes, 3, MSG_PEEK));
    T(recv(fd, bytes, 3, MSG_PEEK | MSG_TRUNC));
    int ready = 0;
    T(ioctl(fd, FIONREAD, &ready));
    out("%d ready", ready);
    room(3, 64);
    T(recvmsg(fd, &message, 0));
    show();
    tell("sendto_empty D %s %d", own, port_of(fd));
    T(await(fd, POLLIN));
    T(ioctl(fd, FIONREAD, &ready));
    out("%d ready", ready);
    receive(fd, 0);
    T(recv(fd, bytes, 10, MSG_DONTWAIT));
    struct name to = name_of(peer, port);
    T(sendto(fd, "", 0, 0, ADDRESS(to)));
    tell("recvmsg D");
    told("xyz", fd);
    T(await(fd, POLLIN));
    T(recvmsg(fd, room(0, 64), 0));
    show();
    T(recv(fd, bytes, 10, MSG_DONTWAIT | MSG_ERRQUEUE));
    T(recv(fd, bytes, 10, MSG_OOB | MSG_DONTWAIT));
    T(sendto(fd, "x", 1, MSG_OOB, ADDRESS(to)));
}

/* Sends with one control message. */
static long send_with(int fd, int port, int level, int type, const void *data, size_t len) {
    static struct name to;
    to = name_of(peer, port);
    part = (struct iovec){"said", 4};
    memset(beside, 0, sizeof beside);
    message = (struct msghdr){.msg_name = &to, .msg_namelen = sizeof to, .msg_iov = &part, .msg_iovlen = 1,
                              .msg_control = beside, .msg_controllen = CMSG_SPACE(len)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = level, c->cmsg_type = type, c->cmsg_len = CMSG_LEN(len);
    memcpy(CMSG_DATA(c), data, len);
    return sendmsg(fd, &message, 0);
}

/* Sends from an address, said by a control message that is so much too short. */
static long send_from(int fd, int port, const char *host, size_t missing) {
    struct name name = name_of(host, 0);
    struct in_pktinfo info = {.ipi_spec_dst = name.in.sin_addr};
    struct in6_pktinfo info6 = {.ipi6_addr = name.in6.sin6_addr};
    if (family == AF_INET6) return send_with(fd, port, IPPROTO_IPV6, IPV6_PKTINFO, &info6, sizeof info6 - missing);
    return send_with(fd, port, IPPROTO_IP, IP_PKTINFO, &info, sizeof info - missing);
}

CASE(what_is_said_beside_a_datagram) {
    int port, fd = pair(&port);
    static const int ttls[] = {5, 255, 0, 256, -1};
    for (int i = 0; i < 5; i++)
        if (T(send_with(fd, port, TTL_BESIDE, &ttls[i], 4)) > 0) tell("recvmsg D");
    static const int services[] = {0xb8, 0, 255, 256, -1};
    for (int i = 0; i < 5; i++)
        if (T(send_with(fd, port, TOS, &services[i], 4)) > 0) tell("recvmsg D");
    unsigned char octet = 0x28;
    if (T(send_with(fd, port, TOS, &octet, 1)) > 0) tell("recvmsg D");
    if (T(send_with(fd, port, TTL_BESIDE, &octet, 1)) > 0) tell("recvmsg D");
    if (T(send_with(fd, port, TOS, services, 2)) > 0) tell("recvmsg D");
    if (T(send_with(fd, port, OF_IP(99, 99), services, 4)) > 0) tell("recvmsg D");
    if (T(send_with(fd, port, SOL_SOCKET, 99, services, 4)) > 0) tell("recvmsg D");
    if (T(send_with(fd, port, IPPROTO_UDP, 99, services, 4)) > 0) tell("recvmsg D");
    if (T(send_with(fd, port, IPPROTO_IPV6, IPV6_TCLASS, services, 4)) > 0) tell("recvmsg D");
    if (T(send_from(fd, port, own, 0)) > 0) tell("recvmsg D");
    if (T(send_from(fd, port, own, 4)) > 0) tell("recvmsg D");
    if (T(send_from(fd, port, PICK("192.0.2.77", "2001:db8:99::77"), 0)) > 0) tell("recvmsg D");
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    c->cmsg_len = 4;
    T(sendmsg(fd, &message, 0));
    c->cmsg_len = 400;
    T(sendmsg(fd, &message, 0));
    message.msg_controllen = 8;
    if (T(sendmsg(fd, &message, 0)) > 0) tell("recvmsg D");
}

/* Sends by an interface, said by a control message. */
static long send_by(int fd, int port, unsigned interface) {
    struct in_pktinfo info = {.ipi_ifindex = interface};
    struct in6_pktinfo info6 = {.ipi6_ifindex = interface};
    if (family == AF_INET6) return send_with(fd, port, IPPROTO_IPV6, IPV6_PKTINFO, &info6, sizeof info6);
    return send_with(fd, port, IPPROTO_IP, IP_PKTINFO, &info, sizeof info);
}

/* The interface by which datagrams come. */
static unsigned own_interface(int fd) {
    NEED(set_option(fd, PKTINFO, 1) == 0);
    told("abc", fd);
    NEED(await(fd, POLLIN) == POLLIN && recvmsg(fd, room(8, 64), 0) == 3);
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    NEED(c);
    struct in_pktinfo info;
    struct in6_pktinfo info6;
    if (c->cmsg_level == IPPROTO_IPV6) return memcpy(&info6, CMSG_DATA(c), sizeof info6), info6.ipi6_ifindex;
    return memcpy(&info, CMSG_DATA(c), sizeof info), info.ipi_ifindex;
}

CASE(by_which_interface) {
    int port, fd = pair(&port);
    if (T(send_by(fd, port, own_interface(fd))) > 0) tell("recvmsg D");
    T(send_by(fd, port, 9999));
    T(send_by(fd, port, 0x7fffffff));
    T(send_by(fd, port, -1));
    if (T(send_by(fd, port, 0)) > 0) tell("recvmsg D");
}

CASE(addresses_that_do_not_fit) {
    int port, fd = pair(&port);
    struct name to = name_of(peer, port), none = to, other = to;
    none.family = AF_UNSPEC, other.family = AF_UNIX;
    /* The socket is one that sends to the other host. */
    if (T(sendto(fd, "x", 1, 0, ADDRESS(to))) > 0) tell("recvfrom D");
    static const int lengths[] = {0, 1, 2, 3, 15, 16, 23, 24, 27};
    for (int i = 0; i < 9; i++) {
        out("length %d", lengths[i]);
        for (const struct name *name = &other;; name = &none) {
            if (T(sendto(fd, "x", 1, 0, (struct sockaddr *)name, lengths[i])) > 0) tell("recvfrom D");
            if (name == &none) break;
            T(connect(fd, (struct sockaddr *)name, lengths[i]));
        }
    }
    struct iovec iov = {"y", 1};
    struct msghdr nobody = {.msg_name = &to, .msg_iov = &iov, .msg_iovlen = 1};
    T(sendmsg(fd, &nobody, 0));
}

CASE(options_of_streams) {
    int port, fd = pair(&port);
    T(option(fd, IPPROTO_TCP, TCP_NODELAY));
    T(set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1));
}

CASE(options_of_sending) {
    int port, fd = pair(&port);
    struct name to = name_of(peer, port);
    const int names[][2] = {{TTL}, {TOS}, {OF_IP(IP_MULTICAST_TTL, IPV6_MULTICAST_HOPS)},
                            {OF_IP(IP_MULTICAST_LOOP, IPV6_MULTICAST_LOOP)}, {MTU_DISCOVER}, {RECVERR},
                            {OF_IP(IP_MULTICAST_ALL, IPV6_MULTICAST_ALL)}};
    static const int values[] = {7, 0, 255, 256, -1, -2};
    for (int i = 0; i < 7; i++) {
        T(option(fd, names[i][0], names[i][1]));
        for (int j = 0; j < 6; j++) {
            T(set_option(fd, names[i][0], names[i][1], values[j]));
            T(option(fd, names[i][0], names[i][1]));
        }
    }
    T(set_option(fd, MTU_DISCOVER, IP_PMTUDISC_WANT));
    T(set_option(fd, TTL, 33));
    T(set_option(fd, TOS, 0x88));
    T(sendto(fd, "set", 3, 0, ADDRESS(to)));
    tell("recvmsg D");
    int ttl = 34;
    T(send_with(fd, port, TTL_BESIDE, &ttl, 4));
    tell("recvmsg D");
    T(set_option(fd, TTL, -1));
    T(sendto(fd, "back", 4, 0, ADDRESS(to)));
    tell("recvmsg D");
    T(option(fd, OF_IP(IP_MTU, IPV6_MTU)));
    T(connect(fd, ADDRESS(to)));
    T(option(fd, OF_IP(IP_MTU, IPV6_MTU)));
}

CASE(many_at_once) {
    int port, fd = pair(&port);
    struct name to = name_of(peer, port);
    char texts[3][8] = {"one", "two", "three"};
    struct iovec parts[4];
    struct mmsghdr messages[4];
    memset(messages, 0, sizeof messages);
    for (int i = 0; i < 3; i++) {
        parts[i] = (struct iovec){texts[i], strlen(texts[i])};
        messages[i].msg_hdr = (struct msghdr){.msg_name = &to, .msg_namelen = sizeof to, .msg_iov = &parts[i], .msg_iovlen = 1};
    }
    T(sendmmsg(fd, messages, 3, 0));
    for (int i = 0; i < 3; i++) {
        out("sent %u", messages[i].msg_len);
        tell("recvfrom D");
    }
    messages[1].msg_hdr.msg_name = NULL;
    T(sendmmsg(fd, messages, 3, 0));
    tell("recvfrom D");
    T(sendmmsg(fd, messages + 1, 2, 0));
    T(sendmmsg(fd, messages, 0, 0));
    T(set_option(fd, RECVTTL, 1));
    told("alpha", fd);
    told("beta", fd);
    char in[4][16], controls[4][64];
    for (int i = 0; i < 4; i++) {
        parts[i] = (struct iovec){in[i], 4};
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &parts[i], .msg_iovlen = 1, .msg_control = controls[i], .msg_controllen = 64};
    }
    struct timespec limit = {0, 300000000};
    T(recvmmsg(fd, messages, 2, 0, NULL));
    for (int i = 0; i < 2; i++)
        out("got %u flags %x beside %d: %.4s", messages[i].msg_len, messages[i].msg_hdr.msg_flags,
            (int)messages[i].msg_hdr.msg_controllen, in[i]);
    told("gamma", fd);
    T(await(fd, POLLIN));
    T(recvmmsg(fd, messages, 4, MSG_WAITFORONE, NULL));
    T(recvmmsg(fd, messages, 4, MSG_DONTWAIT, NULL));
    limit.tv_nsec = 2000000000;
    T(recvmmsg(fd, messages, 1, MSG_DONTWAIT, &limit));
}

CASE(one_send_of_several_datagrams) {
    int port, fd = pair(&port);
    struct name to = name_of(peer, port);
    static const int sizes[] = {4, 0, -1, 65535, 65536};
    for (int i = 0; i < 5; i++) {
        T(set_option(fd, IPPROTO_UDP, SEGMENT, sizes[i]));
        T(option(fd, IPPROTO_UDP, SEGMENT));
    }
    T(set_option(fd, IPPROTO_UDP, SEGMENT, 4));
    T(sendto(fd, "abcdefghij", 10, 0, ADDRESS(to)));
    for (int i = 0; i < 3; i++) tell("recvmsg D");
    T(sendto(fd, "abc", 3, 0, ADDRESS(to)));
    tell("recvmsg D");
    T(sendto(fd, "abcd", 4, 0, ADDRESS(to)));
    tell("recvmsg D");
    T(sendto(fd, "", 0, 0, ADDRESS(to)));
    tell("recvmsg D");
    T(set_option(fd, IPPROTO_UDP, SEGMENT, 0));
    unsigned short size = 2;
    T(send_with(fd, port, IPPROTO_UDP, SEGMENT, &size, 2));
    for (int i = 0; i < 2; i++) tell("recvmsg D");
    T(send_with(fd, port, IPPROTO_UDP, SEGMENT, &size, 1));
    int wide = 2;
    T(send_with(fd, port, IPPROTO_UDP, SEGMENT, &wide, 4));
    T(set_option(fd, IPPROTO_UDP, SEGMENT, WHOLE));
    memset(bytes, 'z', sizeof bytes);
    T(sendto(fd, bytes, 5000, 0, ADDRESS(to)));
    for (int i = 0; i < 4; i++) tell("recvmsg D");
    T(set_option(fd, IPPROTO_UDP, SEGMENT, WHOLE + 1));
    T(sendto(fd, bytes, 5000, 0, ADDRESS(to)));
    T(sendto(fd, bytes, 1400, 0, ADDRESS(to)));
    tell("recvmsg D");
    T(set_option(fd, IPPROTO_UDP, SEGMENT, 10));
    T(sendto(fd, bytes, 1281, 0, ADDRESS(to)));
    T(sendto(fd, bytes, 640, 0, ADDRESS(to)));
    for (int i = 0; i < 64; i++) NEED(!strncmp(tell("recvfrom D"), "zzzzzzzzzz", 10));
    T(sendto(fd, bytes, LONGEST + 1, 0, ADDRESS(to)));
}

CASE(several_datagrams_in_one_receive) {
    int port, fd = pair(&port);
    tell("option D 17 103 100");
    tell("sendto_long D %s %d 250", own, port_of(fd));
    for (int i = 0; i < 3; i++) receive(fd, 0);
    T(set_option(fd, IPPROTO_UDP, GRO, 1));
    T(option(fd, IPPROTO_UDP, GRO));
    tell("sendto_long D %s %d 250", own, port_of(fd));
    receive(fd, 0);
    out("%.3s %.3s %.3s", bytes, bytes + 100, bytes + 200);
    tell("sendto_long D %s %d 60000", own, port_of(fd));
    tell("option D 17 103 0");
    tell("sendto_long D %s %d 50", own, port_of(fd));
    T(set_option(fd, IPPROTO_UDP, GRO, 0));
}

/* The pending error, once there is one. */
static int error_soon(int fd) {
    for (int i = 0; i < SOON_MS; i++) {
        int error = option(fd, SOL_SOCKET, SO_ERROR);
        if (error) return error;
        poll(NULL, 0, 1);
    }
    return 0;
}

/* A port of the other host where nobody is. */
static int closed_port(void) {
    int port = atoi(tell("bind X"));
    tell("close X");
    return port;
}

static void refused(int fd, int port) {
    struct name to = name_of(peer, port);
    T(connect(fd, ADDRESS(to)));
    T(send(fd, "nobody", 6, 0));
}

CASE(a_refused_datagram) {
    int fd = socket(family, SOCK_DGRAM, 0), port = closed_port();
    struct name name = name_of(own, 0);
    T(bind(fd, ADDRESS(name)));
    refused(fd, port);
    struct pollfd one = {fd, POLLERR, 0};
    T(poll(&one, 1, REFUSED_MS));
    T(now_has(fd, POLLIN | POLLOUT));
    T(option(fd, SOL_SOCKET, SO_ERROR));
    T(option(fd, SOL_SOCKET, SO_ERROR));
    T(send(fd, "again", 5, 0));
    T(recv(fd, bytes, 10, 0));
    T(send(fd, "again", 5, 0));
    T(poll(&one, 1, REFUSED_MS));
    T(send(fd, "told", 4, 0));
    T(recv(fd, bytes, 10, MSG_DONTWAIT));
}

CASE(a_refusal_that_concerns_nobody) {
    int fd = socket(family, SOCK_DGRAM, 0), port = closed_port(), d;
    int other = pair(&d);
    struct name name = name_of(own, 0), to = name_of(peer, port);
    T(bind(fd, ADDRESS(name)));
    T(sendto(fd, "nobody", 6, 0, ADDRESS(to)));
    settle();
    T(now_has(fd, POLLIN));
    T(recv(fd, bytes, 10, MSG_DONTWAIT));
    T(option(fd, SOL_SOCKET, SO_ERROR));
    T(option(other, SOL_SOCKET, SO_ERROR));
}

CASE(the_queue_of_errors) {
    int fd = socket(family, SOCK_DGRAM, 0), port = closed_port();
    struct name name = name_of(own, 0), to = name_of(peer, port);
    T(bind(fd, ADDRESS(name)));
    T(set_option(fd, RECVERR, 1));
    T(sendto(fd, "nobody", 6, 0, ADDRESS(to)));
    struct pollfd one = {fd, POLLIN | POLLOUT, 0};
    T(poll(&(struct pollfd){fd, 0, 0}, 1, REFUSED_MS));
    T(poll(&one, 1, 0));
    out("events %x", one.revents);
    room(sizeof bytes, sizeof beside);
    T(recvmsg(fd, &message, MSG_ERRQUEUE));
    show();
    out("%.6s, was for %s %s", bytes, host_of(&from), ntohs(from.port) == port ? "there" : "elsewhere");
    T(option(fd, SOL_SOCKET, SO_ERROR));
    T(poll(&(struct pollfd){fd, POLLIN, 0}, 1, 0));
    T(recvmsg(fd, room(10, 64), MSG_ERRQUEUE));
    T(recvmsg(fd, room(10, 64), MSG_ERRQUEUE | MSG_DONTWAIT));
    for (int i = 0; i < 2; i++) {
        T(sendto(fd, i ? "second" : "first", 6 - !i, 0, ADDRESS(to)));
        T(error_soon(fd));
    }
    T(recv(fd, bytes, 10, MSG_DONTWAIT));
    room(3, sizeof beside);
    T(recvmsg(fd, &message, MSG_ERRQUEUE));
    out("flags %x %.3s", message.msg_flags, bytes);
    T(option(fd, SOL_SOCKET, SO_ERROR));
    room(sizeof bytes, 20);
    T(recvmsg(fd, &message, MSG_ERRQUEUE));
    out("flags %x, %d beside", message.msg_flags, (int)message.msg_controllen);
    T(recvmsg(fd, room(10, 64), MSG_ERRQUEUE));
    T(connect(fd, ADDRESS(to)));
    T(send(fd, "third", 5, 0));
    T(poll(&(struct pollfd){fd, 0, 0}, 1, REFUSED_MS));
    T(recv(fd, bytes, 10, MSG_DONTWAIT));
    room(sizeof bytes, sizeof beside);
    T(recvmsg(fd, &message, MSG_ERRQUEUE));
    show();
}

CASE(what_is_too_long) {
    int port, fd = pair(&port);
    struct name to = name_of(peer, port);
    memset(bytes, 'q', sizeof bytes);
    T(sendto(fd, bytes, LONGEST + 1, 0, ADDRESS(to)));
    T(sendto(fd, bytes, 3000, 0, ADDRESS(to)));
    tell("recvmsg D");
    T(set_option(fd, RECVERR, 1));
    static const int ways[] = {IP_PMTUDISC_DONT, IP_PMTUDISC_WANT, IP_PMTUDISC_DO, IP_PMTUDISC_PROBE, 4, 5};
    for (int i = 0; i < 6; i++) {
        T(set_option(fd, MTU_DISCOVER, ways[i]));
        if (T(sendto(fd, bytes, WHOLE, 0, ADDRESS(to))) > 0) tell("recvmsg D");
        if (T(sendto(fd, bytes, WHOLE + 1, 0, ADDRESS(to))) > 0) tell("recvmsg D");
        room(10, sizeof beside);
        while (recvmsg(fd, &message, MSG_ERRQUEUE) >= 0) show(), room(10, sizeof beside);
        T(option(fd, SOL_SOCKET, SO_ERROR));
    }
    T(set_option(fd, MTU_DISCOVER, 6));
}

CASE(made_by_several_calls) {
    int port, fd = pair(&port), other = atoi(tell("bind E"));
    struct name to = name_of(peer, port), elsewhere = name_of(peer, other);
    T(sendto(fd, "ab", 2, MSG_MORE, ADDRESS(to)));
    T(sendto(fd, "cd", 2, MSG_MORE, ADDRESS(elsewhere)));
    T(sendto(fd, "ef", 2, 0, ADDRESS(to)));
    tell("recvmsg D");
    T(connect(fd, ADDRESS(to)));
    T(set_option(fd, IPPROTO_UDP, UDP_CORK, 1));
    T(option(fd, IPPROTO_UDP, UDP_CORK));
    T(send(fd, "12", 2, 0));
    T(write(fd, "34", 2));
    T(send(fd, "", 0, 0));
    pid_t child = fork();
    if (child == 0) _exit(send(fd, "56", 2, 0) != 2);
    int status;
    waitpid(child, &status, 0);
    T(status);
    T(set_option(fd, IPPROTO_UDP, UDP_CORK, 0));
    tell("recvmsg D");
    T(option(fd, IPPROTO_UDP, UDP_CORK));
    T(send(fd, "", 0, MSG_MORE));
    T(send(fd, "", 0, 0));
    tell("recvmsg D");
    T(close(fd));
}

CASE(made_by_several_calls_too_long) {
    int port, fd = pair(&port);
    struct name to = name_of(peer, port);
    T(sendto(fd, bytes, 60000, MSG_MORE, ADDRESS(to)));
    T(sendto(fd, bytes, 60000, 0, ADDRESS(to)));
    T(sendto(fd, "alone", 5, 0, ADDRESS(to)));
    tell("recvmsg D");
    /* More than any datagram has, to IPv4, is refused before it is added. */
    if (!over_inet6) {
        T(sendto(fd, "held", 4, MSG_MORE, ADDRESS(to)));
        T(sendto(fd, bytes, 0x10000, 0, ADDRESS(to)));
        T(sendto(fd, "back", 4, 0, ADDRESS(to)));
        tell("recvmsg D");
    }
    T(sendto(fd, bytes, 1000, MSG_MORE, ADDRESS(to)));
    T(sendto(fd, bytes, 2000, 0, ADDRESS(to)));
    tell("recvmsg D");
    /* Cut into segments as one. */
    T(set_option(fd, IPPROTO_UDP, SEGMENT, 4));
    T(sendto(fd, "abc", 3, MSG_MORE, ADDRESS(to)));
    T(sendto(fd, "def", 3, 0, ADDRESS(to)));
    tell("recvmsg D");
    tell("recvmsg D");
    T(set_option(fd, IPPROTO_UDP, SEGMENT, 0));
}

/* Of a connected socket, by MSG_MORE alone. */
CASE(made_by_several_calls_without_a_name) {
    int port, fd = pair(&port);
    struct name to = name_of(peer, port);
    T(connect(fd, ADDRESS(to)));
    T(send(fd, "ab", 2, MSG_MORE));
    T(send(fd, "cd", 2, 0));
    tell("recvmsg D");
    struct iovec halves[2] = {{"fi", 2}, {"rst", 3}};
    struct mmsghdr both[2] = {{.msg_hdr = {.msg_iov = halves, .msg_iovlen = 1}},
                              {.msg_hdr = {.msg_iov = halves + 1, .msg_iovlen = 1}}};
    T(sendmmsg(fd, both, 2, MSG_MORE));
    T(send(fd, "!", 1, 0));
    tell("recvmsg D");
}

/* Corked while nobody knows yet whose it is. */
CASE(corked_before_the_socket_is_bound) {
    int fd = socket(family, SOCK_DGRAM, 0);
    T(set_option(fd, IPPROTO_UDP, UDP_CORK, 1));
    struct name to = name_of(peer, atoi(tell("bind D")));
    T(connect(fd, ADDRESS(to)));
    T(send(fd, "ab", 2, 0));
    T(send(fd, "cd", 2, 0));
    T(set_option(fd, IPPROTO_UDP, UDP_CORK, 0));
    tell("recvfrom D");
}

CASE(shut_and_connected_no_longer) {
    int port, fd = pair(&port), other = socket(family, SOCK_DGRAM, 0);
    struct name to = name_of(peer, port);
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    T(connect(fd, ADDRESS(to)));
    T(shutdown(fd, SHUT_RD));
    T(recv(fd, bytes, 1, MSG_DONTWAIT));
    T(recv(fd, bytes, 1, 0));
    T(connect(other, ADDRESS(to)));
    T(port_of(other) > 0);
    T(connect(other, &none, sizeof none));
    out("a port: %d", port_of(other) > 0);
    socklen_t len = sizeof to;
    to.port = 0;
    T(connect(other, ADDRESS(to)));
    T(getpeername(other, (struct sockaddr *)&to, &len));
}

/* The call fails, and the socket is shut. */
CASE(shut_without_a_peer) {
    int port, one = pair(&port), other = pair(&port);
    struct name to = name_of(peer, port);
    T(shutdown(one, SHUT_WR));
    T(now_has(one, POLLIN | POLLOUT | POLLRDHUP));
    T(sendto(one, "x", 1, MSG_NOSIGNAL, ADDRESS(to)));
    T(shutdown(other, SHUT_RD));
    T(now_has(other, POLLIN | POLLOUT | POLLRDHUP));
    T(recv(other, bytes, 1, MSG_DONTWAIT));
    T(recv(other, bytes, 1, 0));
    T(sendto(other, "x", 1, 0, ADDRESS(to)));
    T(shutdown(other, SHUT_RDWR));
    T(now_has(other, POLLIN | POLLOUT | POLLRDHUP));
    T(connect(other, ADDRESS(to)));
    T(send(other, "x", 1, MSG_NOSIGNAL));
}

static void *shut_soon(void *fd) {
    usleep(50000);
    shutdown(*(int *)fd, SHUT_RDWR);
    return NULL;
}

/* In a call with an address, and in one without. */
CASE(shut_while_another_thread_receives) {
    for (int with_address = 0; with_address < 2; with_address++) {
        int port, fd = pair(&port);
        struct name from = {0};
        socklen_t len = sizeof from;
        pthread_t thread;
        pthread_create(&thread, NULL, shut_soon, &fd);
        if (with_address) {
            T(recvfrom(fd, bytes, 10, 0, (struct sockaddr *)&from, &len));
            T(recvfrom(fd, bytes, 10, MSG_DONTWAIT, (struct sockaddr *)&from, &len));
        } else {
            T(recv(fd, bytes, 10, 0));
        }
        pthread_join(thread, NULL);
    }
}

static volatile sig_atomic_t pipes;

static void on_pipe(int number) { pipes += number == SIGPIPE; }

/* EPIPE comes without SIGPIPE: that is for streams. */
CASE(sent_after_it_is_shut) {
    int port, fd = pair(&port);
    struct name to = name_of(peer, port);
    struct sigaction action = {.sa_handler = on_pipe}, before;
    NEED(sigaction(SIGPIPE, &action, &before) == 0);
    T(connect(fd, ADDRESS(to)));
    T(shutdown(fd, SHUT_WR));
    T(send(fd, "x", 1, 0));
    T(write(fd, "x", 1));
    T(send(fd, "x", 1, MSG_NOSIGNAL));
    T(sendto(fd, "x", 1, 0, ADDRESS(to)));
    out("signals: %d", pipes);
    NEED(sigaction(SIGPIPE, &before, NULL) == 0);
}

/* What a socket that is bound to a port at every address says of itself while it is connected, and after. */
CASE(names_while_connected) {
    int port, unused = pair(&port), fd = socket(family, SOCK_DGRAM, 0);
    struct name to = name_of(peer, port), name = name_of(family == AF_INET ? "0.0.0.0" : "::", 7140);
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    socklen_t len = sizeof name;
    NEED(unused >= 0);
    T(bind(fd, ADDRESS(name)));
    for (int i = 0; i < 2; i++) {
        T(getsockname(fd, (struct sockaddr *)&name, &len));
        out("at %s port %d", host_of(&name), ntohs(name.port));
        T(getpeername(fd, (struct sockaddr *)&name, &len));
        T(connect(fd, ADDRESS(to)));
        T(getsockname(fd, (struct sockaddr *)&name, &len));
        out("at %s port %d", host_of(&name), ntohs(name.port));
        T(getpeername(fd, (struct sockaddr *)&name, &len));
        out("to %s, same port %d", host_of(&name), ntohs(name.port) == port);
        T(connect(fd, &none, sizeof none));
    }
    T(getsockname(fd, (struct sockaddr *)&name, &len));
    out("at %s port %d", host_of(&name), ntohs(name.port));
}

CASE(a_connected_socket_sends_elsewhere) {
    int port, fd = pair(&port);
    int other = atoi(tell("bind E"));
    struct name to = name_of(peer, port), elsewhere = name_of(peer, other);
    T(connect(fd, ADDRESS(to)));
    T(send(fd, "here", 4, 0));
    T(sendto(fd, "there", 5, 0, ADDRESS(elsewhere)));
    tell("recvfrom D");
    tell("recvfrom E");
    tell("sendto E %s %d unasked", own, port_of(fd));
    told("asked", fd);
    T(await(fd, POLLIN));
    T(recv(fd, bytes, 10, 0));
    T(recv(fd, bytes, 10, MSG_DONTWAIT));
}

CASE(a_connected_socket_sends_to_this_machine) {
    int port, fd = pair(&port), here = socket(family, SOCK_DGRAM, 0);
    struct name to = name_of(peer, port), at = name_of(own, 0);
    T(bind(here, ADDRESS(at)));
    at = name_of(own, port_of(here));
    T(set_option(here, PKTINFO, 1));
    T(connect(fd, ADDRESS(to)));
    for (int i = 0; i < 2; i++) {
        T(sendto(fd, "there", 5, 0, ADDRESS(at)));
        receive(here, 0);
        T(ntohs(from.port) == port_of(fd));
        T(send(fd, "peer", 4, 0));
        tell("recvfrom D");
    }
    /* Its own are its peer's alone. */
    at = name_of(own, port_of(fd));
    T(sendto(here, "unasked", 7, 0, ADDRESS(at)));
    told("asked", fd);
    T(await(fd, POLLIN));
    T(recv(fd, bytes, 10, 0));
    T(recv(fd, bytes, 10, MSG_DONTWAIT));
}

/* A port is free as soon as its socket is closed. */
CASE(bound_again_at_once) {
    int port, kept = pair(&port), in_use[3] = {0};
    struct name to = name_of(peer, port), at = name_of(own, 0);
    int fd = socket(family, SOCK_DGRAM, 0);
    NEED(bind(fd, ADDRESS(at)) == 0);
    at = name_of(own, port_of(fd));
    close(fd);
    for (int i = 0; i < 300; i++) {
        fd = socket(family, SOCK_DGRAM, 0);
        if (bind(fd, ADDRESS(at)) < 0) in_use[i % 3]++;
        if (i % 3 == 0) sendto(fd, "unread", 6, 0, ADDRESS(at));
        if (i % 3 == 1) connect(fd, ADDRESS(to));
        close(fd);
    }
    out("in use: %d %d %d", in_use[0], in_use[1], in_use[2]);
    close(kept);
}

/* What a killed process had is free as soon as it has been waited for. */
CASE(bound_again_behind_a_killed_process) {
    struct name at = name_of(own, 0);
    int fd = socket(family, SOCK_DGRAM, 0), in_use = 0, ends[2];
    NEED(bind(fd, ADDRESS(at)) == 0 && pipe(ends) == 0);
    at = name_of(own, port_of(fd));
    close(fd);
    for (int i = 0; i < 30; i++) {
        pid_t child = fork();
        if (child == 0) {
            fd = socket(family, SOCK_DGRAM, 0);
            char bound = bind(fd, ADDRESS(at)) == 0 ? 'y' : 'n';
            NEED(write(ends[1], &bound, 1) == 1);
            for (;;) pause();
        }
        char bound;
        NEED(read(ends[0], &bound, 1) == 1 && kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
        fd = socket(family, SOCK_DGRAM, 0);
        in_use += bound != 'y' || bind(fd, ADDRESS(at)) < 0;
        close(fd);
    }
    out("in use: %d", in_use);
}

/* No more than 1,024 at a time, but as many. */
CASE(more_at_once_than_may_be) {
    int fd = socket(family, SOCK_DGRAM, 0), to = socket(family, SOCK_DGRAM, 0);
    struct name at = name_of(own, 0);
    NEED(bind(to, ADDRESS(at)) == 0);
    at = name_of(own, port_of(to));
    static struct mmsghdr messages[1100];
    struct iovec piece = {"x", 1};
    for (int i = 0; i < 1100; i++)
        messages[i].msg_hdr = (struct msghdr){.msg_name = &at, .msg_namelen = name_size(&at), .msg_iov = &piece, .msg_iovlen = 1};
    T(sendmmsg(fd, messages, 1024, 0));
    T(sendmmsg(fd, messages, 1025, 0));
    T(sendmmsg(fd, messages, 1100, 0));
}

/* It is there when the stream says that it was sent: nobody waits for it. */
CASE(the_last_that_was_bound_gets_it) {
    struct name name = name_of(own, 0);
    int sockets[3];
    for (int i = 0; i < 3; i++) {
        sockets[i] = socket(family, SOCK_DGRAM, 0);
        T(set_option(sockets[i], SOL_SOCKET, SO_REUSEADDR, 1));
        T(bind(sockets[i], ADDRESS(name)));
        name = name_of(own, port_of(sockets[0]));
    }
    tell("bind D");
    for (int last = 2; last > 0; last--) {
        told("x", sockets[0]);
        for (int i = 0; i <= last; i++) T(recv(sockets[i], bytes, 9, MSG_DONTWAIT));
        close(sockets[last]);
    }
}

static struct name anywhere(void) {
    struct name any = name_of(own, 0);
    if (family == AF_INET6) any.in6.sin6_addr = in6addr_any;
    else any.in.sin_addr.s_addr = INADDR_ANY;
    return any;
}

/* Who has not chosen his port may tell it to others. */
CASE(a_port_that_was_not_chosen) {
    struct name any = anywhere();
    int fd = socket(family, SOCK_DGRAM, 0);
    T(bind(fd, ADDRESS(any)));
    tell("bind D");
    told("first", fd);
    T(await(fd, POLLIN));
    T(recv(fd, bytes, 20, MSG_DONTWAIT));
    T(bind(fd, ADDRESS(any)));
    struct name nowhere = name_of(own, port_of(fd));
    T(connect(fd, ADDRESS(nowhere)));
}

/* And who then sends elsewhere is answered there, at the same port. */
CASE(a_port_that_was_not_chosen_elsewhere) {
    struct name any = anywhere(), loopback = name_of(PICK(family == AF_INET ? "127.0.0.1" : "::ffff:127.0.0.1", "::1"), 0);
    for (int way = 0; way < 3; way++) {
        int fd = socket(family, SOCK_DGRAM, 0), there = socket(family, SOCK_DGRAM, 0);
        NEED(bind(there, ADDRESS(loopback)) == 0 && bind(fd, ADDRESS(any)) == 0);
        struct name to = loopback;
        to.in.sin_port = htons(port_of(there)); /* where IPv6 has it, too */
        int port = port_of(fd);
        struct iovec piece = {"asks", 4};
        struct msghdr asks = {.msg_name = &to, .msg_namelen = name_size(&to), .msg_iov = &piece, .msg_iovlen = 1};
        if (way == 0) T(sendto(fd, "asks", 4, 0, ADDRESS(to)));
        if (way == 1) T(sendmsg(fd, &asks, 0));
        if (way == 2) { T(connect(fd, ADDRESS(to))); T(send(fd, "asks", 4, 0)); }
        T(await(there, POLLIN));
        socklen_t len = sizeof from;
        T(recvfrom(there, bytes, 20, MSG_DONTWAIT, (struct sockaddr *)&from, &len));
        out("from its port: %d", ntohs(from.in.sin_port) == port && port == port_of(fd));
        T(sendto(there, "answers", 7, 0, (struct sockaddr *)&from, len));
        T(await(fd, POLLIN));
        T(recv(fd, bytes, 20, MSG_DONTWAIT));
        close(fd);
        close(there);
    }
}

/* Where no way leads nothing is sent, whatever the socket has done before. */
CASE(no_way_leads_there) {
    struct name nowhere = name_of(PICK("203.0.113.9", "3fff::9"), 53), any = anywhere();
    struct name to = name_of(peer, atoi(tell("bind D")));
    struct iovec piece = {"x", 1};
    struct mmsghdr two[2];
    for (int i = 0; i < 2; i++)
        two[i].msg_hdr = (struct msghdr){.msg_name = i ? &nowhere : &to, .msg_namelen = name_size(&to), .msg_iov = &piece, .msg_iovlen = 1};
    for (int way = 0; way < 3; way++) {
        int fd = socket(family, SOCK_DGRAM, 0);
        if (way == 1) NEED(bind(fd, ADDRESS(any)) == 0);
        if (way == 2) T(connect(fd, ADDRESS(to)));
        T(sendto(fd, "x", 1, 0, ADDRESS(to)));
        T(sendto(fd, "x", 1, 0, ADDRESS(nowhere)));
        T(sendmsg(fd, &two[1].msg_hdr, 0));
        T(sendmmsg(fd, two, 2, 0));
        T(connect(fd, ADDRESS(nowhere)));
        /* Who had a peer has it still. */
        T(send(fd, "x", 1, 0));
        close(fd);
    }
}

/* What is left of the time is told after each, and nothing where none came. */
CASE(time_that_is_left) {
    struct name at = name_of(own, 0);
    int fd = socket(family, SOCK_DGRAM, 0);
    NEED(bind(fd, ADDRESS(at)) == 0);
    tell("bind D");
    struct mmsghdr all[4];
    static char space[4][16];
    struct iovec pieces[4];
    for (int i = 0; i < 4; i++) {
        pieces[i] = (struct iovec){space[i], 16};
        all[i].msg_hdr = (struct msghdr){.msg_iov = &pieces[i], .msg_iovlen = 1};
    }
    struct timespec left = {100, 0};
    T(recvmmsg(fd, all, 4, MSG_DONTWAIT, &left));
    out("%ld s", (long)left.tv_sec);
    told("x", fd);
    T(recvmmsg(fd, all, 4, MSG_WAITFORONE, &left));
    out("%ld s, %s", (long)left.tv_sec, left.tv_nsec ? "some" : "none");
    told("x", fd);
    left = (struct timespec){0, 1};
    T(recvmmsg(fd, all, 4, 0, &left));
    out("%ld s, %ld ns", (long)left.tv_sec, left.tv_nsec);
    left.tv_nsec = -1;
    T(recvmmsg(fd, all, 4, 0, &left));
}
