/* Options of TCP sockets: set and read in each state, with good and bad values and lengths, and what an accepted socket
 * has of them.
 */
#include "compare.h"
#include <linux/filter.h>
#include <linux/sockios.h>
#include <net/if.h>

#ifndef TCP_NOTSENT_LOWAT
#define TCP_NOTSENT_LOWAT 25
#endif

struct option {
    const char *text;
    int level, name;
    int values[10]; /* up to the first END */
};
enum { END = 0x7ffffff1 };

#define O(level, name, ...) {#name, level, name, {__VA_ARGS__, END}}
static const struct option options[] = {
    O(IPPROTO_TCP, TCP_NODELAY, 1, 0, 2, -1),
    O(IPPROTO_TCP, TCP_CORK, 1, 0, 2, -1),
    O(IPPROTO_TCP, TCP_QUICKACK, 0, 1, 2, -1),
    O(IPPROTO_TCP, TCP_USER_TIMEOUT, 1, 30000, INT_MAX, -1, 0),
    O(IPPROTO_TCP, TCP_DEFER_ACCEPT, 1, 2, 5, 30, 1000, 1000000, -1, 0),
    O(IPPROTO_TCP, TCP_NOTSENT_LOWAT, 1, 16384, -1, 0),
    O(IPPROTO_TCP, TCP_KEEPIDLE, 1, 60, 32767, 32768, 0, -1),
    O(IPPROTO_TCP, TCP_KEEPINTVL, 1, 60, 32767, 32768, 0, -1),
    O(IPPROTO_TCP, TCP_KEEPCNT, 1, 9, 127, 128, 0, -1),
    O(IPPROTO_TCP, TCP_SYNCNT, 1, 6, 127, 128, 0, -1),
    O(IPPROTO_TCP, TCP_LINGER2, 1, 60, 0, -1, 1000, 60),
    O(SOL_SOCKET, SO_KEEPALIVE, 1, 0, 2, -1),
    O(SOL_SOCKET, SO_REUSEADDR, 1, 0, 2, -1),
    O(SOL_SOCKET, SO_REUSEPORT, 1, 0, 2, -1),
    O(SOL_SOCKET, SO_BROADCAST, 1, 0, 2, -1),
    O(SOL_SOCKET, SO_OOBINLINE, 1, 0, 2, -1),
    O(SOL_SOCKET, SO_RCVLOWAT, 0, 2, 100, 100000, 1),
    O(SOL_SOCKET, SO_SNDLOWAT, 5),
    O(SOL_SOCKET, SO_TYPE, 1),
    O(SOL_SOCKET, SO_PROTOCOL, 1),
    O(SOL_SOCKET, SO_DOMAIN, 1),
    O(SOL_SOCKET, SO_ACCEPTCONN, 1),
    O(SOL_SOCKET, SO_ERROR, 1),
    O(SOL_SOCKET, SO_ZEROCOPY, 1, 0, 2, -1),
    O(SOL_SOCKET, SO_TIMESTAMP, 1, 0),
    O(SOL_SOCKET, SO_MAX_PACING_RATE, 1000000, 1, -2, -1),
    O(IPPROTO_IP, IP_TOS, 0x10, 0xb8, 3, 256, -1, 0),
    O(IPPROTO_IP, IP_TTL, 1, 255, 0, 256, -1, 64),
    O(IPPROTO_IPV6, IPV6_V6ONLY, 1, 0),
    O(IPPROTO_IPV6, IPV6_TCLASS, 0x10, 0xb8, 3, 256, -1, 0),
    O(IPPROTO_IPV6, IPV6_UNICAST_HOPS, 1, 255, 0, 256, -1),
};

#define COUNT(of) (sizeof(of) / sizeof *(of))

/* A socket that is bound to our address, and listens unless `backlog` is below zero. */
static int bound(int backlog) {
    int fd = socket(family, SOCK_STREAM, 0);
    struct name at = name_of(own, 0);
    NEED(fd >= 0 && set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1) == 0);
    NEED(bind(fd, ADDRESS(at)) == 0);
    if (backlog >= 0) NEED(listen(fd, backlog) == 0);
    return fd;
}

static int accepted_from(int fd, const char *name) {
    tell("connect %s %s %d", name, own, port_of(fd));
    int new = accept(fd, 0, 0);
    NEED(new >= 0);
    return new;
}

static void show(int fd, const struct option *o) {
    int value = 0x55555555;
    socklen_t len = sizeof value;
    int result = getsockopt(fd, o->level, o->name, &value, &len);
    if (result < 0)
        out("  get %s = %s", o->text, strerrorname_np(errno));
    else
        out("  get %s = %d (%u bytes)", o->text, value, len);
}

static void show_all(const char *when, int fd) {
    out("%s", when);
    for (size_t i = 0; i < COUNT(options); i++)
        show(fd, &options[i]);
}

static void try_all(const char *when, int fd) {
    out("%s", when);
    for (size_t i = 0; i < COUNT(options); i++) {
        const struct option *o = &options[i];
        for (const int *value = o->values; *value != END; value++) {
            errno = 0;
            int result = setsockopt(fd, o->level, o->name, value, sizeof *value);
            out(" set %s %d = %d %s", o->text, *value, result, result < 0 ? strerrorname_np(errno) : "");
            show(fd, o);
        }
    }
}

static unsigned long cookie(int fd) {
    unsigned long value = 0;
    socklen_t len = sizeof value;
    T(getsockopt(fd, SOL_SOCKET, SO_COOKIE, &value, &len));
    T(len);
    return value;
}

CASE(cookies_of_sockets) {
    int fd = listener();
    unsigned long of[5];
    of[0] = cookie(fd);
    int opened = connected("A");
    of[1] = cookie(opened);
    for (int i = 2; i < 5; i++) {
        tell("connect %c %s %d", 'A' + i, own, port_of(fd));
        int new = accept(fd, NULL, NULL);
        NEED(new >= 0);
        of[i] = cookie(new);
        T(cookie(dup(new)) == of[i]);
        T(cookie(new) == of[i]);
        unsigned half = 0;
        socklen_t len = sizeof half;
        T(getsockopt(new, SOL_SOCKET, SO_COOKIE, &half, &len));
        /* One after another they may have the same place. */
        if (i == 3) T(close(new));
    }
    T(cookie(fd) == of[0] && cookie(opened) == of[1]);
    int same = 0;
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < i; k++) same += of[i] == of[k] || of[i] == 0;
    T(same);
    pid_t child = fork();
    if (child == 0) {
        T(cookie(opened) == of[1] && cookie(fd) == of[0]);
        _exit(0);
    }
    NEED(waitpid(child, NULL, 0) == child);
}

CASE(options_of_a_fresh_socket) { try_all("fresh", socket(family, SOCK_STREAM, 0)); }
CASE(options_of_a_bound_socket) { try_all("bound", bound(-1)); }
CASE(options_of_a_listening_socket) { try_all("listening", bound(4)); }
CASE(options_of_a_connected_socket) { try_all("connected", connected("c")); }
CASE(options_of_an_accepted_socket) { try_all("accepted", accepted("c")); }

CASE(defaults) {
    int fd = bound(-1);
    show_all("bound", fd);
    NEED(listen(fd, 4) == 0);
    show_all("listening", fd);
    show_all("accepted", accepted_from(fd, "a"));
    show_all("connected", connected("c"));
}

/* Values that differ from the defaults. */
static void set_all(int fd) {
    static const int values[][3] = {
        {IPPROTO_TCP, TCP_NODELAY, 1},        {IPPROTO_TCP, TCP_CORK, 1},         {IPPROTO_TCP, TCP_QUICKACK, 0},
        {IPPROTO_TCP, TCP_USER_TIMEOUT, 777}, {IPPROTO_TCP, TCP_KEEPIDLE, 77},    {IPPROTO_TCP, TCP_KEEPINTVL, 7},
        {IPPROTO_TCP, TCP_KEEPCNT, 5},        {IPPROTO_TCP, TCP_SYNCNT, 3},       {IPPROTO_TCP, TCP_LINGER2, 11},
        {IPPROTO_TCP, TCP_NOTSENT_LOWAT, 99}, {SOL_SOCKET, SO_KEEPALIVE, 1},      {SOL_SOCKET, SO_OOBINLINE, 1},
        {SOL_SOCKET, SO_RCVLOWAT, 3},         {SOL_SOCKET, SO_BROADCAST, 1},
        {SOL_SOCKET, SO_REUSEPORT, 1},        {IPPROTO_TCP, TCP_DEFER_ACCEPT, 0}, {IPPROTO_IP, IP_TOS, 0x10},
        {IPPROTO_IP, IP_TTL, 33},
    };
    struct timeval in = {3, 500000}, back = {2, 200000};
    struct linger linger = {1, 5};
    for (size_t i = 0; i < COUNT(values); i++)
        if (setsockopt(fd, values[i][0], values[i][1], &values[i][2], sizeof(int)) < 0)
            out("set %d %d: %s", values[i][0], values[i][1], strerrorname_np(errno));
    T(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &in, sizeof in));
    T(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &back, sizeof back));
    T(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
}

static void show_rest(int fd) {
    struct timeval time = {-1, -1};
    struct linger linger = {-1, -1};
    socklen_t len = sizeof time;
    T(getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, &len));
    out("RCVTIMEO %ld %ld (%u)", time.tv_sec, time.tv_usec, len);
    T(getsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, &len));
    out("SNDTIMEO %ld %ld (%u)", time.tv_sec, time.tv_usec, len);
    len = sizeof linger;
    T(getsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, &len));
    out("LINGER %d %d (%u)", linger.l_onoff, linger.l_linger, len);
}

CASE(accepted_sockets_inherit) {
    int fd = bound(-1);
    set_all(fd);
    NEED(listen(fd, 4) == 0);
    int one = accepted_from(fd, "a");
    show_all("set before listen", one);
    show_rest(one);
}

CASE(accepted_sockets_inherit_what_was_set_while_listening) {
    int fd = bound(4);
    set_all(fd);
    int one = accepted_from(fd, "a");
    show_all("set after listen", one);
    show_rest(one);
}

CASE(options_survive_connect) {
    struct name at = name_of(peer, atoi(tell("listen l")));
    int fd = socket(family, SOCK_STREAM, 0);
    set_all(fd);
    NEED(connect(fd, (void *)&at, sizeof at) == 0);
    show_all("after connect", fd);
    show_rest(fd);
}

static void show_pacing_rate(const char *of, int fd) {
    static const socklen_t rooms[] = {0, 2, 4, 7, 8, 12};
    for (size_t i = 0; i < COUNT(rooms); i++) {
        unsigned long long rate = 0x1111111111111111;
        socklen_t len = rooms[i];
        int result = getsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, &len);
        out("%s, room %u: %d, %u, %llx", of, rooms[i], result, len, rate);
    }
}

CASE(pacing_rates) {
    static const unsigned long long rates[] = {1000000, 0xffffffff, 0x200000001, ~0ull, 0};
    int fd = bound(-1);
    show_pacing_rate("fresh", fd);
    for (size_t i = 0; i < COUNT(rates); i++) {
        T(setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rates[i], 8));
        show_pacing_rate("of 64 bits", fd);
        T(setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rates[i], 4));
        show_pacing_rate("of 32 bits", fd);
    }
    T(setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rates[2], 8));
    NEED(listen(fd, 4) == 0);
    show_pacing_rate("listening", fd);
    show_pacing_rate("accepted", accepted_from(fd, "a"));
    T(setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rates[0], 8));
    show_pacing_rate("accepted later", accepted_from(fd, "b"));
    /* Set before there is a port; and a rate of 0 keeps nothing back. */
    for (size_t i = 0; i < COUNT(rates); i++) {
        int early = T(socket(family, SOCK_STREAM, 0));
        T(setsockopt(early, SOL_SOCKET, SO_MAX_PACING_RATE, &rates[i], 8));
        NEED(listen(early, 4) == 0);
        show_pacing_rate("set before", early);
    }
    T(setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rates[4], 8));
    int slow = accepted_from(fd, "c");
    show_pacing_rate("accepted with none", slow);
    T(send(slow, "hello", 5, 0));
    tell("read c 5");
}

CASE(maximum_segment) {
    int fd = bound(-1), value;
    socklen_t len = sizeof value;
    static const int values[] = {0, 1, 87, 88, 536, 1000, 1460, 9000, 32767, 32768, -1};
    for (size_t i = 0; i < COUNT(values); i++) {
        errno = 0;
        int result = setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &values[i], sizeof(int));
        T(getsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &value, &len));
        out("set %d = %d, get %d", values[i], result, value);
    }
    value = 1000;
    T(setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &value, sizeof value));
    NEED(listen(fd, 4) == 0);
    int one = accepted_from(fd, "a");
    T(getsockopt(one, IPPROTO_TCP, TCP_MAXSEG, &value, &len));
    out("accepted %d", value);
    value = 700;
    T(setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &value, sizeof value));
    T(getsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &value, &len));
    out("listening %d", value);
    int two = accepted_from(fd, "b");
    T(getsockopt(two, IPPROTO_TCP, TCP_MAXSEG, &value, &len));
    out("accepted %d", value);
}

CASE(lengths) {
    int fd = connected("c");
    static const int lengths[] = {0, 1, 2, 3, 4, 5, 8, 16, 32, -1};
    static const int names[][2] = {
        {IPPROTO_TCP, TCP_NODELAY},   {IPPROTO_TCP, TCP_KEEPIDLE},  {IPPROTO_TCP, TCP_USER_TIMEOUT},
        {IPPROTO_TCP, TCP_MAXSEG},    {IPPROTO_TCP, TCP_CONGESTION}, {SOL_SOCKET, SO_KEEPALIVE},
        {SOL_SOCKET, SO_LINGER},      {SOL_SOCKET, SO_RCVTIMEO},    {SOL_SOCKET, SO_RCVLOWAT},
        {SOL_SOCKET, SO_ERROR},       {SOL_SOCKET, SO_RCVBUF},      {IPPROTO_TCP, TCP_NOTSENT_LOWAT},
        {SOL_SOCKET, SO_REUSEADDR},   {IPPROTO_TCP, TCP_DEFER_ACCEPT}, {IPPROTO_TCP, TCP_INFO},
    };
    for (size_t n = 0; n < COUNT(names); n++)
        for (size_t i = 0; i < COUNT(lengths); i++) {
            char room[512];
            memset(room, 0x11, sizeof room);
            socklen_t len = lengths[i];
            errno = 0;
            int result = getsockopt(fd, names[n][0], names[n][1], room, &len);
            out("get %d %d room %d = %d %s, %u", names[n][0], names[n][1], lengths[i], result,
                result < 0 ? strerrorname_np(errno) : "", len);
            memset(room, 0, sizeof room);
            room[0] = 1;
            errno = 0;
            result = setsockopt(fd, names[n][0], names[n][1], room, lengths[i]);
            out("set %d %d len %d = %d %s", names[n][0], names[n][1], lengths[i], result,
                result < 0 ? strerrorname_np(errno) : "");
        }
}

/* Options of IPv4 may be an octet, or nothing, which is 0. */
static void show_lengths_of_ip(const char *of, int fd) {
    static const int lengths[] = {0, 1, 2, 3, 4, 5, 8, -1};
    static const int names[][2] = {
        {IPPROTO_IP, IP_TOS}, {IPPROTO_IP, IP_TTL}, {IPPROTO_IP, IP_MTU_DISCOVER}, {IPPROTO_IP, IP_RECVERR},
        {IPPROTO_IP, IP_RECVTTL}, {IPPROTO_IP, IP_RECVTOS}, {IPPROTO_IP, IP_PKTINFO}, {IPPROTO_IP, IP_MULTICAST_TTL},
        {IPPROTO_IP, IP_MULTICAST_LOOP}, {IPPROTO_IP, IP_MULTICAST_ALL}, {IPPROTO_IP, 21 /* IP_MINTTL */},
        {IPPROTO_IP, IP_RECVORIGDSTADDR}, {IPPROTO_IP, IP_FREEBIND}, {IPPROTO_IP, 24 /* IP_BIND_ADDRESS_NO_PORT */},
        {IPPROTO_IPV6, IPV6_TCLASS}, {IPPROTO_IPV6, IPV6_UNICAST_HOPS}, {IPPROTO_IPV6, IPV6_MTU_DISCOVER},
        {IPPROTO_IPV6, IPV6_RECVERR}, {IPPROTO_IPV6, IPV6_RECVPKTINFO}, {IPPROTO_IPV6, IPV6_MULTICAST_HOPS},
        {IPPROTO_IPV6, IPV6_MULTICAST_LOOP}, {IPPROTO_IPV6, 73 /* IPV6_MINHOPCOUNT */},
    };
    for (size_t n = 0; n < COUNT(names); n++)
        for (size_t i = 0; i < COUNT(lengths); i++) {
            unsigned char room[16] = {1, 0, 0, 0, 0, 0};
            int level = names[n][0], name = names[n][1];
            errno = 0;
            int result = setsockopt(fd, level, name, room, lengths[i]);
            out("%s, set %d %d len %d = %d %s, then %d", of, level, name, lengths[i], result,
                result < 0 ? strerrorname_np(errno) : "", option(fd, level, name));
            memset(room, 0x11, sizeof room);
            socklen_t len = lengths[i];
            errno = 0;
            result = getsockopt(fd, level, name, room, &len);
            out("%s, get %d %d room %d = %d %s, %u, %x %x", of, level, name, lengths[i], result,
                result < 0 ? strerrorname_np(errno) : "", len, room[0], room[1]);
        }
}

CASE(lengths_of_ip) {
    struct name there = name_of(peer, atoi(tell("bind d")));
    int datagrams = socket(family, SOCK_DGRAM, 0);
    NEED(connect(datagrams, ADDRESS(there)) == 0);
    show_lengths_of_ip("stream", connected("c"));
    show_lengths_of_ip("datagrams", datagrams);
}

CASE(nowhere) {
    int fd = connected("c"), value = 1;
    socklen_t len = sizeof value;
    T(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, 0, sizeof value));
    T(setsockopt(fd, SOL_SOCKET, SO_LINGER, 0, sizeof(struct linger)));
    T(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, 0, &len));
    T(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, 0));
    T(setsockopt(fd, IPPROTO_TCP, 9999, &value, sizeof value));
    T(getsockopt(fd, IPPROTO_TCP, 9999, &value, &len));
    T(setsockopt(fd, SOL_SOCKET, 9999, &value, sizeof value));
    T(getsockopt(fd, SOL_SOCKET, 9999, &value, &len));
    T(setsockopt(fd, 9999, 1, &value, sizeof value));
    T(getsockopt(fd, 9999, 1, &value, &len));
    T(setsockopt(fd, IPPROTO_UDP, 103, &value, sizeof value));
    T(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "", 0));
    T(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5));
    T(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic\0rest", 10));
    T(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "a very long name of something", 29));
}

CASE(times) {
    int fd = connected("c");
    static const struct timeval times[] = {{0, 0}, {0, 20000}, {7, 0}, {0, 1000000}, {-1, 0}, {0, -1}, {LONG_MAX / 4, 0}};
    for (size_t i = 0; i < COUNT(times); i++) {
        struct timeval back = {-7, -7};
        socklen_t len = sizeof back;
        out("%zu", i);
        T(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &times[i], sizeof times[i]));
        T(getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &back, &len));
        out("%ld %ld", back.tv_sec, back.tv_usec);
    }
    static const struct linger lingers[] = {{1, 0}, {5, 3}, {0, 9}, {-1, 2}, {0, 0}};
    for (size_t i = 0; i < COUNT(lingers); i++) {
        struct linger back = {-7, -7};
        socklen_t len = sizeof back;
        T(setsockopt(fd, SOL_SOCKET, SO_LINGER, &lingers[i], sizeof lingers[i]));
        T(getsockopt(fd, SOL_SOCKET, SO_LINGER, &back, &len));
        out("%d %d", back.l_onoff, back.l_onoff ? back.l_linger : 0);
    }
}

CASE(buffers) {
    int fd = connected("c");
    static const int sizes[] = {0, 1, 1000, 4096, 65536, 100000, 10000000, -1};
    for (int which = 0; which < 2; which++)
        for (size_t i = 0; i < COUNT(sizes); i++) {
            int value = -7, name = which ? SO_SNDBUF : SO_RCVBUF;
            socklen_t len = sizeof value;
            T(setsockopt(fd, SOL_SOCKET, name, &sizes[i], sizeof(int)));
            T(getsockopt(fd, SOL_SOCKET, name, &value, &len));
            out("%s %d: %d", which ? "SNDBUF" : "RCVBUF", sizes[i], value);
        }
}

CASE(flags_of_receiving) {
    int fd = accepted("a");
    char room[64] = "";
    struct timeval soon = {0, 20000};
    T(recv(fd, room, 8, MSG_DONTWAIT));
    T(recv(fd, room, 8, MSG_DONTWAIT | MSG_PEEK));
    T(recv(fd, room, 0, MSG_DONTWAIT));
    tell("send a abcdefgh");
    T(recv(fd, room, 3, MSG_PEEK));
    T(recv(fd, room, 8, MSG_PEEK | MSG_WAITALL));
    out("%.8s", room);
    T(recv(fd, room, 3, MSG_TRUNC));
    T(recv(fd, room, 3, MSG_PEEK | MSG_TRUNC));
    T(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon));
    T(recv(fd, room, 20, MSG_WAITALL));
    out("%.5s", room);
    T(recv(fd, room, 20, MSG_WAITALL));
    T(recv(fd, room, 20, MSG_OOB));
    T(recv(fd, room, 20, MSG_ERRQUEUE));
    T(recv(fd, room, 20, MSG_ERRQUEUE | MSG_DONTWAIT));
    T(recv(fd, room, 20, 0x10000000 | MSG_DONTWAIT));
    tell("send a xyz");
    T(recv(fd, 0, 3, MSG_TRUNC));
    tell("shut a");
    T(recv(fd, room, 20, MSG_WAITALL));
    T(recv(fd, room, 20, MSG_PEEK));
    T(recv(fd, room, 20, MSG_DONTWAIT));
}

CASE(flags_of_sending) {
    int fd = accepted("a");
    T(send(fd, "a", 1, MSG_DONTWAIT | MSG_NOSIGNAL));
    T(send(fd, "b", 1, MSG_CONFIRM));
    T(send(fd, "c", 1, MSG_DONTROUTE));
    T(send(fd, "d", 1, MSG_EOR));
    T(send(fd, "e", 1, MSG_ZEROCOPY));
    T(setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on));
    T(send(fd, "f", 1, MSG_ZEROCOPY));
    T(send(fd, "", 0, 0));
    T(send(fd, "g", 1, MSG_MORE));
    T(send(fd, "h", 1, 0));
    tell("read a 8");
    T(send(fd, "i", 1, MSG_MORE));
    tell("read a 1");
    T(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on));
    T(send(fd, "j", 1, 0));
    tell("read a 1");
    T(set_option(fd, IPPROTO_TCP, TCP_CORK, 0));
    T(send(fd, "k", 1, MSG_MORE));
    T(shutdown(fd, SHUT_WR));
    tell("drain a");
    signal(SIGPIPE, SIG_IGN);
    T(send(fd, "l", 1, 0));
    T(send(fd, "", 0, 0));
}

static void show_poll(int fd) {
    struct pollfd p = {fd, POLLIN | POLLOUT | POLLPRI | POLLRDHUP, 0};
    int result = poll(&p, 1, 0);
    out("poll = %d, %#x", result, p.revents);
}

/* By trap there is no order between what comes here and the other host's answer. */
static void await_bytes(int fd, int count) {
    for (int i = 0, n = 0; i < SOON_MS && n < count; i++) {
        NEED(ioctl(fd, FIONREAD, &n) == 0);
        if (n < count) usleep(1000);
    }
}

CASE(low_water_of_receiving) {
    int fd = accepted("a"), low = 4;
    char room[16];
    T(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low));
    tell("send a abc");
    await_bytes(fd, 3);
    T(recv(fd, room, 16, MSG_PEEK | MSG_DONTWAIT));
    show_poll(fd);
    tell("send a d");
    struct pollfd p = {fd, POLLIN, 0};
    T(poll(&p, 1, SOON_MS));
    T(recv(fd, room, 16, 0));
    tell("send a ef");
    /* Linux does not wake who waits for less than the mark already. */
    await_bytes(fd, 2);
    T(recv(fd, room, 2, 0));
    low = 1000000000;
    T(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low));
    tell("send a ghi");
    tell("shut a");
    T(poll(&p, 1, SOON_MS));
    T(recv(fd, room, 16, 0));
}

/* What is held back counts as unsent as soon as it is written. */
CASE(unsent_and_held_back) {
    int fd = accepted("a"), on = 1, off = 0, unsent = -1;
    T(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on));
    int right = 0;
    for (int i = 1; i <= 20; i++) {
        NEED(send(fd, "abc", 3, 0) == 3 && ioctl(fd, SIOCOUTQNSD, &unsent) == 0);
        right += unsent == 3 * i;
    }
    out("as much as was written: %d times", right);
    T(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &off, sizeof off));
    tell("read a 60");
    T(ioctl(fd, SIOCOUTQNSD, &unsent));
    out("%d", unsent);
    T(send(fd, "abc", 3, MSG_MORE));
    T(ioctl(fd, SIOCOUTQNSD, &unsent));
    out("held back: %d", unsent);
    T(close(fd));
    tell("drain a");
}

CASE(low_water_of_unsent_data) {
    int fd = accepted("a"), low = 16384;
    static char data[1 << 20];
    long total = 0, got;
    T(setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &low, sizeof low));
    show_poll(fd);
    /* Until the peer's window and what may be unsent are full. */
    for (;;) {
        struct pollfd p = {fd, POLLOUT, 0};
        while ((got = send(fd, data, sizeof data, MSG_DONTWAIT)) > 0) total += got;
        NEED(errno == EAGAIN);
        if (poll(&p, 1, 300) == 0) break;
    }
    show_poll(fd);
    out("a bounded amount: %d", total < (64 << 20));
    int unsent = -1;
    struct tcp_info info;
    socklen_t len = sizeof info;
    T(ioctl(fd, SIOCOUTQNSD, &unsent));
    T(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len));
    out("unsent is about the low water mark: %d", unsent >= low / 2 && unsent <= low + 65536 * 2);
    /* All that it has, so that its window opens. How much that is differs. */
    char command[64];
    int length = snprintf(command, sizeof command, "read a %ld\n", total - unsent);
    NEED(send(control, command, length, 0) == length);
    struct pollfd p = {fd, POLLOUT, 0};
    T(poll(&p, 1, SOON_MS));
    T(send(fd, data, 100, MSG_DONTWAIT));
}

/* What a connection has of these from before it was one, or from its listener. */
CASE(beginnings_and_ends) {
    static const int names[] = {TCP_SYNCNT, TCP_LINGER2, TCP_WINDOW_CLAMP}, values[] = {3, 11, 9000};
    int listening = bound(2), fd = socket(family, SOCK_STREAM, 0);
    struct name at = name_of(peer, atoi(tell("listen l")));
    for (int i = 0; i < 3; i++) {
        T(set_option(listening, IPPROTO_TCP, names[i], values[i]));
        T(set_option(fd, IPPROTO_TCP, names[i], values[i]));
    }
    T(set_option(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, 0));
    T(option(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP));
    T(set_option(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, 1));
    T(connect(fd, ADDRESS(at)));
    int one = accepted_from(listening, "a"), two = accepted_from(listening, "b");
    T(set_option(one, IPPROTO_TCP, TCP_LINGER2, -5));
    T(set_option(one, IPPROTO_TCP, TCP_SYNCNT, 9));
    T(set_option(one, IPPROTO_TCP, TCP_WINDOW_CLAMP, 0));
    T(set_option(one, IPPROTO_TCP, TCP_WINDOW_CLAMP, 8000));
    T(set_option(listening, IPPROTO_TCP, TCP_WINDOW_CLAMP, 0));
    for (int i = 0; i < 3; i++)
        out("%d: %d %d %d %d", names[i], option(fd, IPPROTO_TCP, names[i]), option(listening, IPPROTO_TCP, names[i]),
            option(one, IPPROTO_TCP, names[i]), option(two, IPPROTO_TCP, names[i]));
}

/* The first interface that is not the loopback one. */
static const char *interface(void) {
    static char name[IF_NAMESIZE];
    for (int number = 1; number < 1000; number++)
        if (if_indextoname(number, name) && strcmp(name, "lo")) return name;
    die("no interface");
    return NULL;
}

CASE(bound_to_an_interface) {
    const char *name = interface();
    char found[IF_NAMESIZE] = "";
    socklen_t len = sizeof found;
    struct name at = name_of(peer, atoi(tell("listen l"))), there = name_of(peer, atoi(tell("bind d")));
    int fd = socket(family, SOCK_STREAM, 0), datagrams = socket(family, SOCK_DGRAM, 0), other;
    T(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "nosuch0", 8));
    T(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, strlen(name)));
    T(connect(fd, ADDRESS(at)));
    T(getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, found, &len));
    T(strcmp(found, name));
    T(option(fd, SOL_SOCKET, SO_BINDTOIFINDEX) == (int)if_nametoindex(name));
    T(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "nosuch0", 8));
    T(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "", 0));
    T(option(fd, SOL_SOCKET, SO_BINDTOIFINDEX));
    T(setsockopt(datagrams, SOL_SOCKET, SO_BINDTODEVICE, name, strlen(name)));
    T(sendto(datagrams, "by it", 5, 0, ADDRESS(there)));
    tell("recvfrom d");
    int listening = socket(family, SOCK_STREAM, 0);
    struct name anywhere = {.in6 = {.sin6_family = family}};
    T(set_option(listening, SOL_SOCKET, SO_BINDTOIFINDEX, if_nametoindex(name)));
    T(bind(listening, ADDRESS(anywhere)));
    T(listen(listening, 2));
    int one = accepted_from(listening, "a");
    T(option(one, SOL_SOCKET, SO_BINDTOIFINDEX) == (int)if_nametoindex(name));
    tell("send a x");
    char byte;
    T(recv(one, &byte, 1, 0));
    /* By the loopback interface nobody is reached there. */
    other = socket(family, SOCK_DGRAM, 0);
    T(setsockopt(other, SOL_SOCKET, SO_BINDTODEVICE, "lo", 3));
    sendto(other, "lost", 4, 0, ADDRESS(there));
    T(sendto(datagrams, "found", 5, 0, ADDRESS(there)));
    tell("recvfrom d");
    T(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "lo", 3));
}

/* What paths cannot do is refused: differences.txt. */
CASE(refused) {
    struct sock_filter all = {BPF_RET | BPF_K, 0, 0, 0xffffffff};
    struct sock_fprog filter = {1, &all};
    int fresh = socket(family, SOCK_STREAM, 0), fd = connected("c"), datagrams = socket(family, SOCK_DGRAM, 0);
    struct name there = name_of(peer, atoi(tell("bind d")));
    NEED(connect(datagrams, ADDRESS(there)) == 0);
    T(setsockopt(fresh, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter));
    T(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter));
    T(setsockopt(datagrams, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter));
    T(setsockopt(fresh, SOL_SOCKET, SO_ATTACH_FILTER, &filter, 3));
    T(set_option(fresh, IPPROTO_TCP, TCP_SAVE_SYN, 1));
    T(set_option(fresh, IPPROTO_TCP, TCP_SAVE_SYN, 0));
    T(fcntl(fd, F_SETFL, O_ASYNC));
    T(fcntl(fd, F_SETFL, 0));
    T(ioctl(fd, FIOASYNC, &on));
    /* What the kernel has, or its own names for it, is served as ever. */
    int ends[2];
    T(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends));
    T(set_option(ends[0], SOL_SOCKET, SO_PEEK_OFF, 1));
    T(setsockopt(ends[0], SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter));
}

/* To take the state of a connection apart is for who may (CAP_NET_ADMIN), and here for nobody: differences.txt. */
static void try_to_repair(const char *state, int fd) {
    static const int values[] = {1, 0, -1, 2, -2};
    out("%s", state);
    for (size_t i = 0; i < COUNT(values); i++) {
        out("%d", values[i]);
        T(set_option(fd, IPPROTO_TCP, TCP_REPAIR, values[i]));
    }
    T(setsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &values[1], 3));
    T(setsockopt(fd, IPPROTO_TCP, TCP_REPAIR, NULL, 4));
    T(set_option(fd, IPPROTO_TCP, TCP_REPAIR_QUEUE, 1));
    T(set_option(fd, IPPROTO_TCP, TCP_QUEUE_SEQ, 1));
    T(set_option(fd, IPPROTO_TCP, TCP_REPAIR_OPTIONS, 1));
    T(set_option(fd, IPPROTO_TCP, 29 /* TCP_REPAIR_WINDOW */, 1));
    T(option(fd, IPPROTO_TCP, TCP_REPAIR));
    T(option(fd, IPPROTO_TCP, TCP_REPAIR_QUEUE));
    T(option(fd, IPPROTO_TCP, TCP_QUEUE_SEQ));
    T(option(fd, IPPROTO_TCP, TCP_REPAIR_OPTIONS));
    T(option(fd, IPPROTO_TCP, 29));
}

CASE(repair) {
    for (int is_root = 1; is_root >= 0; is_root--) {
        int all[] = {socket(family, SOCK_STREAM, 0), bound(-1), bound(4), connected(is_root ? "c" : "d")};
        if (!is_root) T(setresuid(65534, 65534, 65534));
        try_to_repair("new", all[0]);
        try_to_repair("bound", all[1]);
        try_to_repair("listening", all[2]);
        try_to_repair("connected", all[3]);
    }
}

CASE(listeners_share_a_port) {
    int one = socket(family, SOCK_STREAM, 0), two = socket(family, SOCK_STREAM, 0);
    struct name at = name_of(own, 0);
    T(setsockopt(one, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on));
    T(bind(one, (void *)&at, sizeof at));
    at.port = htons(port_of(one));
    T(bind(two, (void *)&at, sizeof at));
    T(setsockopt(two, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on));
    T(bind(two, (void *)&at, sizeof at));
    NEED(listen(one, 64) == 0 && listen(two, 64) == 0);
    int seen[2] = {0, 0};
    for (int i = 0; i < 40; i++) {
        char name[8];
        snprintf(name, sizeof name, "c%d", i);
        tell("connect %s %s %d", name, own, port_of(one));
        struct pollfd p[2] = {{one, POLLIN, 0}, {two, POLLIN, 0}};
        NEED(poll(p, 2, SOON_MS) == 1);
        int which = p[1].revents != 0;
        close(accept(which ? two : one, 0, 0));
        seen[which]++;
    }
    /* The chance that one gets fewer than four of forty is one in ten million. */
    out("both get some: %d", seen[0] >= 4 && seen[1] >= 4);
    close(one);
    tell("connect z %s %d", own, port_of(two));
    NEED(accept(two, 0, 0) >= 0);
}

/* Clients from one port (active FTP), which Linux lets share it until somebody listens. */
CASE(clients_share_a_port) {
    int one = bound(-1), two = socket(family, SOCK_STREAM, 0), three = socket(family, SOCK_STREAM, 0);
    struct name at = name_of(own, port_of(one));
    struct name first = name_of(peer, atoi(tell("listen l"))), second = name_of(peer, atoi(tell("listen m")));
    T(bind(two, ADDRESS(at)));
    T(set_option(two, SOL_SOCKET, SO_REUSEADDR, 1));
    T(bind(two, ADDRESS(at)));
    T(set_option(three, SOL_SOCKET, SO_REUSEADDR, 1));
    T(bind(three, ADDRESS(at)));
    T(connect(one, ADDRESS(first)));
    T(connect(two, ADDRESS(first)));
    T(connect(two, ADDRESS(second)));
    T(listen(three, 4));
    int four = socket(family, SOCK_STREAM, 0);
    T(set_option(four, SOL_SOCKET, SO_REUSEADDR, 1));
    T(bind(four, ADDRESS(at)));
    T(close(three));
    int five = socket(family, SOCK_STREAM, 0);
    T(set_option(five, SOL_SOCKET, SO_REUSEADDR, 1));
    T(bind(five, ADDRESS(at)));
    T(listen(five, 4));
}

CASE(errors_of_connections) {
    int value = -1, fd = accepted("a");
    socklen_t len = sizeof value;
    char room[8];
    tell("reset a");
    struct pollfd p = {fd, POLLIN, 0};
    T(poll(&p, 1, SOON_MS));
    T(getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &len));
    out("SO_ERROR %d", value);
    T(getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &len));
    out("SO_ERROR %d", value);
    T(recv(fd, room, 8, 0));
    show_poll(fd);
    signal(SIGPIPE, SIG_IGN);
    T(send(fd, "x", 1, 0));
    T(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, sizeof value));
    T(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &len));
}

CASE(lingering_close) {
    int fd = accepted("a");
    struct linger linger = {1, 0};
    T(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
    T(send(fd, "x", 1, 0));
    tell("read a 1");
    T(close(fd));
    tell("drain a");
    fd = accepted("b");
    linger.l_linger = 2;
    T(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
    T(send(fd, "yz", 2, 0));
    T(close(fd));
    tell("drain b");
    fd = accepted("c");
    T(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
    T(send(fd, "yz", 2, 0));
    T(shutdown(fd, SHUT_WR));
    tell("drain c");
    tell("close c");
    T(close(fd));
}

static int started(const char *role) { return role == NULL; }
