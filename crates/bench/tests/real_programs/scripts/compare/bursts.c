/* Many datagrams at once: where there is no room for them, and what is done behind them. */
#include "datagrams.h"

enum { COUNT = 100, LENGTH = 60000, RCVBUFFORCE = 33 };

static int started(const char *role) { return role == NULL; }

/* As `pair`, and the other host has room for all. */
static int pair_with_room(int *port) {
    int fd = pair(port);
    char text[64];
    snprintf(text, sizeof text, "option D %d %d %d", SOL_SOCKET, RCVBUFFORCE, 64 << 20);
    NEED(!strcmp(tell("%s", text), "ok"));
    return fd;
}

/* Each may wait for room. */
CASE(sent_where_there_is_no_room) {
    int port, fd = pair(&port), sent = 0;
    struct name to = name_of(peer, port);
    while (sent < COUNT && sendto(fd, bytes, LENGTH, 0, ADDRESS(to)) == LENGTH) sent++;
    T(sent);
    struct timeval limit = {5, 0};
    T(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit));
    for (sent = 0; sent < COUNT && sendto(fd, bytes, LENGTH, 0, ADDRESS(to)) == LENGTH;) sent++;
    T(sent);
    T(connect(fd, ADDRESS(to)));
    for (sent = 0; sent < COUNT && send(fd, bytes, LENGTH, 0) == LENGTH;) sent++;
    T(sent);
}

/* It is told when there is room again: who asks is not told that there is while there is none. */
CASE(asks_for_room) {
    int port, fd = pair(&port), sent = 0, refused = 0;
    struct name to = name_of(peer, port);
    NEED(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    while (sent < COUNT && refused < 10 * COUNT) {
        if (sendto(fd, bytes, LENGTH, 0, ADDRESS(to)) == LENGTH) {
            sent++;
            continue;
        }
        NEED(errno == EAGAIN);
        refused++;
        struct pollfd one = {fd, POLLOUT, 0};
        NEED(poll(&one, 1, SOON_MS) == 1);
    }
    T(sent);
}

/* All of it arrives, whoever ends. */
CASE(a_close_behind_datagrams) {
    int port, fd = pair_with_room(&port), sent = 0;
    struct name to = name_of(peer, port);
    T(connect(fd, ADDRESS(to)));
    memset(bytes, 'a', sizeof bytes);
    while (sent < 40 && write(fd, bytes, LENGTH) == LENGTH) sent++;
    T(sent);
    T(close(fd));
    out("arrived: %s", tell("burst D 40"));
}

CASE(an_end_behind_datagrams) {
    int port, fd = pair_with_room(&port);
    struct name to = name_of(peer, port);
    T(connect(fd, ADDRESS(to)));
    memset(bytes, 'a', sizeof bytes);
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < 40; i++) send(fd, bytes, LENGTH, 0);
        kill(getpid(), SIGKILL);
    }
    close(fd);
    int status;
    T(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    out("arrived: %s", tell("burst D 40"));
}

/* Each goes to whom the socket was connected to when it was written. */
CASE(another_peer_behind_datagrams) {
    int port, fd = pair(&port), other = atoi(tell("bind E"));
    struct name to = name_of(peer, port), next = name_of(peer, other);
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    for (int i = 0; i < 20; i++) {
        NEED(connect(fd, ADDRESS(to)) == 0 && send(fd, "d", 1, 0) == 1);
        NEED(connect(fd, ADDRESS(next)) == 0 && write(fd, "e", 1) == 1);
        NEED(i % 2 == 0 || connect(fd, &none, sizeof none) == 0);
    }
    out("at the first: %s", tell("burst D 20"));
    out("at the second: %s", tell("burst E 20"));
}

/* The port is free at once. */
CASE(a_port_behind_datagrams) {
    int port, fd = pair_with_room(&port), own_port = port_of(fd);
    struct name to = name_of(peer, port), name = name_of(own, own_port);
    memset(bytes, 'a', sizeof bytes);
    for (int round = 0; round < 3; round++) {
        int sent = 0;
        T(connect(fd, ADDRESS(to)));
        while (sent < 40 && write(fd, bytes, LENGTH) == LENGTH) sent++;
        T(sent);
        T(close(fd));
        fd = socket(family, SOCK_DGRAM, 0);
        T(bind(fd, ADDRESS(name)));
    }
    out("arrived: %s", tell("burst D 120"));
    told("abc", fd);
    T(await(fd, POLLIN) & POLLIN);
    T(recv(fd, bytes, 10, 0));
}

CASE(a_bind_behind_a_datagram) {
    int port, fd = pair(&port), other = socket(family, SOCK_DGRAM, 0);
    struct name to = name_of(peer, port), name = name_of(own, 0);
    T(connect(other, ADDRESS(to)));
    T(send(other, "x", 1, 0));
    T(bind(other, ADDRESS(name)));
    T(close(fd));
}
