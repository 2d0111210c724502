/* What the cases about datagrams share: a socket here and one there, and what stands beside a datagram. */
#include "compare.h"
#include <net/if.h>
#include <netinet/udp.h>

enum { SEGMENT = 103, GRO = 104 };

/* Level and name of what both families have. */
#define PKTINFO OF_IP(IP_PKTINFO, IPV6_RECVPKTINFO)
#define RECVTTL OF_IP(IP_RECVTTL, IPV6_RECVHOPLIMIT)
#define RECVTOS OF_IP(IP_RECVTOS, IPV6_RECVTCLASS)
#define RECVORIGDSTADDR OF_IP(IP_RECVORIGDSTADDR, IPV6_RECVORIGDSTADDR)
#define TTL OF_IP(IP_TTL, IPV6_UNICAST_HOPS)
#define TTL_BESIDE OF_IP(IP_TTL, IPV6_HOPLIMIT)
#define TOS OF_IP(IP_TOS, IPV6_TCLASS)
#define RECVERR OF_IP(IP_RECVERR, IPV6_RECVERR)
#define MTU_DISCOVER OF_IP(IP_MTU_DISCOVER, IPV6_MTU_DISCOVER)
/* What fits into a packet of the wire, and into one of any length. */
#define WHOLE PICK(1472, 1452)
#define LONGEST PICK(65507, 65527)

/* A socket at our address; the other host has one called D, whose port is `*port`. */
static int pair(int *port) {
    int fd = socket(family, SOCK_DGRAM, 0);
    struct name name = name_of(own, 0);
    NEED(fd >= 0 && bind(fd, ADDRESS(name)) == 0);
    *port = atoi(tell("bind D"));
    NEED(*port > 0 && !strcmp(tell("ip D recvttl 1"), "ok") && !strcmp(tell("ip D recvtos 1"), "ok"));
    return fd;
}

static void told(const char *text, int fd) { NEED(!strcmp(tell("sendto D %s %d %s", own, port_of(fd), text), "ok")); }

static char bytes[70000], beside[512];
static struct name from;
static struct iovec part;
static struct msghdr message;

static struct msghdr *room(size_t data, size_t control_room) {
    part = (struct iovec){bytes, data};
    memset(beside, 0, sizeof beside);
    message = (struct msghdr){.msg_name = &from, .msg_namelen = sizeof from, .msg_iov = &part, .msg_iovlen = 1,
                              .msg_control = beside, .msg_controllen = control_room};
    return &message;
}

/* Prints what stands beside a datagram. */
static void show(void) {
    out("flags %x, %d beside, name %d", message.msg_flags, (int)message.msg_controllen, (int)message.msg_namelen);
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
        out("level %d type %d length %d", c->cmsg_level, c->cmsg_type, (int)c->cmsg_len);
        unsigned char *data = CMSG_DATA(c);
        int inet6 = c->cmsg_level == IPPROTO_IPV6;
        if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_PKTINFO && c->cmsg_len == CMSG_LEN(12)) {
            struct in_pktinfo info;
            memcpy(&info, data, sizeof info);
            char local[INET_ADDRSTRLEN];
            inet_ntop(AF_INET, &info.ipi_spec_dst, local, sizeof local);
            struct name to = {.in = {.sin_family = AF_INET, .sin_addr = info.ipi_addr}};
            out("to %s, local %s, interface %s", host_of(&to), local, info.ipi_ifindex > 0 ? "told" : "not told");
        } else if (inet6 && c->cmsg_type == IPV6_PKTINFO && c->cmsg_len == CMSG_LEN(20)) {
            struct in6_pktinfo info;
            memcpy(&info, data, sizeof info);
            struct name to = {.in6 = {.sin6_family = AF_INET6, .sin6_addr = info.ipi6_addr}};
            out("to %s, interface %s", host_of(&to), info.ipi6_ifindex > 0 ? "told" : "not told");
        } else if ((inet6 && c->cmsg_type == IPV6_RECVERR) ||
                   (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_RECVERR)) {
            struct sock_extended_err e;
            memcpy(&e, data, sizeof e);
            struct name offender = {0};
            memcpy(&offender, data + sizeof e, inet6 ? sizeof offender.in6 : sizeof offender.in);
            out("error %s origin %d type %d code %d info %u data %u, offender family %d %s port %d",
                strerrorname_np(e.ee_errno), e.ee_origin, e.ee_type, e.ee_code, e.ee_info, e.ee_data,
                offender.family, host_of(&offender), offender.port);
        } else if ((inet6 && c->cmsg_type == IPV6_RECVORIGDSTADDR) ||
                   (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_RECVORIGDSTADDR)) {
            struct name to = {0};
            memcpy(&to, data, inet6 ? sizeof to.in6 : sizeof to.in);
            out("to %s", host_of(&to));
        } else if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_TIMESTAMPING) {
            struct timespec times[3];
            memcpy(times, data, sizeof times);
            out("%s, and %ld and %ld", labs(time(NULL) - times[0].tv_sec) < 5 ? "lately" : "not lately",
                times[1].tv_sec, times[2].tv_sec);
        } else if (c->cmsg_level == SOL_SOCKET) {
            struct timeval time, now;
            memcpy(&time, data, sizeof time);
            gettimeofday(&now, NULL);
            out("%s", labs(now.tv_sec - time.tv_sec) < 5 ? "lately" : "not lately");
        } else if (c->cmsg_len >= CMSG_LEN(4)) {
            int value;
            memcpy(&value, data, 4);
            out("value %d", value);
        } else if (c->cmsg_len == CMSG_LEN(1)) {
            out("octet %d", *data);
        }
    }
}

static void receive(int fd, int flags) {
    T(await(fd, POLLIN) & POLLIN);
    room(sizeof bytes, sizeof beside);
    T(recvmsg(fd, &message, flags));
    show();
}

/* Time for what the other host sent before, and for its answers, where nothing is to come of them. */
static void settle(void) { tell("bind Z"); }
