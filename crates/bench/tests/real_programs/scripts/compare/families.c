/* What only sockets of IPv6 have: both families at one socket, mapped addresses, scopes, groups (ipv6(7), RFC 3493). */
#include "datagrams.h"

static int started(const char *role) { return role == NULL; }

static int of_inet6(int kind, int only) {
    int fd = socket(AF_INET6, kind, 0);
    NEED(fd >= 0 && set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, only) == 0);
    return fd;
}

static struct name of_inet(const char *host, int port) {
    struct name name = {.in = {.sin_family = AF_INET, .sin_port = htons(port)}};
    NEED(inet_pton(AF_INET, host, &name.in.sin_addr) == 1);
    return name;
}

/* Prints both names of a socket. */
static void names(int fd) {
    struct name name = {0};
    socklen_t len = sizeof name;
    T(getsockname(fd, (struct sockaddr *)&name, &len));
    out("here %s, length %d, scope %u", host_of(&name), len, name.in6.sin6_scope_id);
    len = sizeof name;
    if (T(getpeername(fd, (struct sockaddr *)&name, &len)) == 0) out("there %s, length %d", host_of(&name), len);
}

CASE(a_listener_of_both) {
    int fd = of_inet6(SOCK_STREAM, 0);
    struct name at = name_of("::", 0), from;
    T(bind(fd, ADDRESS(at)));
    T(listen(fd, 4));
    const char *hosts[] = {own, other_own};
    for (int i = 0; i < 2; i++) {
        out("%s", tell("connect %c %s %d", 'A' + i, hosts[i], port_of(fd)));
        socklen_t len = sizeof from;
        int new = T(accept(fd, (struct sockaddr *)&from, &len));
        out("from %s, length %d, family %d", host_of(&from), len, from.family);
        names(new);
        T(option(new, SOL_SOCKET, SO_DOMAIN));
        T(option(new, IPPROTO_IPV6, IPV6_V6ONLY));
        T(set_option(new, IPPROTO_IP, IP_TOS, 0x10));
        T(option(new, IPPROTO_IP, IP_TOS));
        T(send(new, "hi", 2, 0));
        tell("read %c 2", 'A' + i);
    }
    names(fd);
}

CASE(a_listener_of_one) {
    int fd = of_inet6(SOCK_STREAM, 1);
    struct name at = name_of("::", 0);
    T(bind(fd, ADDRESS(at)));
    T(listen(fd, 4));
    T(set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0));
    out("%s", tell("connect A %s %d", other_own, port_of(fd)));
    out("%s", tell("connect B %s %d", own, port_of(fd)));
    T(accept(fd, NULL, NULL));
    int other = socket(AF_INET, SOCK_STREAM, 0);
    T(set_option(other, IPPROTO_IPV6, IPV6_V6ONLY, 1));
    T(option(other, IPPROTO_IPV6, IPV6_V6ONLY));
}

/* It is this host's, and of the family that the socket's own has. */
CASE(no_address_for_a_mapped_one) {
    char mapped[64];
    snprintf(mapped, sizeof mapped, "::ffff:%s", other_own);
    int fd = of_inet6(SOCK_STREAM, 0), to = of_inet6(SOCK_STREAM, 0);
    struct name at = name_of("::", 0), here = name_of(mapped, 0);
    NEED(bind(fd, ADDRESS(at)) == 0 && listen(fd, 1) == 0 && bind(to, ADDRESS(here)) == 0);
    at.in6.sin6_port = htons(port_of(fd));
    T(connect(to, ADDRESS(at)));
    names(to);
    names(T(accept(fd, NULL, NULL)));
}

/* What may stand at one port beside what. */
static void beside_each_other(int kind, int reuse) {
    int port = 7200;
    struct place {
        const char *host;
        int only;
    } places[] = {{"::", 0}, {"::", 1}, {"0.0.0.0", 0}, {own, 0}, {other_own, 0}, {NULL, 0}};
    char mapped[64];
    snprintf(mapped, sizeof mapped, "::ffff:%s", other_own);
    places[5].host = mapped;
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < 6; j++) {
            int fds[2];
            port++;
            for (int k = 0; k < 2; k++) {
                struct place *place = &places[k ? j : i];
                int inet6 = strchr(place->host, ':') != NULL;
                fds[k] = inet6 ? of_inet6(kind, place->only) : socket(AF_INET, kind, 0);
                if (reuse) set_option(fds[k], SOL_SOCKET, reuse, 1);
                struct name at = inet6 ? name_of(place->host, port) : of_inet(place->host, port);
                errno = 0;
                int result = bind(fds[k], ADDRESS(at));
                if (k) out("%d beside %d: %d %s", j, i, result, result ? strerrorname_np(errno) : "");
                else NEED(result == 0);
            }
            close(fds[0]), close(fds[1]);
        }
}

CASE(listeners_beside_each_other) { beside_each_other(SOCK_STREAM, 0); }
CASE(listeners_that_reuse_addresses) { beside_each_other(SOCK_STREAM, SO_REUSEADDR); }
CASE(listeners_that_reuse_ports) { beside_each_other(SOCK_STREAM, SO_REUSEPORT); }
CASE(datagrams_beside_each_other) { beside_each_other(SOCK_DGRAM, 0); }
CASE(datagrams_that_reuse_addresses) { beside_each_other(SOCK_DGRAM, SO_REUSEADDR); }

CASE(mapped_addresses) {
    int port = atoi(tell("beside D %s", other_peer));
    struct name there = name_of(other_peer, port), here = name_of(other_own, 0);
    int fd = of_inet6(SOCK_DGRAM, 1);
    T(bind(fd, ADDRESS(here)));
    T(connect(fd, ADDRESS(there)));
    T(sendto(fd, "only", 4, 0, ADDRESS(there)));
    fd = of_inet6(SOCK_STREAM, 1);
    T(bind(fd, ADDRESS(here)));
    T(connect(fd, ADDRESS(there)));
    fd = of_inet6(SOCK_DGRAM, 0);
    T(bind(fd, ADDRESS(here)));
    T(set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1));
    T(connect(fd, ADDRESS(there)));
    names(fd);
    T(send(fd, "one", 3, 0));
    tell("recvfrom D");
    struct name wide = name_of(peer, 9);
    T(sendto(fd, "two", 3, 0, ADDRESS(wide)));
    T(connect(fd, ADDRESS(wide)));
    struct name none = {.family = AF_UNSPEC};
    T(connect(fd, ADDRESS(none)));
    names(fd);
}

CASE(names_of_the_other_family) {
    int port = atoi(tell("beside D %s", other_peer));
    struct name there = of_inet(other_peer, port), here = of_inet(other_own, 0);
    int fd = of_inet6(SOCK_DGRAM, 0);
    T(bind(fd, ADDRESS(here)));
    T(sendto(fd, "one", 3, 0, ADDRESS(there)));
    tell("recvfrom D");
    T(connect(fd, ADDRESS(there)));
    names(fd);
    T(send(fd, "two", 3, 0));
    tell("recvfrom D");
    fd = of_inet6(SOCK_DGRAM, 1);
    T(sendto(fd, "one", 3, 0, ADDRESS(there)));
    T(connect(fd, ADDRESS(there)));
    fd = of_inet6(SOCK_STREAM, 0);
    T(bind(fd, ADDRESS(here)));
    T(connect(fd, ADDRESS(there)));
    /* As it was before scopes (RFC 2133), and shorter. */
    struct name six = name_of(own, 0);
    T(bind(fd, (struct sockaddr *)&six, 23));
    T(bind(fd, (struct sockaddr *)&six, 24));
    fd = socket(AF_INET, SOCK_DGRAM, 0);
    six = name_of(peer, port);
    T(connect(fd, ADDRESS(six)));
    T(sendto(fd, "six", 3, 0, ADDRESS(six)));
    six.family = AF_UNSPEC;
    T(sendto(fd, "none", 4, 0, ADDRESS(six)));
}

CASE(streams_to_mapped_addresses) {
    struct name there = name_of(other_peer, 9), here = name_of(own, 0);
    int fd = of_inet6(SOCK_STREAM, 0);
    T(bind(fd, ADDRESS(here)));
    T(connect(fd, ADDRESS(there)));
    names(fd);
    fd = of_inet6(SOCK_STREAM, 0);
    here = name_of(other_own, 0), there = name_of(peer, 9);
    T(bind(fd, ADDRESS(here)));
    T(connect(fd, ADDRESS(there)));
    fd = of_inet6(SOCK_STREAM, 0);
    there = name_of(peer, atoi(tell("listen L")));
    T(connect(fd, ADDRESS(there)));
    names(fd);
}

CASE(datagrams_of_both) {
    int fd = of_inet6(SOCK_DGRAM, 0);
    struct name at = name_of("::", 7130);
    T(bind(fd, ADDRESS(at)));
    static const int names6[] = {IPV6_RECVPKTINFO, IPV6_RECVHOPLIMIT, IPV6_RECVTCLASS};
    for (int i = 0; i < 3; i++) T(set_option(fd, IPPROTO_IPV6, names6[i], 1));
    tell("bind D");
    tell("beside E %s", other_peer);
    for (int round = 0; round < 3; round++) {
        tell("sendto D %s %d six", own, port_of(fd));
        receive(fd, 0);
        out("from %s", host_of(&from));
        struct name back = from;
        T(sendto(fd, "back", 4, 0, ADDRESS(back)));
        tell("recvfrom D");
        tell("sendto E %s %d four", other_own, port_of(fd));
        receive(fd, 0);
        out("from %s", host_of(&from));
        back = from;
        T(sendto(fd, "back", 4, 0, ADDRESS(back)));
        tell("recvfrom E");
        if (round == 0) {
            T(set_option(fd, IPPROTO_IP, IP_PKTINFO, 1));
            T(set_option(fd, IPPROTO_IP, IP_RECVTTL, 1));
            T(set_option(fd, IPPROTO_IP, IP_RECVTOS, 1));
        } else {
            for (int i = 0; i < 3; i++) T(set_option(fd, IPPROTO_IPV6, names6[i], 0));
        }
    }
}

CASE(datagrams_of_one_to_mapped_addresses) {
    for (int only = 0; only < 3; only++) {
        int fd = of_inet6(SOCK_DGRAM, 0);
        struct name at = name_of(only == 2 ? own : "::", 0), there = name_of(other_peer, 9);
        T(set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, only == 1));
        T(bind(fd, ADDRESS(at)));
        T(sendto(fd, "x", 1, 0, ADDRESS(there)));
    }
}

CASE(refused_over_either) {
    int fd = of_inet6(SOCK_DGRAM, 0), port = atoi(tell("beside D %s", other_peer));
    tell("close D");
    struct name to = name_of(other_peer, port);
    T(set_option(fd, IPPROTO_IPV6, IPV6_RECVERR, 1));
    T(set_option(fd, IPPROTO_IP, IP_RECVERR, 1));
    T(sendto(fd, "nobody", 6, 0, ADDRESS(to)));
    T(poll(&(struct pollfd){fd, 0, 0}, 1, SOON_MS));
    room(sizeof bytes, sizeof beside);
    T(recvmsg(fd, &message, MSG_ERRQUEUE));
    show();
    out("was for %s", host_of(&from));
    T(option(fd, SOL_SOCKET, SO_ERROR));
}

CASE(scopes) {
    int stream = of_inet6(SOCK_STREAM, 0), fd = of_inet6(SOCK_DGRAM, 0);
    struct name local = name_of("fe80::77", 9);
    T(connect(stream, ADDRESS(local)));
    T(connect(fd, ADDRESS(local)));
    T(sendto(fd, "x", 1, 0, ADDRESS(local)));
    T(bind(fd, ADDRESS(local)));
    T(bind(stream, ADDRESS(local)));
    local.in6.sin6_scope_id = 9999;
    T(bind(fd, ADDRESS(local)));
    local = name_of(own, 0);
    local.in6.sin6_scope_id = 9999;
    T(bind(fd, ADDRESS(local)));
    names(fd);
    struct name away = name_of("2001:db8:99::1", 9), group = name_of("ff02::77", 0);
    T(connect(fd, ADDRESS(away)));
    T(bind(stream, ADDRESS(group)));
    T(connect(stream, ADDRESS(group)));
}

/* Groups. */

static const char *group = "ff15::7:1";
enum { DEVICE_NONE = 9999 };

static int membership(int fd, int name, const char *of, int device) {
    struct ipv6_mreq request = {name_of(of, 0).in6.sin6_addr, device};
    return setsockopt(fd, IPPROTO_IPV6, name, &request, sizeof request);
}

static int by_source(int fd, int name, const char *of, const char *source) {
    struct group_source_req request = {.gsr_interface = if_nametoindex("eth0")};
    struct name to = name_of(of, 0), by = name_of(source, 0);
    memcpy(&request.gsr_group, &to, sizeof to), memcpy(&request.gsr_source, &by, sizeof by);
    return setsockopt(fd, IPPROTO_IPV6, name, &request, sizeof request);
}

static int shared(int port) {
    int fd = of_inet6(SOCK_DGRAM, 0);
    struct name name = name_of("::", port);
    NEED(set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1) == 0 && bind(fd, ADDRESS(name)) == 0);
    return fd;
}

static void to_group(int port, const char *text) { NEED(!strcmp(tell("sendto D %s %d %s", group, port, text), "ok")); }

CASE(groups_joined_and_left) {
    int fd = shared(7131), second = shared(7131), only = shared(7131), device = if_nametoindex("eth0");
    T(set_option(only, IPPROTO_IPV6, IPV6_MULTICAST_ALL, 0));
    tell("bind_any D 0");
    tell("join D %s", group);
    to_group(7131, "early");
    settle();
    T(recv(fd, bytes, 20, MSG_DONTWAIT));
    T(membership(fd, IPV6_JOIN_GROUP, group, device));
    T(membership(fd, IPV6_JOIN_GROUP, group, device));
    T(membership(fd, IPV6_JOIN_GROUP, own, device));
    T(membership(fd, IPV6_JOIN_GROUP, group, DEVICE_NONE));
    T(membership(second, IPV6_LEAVE_GROUP, group, device));
    T(set_option(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1));
    to_group(7131, "joined");
    receive(fd, 0);
    settle();
    T(recv(second, bytes, 20, MSG_DONTWAIT));
    T(recv(only, bytes, 20, MSG_DONTWAIT));
    T(membership(fd, IPV6_LEAVE_GROUP, group, device));
    T(membership(fd, IPV6_LEAVE_GROUP, group, device));
    to_group(7131, "left");
    settle();
    T(recv(fd, bytes, 20, MSG_DONTWAIT));
    T(setsockopt(fd, IPPROTO_IPV6, IPV6_JOIN_GROUP, &device, 4));
    T(setsockopt(fd, IPPROTO_IPV6, IPV6_JOIN_GROUP, NULL, sizeof(struct ipv6_mreq)));
}

CASE(groups_by_source) {
    int fd = shared(7132);
    tell("bind_any D 0");
    tell("join D %s", group);
    T(by_source(fd, MCAST_LEAVE_SOURCE_GROUP, group, peer));
    T(by_source(fd, MCAST_BLOCK_SOURCE, group, peer));
    T(by_source(fd, MCAST_JOIN_SOURCE_GROUP, group, "2001:db8:99::1"));
    to_group(7132, "other");
    settle();
    T(recv(fd, bytes, 20, MSG_DONTWAIT));
    T(by_source(fd, MCAST_JOIN_SOURCE_GROUP, group, peer));
    T(by_source(fd, MCAST_JOIN_SOURCE_GROUP, group, peer));
    to_group(7132, "wanted");
    receive(fd, 0);
    T(by_source(fd, MCAST_LEAVE_SOURCE_GROUP, group, peer));
    to_group(7132, "dropped");
    settle();
    T(recv(fd, bytes, 20, MSG_DONTWAIT));
    T(by_source(fd, MCAST_LEAVE_SOURCE_GROUP, group, "2001:db8:99::1"));
    T(by_source(fd, MCAST_LEAVE_SOURCE_GROUP, group, "2001:db8:99::1"));
    T(membership(fd, IPV6_JOIN_GROUP, group, if_nametoindex("eth0")));
    T(by_source(fd, MCAST_BLOCK_SOURCE, group, peer));
    T(by_source(fd, MCAST_BLOCK_SOURCE, group, peer));
    to_group(7132, "blocked");
    settle();
    T(recv(fd, bytes, 20, MSG_DONTWAIT));
    T(by_source(fd, MCAST_UNBLOCK_SOURCE, group, peer));
    T(by_source(fd, MCAST_UNBLOCK_SOURCE, group, peer));
    to_group(7132, "again");
    receive(fd, 0);
}

enum { MOST = 70 };

/* A filter of this group; its sources are 2001:db8:99::1 and on, and in place `at` the other host. */
static struct group_filter *filter_for(const char *of, int device, int mode, int count, int at) {
    static char space[GROUP_FILTER_SIZE(MOST)];
    struct group_filter *filter = (struct group_filter *)space;
    memset(space, 0, sizeof space);
    struct name to = name_of(of, 0);
    filter->gf_interface = device, filter->gf_fmode = mode, filter->gf_numsrc = count;
    memcpy(&filter->gf_group, &to, sizeof to);
    for (int i = 0; i < count; i++) {
        char text[40];
        sprintf(text, "2001:db8:99::%x", count - i);
        to = name_of(i == at ? peer : text, 0);
        memcpy(&filter->gf_slist[i], &to, sizeof to);
    }
    return filter;
}

static int set_filter(int fd, struct group_filter *filter) {
    return setsockopt(fd, IPPROTO_IPV6, MCAST_MSFILTER, filter, GROUP_FILTER_SIZE(filter->gf_numsrc));
}

static void filter_of(int fd, const char *of, int device, int room) {
    struct group_filter *filter = filter_for(of, device, 77, 0, -1);
    filter->gf_numsrc = room;
    socklen_t len = GROUP_FILTER_SIZE(room);
    if (T(getsockopt(fd, IPPROTO_IPV6, MCAST_MSFILTER, filter, &len)) == 0)
        out("mode %d, %d sources, length %d", filter->gf_fmode, filter->gf_numsrc, len);
    for (int i = 0; i < room; i++) {
        struct name *source = (struct name *)&filter->gf_slist[i];
        out("source family %d %s port %d", source->family, source->family ? host_of(source) : "", source->port);
    }
}

CASE(whole_filters) {
    int fd = shared(7135), device = if_nametoindex("eth0");
    tell("bind_any D 0");
    tell("join D %s", group);
    filter_of(fd, group, device, 1);
    T(set_filter(fd, filter_for(group, device, MCAST_EXCLUDE, 0, -1)));
    T(set_filter(fd, filter_for(group, device, MCAST_INCLUDE, 0, -1)));
    T(membership(fd, IPV6_JOIN_GROUP, group, device));
    filter_of(fd, group, device, 1);
    T(set_filter(fd, filter_for(group, device, MCAST_INCLUDE, 3, -1)));
    filter_of(fd, group, device, 0);
    filter_of(fd, group, device, 2);
    filter_of(fd, group, device, 4);
    filter_of(fd, group, 0, 1);
    filter_of(fd, group, DEVICE_NONE, 1);
    filter_of(fd, own, device, 1);
    to_group(7135, "others_only");
    settle();
    T(recv(fd, bytes, 20, MSG_DONTWAIT));
    T(by_source(fd, MCAST_JOIN_SOURCE_GROUP, group, peer));
    filter_of(fd, group, device, 5);
    to_group(7135, "peer_too");
    receive(fd, 0);
    T(set_filter(fd, filter_for(group, device, MCAST_EXCLUDE, 2, 1)));
    filter_of(fd, group, device, 3);
    to_group(7135, "not_peer");
    settle();
    T(recv(fd, bytes, 20, MSG_DONTWAIT));
    T(set_filter(fd, filter_for(group, device, MCAST_EXCLUDE, 0, -1)));
    to_group(7135, "all");
    receive(fd, 0);
    T(set_filter(fd, filter_for(group, device, MCAST_EXCLUDE, 64, -1)));
    filter_of(fd, group, device, 65);
    T(by_source(fd, MCAST_BLOCK_SOURCE, group, "2001:db8:98::1"));
    T(set_filter(fd, filter_for(group, device, MCAST_EXCLUDE, 65, -1)));
    T(set_filter(fd, filter_for(group, device, 2, 1, -1)));
    T(set_filter(fd, filter_for(own, device, MCAST_EXCLUDE, 1, -1)));
    T(set_filter(fd, filter_for(group, DEVICE_NONE, MCAST_EXCLUDE, 1, -1)));
    T(set_filter(fd, filter_for("ff15::7:2", device, MCAST_EXCLUDE, 1, -1)));
    struct group_filter *filter = filter_for(group, device, MCAST_EXCLUDE, 2, -1);
    T(setsockopt(fd, IPPROTO_IPV6, MCAST_MSFILTER, filter, GROUP_FILTER_SIZE(1)));
    T(setsockopt(fd, IPPROTO_IPV6, MCAST_MSFILTER, filter, GROUP_FILTER_SIZE(0) - 1));
    T(setsockopt(fd, IPPROTO_IPV6, MCAST_MSFILTER, NULL, GROUP_FILTER_SIZE(0)));
    filter->gf_group.ss_family = AF_INET;
    socklen_t len = GROUP_FILTER_SIZE(2);
    T(getsockopt(fd, IPPROTO_IPV6, MCAST_MSFILTER, filter, &len));
    T(set_filter(fd, filter_for(group, device, MCAST_INCLUDE, 0, -1)));
    filter_of(fd, group, device, 1);
}

CASE(sending_to_groups) {
    int fd = shared(7133), member = shared(7134), device = if_nametoindex("eth0");
    int port = atoi(tell("bind_any D 7134"));
    tell("ip D recvttl 1");
    tell("join D %s", group);
    struct name to = name_of(group, port);
    T(set_option(fd, IPPROTO_IPV6, IPV6_MULTICAST_IF, DEVICE_NONE));
    T(set_option(fd, IPPROTO_IPV6, IPV6_MULTICAST_IF, device));
    T(option(fd, IPPROTO_IPV6, IPV6_MULTICAST_IF) == device);
    T(membership(member, IPV6_JOIN_GROUP, group, device));
    T(sendto(fd, "both", 4, 0, ADDRESS(to)));
    tell("recvmsg D");
    receive(member, 0);
    out("from %s", host_of(&from));
    T(set_option(fd, IPPROTO_IPV6, IPV6_MULTICAST_LOOP, 0));
    T(set_option(fd, IPPROTO_IPV6, IPV6_MULTICAST_HOPS, 5));
    T(sendto(fd, "there", 5, 0, ADDRESS(to)));
    tell("recvmsg D");
    T(recv(member, bytes, 20, MSG_DONTWAIT));
    T(set_option(fd, IPPROTO_IPV6, IPV6_MULTICAST_LOOP, 1));
    T(connect(fd, ADDRESS(to)));
    T(send(fd, "connected", 9, 0));
    tell("recvmsg D");
    receive(member, 0);
}

CASE(bound_to_a_group) {
    int fd = of_inet6(SOCK_DGRAM, 0), stream = of_inet6(SOCK_STREAM, 0);
    struct name name = name_of(group, 7135);
    T(bind(stream, ADDRESS(name)));
    T(bind(fd, ADDRESS(name)));
    names(fd);
    T(membership(fd, IPV6_JOIN_GROUP, group, if_nametoindex("eth0")));
    tell("bind_any D 0");
    tell("join D %s", group);
    to_group(7135, "group");
    receive(fd, 0);
    NEED(!strcmp(tell("sendto D %s 7135 direct", own), "ok"));
    settle();
    T(recv(fd, bytes, 20, MSG_DONTWAIT));
}

static int of_ipv4(int fd, int name, const char *of) {
    struct ip_mreq request = {of_inet(of, 0).in.sin_addr, of_inet(other_own, 0).in.sin_addr};
    return setsockopt(fd, IPPROTO_IP, name, &request, sizeof request);
}

/* A group of IPv4 at sockets of IPv6: options of either level, and names that are mapped ones. */
CASE(groups_of_ipv4) {
    static const char *of_inet4 = "239.7.9.1";
    int fd = shared(7139), second = shared(7139), device = if_nametoindex("eth0"), only = of_inet6(SOCK_DGRAM, 1);
    char command[64];
    struct in_addr other = of_inet(other_peer, 0).in.sin_addr;
    tell("beside D %s", other_peer);
    tell("option D %d %d %d", IPPROTO_IP, IP_MULTICAST_IF, (int)other.s_addr);
    snprintf(command, sizeof command, "sendto D %s 7139", of_inet4);
    T(of_ipv4(fd, IP_ADD_MEMBERSHIP, of_inet4));
    T(of_ipv4(fd, IP_ADD_MEMBERSHIP, of_inet4));
    T(of_ipv4(only, IP_ADD_MEMBERSHIP, of_inet4));
    T(set_option(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1));
    T(set_option(fd, IPPROTO_IP, IP_PKTINFO, 1));
    tell("%s joined", command);
    receive(fd, 0);
    settle();
    T(recv(second, bytes, 20, MSG_DONTWAIT));
    T(of_ipv4(fd, IP_DROP_MEMBERSHIP, of_inet4));
    T(of_ipv4(fd, IP_DROP_MEMBERSHIP, of_inet4));
    tell("%s left", command);
    settle();
    T(recv(fd, bytes, 20, MSG_DONTWAIT));
    struct group_req request = {.gr_interface = device};
    struct name name = of_inet(of_inet4, 0);
    memcpy(&request.gr_group, &name.in, sizeof name.in);
    T(setsockopt(fd, IPPROTO_IPV6, MCAST_JOIN_GROUP, &request, sizeof request));
    T(setsockopt(fd, IPPROTO_IP, MCAST_JOIN_GROUP, &request, sizeof request));
    tell("%s again", command);
    receive(fd, 0);
    T(setsockopt(fd, IPPROTO_IP, MCAST_LEAVE_GROUP, &request, sizeof request));
    /* By the mapped address it is nobody's group. */
    snprintf(command, sizeof command, "::ffff:%s", of_inet4);
    T(membership(fd, IPV6_JOIN_GROUP, command, device));
}

/* An address of IPv6 says nothing to a socket of IPv4, mapped or not. */
CASE(mapped_addresses_at_sockets_of_ipv4) {
    char mapped[64];
    snprintf(mapped, sizeof mapped, "::ffff:%s", other_peer);
    struct name to = name_of(mapped, 7), at = name_of(mapped, 0);
    for (int bound = 0; bound < 2; bound++) {
        int fd = socket(AF_INET, SOCK_DGRAM, 0), stream = socket(AF_INET, SOCK_STREAM, 0);
        struct name here = of_inet(other_own, 0);
        if (bound) NEED(bind(fd, ADDRESS(here)) == 0 && bind(stream, ADDRESS(here)) == 0);
        T(connect(stream, ADDRESS(to)));
        T(connect(fd, ADDRESS(to)));
        T(sendto(fd, "x", 1, 0, ADDRESS(to)));
        T(connect(fd, (struct sockaddr *)&to, 20));
        T(connect(fd, (struct sockaddr *)&to, 12));
        T(sendto(fd, "x", 1, 0, (struct sockaddr *)&to, 12));
        T(bind(fd, ADDRESS(at)));
        T(bind(stream, ADDRESS(at)));
    }
}
