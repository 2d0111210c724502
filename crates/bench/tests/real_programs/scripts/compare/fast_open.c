/* TCP fast open (RFC 7413): options, data with the SYN in both directions, what stands in its way. */
#include "compare.h"

enum { FASTOPEN_KEY = 33, FASTOPEN_NO_COOKIE = 34, SYN_DATA = 32 };

/* Data that went with the SYN was taken. */
static int syn_data(int fd) {
    struct tcp_info info = {0};
    socklen_t len = sizeof info;
    NEED(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0);
    return info.tcpi_options & SYN_DATA;
}

/* A listening socket of the other host's that takes data with SYNs. */
static struct name server(void) {
    int port = atoi(tell("listen L"));
    tell("option L %d %d 5", IPPROTO_TCP, TCP_FASTOPEN);
    return name_of(peer, port);
}

/* A connection after which a cookie for the other host is known. */
static struct name known_server(void) {
    struct name to = server();
    int fd = socket(family, SOCK_STREAM, 0);
    NEED(sendto(fd, "a", 1, MSG_FASTOPEN, ADDRESS(to)) == 1);
    NEED(!strcmp(tell("accept L w"), "ok") && close(fd) == 0);
    return to;
}

static void print_key(int fd, socklen_t room) {
    unsigned char key[64] = {0};
    socklen_t len = room;
    T(getsockopt(fd, IPPROTO_TCP, FASTOPEN_KEY, key, &len));
    char text[3 * sizeof key] = "";
    for (socklen_t i = 0; i < len && i < sizeof key; i++) sprintf(text + 2 * i, "%02x", key[i]);
    out("%u bytes: %s", len, text);
}

static void numbers(int fd) {
    T(option(fd, IPPROTO_TCP, TCP_FASTOPEN));
    T(option(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT));
    T(option(fd, IPPROTO_TCP, FASTOPEN_NO_COOKIE));
    T(set_option(fd, IPPROTO_TCP, TCP_FASTOPEN, 5));
    T(set_option(fd, IPPROTO_TCP, TCP_FASTOPEN, -1));
    T(option(fd, IPPROTO_TCP, TCP_FASTOPEN));
    T(set_option(fd, IPPROTO_TCP, TCP_FASTOPEN, 1000000));
    T(option(fd, IPPROTO_TCP, TCP_FASTOPEN));
    T(set_option(fd, IPPROTO_TCP, FASTOPEN_NO_COOKIE, 2));
    T(set_option(fd, IPPROTO_TCP, FASTOPEN_NO_COOKIE, 1));
    T(option(fd, IPPROTO_TCP, FASTOPEN_NO_COOKIE));
    T(set_option(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 2));
    T(set_option(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1));
    T(option(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT));
    T(setsockopt(fd, IPPROTO_TCP, TCP_FASTOPEN, "", 1));
    T(set_option(fd, IPPROTO_TCP, TCP_FASTOPEN, 0));
    T(option(fd, IPPROTO_TCP, TCP_FASTOPEN));
}

CASE(options_before_bind) { numbers(socket(family, SOCK_STREAM, 0)); }

CASE(options_of_a_bound_socket) {
    int fd = socket(family, SOCK_STREAM, 0);
    struct name name = name_of(own, 0);
    NEED(bind(fd, ADDRESS(name)) == 0);
    numbers(fd);
}

CASE(options_of_a_listening_socket) { numbers(listener()); }

CASE(options_of_a_connection) { numbers(connected("a")); }

CASE(options_outlive_bind) {
    int fd = socket(family, SOCK_STREAM, 0);
    NEED(set_option(fd, IPPROTO_TCP, TCP_FASTOPEN, 7) == 0);
    NEED(set_option(fd, IPPROTO_TCP, FASTOPEN_NO_COOKIE, 1) == 0);
    struct name name = name_of(own, 0);
    NEED(bind(fd, ADDRESS(name)) == 0 && listen(fd, 3) == 0);
    T(option(fd, IPPROTO_TCP, TCP_FASTOPEN));
    T(option(fd, IPPROTO_TCP, FASTOPEN_NO_COOKIE));
}

CASE(keys) {
    int fd = listener();
    T(setsockopt(fd, IPPROTO_TCP, FASTOPEN_KEY, "0123456789abcdef", 16));
    print_key(fd, 64);
    T(setsockopt(fd, IPPROTO_TCP, FASTOPEN_KEY, "ABCDEFGHIJKLMNOP0123456789abcdef", 32));
    print_key(fd, 64);
    print_key(fd, 16);
    T(setsockopt(fd, IPPROTO_TCP, FASTOPEN_KEY, "0123456789abcdef", 15));
    T(setsockopt(fd, IPPROTO_TCP, FASTOPEN_KEY, "0123456789abcdef", 8));
}

CASE(server_takes_data_with_syn) {
    int fd = listener(), new;
    char text[16] = "";
    T(set_option(fd, IPPROTO_TCP, TCP_FASTOPEN, 5));
    /* The first asks for a cookie. */
    tell("fast a %s %d hello", own, port_of(fd));
    NEED((new = accept(fd, NULL, NULL)) >= 0);
    T(syn_data(new));
    T(read(new, text, sizeof text));
    NEED(close(new) == 0);
    tell("fast b %s %d again", own, port_of(fd));
    NEED((new = accept(fd, NULL, NULL)) >= 0);
    T(syn_data(new));
    T(read(new, text, sizeof text));
    out("%s", text);
    T(write(new, "answer", 6));
    tell("read b 6");
    tell("shut b");
    T(read(new, text, sizeof text));
}

CASE(keys_make_cookies) {
    int fd = listener(), new;
    NEED(setsockopt(fd, IPPROTO_TCP, FASTOPEN_KEY, "0123456789abcdef", 16) == 0);
    NEED(set_option(fd, IPPROTO_TCP, TCP_FASTOPEN, 5) == 0);
    for (int i = 0; i < 4; i++) {
        /* The key of before counts as well; another does not. */
        const char *change[] = {NULL, NULL, "ABCDEFGHIJKLMNOP0123456789abcdef", "fedcba9876543210FEDCBA9876543210"};
        if (change[i]) NEED(setsockopt(fd, IPPROTO_TCP, FASTOPEN_KEY, change[i], 32) == 0);
        tell("fast %c %s %d hello", 'a' + i, own, port_of(fd));
        NEED((new = accept(fd, NULL, NULL)) >= 0);
        T(syn_data(new));
    }
}

CASE(server_without_cookies) {
    int fd = listener(), new;
    NEED(set_option(fd, IPPROTO_TCP, TCP_FASTOPEN, 5) == 0);
    NEED(set_option(fd, IPPROTO_TCP, FASTOPEN_NO_COOKIE, 1) == 0);
    tell("fast a %s %d hello", own, port_of(fd));
    tell("fast b %s %d hello", own, port_of(fd));
    NEED((new = accept(fd, NULL, NULL)) >= 0 && (new = accept(fd, NULL, NULL)) >= 0);
    T(syn_data(new));
}

CASE(client_asks_and_then_sends_with_syn) {
    struct name to = server();
    for (int i = 0; i < 3; i++) {
        int fd = socket(family, SOCK_STREAM, 0);
        T(sendto(fd, "hello", 5, MSG_FASTOPEN, ADDRESS(to)));
        tell("accept L %c", 'a' + i);
        tell("read %c 5", 'a' + i);
        out("syn data %d", i > 0 ? syn_data(fd) : 0);
        T(sendto(fd, "more", 4, MSG_FASTOPEN, ADDRESS(to)));
        T(close(fd));
    }
}

CASE(client_sends_messages) {
    struct name to = known_server();
    int fd = socket(family, SOCK_STREAM, 0);
    struct iovec parts[] = {{"hel", 3}, {"lo", 2}};
    struct msghdr message = {.msg_name = &to, .msg_namelen = sizeof to, .msg_iov = parts, .msg_iovlen = 2};
    T(sendmsg(fd, &message, MSG_FASTOPEN));
    tell("accept L a");
    tell("read a 5");
    T(syn_data(fd));
}

CASE(client_does_not_block) {
    static char much[8000];
    struct name to = known_server();
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK, 0);
    T(sendto(fd, much, sizeof much, MSG_FASTOPEN, ADDRESS(to)));
    T(await(fd, POLLOUT));
    tell("accept L a");
    tell("read a 1420");
    T(syn_data(fd));
    T(sendto(fd, "once", 4, MSG_FASTOPEN, ADDRESS(to)));
    T(sendto(fd, "more", 4, MSG_FASTOPEN, ADDRESS(to)));
    tell("read a 4");
}

CASE(client_sends_more_than_fits) {
    static char much[100000];
    struct name to = known_server();
    int fd = socket(family, SOCK_STREAM, 0);
    T(sendto(fd, much, sizeof much, MSG_FASTOPEN, ADDRESS(to)));
    tell("accept L a");
    tell("read a 100000");
    T(syn_data(fd));
}

CASE(connect_waits_for_data) {
    struct name to = known_server(), name;
    socklen_t len = sizeof name;
    char text[8];
    int fd = socket(family, SOCK_STREAM, 0);
    T(set_option(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1));
    T(connect(fd, ADDRESS(to)));
    T(now_has(fd, POLLIN | POLLOUT));
    T(getpeername(fd, (struct sockaddr *)&name, &len));
    T(recv(fd, text, sizeof text, MSG_DONTWAIT));
    T(listen(fd, 1));
    T(write(fd, "hello", 5));
    tell("accept L a");
    tell("read a 5");
    T(syn_data(fd));
    T(getpeername(fd, (struct sockaddr *)&name, &len));
    tell("send a back");
    T(read(fd, text, sizeof text));
    T(write(fd, "more", 4));
    tell("read a 4");
}

CASE(connect_waits_without_blocking) {
    struct name to = known_server();
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK, 0), set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET};
    NEED(set_option(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1) == 0);
    T(connect(fd, ADDRESS(to)));
    NEED(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    T(epoll_wait(set, &event, 1, 0));
    out("events %x", event.events);
    T(connect(fd, ADDRESS(to)));
    T(send(fd, "hello", 5, 0));
    tell("accept L a");
    tell("read a 5");
    T(await(fd, POLLOUT));
    T(syn_data(fd));
}

CASE(connect_is_closed_before_data) {
    struct name to = known_server();
    int fd = socket(family, SOCK_STREAM, 0);
    NEED(set_option(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1) == 0);
    T(connect(fd, ADDRESS(to)));
    T(close(fd));
}

CASE(server_that_takes_none) {
    struct name known = known_server();
    struct name to = name_of(peer, atoi(tell("listen M")));
    int fd = socket(family, SOCK_STREAM, 0);
    NEED(known.port != to.port);
    /* The cookie is right for the host, but this socket did not ask for data with SYNs. */
    T(sendto(fd, "hello", 5, MSG_FASTOPEN, ADDRESS(to)));
    tell("accept M a");
    tell("read a 5");
    T(syn_data(fd));
}

CASE(nobody_listens) {
    struct name to = known_server();
    tell("close L");
    int fd = socket(family, SOCK_STREAM, 0);
    T(sendto(fd, "hello", 5, MSG_FASTOPEN | MSG_NOSIGNAL, ADDRESS(to)));
    fd = socket(family, SOCK_STREAM, 0);
    NEED(set_option(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1) == 0);
    T(connect(fd, ADDRESS(to)));
    T(send(fd, "hello", 5, MSG_NOSIGNAL));
    T(option(fd, SOL_SOCKET, SO_ERROR));
}

/* As `connect` may be called again, so may this. */
CASE(again_after_a_refusal) {
    struct name to = known_server();
    tell("close L");
    int fd = socket(family, SOCK_STREAM, 0);
    for (int i = 0; i < 3; i++) T(sendto(fd, "hello", 5, MSG_FASTOPEN | MSG_NOSIGNAL, ADDRESS(to)));
    to = server();
    T(sendto(fd, "hello", 5, MSG_FASTOPEN, ADDRESS(to)));
    tell("accept L a");
    tell("read a 5");
    T(syn_data(fd));
}

CASE(again_after_a_refusal_without_blocking) {
    struct name to = known_server();
    tell("close L");
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK, 0);
    T(sendto(fd, "hello", 5, MSG_FASTOPEN | MSG_NOSIGNAL, ADDRESS(to)));
    T(await(fd, POLLOUT));
    T(sendto(fd, "hello", 5, MSG_FASTOPEN | MSG_NOSIGNAL, ADDRESS(to)));
    to = server();
    T(sendto(fd, "hello", 5, MSG_FASTOPEN | MSG_NOSIGNAL, ADDRESS(to)));
    T(await(fd, POLLOUT));
    tell("accept L a");
    tell("read a 5");
    T(sendto(fd, "more", 4, MSG_FASTOPEN | MSG_NOSIGNAL, ADDRESS(to)));
    T(sendto(fd, "more", 4, MSG_FASTOPEN | MSG_NOSIGNAL, ADDRESS(to)));
    tell("read a 4");
}

CASE(names_that_cannot_be) {
    struct name to = known_server(), at = name_of(own, 0);
    struct name no_port = name_of(peer, 0), all = name_of(PICK("255.255.255.255", "ff02::1"), ntohs(to.port));
    struct name of_the_other = {.family = family == AF_INET ? AF_INET6 : AF_INET, .port = to.port};
    int fd = socket(family, SOCK_STREAM, 0);
    NEED(bind(fd, ADDRESS(at)) == 0);
    T(sendto(fd, "a", 1, MSG_FASTOPEN, ADDRESS(of_the_other)));
    T(sendto(fd, "a", 1, MSG_FASTOPEN, (struct sockaddr *)&to, 8));
    T(sendto(fd, "a", 1, MSG_FASTOPEN, ADDRESS(all)));
    T(sendto(fd, "a", 1, MSG_FASTOPEN | MSG_NOSIGNAL, ADDRESS(no_port)));
    T(sendto(fd, "a", 1, MSG_FASTOPEN, ADDRESS(to)));
    tell("accept L a");
    tell("read a 1");
    fd = listener();
    T(sendto(fd, "a", 1, MSG_FASTOPEN | MSG_NOSIGNAL, ADDRESS(to)));
}

CASE(calls_that_cannot_be) {
    struct name to = known_server();
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    int fd = socket(family, SOCK_STREAM, 0);
    T(sendto(fd, "a", 1, MSG_FASTOPEN, &none, sizeof none));
    fd = connected("a");
    T(sendto(fd, "a", 1, MSG_FASTOPEN, ADDRESS(to)));
    T(set_option(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1));
    fd = listener();
    T(set_option(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1));
}

/* What went with the SYN is the connection's, answered or not. Last: some remember that such a SYN was lost. */
CASE(nobody_answers_in_time) {
    NEED(known_server().port);
    struct timeval soon = {.tv_usec = 200000}, ever = {0};
    /* One waits to be accepted, and there is no room for more. */
    int first = socket(family, SOCK_STREAM, 0), fd = socket(family, SOCK_STREAM, 0);
    struct name to = name_of(peer, atoi(tell("listen M 0")));
    NEED(connect(first, ADDRESS(to)) == 0);
    NEED(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &soon, sizeof soon) == 0);
    T(sendto(fd, "hello", 5, MSG_FASTOPEN, ADDRESS(to)));
    NEED(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &ever, sizeof ever) == 0);
    tell("accept M a");
    T(sendto(fd, " more", 5, MSG_FASTOPEN, ADDRESS(to)));
    tell("accept M b");
    tell("read b 10");
    T(option(fd, SOL_SOCKET, SO_ERROR));
}

static int started(const char *role) {
    (void)role;
    return 0;
}

static void try_options(const char *state, int fd) {
    static const int names[] = {TCP_FASTOPEN, TCP_FASTOPEN_CONNECT, 34 /* TCP_FASTOPEN_NO_COOKIE */};
    static const int values[] = {-1, 2, 1, 0};
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 4; k++) {
            errno = 0;
            int result = set_option(fd, IPPROTO_TCP, names[i], values[k]);
            out("%s, %d %d: %d %s, then %d", state, names[i], values[k], result, result < 0 ? strerrorname_np(errno) : "",
                option(fd, IPPROTO_TCP, names[i]));
        }
}

CASE(options_in_each_state) {
    int fd = socket(family, SOCK_STREAM, 0);
    try_options("new", fd);
    struct name at = name_of(own, 0), nobody_there = name_of(peer, 9);
    NEED(bind(fd, ADDRESS(at)) == 0);
    try_options("bound", fd);
    NEED(listen(fd, 3) == 0);
    try_options("listening", fd);
    T(shutdown(fd, SHUT_RD));
    try_options("listening no longer", fd);
    fd = connected("Y");
    try_options("connected", fd);
    tell("shut Y");
    NEED(await(fd, POLLIN) & POLLIN);
    try_options("shut by the peer", fd);
    fd = accepted("Z");
    try_options("accepted", fd);
    tell("reset Z");
    NEED(await(fd, POLLIN) & POLLIN);
    try_options("reset", fd);
    fd = socket(family, SOCK_STREAM, 0);
    T(connect(fd, ADDRESS(nobody_there)));
    try_options("refused", fd);
    T(set_option(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1));
    struct name to = name_of(peer, atoi(tell("listen X")));
    T(connect(fd, ADDRESS(to)));
    try_options("connected at last", fd);
}
