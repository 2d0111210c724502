/* Control messages that a program gives to `sendmsg`: which are taken, which refuse the call, and when that is looked at.
 * And what a program may ask for instead of getting it beside a datagram: when the last one came, what the way carries.
 */
#include "compare.h"

static int started(const char *role) { return role == NULL; }

enum { ROOM = 256, GOOD = 1, BAD = 9999 };

static char room[ROOM];
static size_t used;

/* Puts a message behind those that are there, with `len` bytes of zeros, or of `value` if that is not 0. */
static void add(int level, int kind, size_t len, int value) {
    struct cmsghdr *one = (void *)(room + used);
    one->cmsg_level = level;
    one->cmsg_type = kind;
    one->cmsg_len = CMSG_LEN(len);
    memset(CMSG_DATA(one), 0, len);
    if (value) memcpy(CMSG_DATA(one), &value, sizeof value < len ? sizeof value : len);
    used += CMSG_SPACE(len);
}

static void give_all(int fd, const char *what, size_t len, int flags) {
    char byte = 'x';
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = len};
    errno = 0;
    long result = sendmsg(fd, &message, flags);
    out("%s: %ld %s", what, result, result < 0 ? strerrorname_np(errno) : "");
}

static void give(int fd, const char *what) { give_all(fd, what, used, 0); }

#define ONE(fd, level, kind, len, value)                                                                               \
    do {                                                                                                               \
        used = 0;                                                                                                      \
        add(level, kind, len, value);                                                                                  \
        give(fd, #level " " #kind " " #len " " #value);                                                                \
    } while (0)

static void levels_and_kinds(int fd) {
    static const size_t lengths[] = {0, 1, 2, 4, 8, 12, 16};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        out("with %zu bytes", lengths[i]);
        ONE(fd, SOL_SOCKET, SCM_RIGHTS, lengths[i], 0);
        ONE(fd, SOL_SOCKET, SCM_CREDENTIALS, lengths[i], 0);
        ONE(fd, SOL_SOCKET, SO_MARK, lengths[i], 0);
        ONE(fd, SOL_SOCKET, SO_MARK, lengths[i], 5);
        ONE(fd, SOL_SOCKET, SO_PRIORITY, lengths[i], 0);
        ONE(fd, SOL_SOCKET, SO_PRIORITY, lengths[i], 3);
        ONE(fd, SOL_SOCKET, SO_PRIORITY, lengths[i], 77);
        ONE(fd, SOL_SOCKET, 37 /* SO_TIMESTAMPING_OLD */, lengths[i], 0);
        ONE(fd, SOL_SOCKET, 37, lengths[i], 2);
        ONE(fd, SOL_SOCKET, 37, lengths[i], 0x303);
        ONE(fd, SOL_SOCKET, 37, lengths[i], 0x80000);
        ONE(fd, SOL_SOCKET, 37, lengths[i], 8);
        ONE(fd, SOL_SOCKET, 65 /* SO_TIMESTAMPING_NEW */, lengths[i], 2);
        ONE(fd, SOL_SOCKET, SO_TIMESTAMP, lengths[i], 1);
        ONE(fd, SOL_SOCKET, SO_TXTIME, lengths[i], 0);
        ONE(fd, SOL_SOCKET, 80, lengths[i], 0);
        ONE(fd, SOL_SOCKET, 81 /* SCM_TS_OPT_ID */, lengths[i], 0);
        ONE(fd, SOL_SOCKET, 82, lengths[i], 0);
        ONE(fd, SOL_SOCKET, BAD, lengths[i], 0);
        ONE(fd, SOL_SOCKET, 0, lengths[i], 0);
        ONE(fd, IPPROTO_IP, IP_TTL, lengths[i], 3);
        ONE(fd, IPPROTO_IP, BAD, lengths[i], 3);
        ONE(fd, IPPROTO_IPV6, IPV6_TCLASS, lengths[i], 3);
        ONE(fd, IPPROTO_TCP, GOOD, lengths[i], 3);
        ONE(fd, IPPROTO_UDP, 103, lengths[i], 3);
        ONE(fd, BAD, GOOD, lengths[i], 3);
    }
}

CASE(control_messages_of_streams) {
    int fd = connected("A");
    levels_and_kinds(fd);
    T(setresuid(65534, 65534, 65534));
    out("as nobody");
    levels_and_kinds(fd);
    T(shutdown(fd, SHUT_WR));
    tell("drain A");
}

CASE(control_messages_of_datagrams) {
    int fd = socket(family, SOCK_DGRAM, 0);
    struct name there = name_of(peer, atoi(tell("bind B")));
    NEED(connect(fd, ADDRESS(there)) == 0);
    levels_and_kinds(fd);
    T(setresuid(65534, 65534, 65534));
    out("as nobody");
    levels_and_kinds(fd);
}

/* Lengths in front that do not fit what is there. */
CASE(lengths_of_control_messages) {
    int fd = connected("A");
    struct cmsghdr *one = (void *)room, *two = (void *)(room + CMSG_SPACE(4));
    for (size_t len = 0; len <= 40; len++) {
        used = 0;
        add(SOL_SOCKET, BAD, 4, 0);
        one->cmsg_len = len;
        char what[64];
        snprintf(what, sizeof what, "length %zu of a bad one", len);
        give(fd, what);
        one->cmsg_level = IPPROTO_IP;
        snprintf(what, sizeof what, "length %zu of another level", len);
        give(fd, what);
    }
    for (size_t len = 0; len <= 60; len++) {
        used = 0;
        add(IPPROTO_IP, IP_TTL, 4, 0);
        add(SOL_SOCKET, BAD, 4, 0);
        char what[64];
        snprintf(what, sizeof what, "a bad one behind a good one, room %zu", len);
        give_all(fd, what, len, 0);
    }
    for (size_t len = 0; len <= 40; len++) {
        used = 0;
        add(IPPROTO_IP, IP_TTL, 4, 0);
        add(IPPROTO_IP, IP_TTL, 4, 0);
        two->cmsg_len = len;
        char what[64];
        snprintf(what, sizeof what, "length %zu of the second", len);
        give(fd, what);
    }
    used = 0;
    add(IPPROTO_IP, IP_TTL, 4, 0);
    one->cmsg_len = SIZE_MAX;
    give(fd, "the longest");
    one->cmsg_len = INT_MAX;
    give(fd, "longer than all");
    T(shutdown(fd, SHUT_WR));
    tell("drain A");
}

static void give_nowhere(int fd, void *at, size_t len) {
    char byte = 'x';
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = at, .msg_controllen = len};
    T(sendmsg(fd, &message, 0));
    out("at %p, %zu bytes", at, len);
}

CASE(control_messages_nowhere) {
    int fd = connected("A"), datagrams = socket(family, SOCK_DGRAM, 0);
    struct name there = name_of(peer, atoi(tell("bind B")));
    NEED(connect(datagrams, ADDRESS(there)) == 0);
    static const size_t lengths[] = {0, 1, 15, 16, 17, 100, 100000, 1 << 20, INT_MAX, (size_t)INT_MAX + 1, SIZE_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        out("a stream");
        give_nowhere(fd, NULL, lengths[i]);
        give_nowhere(fd, (void *)8, lengths[i]);
        out("datagrams");
        give_nowhere(datagrams, NULL, lengths[i]);
        give_nowhere(datagrams, (void *)8, lengths[i]);
    }
    T(shutdown(fd, SHUT_WR));
    tell("drain A");
}

/* What is looked at first: that the socket is none that sends, or the message. */
CASE(bad_messages_in_each_state) {
    signal(SIGPIPE, SIG_IGN);
    int fd = socket(family, SOCK_STREAM, 0);
    used = 0;
    add(SOL_SOCKET, BAD, 4, 0);
    give(fd, "new");
    struct name at = name_of(own, 0);
    NEED(bind(fd, ADDRESS(at)) == 0);
    give(fd, "bound");
    NEED(listen(fd, 2) == 0);
    give(fd, "listening");
    fd = connected("A");
    give_all(fd, "not to be waited for", used, MSG_DONTWAIT);
    give_all(fd, "urgent", used, MSG_OOB);
    give_all(fd, "without copying", used, MSG_ZEROCOPY);
    T(shutdown(fd, SHUT_WR));
    give(fd, "shut");
    fd = accepted("B");
    tell("reset B");
    NEED(await(fd, POLLIN) & POLLIN);
    give(fd, "reset");
    give(fd, "reset");
    fd = connected("C");
    nonblock(fd);
    static char data[1 << 20];
    for (;;) {
        while (send(fd, data, sizeof data, 0) > 0);
        struct pollfd one = {fd, POLLOUT, 0};
        if (poll(&one, 1, 300) == 0) break;
    }
    give(fd, "full");
    struct mmsghdr many[2];
    memset(many, 0, sizeof many);
    char byte = 'x';
    struct iovec part = {&byte, 1};
    fd = connected("D");
    for (int i = 0; i < 2; i++) many[i].msg_hdr = (struct msghdr){.msg_iov = &part, .msg_iovlen = 1};
    many[1].msg_hdr.msg_control = room;
    many[1].msg_hdr.msg_controllen = used;
    T(sendmmsg(fd, many, 2, 0));
    out("%u %u", many[0].msg_len, many[1].msg_len);
    many[0].msg_hdr = many[1].msg_hdr;
    T(sendmmsg(fd, many, 2, 0));
    T(shutdown(fd, SHUT_WR));
    tell("drain D");
}

enum { STAMP = 0x8906, STAMP_NS = 0x8907 };

/* Whether the time is about now. */
static void show_stamp(int fd, unsigned long request) {
    struct timespec now, last = {-7, -7};
    int result = ioctl(fd, request, &last), errno_ = errno;
    clock_gettime(CLOCK_REALTIME, &now);
    int is_recent = last.tv_sec <= now.tv_sec && last.tv_sec >= now.tv_sec - 60;
    int of_second = request == STAMP || request == 0x80108906 ? last.tv_nsec < 1000000 : last.tv_nsec < 1000000000;
    out("%#lx: %d %s, recent %d %d", request, result, result < 0 ? strerrorname_np(errno_) : "", is_recent, of_second);
}

static void show_stamps(int fd) {
    show_stamp(fd, STAMP);
    show_stamp(fd, STAMP_NS);
    show_stamp(fd, 0x80108906);
    show_stamp(fd, 0x80108907);
}

static long long stamp(int fd) {
    struct timespec last = {-7, -7};
    NEED(ioctl(fd, STAMP_NS, &last) == 0);
    return last.tv_sec * 1000000000ll + last.tv_nsec;
}

/* Linux begins to note when packets come a moment after it was asked; those before are said to have come when they are
 * asked about. */
static void await_notes(int fd) {
    struct timespec read;
    char byte;
    for (int i = 0; i < SOON_MS; i++, usleep(1000)) {
        tell("sendto D %s %d again", own, port_of(fd));
        NEED(recv(fd, &byte, 1, 0) == 1 && clock_gettime(CLOCK_REALTIME, &read) == 0);
        if (stamp(fd) < read.tv_sec * 1000000000ll + read.tv_nsec) return;
    }
    die("nothing is noted");
}

CASE(when_the_last_datagram_came) {
    char byte;
    int fd = socket(family, SOCK_DGRAM, 0);
    struct name at = name_of(own, 0);
    NEED(bind(fd, ADDRESS(at)) == 0);
    tell("bind D");
    show_stamps(fd);
    T(ioctl(fd, STAMP, NULL));
    tell("sendto D %s %d abc", own, port_of(fd));
    T(await(fd, POLLIN));
    show_stamps(fd);
    T(recv(fd, &byte, 1, 0));
    show_stamps(fd);
    await_notes(fd);
    long long first = stamp(fd);
    tell("sendto D %s %d abc", own, port_of(fd));
    T(await(fd, POLLIN));
    T(stamp(fd) == first);
    T(recv(fd, &byte, 1, MSG_PEEK));
    T(stamp(fd) > first);
    first = stamp(fd);
    T(stamp(fd) == first);
    T(recv(fd, &byte, 1, 0));
    T(stamp(fd) == first);
    T(ioctl(fd, STAMP, NULL));
    tell("sendto D %s %d def", own, port_of(fd));
    T(await(fd, POLLIN));
    T(stamp(fd) == first);
    T(recv(fd, &byte, 1, 0));
    T(stamp(fd) > first);
    /* Where it is told beside it, it is not noted. */
    first = stamp(fd);
    T(set_option(fd, SOL_SOCKET, SO_TIMESTAMP, 1));
    tell("sendto D %s %d ghi", own, port_of(fd));
    T(recv(fd, &byte, 1, 0));
    T(stamp(fd) == first);
    T(set_option(fd, SOL_SOCKET, SO_TIMESTAMP, 0));
    tell("sendto D %s %d jkl", own, port_of(fd));
    T(recv(fd, &byte, 1, 0));
    T(stamp(fd) > first);
}

/* That of a datagram that was read before anybody asked is the moment in which it is asked for. */
CASE(asked_when_it_is_read) {
    char byte;
    int fd = socket(family, SOCK_DGRAM, 0), other = socket(family, SOCK_DGRAM, 0);
    struct name at = name_of(own, 0);
    NEED(bind(fd, ADDRESS(at)) == 0 && bind(other, ADDRESS(at)) == 0);
    tell("bind D");
    tell("sendto D %s %d abc", own, port_of(fd));
    T(recv(fd, &byte, 1, 0));
    show_stamps(fd);
    long long first = stamp(fd);
    T(stamp(fd) == first);
    T(set_option(other, SOL_SOCKET, SO_TIMESTAMPNS, 1));
    tell("sendto D %s %d abc", own, port_of(other));
    T(recv(other, &byte, 1, 0));
    show_stamps(other);
    T(set_option(other, SOL_SOCKET, SO_TIMESTAMPNS, 0));
    tell("sendto D %s %d abc", own, port_of(other));
    T(recv(other, &byte, 1, 0));
    show_stamps(other);
    int stream = connected("A");
    show_stamps(stream);
    tell("send A x");
    T(recv(stream, &byte, 1, 0));
    show_stamps(stream);
    show_stamps(listener());
}

enum { PATH_MTU = 61, RECEIVE_PATH_MTU = 60 };

static char bytes[4000];

/* What a receiving call tells of the way. */
static void receive_path_mtu(int fd, size_t space) {
    char text[16] = "", beside[128];
    struct name from;
    struct iovec part = {text, sizeof text};
    struct msghdr message = {.msg_name = &from, .msg_namelen = sizeof from, .msg_iov = &part, .msg_iovlen = 1,
                             .msg_control = beside, .msg_controllen = space};
    memset(&from, 0, sizeof from);
    errno = 0;
    long result = recvmsg(fd, &message, MSG_DONTWAIT);
    out("recvmsg %ld %s, flags %#x, %u bytes of a name, %zu beside", result, result < 0 ? strerrorname_np(errno) : "",
        message.msg_flags, message.msg_namelen, message.msg_controllen);
    if (result < 0) return;
    out("from %s, %s", host_of(&from), from.port ? "a port" : "no port");
    struct cmsghdr *one = CMSG_FIRSTHDR(&message);
    if (one && one->cmsg_len >= CMSG_LEN(32)) {
        struct {
            struct sockaddr_in6 to;
            unsigned mtu;
        } *told = (void *)CMSG_DATA(one);
        char host[INET6_ADDRSTRLEN];
        inet_ntop(AF_INET6, &told->to.sin6_addr, host, sizeof host);
        out("%d %d, %zu bytes: %s of family %d, port %d, scope %u, carries %u", one->cmsg_level, one->cmsg_type,
            (size_t)one->cmsg_len, host, told->to.sin6_family, told->to.sin6_port, told->to.sin6_scope_id, told->mtu);
    }
}

/* IPV6_MTU and IPV6_RECVPATHMTU, which are about what is sent over IPv6 only. */
CASE(pieces_as_long_as_asked) {
    int fd = socket(family, SOCK_DGRAM, 0);
    static const int values[] = {-1, 0, 1, 1279, 1280, 65535, 65536, 1300};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        out("%d", values[i]);
        T(set_option(fd, IPPROTO_IPV6, IPV6_MTU, values[i]));
        T(option(fd, IPPROTO_IPV6, IPV6_MTU));
    }
    T(setsockopt(fd, IPPROTO_IPV6, IPV6_MTU, &values[4], 2));
    if (!over_inet6) return;
    struct name to = name_of(peer, atoi(tell("bind D")));
    tell("watch W");
    T(connect(fd, ADDRESS(to)));
    T(option(fd, IPPROTO_IPV6, IPV6_MTU));
    T(send(fd, bytes, 3000, 0));
    tell("pieces W");
    tell("recvmsg D");
    T(send(fd, bytes, 1252, 0));
    tell("recvmsg D");
    T(send(fd, bytes, 1253, 0));
    tell("recvmsg D");
    T(set_option(fd, IPPROTO_IPV6, IPV6_MTU, 0));
    T(send(fd, bytes, 3000, 0));
    tell("pieces W");
    tell("recvmsg D");
    T(set_option(fd, IPPROTO_IPV6, IPV6_MTU, 1400));
    T(send(fd, bytes, 3000, 0));
    tell("pieces W");
    tell("recvmsg D");
    T(set_option(fd, IPPROTO_IPV6, IPV6_DONTFRAG, 1));
    T(send(fd, bytes, 1353, 0));
    T(send(fd, bytes, 1352, 0));
    tell("recvmsg D");
    int stream = connected("A");
    T(set_option(stream, IPPROTO_IPV6, IPV6_MTU, 1300));
    T(set_option(stream, IPPROTO_IPV6, RECEIVE_PATH_MTU, 1));
    T(send(stream, bytes, 3000, 0));
    tell("read A 3000");
}

CASE(what_the_way_carries) {
    int fd = socket(family, SOCK_DGRAM, 0);
    T(set_option(fd, IPPROTO_IPV6, RECEIVE_PATH_MTU, 1));
    T(option(fd, IPPROTO_IPV6, RECEIVE_PATH_MTU));
    if (!over_inet6) return;
    struct name to = name_of(peer, atoi(tell("bind D")));
    T(connect(fd, ADDRESS(to)));
    T(set_option(fd, IPPROTO_IPV6, IPV6_DONTFRAG, 1));
    receive_path_mtu(fd, 128);
    T(send(fd, bytes, 3000, 0));
    T(now_has(fd, POLLIN | POLLPRI));
    receive_path_mtu(fd, 128);
    receive_path_mtu(fd, 128);
    T(send(fd, bytes, 3000, 0));
    T(set_option(fd, IPPROTO_IPV6, IPV6_MTU, 1300));
    T(send(fd, bytes, 1253, 0));
    receive_path_mtu(fd, 20);
    T(send(fd, bytes, 1253, 0));
    T(recv(fd, bytes, 10, 0));
    T(send(fd, bytes, 1253, 0));
    struct name from;
    socklen_t len = sizeof from;
    T(recvfrom(fd, bytes, 10, 0, (struct sockaddr *)&from, &len));
    out("%u bytes: %s, port %d", len, host_of(&from), from.port);
    T(recv(fd, bytes, 10, MSG_DONTWAIT));
    /* Before what has come. */
    T(send(fd, bytes, 1253, 0));
    tell("sendto D %s %d abc", own, port_of(fd));
    T(await(fd, POLLIN));
    receive_path_mtu(fd, 128);
    receive_path_mtu(fd, 128);
    /* Nobody asks any more. */
    T(send(fd, bytes, 1253, 0));
    T(set_option(fd, IPPROTO_IPV6, RECEIVE_PATH_MTU, 0));
    receive_path_mtu(fd, 128);
    T(set_option(fd, IPPROTO_IPV6, RECEIVE_PATH_MTU, 1));
    receive_path_mtu(fd, 128);
    T(set_option(fd, IPPROTO_IPV6, IPV6_DONTFRAG, 0));
    T(set_option(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO));
    T(send(fd, bytes, 1253, 0));
    receive_path_mtu(fd, 128);
}
