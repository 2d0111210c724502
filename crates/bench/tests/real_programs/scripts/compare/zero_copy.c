/* MSG_ZEROCOPY: which sends are told to be complete, how, and who is woken for it. */
#include "compare.h"

static struct sock_extended_err error;
static struct msghdr message;
static char beside[256];
static struct sockaddr_storage from;

/* Takes one notice, with so much room for it. */
static long take(int fd, size_t room) {
    memset(beside, 0, sizeof beside);
    message = (struct msghdr){.msg_control = beside, .msg_controllen = room, .msg_name = &from, .msg_namelen = sizeof from};
    long got = recvmsg(fd, &message, MSG_ERRQUEUE);
    struct cmsghdr *c = got < 0 ? NULL : CMSG_FIRSTHDR(&message);
    if (c) memcpy(&error, CMSG_DATA(c), sizeof error);
    return got;
}

/* Takes what is told until that is `count` sends, and says it as one: how it is divided is nobody's promise. */
static void told(int fd, unsigned count) {
    unsigned first = 0, sum = 0;
    while (sum < count) {
        NEED(await(fd, 0) & POLLERR);
        NEED(take(fd, sizeof beside) == 0);
        if (sum == 0) first = error.ee_info;
        NEED(error.ee_info == first + sum);
        sum += error.ee_data - error.ee_info + 1;
    }
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    struct sockaddr *offender = (struct sockaddr *)(CMSG_DATA(c) + sizeof error);
    out("%u to %u: errno %d, origin %d, type %d, code %d", first, error.ee_data, error.ee_errno, error.ee_origin,
        error.ee_type, error.ee_code);
    out("flags %x, name %d, level %d, type %d, len %d, offender %d", message.msg_flags, message.msg_namelen,
        c->cmsg_level, c->cmsg_type, (int)c->cmsg_len, offender->sa_family);
}

CASE(who_asks_is_told) {
    int fd = accepted("a");
    T(option(fd, SOL_SOCKET, SO_ZEROCOPY));
    T(send(fd, "a", 1, MSG_ZEROCOPY));
    tell("read a 1");
    T(take(fd, sizeof beside));
    T(set_option(fd, SOL_SOCKET, SO_ZEROCOPY, 2));
    T(set_option(fd, SOL_SOCKET, SO_ZEROCOPY, 1));
    T(option(fd, SOL_SOCKET, SO_ZEROCOPY));
    T(send(fd, "b", 1, 0));
    T(send(fd, "", 0, MSG_ZEROCOPY));
    T(send(fd, "c", 1, MSG_ZEROCOPY));
    tell("read a 2");
    told(fd, 1);
    T(take(fd, sizeof beside));
    T(option(fd, SOL_SOCKET, SO_ERROR));
    T(now_has(fd, POLLIN | POLLOUT));
}

CASE(sends_are_counted) {
    int fd = connected("a");
    NEED(set_option(fd, SOL_SOCKET, SO_ZEROCOPY, 1) == 0);
    struct iovec parts[] = {{"de", 2}, {"fg", 2}};
    struct msghdr sent = {.msg_iov = parts, .msg_iovlen = 2};
    struct mmsghdr several[] = {{.msg_hdr = sent}, {.msg_hdr = sent}};
    T(sendmsg(fd, &sent, MSG_ZEROCOPY));
    T(sendmmsg(fd, several, 2, MSG_ZEROCOPY));
    /* No more than the other host takes unread: the call waits for nobody. */
    static char much[50000];
    T(send(fd, much, sizeof much, MSG_ZEROCOPY | MSG_NOSIGNAL));
    tell("read a 50012");
    told(fd, 4);
    T(set_option(fd, SOL_SOCKET, SO_ZEROCOPY, 0));
    T(send(fd, "h", 1, MSG_ZEROCOPY));
    T(take(fd, sizeof beside));
    T(set_option(fd, SOL_SOCKET, SO_ZEROCOPY, 1));
    T(send(fd, "i", 1, MSG_ZEROCOPY));
    told(fd, 1);
}

CASE(too_little_room) {
    int fd = accepted("a");
    NEED(set_option(fd, SOL_SOCKET, SO_ZEROCOPY, 1) == 0);
    T(send(fd, "j", 1, MSG_ZEROCOPY));
    NEED(await(fd, 0) & POLLERR);
    T(take(fd, 20));
    out("flags %x, %d beside", message.msg_flags, (int)message.msg_controllen);
    T(take(fd, 20));
    T(send(fd, "k", 1, MSG_ZEROCOPY));
    NEED(await(fd, 0) & POLLERR);
    char byte;
    T(recv(fd, &byte, 1, MSG_ERRQUEUE));
    T(recv(fd, &byte, 1, MSG_ERRQUEUE));
}

CASE(accepted_sockets_inherit) {
    int fd = listener();
    NEED(set_option(fd, SOL_SOCKET, SO_ZEROCOPY, 1) == 0);
    tell("connect a %s %d", own, port_of(fd));
    int new = accept(fd, NULL, NULL);
    T(option(new, SOL_SOCKET, SO_ZEROCOPY));
    T(send(new, "m", 1, MSG_ZEROCOPY));
    told(new, 1);
    tell("connect b %s %d", own, port_of(fd));
    new = accept(fd, NULL, NULL);
    T(send(new, "n", 1, MSG_ZEROCOPY));
    told(new, 1);
}

CASE(datagrams) {
    int port = atoi(tell("bind D"));
    int fd = socket(family, SOCK_DGRAM, 0);
    struct name to = name_of(peer, port);
    T(set_option(fd, SOL_SOCKET, SO_ZEROCOPY, 1));
    T(sendto(fd, "opq", 3, MSG_ZEROCOPY, ADDRESS(to)));
    tell("recvfrom D");
    told(fd, 1);
    T(sendto(fd, "", 0, MSG_ZEROCOPY, ADDRESS(to)));
    T(sendto(fd, "rs", 2, MSG_ZEROCOPY, ADDRESS(to)));
    tell("recvfrom D");
    tell("recvfrom D");
    told(fd, 2);
    T(now_has(fd, POLLIN | POLLOUT));
}

CASE(edges) {
    int fd = accepted("a"), set = epoll_create1(0);
    NEED(set_option(fd, SOL_SOCKET, SO_ZEROCOPY, 1) == 0);
    struct epoll_event event = {EPOLLIN | EPOLLOUT | EPOLLET, {0}};
    NEED(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    T(epoll_wait(set, &event, 1, SOON_MS));
    out("events %x", event.events);
    for (int i = 0; i < 2; i++) {
        T(send(fd, "t", 1, MSG_ZEROCOPY));
        do NEED(epoll_wait(set, &event, 1, SOON_MS) == 1);
        while (!(event.events & EPOLLERR));
        out("events %x", event.events);
        told(fd, 1);
    }
}

static void *sleeper(void *given) {
    int fd = *(int *)given;
    T(await(fd, POLLIN));
    told(fd, 1);
    return NULL;
}

CASE(another_thread_is_woken) {
    int fd = accepted("a");
    NEED(set_option(fd, SOL_SOCKET, SO_ZEROCOPY, 1) == 0);
    pthread_t thread;
    NEED(pthread_create(&thread, NULL, sleeper, &fd) == 0);
    /* It sleeps, or is about to: both have to be right. */
    usleep(20000);
    T(send(fd, "u", 1, MSG_ZEROCOPY));
    NEED(pthread_join(thread, NULL) == 0);
}

static int started(const char *role) {
    (void)role;
    return 6;
}
