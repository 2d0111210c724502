/* What a static program expects of its sockets, checked by itself: errors, readiness, time limits, signals, ends.
 *
 *   sockets ADDRESS PORT OWN_PORT     an echo server of the other host; a port of our own
 *
 * Prints "ready" when it listens; then the other host connects three times: to send "poll" and close, to send
 * "fork" and be echoed by a child, and to be written to, which it answers with a reset. Prints "all right" at the end. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                                    \
    do {                                                                               \
        if (!(what)) {                                                                 \
            printf("line %d: %s: errno %d %s\n", __LINE__, #what, errno, strerror(errno)); \
            exit(1);                                                                   \
        }                                                                              \
    } while (0)

static struct sockaddr_in name(const char *address, int port) {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons(port)};
    CHECK(inet_aton(address, &name.sin_addr));
    return name;
}

static int poll_for(int fd, int events, int limit_ms) {
    struct pollfd poll_fd = {.fd = fd, .events = events};
    return poll(&poll_fd, 1, limit_ms) > 0 ? poll_fd.revents : 0;
}

static void read_all(int fd, char *to, size_t len) {
    while (len > 0) {
        ssize_t got = read(fd, to, len);
        CHECK(got > 0);
        to += got;
        len -= got;
    }
}

static int error_of(int fd) {
    int error = -1;
    socklen_t len = sizeof error;
    CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && len == sizeof error);
    return error;
}

/* A refused connection, then another try with the same socket; the end of one direction. */
static void blocking(struct sockaddr_in peer) {
    struct sockaddr_in nobody = peer, found;
    nobody.sin_port = htons(9);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0);
    CHECK(connect(fd, (void *)&nobody, sizeof nobody) < 0 && errno == ECONNREFUSED);
    /* There is nothing to wait for; by trap that is EAGAIN. */
    CHECK(send(fd, "x", 1, MSG_NOSIGNAL) < 0 && (errno == EPIPE || errno == EAGAIN));
    CHECK(recv(fd, &(char){0}, 1, 0) <= 0);
    CHECK(connect(fd, (void *)&peer, sizeof peer) == 0);
    CHECK(connect(fd, (void *)&peer, sizeof peer) < 0 && errno == EISCONN);
    socklen_t len = sizeof found;
    CHECK(getpeername(fd, (void *)&found, &len) == 0 && len == sizeof found);
    CHECK(found.sin_port == peer.sin_port && found.sin_addr.s_addr == peer.sin_addr.s_addr);
    len = sizeof found;
    CHECK(getsockname(fd, (void *)&found, &len) == 0 && found.sin_port != 0);
    enum { SIZE = 1 << 20 };
    static char sent[SIZE], got[SIZE];
    for (int i = 0; i < SIZE; i++) sent[i] = i * 2654435761u >> 24;
    pid_t writer = fork();
    CHECK(writer >= 0);
    if (writer == 0) {
        size_t at = 0;
        while (at < SIZE) {
            ssize_t did = write(fd, sent + at, SIZE - at);
            CHECK(did > 0);
            at += did;
        }
        CHECK(shutdown(fd, SHUT_WR) == 0);
        _exit(0);
    }
    read_all(fd, got, SIZE);
    CHECK(memcmp(sent, got, SIZE) == 0);
    CHECK(read(fd, got, 1) == 0);
    int status;
    CHECK(waitpid(-1, &status, 0) == writer && status == 0);
    /* No process is there that we do not know. */
    CHECK(waitpid(-1, &status, 0) < 0 && errno == ECHILD);
    CHECK(close(fd) == 0);
}

static void non_blocking(struct sockaddr_in peer) {
    struct sockaddr_in nobody = peer;
    nobody.sin_port = htons(9);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC && fcntl(fd, F_GETFL) & O_NONBLOCK);
    CHECK(connect(fd, (void *)&peer, sizeof peer) < 0 && errno == EINPROGRESS);
    CHECK(poll_for(fd, POLLOUT, 10000) == POLLOUT);
    CHECK(error_of(fd) == 0);
    char byte;
    CHECK(read(fd, &byte, 1) < 0 && errno == EAGAIN);
    CHECK(write(fd, "x", 1) == 1);
    CHECK(poll_for(fd, POLLIN, 10000) == POLLIN && read(fd, &byte, 1) == 1 && byte == 'x');
    close(fd);
    fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK(connect(fd, (void *)&nobody, sizeof nobody) < 0 && errno == EINPROGRESS);
    CHECK(poll_for(fd, POLLOUT, 10000) & POLLOUT);
    CHECK(error_of(fd) == ECONNREFUSED && error_of(fd) == 0);
    close(fd);
}

static volatile sig_atomic_t broken;
static void on_broken(int signal) { broken += signal == SIGPIPE; }

/* Whether this thread has SIGPIPE before it, which is thereby taken. */
static int has_signal(const sigset_t *pipe) {
    struct timespec now = {0};
    return sigtimedwait(pipe, NULL, &now) == SIGPIPE;
}

/* Sending behind a shutdown, with an address, of which TCP takes no notice; and a signal. */
static void shut(struct sockaddr_in peer) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && connect(fd, (void *)&peer, sizeof peer) == 0);
    sigset_t pipe, before;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    CHECK(sigprocmask(SIG_BLOCK, &pipe, &before) == 0);
    CHECK(sendto(fd, "x", 1, 0, (void *)&peer, sizeof peer) == 1);
    CHECK(shutdown(fd, SHUT_WR) == 0);
    /* The second time the other end is closed as well. */
    for (int turn = 0; turn < 2; turn++) {
        CHECK(!has_signal(&pipe));
        CHECK(sendto(fd, "x", 1, MSG_NOSIGNAL, (void *)&peer, sizeof peer) < 0 && errno == EPIPE);
        CHECK(!has_signal(&pipe));
        CHECK(sendto(fd, "x", 1, 0, (void *)&peer, sizeof peer) < 0 && errno == EPIPE);
        CHECK(has_signal(&pipe));
        char byte;
        read_all(fd, &byte, !turn);
        CHECK(recv(fd, &byte, 1, 0) == 0);
    }
    struct sigaction action = {.sa_handler = on_broken}, old;
    CHECK(sigaction(SIGPIPE, &action, &old) == 0 && sigprocmask(SIG_SETMASK, &before, NULL) == 0);
    CHECK(sendto(fd, "x", 1, 0, (void *)&peer, sizeof peer) < 0 && errno == EPIPE);
    for (int tries = 0; tries < 1000 && !broken; tries++) poll(NULL, 0, 1);
    CHECK(broken == 1);
    CHECK(sigaction(SIGPIPE, &old, NULL) == 0);
    close(fd);
}

static void on_alarm(int signal) { (void)signal; }

/* `accept` that waits: for so long, until a signal. */
static void waiting(int listener) {
    struct timeval limit = {.tv_usec = 50000}, none = {0};
    CHECK(setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
    CHECK(accept(listener, NULL, NULL) < 0 && errno == EAGAIN);
    CHECK(setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none) == 0);
    struct sigaction action = {.sa_handler = on_alarm};
    struct itimerval alarm = {.it_value = {.tv_usec = 50000}};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &alarm, NULL) == 0);
    CHECK(accept(listener, NULL, NULL) < 0 && errno == EINTR);
}

static void serving(int listener) {
    char text[8];
    struct sockaddr_in from;
    socklen_t len = sizeof from;
    CHECK(poll_for(listener, POLLIN, 0) == 0);
    printf("ready\n");
    fflush(stdout);
    CHECK(poll_for(listener, POLLIN, 20000) == POLLIN);
    int fd = accept4(listener, (void *)&from, &len, SOCK_NONBLOCK);
    CHECK(fd >= 0 && len == sizeof from && from.sin_family == AF_INET && from.sin_port != 0);
    CHECK(poll_for(fd, POLLIN, 20000) & POLLIN && read(fd, text, 8) == 4 && memcmp(text, "poll", 4) == 0);
    CHECK(poll_for(fd, POLLIN, 20000) & POLLIN && read(fd, text, 8) == 0);
    close(fd);
    fd = accept(listener, NULL, NULL);
    CHECK(fd >= 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        close(listener);
        int other = dup(fd);
        close(fd);
        read_all(other, text, 4);
        CHECK(send(other, text, 4, MSG_NOSIGNAL) == 4);
        _exit(0);
    }
    close(fd);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    fd = accept(listener, NULL, NULL);
    CHECK(fd >= 0 && write(fd, "x", 1) == 1);
    ssize_t got;
    while ((got = read(fd, text, 8)) > 0) {
    }
    CHECK(got < 0 && errno == ECONNRESET);
    close(fd);
    CHECK(fcntl(listener, F_SETFL, O_RDWR | O_NONBLOCK) == 0);
    CHECK(accept(listener, NULL, NULL) < 0 && errno == EAGAIN);
    CHECK(poll_for(listener, POLLIN, 0) == 0);
}

int main(int count, char **words) {
    CHECK(count == 4);
    struct sockaddr_in peer = name(words[1], atoi(words[2])), own = name("0.0.0.0", atoi(words[3]));
    setvbuf(stdout, NULL, _IOLBF, 0);
    blocking(peer);
    shut(peer);
    non_blocking(peer);
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    CHECK(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    CHECK(bind(listener, (void *)&own, sizeof own) == 0 && listen(listener, 16) == 0);
    waiting(listener);
    serving(listener);
    /* What is not a socket of ours, or none, answers as ever. */
    CHECK(bind(0, (void *)&own, sizeof own) < 0 && errno == ENOTSOCK);
    CHECK(listen(999, 1) < 0 && errno == EBADF);
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    struct msghdr message = {.msg_iov = &(struct iovec){.iov_base = "u", .iov_len = 1}, .msg_iovlen = 1};
    CHECK(sendmsg(pair[0], &message, 0) == 1 && recv(pair[1], &(char){0}, 1, 0) == 1);
    printf("all right\n");
    return 0;
}
