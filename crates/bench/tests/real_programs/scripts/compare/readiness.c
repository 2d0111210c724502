/* epoll, poll and select: what they report, when, and how often. */
#include "compare.h"
#include <stdatomic.h>

static int started(const char *role) { return role == NULL; }

static int add(int set, int fd, unsigned events, int data) {
    struct epoll_event event = {.events = events, .data.u32 = data};
    return epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
}

static int change(int set, int fd, unsigned events, int data) {
    struct epoll_event event = {.events = events, .data.u32 = data};
    return epoll_ctl(set, EPOLL_CTL_MOD, fd, &event);
}

/* Waits and prints the events, by their data. */
static int events_of(const char *title, int set, int limit_ms) {
    struct epoll_event events[8];
    /* Between two looks at the kernel's descriptors paths let 50 us pass. */
    usleep(1000);
    int n = epoll_wait(set, events, 8, limit_ms);
    char text[256] = "";
    for (unsigned data = 0; data < 16; data++)
        for (int i = 0; i < n; i++)
            if (events[i].data.u32 == data)
                snprintf(text + strlen(text), sizeof text - strlen(text), " %u:%x", data, events[i].events);
    out("%s: %d events%s", title, n, text);
    return n;
}

static void take(int fd) {
    char bytes[64];
    T(recv(fd, bytes, sizeof bytes, MSG_DONTWAIT));
}

CASE(level) {
    int set = T(epoll_create1(EPOLL_CLOEXEC)), fd = accepted("A");
    T(add(set, fd, EPOLLIN, 1));
    events_of("nothing", set, 0);
    tell("send A abc");
    events_of("data", set, SOON_MS);
    events_of("data still", set, 0);
    take(fd);
    events_of("taken", set, 0);
    T(change(set, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP, 2));
    events_of("room", set, SOON_MS);
    tell("shut A");
    T(await(fd, POLLRDHUP));
    events_of("peer has finished", set, SOON_MS);
    T(shutdown(fd, SHUT_WR));
    T(await(fd, POLLHUP));
    events_of("both have", set, SOON_MS);
    T(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    events_of("removed", set, 0);
}

CASE(edge) {
    int set = T(epoll_create1(0)), fd = accepted("A");
    T(add(set, fd, EPOLLIN | EPOLLOUT | EPOLLET, 1));
    events_of("room at first", set, SOON_MS);
    events_of("not again", set, 0);
    tell("send A abc");
    T(await(fd, POLLIN));
    events_of("data", set, SOON_MS);
    events_of("not again", set, 0);
    tell("send A def");
    events_of("more data", set, SOON_MS);
    events_of("not again", set, 0);
    T(change(set, fd, EPOLLIN | EPOLLET, 2));
    events_of("after a change", set, SOON_MS);
    take(fd);
    events_of("taken", set, 0);
    tell("close A");
    events_of("the end", set, SOON_MS);
    events_of("not again", set, 0);
}

CASE(one_shot) {
    int set = T(epoll_create1(0)), fd = accepted("A");
    T(add(set, fd, EPOLLIN | EPOLLONESHOT, 1));
    tell("send A abc");
    events_of("data", set, SOON_MS);
    tell("send A def");
    T(await(fd, POLLIN));
    events_of("shot", set, 0);
    T(change(set, fd, EPOLLIN | EPOLLONESHOT, 2));
    events_of("armed again", set, SOON_MS);
    events_of("shot again", set, 0);
    T(change(set, fd, EPOLLIN | EPOLLONESHOT | EPOLLET, 3));
    events_of("with edges", set, SOON_MS);
    events_of("shot", set, 0);
    tell("reset A");
    T(await(fd, POLLERR | POLLHUP) & (POLLERR | POLLHUP));
    events_of("a reset does not come either", set, 0);
}

CASE(exclusive) {
    int set = T(epoll_create1(0)), other = T(epoll_create1(0)), fd = listener();
    T(add(set, fd, EPOLLIN | EPOLLEXCLUSIVE, 1));
    T(add(other, fd, EPOLLIN | EPOLLEXCLUSIVE, 2));
    T(change(set, fd, EPOLLIN, 1));
    T(add(set, fd, EPOLLIN, 1));
    int wrong = accepted("B");
    T(add(set, wrong, EPOLLIN | EPOLLRDHUP | EPOLLEXCLUSIVE, 3));
    T(add(set, wrong, EPOLLIN | EPOLLONESHOT | EPOLLEXCLUSIVE, 3));
    T(change(set, wrong, EPOLLIN | EPOLLEXCLUSIVE, 3));
    tell("connect A %s %d", own, port_of(fd));
    events_of("one", set, SOON_MS);
    events_of("other", other, SOON_MS);
    T(close(accept(fd, NULL, NULL)));
    events_of("one", set, 0);
    events_of("other", other, 0);
}

static int exclusive_sets[2];
static void *wait_for_one(void *which) {
    struct epoll_event event;
    return (void *)(long)epoll_wait(exclusive_sets[(long)which], &event, 1, 1000);
}

CASE(several_sets) {
    int one = T(epoll_create1(0)), other = T(epoll_create1(0)), fd = accepted("A");
    T(add(one, fd, EPOLLIN, 1));
    T(add(other, fd, EPOLLIN | EPOLLET, 2));
    pthread_t threads[2];
    exclusive_sets[0] = one, exclusive_sets[1] = other;
    for (long i = 0; i < 2; i++) pthread_create(&threads[i], NULL, wait_for_one, (void *)i);
    tell("send A abc");
    for (int i = 0; i < 2; i++) {
        void *result;
        pthread_join(threads[i], &result);
        out("thread %d had %ld", i, (long)result);
    }
    events_of("one", one, 0);
    events_of("other", other, 0);
    take(fd);
    events_of("one", one, 0);
    T(close(one));
    tell("send A def");
    events_of("other", other, SOON_MS);
}

CASE(duplicates) {
    int set = T(epoll_create1(0)), fd = accepted("A"), copy = T(dup(fd));
    T(add(set, fd, EPOLLIN, 1));
    T(add(set, copy, EPOLLIN, 2));
    T(add(set, copy, EPOLLIN, 2));
    tell("send A abc");
    events_of("both", set, SOON_MS);
    T(close(fd));
    events_of("the registration outlives its number", set, 0);
    T(change(set, copy, EPOLLOUT, 2));
    events_of("changed", set, 0);
    T(epoll_ctl(set, EPOLL_CTL_DEL, copy, NULL));
    T(close(copy));
    events_of("all closed", set, 0);
}

CASE(closed_and_reused) {
    int set = T(epoll_create1(0)), fd = accepted("A");
    T(add(set, fd, EPOLLIN, 1));
    tell("send A abc");
    T(await(fd, POLLIN));
    T(close(fd));
    events_of("closed", set, 0);
    int again = T(accepted("B"));
    T(change(set, again, EPOLLIN, 2));
    T(add(set, again, EPOLLIN, 3));
    tell("send B abc");
    events_of("the new one", set, SOON_MS);
}

CASE(nested) {
    int inner = T(epoll_create1(0)), outer = T(epoll_create1(0)), fd = accepted("A");
    T(add(inner, fd, EPOLLIN, 1));
    T(add(outer, inner, EPOLLIN, 2));
    events_of("nothing", outer, 0);
    tell("send A abc");
    events_of("outer", outer, SOON_MS);
    T(now_has(inner, POLLIN | POLLOUT));
    T(now_has(outer, POLLIN));
    events_of("inner", inner, 0);
    take(fd);
    events_of("outer", outer, 0);
    T(now_has(inner, POLLIN));
    T(add(inner, outer, EPOLLIN, 3));
    T(add(outer, outer, EPOLLIN, 3));
}

/* An inner epoll with a connection and a pipe in an outer one, by `events`. */
struct nest {
    int inner, outer, fd, pipe[2];
};

static struct nest nest(unsigned events) {
    struct nest nest = {.inner = epoll_create1(0), .outer = epoll_create1(0), .fd = accepted("A")};
    NEED(pipe(nest.pipe) == 0);
    T(add(nest.inner, nest.fd, EPOLLIN, 1));
    T(add(nest.inner, nest.pipe[0], EPOLLIN, 2));
    T(add(nest.outer, nest.inner, events, 3));
    return nest;
}

CASE(nested_level) {
    struct nest it = nest(EPOLLIN);
    tell("send A abc");
    NEED(await(it.fd, POLLIN) > 0);
    T(write(it.pipe[1], "x", 1));
    events_of("both", it.outer, SOON_MS);
    events_of("both still", it.outer, SOON_MS);
    events_of("both, within", it.inner, SOON_MS);
    take(it.fd);
    events_of("the pipe", it.outer, SOON_MS);
    T(read(it.pipe[0], answer, 1));
    events_of("none", it.outer, 0);
    tell("send A de");
    events_of("the connection", it.outer, SOON_MS);
    T(change(it.outer, it.inner, EPOLLOUT, 4));
    events_of("of no interest", it.outer, 0);
    T(change(it.outer, it.inner, EPOLLIN | EPOLLRDNORM, 5));
    events_of("by two names", it.outer, 0);
    T(epoll_ctl(it.outer, EPOLL_CTL_DEL, it.inner, NULL));
    events_of("removed", it.outer, 0);
}

CASE(nested_edge) {
    struct nest it = nest(EPOLLIN | EPOLLET);
    events_of("nothing", it.outer, 0);
    tell("send A abc");
    events_of("came", it.outer, SOON_MS);
    events_of("told", it.outer, 0);
    tell("send A de");
    events_of("came again", it.outer, SOON_MS);
    T(write(it.pipe[1], "x", 1));
    events_of("the pipe", it.outer, SOON_MS);
    events_of("told", it.outer, 0);
    T(write(it.pipe[1], "x", 1));
    tell("send A f");
    NEED(poll(NULL, 0, 100) == 0);
    events_of("both", it.outer, SOON_MS);
    events_of("told", it.outer, 0);
    T(write(it.fd, "answer", 6));
    tell("read A 6");
    events_of("what was sent is no event", it.outer, 0);
    T(change(it.outer, it.inner, EPOLLIN | EPOLLET, 4));
    events_of("changed", it.outer, 0);
    events_of("told", it.outer, 0);
    tell("send A g");
    NEED(poll(NULL, 0, 100) == 0);
    take(it.fd);
    T(read(it.pipe[0], answer, 2));
    events_of("taken before", it.outer, 0);
    tell("send A h");
    events_of("came again", it.outer, SOON_MS);
}

CASE(nested_once) {
    struct nest it = nest(EPOLLIN | EPOLLONESHOT);
    tell("send A abc");
    NEED(await(it.fd, POLLIN) > 0);
    T(write(it.pipe[1], "x", 1));
    events_of("both", it.outer, SOON_MS);
    events_of("told", it.outer, 0);
    tell("send A de");
    T(write(it.pipe[1], "x", 1));
    NEED(poll(NULL, 0, 100) == 0);
    events_of("told", it.outer, 0);
    T(now_has(it.outer, POLLIN));
    T(change(it.outer, it.inner, EPOLLIN | EPOLLONESHOT, 4));
    events_of("both again", it.outer, SOON_MS);
    events_of("told", it.outer, 0);
    T(read(it.pipe[0], answer, 2));
    take(it.fd);
    T(change(it.outer, it.inner, EPOLLIN | EPOLLONESHOT, 5));
    events_of("nothing", it.outer, 0);
    T(write(it.pipe[1], "x", 1));
    events_of("the pipe", it.outer, SOON_MS);
    tell("send A f");
    NEED(await(it.fd, POLLIN) > 0);
    events_of("told", it.outer, 0);
}

CASE(nested_twice) {
    struct nest it = nest(EPOLLIN | EPOLLET);
    int top = T(epoll_create1(0)), level = T(epoll_create1(0)), again = T(dup(it.inner));
    T(add(top, it.outer, EPOLLIN, 4));
    T(add(level, again, EPOLLIN, 5));
    T(add(level, it.inner, EPOLLIN, 6));
    T(add(it.inner, top, EPOLLIN, 7));
    tell("send A abc");
    events_of("top", top, SOON_MS);
    events_of("top still", top, SOON_MS);
    T(now_has(top, POLLIN));
    events_of("level", level, SOON_MS);
    events_of("between", it.outer, SOON_MS);
    events_of("top, told below", top, 0);
    T(now_has(top, POLLIN));
    tell("send A de");
    events_of("top", top, SOON_MS);
    events_of("level", level, SOON_MS);
    T(epoll_ctl(level, EPOLL_CTL_DEL, again, NULL));
    events_of("one of them", level, SOON_MS);
    take(it.fd);
    events_of("none", level, 0);
    tell("send A f");
    events_of("one of them still", level, SOON_MS);
    T(close(it.inner));
    events_of("another descriptor has it", level, SOON_MS);
    T(close(again));
    events_of("closed", level, 0);
    events_of("closed", it.outer, 0);
}

CASE(nested_in_a_child) {
    struct nest it = nest(EPOLLIN);
    pid_t child = fork();
    if (child == 0) {
        events_of("in the child", it.outer, SOON_MS);
        take(it.fd);
        events_of("taken there", it.outer, 0);
        _exit(0);
    }
    await_sleep(child);
    tell("send A abc");
    int status;
    T(waitpid(child, &status, 0) == child);
    events_of("taken by the child", it.outer, 0);
    tell("send A de");
    events_of("in the parent", it.outer, SOON_MS);
}

CASE(epoll_errors) {
    int set = T(epoll_create1(0)), fd = accepted("A");
    struct epoll_event event = {.events = EPOLLIN};
    T(epoll_create1(77));
    T(epoll_create(0));
    T(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event));
    T(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    T(epoll_ctl(set, 9, fd, &event));
    T(epoll_ctl(set, EPOLL_CTL_ADD, fd, NULL));
    T(epoll_ctl(set, EPOLL_CTL_ADD, 900, &event));
    T(epoll_ctl(fd, EPOLL_CTL_ADD, set, &event));
    T(epoll_ctl(900, EPOLL_CTL_ADD, fd, &event));
    T(epoll_wait(set, &event, 0, 0));
    T(epoll_wait(set, &event, -1, 0));
    T(epoll_wait(fd, &event, 1, 0));
    T(epoll_wait(900, &event, 1, 0));
    T(add(set, fd, 0, 1));
    tell("send A abc");
    T(await(fd, POLLIN));
    events_of("nothing is wanted", set, 0);
    tell("reset A");
    T(await(fd, 0) & POLLERR);
    events_of("errors always", set, SOON_MS);
}

CASE(order_and_turns) {
    int set = T(epoll_create1(0)), a = accepted("A"), b = accepted("B"), seen = 0;
    T(add(set, a, EPOLLIN, 1));
    T(add(set, b, EPOLLIN, 2));
    tell("send A abc");
    tell("send B abc");
    T(await(a, POLLIN));
    T(await(b, POLLIN));
    struct epoll_event event;
    /* One at a time: each has its turn. */
    for (int i = 0; i < 2; i++)
        if (epoll_wait(set, &event, 1, SOON_MS) == 1) seen |= 1 << event.data.u32;
    out("seen %x", seen);
}

CASE(pwait) {
    int set = T(epoll_create1(0)), fd = accepted("A");
    struct epoll_event event;
    sigset_t none;
    sigemptyset(&none);
    T(add(set, fd, EPOLLIN, 1));
    T(epoll_pwait(set, &event, 1, 10, &none));
    struct timespec ten = {0, 10000000}, wrong = {0, 2000000000}, zero = {0, 0};
    T(epoll_pwait2(set, &event, 1, &ten, &none));
    T(epoll_pwait2(set, &event, 1, &wrong, NULL));
    T(epoll_pwait2(set, &event, 1, &zero, NULL));
    tell("send A abc");
    T(epoll_pwait2(set, &event, 1, NULL, NULL));
    T(epoll_pwait2(set, &event, 1, &ten, NULL));
}

/* A mask has its size, which counts only where there is one. */
CASE(sizes_of_masks) {
    int set = T(epoll_create1(0)), fd = accepted("A");
    struct epoll_event event;
    sigset_t none;
    sigemptyset(&none);
    struct timespec zero = {0, 0};
    T(add(set, fd, EPOLLOUT, 1));
    for (size_t size = 0; size <= 16; size += 4) {
        T(syscall(SYS_epoll_pwait, set, &event, 1, 0, &none, size));
        T(syscall(SYS_epoll_pwait2, set, &event, 1, &zero, &none, size));
    }
    T(syscall(SYS_epoll_pwait, set, &event, 1, 0, NULL, (size_t)5));
    T(syscall(SYS_epoll_pwait2, set, &event, 1, &zero, NULL, (size_t)5));
}

CASE(others_beside_ours) {
    int set = T(epoll_create1(0)), fd = accepted("A"), event = T(eventfd(0, 0)), ends[2];
    T(pipe(ends));
    T(add(set, fd, EPOLLIN, 1));
    T(add(set, event, EPOLLIN, 2));
    T(add(set, ends[0], EPOLLIN, 3));
    T(write(ends[1], "x", 1));
    events_of("pipe", set, SOON_MS);
    tell("send A abc");
    T(await(fd, POLLIN));
    events_of("pipe and socket", set, SOON_MS);
    T(eventfd_write(event, 1));
    events_of("all", set, SOON_MS);
    struct pollfd fds[4] = {{fd, POLLIN | POLLOUT, 0}, {ends[0], POLLIN, 0}, {event, POLLIN, 0}, {-1, POLLIN, 7}};
    T(poll(fds, 4, SOON_MS));
    out("%x %x %x %x", fds[0].revents, fds[1].revents, fds[2].revents, fds[3].revents);
    T(close(ends[1]));
    take(fd);
    events_of("end of the pipe", set, SOON_MS);
}

CASE(registered_before_connected) {
    int set = T(epoll_create1(0)), fd = T(socket(family, SOCK_STREAM | SOCK_NONBLOCK, 0));
    T(add(set, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 1));
    events_of("a fresh socket", set, 0);
    struct name to = name_of(peer, atoi(tell("listen L")));
    T(connect(fd, ADDRESS(to)));
    events_of("connected", set, SOON_MS);
    tell("accept L A");
    tell("send A abc");
    events_of("data", set, SOON_MS);
    T(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    T(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
}

CASE(poll_says) {
    int fd = accepted("A"), listening = listener(), fresh = socket(family, SOCK_STREAM, 0);
    struct pollfd fds[4] = {{fd, POLLIN | POLLOUT | POLLPRI | POLLRDNORM | POLLWRNORM | POLLRDHUP, 0},
                            {listening, POLLIN | POLLOUT, 0}, {fresh, POLLIN | POLLOUT, 0}, {900, POLLIN, 0}};
    T(poll(fds, 4, SOON_MS));
    out("%x %x %x %x", fds[0].revents, fds[1].revents, fds[2].revents, fds[3].revents);
    fds[0].events = POLLIN;
    T(poll(fds, 2, 10));
    T(poll(fds, 1, 0));
    tell("send A abc");
    T(poll(fds, 2, -1));
    struct timespec ten = {0, 10000000};
    T(ppoll(&fds[1], 1, &ten, NULL));
    fds[0].events = 0;
    T(poll(fds, 1, 10));
    tell("reset A");
    T(poll(fds, 1, SOON_MS));
    out("%x", fds[0].revents);
    T(poll(NULL, 0, 5));
    T(poll(fds, 100000000, 0));
}

CASE(select_says) {
    int fd = accepted("A"), listening = listener();
    fd_set in, room, except;
    FD_ZERO(&in);
    FD_ZERO(&room);
    FD_ZERO(&except);
    FD_SET(fd, &in);
    FD_SET(fd, &room);
    FD_SET(fd, &except);
    FD_SET(listening, &in);
    struct timeval limit = {1, 0}, zero = {0, 0}, wrong = {0, -1};
    T(select(64, &in, &room, &except, &limit));
    out("%d %d %d %d", FD_ISSET(fd, &in), FD_ISSET(fd, &room), FD_ISSET(fd, &except), FD_ISSET(listening, &in));
    T(limit.tv_sec * 1000000 + limit.tv_usec > 0);
    FD_SET(fd, &in);
    T(select(64, &in, NULL, NULL, &zero));
    tell("send A abc");
    FD_SET(fd, &in);
    T(select(64, &in, NULL, NULL, NULL));
    tell("shut A");
    T(await(fd, POLLRDHUP));
    FD_ZERO(&in);
    FD_SET(fd, &in);
    FD_SET(fd, &except);
    struct timespec second = {1, 0};
    T(pselect(64, &in, NULL, &except, &second, NULL));
    T(FD_ISSET(fd, &except));
    T(select(64, NULL, NULL, NULL, &wrong));
    T(select(-1, NULL, NULL, NULL, &zero));
    FD_ZERO(&in);
    FD_SET(900, &in);
    T(select(901, &in, NULL, NULL, &zero));
}

static int moved[2];
static void *accept_there(void *unused) {
    (void)unused;
    moved[1] = accept(moved[0], NULL, NULL);
    return NULL;
}

CASE(accepted_by_another_thread) {
    moved[0] = listener();
    int set = T(epoll_create1(0));
    pthread_t thread;
    pthread_create(&thread, NULL, accept_there, NULL);
    tell("connect A %s %d", own, port_of(moved[0]));
    pthread_join(thread, NULL);
    T(moved[1]);
    T(add(set, moved[1], EPOLLIN, 1));
    tell("send A abc");
    events_of("data", set, SOON_MS);
    T(close(moved[0]));
    take(moved[1]);
}

static void *close_soon(void *fd) {
    usleep(50000);
    shutdown(*(int *)fd, SHUT_RDWR);
    return NULL;
}

CASE(shut_while_another_thread_reads) {
    int fd = accepted("A");
    pthread_t thread;
    char byte;
    pthread_create(&thread, NULL, close_soon, &fd);
    T(recv(fd, &byte, 1, 0));
    pthread_join(thread, NULL);
    int listening = listener();
    pthread_create(&thread, NULL, close_soon, &listening);
    T(accept(listening, NULL, NULL));
    pthread_join(thread, NULL);
}

CASE(shut_while_another_thread_polls) {
    int fd = accepted("A");
    pthread_t thread;
    pthread_create(&thread, NULL, close_soon, &fd);
    T(await(fd, POLLIN));
    pthread_join(thread, NULL);
    int other = accepted("B"), set = T(epoll_create1(0));
    T(add(set, other, EPOLLIN | EPOLLET, 1));
    pthread_create(&thread, NULL, close_soon, &other);
    events_of("shut", set, SOON_MS);
    pthread_join(thread, NULL);
}

CASE(tried_again) {
    int closed = atoi(tell("listen L")), open = atoi(tell("listen M"));
    tell("close L");
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK, 0), set = epoll_create1(0);
    struct name to = name_of(peer, closed);
    T(connect(fd, ADDRESS(to)));
    int other = T(dup(fd));
    T(add(set, fd, EPOLLOUT, 1));
    T(add(set, other, EPOLLIN, 2));
    events_of("refused", set, SOON_MS);
    T(option(fd, SOL_SOCKET, SO_ERROR));
    T(connect(fd, ADDRESS(to)));
    to = name_of(peer, open);
    T(connect(fd, ADDRESS(to)));
    events_of("connected", set, SOON_MS);
    T(connect(other, ADDRESS(to)));
    tell("accept M A");
    T(send(other, "x", 1, 0));
    tell("read A 1");
    tell("send A y");
    T(await(other, POLLIN));
    events_of("data", set, SOON_MS);
    take(fd);
}

/* Who waits for a listening socket with EPOLLEXCLUSIVE, in an epoll of its own. */
struct exclusive {
    pthread_t thread;
    int set, stop, listener, woken;
    atomic_int id;
};

static atomic_int exclusive_woken;

static void *wait_alone(void *given) {
    struct exclusive *one = given;
    one->id = gettid();
    struct epoll_event event;
    if (epoll_wait(one->set, &event, 1, -1) != 1 || event.data.fd == one->stop) return NULL;
    one->woken++;
    exclusive_woken++;
    /* Nobody takes it until all have stopped: whoever else was woken would find it. */
    struct pollfd stop = {one->stop, POLLIN, 0};
    poll(&stop, 1, -1);
    return NULL;
}

CASE(exclusive_waiters) {
    enum { COUNT = 6 };
    static struct exclusive all[COUNT];
    int fd = listener();
    nonblock(fd);
    for (int i = 0; i < COUNT; i++) {
        struct exclusive *one = &all[i];
        *one = (struct exclusive){.set = epoll_create1(0), .stop = eventfd(0, 0), .listener = fd};
        struct epoll_event event = {.events = EPOLLIN | EPOLLEXCLUSIVE, .data.fd = fd};
        struct epoll_event stop = {.events = EPOLLIN, .data.fd = one->stop};
        NEED(epoll_ctl(one->set, EPOLL_CTL_ADD, fd, &event) == 0);
        NEED(epoll_ctl(one->set, EPOLL_CTL_ADD, one->stop, &stop) == 0);
        NEED(pthread_create(&one->thread, NULL, wait_alone, one) == 0);
        while (one->id == 0) sched_yield();
        await_sleep(one->id);
    }
    for (int connections = 1; connections <= 3; connections++) {
        tell("connect C%d %s %d", connections, own, port_of(fd));
        while (exclusive_woken < connections) sched_yield();
        /* Those that were woken and should not have been get time to say so. */
        tell("listen L%d", connections);
        tell("listen M%d", connections);
        out("woken %d for %d", exclusive_woken, connections);
    }
    uint64_t stop = 1;
    for (int i = 0; i < COUNT; i++) NEED(write(all[i].stop, &stop, 8) == 8);
    int sum = 0;
    for (int i = 0; i < COUNT; i++) {
        NEED(pthread_join(all[i].thread, NULL) == 0);
        sum += all[i].woken;
    }
    T(sum);
    /* Who was not woken is not told later. */
    sum = 0;
    for (int i = 0; i < COUNT; i++) {
        struct epoll_event events[2];
        for (int n = epoll_wait(all[i].set, events, 2, 0); n-- > 0;) sum += events[n].data.fd == fd;
    }
    T(sum);
    for (int i = 0; i < 3; i++) T(accept(fd, NULL, NULL) >= 0);
    T(accept(fd, NULL, NULL));
}

/* Who waits in an epoll that is closed meanwhile. */
struct waiter {
    pthread_t thread;
    int set, most, count, errno_then;
    atomic_int id;
    struct epoll_event events[4];
};

static void *wait_there(void *given) {
    struct waiter *one = given;
    one->id = gettid();
    one->count = epoll_wait(one->set, one->events, one->most, one->errno_then);
    one->errno_then = errno;
    return NULL;
}

static void begin_to_wait(struct waiter *one, int set, int most, int limit_ms) {
    *one = (struct waiter){.set = set, .most = most, .errno_then = limit_ms};
    NEED(pthread_create(&one->thread, NULL, wait_there, one) == 0);
    while (one->id == 0) sched_yield();
    await_sleep(one->id);
}

static void end_of_wait(const char *title, struct waiter *one) {
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += 5;
    int late = pthread_timedjoin_np(one->thread, NULL, &limit);
    out("%s: late %d, %d events, %u:%x", title, late, one->count, one->events[0].data.u32, one->events[0].events);
    if (one->count < 0) out("errno %d", one->errno_then);
    if (late) _exit(0);
}

/* It has the epoll until it is done. */
CASE(closed_while_waited_for) {
    struct waiter one, other;
    char bytes[4];
    for (int round = 0; round < 4; round++) {
        int fd = accepted("A"), set = T(epoll_create1(EPOLL_CLOEXEC));
        T(add(set, fd, EPOLLIN, 1));
        begin_to_wait(&one, set, 4, round >= 2 ? 300 : -1);
        if (round == 3) T(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL)); /* nothing is in it any more */
        if (round == 1) T(dup2(fd, set)); /* its number is another's, that the wait is not about */
        else T(close(set));
        int next = T(epoll_create1(EPOLL_CLOEXEC));
        T(add(next, fd, EPOLLIN, 2));
        if (round < 2) tell("send A abc");
        end_of_wait("closed", &one);
        T(round < 2 ? recv(fd, bytes, 4, 0) : 0);
        events_of("the next one", next, 0);
        tell("send A abc");
        events_of("the next one", next, SOON_MS);
        T(close(next));
        if (round == 1) T(close(set));
        T(close(fd));
    }
    /* Two that wait, and what comes is one's and then the other's. */
    int fds[2] = {accepted("A"), accepted("B")}, set = T(epoll_create1(EPOLL_CLOEXEC));
    T(add(set, fds[0], EPOLLIN | EPOLLONESHOT, 1));
    T(add(set, fds[1], EPOLLIN | EPOLLONESHOT, 1));
    begin_to_wait(&one, set, 1, -1);
    begin_to_wait(&other, set, 1, -1);
    T(close(set));
    pid_t child = fork();
    if (child == 0) _exit(0);
    NEED(waitpid(child, NULL, 0) == child);
    tell("send A abc");
    tell("send B abc");
    end_of_wait("one of two", &one);
    end_of_wait("the other", &other);
}
