/* How many echoes a server gives between two of its own calls that are answered by a supervisor.
 *
 *   busy_calls serve PORT         echoes on all connections that are there by then in one thread, and in another asks for an
 *                                 option, again and again; prints the median of the echoes per call, and ends
 *   busy_calls ask ADDRESS PORT   keeps a byte on its way on each connection, until they end */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CONNECTIONS = 200, CALLS = 200, EVENTS = 256 };

#define CHECK(what)                                                                        \
    do {                                                                                   \
        if (!(what)) {                                                                     \
            printf("line %d: %s: errno %d %s\n", __LINE__, #what, errno, strerror(errno)); \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

static atomic_long echoes;

/* False: it has ended. */
static int echo(int fd) {
    char bytes[16];
    ssize_t got = read(fd, bytes, sizeof bytes);
    return got > 0 && write(fd, bytes, got) == got;
}

static int by_size(const void *one, const void *other) {
    long a = *(const long *)one, b = *(const long *)other;
    return (a > b) - (a < b);
}

static void *call(void *of) {
    long between[CALLS], before;
    for (int i = 0; i < CALLS; i++) {
        int value;
        socklen_t len = sizeof value;
        before = echoes;
        CHECK(getsockopt(*(int *)of, IPPROTO_TCP, TCP_NODELAY, &value, &len) == 0);
        between[i] = echoes - before;
    }
    qsort(between, CALLS, sizeof *between, by_size);
    printf("median %ld\n", between[CALLS / 2]);
    fflush(stdout);
    exit(0);
}

static void serve(struct sockaddr_in name) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), set = epoll_create1(0);
    CHECK(bind(listener, (struct sockaddr *)&name, sizeof name) == 0 && listen(listener, CONNECTIONS) == 0);
    printf("ready\n");
    fflush(stdout);
    for (int i = 0; i < CONNECTIONS; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.fd = accept(listener, NULL, NULL)};
        CHECK(event.data.fd >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, event.data.fd, &event) == 0);
    }
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, call, &listener) == 0);
    for (;;) {
        struct epoll_event events[EVENTS];
        int count = epoll_wait(set, events, EVENTS, -1);
        for (int i = 0; i < count; i++, echoes++)
            CHECK(echo(events[i].data.fd));
    }
}

static void ask(struct sockaddr_in name) {
    int set = epoll_create1(0);
    for (int i = 0; i < CONNECTIONS; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.fd = socket(AF_INET, SOCK_STREAM, 0)};
        CHECK(connect(event.data.fd, (struct sockaddr *)&name, sizeof name) == 0);
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, event.data.fd, &event) == 0 && write(event.data.fd, "x", 1) == 1);
    }
    for (;;) {
        struct epoll_event events[EVENTS];
        int count = epoll_wait(set, events, EVENTS, -1);
        for (int i = 0; i < count; i++)
            if (!echo(events[i].data.fd))
                exit(0);
    }
}

int main(int count, char **arguments) {
    CHECK(count > 2);
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons(atoi(arguments[count - 1]))};
    if (strcmp(arguments[1], "serve") == 0)
        serve(name);
    CHECK(inet_aton(arguments[2], &name.sin_addr));
    ask(name);
}
