/* Urgent data: MSG_OOB, SO_OOBINLINE, the mark, POLLPRI in its three forms, SIGURG. */
#include "compare.h"

static volatile sig_atomic_t signals;

static void on_urgent(int number) {
    (void)number;
    signals++;
}

static void await_urgent(int fd) { NEED(await(fd, POLLPRI) & POLLPRI); }

/* What there is to know without reading anything. */
static void show(int fd) {
    int mark = -1, readable = -1;
    NEED(ioctl(fd, SIOCATMARK, &mark) == 0 && ioctl(fd, FIONREAD, &readable) == 0);
    out("  events %#x, at mark %d %d, readable %d", now_has(fd, POLLIN | POLLPRI | POLLRDHUP), mark, sockatmark(fd), readable);
}

CASE(urgent_out_of_band) {
    int fd = accepted("a");
    char room[32];
    T(recv(fd, room, 8, MSG_OOB));
    show(fd);
    tell("send a abc");
    tell("urgent a X");
    tell("send a def");
    await_urgent(fd);
    NEED(!strcmp(tell("send a !"), "ok"));
    while (({ int n; ioctl(fd, FIONREAD, &n); n; }) < 3) usleep(1000);
    show(fd);
    T(recv(fd, room, 8, MSG_OOB | MSG_PEEK));
    T(recv(fd, room, 8, MSG_OOB));
    out("%c", room[0]);
    T(recv(fd, room, 8, MSG_OOB));
    show(fd);
    T(recv(fd, room, 32, MSG_PEEK));
    T(recv(fd, room, 32, 0));
    show(fd);
    T(recv(fd, room, 4, MSG_WAITALL));
    out("%.4s", room);
    show(fd);
    T(recv(fd, room, 4, MSG_DONTWAIT));
    T(recv(fd, room, 4, MSG_OOB));
}

CASE(urgent_passed_by_reading) {
    int fd = accepted("a");
    char room[32];
    tell("send a abc");
    tell("urgent a X");
    tell("send a def");
    await_urgent(fd);
    T(recv(fd, room, 3, MSG_WAITALL));
    /* By trap what comes after the urgent byte may come later. */
    NEED(await(fd, POLLIN) & POLLIN);
    show(fd);
    T(recv(fd, room, 3, MSG_WAITALL));
    out("%.3s", room);
    show(fd);
    T(recv(fd, room, 3, MSG_OOB));
}

CASE(urgent_byte_alone_is_nothing_to_read) {
    int fd = accepted("a");
    char room[8];
    tell("urgent a X");
    await_urgent(fd);
    show(fd);
    T(recv(fd, room, 8, MSG_DONTWAIT));
    show(fd);
    T(recv(fd, room, 8, MSG_OOB));
}

/* What was urgent, and next to be read, is not given any more once there is another urgent byte. */
CASE(urgent_overtaken) {
    int fd = accepted("a"), set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLPRI | EPOLLET}, got;
    T(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    char room[8];
    for (int i = 0; i < 3; i++) {
        tell("urgent a %c", 'x' + i);
        T(epoll_wait(set, &got, 1, SOON_MS));
    }
    show(fd);
    T(recv(fd, room, 8, MSG_OOB));
    out("%c", room[0]);
    T(recv(fd, room, 8, MSG_DONTWAIT));
    tell("send a abc");
    NEED(await(fd, POLLIN) & POLLIN);
    T(recv(fd, room, 8, 0));
    out("%.3s", room);
}

/* So much is to be read: what is sent behind urgent data comes when it comes. */
static void await_bytes(int fd, int count) {
    int there = 0;
    for (int ms = 0; ms < SOON_MS && there < count; ms++) {
        NEED(ioctl(fd, FIONREAD, &there) == 0);
        if (there < count) usleep(1000);
    }
}

CASE(urgent_inline) {
    int fd = accepted("a");
    char room[32];
    T(set_option(fd, SOL_SOCKET, SO_OOBINLINE, 1));
    tell("send a abc");
    tell("urgent a X");
    tell("send a def");
    await_urgent(fd);
    T(recv(fd, room, 8, MSG_OOB));
    T(recv(fd, room, 3, 0));
    await_bytes(fd, 4);
    show(fd);
    T(recv(fd, room, 4, MSG_WAITALL));
    out("%.4s", room);
    show(fd);
}

CASE(urgent_and_the_end) {
    int fd = accepted("a");
    char room[32];
    tell("urgent a X");
    tell("shut a");
    NEED(await(fd, POLLRDHUP) & POLLRDHUP);
    show(fd);
    T(recv(fd, room, 8, MSG_OOB));
    T(recv(fd, room, 8, MSG_OOB));
    T(recv(fd, room, 8, 0));
}

CASE(urgent_sent) {
    int fd = accepted("a"), other = connected("b");
    T(send(fd, "abc", 3, MSG_OOB));
    tell("read a 2");
    T(send(other, "x", 1, MSG_OOB | MSG_DONTWAIT));
    T(send(other, "", 0, MSG_OOB));
    T(send(other, "yz", 2, 0));
    tell("read b 2");
    T(shutdown(fd, SHUT_WR));
    signal(SIGPIPE, SIG_IGN);
    T(send(fd, "d", 1, MSG_OOB));
}

CASE(urgent_by_select_and_epoll) {
    int fd = accepted("a"), set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLPRI, .data.u32 = 7}, got;
    char room[8];
    T(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    tell("send a abc");
    NEED(await(fd, POLLIN) & POLLIN);
    T(epoll_wait(set, &got, 1, 0));
    tell("urgent a X");
    T(epoll_wait(set, &got, 1, SOON_MS));
    out("%#x %u", got.events, got.data.u32);
    fd_set in, except;
    struct timeval none = {0, 0};
    FD_ZERO(&in);
    FD_ZERO(&except);
    FD_SET(fd, &in);
    FD_SET(fd, &except);
    T(select(fd + 1, &in, 0, &except, &none));
    out("%d %d", FD_ISSET(fd, &in), FD_ISSET(fd, &except));
    T(recv(fd, room, 1, MSG_OOB));
    T(epoll_wait(set, &got, 1, 0));
}

CASE(urgent_signals_the_owner) {
    int fd = accepted("a");
    struct sigaction action = {.sa_handler = on_urgent, .sa_flags = SA_RESTART};
    sigaction(SIGURG, &action, 0);
    T(fcntl(fd, F_SETOWN, 0x7ffffff0));
    T(fcntl(fd, F_SETOWN, getpid()) == 0 && fcntl(fd, F_GETOWN) == getpid());
    for (int i = 0; i < 3; i++) {
        signals = 0;
        tell("urgent a X");
        await_urgent(fd);
        for (int n = 0; !signals && n < 1000; n++) usleep(1000);
        out("signals %d", signals);
        char room;
        T(recv(fd, &room, 1, MSG_OOB));
        T(recv(fd, &room, 1, MSG_DONTWAIT));
    }
    signals = 0;
    tell("send a abc");
    NEED(await(fd, POLLIN) & POLLIN);
    T(fcntl(fd, F_SETOWN, 0));
    tell("urgent a X");
    await_urgent(fd);
    out("signals %d", signals);
}

static int told_of;
static volatile sig_atomic_t got;

static void read_urgent(int number) {
    char room;
    got += recv(told_of, &room, 1, MSG_OOB) == 1;
    signals++;
    (void)number;
}

/* The byte is there when its signal comes. */
CASE(urgent_is_read_by_its_handler) {
    told_of = accepted("a");
    struct sigaction action = {.sa_handler = read_urgent, .sa_flags = SA_RESTART};
    sigaction(SIGURG, &action, 0);
    NEED(fcntl(told_of, F_SETOWN, getpid()) == 0);
    for (int i = 1; i <= 100; i++) {
        tell("urgent a X");
        for (int n = 0; signals < i && n < 1000; n++) usleep(1000);
    }
    out("signals %d, bytes %d", signals, got);
}

/* A child that has the socket, uses it and closes it takes the owner from nobody. */
CASE(urgent_signals_the_owner_when_a_child_has_closed) {
    int fd = accepted("a");
    struct sigaction action = {.sa_handler = on_urgent, .sa_flags = SA_RESTART};
    sigaction(SIGURG, &action, 0);
    T(fcntl(fd, F_SETOWN, getpid()));
    int status;
    pid_t child = fork();
    if (child == 0) {
        char room;
        close(fd);
        /* It sleeps as well as anybody. */
        int other = accepted("b");
        tell("send b x");
        _exit(recv(other, &room, 1, 0) == 1 && room == 'x' ? 0 : 1);
    }
    NEED(waitpid(child, &status, 0) == child);
    out("child %d", status);
    signals = 0;
    tell("urgent a X");
    await_urgent(fd);
    for (int n = 0; !signals && n < 1000; n++) usleep(1000);
    out("signals %d", signals);
}

static int started(const char *role) { return role == NULL; }
