/* Datagrams to many: broadcasts and groups of IPv4 (ip(7)), which sockets hear them and how they are sent. */
#include "datagrams.h"

static int started(const char *role) { return role == NULL; }

CASE(broadcasts) {
    int fd = socket(AF_INET, SOCK_DGRAM, 0), port = atoi(tell("bind_any D 0"));
    struct name name = name_of("0.0.0.0", 7117), everybody = name_of(own, port);
    everybody.in.sin_addr.s_addr |= htonl(255);
    T(set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1));
    T(bind(fd, ADDRESS(name)));
    T(set_option(fd, IPPROTO_IP, IP_PKTINFO, 1));
    T(sendto(fd, "hush", 4, 0, ADDRESS(everybody)));
    T(connect(fd, ADDRESS(everybody)));
    T(set_option(fd, SOL_SOCKET, SO_BROADCAST, 1));
    T(option(fd, SOL_SOCKET, SO_BROADCAST));
    T(sendto(fd, "all", 3, 0, ADDRESS(everybody)));
    tell("recvmsg D");
    int second = socket(AF_INET, SOCK_DGRAM, 0);
    T(set_option(second, SOL_SOCKET, SO_REUSEADDR, 1));
    T(bind(second, ADDRESS(name)));
    tell("sendto D %s %d everybody", host_of(&everybody), 7117);
    receive(fd, 0);
    T(await(second, POLLIN));
    T(recv(second, bytes, 20, MSG_DONTWAIT));
    /* That is for groups only. */
    T(set_option(fd, IPPROTO_IP, IP_MULTICAST_LOOP, 0));
    everybody.in.sin_port = htons(7117);
    T(sendto(fd, "own", 3, 0, ADDRESS(everybody)));
    T(await(second, POLLIN));
    T(recv(second, bytes, 20, MSG_DONTWAIT));
}

static const char *group = "239.7.1.8";

static int membership(int fd, int name, const char *of, const char *interface) {
    struct ip_mreq request = {name_of(of, 0).in.sin_addr, name_of(interface, 0).in.sin_addr};
    return setsockopt(fd, IPPROTO_IP, name, &request, sizeof request);
}

static int by_source(int fd, int name, const char *of, const char *source) {
    struct ip_mreq_source request = {
        .imr_multiaddr = name_of(of, 0).in.sin_addr, .imr_interface = name_of(own, 0).in.sin_addr, .imr_sourceaddr = name_of(source, 0).in.sin_addr};
    return setsockopt(fd, IPPROTO_IP, name, &request, sizeof request);
}

/* A socket at every address, at a port that others may have, too. */
static int shared(int port) {
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    struct name name = name_of("0.0.0.0", port);
    NEED(fd >= 0 && set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1) == 0 && bind(fd, ADDRESS(name)) == 0);
    return fd;
}

static void to_group(int port, const char *text) { NEED(!strcmp(tell("sendto D %s %d %s", group, port, text), "ok")); }

CASE(groups_joined_and_left) {
    int fd = shared(7118), second = shared(7118), only = shared(7118);
    T(set_option(only, IPPROTO_IP, IP_MULTICAST_ALL, 0));
    tell("bind_any D 0");
    tell("join D %s", group);
    to_group(7118, "early");
    settle();
    T(recv(fd, bytes, 20, MSG_DONTWAIT));
    T(membership(fd, IP_ADD_MEMBERSHIP, group, own));
    T(membership(fd, IP_ADD_MEMBERSHIP, group, own));
    T(membership(fd, IP_ADD_MEMBERSHIP, "10.1.2.3", own));
    T(membership(fd, IP_ADD_MEMBERSHIP, group, "192.0.2.1"));
    T(membership(second, IP_DROP_MEMBERSHIP, group, own));
    T(set_option(fd, IPPROTO_IP, IP_PKTINFO, 1));
    to_group(7118, "joined");
    receive(fd, 0);
    T(await(second, POLLIN));
    T(recv(second, bytes, 20, MSG_DONTWAIT));
    settle();
    T(recv(only, bytes, 20, MSG_DONTWAIT));
    T(membership(fd, IP_DROP_MEMBERSHIP, group, own));
    T(membership(fd, IP_DROP_MEMBERSHIP, group, own));
    to_group(7118, "left");
    settle();
    T(recv(fd, bytes, 20, MSG_DONTWAIT));
    T(recv(second, bytes, 20, MSG_DONTWAIT));
    char one[20];
    for (int i = 1; i <= 22; i++) {
        sprintf(one, "239.7.2.%d", i);
        T(membership(fd, IP_ADD_MEMBERSHIP, one, own));
    }
    T(setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, one, 3));
    T(setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, NULL, 8));
}

CASE(groups_by_source) {
    int fd = shared(7119);
    tell("bind_any D 0");
    tell("join D %s", group);
    T(by_source(fd, IP_DROP_SOURCE_MEMBERSHIP, group, peer));
    T(by_source(fd, IP_BLOCK_SOURCE, group, peer));
    T(by_source(fd, IP_ADD_SOURCE_MEMBERSHIP, group, "192.0.2.1"));
    to_group(7119, "other");
    settle();
    T(recv(fd, bytes, 20, MSG_DONTWAIT));
    T(by_source(fd, IP_ADD_SOURCE_MEMBERSHIP, group, peer));
    T(by_source(fd, IP_ADD_SOURCE_MEMBERSHIP, group, peer));
    T(by_source(fd, IP_BLOCK_SOURCE, group, peer));
    to_group(7119, "wanted");
    receive(fd, 0);
    T(by_source(fd, IP_DROP_SOURCE_MEMBERSHIP, group, peer));
    to_group(7119, "dropped");
    settle();
    T(recv(fd, bytes, 20, MSG_DONTWAIT));
    T(by_source(fd, IP_DROP_SOURCE_MEMBERSHIP, group, "192.0.2.1"));
    T(by_source(fd, IP_DROP_SOURCE_MEMBERSHIP, group, "192.0.2.1"));
    T(membership(fd, IP_ADD_MEMBERSHIP, group, own));
    T(by_source(fd, IP_BLOCK_SOURCE, group, peer));
    T(by_source(fd, IP_BLOCK_SOURCE, group, peer));
    to_group(7119, "blocked");
    settle();
    T(recv(fd, bytes, 20, MSG_DONTWAIT));
    T(by_source(fd, IP_UNBLOCK_SOURCE, group, peer));
    T(by_source(fd, IP_UNBLOCK_SOURCE, group, peer));
    to_group(7119, "again");
    receive(fd, 0);
    char one[20];
    for (int i = 1; i <= 12; i++) {
        sprintf(one, "192.0.2.%d", i);
        T(by_source(fd, IP_BLOCK_SOURCE, group, one));
    }
    struct group_req request = {.gr_interface = if_nametoindex("eth0")};
    memcpy(&request.gr_group, &(struct sockaddr_in){.sin_family = AF_INET, .sin_addr = name_of("239.7.3.1", 0).in.sin_addr},
           sizeof(struct sockaddr_in));
    T(setsockopt(fd, IPPROTO_IP, MCAST_LEAVE_GROUP, &request, sizeof request));
    request.gr_interface = 9999;
    T(setsockopt(fd, IPPROTO_IP, MCAST_JOIN_GROUP, &request, sizeof request));
}

enum { MOST = 70 };

/* A filter of so many of these sources; `len` 0: as long as it is. */
static int filter_by(int fd, const char *of, const char *interface, int mode, int count, const char **sources, int len) {
    static struct {
        struct ip_msfilter head;
        struct in_addr more[MOST];
    } filter;
    filter.head = (struct ip_msfilter){.imsf_multiaddr = name_of(of, 0).in.sin_addr, .imsf_interface = name_of(interface, 0).in.sin_addr,
                                       .imsf_fmode = mode, .imsf_numsrc = count};
    struct in_addr *to = (struct in_addr *)((char *)&filter + 16);
    for (int i = 0; i < count && sources; i++) to[i] = name_of(sources[i], 0).in.sin_addr;
    return setsockopt(fd, IPPROTO_IP, IP_MSFILTER, &filter, len ? len : 16 + 4 * count);
}

/* The filter as it is read with room for so many sources. */
static void filter_of(int fd, const char *of, const char *interface, int room) {
    static struct {
        struct ip_msfilter head;
        struct in_addr more[MOST];
    } filter;
    filter.head = (struct ip_msfilter){.imsf_multiaddr = name_of(of, 0).in.sin_addr, .imsf_interface = name_of(interface, 0).in.sin_addr,
                                       .imsf_fmode = 77, .imsf_numsrc = room};
    struct in_addr *to = (struct in_addr *)((char *)&filter + 16);
    memset(to, 0, MOST * 4);
    socklen_t len = 16 + 4 * room;
    if (T(getsockopt(fd, IPPROTO_IP, IP_MSFILTER, &filter, &len)) == 0)
        out("mode %d, %d sources, length %d", filter.head.imsf_fmode, filter.head.imsf_numsrc, len);
    for (int i = 0; i < room; i++) out("source %s", inet_ntoa(to[i]));
}

CASE(whole_filters) {
    static const char *first[] = {"192.0.2.9", "192.0.2.1", "192.0.2.9"}, *with_peer[] = {"192.0.2.1", NULL};
    static const char *many[] = {"192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4", "192.0.2.5", "192.0.2.6", "192.0.2.7",
                                 "192.0.2.8", "192.0.2.9", "192.0.2.10", "192.0.2.11"};
    with_peer[1] = peer;
    int fd = shared(7123);
    tell("bind_any D 0");
    tell("join D %s", group);
    filter_of(fd, group, own, 2);
    T(filter_by(fd, group, own, MCAST_EXCLUDE, 0, NULL, 0));
    T(filter_by(fd, group, own, MCAST_INCLUDE, 0, NULL, 0));
    T(membership(fd, IP_ADD_MEMBERSHIP, group, own));
    filter_of(fd, group, own, 2);
    T(filter_by(fd, group, own, MCAST_INCLUDE, 3, first, 0));
    filter_of(fd, group, own, 0);
    filter_of(fd, group, own, 1);
    filter_of(fd, group, own, 4);
    filter_of(fd, group, "192.0.2.1", 1);
    filter_of(fd, "10.1.2.3", own, 1);
    to_group(7123, "others_only");
    settle();
    T(recv(fd, bytes, 20, MSG_DONTWAIT));
    T(by_source(fd, IP_ADD_SOURCE_MEMBERSHIP, group, peer));
    T(by_source(fd, IP_DROP_SOURCE_MEMBERSHIP, group, "192.0.2.1"));
    filter_of(fd, group, own, 4);
    to_group(7123, "peer_too");
    receive(fd, 0);
    T(filter_by(fd, group, own, MCAST_EXCLUDE, 2, with_peer, 0));
    filter_of(fd, group, own, 3);
    to_group(7123, "not_peer");
    settle();
    T(recv(fd, bytes, 20, MSG_DONTWAIT));
    T(filter_by(fd, group, own, MCAST_EXCLUDE, 0, NULL, 0));
    filter_of(fd, group, own, 1);
    to_group(7123, "all");
    receive(fd, 0);
    T(filter_by(fd, group, own, MCAST_EXCLUDE, 10, many, 0));
    T(by_source(fd, IP_BLOCK_SOURCE, group, "192.0.2.12"));
    T(filter_by(fd, group, own, MCAST_EXCLUDE, 11, many, 0));
    T(filter_by(fd, group, own, MCAST_EXCLUDE, 3, many, 27));
    T(filter_by(fd, group, own, MCAST_EXCLUDE, 3, many, 15));
    T(filter_by(fd, group, own, 2, 1, many, 0));
    T(filter_by(fd, "10.1.2.3", own, MCAST_EXCLUDE, 1, many, 0));
    T(filter_by(fd, group, "192.0.2.1", MCAST_EXCLUDE, 1, many, 0));
    T(filter_by(fd, "239.7.1.9", own, MCAST_EXCLUDE, 1, many, 0));
    T(setsockopt(fd, IPPROTO_IP, IP_MSFILTER, NULL, 20));
    filter_of(fd, group, own, 12);
    T(filter_by(fd, group, own, MCAST_INCLUDE, 0, NULL, 0));
    filter_of(fd, group, own, 1);
    T(membership(fd, IP_DROP_MEMBERSHIP, group, own));
    socklen_t len = 15;
    T(getsockopt(fd, IPPROTO_IP, IP_MSFILTER, bytes, &len));
    len = 16;
    T(getsockopt(fd, IPPROTO_IP, IP_MSFILTER, NULL, &len));
}

/* The same by the structure of either family. */
static struct group_filter *any_filter(const char *of, int interface, int mode, int count) {
    static char space[GROUP_FILTER_SIZE(MOST)];
    struct group_filter *filter = (struct group_filter *)space;
    memset(space, 0, sizeof space);
    filter->gf_interface = interface, filter->gf_fmode = mode, filter->gf_numsrc = count;
    memcpy(&filter->gf_group, &(struct sockaddr_in){.sin_family = AF_INET, .sin_addr = name_of(of, 0).in.sin_addr}, sizeof(struct sockaddr_in));
    return filter;
}

static void source_of(struct group_filter *filter, int index, const char *source) {
    memcpy(&filter->gf_slist[index], &(struct sockaddr_in){.sin_family = AF_INET, .sin_addr = name_of(source, 0).in.sin_addr},
           sizeof(struct sockaddr_in));
}

static void any_filter_of(int fd, const char *of, int interface, int room) {
    struct group_filter *filter = any_filter(of, interface, 77, room);
    socklen_t len = GROUP_FILTER_SIZE(room);
    if (T(getsockopt(fd, IPPROTO_IP, MCAST_MSFILTER, filter, &len)) == 0)
        out("mode %d, %d sources, length %d", filter->gf_fmode, filter->gf_numsrc, len);
    for (int i = 0; i < room; i++) {
        struct sockaddr_in *source = (struct sockaddr_in *)&filter->gf_slist[i];
        out("source family %d %s port %d", source->sin_family, inet_ntoa(source->sin_addr), source->sin_port);
    }
}

CASE(whole_filters_of_either_family) {
    int fd = shared(7124), device = if_nametoindex("eth0");
    T(membership(fd, IP_ADD_MEMBERSHIP, group, own));
    any_filter_of(fd, group, device, 1);
    any_filter_of(fd, group, 0, 1);
    any_filter_of(fd, group, 9999, 1);
    struct group_filter *filter = any_filter(group, device, MCAST_INCLUDE, 2);
    source_of(filter, 0, peer), source_of(filter, 1, "192.0.2.1");
    T(setsockopt(fd, IPPROTO_IP, MCAST_MSFILTER, filter, GROUP_FILTER_SIZE(2)));
    any_filter_of(fd, group, device, 1);
    any_filter_of(fd, group, device, 3);
    filter = any_filter(group, device, MCAST_EXCLUDE, 2);
    T(setsockopt(fd, IPPROTO_IP, MCAST_MSFILTER, filter, GROUP_FILTER_SIZE(2)));
    T(setsockopt(fd, IPPROTO_IP, MCAST_MSFILTER, filter, GROUP_FILTER_SIZE(1)));
    T(setsockopt(fd, IPPROTO_IP, MCAST_MSFILTER, filter, 143));
    filter->gf_group.ss_family = AF_INET6;
    T(setsockopt(fd, IPPROTO_IP, MCAST_MSFILTER, filter, GROUP_FILTER_SIZE(0)));
    T(setsockopt(fd, IPPROTO_IP, MCAST_MSFILTER, any_filter(group, 9999, MCAST_EXCLUDE, 0), GROUP_FILTER_SIZE(0)));
    any_filter_of(fd, group, device, 1);
    T(setsockopt(fd, IPPROTO_IP, MCAST_MSFILTER, any_filter(group, device, MCAST_INCLUDE, 0), GROUP_FILTER_SIZE(0)));
    any_filter_of(fd, group, device, 1);
}

CASE(sending_to_groups) {
    int fd = shared(7120), member = shared(7121);
    int port = atoi(tell("bind_any D 7121"));
    tell("option D 0 12 1");
    tell("join D %s", group);
    struct name to = name_of(group, port), name;
    struct in_addr interface = name_of(own, 0).in.sin_addr;
    socklen_t len = sizeof interface;
    T(setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &interface, sizeof interface));
    interface.s_addr = 1;
    T(getsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &interface, &len));
    out("by %s", inet_ntoa(interface));
    T(membership(member, IP_ADD_MEMBERSHIP, group, own));
    T(sendto(fd, "both", 4, 0, ADDRESS(to)));
    tell("recvmsg D");
    T(await(member, POLLIN));
    len = sizeof name;
    T(recvfrom(member, bytes, 20, MSG_DONTWAIT, (struct sockaddr *)&name, &len));
    out("from %s", host_of(&name));
    T(set_option(fd, IPPROTO_IP, IP_MULTICAST_LOOP, 0));
    T(set_option(fd, IPPROTO_IP, IP_MULTICAST_TTL, 5));
    T(sendto(fd, "there", 5, 0, ADDRESS(to)));
    tell("recvmsg D");
    T(recv(member, bytes, 20, MSG_DONTWAIT));
    T(set_option(fd, IPPROTO_IP, IP_MULTICAST_LOOP, 1));
    T(set_option(fd, IPPROTO_IP, IP_MULTICAST_TTL, 0));
    T(sendto(fd, "here", 4, 0, ADDRESS(to)));
    T(await(member, POLLIN));
    T(recv(member, bytes, 20, MSG_DONTWAIT));
    T(connect(fd, ADDRESS(to)));
    T(set_option(fd, IPPROTO_IP, IP_MULTICAST_TTL, 2));
    T(send(fd, "connected", 9, 0));
    tell("recvmsg D");
}

CASE(bound_to_a_group) {
    int fd = socket(AF_INET, SOCK_DGRAM, 0), stream = socket(AF_INET, SOCK_STREAM, 0);
    struct name name = name_of(group, 7122);
    T(bind(stream, ADDRESS(name)));
    T(bind(fd, ADDRESS(name)));
    socklen_t len = sizeof name;
    T(getsockname(fd, (struct sockaddr *)&name, &len));
    out("at %s", host_of(&name));
    T(membership(fd, IP_ADD_MEMBERSHIP, group, own));
    tell("bind_any D 0");
    tell("join D %s", group);
    to_group(7122, "group");
    receive(fd, 0);
    NEED(!strcmp(tell("sendto D %s 7122 direct", own), "ok"));
    settle();
    T(recv(fd, bytes, 20, MSG_DONTWAIT));
}
