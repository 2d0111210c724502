/* Datagrams: what stands beside them, many at once, errors about them (ip(7), udp(7), cmsg(3), recv(2)). */
#include "compare.h"
#include <net/if.h>
#include <netinet/udp.h>

static int started(const char *role) { return role == NULL; }

enum { SEGMENT = 103, GRO = 104 };

/* A socket at our address; the other host has one called D, whose port is `*port`. */
static int pair(int *port) {
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in name = name_of(own, 0);
    NEED(fd >= 0 && bind(fd, ADDRESS(name)) == 0);
    *port = atoi(tell("bind D"));
    NEED(*port > 0 && !strcmp(tell("option D 0 12 1"), "ok") && !strcmp(tell("option D 0 13 1"), "ok"));
    return fd;
}

static void told(const char *text, int fd) { NEED(!strcmp(tell("sendto D %s %d %s", own, port_of(fd), text), "ok")); }

static char bytes[70000], beside[512];
static struct sockaddr_in from;
static struct iovec part;
static struct msghdr message;

static struct msghdr *room(size_t data, size_t control_room) {
    part = (struct iovec){bytes, data};
    memset(beside, 0, sizeof beside);
    message = (struct msghdr){.msg_name = &from, .msg_namelen = sizeof from, .msg_iov = &part, .msg_iovlen = 1,
                              .msg_control = beside, .msg_controllen = control_room};
    return &message;
}

static const char *host_of(struct in_addr address) {
    static char text[4][INET_ADDRSTRLEN];
    static int turn;
    turn = (turn + 1) % 4;
    inet_ntop(AF_INET, &address, text[turn], sizeof text[turn]);
    return text[turn];
}

/* Prints what stands beside a datagram. */
static void show(void) {
    out("flags %x, %d beside, name %d", message.msg_flags, (int)message.msg_controllen, (int)message.msg_namelen);
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
        out("level %d type %d length %d", c->cmsg_level, c->cmsg_type, (int)c->cmsg_len);
        unsigned char *data = CMSG_DATA(c);
        if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_PKTINFO && c->cmsg_len == CMSG_LEN(12)) {
            struct in_pktinfo info;
            memcpy(&info, data, sizeof info);
            out("to %s, local %s, interface %s", host_of(info.ipi_addr), host_of(info.ipi_spec_dst),
                info.ipi_ifindex > 0 ? "told" : "not told");
        } else if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_RECVERR) {
            struct sock_extended_err e;
            memcpy(&e, data, sizeof e);
            struct sockaddr_in offender;
            memcpy(&offender, data + sizeof e, sizeof offender);
            out("error %s origin %d type %d code %d info %u data %u, offender family %d %s port %d",
                strerrorname_np(e.ee_errno), e.ee_origin, e.ee_type, e.ee_code, e.ee_info, e.ee_data,
                offender.sin_family, host_of(offender.sin_addr), offender.sin_port);
        } else if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_RECVORIGDSTADDR) {
            struct sockaddr_in to;
            memcpy(&to, data, sizeof to);
            out("to %s", host_of(to.sin_addr));
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

CASE(what_is_told_beside_a_datagram) {
    int port, fd = pair(&port);
    static const int names[] = {IP_PKTINFO, IP_RECVTTL, IP_RECVTOS, IP_RECVORIGDSTADDR};
    for (int i = 0; i < 4; i++) {
        T(option(fd, IPPROTO_IP, names[i]));
        T(set_option(fd, IPPROTO_IP, names[i], 1));
        T(option(fd, IPPROTO_IP, names[i]));
    }
    tell("option D 0 1 184");
    tell("option D 0 2 17");
    told("abc", fd);
    receive(fd, 0);
    for (int i = 0; i < 4; i++) T(set_option(fd, IPPROTO_IP, names[i], 0));
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

CASE(times_of_software) {
    enum { SOFTWARE = 1 << 4, RECEIVING = 1 << 3, SENDING = 1 << 1, HARDWARE = 1 << 2 | 1 << 6 };
    static const int asked[] = {SOFTWARE | RECEIVING, HARDWARE, SOFTWARE | RECEIVING | HARDWARE, 0};
    int port, fd = pair(&port);
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

CASE(options_set_before_the_socket_is_bound) {
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    T(set_option(fd, IPPROTO_IP, IP_RECVTTL, 1));
    T(set_option(fd, IPPROTO_IP, IP_TTL, 9));
    T(set_option(fd, IPPROTO_IP, IP_TOS, 0x20));
    int port = atoi(tell("bind D"));
    tell("option D 0 12 1");
    tell("option D 0 13 1");
    struct sockaddr_in name = name_of(own, 0), to = name_of(peer, port);
    T(bind(fd, ADDRESS(name)));
    T(sendto(fd, "early", 5, 0, ADDRESS(to)));
    tell("recvmsg D");
    told("abc", fd);
    receive(fd, 0);
    T(option(fd, IPPROTO_IP, IP_TTL));
    T(option(fd, IPPROTO_IP, IP_TOS));
}

CASE(control_messages_that_do_not_fit) {
    int port, fd = pair(&port);
    T(set_option(fd, IPPROTO_IP, IP_PKTINFO, 1));
    T(set_option(fd, IPPROTO_IP, IP_RECVTTL, 1));
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
    T(set_option(fd, IPPROTO_IP, IP_RECVTTL, 1));
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
    struct sockaddr_in to = name_of(peer, port);
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
    static struct sockaddr_in to;
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

CASE(what_is_said_beside_a_datagram) {
    int port, fd = pair(&port);
    static const int ttls[] = {5, 255, 0, 256, -1};
    for (int i = 0; i < 5; i++)
        if (T(send_with(fd, port, IPPROTO_IP, IP_TTL, &ttls[i], 4)) > 0) tell("recvmsg D");
    static const int services[] = {0xb8, 0, 255, 256, -1};
    for (int i = 0; i < 5; i++)
        if (T(send_with(fd, port, IPPROTO_IP, IP_TOS, &services[i], 4)) > 0) tell("recvmsg D");
    unsigned char octet = 0x28;
    if (T(send_with(fd, port, IPPROTO_IP, IP_TOS, &octet, 1)) > 0) tell("recvmsg D");
    if (T(send_with(fd, port, IPPROTO_IP, IP_TTL, &octet, 1)) > 0) tell("recvmsg D");
    if (T(send_with(fd, port, IPPROTO_IP, IP_TOS, services, 2)) > 0) tell("recvmsg D");
    if (T(send_with(fd, port, IPPROTO_IP, 99, services, 4)) > 0) tell("recvmsg D");
    if (T(send_with(fd, port, SOL_SOCKET, 99, services, 4)) > 0) tell("recvmsg D");
    if (T(send_with(fd, port, IPPROTO_UDP, 99, services, 4)) > 0) tell("recvmsg D");
    if (T(send_with(fd, port, IPPROTO_IPV6, IPV6_TCLASS, services, 4)) > 0) tell("recvmsg D");
    struct in_pktinfo info = {.ipi_spec_dst = name_of(own, 0).sin_addr};
    if (T(send_with(fd, port, IPPROTO_IP, IP_PKTINFO, &info, sizeof info)) > 0) tell("recvmsg D");
    if (T(send_with(fd, port, IPPROTO_IP, IP_PKTINFO, &info, 8)) > 0) tell("recvmsg D");
    info.ipi_spec_dst = name_of("192.0.2.77", 0).sin_addr;
    if (T(send_with(fd, port, IPPROTO_IP, IP_PKTINFO, &info, sizeof info)) > 0) tell("recvmsg D");
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    c->cmsg_len = 4;
    T(sendmsg(fd, &message, 0));
    c->cmsg_len = 400;
    T(sendmsg(fd, &message, 0));
    message.msg_controllen = 8;
    if (T(sendmsg(fd, &message, 0)) > 0) tell("recvmsg D");
}

CASE(options_of_sending) {
    int port, fd = pair(&port);
    struct sockaddr_in to = name_of(peer, port);
    static const int names[] = {IP_TTL, IP_TOS, IP_MULTICAST_TTL, IP_MULTICAST_LOOP, IP_MTU_DISCOVER, IP_RECVERR,
                                IP_MULTICAST_ALL};
    static const int values[] = {7, 0, 255, 256, -1, -2};
    for (int i = 0; i < 7; i++) {
        T(option(fd, IPPROTO_IP, names[i]));
        for (int j = 0; j < 6; j++) {
            T(set_option(fd, IPPROTO_IP, names[i], values[j]));
            T(option(fd, IPPROTO_IP, names[i]));
        }
    }
    T(set_option(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_WANT));
    T(set_option(fd, IPPROTO_IP, IP_TTL, 33));
    T(set_option(fd, IPPROTO_IP, IP_TOS, 0x88));
    T(sendto(fd, "set", 3, 0, ADDRESS(to)));
    tell("recvmsg D");
    int ttl = 34;
    T(send_with(fd, port, IPPROTO_IP, IP_TTL, &ttl, 4));
    tell("recvmsg D");
    T(set_option(fd, IPPROTO_IP, IP_TTL, -1));
    T(sendto(fd, "back", 4, 0, ADDRESS(to)));
    tell("recvmsg D");
    T(option(fd, IPPROTO_IP, IP_MTU));
    T(connect(fd, ADDRESS(to)));
    T(option(fd, IPPROTO_IP, IP_MTU));
}

CASE(many_at_once) {
    int port, fd = pair(&port);
    struct sockaddr_in to = name_of(peer, port);
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
    T(set_option(fd, IPPROTO_IP, IP_RECVTTL, 1));
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
    struct sockaddr_in to = name_of(peer, port);
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
    T(set_option(fd, IPPROTO_UDP, SEGMENT, 1472));
    memset(bytes, 'z', sizeof bytes);
    T(sendto(fd, bytes, 5000, 0, ADDRESS(to)));
    for (int i = 0; i < 4; i++) tell("recvmsg D");
    T(set_option(fd, IPPROTO_UDP, SEGMENT, 1473));
    T(sendto(fd, bytes, 5000, 0, ADDRESS(to)));
    T(sendto(fd, bytes, 1400, 0, ADDRESS(to)));
    tell("recvmsg D");
    T(set_option(fd, IPPROTO_UDP, SEGMENT, 10));
    T(sendto(fd, bytes, 1281, 0, ADDRESS(to)));
    T(sendto(fd, bytes, 640, 0, ADDRESS(to)));
    for (int i = 0; i < 64; i++) NEED(!strncmp(tell("recvfrom D"), "zzzzzzzzzz", 10));
    T(sendto(fd, bytes, 65508, 0, ADDRESS(to)));
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

/* Time for what the other host sent before, and for its answers, where nothing is to come of them. */
static void settle(void) { tell("bind Z"); }

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
    struct sockaddr_in to = name_of(peer, port);
    T(connect(fd, ADDRESS(to)));
    T(send(fd, "nobody", 6, 0));
}

CASE(a_refused_datagram) {
    int fd = socket(AF_INET, SOCK_DGRAM, 0), port = closed_port();
    struct sockaddr_in name = name_of(own, 0);
    T(bind(fd, ADDRESS(name)));
    refused(fd, port);
    struct pollfd one = {fd, POLLERR, 0};
    T(poll(&one, 1, SOON_MS));
    T(now_has(fd, POLLIN | POLLOUT));
    T(option(fd, SOL_SOCKET, SO_ERROR));
    T(option(fd, SOL_SOCKET, SO_ERROR));
    T(send(fd, "again", 5, 0));
    T(recv(fd, bytes, 10, 0));
    T(send(fd, "again", 5, 0));
    T(poll(&one, 1, SOON_MS));
    T(send(fd, "told", 4, 0));
    T(recv(fd, bytes, 10, MSG_DONTWAIT));
}

CASE(a_refusal_that_concerns_nobody) {
    int fd = socket(AF_INET, SOCK_DGRAM, 0), port = closed_port(), d;
    int other = pair(&d);
    struct sockaddr_in name = name_of(own, 0), to = name_of(peer, port);
    T(bind(fd, ADDRESS(name)));
    T(sendto(fd, "nobody", 6, 0, ADDRESS(to)));
    settle();
    T(now_has(fd, POLLIN));
    T(recv(fd, bytes, 10, MSG_DONTWAIT));
    T(option(fd, SOL_SOCKET, SO_ERROR));
    T(option(other, SOL_SOCKET, SO_ERROR));
}

CASE(the_queue_of_errors) {
    int fd = socket(AF_INET, SOCK_DGRAM, 0), port = closed_port();
    struct sockaddr_in name = name_of(own, 0), to = name_of(peer, port);
    T(bind(fd, ADDRESS(name)));
    T(set_option(fd, IPPROTO_IP, IP_RECVERR, 1));
    T(sendto(fd, "nobody", 6, 0, ADDRESS(to)));
    struct pollfd one = {fd, POLLIN | POLLOUT, 0};
    T(poll(&(struct pollfd){fd, 0, 0}, 1, SOON_MS));
    T(poll(&one, 1, 0));
    out("events %x", one.revents);
    room(sizeof bytes, sizeof beside);
    T(recvmsg(fd, &message, MSG_ERRQUEUE));
    show();
    out("%.6s, was for %s %s", bytes, host_of(from.sin_addr), ntohs(from.sin_port) == port ? "there" : "elsewhere");
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
    T(poll(&(struct pollfd){fd, 0, 0}, 1, SOON_MS));
    T(recv(fd, bytes, 10, MSG_DONTWAIT));
    room(sizeof bytes, sizeof beside);
    T(recvmsg(fd, &message, MSG_ERRQUEUE));
    show();
}

CASE(what_is_too_long) {
    int port, fd = pair(&port);
    struct sockaddr_in to = name_of(peer, port);
    memset(bytes, 'q', sizeof bytes);
    T(sendto(fd, bytes, 65508, 0, ADDRESS(to)));
    T(sendto(fd, bytes, 3000, 0, ADDRESS(to)));
    tell("recvmsg D");
    T(set_option(fd, IPPROTO_IP, IP_RECVERR, 1));
    static const int ways[] = {IP_PMTUDISC_DONT, IP_PMTUDISC_WANT, IP_PMTUDISC_DO, IP_PMTUDISC_PROBE, 4, 5};
    for (int i = 0; i < 6; i++) {
        T(set_option(fd, IPPROTO_IP, IP_MTU_DISCOVER, ways[i]));
        if (T(sendto(fd, bytes, 1472, 0, ADDRESS(to))) > 0) tell("recvmsg D");
        if (T(sendto(fd, bytes, 1473, 0, ADDRESS(to))) > 0) tell("recvmsg D");
        room(10, sizeof beside);
        while (recvmsg(fd, &message, MSG_ERRQUEUE) >= 0) show(), room(10, sizeof beside);
        T(option(fd, SOL_SOCKET, SO_ERROR));
    }
    T(set_option(fd, IPPROTO_IP, IP_MTU_DISCOVER, 6));
}

CASE(a_connected_socket_sends_elsewhere) {
    int port, fd = pair(&port);
    int other = atoi(tell("bind E"));
    struct sockaddr_in to = name_of(peer, port), elsewhere = name_of(peer, other);
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

CASE(broadcasts) {
    int fd = socket(AF_INET, SOCK_DGRAM, 0), port = atoi(tell("bind_any D 0"));
    struct sockaddr_in name = name_of("0.0.0.0", 7117), everybody = name_of(own, port);
    everybody.sin_addr.s_addr |= htonl(255);
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
    tell("sendto D %s %d everybody", host_of(everybody.sin_addr), 7117);
    receive(fd, 0);
    T(await(second, POLLIN));
    T(recv(second, bytes, 20, MSG_DONTWAIT));
}

static const char *group = "239.7.1.8";

static int membership(int fd, int name, const char *of, const char *interface) {
    struct ip_mreq request = {name_of(of, 0).sin_addr, name_of(interface, 0).sin_addr};
    return setsockopt(fd, IPPROTO_IP, name, &request, sizeof request);
}

static int by_source(int fd, int name, const char *of, const char *source) {
    struct ip_mreq_source request = {
        .imr_multiaddr = name_of(of, 0).sin_addr, .imr_interface = name_of(own, 0).sin_addr, .imr_sourceaddr = name_of(source, 0).sin_addr};
    return setsockopt(fd, IPPROTO_IP, name, &request, sizeof request);
}

/* A socket at every address, at a port that others may have, too. */
static int shared(int port) {
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in name = name_of("0.0.0.0", port);
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
    memcpy(&request.gr_group, &(struct sockaddr_in){.sin_family = AF_INET, .sin_addr = name_of("239.7.3.1", 0).sin_addr},
           sizeof(struct sockaddr_in));
    T(setsockopt(fd, IPPROTO_IP, MCAST_LEAVE_GROUP, &request, sizeof request));
    request.gr_interface = 9999;
    T(setsockopt(fd, IPPROTO_IP, MCAST_JOIN_GROUP, &request, sizeof request));
}

CASE(sending_to_groups) {
    int fd = shared(7120), member = shared(7121);
    int port = atoi(tell("bind_any D 7121"));
    tell("option D 0 12 1");
    tell("join D %s", group);
    struct sockaddr_in to = name_of(group, port), name;
    struct in_addr interface = name_of(own, 0).sin_addr;
    socklen_t len = sizeof interface;
    T(setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &interface, sizeof interface));
    interface.s_addr = 1;
    T(getsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &interface, &len));
    out("by %s", host_of(interface));
    T(membership(member, IP_ADD_MEMBERSHIP, group, own));
    T(sendto(fd, "both", 4, 0, ADDRESS(to)));
    tell("recvmsg D");
    T(await(member, POLLIN));
    len = sizeof name;
    T(recvfrom(member, bytes, 20, MSG_DONTWAIT, (struct sockaddr *)&name, &len));
    out("from %s", host_of(name.sin_addr));
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
    struct sockaddr_in name = name_of(group, 7122);
    T(bind(stream, ADDRESS(name)));
    T(bind(fd, ADDRESS(name)));
    socklen_t len = sizeof name;
    T(getsockname(fd, (struct sockaddr *)&name, &len));
    out("at %s", host_of(name.sin_addr));
    T(membership(fd, IP_ADD_MEMBERSHIP, group, own));
    tell("bind_any D 0");
    tell("join D %s", group);
    to_group(7122, "group");
    receive(fd, 0);
    NEED(!strcmp(tell("sendto D %s 7122 direct", own), "ok"));
    settle();
    T(recv(fd, bytes, 20, MSG_DONTWAIT));
}
