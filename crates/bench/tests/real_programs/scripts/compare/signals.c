/* Signals and cancellation while a call sleeps. */
#include "compare.h"
#include <semaphore.h>
#include <setjmp.h>

static int started(const char *role) { return role == NULL; }

static volatile sig_atomic_t seen;
static void on_signal(int number) { seen += number == SIGUSR1; }

static void handle(int flags) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = flags};
    sigaction(SIGUSR1, &action, NULL);
}

/* Sends SIGUSR1 to a thread once it sleeps in a call, and then, if asked, has the other host send something. */
struct disturber {
    pthread_t thread, sleeper;
    pid_t id;
    const char *then;
};

static void *disturb(void *given) {
    struct disturber *one = given;
    await_sleep(one->id);
    pthread_kill(one->sleeper, SIGUSR1);
    if (one->then) {
        usleep(50000);
        tell("%s", one->then);
    }
    return NULL;
}

static struct disturber disturbing(const char *then) {
    struct disturber one = {.sleeper = pthread_self(), .id = gettid(), .then = then};
    return one;
}

#define DISTURBED(then, call)                                                                                          \
    do {                                                                                                               \
        struct disturber one_ = disturbing(then);                                                                      \
        seen = 0;                                                                                                      \
        pthread_create(&one_.thread, NULL, disturb, &one_);                                                            \
        T(call);                                                                                                       \
        pthread_join(one_.thread, NULL);                                                                               \
        out("handled %d", seen);                                                                                       \
    } while (0)

CASE(interrupted) {
    int fd = accepted("A"), listening = listener(), set = epoll_create1(0);
    char bytes[8];
    struct epoll_event event = {.events = EPOLLIN};
    struct pollfd one = {fd, POLLIN, 0};
    fd_set in;
    handle(0);
    DISTURBED(NULL, recv(fd, bytes, 8, 0));
    DISTURBED(NULL, read(fd, bytes, 8));
    DISTURBED(NULL, accept(listening, NULL, NULL));
    DISTURBED(NULL, poll(&one, 1, -1));
    DISTURBED(NULL, poll(&one, 1, 5000));
    FD_ZERO(&in);
    FD_SET(fd, &in);
    DISTURBED(NULL, select(64, &in, NULL, NULL, NULL));
    epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
    DISTURBED(NULL, epoll_wait(set, &event, 1, -1));
    DISTURBED(NULL, epoll_wait(set, &event, 1, 5000));
}

CASE(restarted) {
    int fd = accepted("A");
    char bytes[8];
    struct pollfd one = {fd, POLLIN, 0};
    handle(SA_RESTART);
    DISTURBED("send A abc", recv(fd, bytes, 3, 0));
    DISTURBED("send A abc", recv(fd, bytes, 3, MSG_WAITALL));
    DISTURBED(NULL, poll(&one, 1, 5000));
    struct timeval limit = {3, 0};
    T(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    DISTURBED(NULL, recv(fd, bytes, 3, 0));
}

CASE(a_part_before_the_signal) {
    int fd = accepted("A");
    char bytes[8];
    handle(0);
    tell("send A abc");
    T(await(fd, POLLIN));
    DISTURBED(NULL, recv(fd, bytes, 8, MSG_WAITALL));
    static char large[8 << 20];
    long n;
    handle(0);
    struct disturber one = disturbing(NULL);
    pthread_create(&one.thread, NULL, disturb, &one);
    n = send(fd, large, sizeof large, 0);
    pthread_join(one.thread, NULL);
    T(n > 0 && n < (long)sizeof large);
}

/* Nor does SA_RESTART begin again what has a part to tell. */
CASE(a_part_before_a_restarting_signal) {
    static char large[8 << 20];
    int fd = accepted("A"), low = 6;
    handle(SA_RESTART);
    tell("send A abc");
    T(await(fd, POLLIN));
    DISTURBED(NULL, recv(fd, large, 8, MSG_WAITALL));
    tell("send A abc");
    T(await(fd, POLLIN));
    T(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low));
    DISTURBED(NULL, recv(fd, large, 8, 0));
    struct disturber one = disturbing(NULL);
    pthread_create(&one.thread, NULL, disturb, &one);
    long n = send(fd, large, sizeof large, 0);
    pthread_join(one.thread, NULL);
    T(n > 0 && n < (long)sizeof large);
}

CASE(connect_interrupted) {
    handle(0);
    int fd = T(socket(family, SOCK_STREAM, 0));
    /* Nobody has this address. */
    struct name to = name_of(nobody(), 9);
    DISTURBED(NULL, connect(fd, ADDRESS(to)));
    fcntl(fd, F_SETFL, O_NONBLOCK);
    T(connect(fd, ADDRESS(to)));
}

CASE(blocked_signals_come_with_a_mask) {
    int fd = accepted("A");
    sigset_t one, none;
    sigemptyset(&none), sigemptyset(&one), sigaddset(&one, SIGUSR1);
    handle(0);
    sigprocmask(SIG_BLOCK, &one, NULL);
    raise(SIGUSR1);
    struct pollfd looked = {fd, POLLIN, 0};
    struct timespec second = {1, 0};
    T(poll(&looked, 1, 20));
    out("handled %d", seen);
    T(ppoll(&looked, 1, &second, &none));
    out("handled %d", seen);
    raise(SIGUSR1);
    fd_set in;
    FD_ZERO(&in);
    FD_SET(fd, &in);
    T(pselect(64, &in, NULL, NULL, &second, &none));
    out("handled %d", seen);
    raise(SIGUSR1);
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
    T(epoll_pwait(set, &event, 1, 1000, &none));
    out("handled %d", seen);
    raise(SIGUSR1);
    T(epoll_pwait2(set, &event, 1, &second, &none));
    out("handled %d", seen);
}

static volatile sig_atomic_t pipes;
static void on_pipe(int number) { pipes += number == SIGPIPE; }

CASE(broken_pipe) {
    int fd = accepted("A");
    signal(SIGPIPE, on_pipe);
    T(shutdown(fd, SHUT_WR));
    T(send(fd, "x", 1, 0));
    T(write(fd, "x", 1));
    T(send(fd, "x", 1, MSG_NOSIGNAL));
    struct iovec part = {"x", 1};
    T(writev(fd, &part, 1));
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    T(sendmsg(fd, &message, 0));
    T(sendmsg(fd, &message, MSG_NOSIGNAL));
    int file = memfd_create("file", 0);
    T(ftruncate(file, 100));
    T(sendfile(fd, file, NULL, 100));
    out("%d signals", pipes);
}

CASE(broken_pipe_ends_a_program) {
    int fd = accepted("A");
    pid_t child = fork();
    if (child == 0) {
        shutdown(fd, SHUT_WR);
        write(fd, "x", 1);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    T(WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}

enum { FILE_LEN = 8 << 20 };
static int cancelled_in, memory, clean_ups;
static struct name unanswered;
static void clean_up(void *unused) {
    (void)unused;
    clean_ups++;
}
static void *wait_in_call(void *which) {
    char byte;
    struct pollfd one = {cancelled_in, POLLIN, 0};
    struct epoll_event event = {.events = EPOLLIN};
    pthread_cleanup_push(clean_up, NULL);
    switch ((long)which) {
    case 0: recv(cancelled_in, &byte, 1, 0); break;
    case 1: read(cancelled_in, &byte, 1); break;
    case 2: poll(&one, 1, -1); break;
    case 3: {
        int set = epoll_create1(EPOLL_CLOEXEC);
        epoll_ctl(set, EPOLL_CTL_ADD, cancelled_in, &event);
        epoll_wait(set, &event, 1, -1);
        break;
    }
    case 4: accept(cancelled_in, NULL, NULL); break;
    case 5: connect(cancelled_in, ADDRESS(unanswered)); break;
    case 6: close(cancelled_in); break;
    case 7: sendfile(cancelled_in, memory, NULL, FILE_LEN); break;
    }
    pthread_cleanup_pop(0);
    return NULL;
}

static void cancel_in(long which) {
    pthread_t thread;
    pthread_create(&thread, NULL, wait_in_call, (void *)which);
    usleep(100000);
    pthread_cancel(thread);
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += 3;
    void *result = NULL;
    int joined = pthread_timedjoin_np(thread, &result, &limit);
    out("call %ld: joined %d, cancelled %d, cleaned up %d", which, joined, result == PTHREAD_CANCELED, clean_ups);
    if (joined) _exit(0);
}

CASE(cancelled) {
    cancelled_in = accepted("A");
    for (long which = 0; which < 4; which++) cancel_in(which);
    tell("send A abc");
    char bytes[4];
    T(recv(cancelled_in, bytes, 3, MSG_WAITALL));
    int fd = cancelled_in;
    cancelled_in = listener();
    cancel_in(4);
    int port = port_of(cancelled_in);
    tell("connect B %s %d", own, port);
    T(accept(cancelled_in, NULL, NULL) > 0);
    T(close(fd));
    tell("drain A");
    unanswered = name_of(nobody(), 9);
    cancelled_in = socket(family, SOCK_STREAM, 0);
    cancel_in(5);
    T(close(cancelled_in));
}

/* The number is gone, and the connection ends by itself. */
CASE(cancelled_lingering) {
    static char more_than_a_window[140000];
    struct linger linger = {1, 2};
    cancelled_in = accepted("A");
    T(send(cancelled_in, more_than_a_window, sizeof more_than_a_window, 0));
    NEED(setsockopt(cancelled_in, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
    cancel_in(6);
    T(fcntl(cancelled_in, F_GETFD));
    tell("drain A");
}

/* `sendfile` sends all of it. */
CASE(cancelled_in_no_such_point) {
    pthread_t thread;
    void *result = PTHREAD_CANCELED;
    cancelled_in = accepted("A");
    memory = memfd_create("much", 0);
    NEED(ftruncate(memory, FILE_LEN) == 0);
    NEED(pthread_create(&thread, NULL, wait_in_call, (void *)7) == 0);
    usleep(100000);
    NEED(pthread_cancel(thread) == 0);
    tell("read A %d", FILE_LEN);
    NEED(pthread_join(thread, &result) == 0);
    out("cancelled %d", result == PTHREAD_CANCELED);
    T(close(cancelled_in));
}

static void write_in_handler(int number) { send(cancelled_in, "h", number > 0, MSG_DONTWAIT); }

CASE(calls_within_a_handler) {
    cancelled_in = accepted("A");
    struct sigaction action = {.sa_handler = write_in_handler, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, NULL);
    char bytes[4] = "";
    for (int i = 0; i < 20; i++) {
        tell("read A 1");
        tell("send A abc");
        T(recv(cancelled_in, bytes, 3, MSG_WAITALL));
    }
    setitimer(ITIMER_REAL, &never, NULL);
    signal(SIGALRM, SIG_DFL);
}

static void *echoes(void *given) {
    int fd = (long)given;
    char byte;
    while (recv(fd, &byte, 1, 0) == 1) send(fd, &byte, 1, 0);
    return NULL;
}

static void *swallows(void *given) {
    char bytes[65536];
    while (recv((long)given, bytes, sizeof bytes, 0) > 0) continue;
    return NULL;
}

/* A connection of this host's at whose other end a thread does this. */
static int connected_to(void *(*does)(void *), int listening, pthread_t *thread) {
    int fd = socket(family, SOCK_STREAM, 0);
    struct name to = name_of(own, port_of(listening));
    NEED(connect(fd, ADDRESS(to)) == 0);
    long other = accept(listening, NULL, NULL);
    sigset_t alarms, before;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarms, &before);
    NEED(other > 0 && pthread_create(thread, NULL, does, (void *)other) == 0);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return fd;
}

/* The same with a thread that answers. */
static int echoed(int listening, pthread_t *thread) {
    return connected_to(echoes, listening, thread);
}

static volatile sig_atomic_t answered;

static void ask_and_wait(int number) {
    int before = errno;
    char byte = number;
    if (send(cancelled_in, &byte, 1, 0) == 1 && recv(cancelled_in, &byte, 1, 0) == 1) answered++;
    errno = before;
}

/* A handler waits for what it asks for, wherever its thread waits for something else. */
CASE(waits_within_a_handler) {
    int listening = listener();
    pthread_t threads[2];
    cancelled_in = echoed(listening, &threads[0]);
    int fd = echoed(listening, &threads[1]), lost = 0;
    struct sigaction action = {.sa_handler = ask_and_wait, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 2000}, {0, 2000}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, NULL);
    for (int i = 0; i < 3000 || answered < 100; i++) {
        char byte = 'x';
        lost += send(fd, &byte, 1, 0) != 1 || recv(fd, &byte, 1, 0) != 1 || byte != 'x';
    }
    setitimer(ITIMER_REAL, &never, NULL);
    signal(SIGALRM, SIG_DFL);
    out("lost %d", lost);
    T(close(fd));
    T(close(cancelled_in));
    for (int i = 0; i < 2; i++) NEED(pthread_join(threads[i], NULL) == 0);
}

#ifndef INLINE_H /* of an instruction the C library knows nothing */
static int accepts, still_open;
static void *cancelled_before(void *given) {
    struct pollfd one = {cancelled_in, POLLIN, 0};
    fd_set in;
    FD_ZERO(&in);
    FD_SET(cancelled_in, &in);
    char bytes[8];
    struct iovec part = {bytes, 8};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    struct mmsghdr many = {.msg_hdr = message};
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT};
    int set = epoll_create1(0);
    epoll_ctl(set, EPOLL_CTL_ADD, cancelled_in, &event);
    pthread_cancel(pthread_self());
    switch ((long)given) {
    case 0: recv(cancelled_in, bytes, 8, 0); break;
    case 1: read(cancelled_in, bytes, 8); break;
    case 2: readv(cancelled_in, &part, 1); break;
    case 3: recvmsg(cancelled_in, &message, 0); break;
    case 4: recvmmsg(cancelled_in, &many, 1, 0, NULL); break;
    case 5: send(cancelled_in, bytes, 8, 0); break;
    case 6: write(cancelled_in, bytes, 8); break;
    case 7: writev(cancelled_in, &part, 1); break;
    case 8: sendmsg(cancelled_in, &message, 0); break;
    case 9: sendmmsg(cancelled_in, &many, 1, 0); break;
    case 10: close(dup(0)); break;
    case 11: close(still_open = dup(cancelled_in)); break;
    case 12: connect(cancelled_in, ADDRESS(unanswered)); break;
    case 13: close(listener()); break;
    case 14:
        if (fork() == 0) _exit(0);
        recv(cancelled_in, bytes, 8, 0);
        break;
    case 15: poll(&one, 1, -1); break;
    case 16: select(cancelled_in + 1, &in, NULL, NULL, NULL); break;
    case 17: accept(accepts, NULL, NULL); break;
    default: epoll_wait(set, &event, 1, -1);
    }
    return NULL;
}

/* Who is cancelled already does nothing more, though the call need not wait. */
CASE(cancelled_before_the_call) {
    cancelled_in = accepted("A");
    tell("send A kept");
    NEED(await(cancelled_in, POLLIN) & POLLIN);
    unanswered = name_of(nobody(), 9);
    accepts = listener();
    tell("connect B %s %d", own, port_of(accepts));
    NEED(await(accepts, POLLIN) & POLLIN);
    for (long which = 0; which < 19; which++) {
        pthread_t thread;
        void *result = NULL;
        NEED(pthread_create(&thread, NULL, cancelled_before, (void *)which) == 0);
        NEED(pthread_join(thread, &result) == 0);
        out("call %ld: %d", which, result == PTHREAD_CANCELED);
    }
    T(close(still_open));
    T(accept(accepts, NULL, NULL) > 0);
    char bytes[8];
    T(recv(cancelled_in, bytes, 8, 0));
    T(close(cancelled_in));
    tell("drain A");
}

static void close_set(void *set) { close(*(int *)set); }

static void *sleeps_in(void *given) {
    long how = (long)given & 3;
    int fd = (long)given >> 2, set = epoll_create1(0);
    char byte;
    struct pollfd one = {fd, POLLIN, 0};
    struct epoll_event event = {.events = EPOLLIN};
    epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
    pthread_cleanup_push(close_set, &set);
    for (;;) {
        if (how == 0) poll(&one, 1, -1);
        if (how == 1) epoll_wait(set, &event, 1, -1);
        recv(fd, &byte, 1, how == 2 ? 0 : MSG_DONTWAIT);
    }
    pthread_cleanup_pop(0);
    return NULL;
}

/* What a thread sleeps for comes in the moment in which it is cancelled. */
CASE(cancelled_while_it_wakes) {
    int listening = listener(), other, cancelled = 0;
    struct name to = name_of(own, port_of(listening));
    int fd = socket(family, SOCK_STREAM, 0);
    NEED(connect(fd, ADDRESS(to)) == 0 && (other = accept(listening, NULL, NULL)) >= 0);
    for (long i = 0; i < 600; i++) {
        pthread_t thread;
        void *result = NULL;
        NEED(pthread_create(&thread, NULL, sleeps_in, (void *)((long)other << 2 | i % 3)) == 0);
        usleep(rand() % 200);
        send(fd, "x", 1, 0);
        for (volatile int k = rand() % 20000; k > 0; k--) continue;
        struct timespec limit;
        clock_gettime(CLOCK_REALTIME, &limit);
        limit.tv_sec += 3;
        NEED(pthread_cancel(thread) == 0 && pthread_timedjoin_np(thread, &result, &limit) == 0);
        cancelled += result == PTHREAD_CANCELED;
    }
    out("%d cancelled", cancelled);
    T(close(fd));
    T(close(other));
}
#endif

/* A signal that only the mask lets in comes, though there is no time to wait. */
CASE(no_time_and_a_mask) {
    int fd = accepted("A");
    sigset_t user, none;
    sigemptyset(&none);
    sigemptyset(&user);
    sigaddset(&user, SIGUSR1);
    handle(0);
    sigprocmask(SIG_BLOCK, &user, NULL);
    struct timespec no_time = {0, 0};
    struct pollfd one = {fd, POLLIN, 0};
    fd_set in;
    for (int i = 0; i < 2; i++) {
        seen = 0;
        raise(SIGUSR1);
        T(ppoll(&one, 1, &no_time, &none));
        out("handled %d", seen);
        if (!seen) sigprocmask(SIG_UNBLOCK, &user, NULL);
        sigprocmask(SIG_BLOCK, &user, NULL);
        seen = 0;
        raise(SIGUSR1);
        FD_ZERO(&in);
        FD_SET(fd, &in);
        T(pselect(fd + 1, &in, NULL, NULL, &no_time, &none));
        out("handled %d", seen);
        if (!seen) sigprocmask(SIG_UNBLOCK, &user, NULL);
        sigprocmask(SIG_BLOCK, &user, NULL);
        /* The second time something is there. */
        if (i == 0) tell("send A x");
        if (i == 0) NEED(await(fd, POLLIN) & POLLIN);
    }
}

static sigjmp_buf way_out;
static volatile sig_atomic_t may_jump;

static void jump(int number) {
    if (may_jump && number) siglongjmp(way_out, 1);
}

/* A handler jumps out of whatever its thread is in the midst of: the socket goes on. */
CASE(jumps_out_of_calls) {
    static char bytes[1 << 20];
    int listening = listener();
    pthread_t thread;
    int fd = echoed(listening, &thread), other = accepted("A");
    nonblock(other);
    signal(SIGALRM, jump);
    volatile int jumps = 0;
    for (volatile int i = 0; i < 200; i++) {
        if (sigsetjmp(way_out, 1) == 0) {
            struct itimerval soon = {{0, 0}, {0, 100 + i * 7 % 900}};
            may_jump = 1;
            setitimer(ITIMER_REAL, &soon, NULL);
            for (;;) {
                send(other, bytes, sizeof bytes, 0);
                recv(other, bytes, sizeof bytes, 0);
                struct pollfd one = {fd, POLLIN, 0};
                poll(&one, 1, 1);
            }
        }
        may_jump = 0;
        jumps++;
    }
    out("%d jumps", jumps);
    signal(SIGALRM, SIG_DFL);
    char byte = 'x';
    T(send(fd, &byte, 1, 0));
    T(recv(fd, &byte, 1, 0));
    T(recv(other, &byte, 1, 0));
    tell("send A y");
    T(await(other, POLLIN) & POLLIN);
    T(recv(other, &byte, 1, 0));
    T(close(fd));
    NEED(pthread_join(thread, NULL) == 0);
}

/* The same out of an epoll, at any moment of a look into it: it goes on, too. */
CASE(jumps_out_of_epolls) {
    int listening = listener();
    pthread_t thread;
    int fd = echoed(listening, &thread), other = accepted("A"), all = epoll_create1(0);
    struct epoll_event event = {EPOLLIN, {.fd = fd}};
    NEED(epoll_ctl(all, EPOLL_CTL_ADD, fd, &event) == 0);
    event = (struct epoll_event){EPOLLOUT, {.fd = other}};
    NEED(epoll_ctl(all, EPOLL_CTL_ADD, other, &event) == 0);
    signal(SIGALRM, jump);
    volatile int jumps = 0;
    for (volatile int i = 0; i < 600; i++) {
        if (sigsetjmp(way_out, 1) == 0) {
            struct itimerval soon = {{0, 0}, {0, 100 + i * 7 % 300}};
            /* Half of them find something, and the others sleep. */
            event.events = i % 2 ? EPOLLOUT : EPOLLIN;
            NEED(epoll_ctl(all, EPOLL_CTL_MOD, other, &event) == 0);
            may_jump = 1;
            setitimer(ITIMER_REAL, &soon, NULL);
            for (;;) epoll_wait(all, &event, 1, -1);
        }
        may_jump = 0;
        event.data.fd = other;
        jumps++;
    }
    out("%d jumps", jumps);
    signal(SIGALRM, SIG_DFL);
    char byte = 'x';
    event.events = EPOLLIN;
    T(epoll_ctl(all, EPOLL_CTL_MOD, other, &event));
    T(epoll_wait(all, &event, 1, 0));
    T(send(fd, &byte, 1, 0));
    T(epoll_wait(all, &event, 1, SOON_MS));
    T(recv(fd, &byte, 1, 0));
    T(close(fd));
    NEED(pthread_join(thread, NULL) == 0);
    tell("send A y");
    T(epoll_wait(all, &event, 1, SOON_MS));
}

static void *send_one(void *fd) {
    char byte = 'x';
    send(*(int *)fd, &byte, 1, MSG_DONTWAIT);
    recv(*(int *)fd, &byte, 1, MSG_DONTWAIT);
    return NULL;
}

/* The same out of copies: another thread goes on with the socket. */
CASE(jumps_out_of_copies) {
    static char bytes[1 << 20];
    int listening = listener();
    pthread_t echo, other;
    static int fd;
    fd = echoed(listening, &echo);
    signal(SIGPIPE, SIG_IGN); /* the echo may meet the end */
    signal(SIGALRM, jump);
    volatile int jumps = 0;
    for (volatile int i = 0; i < 80; i++) {
        if (sigsetjmp(way_out, 1) == 0) {
            struct itimerval soon = {{0, 0}, {0, 100 + i * 7 % 900}};
            may_jump = 1;
            setitimer(ITIMER_REAL, &soon, NULL);
            for (;;) {
                send(fd, bytes, sizeof bytes, MSG_DONTWAIT);
                recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
            }
        }
        may_jump = 0;
        jumps++;
        NEED(pthread_create(&other, NULL, send_one, &fd) == 0 && pthread_join(other, NULL) == 0);
    }
    out("%d jumps", jumps);
    signal(SIGALRM, SIG_DFL);
    T(close(fd));
    NEED(pthread_join(echo, NULL) == 0);
}

static volatile int pumping;

static void *pump(void *fd) {
    char bytes[100] = {0};
    while (pumping) {
        send(*(int *)fd, bytes, sizeof bytes, MSG_DONTWAIT);
        usleep(50);
    }
    return NULL;
}

/* The same out of a call that has slept and goes on: nothing of it stays, and the socket ends with its number. */
CASE(jumps_out_of_a_wait_for_all) {
    static char bytes[1 << 20];
    int listening = listener();
    pthread_t echo, pumper;
    static int fd;
    fd = echoed(listening, &echo);
    pumping = 1;
    /* The alarm is for this thread alone. */
    sigset_t alarms, before;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarms, &before);
    NEED(pthread_create(&pumper, NULL, pump, &fd) == 0);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    signal(SIGPIPE, SIG_IGN); /* the echo may meet the end */
    signal(SIGALRM, jump);
    volatile int jumps = 0;
    for (volatile int i = 0; i < 200; i++) {
        if (sigsetjmp(way_out, 1) == 0) {
            struct itimerval soon = {{0, 0}, {0, 200 + i * 7 % 900}};
            may_jump = 1;
            setitimer(ITIMER_REAL, &soon, NULL);
            for (;;) recv(fd, bytes, sizeof bytes, MSG_WAITALL);
        }
        may_jump = 0;
        jumps++;
    }
    out("%d jumps", jumps);
    signal(SIGALRM, SIG_DFL);
    pumping = 0;
    NEED(pthread_join(pumper, NULL) == 0);
    T(close(fd));
    NEED(pthread_join(echo, NULL) == 0);
}

static void jump_here(int number) {
    jmp_buf here;
    if (setjmp(here) == 0) longjmp(here, number);
    seen++;
}

/* A handler with a stack of its own jumps within itself: what it has interrupted goes on. */
CASE(jumps_within_a_handler) {
    static char stack[1 << 16];
    int fd = accepted("A");
    char bytes[8];
    stack_t own_stack = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {.sa_handler = jump_here, .sa_flags = SA_ONSTACK | SA_RESTART};
    NEED(sigaltstack(&own_stack, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
    for (int i = 0; i < 3; i++) {
        DISTURBED("send A y", recv(fd, bytes, 8, 0));
        T(send(fd, bytes, 1, 0));
    }
    tell("send A z");
    T(await(fd, POLLIN) & POLLIN);
    T(recv(fd, bytes, 8, 0));
}

static volatile pid_t forked;
static void fork_here(int number) {
    forked = fork();
    (void)number;
}

/* A handler forks in the midst of a sleep, and both go on with that: each has one of two bytes. */
CASE(forks_within_a_sleep) {
    int fd = accepted("A"), all = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    struct pollfd one = {fd, POLLIN, 0};
    struct sigaction action = {.sa_handler = fork_here, .sa_flags = SA_RESTART};
    NEED(epoll_ctl(all, EPOLL_CTL_ADD, fd, &event) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
    for (int how = 0; how < 3; how++) {
        struct disturber both = disturbing("send A yz");
        char byte = 0;
        int status = 0;
        pthread_create(&both.thread, NULL, disturb, &both);
        /* Neither of the two is restarted after a handler. */
        if (how == 1) while (poll(&one, 1, -1) < 0) continue;
        if (how == 2) while (epoll_wait(all, &event, 1, -1) < 0) continue;
        ssize_t n = recv(fd, &byte, 1, 0);
        if (forked == 0) _exit(n == 1 ? byte : 1);
        NEED(pthread_join(both.thread, NULL) == 0 && waitpid(forked, &status, 0) == forked);
        out("%d: %zd, %d", how, n, WEXITSTATUS(status) + byte);
    }
}

/* Without SA_RESTART it is over for both. */
CASE(forks_that_interrupt) {
    int fd = accepted("A");
    char byte;
    int status = 0;
    struct sigaction action = {.sa_handler = fork_here};
    sigaction(SIGUSR1, &action, NULL);
    struct disturber both = disturbing("send A y");
    pthread_create(&both.thread, NULL, disturb, &both);
    ssize_t n = recv(fd, &byte, 1, 0);
    if (forked == 0) _exit(n < 0 && errno == EINTR ? 7 : 1);
    out("%zd %s", n, strerrorname_np(errno));
    NEED(pthread_join(both.thread, NULL) == 0 && waitpid(forked, &status, 0) == forked);
    out("child %d", WEXITSTATUS(status));
}

static int worked_on;
static void fork_and_leave(int number) {
    forked = fork();
    if (forked == 0 && may_jump) siglongjmp(way_out, 1);
    if (forked > 0) return;
    /* What its parent sleeps on is the child's to close. */
    close(worked_on);
    int other = accepted("B");
    char byte;
    tell("send B x");
    _exit(recv(other, &byte, 1, 0) == 1 ? number : 1);
}

/* Has the other host send something once the child that the handler forks has ended, which tells it things, too. */
static void *disturb_and_wait(void *given) {
    struct disturber *one = given;
    siginfo_t ended;
    await_sleep(one->id);
    pthread_kill(one->sleeper, SIGUSR1);
    while (forked == 0) usleep(1000);
    NEED(waitid(P_PID, forked, &ended, WEXITED | WNOWAIT) == 0);
    tell("%s", one->then);
    return NULL;
}

/* A child is forked in the midst of a sleep, and leaves that in ways of its own: its parent sleeps on, and is woken. */
CASE(children_that_leave_a_sleep) {
    struct sigaction action = {.sa_handler = fork_and_leave, .sa_flags = SA_RESTART};
    char byte;
    int status = 0;
    sigaction(SIGUSR1, &action, NULL);
    worked_on = accepted("A");
    for (volatile int i = 0; i < 2; i++) {
        struct pollfd one = {worked_on, POLLIN, 0};
        struct disturber both = disturbing("send A y");
        may_jump = i;
        forked = 0;
        if (sigsetjmp(way_out, 1)) _exit(7);
        pthread_create(&both.thread, NULL, disturb_and_wait, &both);
        T(recv(worked_on, &byte, 1, 0));
        NEED(pthread_join(both.thread, NULL) == 0 && waitpid(forked, &status, 0) == forked);
        out("child %d", WEXITSTATUS(status));
        /* And sleeps well from then on. */
        both = disturbing("send A z");
        signal(SIGUSR1, SIG_IGN);
        pthread_create(&both.thread, NULL, disturb, &both);
        T(poll(&one, 1, SOON_MS));
        T(recv(worked_on, &byte, 1, 0));
        NEED(pthread_join(both.thread, NULL) == 0);
        sigaction(SIGUSR1, &action, NULL);
    }
}

static int worked_on;
static void close_here(int number) {
    close(worked_on);
    (void)number;
}
static void shut_here(int number) {
    shutdown(worked_on, SHUT_RDWR);
    (void)number;
}

/* A handler closes or shuts what its thread sleeps on. */
CASE(ended_by_a_handler) {
    static char bytes[1 << 22];
    struct sigaction action = {.sa_handler = close_here, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    worked_on = accepted("A");
    DISTURBED(NULL, recv(worked_on, bytes, 8, 0));
    worked_on = listener();
    DISTURBED(NULL, accept(worked_on, NULL, NULL));
    worked_on = socket(family, SOCK_DGRAM, 0);
    struct name any = name_of(own, 0);
    NEED(bind(worked_on, ADDRESS(any)) == 0);
    DISTURBED(NULL, recv(worked_on, bytes, 8, 0));
    /* What has been sent of it counts. */
    worked_on = accepted("B");
    DISTURBED(NULL, send(worked_on, bytes, sizeof bytes, 0) > 0);
    action = (struct sigaction){.sa_handler = shut_here};
    sigaction(SIGUSR1, &action, NULL);
    worked_on = accepted("C");
    DISTURBED(NULL, recv(worked_on, bytes, 8, 0));
    worked_on = listener();
    DISTURBED(NULL, accept(worked_on, NULL, NULL));
}

static void *disconnect(void *given) {
    struct disturber *one = given;
    struct sockaddr nowhere = {.sa_family = AF_UNSPEC};
    await_sleep(one->id);
    connect(worked_on, &nowhere, sizeof nowhere);
    return NULL;
}

/* Another thread takes the connection away: nobody sleeps on for it. */
CASE(disconnected_beside) {
    struct disturber one = disturbing(NULL);
    char byte;
    worked_on = accepted("A");
    pthread_create(&one.thread, NULL, disconnect, &one);
    T(recv(worked_on, &byte, 1, 0));
    NEED(pthread_join(one.thread, NULL) == 0);
}

static int taken_from;
static volatile sig_atomic_t took;
static void take_here(int number) {
    char bytes[8];
    if (recv(taken_from, bytes, sizeof bytes, MSG_DONTWAIT) > 0) took++;
    (void)number;
}

static void *send_and_signal(void *given) {
    struct disturber *one = given;
    await_sleep(one->id);
    send(worked_on, "x", 1, 0);
    for (volatile int i = rand() % 30000; i > 0; i--) continue;
    pthread_kill(one->sleeper, SIGUSR1);
    return NULL;
}

/* What wakes a thread is taken by a handler in the same moment: it has slept for all that. */
CASE(taken_by_a_handler) {
    enum { ROUNDS = 30 };
    int listening = listener(), set = epoll_create1(0), slept_on = 0;
    struct name to = name_of(own, port_of(listening));
    worked_on = socket(family, SOCK_STREAM, 0);
    NEED(connect(worked_on, ADDRESS(to)) == 0);
    taken_from = accept(listening, NULL, NULL);
    struct epoll_event event = {.events = EPOLLIN};
    struct pollfd one = {taken_from, POLLIN, 0};
    struct sigaction action = {.sa_handler = take_here};
    NEED(epoll_ctl(set, EPOLL_CTL_ADD, taken_from, &event) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
    for (int i = 0; i < ROUNDS; i++) {
        struct disturber both = disturbing(NULL);
        pthread_create(&both.thread, NULL, send_and_signal, &both);
        int n;
        if (i % 3 == 0) {
            n = poll(&one, 1, SOON_MS);
        } else if (i % 3 == 1) {
            n = epoll_wait(set, &event, 1, SOON_MS);
        } else {
            fd_set in;
            struct timeval limit = {SOON_MS / 1000, 0};
            FD_ZERO(&in);
            FD_SET(taken_from, &in);
            n = select(taken_from + 1, &in, NULL, NULL, &limit);
        }
        slept_on += n == 0;
        NEED(pthread_join(both.thread, NULL) == 0);
        take_here(0);
    }
    out("slept on %d times", slept_on);
}

static void *writes_anywhere(void *fd) {
    char bytes[1500] = {0};
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    while (fd) send(*(int *)fd, bytes, sizeof bytes, MSG_DONTWAIT);
    return NULL;
}

/* A thread that may be cancelled at any moment: the socket goes on. */
CASE(cancelled_anywhere) {
    int listening = listener(), cancelled = 0;
    pthread_t reader, writer;
    static int fd;
    fd = connected_to(swallows, listening, &reader);
    for (int i = 0; i < 300; i++) {
        void *result = NULL;
        NEED(pthread_create(&writer, NULL, writes_anywhere, &fd) == 0);
        usleep(rand() % 300);
        NEED(pthread_cancel(writer) == 0 && pthread_join(writer, &result) == 0);
        cancelled += result == PTHREAD_CANCELED;
    }
    out("%d cancelled", cancelled);
    T(close(fd));
    NEED(pthread_join(reader, NULL) == 0);
}

static void *close_beside(void *given) {
    struct disturber *one = given;
    await_sleep(one->id);
    close(worked_on);
    tell("send A y");
    return NULL;
}

/* What is closed while a thread sleeps in `select` counts as ready once something comes. */
CASE(closed_beside_a_select) {
    struct disturber one = disturbing(NULL);
    fd_set in;
    FD_ZERO(&in);
    worked_on = accepted("A");
    FD_SET(worked_on, &in);
    pthread_create(&one.thread, NULL, close_beside, &one);
    T(select(worked_on + 1, &in, NULL, NULL, NULL));
    out("%d", FD_ISSET(worked_on, &in) != 0);
    NEED(pthread_join(one.thread, NULL) == 0);
}

static sem_t has_closed;

static void *close_and_stay(void *given) {
    usleep((long)given);
    close(worked_on);
    order("send A y");
    sem_post(&has_closed);
    pause();
    return NULL;
}

/* The same again and again, each time by a thread that needs more of what threads need: the number is nobody else's. */
CASE(closed_beside_many_selects) {
    enum { ROUNDS = 100 };
    pthread_t threads[ROUNDS];
    int ready = 0;
    NEED(sem_init(&has_closed, 0, 0) == 0);
    for (long i = 0; i < ROUNDS; i++) {
        fd_set in;
        FD_ZERO(&in);
        worked_on = accepted("A");
        FD_SET(worked_on, &in);
        NEED(pthread_create(&threads[i], NULL, close_and_stay, (void *)(500 + 20 * i)) == 0);
        /* It may have been closed before. */
        int n = select(worked_on + 1, &in, NULL, NULL, NULL);
        ready += n == 1 || (n < 0 && errno == EBADF);
        NEED(sem_wait(&has_closed) == 0);
        order("close A");
    }
    T(ready);
}

static sigjmp_buf in_handler;
static void connect_again(int number) {
    static volatile int is_within;
    if (is_within) siglongjmp(in_handler, number);
    is_within = 1;
    if (sigsetjmp(in_handler, 1) == 0) {
        struct itimerval soon = {{0, 0}, {0, 50000}};
        setitimer(ITIMER_REAL, &soon, NULL);
        connect(cancelled_in, ADDRESS(unanswered));
    }
    is_within = 0;
}

/* A handler sleeps on the socket that its thread sleeps on, and is jumped back to. */
CASE(jumps_within_a_connect) {
    struct sigaction action = {.sa_handler = connect_again, .sa_flags = SA_NODEFER};
    struct itimerval soon = {{0, 0}, {0, 50000}};
    NEED(sigaction(SIGALRM, &action, NULL) == 0);
    unanswered = name_of(nobody(), 9);
    *(family == AF_INET ? (char *)&unanswered.in.sin_addr + 3 : (char *)&unanswered.in6.sin6_addr + 15) ^= 0x40;
    cancelled_in = socket(family, SOCK_STREAM, 0);
    setitimer(ITIMER_REAL, &soon, NULL);
    T(connect(cancelled_in, ADDRESS(unanswered)));
    T(close(cancelled_in));
    signal(SIGALRM, SIG_DFL);
}

static void *only_close(void *given) {
    struct disturber *one = given;
    await_sleep(one->id);
    close(worked_on);
    return NULL;
}

/* Nothing comes, and the time is over. */
CASE(closed_beside_in_vain) {
    struct timeval limit = {0, 300000};
    for (int i = 0; i < 2; i++) {
        struct disturber one = disturbing(NULL);
        worked_on = accepted(i ? "B" : "A");
        pthread_create(&one.thread, NULL, only_close, &one);
        struct pollfd entry = {worked_on, POLLIN, 0};
        fd_set in;
        FD_ZERO(&in);
        FD_SET(worked_on, &in);
        T(i ? select(worked_on + 1, &in, NULL, NULL, &limit) : poll(&entry, 1, 300));
        out("%x", i ? FD_ISSET(worked_on, &in) != 0 : entry.revents);
        NEED(pthread_join(one.thread, NULL) == 0);
    }
}

/* The same out of attempts to connect, oftener than calls can be under way. */
CASE(jumps_out_of_connects) {
    enum { ROUNDS = 1000 };
    int kept = accepted("A");
    struct name to = name_of(peer, atoi(tell("listen L")));
    tell("close L");
    signal(SIGALRM, jump);
    static volatile int fd;
    volatile int jumps = 0;
    for (volatile int i = 0; i < ROUNDS; i++) {
        fd = -1;
        if (sigsetjmp(way_out, 1) == 0) {
            struct itimerval soon = {{0, 0}, {0, 50 + i * 7 % 300}};
            may_jump = 1;
            setitimer(ITIMER_REAL, &soon, NULL);
            for (;;) {
                fd = socket(family, SOCK_STREAM, 0);
                connect(fd, ADDRESS(to));
                set_option(kept, IPPROTO_TCP, TCP_NODELAY, i & 1);
                close(fd);
            }
        }
        may_jump = 0;
        close(fd);
        jumps++;
    }
    out("%d jumps", jumps);
    signal(SIGALRM, SIG_DFL);
    T(set_option(kept, IPPROTO_TCP, TCP_NODELAY, 1));
    T(send(kept, "x", 1, 0));
    tell("read A 1");
    T(close(kept));
}

static void ask_in_handler(int number) {
    int before = errno;
    set_option(cancelled_in, IPPROTO_TCP, TCP_NODELAY, number > 0);
    errno = before;
}

/* A handler sets an option wherever its thread's attempts to connect are. */
CASE(options_set_within_a_connect) {
    enum { ROUNDS = 1500, LATE_S = 60 };
    cancelled_in = accepted("A");
    struct name to = name_of(peer, atoi(tell("listen L")));
    tell("close L");
    /* Who hangs is ended by this. */
    timer_t late;
    struct sigevent end = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR2};
    struct itimerspec limit = {.it_value = {LATE_S, 0}};
    NEED(timer_create(CLOCK_MONOTONIC, &end, &late) == 0 && timer_settime(late, 0, &limit, NULL) == 0);
    struct sigaction action = {.sa_handler = ask_in_handler, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, NULL);
    int refused = 0;
    for (int i = 0; i < ROUNDS; i++) {
        int fd = socket(family, SOCK_STREAM, 0);
        refused += connect(fd, ADDRESS(to)) < 0 && errno == ECONNREFUSED;
        close(fd);
    }
    setitimer(ITIMER_REAL, &never, NULL);
    T(refused);
    T(send(cancelled_in, "x", 1, 0));
    tell("read A 1");
}

#ifdef __x86_64__
enum { TRAP_FLAG = 0x100, STRIDE = 7 };

static int stepped, step_at, stepping, within;

/* Comes after each instruction, with the flag off. */
static void on_step(int number) {
    (void)number;
    if (stepped++ != step_at) return;
    int before = errno;
    within = accept(stepping, NULL, NULL);
    errno = before;
}

static __attribute__((noinline)) int accept_in_steps(void) {
    __asm__ volatile("pushfq\n orq %0, (%%rsp)\n popfq" ::"i"(TRAP_FLAG) : "memory", "cc");
    int new = accept(stepping, NULL, NULL);
    __asm__ volatile("pushfq\n andq %0, (%%rsp)\n popfq" ::"i"(~TRAP_FLAG) : "memory", "cc");
    return new;
}

/* A handler accepts wherever it has interrupted its thread's own `accept`: each time both get a connection. */
static void open_and_close(int number) {
    struct name to = name_of(own, 0);
    int fd = socket(family, SOCK_DGRAM, 0);
    if (bind(fd, ADDRESS(to)) == 0) seen++;
    close(fd);
    (void)number;
}

CASE(sockets_within_a_fork) {
    struct sigaction action = {.sa_handler = open_and_close, .sa_flags = SA_RESTART};
    struct itimerval often = {.it_interval.tv_usec = 300, .it_value.tv_usec = 300}, never = {0};
    sigaction(SIGALRM, &action, NULL);
    T(setitimer(ITIMER_REAL, &often, NULL));
    for (int i = 0; i < 300; i++) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        NEED(waitpid(child, NULL, 0) == child);
    }
    T(setitimer(ITIMER_REAL, &never, NULL));
    T(seen > 0);
    sigset_t mask;
    sigprocmask(SIG_BLOCK, NULL, &mask);
    T(sigismember(&mask, SIGALRM));
}

CASE(accept_within_accept) {
    stepping = listener();
    struct sigaction action = {.sa_handler = on_step, .sa_flags = SA_RESTART};
    NEED(sigaction(SIGTRAP, &action, NULL) == 0);
    int bad = 0;
    step_at = -1;
    do {
        tell("connect A %s %d", own, port_of(stepping));
        if (step_at >= 0) tell("connect B %s %d", own, port_of(stepping));
        stepped = 0, within = -1;
        int new = accept_in_steps();
        if (new < 0 || (step_at >= 0 && step_at < stepped && within < 0) || within == new) {
            out("step %d of %d: %d and %d", step_at, stepped, within, new);
            bad++;
        }
        close(new);
        if (within >= 0) close(within);
        step_at = step_at < 0 ? 0 : step_at + STRIDE;
    } while (bad < 5 && step_at < stepped);
    out("%s", stepped > 5 ? "went through all of it" : "nothing was stepped through");
}
#endif
