/* What a socket says of itself in each state: every number of `getsockopt`, the requests of `ioctl` and `fcntl` that
 * only look, and names. Then what SO_PEEK_OFF does to looks at data (MSG_PEEK).
 */
#include "compare.h"
#include <linux/sockios.h>

static int started(const char *role) { return role == NULL; }

/* These say how a host is configured, or what others on it have done. */
static int is_of_host(int level, int name) {
    return level == IPPROTO_TCP && (name == TCP_CONGESTION || name == TCP_CC_INFO || name == TCP_FASTOPEN_KEY);
}

/* Of these the length is compared only: they tell of this socket alone, of memory, of processors or of the moment. */
static int varies(int level, int name) {
    static const int of_sockets[] = {SO_RCVBUF, SO_SNDBUF, SO_COOKIE, SO_INCOMING_CPU, SO_MEMINFO, 56 /* NAPI_ID */,
                                     SO_PEERCRED, SO_PEERGROUPS, 76 /* SO_PASSPIDFD */, 77 /* SO_PEERPIDFD */, SO_PEERSEC};
    static const int of_tcp[] = {TCP_INFO, TCP_TIMESTAMP, TCP_WINDOW_CLAMP, 35 /* ZEROCOPY_RECEIVE */, TCP_MAXSEG,
                                 TCP_QUICKACK};
    if (level == SOL_SOCKET)
        for (size_t i = 0; i < sizeof of_sockets / sizeof *of_sockets; i++)
            if (name == of_sockets[i]) return 1;
    if (level == IPPROTO_TCP)
        for (size_t i = 0; i < sizeof of_tcp / sizeof *of_tcp; i++)
            if (name == of_tcp[i]) return 1;
    return 0;
}

static void look_at_options(int fd, const char *text, int level, int last) {
    for (int name = 0; name <= last; name++) {
        /* A word with room for more behind it. */
        union {
            int word;
            char room[512];
        } to;
        if (is_of_host(level, name)) continue;
        memset(&to, 0x11, sizeof to);
        socklen_t len = sizeof to;
        errno = 0;
        int result = getsockopt(fd, level, name, &to, &len);
        if (result < 0)
            out("  %s %d: %s", text, name, strerrorname_np(errno));
        else if (varies(level, name))
            out("  %s %d: %u bytes", text, name, len);
        else if (level == IPPROTO_IP && name == 52 /* IP_PROTOCOL */)
            out("  %s %d: its port: %d", text, name, to.word == port_of(fd));
        else
            out("  %s %d: %u bytes, %d", text, name, len, to.word);
    }
}

static void show_peer_name(int fd) {
    static const socklen_t rooms[] = {0, 1, 2, 8, 16, 17, 28, 29};
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) {
        struct name name;
        memset(&name, 0, sizeof name);
        socklen_t len = rooms[i];
        int result = getsockopt(fd, SOL_SOCKET, 28 /* SO_PEERNAME */, &name, &len);
        if (result < 0)
            out("  peer's name, room %u: %s", rooms[i], strerrorname_np(errno));
        else
            out("  peer's name, room %u: %u bytes, %d", rooms[i], len, name.family);
    }
}

#define ASK(fd, request)                                                                                               \
    ({                                                                                                                 \
        int value_ = -7;                                                                                               \
        int result_ = ioctl(fd, request, &value_);                                                                     \
        out("  " #request " %d %s, %d", result_, result_ < 0 ? strerrorname_np(errno) : "", value_);                   \
    })

static void look(const char *state, int fd) {
    out("%s", state);
    look_at_options(fd, "SOL_SOCKET", SOL_SOCKET, 90);
    look_at_options(fd, "IPPROTO_TCP", IPPROTO_TCP, 50);
    look_at_options(fd, "IPPROTO_UDP", IPPROTO_UDP, 2);
    look_at_options(fd, "IPPROTO_IP", IPPROTO_IP, 56);
    look_at_options(fd, "IPPROTO_IPV6", IPPROTO_IPV6, 82);
    show_peer_name(fd);
    ASK(fd, FIONREAD);
    ASK(fd, SIOCOUTQ);
    ASK(fd, SIOCOUTQNSD);
    ASK(fd, SIOCATMARK);
    ASK(fd, SIOCGPGRP);
    ASK(fd, FIOGETOWN);
    ASK(fd, TCGETS);
    ASK(fd, 0x1234);
    struct {
        int type, pid;
    } owner = {-7, -7};
    T(fcntl(fd, F_GETFD));
    T(fcntl(fd, F_GETFL));
    T(fcntl(fd, F_GETOWN));
    T(fcntl(fd, F_GETSIG));
    T(fcntl(fd, F_GETOWN_EX, &owner));
    T(fcntl(fd, F_GETPIPE_SZ));
    T(fcntl(fd, F_GETLEASE));
    struct name name;
    socklen_t len = sizeof name;
    memset(&name, 0, sizeof name);
    int result = getsockname(fd, (struct sockaddr *)&name, &len);
    out("  name %d, %u bytes, %s, %s", result, len, host_of(&name), name.port ? "a port" : "no port");
    len = sizeof name;
    memset(&name, 0, sizeof name);
    result = getpeername(fd, (struct sockaddr *)&name, &len);
    if (result < 0)
        out("  peer %s", strerrorname_np(errno));
    else
        out("  peer %u bytes, %s, %s", len, host_of(&name), name.port ? "a port" : "no port");
    T(now_has(fd, POLLIN | POLLOUT | POLLPRI | POLLRDHUP));
}

/* Until the end is acknowledged it counts as a byte. */
static void await_acknowledgment(int fd) {
    for (int i = 0, n = 1; i < SOON_MS && n > 0; i++) {
        NEED(ioctl(fd, SIOCOUTQ, &n) == 0);
        if (n > 0) usleep(1000);
    }
}

CASE(streams_not_connected) {
    int fd = socket(family, SOCK_STREAM, 0);
    look("new", fd);
    struct name at = name_of(own, 0);
    NEED(bind(fd, ADDRESS(at)) == 0);
    look("bound", fd);
    NEED(listen(fd, 3) == 0);
    look("listening", fd);
}

CASE(streams_connected) {
    int fd = connected("A");
    look("connected", fd);
    tell("send A abc");
    NEED(await(fd, POLLIN) & POLLIN);
    look("with data", fd);
    T(shutdown(fd, SHUT_WR));
    tell("drain A");
    await_acknowledgment(fd);
    look("shut", fd);
}

CASE(streams_ended_by_the_peer) {
    int fd = accepted("A");
    look("accepted", fd);
    tell("shut A");
    NEED(await(fd, POLLIN) & POLLIN);
    look("shut by the peer", fd);
    T(shutdown(fd, SHUT_WR));
    tell("drain A");
    await_acknowledgment(fd);
    look("shut by both", fd);
    fd = accepted("B");
    tell("reset B");
    NEED(await(fd, POLLIN) & POLLIN);
    look("reset", fd);
}

CASE(streams_refused) {
    int fd = socket(family, SOCK_STREAM, 0);
    struct name nobody = name_of(peer, 9);
    T(connect(fd, ADDRESS(nobody)));
    look("refused", fd);
}

CASE(datagrams) {
    int fd = socket(family, SOCK_DGRAM, 0);
    look("new", fd);
    struct name at = name_of(own, 0), there = name_of(peer, atoi(tell("bind A")));
    NEED(bind(fd, ADDRESS(at)) == 0);
    look("bound", fd);
    NEED(connect(fd, ADDRESS(there)) == 0);
    look("connected", fd);
    tell("sendto A %s %d hello", own, port_of(fd));
    NEED(await(fd, POLLIN) & POLLIN);
    look("with a datagram", fd);
    T(shutdown(fd, SHUT_RDWR));
    look("shut", fd);
}

/* What a look gives, and where the next one begins. */
static void peek(int fd, int count, int flags) {
    char room[64] = "";
    errno = 0;
    int got = recv(fd, room, count, MSG_DONTWAIT | flags);
    out("recv %d, flags %#x = %d %s \"%s\"; from %d", count, flags, got, got < 0 ? strerrorname_np(errno) : "", room,
        option(fd, SOL_SOCKET, SO_PEEK_OFF));
}

/* A datagram is passed over once as many bytes as it has are behind the mark. */
CASE(looks_into_datagrams) {
    int fd = socket(family, SOCK_DGRAM, 0);
    struct name at = name_of(own, 0);
    T(option(fd, SOL_SOCKET, SO_PEEK_OFF));
    T(set_option(fd, SOL_SOCKET, SO_PEEK_OFF, 0));
    NEED(bind(fd, ADDRESS(at)) == 0);
    int port = port_of(fd);
    tell("bind A");
    peek(fd, 4, MSG_PEEK);
    tell("sendto A %s %d abcdef", own, port);
    NEED(await(fd, POLLIN) & POLLIN);
    peek(fd, 4, MSG_PEEK);
    peek(fd, 4, MSG_PEEK);
    peek(fd, 4, MSG_PEEK);
    tell("sendto A %s %d ghi", own, port);
    tell("sendto A %s %d jklmnop", own, port);
    for (int i = 0, n = 0; i < SOON_MS && n < 1; i++) {
        /* Until the second one is there to be looked at. */
        char byte;
        T(set_option(fd, SOL_SOCKET, SO_PEEK_OFF, 9));
        n = recv(fd, &byte, 1, MSG_PEEK);
    }
    static const int from[] = {0, 5, 6, 7, 8, 9, 12, 15, 16, 100};
    for (int i = 0; i < (int)(sizeof from / sizeof *from); i++) {
        T(set_option(fd, SOL_SOCKET, SO_PEEK_OFF, from[i]));
        peek(fd, 3, MSG_PEEK);
        peek(fd, 30, MSG_PEEK | MSG_TRUNC);
    }
    T(set_option(fd, SOL_SOCKET, SO_PEEK_OFF, 8));
    peek(fd, 2, 0);
    peek(fd, 2, MSG_PEEK);
    peek(fd, 30, 0);
    T(set_option(fd, SOL_SOCKET, SO_PEEK_OFF, -1));
    peek(fd, 3, MSG_PEEK);
    peek(fd, 3, MSG_PEEK);
    T(set_option(fd, SOL_SOCKET, SO_PEEK_OFF, -5));
    T(option(fd, SOL_SOCKET, SO_PEEK_OFF));
    peek(fd, 30, 0);
    peek(fd, 30, 0);
}

/* Empty ones have no byte that a mark could be behind. */
CASE(looks_at_empty_datagrams) {
    int fd = socket(family, SOCK_DGRAM, 0);
    struct name at = name_of(own, 0);
    NEED(bind(fd, ADDRESS(at)) == 0);
    T(set_option(fd, SOL_SOCKET, SO_PEEK_OFF, 0));
    int port = port_of(fd);
    tell("bind A");
    tell("sendto_empty A %s %d", own, port);
    NEED(await(fd, POLLIN) & POLLIN);
    peek(fd, 4, MSG_PEEK);
    peek(fd, 4, MSG_PEEK);
    tell("sendto A %s %d abc", own, port);
    tell("sendto A %s %d def", own, port);
    for (int i = 0, n = 0; i < SOON_MS && n < 1; i++) {
        char byte;
        NEED(set_option(fd, SOL_SOCKET, SO_PEEK_OFF, 4) == 0);
        n = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        if (n < 1) usleep(1000);
    }
    static const int from[] = {0, 1, 2, 3, 4};
    for (int i = 0; i < (int)(sizeof from / sizeof *from); i++) {
        T(set_option(fd, SOL_SOCKET, SO_PEEK_OFF, from[i]));
        peek(fd, 2, MSG_PEEK);
        peek(fd, 2, MSG_PEEK);
    }
    T(set_option(fd, SOL_SOCKET, SO_PEEK_OFF, 0));
    peek(fd, 0, MSG_PEEK);
    int result;
    T(ioctl(fd, FIONREAD, &result));
    out("next %d", result);
    peek(fd, 4, 0);
    peek(fd, 4, 0);
    peek(fd, 4, 0);
}

/* Who waits for a look beyond what is there gets what comes behind it. */
CASE(a_look_waits_for_more) {
    int fd = socket(family, SOCK_DGRAM, 0);
    struct name at = name_of(own, 0);
    struct timeval soon = {0, 50000};
    char room[16] = "";
    NEED(bind(fd, ADDRESS(at)) == 0);
    int port = port_of(fd);
    tell("bind A");
    tell("sendto A %s %d abc", own, port);
    NEED(await(fd, POLLIN) & POLLIN);
    T(set_option(fd, SOL_SOCKET, SO_PEEK_OFF, 3));
    T(now_has(fd, POLLIN | POLLOUT));
    T(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon));
    T(recv(fd, room, 8, MSG_PEEK));
    soon.tv_sec = 4;
    T(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon));
    char line[128];
    int n = snprintf(line, sizeof line, "sendto A %s %d defg\n", own, port);
    NEED(send(control, line, n, 0) == n);
    T(recv(fd, room, 8, MSG_PEEK));
    out("\"%s\", from %d", room, option(fd, SOL_SOCKET, SO_PEEK_OFF));
    NEED(recv(control, line, sizeof line, 0) > 0);
}

/* One that is given on has its mark, as all of the socket has. */
CASE(looks_of_connected_datagrams) {
    int fd = socket(family, SOCK_DGRAM, 0);
    struct name there = name_of(peer, atoi(tell("bind A")));
    T(set_option(fd, SOL_SOCKET, SO_PEEK_OFF, 2));
    NEED(connect(fd, ADDRESS(there)) == 0);
    T(option(fd, SOL_SOCKET, SO_PEEK_OFF));
    T(option(dup(fd), SOL_SOCKET, SO_PEEK_OFF));
    tell("sendto A %s %d abcdef", own, port_of(fd));
    NEED(await(fd, POLLIN) & POLLIN);
    char room[4][8] = {"", "", "", ""};
    struct iovec parts[2] = {{room[0], 1}, {room[1], 2}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    T(recvmsg(fd, &message, MSG_PEEK));
    out("\"%s%s\", flags %#x, from %d", room[0], room[1], message.msg_flags, option(fd, SOL_SOCKET, SO_PEEK_OFF));
    T(recvfrom(fd, room[2], 7, MSG_PEEK, NULL, NULL));
    out("\"%s\", from %d", room[2], option(fd, SOL_SOCKET, SO_PEEK_OFF));
    T(read(fd, room[3], 7));
    out("\"%s\", from %d", room[3], option(fd, SOL_SOCKET, SO_PEEK_OFF));
}
