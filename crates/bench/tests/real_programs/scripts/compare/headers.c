/* What a program says of the network headers of a connection: the other host tells what they are on the wire. */
#include "compare.h"

static int started(const char *role) { return role == NULL; }

#define SERVICE OF_IP(IP_TOS, IPV6_TCLASS)
#define HOPS OF_IP(IP_TTL, IPV6_UNICAST_HOPS)
#define DISCOVERY OF_IP(IP_MTU_DISCOVER, IPV6_MTU_DISCOVER)
#define ERRORS OF_IP(IP_RECVERR, IPV6_RECVERR)
#define WAY OF_IP(IP_MTU, IPV6_MTU)

/* A connection that we open, of a socket on which `first` may set something. */
static int connect_after(void (*first)(int fd), const char *name) {
    int port = atoi(tell("listen L%s", name));
    int fd = socket(family, SOCK_STREAM, 0);
    struct name to = name_of(peer, port);
    if (first) first(fd);
    NEED(fd >= 0 && connect(fd, ADDRESS(to)) == 0);
    NEED(!strcmp(tell("accept L%s %s", name, name), "ok"));
    return fd;
}

/* What the other host has seen of our port since `watch`: type of service, TTL and DF of these kinds of segments. */
static void seen(int port, const char *kinds) {
    out("seen %s", tell("watched W %d %s", port, kinds));
}

static void telephony(int fd) {
    T(set_option(fd, SERVICE, 0xb8));
    T(set_option(fd, HOPS, 33));
}

CASE(set_before_connect) {
    tell("watch W");
    int fd = connect_after(telephony, "A"), port = port_of(fd);
    T(option(fd, SERVICE));
    T(option(fd, HOPS));
    T(send(fd, "data", 4, 0));
    tell("read A 4");
    T(shutdown(fd, SHUT_WR));
    tell("drain A");
    seen(port, "S D F");
}

/* As `telephony`, on a socket that is bound, which is refused once. */
static void refused_once(int fd) {
    struct name any = name_of(own, 0);
    NEED(bind(fd, ADDRESS(any)) == 0);
    telephony(fd);
    struct name nobody = name_of(peer, 9);
    T(connect(fd, ADDRESS(nobody)));
}

CASE(set_before_another_connect) {
    tell("watch W");
    int fd = connect_after(refused_once, "A"), port = port_of(fd);
    T(option(fd, SERVICE));
    T(option(fd, HOPS));
    T(send(fd, "data", 4, 0));
    tell("read A 4");
    seen(port, "S D");
}

CASE(changed_while_connected) {
    int fd = connect_after(NULL, "A"), port = port_of(fd);
    static const struct {
        int service, hops;
    } steps[] = {{0x10, 64}, {0xff, 1}, {0, 255}, {0x28, -1}};
    for (int i = 0; i < 4; i++) {
        tell("watch W");
        T(set_option(fd, SERVICE, steps[i].service));
        T(set_option(fd, HOPS, steps[i].hops));
        T(option(fd, SERVICE));
        T(option(fd, HOPS));
        T(send(fd, "data", 4, 0));
        tell("read A 4");
        seen(port, "D");
    }
}

CASE(accepted_sockets_inherit) {
    int fd = listener(), port = port_of(fd);
    T(set_option(fd, SERVICE, 0x28));
    T(set_option(fd, HOPS, 20));
    tell("watch W");
    tell("connect A %s %d", own, port);
    int new = accept(fd, NULL, NULL);
    T(option(new, SERVICE));
    T(option(new, HOPS));
    T(send(new, "data", 4, 0));
    tell("read A 4");
    seen(port, "SA D");
    T(set_option(new, SERVICE, 0x48));
    T(option(fd, SERVICE));
    T(option(new, SERVICE));
    T(set_option(fd, SERVICE, 0));
    T(set_option(fd, HOPS, -1));
    tell("watch W");
    tell("connect B %s %d", own, port);
    int other = accept(fd, NULL, NULL);
    T(option(other, SERVICE));
    T(option(new, SERVICE));
    T(send(other, "data", 4, 0));
    tell("read B 4");
    seen(port, "SA D");
    tell("watch W");
    T(send(new, "data", 4, 0));
    tell("read A 4");
    seen(port, "D");
}

CASE(resets) {
    tell("watch W");
    int fd = connect_after(telephony, "A"), port = port_of(fd);
    struct linger none = {1, 0};
    T(setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none));
    T(close(fd));
    tell("drain A");
    seen(port, "R");
    /* Nobody listens: the answer has the service of the question. */
    int free = listener();
    port = port_of(free);
    close(free);
    tell("watch W");
    tell("connect_with B %s %d 40", own, port);
    seen(port, "R");
}

CASE(fragments) {
    int fd = connect_after(NULL, "A"), port = port_of(fd);
    T(option(fd, DISCOVERY));
    for (int how = IP_PMTUDISC_DONT; how <= IP_PMTUDISC_OMIT; how++) {
        tell("watch W");
        T(set_option(fd, DISCOVERY, how));
        T(option(fd, DISCOVERY));
        T(send(fd, "data", 4, 0));
        tell("read A 4");
        seen(port, "D");
    }
}

CASE(values) {
    int fd = connect_after(NULL, "A");
    static const int values[] = {-2, -1, 0, 1, 3, 6, 0x1b, 255, 256};
    for (int i = 0; i < (int)(sizeof values / sizeof *values); i++) {
        out("value %d", values[i]);
        T(set_option(fd, SERVICE, values[i]));
        T(option(fd, SERVICE));
        T(set_option(fd, HOPS, values[i]));
        T(option(fd, HOPS));
        T(set_option(fd, DISCOVERY, values[i]));
        T(option(fd, DISCOVERY));
    }
    unsigned char octet = 0x20;
    socklen_t len = 1;
    T(setsockopt(fd, SERVICE, &octet, 1));
    T(setsockopt(fd, HOPS, &octet, 1));
    octet = 0;
    T(getsockopt(fd, SERVICE, &octet, &len));
    T(octet);
    T(len);
    T(option(fd, HOPS));
    T(setsockopt(fd, HOPS, &octet, 0));
    T(setsockopt(fd, SERVICE, NULL, 4));
    T(option(fd, IPPROTO_IPV6, IPV6_TCLASS));
    T(set_option(fd, IPPROTO_IPV6, IPV6_TCLASS, 0x20));
}

CASE(values_of_ipv6) {
    if (over_inet6) return;
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    int port = atoi(tell("listen L"));
    struct sockaddr_in6 to = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    char mapped[64];
    snprintf(mapped, sizeof mapped, "::ffff:%s", peer);
    NEED(inet_pton(AF_INET6, mapped, &to.sin6_addr) == 1 && connect(fd, ADDRESS(to)) == 0);
    static const int values[] = {-2, -1, 0, 1, 3, 6, 0x1b, 255, 256};
    for (int i = 0; i < (int)(sizeof values / sizeof *values); i++) {
        out("value %d", values[i]);
        T(set_option(fd, IPPROTO_IPV6, IPV6_TCLASS, values[i]));
        T(option(fd, IPPROTO_IPV6, IPV6_TCLASS));
        T(set_option(fd, IPPROTO_IPV6, IPV6_UNICAST_HOPS, values[i]));
        T(option(fd, IPPROTO_IPV6, IPV6_UNICAST_HOPS));
        T(set_option(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, values[i]));
        T(option(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER));
        T(set_option(fd, IPPROTO_IP, IP_TOS, values[i]));
        T(option(fd, IPPROTO_IP, IP_TOS));
    }
}

CASE(mtu_of_the_way) {
    int fd = socket(family, SOCK_STREAM, 0);
    T(option(fd, WAY));
    T(option(listener(), WAY));
    T(option(connect_after(NULL, "A"), WAY));
    T(option(accepted("B"), WAY));
}

/* A router's word that a connection outlives: only who asks hears it, from the next call or SO_ERROR (IP_RECVERR). */
CASE(what_routers_say_of_a_connection) {
    int fd = connect_after(NULL, "A");
    char byte;
    tell("unreachable A 1");
    tell("send A x");
    NEED(await(fd, POLLIN) & POLLIN);
    T(option(fd, SOL_SOCKET, SO_ERROR));
    T(recv(fd, &byte, 1, 0));
    T(set_option(fd, ERRORS, 1));
    T(option(fd, ERRORS));
    tell("unreachable A 1");
    T(await(fd, 0));
    T(recv(fd, &byte, 1, MSG_DONTWAIT));
    T(recv(fd, &byte, 1, MSG_DONTWAIT));
    tell("unreachable A 0");
    T(await(fd, 0));
    T(send(fd, "a", 1, 0));
    T(send(fd, "b", 1, 0));
    tell("read A 1");
    tell("unreachable A 3");
    T(await(fd, 0));
    T(option(fd, SOL_SOCKET, SO_ERROR));
    T(option(fd, SOL_SOCKET, SO_ERROR));
    T(recv(fd, &byte, 1, MSG_ERRQUEUE));
    T(shutdown(fd, SHUT_WR));
    tell("drain A");
}

/* Nor does an answer to a SYN come over more than IP_MINTTL says. */
CASE(answers_from_afar) {
    struct name to = name_of(peer, atoi(tell("listen M")));
    int level = over_inet6 ? IPPROTO_IPV6 : IPPROTO_IP, name = over_inet6 ? 73 /* IPV6_MINHOPCOUNT */ : 21 /* IP_MINTTL */;
    struct timeval soon = {0, 300000};
    for (int least = 255; least >= 64; least -= 191) {
        int fd = socket(family, SOCK_STREAM, 0);
        T(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &soon, sizeof soon));
        T(set_option(fd, level, name, least));
        T(connect(fd, ADDRESS(to)));
        T(close(fd));
    }
}

/* What has come over too many routers is dropped (IP_MINTTL): a listener's SYNs, a connection's data. */
CASE(least_hops) {
    int level = family == AF_INET ? IPPROTO_IP : IPPROTO_IPV6, name = family == AF_INET ? 21 : 73;
    int fd = listener();
    T(option(fd, level, name));
    T(set_option(fd, level, name, 65));
    T(option(fd, level, name));
    T(set_option(fd, level, name, 256));
    char line[128], byte;
    int n = snprintf(line, sizeof line, "connect A %s %d\n", own, port_of(fd));
    NEED(send(control, line, n, 0) == n);
    struct pollfd one = {fd, POLLIN, 0};
    T(poll(&one, 1, 500));
    T(set_option(fd, level, name, 64));
    T(await(fd, POLLIN));
    NEED(recv(control, line, sizeof line, 0) > 0);
    int new = T(accept(fd, NULL, NULL));
    T(option(new, level, name));
    T(set_option(new, level, name, 65));
    tell("send A x");
    one.fd = new;
    T(poll(&one, 1, 300));
    T(set_option(new, level, name, 0));
    T(recv(new, &byte, 1, 0));
}
