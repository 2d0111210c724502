/* connect, bind, listen, accept, shutdown, close and names: what each says in every state of a socket. */
#include "compare.h"

static int started(const char *role) { return role == NULL; }

static int stream(void) { return socket(family, SOCK_STREAM, 0); }

/* A port of the other host where nobody listens. */
static int closed_port(void) {
    int port = atoi(tell("listen X"));
    tell("close X");
    return port;
}

CASE(fresh_socket) {
    int fd = T(stream());
    char byte;
    struct name name;
    socklen_t len = sizeof name;
    T(getpeername(fd, (struct sockaddr *)&name, &len));
    T(getsockname(fd, (struct sockaddr *)&name, &len));
    out("port %d, length %d, family %d", name.port, len, name.family);
    T(recv(fd, &byte, 1, 0));
    T(send(fd, "x", 1, MSG_NOSIGNAL));
    T(shutdown(fd, SHUT_WR));
    T(accept(fd, NULL, NULL));
    T(now_has(fd, POLLIN | POLLOUT | POLLRDHUP));
    T(close(fd));
    T(close(fd));
    T(recv(fd, &byte, 1, 0));
}

CASE(bound_socket) {
    int fd = T(stream());
    struct name name = name_of(own, 0);
    T(bind(fd, ADDRESS(name)));
    T(port_of(fd) > 0);
    T(bind(fd, ADDRESS(name)));
    char byte;
    T(recv(fd, &byte, 1, 0));
    T(send(fd, "x", 1, MSG_NOSIGNAL));
    T(accept(fd, NULL, NULL));
    T(shutdown(fd, SHUT_RDWR));
    T(now_has(fd, POLLIN | POLLOUT | POLLRDHUP));
    int other = T(stream());
    struct name taken = name_of(own, port_of(fd));
    T(bind(other, ADDRESS(taken)));
    struct name foreign = name_of(PICK("10.99.99.99", "2001:db8:99::99"), 0);
    T(bind(other, ADDRESS(foreign)));
    T(bind(other, (struct sockaddr *)&name, 4));
    struct name of_the_other = {.family = family == AF_INET ? AF_INET6 : AF_INET};
    T(bind(other, ADDRESS(of_the_other)));
    T(close(fd));
    T(bind(other, ADDRESS(taken)));
}

CASE(listening_socket) {
    int fd = listener();
    char byte;
    struct name name = name_of(own, 0);
    socklen_t len = sizeof name;
    T(listen(fd, 1));
    T(bind(fd, ADDRESS(name)));
    T(recv(fd, &byte, 1, 0));
    T(send(fd, "x", 1, MSG_NOSIGNAL));
    T(getpeername(fd, (struct sockaddr *)&name, &len));
    struct name to = name_of(peer, 9);
    T(connect(fd, ADDRESS(to)));
    T(option(fd, SOL_SOCKET, SO_ACCEPTCONN));
    T(now_has(fd, POLLIN | POLLOUT | POLLRDHUP));
    nonblock(fd);
    T(accept(fd, NULL, NULL));
    T(accept4(fd, NULL, NULL, 1));
    T(shutdown(fd, SHUT_RD));
    T(now_has(fd, POLLIN | POLLOUT | POLLRDHUP));
    T(accept(fd, NULL, NULL));
}

CASE(reads_of_a_listener_take_no_connection) {
    int fd = listener(), pipe_[2];
    char bytes[16];
    nonblock(fd);
    tell("connect A %s %d", own, port_of(fd));
    tell("connect B %s %d", own, port_of(fd));
    T(await(fd, POLLIN));
    T(recv(fd, bytes, 1, 0));
    T(recv(fd, bytes, 16, 0));
    T(recv(fd, bytes, 16, MSG_PEEK));
    T(recv(fd, bytes, 16, MSG_TRUNC));
    T(recv(fd, bytes, 16, MSG_OOB));
    T(recv(fd, bytes, 16, MSG_ERRQUEUE));
    T(recv(fd, bytes, 0, 0));
    T(read(fd, bytes, 16));
    NEED(pipe(pipe_) == 0);
    T(splice(fd, NULL, pipe_[1], NULL, 16, SPLICE_F_NONBLOCK));
    T(accept(fd, NULL, NULL) >= 0);
    T(await(fd, POLLIN));
    T(accept(fd, NULL, NULL) >= 0);
}

CASE(listen_without_bind) {
    int fd = T(stream());
    T(listen(fd, 5));
    T(port_of(fd) > 0);
    out("peer connects: %s", tell("connect A %s %d", own, port_of(fd)));
    struct name name;
    socklen_t len = sizeof name;
    T(accept(fd, (struct sockaddr *)&name, &len));
    out("from %s, length %d", host_of(&name), len);
}

CASE(accept_gives) {
    int fd = listener();
    nonblock(fd);
    tell("connect A %s %d", own, port_of(fd));
    T(await(fd, POLLIN));
    struct name name = {0};
    socklen_t len = 4;
    int new = T(accept4(fd, (struct sockaddr *)&name, &len, SOCK_CLOEXEC));
    out("length %d, family %d, address %x", len, name.family, name.in.sin_addr.s_addr);
    T(fcntl(new, F_GETFL) & O_NONBLOCK);
    T(fcntl(new, F_GETFD));
    T(option(new, SOL_SOCKET, SO_ACCEPTCONN));
    tell("connect B %s %d", own, port_of(fd));
    T(await(fd, POLLIN));
    new = T(accept4(fd, NULL, NULL, SOCK_NONBLOCK));
    T((fcntl(new, F_GETFL) & O_NONBLOCK) != 0);
    T(fcntl(new, F_GETFD));
    char byte;
    T(recv(new, &byte, 1, 0));
    T(accept(new, NULL, NULL));
    T(listen(new, 1));
    T(accept(fd, NULL, NULL));
    T(port_of(new) == port_of(fd));
}

CASE(accept_what_was_reset) {
    int fd = listener();
    tell("connect A %s %d", own, port_of(fd));
    T(await(fd, POLLIN));
    tell("reset A");
    int new = T(accept(fd, NULL, NULL));
    char byte;
    T(await(new, POLLIN) != 0);
    T(recv(new, &byte, 1, 0));
    T(recv(new, &byte, 1, 0));
}

CASE(shut_listener_says_so) {
    int fd = listener();
    T(option(fd, SOL_SOCKET, SO_ACCEPTCONN));
    T(shutdown(fd, SHUT_RD));
    T(option(fd, SOL_SOCKET, SO_ACCEPTCONN));
    T(listen(fd, 4));
    T(option(fd, SOL_SOCKET, SO_ACCEPTCONN));
}

/* Where nobody answers. */
static struct name silent(void) {
#ifdef INLINE_H
    return name_of("10.77.0.81", 9); /* of the other's silence is known there */
#else
    return name_of(nobody(), 9);
#endif
}

CASE(connect_whose_time_is_over) {
    struct name to = silent();
    struct timeval short_ = {0, 200000};
    int fd = socket(family, SOCK_STREAM, 0);
    T(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &short_, sizeof short_));
    T(connect(fd, ADDRESS(to)));
    T(connect(fd, ADDRESS(to)));
}

static void shut_and_say(int fd, int how) {
    char byte;
    struct name name;
    socklen_t len = sizeof name;
    T(shutdown(fd, how));
    T(now_has(fd, POLLIN | POLLOUT | POLLRDHUP));
    T(option(fd, SOL_SOCKET, SO_ERROR));
    T(option(fd, SOL_SOCKET, SO_ERROR));
    T(now_has(fd, POLLIN | POLLOUT | POLLRDHUP));
    T(getpeername(fd, (struct sockaddr *)&name, &len));
    T(recv(fd, &byte, 1, 0));
    T(send(fd, "x", 1, MSG_NOSIGNAL));
}

static int connecting(void) {
    struct name to = silent();
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK, 0);
    T(connect(fd, ADDRESS(to)));
    T(now_has(fd, POLLIN | POLLOUT | POLLRDHUP));
    return fd;
}

CASE(shut_while_it_connects) {
    for (int how = SHUT_RD; how <= SHUT_RDWR; how++) shut_and_say(connecting(), how);
    int fd = connecting();
    char byte;
    T(shutdown(fd, SHUT_WR));
    T(recv(fd, &byte, 1, 0));
    T(recv(fd, &byte, 1, 0));
    fd = connecting();
    T(shutdown(fd, SHUT_WR));
    T(send(fd, "x", 1, MSG_NOSIGNAL));
    T(send(fd, "x", 1, MSG_NOSIGNAL));
}

CASE(shut_while_it_connects_and_connected_again) {
    struct name other = name_of(peer, atoi(tell("listen L")));
    int fd = connecting();
    T(shutdown(fd, SHUT_RDWR));
    T(connect(fd, ADDRESS(other)));
    T(await(fd, POLLOUT));
    T(option(fd, SOL_SOCKET, SO_ERROR));
    T(connect(fd, ADDRESS(other)));
    T(send(fd, "hi", 2, 0));
    tell("accept L A");
    tell("read A 2");
    T(shutdown(fd, SHUT_WR));
    tell("drain A");
}

CASE(shut_while_it_connects_in_an_epoll) {
    int fd = connecting(), set = T(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.u32 = 7}, got = {0};
    T(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    T(epoll_wait(set, &got, 1, 0));
    T(shutdown(fd, SHUT_WR));
    T(epoll_wait(set, &got, 1, SOON_MS));
    out("%#x %u", got.events, got.data.u32);
}

static int opening;
static volatile pid_t connector;

static void *connect_in_a_thread(void *unused) {
    (void)unused;
    struct name to = silent();
    connector = gettid();
    T(connect(opening, ADDRESS(to)));
    T(option(opening, SOL_SOCKET, SO_ERROR));
    T(now_has(opening, POLLIN | POLLOUT | POLLRDHUP));
    return NULL;
}

CASE(shut_while_a_thread_connects) {
    pthread_t thread;
    opening = stream();
    NEED(!pthread_create(&thread, NULL, connect_in_a_thread, NULL));
    while (!connector) usleep(1000);
    await_sleep(connector);
    T(shutdown(opening, SHUT_RDWR));
    NEED(!pthread_join(thread, NULL));
    struct name other = name_of(peer, atoi(tell("listen L")));
    T(connect(opening, ADDRESS(other)));
    T(send(opening, "hi", 2, 0));
    tell("accept L A");
    tell("read A 2");
}

CASE(connect_to_all) {
    if (over_inet6) return;
    struct name to = name_of("255.255.255.255", 9);
    int fd = socket(family, SOCK_STREAM, 0);
    T(connect(fd, ADDRESS(to)));
    T(set_option(fd, SOL_SOCKET, SO_BROADCAST, 1));
    T(connect(fd, ADDRESS(to)));
}

static int shared, accepted_fd;
static volatile pid_t acceptor;

static void *accept_in_a_thread(void *unused) {
    (void)unused;
    acceptor = gettid();
    accepted_fd = accept(shared, NULL, NULL);
    return NULL;
}

/* The call holds the listener until it has its connection. */
CASE(closed_while_a_thread_accepts) {
    pthread_t thread;
    shared = listener();
    int port = port_of(shared), ends[2];
    NEED(!pthread_create(&thread, NULL, accept_in_a_thread, NULL));
    while (!acceptor) usleep(1000);
    await_sleep(acceptor);
    T(close(shared));
    /* The number is somebody else's then. */
    T(pipe(ends));
    T(ends[0] == shared);
    out("%s", tell("connect A %s %d", own, port));
    NEED(!pthread_join(thread, NULL));
    T(accepted_fd >= 0);
    T(send(accepted_fd, "abc", 3, MSG_NOSIGNAL));
    tell("read A 3");
    T(write(ends[1], "x", 1));
    char byte;
    T(read(ends[0], &byte, 1));
    tell("connect B %s %d", own, port);
    out("%s", answer);
}

CASE(accept_after_end) {
    int fd = listener();
    tell("connect A %s %d", own, port_of(fd));
    tell("send A hello");
    tell("close A");
    char bytes[16] = "";
    int new = T(accept(fd, NULL, NULL));
    T(recv(new, bytes, 5, MSG_WAITALL));
    T(recv(new, bytes, 5, 0));
    T(now_has(new, POLLIN | POLLOUT | POLLRDHUP));
}

CASE(closing_a_listener_resets) {
    int fd = listener();
    tell("connect A %s %d", own, port_of(fd));
    T(await(fd, POLLIN));
    T(close(fd));
    tell("drain A");
}

/* Nothing here uses fast open unless it is configured; a program that asked for it connects all the same. */
CASE(connect_that_asked_for_fast_open) {
    struct name to = name_of(peer, atoi(tell("listen L")));
    int fd = T(stream());
    T(set_option(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1));
    T(connect(fd, ADDRESS(to)));
    T(option(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT));
    T(send(fd, "hi", 2, 0));
    tell("accept L A");
    tell("read A 2");
    fd = T(stream());
    nonblock(fd);
    T(set_option(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1));
    T(connect(fd, ADDRESS(to)));
    T(await(fd, POLLOUT));
    T(connect(fd, ADDRESS(to)));
    T(send(fd, "hi", 2, 0));
    tell("accept L B");
    tell("read B 2");
}

CASE(connect_refused) {
    int port = closed_port(), fd = T(stream());
    struct name to = name_of(peer, port);
    T(connect(fd, ADDRESS(to)));
    T(option(fd, SOL_SOCKET, SO_ERROR));
    T(now_has(fd, POLLIN | POLLOUT | POLLRDHUP));
    T(connect(fd, ADDRESS(to)));
    struct name other = name_of(peer, atoi(tell("listen L")));
    T(connect(fd, ADDRESS(other)));
    T(send(fd, "hi", 2, 0));
    tell("accept L A");
    tell("read A 2");
}

CASE(connect_refused_without_blocking) {
    int port = closed_port(), fd = T(stream());
    nonblock(fd);
    struct name to = name_of(peer, port);
    T(connect(fd, ADDRESS(to)));
    T(await(fd, POLLOUT));
    T(option(fd, SOL_SOCKET, SO_ERROR));
    T(option(fd, SOL_SOCKET, SO_ERROR));
    T(now_has(fd, POLLIN | POLLOUT | POLLRDHUP));
    char byte;
    T(recv(fd, &byte, 1, 0));
    T(send(fd, "x", 1, MSG_NOSIGNAL));
    fd = T(stream());
    nonblock(fd);
    T(connect(fd, ADDRESS(to)));
    T(await(fd, POLLOUT));
    T(recv(fd, &byte, 1, 0));
    T(recv(fd, &byte, 1, 0));
    fd = T(stream());
    nonblock(fd);
    T(connect(fd, ADDRESS(to)));
    T(await(fd, POLLOUT));
    T(connect(fd, ADDRESS(to)));
}

CASE(connect_again_in_an_epoll) {
    int port = closed_port(), fd = T(stream()), set = T(epoll_create1(0));
    nonblock(fd);
    struct name to = name_of(peer, port);
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT, .data.u32 = 7}, got = {0};
    T(connect(fd, ADDRESS(to)));
    T(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    T(epoll_wait(set, &got, 1, SOON_MS));
    out("%#x %u", got.events, got.data.u32);
    T(connect(fd, ADDRESS(to)));
    struct name other = name_of(peer, atoi(tell("listen L")));
    T(connect(fd, ADDRESS(other)));
    got = (struct epoll_event){0};
    while (!(got.events & EPOLLOUT) || got.events & EPOLLHUP) NEED(epoll_wait(set, &got, 1, SOON_MS) == 1);
    out("%#x %u", got.events, got.data.u32);
    T(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
}

CASE(connect_without_blocking) {
    struct name to = name_of(peer, atoi(tell("listen L"))), name;
    socklen_t len = sizeof name;
    int fd = T(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    T(fcntl(fd, F_GETFD));
    T(connect(fd, ADDRESS(to)));
    T(await(fd, POLLOUT));
    T(option(fd, SOL_SOCKET, SO_ERROR));
    T(connect(fd, ADDRESS(to)));
    T(connect(fd, ADDRESS(to)));
    T(getpeername(fd, (struct sockaddr *)&name, &len));
    T(name.port == to.port);
    struct name here = name_of(own, 0);
    T(bind(fd, ADDRESS(here)));
    T(listen(fd, 1));
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    T(connect(fd, &none, sizeof none));
    tell("accept L A");
    tell("drain A");
}

/* What `connect` to nowhere leaves: of a connection, of a listener with two descriptors, of one that listens after that. */
CASE(begun_again) {
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    char byte;
    int fd = accepted("A");
    nonblock(fd);
    T(option(fd, IPPROTO_TCP, TCP_NODELAY));
    T(set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1));
    T(connect(fd, &none, sizeof none));
    T(now_has(fd, POLLIN | POLLOUT | POLLRDHUP));
    T(recv(fd, &byte, 1, 0));
    T(recv(fd, &byte, 1, 0));
    T(send(fd, "x", 1, MSG_NOSIGNAL));
    T(option(fd, IPPROTO_TCP, TCP_NODELAY));
    out("peer: %s", tell("drain A"));
    T(listen(fd, 1));
    T(accept(fd, NULL, NULL));
    T(now_has(fd, POLLIN | POLLOUT | POLLRDHUP));
    int again = accepted("B"), first = dup(again);
    T(connect(again, &none, sizeof none));
    T(option(first, SOL_SOCKET, SO_ERROR));
    T(option(again, SOL_SOCKET, SO_ERROR));
    T(send(first, "x", 1, MSG_NOSIGNAL));
    int listening = listener(), other = dup(listening);
    nonblock(listening);
    T(connect(listening, &none, sizeof none));
    T(accept(other, NULL, NULL));
    T(option(other, SOL_SOCKET, SO_ACCEPTCONN));
    T(option(other, SOL_SOCKET, SO_ERROR));
    T(listen(other, 1));
    T(accept(listening, NULL, NULL));
}

/* A socket whose attempt to connect has failed may be bound, and listen. */
CASE(bound_after_a_failure) {
    struct name to = name_of(peer, closed_port()), here = name_of(own, 0);
    int fd = T(stream());
    T(connect(fd, ADDRESS(to)));
    T(bind(fd, ADDRESS(here)));
    T(bind(fd, ADDRESS(here)));
    T(listen(fd, 1));
    nonblock(fd);
    T(accept(fd, NULL, NULL));
    int unbound = T(stream());
    T(connect(unbound, ADDRESS(to)));
    T(listen(unbound, 1));
    T(option(unbound, SOL_SOCKET, SO_ACCEPTCONN));
    int chosen = listener(), port = port_of(chosen), client = T(stream());
    T(close(chosen));
    here.port = htons(port);
    T(bind(client, ADDRESS(here)));
    T(connect(client, ADDRESS(to)));
    T(bind(client, ADDRESS(here)));
    T(port_of(client) == port);
}

CASE(connect_arguments) {
    int fd = T(stream());
    struct name to = name_of(peer, 9);
    T(connect(fd, (struct sockaddr *)&to, 3));
    T(connect(fd, (struct sockaddr *)&to, 8));
    T(connect(fd, NULL, sizeof to));
    to.family = AF_UNIX;
    T(connect(fd, ADDRESS(to)));
    T(connect(900, ADDRESS(to)));
    T(connect(1, ADDRESS(to)));
    T(option(fd, SOL_SOCKET, SO_ERROR));
    T(listen(900, 1));
    T(shutdown(900, 0));
    T(shutdown(fd, 7));
}

CASE(connect_bound) {
    int fd = T(stream());
    struct name name = name_of(own, 0), to = name_of(peer, atoi(tell("listen L"))), got;
    socklen_t len = sizeof got;
    T(bind(fd, ADDRESS(name)));
    int port = port_of(fd);
    T(connect(fd, ADDRESS(to)));
    T(port_of(fd) == port);
    T(getsockname(fd, (struct sockaddr *)&got, &len));
    out("from %s", host_of(&got));
}

CASE(bind_beside_a_connection) {
    int fd = T(stream()), other = T(stream());
    struct name name = name_of(own, 0), to = name_of(peer, atoi(tell("listen L")));
    T(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    T(setsockopt(other, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    T(bind(fd, ADDRESS(name)));
    name = name_of(own, port_of(fd));
    T(connect(fd, ADDRESS(to)));
    T(bind(other, ADDRESS(name)));
}

CASE(connect_to_port_0) {
    int fd = T(stream());
    struct name to = name_of(peer, 0);
    T(connect(fd, ADDRESS(to)));
}

CASE(shutdown_write) {
    int fd = accepted("A");
    char bytes[16] = "";
    T(send(fd, "bye", 3, 0));
    T(shutdown(fd, SHUT_WR));
    T(shutdown(fd, SHUT_WR));
    T(send(fd, "x", 1, MSG_NOSIGNAL));
    T(now_has(fd, POLLIN | POLLOUT | POLLRDHUP | POLLHUP));
    tell("drain A");
    tell("send A still");
    T(recv(fd, bytes, 5, MSG_WAITALL) == 4 ? 4 : -1);
}

CASE(shutdown_write_then_answer) {
    int fd = accepted("A");
    char bytes[16] = "";
    T(shutdown(fd, SHUT_WR));
    tell("drain A");
    tell("send A still");
    tell("close A");
    T(recv(fd, bytes, 16, MSG_WAITALL));
    out("%s", bytes);
    T(recv(fd, bytes, 16, 0));
    T(now_has(fd, POLLIN | POLLOUT | POLLRDHUP));
    struct name name;
    socklen_t len = sizeof name;
    T(getpeername(fd, (struct sockaddr *)&name, &len));
    T(shutdown(fd, SHUT_RDWR));
}

CASE(names_of_what_has_ended) {
    int fd = connected("A");
    struct name name;
    socklen_t len = sizeof name;
    char byte;
    tell("shut A");
    T(recv(fd, &byte, 1, 0));
    T(getpeername(fd, (struct sockaddr *)&name, &len));
    T(shutdown(fd, SHUT_WR));
    tell("drain A");
    /* The other end has our end: its acknowledgment may still be on its way. */
    struct name before = name;
    for (int i = 0; i < 400 && getpeername(fd, (struct sockaddr *)&name, &len) == 0; i++) usleep(10000);
    T(getpeername(fd, (struct sockaddr *)&name, &len));
    out("same until then: %d", !memcmp(&before, &name, name_size(&before)));
    T(shutdown(fd, SHUT_RD));
    T(getsockname(fd, (struct sockaddr *)&name, &len));
    T(name.port != 0);
    T(option(fd, SOL_SOCKET, SO_ERROR));
    T(now_has(fd, POLLIN | POLLOUT | POLLRDHUP));
}

/* How much of a name is written, and what its length is said to be. */
CASE(names_cut_to_the_room) {
    int fd = connected("A"), listening = listener();
    static const int rooms[] = {0, 1, 2, 8, 15, 16, 17, 27, 28, 29, 200, -1};
    for (int i = 0; i < (int)(sizeof rooms / sizeof *rooms); i++) {
        unsigned char bytes[256];
        socklen_t len = rooms[i];
        for (int which = 0; which < 3; which++) {
            memset(bytes, 0xee, sizeof bytes);
            len = rooms[i];
            if (which == 0) T(getsockname(fd, (struct sockaddr *)bytes, &len));
            if (which == 1) T(getpeername(fd, (struct sockaddr *)bytes, &len));
            if (which == 2) {
                tell("connect B %s %d", own, port_of(listening));
                NEED(await(listening, POLLIN) == POLLIN);
                int new = accept(listening, (struct sockaddr *)bytes, &len);
                out("accept with room for %d: %s", rooms[i], new < 0 ? strerrorname_np(errno) : "done");
                if (new >= 0) close(new);
            }
            int written = sizeof bytes;
            while (written > 0 && bytes[written - 1] == 0xee) written--;
            out("room %d: length %d, written up to %d", rooms[i], (int)len, written);
        }
    }
    struct name name;
    socklen_t len = sizeof name;
    T(getsockname(fd, NULL, &len));
    T(getsockname(fd, (struct sockaddr *)&name, NULL));
    T(getpeername(fd, NULL, &len));
    T(getpeername(fd, (struct sockaddr *)&name, NULL));
    tell("connect C %s %d", own, port_of(listening));
    NEED(await(listening, POLLIN) == POLLIN);
    len = 77;
    T(accept(listening, NULL, &len) >= 0);
    T(len);
    tell("connect D %s %d", own, port_of(listening));
    NEED(await(listening, POLLIN) == POLLIN);
    T(accept(listening, (struct sockaddr *)&name, NULL));
    nonblock(listening);
    T(accept(listening, NULL, NULL));
}

CASE(accept_where_nothing_is_to_be_had) {
    int fd = listener(), datagrams = socket(family, SOCK_DGRAM, 0), plain = socket(family, SOCK_STREAM, 0), pipes[2];
    NEED(pipe(pipes) == 0);
    nonblock(fd);
    for (int flags = 0; flags < 3; flags++) {
        static const int some[] = {0, MSG_DONTWAIT, SOCK_NONBLOCK | 1};
        T(accept4(fd, NULL, NULL, some[flags]));
        T(accept4(datagrams, NULL, NULL, some[flags]));
        T(accept4(plain, NULL, NULL, some[flags]));
        T(accept4(pipes[0], NULL, NULL, some[flags]));
        T(accept4(-1, NULL, NULL, some[flags]));
        T(accept4(699, NULL, NULL, some[flags]));
    }
    int unconnected = connected("A");
    T(accept(unconnected, NULL, NULL));
    struct name any = name_of(own, 0);
    T(bind(plain, ADDRESS(any)));
    T(accept(plain, NULL, NULL));
    T(close(fd));
    T(accept(fd, NULL, NULL));
}

/* What a listener at every address says of itself, and what it accepts of each side. */
CASE(names_of_a_listener_everywhere) {
    int fd = socket(family, SOCK_STREAM, 0);
    struct name name = name_of(family == AF_INET ? "0.0.0.0" : "::", 0);
    socklen_t len = sizeof name;
    T(bind(fd, ADDRESS(name)));
    T(getsockname(fd, (struct sockaddr *)&name, &len));
    out("at %s, port given %d, length %d", host_of(&name), name.port != 0, len);
    T(listen(fd, 4));
    int port = ntohs(name.port);
    T(port_of(fd) == port);
    out("peer connects: %s", tell("connect A %s %d", own, port));
    int new = accept(fd, (struct sockaddr *)&name, &len);
    NEED(new >= 0);
    out("from %s, length %d", host_of(&name), len);
    T(getsockname(new, (struct sockaddr *)&name, &len));
    out("to %s, same port %d", host_of(&name), ntohs(name.port) == port);
    T(getsockname(fd, (struct sockaddr *)&name, &len));
    out("still at %s", host_of(&name));
}

CASE(shutdown_read) {
    int fd = accepted("A");
    char bytes[16];
    T(shutdown(fd, SHUT_RD));
    T(recv(fd, bytes, 16, 0));
    T(now_has(fd, POLLIN | POLLOUT | POLLRDHUP));
    T(send(fd, "on", 2, 0));
    tell("read A 2");
    tell("send A late");
    T(recv(fd, bytes, 4, 0) >= 0);
    T(shutdown(fd, SHUT_RDWR));
    T(now_has(fd, POLLIN | POLLOUT | POLLRDHUP));
}

CASE(peer_shuts) {
    int fd = accepted("A");
    char bytes[16] = "";
    tell("send A last");
    tell("shut A");
    T(await(fd, POLLRDHUP));
    T(now_has(fd, POLLIN | POLLOUT | POLLRDHUP));
    T(recv(fd, bytes, 16, MSG_WAITALL));
    T(recv(fd, bytes, 16, MSG_PEEK));
    T(send(fd, "more", 4, 0));
    tell("read A 4");
    T(close(fd));
    tell("drain A");
}

CASE(peer_resets) {
    int fd = accepted("A");
    char bytes[16];
    tell("send A hello");
    T(await(fd, POLLIN));
    tell("reset A");
    T(await(fd, POLLRDHUP));
    T(now_has(fd, POLLIN | POLLOUT | POLLRDHUP));
    struct name name;
    socklen_t len = sizeof name;
    T(getpeername(fd, (struct sockaddr *)&name, &len));
    T(option(fd, SOL_SOCKET, SO_ERROR));
    T(recv(fd, bytes, 5, 0));
    T(recv(fd, bytes, 5, 0));
    T(send(fd, "x", 1, MSG_NOSIGNAL));
    T(shutdown(fd, SHUT_WR));
}

CASE(peer_resets_then_send) {
    int fd = accepted("A");
    tell("reset A");
    T(await(fd, POLLRDHUP));
    T(send(fd, "x", 1, MSG_NOSIGNAL));
    T(send(fd, "x", 1, MSG_NOSIGNAL));
    char byte;
    T(recv(fd, &byte, 1, 0));
}

CASE(peer_closed_then_send) {
    int fd = accepted("A");
    tell("close A");
    T(await(fd, POLLRDHUP));
    T(send(fd, "x", 1, MSG_NOSIGNAL));
    T(await(fd, POLLHUP));
    T(send(fd, "x", 1, MSG_NOSIGNAL));
    T(send(fd, "x", 1, MSG_NOSIGNAL));
    char byte;
    T(recv(fd, &byte, 1, 0));
}

CASE(close_with_unread_data) {
    int fd = accepted("A");
    tell("send A unread");
    T(await(fd, POLLIN));
    T(close(fd));
    tell("drain A");
}

CASE(close_with_linger_0) {
    int fd = accepted("A");
    struct linger linger = {1, 0};
    T(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
    T(close(fd));
    tell("drain A");
}

CASE(close_with_linger) {
    int fd = accepted("A");
    struct linger linger = {1, 3};
    T(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
    T(send(fd, "data", 4, 0));
    T(close(fd));
    tell("drain A");
}

CASE(numbers_are_reused) {
    int a = T(stream()), b = T(stream());
    T(close(a));
    T(open("/dev/null", O_RDONLY));
    T(close(a));
    T(stream());
    T(dup(b));
    T(dup2(b, a));
    T(close(b));
    T(accepted("A"));
    T(connected("B"));
    T(epoll_create1(0));
}

CASE(bind_beside_what_was_accepted) {
    int fd = listener();
    struct name name = name_of(own, port_of(fd));
    tell("connect A %s %d", own, port_of(fd));
    T(accept(fd, NULL, NULL));
    T(close(fd));
    T(bind(stream(), ADDRESS(name)));
}

/* Ports below 1024 need a privilege. */
CASE(bind_to_a_low_port) {
    struct {
        unsigned version;
        int pid;
    } head = {0x20080522, 0};
    struct {
        unsigned effective, permitted, inheritable;
    } sets[2], less[2];
    NEED(syscall(SYS_capget, &head, sets) == 0);
    memcpy(less, sets, sizeof less);
    less[0].effective &= ~(1u << 10);
    struct name low = name_of(own, 1023), high = name_of(own, 1024), all = name_of(family == AF_INET ? "0.0.0.0" : "::", 1023);
    NEED(syscall(SYS_capset, &head, less) == 0);
    T(bind(stream(), ADDRESS(low)));
    T(bind(socket(family, SOCK_DGRAM, 0), ADDRESS(low)));
    T(bind(stream(), ADDRESS(all)));
    int fd = stream();
    T(bind(fd, ADDRESS(low)));
    T(bind(fd, ADDRESS(high)));
    NEED(syscall(SYS_capset, &head, sets) == 0);
    T(bind(stream(), ADDRESS(low)));
}

CASE(bind_after_close) {
    int fd = listener(), port = port_of(fd);
    tell("connect A %s %d", own, port);
    int new = T(accept(fd, NULL, NULL));
    T(close(fd));
    struct name name = name_of(own, port);
    fd = T(stream());
    T(close(new));
    tell("drain A");
    tell("close A");
    T(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    T(bind(fd, ADDRESS(name)));
    T(listen(fd, 1));
    int other = T(stream());
    T(setsockopt(other, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    T(bind(other, ADDRESS(name)));
}

CASE(reuse_port) {
    int one = T(stream()), other = T(stream());
    struct name name = name_of(own, 0);
    T(set_option(one, SOL_SOCKET, SO_REUSEPORT, 1));
    T(bind(one, ADDRESS(name)));
    name = name_of(own, port_of(one));
    T(bind(other, ADDRESS(name)));
    T(set_option(other, SOL_SOCKET, SO_REUSEPORT, 1));
    T(bind(other, ADDRESS(name)));
    T(listen(one, 1));
    T(listen(other, 1));
}

CASE(closed_after_an_answer_with_data_unread) {
    int fd = accepted("A");
    tell("send A question");
    NEED(await(fd, POLLIN) & POLLIN);
    T(send(fd, "answer", 6, 0));
    T(close(fd));
    tell("drain A");
}

/* SO_REUSEADDR and SO_REUSEPORT count as they are when the next one comes, not as they were at `bind`. */
static void share_later(int type, int option_, int on_before, int on_later) {
    int one = socket(family, type, 0), other = socket(family, type, 0);
    struct name name = name_of(own, 0);
    T(set_option(one, SOL_SOCKET, option_, on_before));
    T(bind(one, ADDRESS(name)));
    name = name_of(own, port_of(one));
    T(set_option(other, SOL_SOCKET, option_, 1));
    T(set_option(one, SOL_SOCKET, option_, on_later));
    T(bind(other, ADDRESS(name)));
}

CASE(sharing_said_after_bind) {
    for (int on_later = 0; on_later < 2; on_later++) {
        share_later(SOCK_STREAM, SO_REUSEADDR, !on_later, on_later);
        share_later(SOCK_DGRAM, SO_REUSEADDR, !on_later, on_later);
        share_later(SOCK_DGRAM, SO_REUSEPORT, !on_later, on_later);
    }
}

CASE(data_after_both_directions_are_shut) {
    int fd = accepted("A");
    char room[16];
    T(shutdown(fd, SHUT_RDWR));
    tell("read A 1");
    tell("send A abc");
    tell("drain A");
    tell("send A def");
    T(recv(fd, room, 9, 0));
    T(recv(fd, room, 9, 0));
}

/* Opens a connection from a port of its own and closes it first. */
static void in_time_wait(struct name *me, struct name *to, int reuse) {
    int fd = stream();
    T(set_option(fd, SOL_SOCKET, SO_REUSEADDR, reuse));
    T(bind(fd, ADDRESS(*me)));
    *me = name_of(own, port_of(fd));
    T(connect(fd, ADDRESS(*to)));
    tell("accept L A");
    T(close(fd));
    tell("drain A");
    tell("close A");
    /* What was sent before is there by now: the acknowledgment of the peer's end is under way at most. */
    tell("bind Z");
}

CASE(port_in_time_wait) {
    struct name to = name_of(peer, atoi(tell("listen L"))), me = name_of(own, 0);
    in_time_wait(&me, &to, 0);
    int fd = stream();
    T(bind(fd, ADDRESS(me)));
    T(set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1));
    T(bind(fd, ADDRESS(me)));
    me = name_of(own, 0);
    in_time_wait(&me, &to, 1);
    fd = stream();
    T(bind(fd, ADDRESS(me)));
    T(set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1));
    T(bind(fd, ADDRESS(me)));
    T(listen(fd, 1));
}

CASE(same_ends_again) {
    struct name to = name_of(peer, atoi(tell("listen L"))), me = name_of(own, 0);
    for (int i = 0; i < 3; i++) in_time_wait(&me, &to, 1);
}

CASE(receive_buffer_set_late) {
    int fd = listener(), held = 0;
    T(set_option(fd, SOL_SOCKET, SO_RCVBUF, 8192));
    tell("connect A %s %d", own, port_of(fd));
    fd = accept(fd, NULL, NULL);
    const char *fill = "fill A 60000\n";
    NEED(fd >= 0 && send(control, fill, strlen(fill), 0) == (ssize_t)strlen(fill));
    for (int i = 0; i < 1000 && held < 40000; i++) {
        NEED(ioctl(fd, FIONREAD, &held) == 0);
        usleep(1000);
    }
    out("more than was asked for: %d", held >= 40000);
}

static void read_all(int fd, int count) {
    static char data[60000];
    for (int got, left = count; left > 0; left -= got) NEED((got = recv(fd, data, left, 0)) > 0);
}

/* What was offered stands; from then on it is less. */
CASE(receive_buffer_of_a_connection_set_late) {
    int fd = accepted("A"), held = 0;
    T(set_option(fd, SOL_SOCKET, SO_RCVBUF, 8192));
    const char *fill = "fill A 60000\n";
    char reply[16];
    for (int round = 0; round < 2; round++) {
        NEED(send(control, fill, strlen(fill), 0) == (ssize_t)strlen(fill));
        read_all(fd, 60000);
        NEED(recv(control, reply, sizeof reply, 0) > 0);
    }
    NEED(send(control, fill, strlen(fill), 0) == (ssize_t)strlen(fill));
    for (int i = 0; i < 1000 && held < 40000; i++) {
        NEED(ioctl(fd, FIONREAD, &held) == 0);
        usleep(1000);
    }
    out("more than was asked for: %d", held >= 40000);
    T(set_option(fd, SOL_SOCKET, SO_RCVBUF, 100000));
    read_all(fd, 60000);
    NEED(recv(control, reply, sizeof reply, 0) > 0);
}
