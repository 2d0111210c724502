/* Whose choice a port was, and when it is given up: `connect` to AF_UNSPEC, IP_BIND_ADDRESS_NO_PORT,
 * IP_LOCAL_PORT_RANGE.
 */
#include "compare.h"

#ifndef IP_BIND_ADDRESS_NO_PORT
#define IP_BIND_ADDRESS_NO_PORT 24
#endif
enum { LOCAL_PORT_RANGE = 51, GIVEN_PORTS = 7150, LOW = 41000, HIGHEST = 41003 };
#define RANGE(low, high) ((high) << 16 | (low))

/* Another one for each family: they share addresses, and connections are remembered for a minute. */
#define GIVEN (GIVEN_PORTS + (over_inet6 ? 3 : family == AF_INET6 ? 6 : 0))

static int started(const char *role) { return role == NULL; }

static struct sockaddr none = {.sa_family = AF_UNSPEC};

/* Its address, and whether it has a port; one that the program has chosen is shown. */
static void show(const char *when, int fd) {
    struct name name;
    socklen_t len = sizeof name;
    NEED(getsockname(fd, (struct sockaddr *)&name, &len) == 0);
    int port = ntohs(name.port);
    out("%s: %s, %s", when, host_of(&name), port == 0 ? "no port" : port >= GIVEN && port < GIVEN + 3 ? "the port" : "a port");
}

static struct name anywhere(int port) {
    struct name name = {.in6 = {.sin6_family = family, .sin6_port = htons(port)}};
    return name;
}

/* Whether somebody else may have its port now. */
static void is_free(const char *what, int port) {
    int other = socket(family, SOCK_DGRAM, 0);
    struct name at = anywhere(port);
    errno = 0;
    int result = bind(other, ADDRESS(at));
    out("%s may be had: %d %s", what, result, result < 0 ? strerrorname_np(errno) : "");
    close(other);
}

static void connect_and_disconnect(const char *what, int fd) {
    struct name to = name_of(peer, atoi(tell("bind D")));
    int before = port_of(fd);
    out("%s", what);
    show("before", fd);
    T(connect(fd, ADDRESS(to)));
    show("connected", fd);
    int port = port_of(fd);
    if (before) T(port == before);
    T(send(fd, "abc", 3, 0));
    tell("recvfrom D");
    T(connect(fd, &none, sizeof none));
    show("no longer", fd);
    is_free("its port", port);
    T(connect(fd, &none, sizeof none));
    T(send(fd, "abc", 3, 0));
    T(sendto(fd, "def", 3, 0, ADDRESS(to)));
    tell("recvfrom D");
    show("has sent again", fd);
    T(connect(fd, ADDRESS(to)));
    show("connected again", fd);
    T(connect(fd, &none, sizeof none));
    show("no longer again", fd);
    struct name other = name_of(own, GIVEN + 1);
    T(bind(fd, ADDRESS(other)));
    show("bound", fd);
    tell("close D");
    T(close(fd));
}

CASE(connected_no_longer) {
    connect_and_disconnect("new", socket(family, SOCK_DGRAM, 0));
    int fd = socket(family, SOCK_DGRAM, 0);
    struct name at = anywhere(0);
    T(bind(fd, ADDRESS(at)));
    connect_and_disconnect("bound to any port", fd);
    fd = socket(family, SOCK_DGRAM, 0);
    at = anywhere(GIVEN);
    T(bind(fd, ADDRESS(at)));
    connect_and_disconnect("bound to a port", fd);
    fd = socket(family, SOCK_DGRAM, 0);
    at = name_of(own, 0);
    T(bind(fd, ADDRESS(at)));
    connect_and_disconnect("bound to an address", fd);
    fd = socket(family, SOCK_DGRAM, 0);
    at = name_of(own, GIVEN);
    T(bind(fd, ADDRESS(at)));
    connect_and_disconnect("bound to both", fd);
    fd = socket(family, SOCK_DGRAM, 0);
    struct name to = name_of(peer, atoi(tell("bind E")));
    T(sendto(fd, "abc", 3, 0, ADDRESS(to)));
    connect_and_disconnect("has sent", fd);
}

/* What was sent to the one peer goes to it, though the socket has another one at once, or none. */
CASE(sent_before_the_peer_changes) {
    struct name one = name_of(peer, atoi(tell("bind D"))), two = name_of(peer, atoi(tell("bind E")));
    int fd = socket(family, SOCK_DGRAM, 0);
    NEED(connect(fd, ADDRESS(one)) == 0);
    for (int i = 0; i < 20; i++) {
        char text[8];
        int len = snprintf(text, sizeof text, "%d", i);
        NEED(send(fd, text, len, 0) == len && connect(fd, ADDRESS(two)) == 0);
        NEED(send(fd, text, len, 0) == len && connect(fd, &none, sizeof none) == 0);
        NEED(connect(fd, ADDRESS(one)) == 0);
    }
    for (int i = 0; i < 20; i++) {
        tell("recvfrom D");
        tell("recvfrom E");
    }
}

/* What has come stays to be read, and what comes is for nobody. */
CASE(received_before_it_is_given_up) {
    int fd = socket(family, SOCK_DGRAM, 0);
    struct name to = name_of(peer, atoi(tell("bind D")));
    T(connect(fd, ADDRESS(to)));
    int port = port_of(fd);
    tell("sendto D %s %d abc", own, port);
    T(await(fd, POLLIN));
    T(connect(fd, &none, sizeof none));
    T(now_has(fd, POLLIN | POLLOUT));
    char bytes[8];
    T(recv(fd, bytes, sizeof bytes, MSG_DONTWAIT));
    T(recv(fd, bytes, sizeof bytes, MSG_DONTWAIT));
    T(now_has(fd, POLLIN | POLLOUT));
    T(getpeername(fd, (struct sockaddr *)&to, &(socklen_t){sizeof to}));
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    T(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    T(epoll_wait(set, &event, 1, 0));
    struct name at = anywhere(GIVEN);
    T(bind(fd, ADDRESS(at)));
    tell("sendto D %s %d def", own, GIVEN);
    T(epoll_wait(set, &event, 1, SOON_MS));
    T(recv(fd, bytes, sizeof bytes, MSG_DONTWAIT));
    pid_t child = fork();
    if (child == 0) {
        show("the child's", fd);
        T(connect(fd, ADDRESS(to)));
        T(connect(fd, &none, sizeof none));
        show("the child's", fd);
        _exit(0);
    }
    NEED(waitpid(child, NULL, 0) == child);
}

static int stream_at(int no_port, const char *host, int port) {
    int fd = socket(family, SOCK_STREAM, 0);
    struct name at = name_of(host, port);
    T(set_option(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, no_port));
    T(option(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT));
    T(bind(fd, ADDRESS(at)));
    return fd;
}

/* The port is chosen when the socket connects or listens. */
CASE(bound_without_a_port) {
    struct name first = name_of(peer, atoi(tell("listen L"))), second = name_of(peer, atoi(tell("listen M")));
    int fd = stream_at(1, own, 0);
    show("bound", fd);
    struct name at = name_of(own, GIVEN);
    T(bind(fd, ADDRESS(at)));
    T(connect(fd, ADDRESS(first)));
    show("connected", fd);
    T(option(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT));
    fd = stream_at(1, own, GIVEN);
    show("bound to a port", fd);
    T(connect(fd, ADDRESS(first)));
    show("connected", fd);
    fd = stream_at(1, own, 0);
    T(listen(fd, 4));
    show("listening", fd);
    tell("connect A %s %d", own, port_of(fd));
    int one = T(accept(fd, NULL, NULL));
    T(option(one, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT));
    fd = stream_at(0, own, 0);
    show("with a port", fd);
    fd = stream_at(1, own, 0);
    T(set_option(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 0));
    show("taken back", fd);
    T(connect(fd, ADDRESS(second)));
    show("connected", fd);
    nonblock(fd);
    char byte;
    T(recv(fd, &byte, 1, 0));
    fd = socket(family, SOCK_STREAM, 0);
    at = anywhere(0);
    T(set_option(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1));
    T(bind(fd, ADDRESS(at)));
    show("anywhere", fd);
    T(connect(fd, ADDRESS(second)));
    show("connected", fd);
}

/* Two connections of one address and port to different places. */
CASE(one_port_for_two_places) {
    struct name first = name_of(peer, atoi(tell("listen L"))), second = name_of(peer, atoi(tell("listen M")));
    int one = stream_at(1, own, 0), two = stream_at(1, own, 0);
    T(set_option(one, IPPROTO_IP, LOCAL_PORT_RANGE, RANGE(LOW, LOW)));
    T(set_option(two, IPPROTO_IP, LOCAL_PORT_RANGE, RANGE(LOW, LOW)));
    T(connect(one, ADDRESS(first)));
    T(connect(two, ADDRESS(second)));
    T(port_of(one));
    T(port_of(two));
    int three = stream_at(1, own, 0);
    T(set_option(three, IPPROTO_IP, LOCAL_PORT_RANGE, RANGE(LOW, LOW)));
    T(connect(three, ADDRESS(first)));
    T(connect(three, ADDRESS(first)));
}

CASE(datagrams_bound_without_a_port) {
    struct name to = name_of(peer, atoi(tell("bind D"))), at = name_of(own, 0);
    int fd = socket(family, SOCK_DGRAM, 0);
    T(set_option(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1));
    T(bind(fd, ADDRESS(at)));
    show("bound", fd);
    T(option(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT));
    T(connect(fd, ADDRESS(to)));
    show("connected", fd);
}

static int in_range(int fd, int low, int high) {
    int port = port_of(fd);
    return port >= low && port <= high;
}

static void values_of_ranges(int fd) {
    static const unsigned values[] = {0, RANGE(1, 2), RANGE(2, 1), RANGE(5, 5), RANGE(0, 9), 9, 0xffffffff,
                                      RANGE(60000u, 70u), RANGE(LOW, HIGHEST)};
    T(option(fd, IPPROTO_IP, LOCAL_PORT_RANGE));
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        out("%#x", values[i]);
        T(set_option(fd, IPPROTO_IP, LOCAL_PORT_RANGE, values[i]));
        T(option(fd, IPPROTO_IP, LOCAL_PORT_RANGE));
    }
    unsigned short half = 7;
    T(setsockopt(fd, IPPROTO_IP, LOCAL_PORT_RANGE, &half, 2));
    T(setsockopt(fd, IPPROTO_IP, LOCAL_PORT_RANGE, &values[1], 0));
    T(setsockopt(fd, IPPROTO_IP, LOCAL_PORT_RANGE, NULL, 4));
}

CASE(ranges_of_ports) {
    values_of_ranges(socket(family, SOCK_STREAM, 0));
    values_of_ranges(socket(family, SOCK_DGRAM, 0));
    values_of_ranges(connected("A"));
    struct name to = name_of(peer, atoi(tell("listen L"))), there = name_of(peer, atoi(tell("bind D")));
    int fd[6];
    for (int i = 0; i < 6; i++) {
        fd[i] = socket(family, SOCK_STREAM, 0);
        T(set_option(fd[i], IPPROTO_IP, LOCAL_PORT_RANGE, RANGE(LOW, HIGHEST)));
        T(connect(fd[i], ADDRESS(to)));
        if (i < 4) T(in_range(fd[i], LOW, HIGHEST));
    }
    for (int i = 0; i < 6; i++) {
        fd[i] = socket(family, SOCK_DGRAM, 0);
        T(set_option(fd[i], IPPROTO_IP, LOCAL_PORT_RANGE, RANGE(LOW, HIGHEST)));
        T(connect(fd[i], ADDRESS(there)));
        if (i < 4) T(in_range(fd[i], LOW, HIGHEST));
    }
    struct name at = name_of(own, 0);
    for (int i = 0; i < 6; i++) {
        fd[i] = socket(family, SOCK_STREAM, 0);
        T(set_option(fd[i], IPPROTO_IP, LOCAL_PORT_RANGE, RANGE(LOW + 10, HIGHEST + 10)));
        T(bind(fd[i], ADDRESS(at)));
        if (i < 4) T(in_range(fd[i], LOW + 10, HIGHEST + 10));
    }
    int other = socket(family, SOCK_DGRAM, 0);
    T(set_option(other, IPPROTO_IP, LOCAL_PORT_RANGE, RANGE(LOW + 20, HIGHEST + 20)));
    T(sendto(other, "abc", 3, 0, ADDRESS(there)));
    T(in_range(other, LOW + 20, HIGHEST + 20));
    other = socket(family, SOCK_STREAM, 0);
    T(set_option(other, IPPROTO_IP, LOCAL_PORT_RANGE, RANGE(LOW + 20, HIGHEST + 20)));
    T(listen(other, 2));
    T(in_range(other, LOW + 20, HIGHEST + 20));
    tell("connect C %s %d", own, port_of(other));
    int one = T(accept(other, NULL, NULL));
    T(option(one, IPPROTO_IP, LOCAL_PORT_RANGE));
}
