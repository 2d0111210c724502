/* Calls that wait, and what comes meanwhile: datagrams for others, signals, limits, tracers, stops, ends. */
#include "datagrams.h"
#include <sched.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/signalfd.h>

enum { COUNT = 100, LENGTH = 60000 };

static int started(const char *role) { return role == NULL; }

/* A thread that waits in a call, and what becomes of its number. */
struct waiter {
    pthread_t thread;
    pid_t id;
    int fd, got;
};

static void *wait_silently(void *given) {
    struct waiter *waiter = given;
    struct name who = {0};
    socklen_t len = sizeof who;
    waiter->id = gettid();
    waiter->got = recvfrom(waiter->fd, bytes, 10, 0, (struct sockaddr *)&who, &len);
    return NULL;
}

static void *wait_there(void *given) {
    wait_silently(given);
    out("%d", ((struct waiter *)given)->got);
    return NULL;
}

static void wait_as(struct waiter *waiter, int fd, void *(*how)(void *)) {
    *waiter = (struct waiter){.fd = fd};
    pthread_create(&waiter->thread, NULL, how, waiter);
    while (__atomic_load_n(&waiter->id, __ATOMIC_ACQUIRE) == 0) usleep(1000);
    await_sleep(waiter->id);
}

static void wait_in(struct waiter *waiter, int fd) { wait_as(waiter, fd, wait_there); }

CASE(a_number_that_is_closed_while_a_thread_receives) {
    int port, fd = pair(&port), kept = dup(fd);
    struct waiter waiter;
    wait_in(&waiter, fd);
    T(close(fd));
    told("abc", kept);
    pthread_join(waiter.thread, NULL);
    T(now_has(kept, POLLIN));
}

CASE(a_number_that_is_reused_while_a_thread_receives) {
    int port, fd = pair(&port), kept = dup(fd), other = socket(family, SOCK_DGRAM, 0);
    struct waiter waiter;
    wait_in(&waiter, fd);
    T(dup2(other, fd) == fd);
    told("abc", kept);
    pthread_join(waiter.thread, NULL);
    T(now_has(kept, POLLIN));
}

/* Signals while calls with an address sleep, and while they do not. */
static volatile sig_atomic_t seen;
static void on_signal(int number) { seen += number == SIGUSR1 || number == SIGALRM; }

static void handle(int number, int flags) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = flags};
    NEED(sigaction(number, &action, NULL) == 0);
}

struct disturber {
    pthread_t thread, sleeper;
    pid_t id;
    int then;
};

static void *disturb(void *given) {
    struct disturber *one = given;
    await_sleep(one->id);
    pthread_kill(one->sleeper, SIGUSR1);
    if (one->then >= 0) {
        usleep(50000);
        told("abc", one->then);
    }
    return NULL;
}

/* Receives, and has a signal; then perhaps a datagram. */
static void disturbed(int fd, int then) {
    struct disturber one = {.sleeper = pthread_self(), .id = gettid(), .then = then};
    struct name who = {0};
    socklen_t len = sizeof who;
    seen = 0;
    pthread_create(&one.thread, NULL, disturb, &one);
    T(recvfrom(fd, bytes, 10, 0, (struct sockaddr *)&who, &len));
    pthread_join(one.thread, NULL);
    out("handled %d", seen);
}

CASE(interrupted_while_it_receives) {
    int port, fd = pair(&port);
    struct timeval limit = {3, 0};
    handle(SIGUSR1, 0);
    disturbed(fd, -1);
    handle(SIGUSR1, SA_RESTART);
    disturbed(fd, fd);
    /* What has a limit does not begin anew. */
    T(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    disturbed(fd, -1);
    T(now_has(fd, POLLIN));
}

/* What a call has taken to be sent is sent, and under its own number. */
CASE(sent_among_signals) {
    enum { MANY = 2000 };
    static char said[MANY], came[MANY];
    int to = socket(family, SOCK_DGRAM, 0), fd = socket(family, SOCK_DGRAM, 0);
    struct name name = name_of(own, 0);
    NEED(bind(to, ADDRESS(name)) == 0);
    name = name_of(own, port_of(to));
    handle(SIGALRM, 0);
    struct itimerval each = {{0, 500}, {0, 500}}, none = {{0, 0}, {0, 0}};
    for (int i = 0, got; i < MANY; i++) {
        NEED(i % 20 || setitimer(ITIMER_REAL, &each, NULL) == 0);
        said[i] = sendto(fd, &i, sizeof i, 0, ADDRESS(name)) == sizeof i;
        if (i % 20 < 19) continue;
        NEED(setitimer(ITIMER_REAL, &none, NULL) == 0);
        /* The last one, which comes behind all others. */
        got = MANY;
        NEED(sendto(fd, &got, sizeof got, 0, ADDRESS(name)) == sizeof got);
        while (recv(to, &got, sizeof got, 0) == sizeof got && got < MANY) came[got] = 1;
    }
    int lost = 0;
    for (int i = 0; i < MANY; i++) lost += said[i] && !came[i];
    out("said to be sent, and never came: %d", lost);
}

static void each(long us) {
    struct itimerval often = {{0, us}, {0, us}};
    NEED(setitimer(ITIMER_REAL, &often, NULL) == 0);
}

/* This host's own: what is sent to it comes at once. */
static int bound(struct name *name) {
    int fd = socket(family, SOCK_DGRAM, 0);
    *name = name_of(own, 0);
    NEED(bind(fd, ADDRESS(*name)) == 0);
    *name = name_of(own, port_of(fd));
    return fd;
}

static int all_are(const unsigned char *from, size_t len, int value) {
    for (size_t i = 0; i < len; i++) {
        if (from[i] != value) return 0;
    }
    return 1;
}

/* What a call that a signal has ended was to write into is its caller's again. */
static void receive_among_signals(int many, int by_message) {
    struct {
        struct name who;
        struct msghdr header;
        struct iovec piece;
        int number;
        socklen_t len;
    } there;
    struct name name, from;
    int to = bound(&name), fd = bound(&from), written = 0, lost = 0;
    handle(SIGALRM, 0);
    each(700);
    for (int i = 0; i < many; i++) {
        while (sendto(fd, &i, sizeof i, 0, ADDRESS(name)) < 0) NEED(errno == EINTR);
        for (;;) {
            there.len = sizeof there.who;
            there.piece = (struct iovec){&there.number, sizeof there.number};
            there.header = (struct msghdr){
                .msg_name = &there.who, .msg_namelen = sizeof there.who, .msg_iov = &there.piece, .msg_iovlen = 1};
            long n = by_message ? recvmsg(to, &there.header, 0)
                                : recvfrom(to, &there.number, 4, 0, (struct sockaddr *)&there.who, &there.len);
            if (n == 4) break;
            NEED(errno == EINTR);
            memset(&there, 0xaa, sizeof there);
            struct timespec now, since;
            clock_gettime(CLOCK_MONOTONIC, &since);
            do clock_gettime(CLOCK_MONOTONIC, &now);
            while ((now.tv_sec - since.tv_sec) * 1000000000 + now.tv_nsec - since.tv_nsec < 300000);
            written += !all_are((void *)&there, sizeof there, 0xaa);
        }
        lost += there.number != i;
    }
    each(0);
    out("written behind an end: %d, not the next one: %d", written, lost);
    NEED(close(fd) == 0 && close(to) == 0);
}

CASE(memory_behind_an_interrupted_receive) {
    receive_among_signals(1500, 0);
    receive_among_signals(1500, 1);
}

static int asked_about = -1;
static void on_alarm(int number) {
    struct name who;
    socklen_t len = sizeof who;
    int before = errno;
    seen += number == SIGALRM && getsockname(asked_about, (struct sockaddr *)&who, &len) == 0;
    errno = before;
}

/* Sends this number; with a header that is elsewhere for each try. */
static long send_number(int fd, int number, struct name *name, int by_message, int try) {
    static struct msghdr headers[16];
    struct iovec piece = {&number, sizeof number};
    struct msghdr *header = &headers[try % 16];
    if (!by_message) return sendto(fd, &number, sizeof number, 0, ADDRESS(*name));
    *header = (struct msghdr){.msg_name = name, .msg_namelen = name_size(name), .msg_iov = &piece, .msg_iovlen = 1};
    long n = sendmsg(fd, header, 0);
    *header = (struct msghdr){0};
    return n;
}

/* Whatever the handler does, and wherever what is sent again stands. */
static void send_among_signals(int flags, int by_message) {
    enum { MANY = 1500, AHEAD = 50 };
    static char came[MANY];
    struct name name, from;
    int to = bound(&name), fd = bound(&from), doubled = 0, lost = 0, number;
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = flags};
    NEED(sigaction(SIGALRM, &action, NULL) == 0);
    asked_about = to;
    memset(came, 0, sizeof came);
    for (int i = 0; i < MANY; i += AHEAD) {
        each(700);
        for (int j = i, try = 0; j < i + AHEAD; try++) {
            if (send_number(fd, j, &name, by_message, try) == 4) j++;
            else NEED(errno == EINTR);
        }
        each(0);
        number = MANY;
        NEED(sendto(fd, &number, sizeof number, 0, ADDRESS(name)) == sizeof number);
        while (recv(to, &number, sizeof number, 0) == sizeof number && number < MANY) came[number]++;
    }
    for (int i = 0; i < MANY; i++) {
        doubled += came[i] > 1;
        lost += came[i] == 0;
    }
    out("doubled %d, lost %d", doubled, lost);
    NEED(close(fd) == 0 && close(to) == 0);
}

CASE(sent_once_among_signals) {
    send_among_signals(SA_RESTART, 0);
    send_among_signals(0, 0);
    send_among_signals(SA_RESTART, 1);
    send_among_signals(0, 1);
}

static void *sleep_for_ever(void *unused) {
    for (;;) pause();
    return unused;
}

/* A handler that restarts calls, and another thread that might have the signal as well: no call says a word of it. */
CASE(signals_where_there_is_no_room) {
    int port, fd = pair(&port), sent = 0;
    struct name to = name_of(peer, port);
    pthread_t other;
    NEED(pthread_create(&other, NULL, sleep_for_ever, NULL) == 0);
    handle(SIGALRM, SA_RESTART);
    each(700);
    while (sent < 3 * COUNT && sendto(fd, bytes, LENGTH, 0, ADDRESS(to)) == LENGTH) sent++;
    each(0);
    T(sent);
    out("handled some: %d", seen > 0);
}

/* The same for a thread that is not the first. */
struct sender {
    int fd, sent, done;
    struct name to;
};

static void *send_there(void *given) {
    struct sender *one = given;
    while (one->sent < 3 * COUNT && sendto(one->fd, bytes, LENGTH, 0, ADDRESS(one->to)) == LENGTH) one->sent++;
    __atomic_store_n(&one->done, 1, __ATOMIC_RELEASE);
    return NULL;
}

CASE(signals_for_a_thread_that_has_no_room) {
    int port;
    struct sender one = {.fd = pair(&port)};
    one.to = name_of(peer, port);
    pthread_t thread;
    handle(SIGALRM, SA_RESTART);
    NEED(pthread_create(&thread, NULL, send_there, &one) == 0);
    for (; !__atomic_load_n(&one.done, __ATOMIC_ACQUIRE); usleep(700)) pthread_kill(thread, SIGALRM);
    pthread_join(thread, NULL);
    T(one.sent);
    out("handled some: %d", seen > 0);
}

/* For the process: by another one, and by a thread of its own. */
static void *signal_process(void *sleeper) {
    await_sleep(*(pid_t *)sleeper);
    kill(getpid(), SIGUSR1);
    return NULL;
}

CASE(a_signal_for_the_process) {
    int port, fd = pair(&port), listening = listener();
    struct name who = {0};
    socklen_t len = sizeof who;
    pid_t here = getpid(), child;
    handle(SIGUSR1, 0);
    for (int which = 0; which < 2; which++) {
        if ((child = fork()) == 0) {
            await_sleep(here);
            kill(here, SIGUSR1);
            _exit(0);
        }
        if (which == 0) T(recvfrom(fd, bytes, 10, 0, (struct sockaddr *)&who, &len));
        else T(accept(listening, (struct sockaddr *)&who, &len));
        NEED(waitpid(child, NULL, 0) == child);
    }
    pthread_t thread;
    NEED(pthread_create(&thread, NULL, signal_process, &here) == 0);
    T(recvfrom(fd, bytes, 10, 0, (struct sockaddr *)&who, &len));
    NEED(pthread_join(thread, NULL) == 0);
    out("handled %d", seen);
}

/* Each waits in a call of its own, and says what came of it. */
static int for_all, listens;
static void *accept_there(void *given) {
    struct waiter *waiter = given;
    struct name who = {0};
    socklen_t len = sizeof who;
    waiter->id = gettid();
    int new = accept(waiter->fd, (struct sockaddr *)&who, &len);
    out("accepted %d, from the other host %d", new >= 0, !strcmp(host_of(&who), peer));
    close(new);
    return NULL;
}

/* A handler that restarts calls: none of those of several threads says a word of it. */
CASE(signals_for_a_process_of_several_threads) {
    int port;
    for_all = pair(&port), listens = listener();
    struct waiter receives = {.fd = for_all}, accepts = {.fd = listens};
    NEED(pthread_create(&receives.thread, NULL, wait_there, &receives) == 0);
    NEED(pthread_create(&accepts.thread, NULL, accept_there, &accepts) == 0);
    while (!__atomic_load_n(&receives.id, __ATOMIC_ACQUIRE) || !__atomic_load_n(&accepts.id, __ATOMIC_ACQUIRE))
        usleep(1000);
    handle(SIGUSR1, SA_RESTART);
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR1);
    /* It is for one of the two. */
    NEED(pthread_sigmask(SIG_BLOCK, &mask, NULL) == 0);
    for (int i = 1; i <= 50; i++) {
        if (i % 10 == 0) await_sleep(receives.id), await_sleep(accepts.id);
        NEED(kill(getpid(), SIGUSR1) == 0);
        while (seen < i) usleep(100);
    }
    told("abc", for_all);
    pthread_join(receives.thread, NULL);
    tell("connect S %s %d", own, port_of(listens));
    pthread_join(accepts.thread, NULL);
    out("handled %d", seen);
}

/* Which of two ends first. */
static int first_end(struct waiter *waiters) {
    for (;; usleep(1000))
        for (int i = 0; i < 2; i++)
            if (pthread_tryjoin_np(waiters[i].thread, NULL) == 0) return i;
}

/* Without it one of them ends, and the other one waits on. */
CASE(a_signal_ends_one_of_two_that_wait) {
    int port, fd = pair(&port);
    struct waiter waiters[2];
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR1);
    handle(SIGUSR1, 0);
    for (int i = 0; i < 2; i++) wait_in(&waiters[i], fd);
    NEED(pthread_sigmask(SIG_BLOCK, &mask, NULL) == 0);
    NEED(kill(getpid(), SIGUSR1) == 0);
    while (seen < 1) usleep(100);
    int ended = first_end(waiters);
    told("abc", fd);
    T(pthread_join(waiters[!ended].thread, NULL));
    out("handled %d", seen);
}

/* By sigwaitinfo and by a descriptor, beside threads that wait. */
CASE(signals_that_are_taken_beside_waits) {
    int port, fd = pair(&port);
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR1);
    NEED(pthread_sigmask(SIG_BLOCK, &mask, NULL) == 0);
    struct waiter waiter;
    wait_in(&waiter, fd);
    NEED(kill(getpid(), SIGUSR1) == 0);
    siginfo_t info;
    T(sigwaitinfo(&mask, &info) == SIGUSR1);
    int signals = signalfd(-1, &mask, 0);
    NEED(kill(getpid(), SIGUSR1) == 0);
    struct signalfd_siginfo told_of;
    T(read(signals, &told_of, sizeof told_of) == sizeof told_of);
    T(sleeps(waiter.id));
    told("abc", fd);
    pthread_join(waiter.thread, NULL);
}

/* It is cancelled before the connection comes, if only just. On a busy machine it may be late for that on Linux, too. */
static void *accept_once(void *fd) { return (void *)(long)accept(*(int *)fd, NULL, NULL); }

CASE(a_cancelled_thread_takes_no_connection_along) {
    int fd = listener(), taken = 0;
    for (int i = 0; i < 20; i++) {
        pthread_t thread;
        NEED(pthread_create(&thread, NULL, accept_once, &fd) == 0);
        usleep(2000);
        NEED(pthread_cancel(thread) == 0);
        usleep(2000);
        tell("connect A %s %d", own, port_of(fd));
        NEED(pthread_join(thread, NULL) == 0);
        struct pollfd there = {fd, POLLIN, 0};
        if (poll(&there, 1, 500) == 1) close(accept(fd, NULL, NULL));
        else taken++;
        tell("close A");
    }
    out("some are left: %d", taken < 16);
}

/* What has a limit keeps it, however often others get what it waits for. */
CASE(a_limit_beside_others) {
    int port, fd = pair(&port);
    struct timeval limit = {1, 0};
    struct waiter waiters[3];
    T(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (int i = 0; i < 3; i++) wait_in(&waiters[i], fd);
    told("abc", fd);
    for (int i = 0; i < 3; i++) pthread_join(waiters[i].thread, NULL);
    clock_gettime(CLOCK_MONOTONIC, &to);
    long ms = (to.tv_sec - from.tv_sec) * 1000 + (to.tv_nsec - from.tv_nsec) / 1000000;
    T(ms >= 950 && ms < 2500);
}

/* And one that is set while a thread waits is not this call's, also when it has looked in vain. */
CASE(a_limit_that_is_set_while_threads_wait) {
    int port, fd = pair(&port);
    struct timeval limit = {0, 100000};
    struct waiter waiters[2];
    for (int i = 0; i < 2; i++) wait_in(&waiters[i], fd);
    T(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    told("abc", fd);
    pthread_t other = waiters[!first_end(waiters)].thread;
    usleep(400000);
    T(pthread_tryjoin_np(other, NULL) == EBUSY);
    told("abc", fd);
    T(pthread_join(other, NULL));
}

/* A connection to a host that is not there, while another thread takes signals. */
static void *connect_there(void *given) {
    struct sender *one = given;
    T(connect(one->fd, ADDRESS(one->to)));
    __atomic_store_n(&one->done, 1, __ATOMIC_RELEASE);
    return NULL;
}

CASE(a_connect_with_a_limit_beside_signals) {
    struct timeval limit = {0, 400000};
    struct sender one = {.fd = socket(family, SOCK_STREAM, 0), .to = name_of(peer, 7)};
    ((unsigned char *)&one.to)[family == AF_INET ? 7 : 23] = 77;
    T(setsockopt(one.fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit));
    pthread_t thread;
    handle(SIGUSR1, 0);
    NEED(pthread_create(&thread, NULL, connect_there, &one) == 0);
    for (; !__atomic_load_n(&one.done, __ATOMIC_ACQUIRE); usleep(2000)) NEED(kill(getpid(), SIGUSR1) == 0);
    pthread_join(thread, NULL);
    out("handled some: %d", seen > 0);
}

/* Many wait for the same socket, to which something comes now and then. */
struct crowd {
    int fd, done;
    struct name from;
    int got, strange, early, limit_ms;
};

static long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void take_one(struct crowd *crowd, int flags) {
    struct name who = {0};
    socklen_t len = sizeof who;
    char byte;
    long since = now_ms();
    long n = recvfrom(crowd->fd, &byte, 1, flags, (struct sockaddr *)&who, &len);
    if (n < 0) {
        int is_early = errno == EAGAIN && flags == 0 && now_ms() - since < crowd->limit_ms - 2;
        __atomic_add_fetch(&crowd->early, is_early, __ATOMIC_SEQ_CST);
        return;
    }
    int is_known = who.family == crowd->from.family && who.port == crowd->from.port;
    __atomic_add_fetch(&crowd->strange, !is_known, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&crowd->got, 1, __ATOMIC_SEQ_CST);
}

static void *take_all(void *given) {
    struct crowd *crowd = given;
    while (!__atomic_load_n(&crowd->done, __ATOMIC_ACQUIRE)) take_one(crowd, 0);
    return NULL;
}

/* Threads of a crowd, and a sender to it. */
static int gather(struct crowd *crowd, pthread_t *threads, int count, struct name *to) {
    struct timeval limit = {crowd->limit_ms / 1000, crowd->limit_ms % 1000 * 1000};
    int from = bound(&crowd->from);
    crowd->fd = bound(to);
    NEED(setsockopt(crowd->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
    for (int i = 0; i < count; i++) NEED(pthread_create(&threads[i], NULL, take_all, crowd) == 0);
    return from;
}

static void disperse(struct crowd *crowd, pthread_t *threads, int count) {
    __atomic_store_n(&crowd->done, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
    out("strange %d, early %d", crowd->strange, crowd->early);
}

/* One waits and one looks: whoever gets it knows from whom it is. */
CASE(looked_for_while_a_thread_waits) {
    struct crowd crowd = {.limit_ms = 200};
    struct name to;
    pthread_t thread;
    int from = gather(&crowd, &thread, 1, &to);
    for (int i = 0; i < 80; i++) {
        NEED(sendto(from, "x", 1, 0, ADDRESS(to)) == 1);
        for (long since = now_ms(); now_ms() - since < 15;) take_one(&crowd, MSG_DONTWAIT);
    }
    disperse(&crowd, &thread, 1);
    out("got %d", crowd.got);
}

/* Signals with what comes: no call's time is shorter than it is. */
CASE(limits_of_a_crowd_among_signals) {
    enum { MANY = 6 };
    struct crowd crowd = {.limit_ms = 60};
    struct name to;
    pthread_t threads[MANY];
    handle(SIGUSR1, 0);
    int from = gather(&crowd, threads, MANY, &to);
    for (int i = 0; i < 60; i++) {
        NEED(sendto(from, "x", 1, 0, ADDRESS(to)) == 1);
        usleep(i % 6 * 100);
        for (int j = 1; j < MANY; j++) pthread_kill(threads[j], SIGUSR1);
        usleep(20000);
    }
    disperse(&crowd, threads, MANY);
}

/* A process in which so many wait, of which 0 is told, and a sender to it. */
static pid_t fork_crowd(struct crowd *crowd, int count, int *from, struct name *to) {
    pthread_t thread;
    crowd->from.family = 0;
    *from = gather(crowd, &thread, 0, to);
    pid_t child = fork();
    if (child == 0)
        for (int i = 0; i < count; i++) NEED(pthread_create(&thread, NULL, take_all, crowd) == 0);
    return child;
}

/* A process ends while all of its threads wait, and something comes: who waits for it is told. */
CASE(ends_while_something_comes) {
    enum { MANY = 20 };
    struct crowd crowd = {.limit_ms = 5000};
    struct name to;
    int ended = 0, from, status;
    for (int round = 0; round < 40; round++) {
        pid_t child = fork_crowd(&crowd, MANY, &from, &to);
        if (child == 0) {
            usleep(15000 + round * 200);
            if (round % 2) kill(getpid(), SIGKILL);
            _exit(0);
        }
        while (waitpid(child, &status, WNOHANG) == 0) {
            NEED(sendto(from, "x", 1, 0, ADDRESS(to)) == 1);
            usleep(500);
        }
        ended += round % 2 ? WIFSIGNALED(status) : WIFEXITED(status);
        NEED(close(from) == 0 && close(crowd.fd) == 0);
    }
    T(ended);
}

/* It becomes another program meanwhile, whatever its threads do just then. */
CASE(execs_while_something_comes) {
    enum { MANY = 10 };
    struct crowd crowd = {.limit_ms = 5000};
    struct name to;
    int ended = 0, from, status;
    for (int round = 0; round < 40; round++) {
        pid_t child = fork_crowd(&crowd, MANY, &from, &to);
        if (child == 0) {
            usleep(15000);
            NEED(sendto(from, "x", 1, 0, ADDRESS(to)) == 1);
            execl("/bin/true", "true", NULL);
            _exit(1);
        }
        NEED(waitpid(child, &status, 0) == child);
        ended += WIFEXITED(status) && WEXITSTATUS(status) == 0;
        NEED(close(from) == 0 && close(crowd.fd) == 0);
    }
    T(ended);
}

/* A tracer's child: it passes on what signals there are until that one ends. */
static int traced_to_the_end(pid_t child) {
    int status;
    while (waitpid(child, &status, 0) == child && WIFSTOPPED(status))
        ptrace(PTRACE_CONT, child, 0, status >> 16 ? 0 : WSTOPSIG(status));
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* A tracer that does not stop it, as it waits. */
CASE(seized_while_it_waits) {
    int port, fd = pair(&port), listening = listener();
    for (int accepts = 0; accepts < 2; accepts++) {
        pid_t child = fork();
        if (child == 0) {
            struct name who = {0};
            socklen_t len = sizeof who;
            int n = accepts ? accept(listening, (struct sockaddr *)&who, &len)
                            : recvfrom(fd, bytes, 10, 0, (struct sockaddr *)&who, &len);
            _exit((n > 0) + 10 * !strcmp(host_of(&who), peer));
        }
        await_sleep(child);
        /* Long enough for it to sleep for long. */
        usleep(50000);
        NEED(ptrace(PTRACE_SEIZE, child, 0, 0) == 0);
        if (accepts) tell("connect S %s %d", own, port_of(listening));
        else told("abc", fd);
        T(traced_to_the_end(child));
    }
}

/* One comes with the datagram. */
CASE(traced_as_something_comes) {
    struct name to, known;
    int from = bound(&known), fd = bound(&to), strange = 0;
    for (int round = 0; round < 60; round++) {
        pid_t child = fork();
        if (child == 0) {
            struct name who = {0};
            socklen_t len = sizeof who;
            int n = recvfrom(fd, bytes, 10, 0, (struct sockaddr *)&who, &len);
            _exit(n != 1 || who.port != known.port);
        }
        await_sleep(child);
        usleep(12000);
        NEED(sendto(from, "x", 1, 0, ADDRESS(to)) == 1);
        usleep(round * 5);
        /* Another one has it for some microseconds, or it has ended. */
        for (siginfo_t ended = {0}; ptrace(PTRACE_ATTACH, child, 0, 0) < 0 && ended.si_pid == 0; usleep(50))
            waitid(P_PID, child, &ended, WEXITED | WNOHANG | WNOWAIT);
        strange += traced_to_the_end(child);
    }
    T(strange);
}

/* One processor, for who is to be late. */
static cpu_set_t one;
static void choose_one(void) {
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
}

static void stay_there(void) { NEED(sched_setaffinity(0, sizeof one, &one) == 0); }

/* Has it for a while, and begins before this returns. */
static pid_t hog(void) {
    int has_begun[2];
    char byte = 0;
    NEED(pipe(has_begun) == 0);
    pid_t child = fork();
    if (child == 0) {
        struct sched_param first = {1};
        stay_there();
        NEED(sched_setscheduler(0, SCHED_FIFO, &first) == 0 && write(has_begun[1], &byte, 1) == 1);
        busy_ms(800);
        _exit(0);
    }
    NEED(read(has_begun[0], &byte, 1) == 1 && close(has_begun[0]) == 0 && close(has_begun[1]) == 0);
    return child;
}

/* Waits for one datagram, or one connection with data, and ends with whether it is from whom it should. */
static pid_t fork_waiter(int fd, int accepts, const struct name *known, int is_late) {
    pid_t child = fork();
    if (child) return child;
    struct name who = {0};
    socklen_t len = sizeof who;
    if (is_late) stay_there();
    if (!accepts) _exit(recvfrom(fd, bytes, 10, 0, (struct sockaddr *)&who, &len) != 1 || who.port != known->port);
    int n = accept(fd, (struct sockaddr *)&who, &len);
    _exit(n < 0 || strcmp(host_of(&who), peer) || recv(n, bytes, 1, 0) != 1);
}

static void something(int accepts, int from, struct name *to, int listening, char name) {
    char command[80];
    if (accepts) {
        snprintf(command, sizeof command, "connect %c %s %d", name, own, port_of(listening));
        order(command);
        snprintf(command, sizeof command, "send %c x", name);
        order(command);
    } else {
        NEED(sendto(from, "x", 1, 0, ADDRESS(*to)) == 1);
    }
}

/* It is late to leave its call, since its processor is another's: what it gets is as whole as ever, and so is what another one
 * gets that comes to wait meanwhile. */
CASE(one_that_does_not_run) {
    struct name to, known;
    int from = bound(&known), fd = bound(&to), listening = listener();
    choose_one();
    for (int how = 0; how < 4; how++) {
        int accepts = how % 2, two = how / 2, statuses = 0, status;
        await_sleep(fork_waiter(accepts ? listening : fd, accepts, &known, 1));
        usleep(50000);
        hog();
        something(accepts, from, &to, listening, 'S');
        if (two) fork_waiter(accepts ? listening : fd, accepts, &known, 0);
        for (int i = 0; i < 2 + two; i++) {
            /* One of them has something by then. */
            if (i == 2) something(accepts, from, &to, listening, 'T');
            NEED(waitpid(-1, &status, 0) > 0);
            statuses += status;
        }
        T(statuses);
    }
}

/* And is killed there. Where others want its processor, too, it may have run and have taken that along: it is tried again then. */
CASE(one_that_does_not_run_any_more) {
    struct name to, known;
    int from = bound(&known), fd = bound(&to), listening = listener();
    choose_one();
    for (int accepts = 0; accepts < 2; accepts++) {
        int status, is_helped = 1, tries = 0;
        for (; is_helped && tries < 3; tries++) {
            pid_t late = fork_waiter(accepts ? listening : fd, accepts, &known, 1);
            await_sleep(late);
            usleep(50000);
            pid_t busy = hog();
            something(accepts, from, &to, listening, 'S');
            pid_t other = fork_waiter(accepts ? listening : fd, accepts, &known, 0);
            usleep(50000);
            NEED(kill(late, SIGKILL) == 0 && waitpid(late, &status, 0) == late);
            if (WIFEXITED(status)) something(accepts, from, &to, listening, 'T');
            is_helped = 0;
            for (int looks = 0; waitpid(other, &status, WNOHANG) == 0; usleep(10000)) {
                if (++looks != 300) continue;
                is_helped = 1;
                something(accepts, from, &to, listening, 'T');
            }
            NEED(waitpid(busy, NULL, 0) == busy);
        }
        T(status);
        T(is_helped);
    }
}

static void *wait_late(void *given) {
    stay_there();
    return wait_silently(given);
}

/* Its process goes on, and all others: before that processor is free again. Where all processors are wanted, a thread of ours may
 * be behind the same one for longer than that, by no fault of the late one: it is tried again then. */
CASE(others_beside_one_that_does_not_run) {
    struct name to_late, to;
    struct waiter late, other;
    int from = bound(&(struct name){0}), to_one = bound(&to_late), fd = bound(&to), status, is_ahead = 0;
    choose_one();
    for (int tries = 0; !is_ahead && tries < 10; tries++) {
        wait_as(&late, to_one, wait_late);
        wait_as(&other, fd, wait_silently);
        usleep(50000);
        pid_t busy = hog();
        NEED(sendto(from, "x", 1, 0, ADDRESS(to_late)) == 1);
        NEED(sendto(from, "xy", 2, 0, ADDRESS(to)) == 2);
        NEED(pthread_join(other.thread, NULL) == 0);
        is_ahead = waitpid(busy, &status, WNOHANG) == 0;
        NEED(!is_ahead || waitpid(busy, &status, 0) == busy);
        NEED(pthread_join(late.thread, NULL) == 0);
        NEED(late.got == 1 && other.got == 2);
    }
    T(is_ahead);
}

/* A process with much memory takes its time to end: others that wait go on as before. */
CASE(one_ends_slowly_beside_others) {
    enum { MUCH = 600 << 20, ROUNDS = 4, EACH = 6 };
    struct crowd dying = {.limit_ms = 5000}, crowd = {.limit_ms = 5000};
    struct name to_dying, to;
    pthread_t thread;
    int from = gather(&dying, &thread, 0, &to_dying), known = gather(&crowd, &thread, 1, &to), status;
    for (int round = 0; round < ROUNDS; round++) {
        pid_t child = fork();
        if (child == 0) {
            memset(mmap(NULL, MUCH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1, MUCH);
            for (;;) take_one(&dying, 0);
        }
        usleep(500000);
        await_sleep(child);
        NEED(kill(child, SIGKILL) == 0);
        for (int i = 0; i < EACH; i++) {
            NEED(sendto(from, "x", 1, 0, ADDRESS(to_dying)) == 1);
            NEED(sendto(known, "x", 1, 0, ADDRESS(to)) == 1);
            usleep(13000);
        }
        NEED(waitpid(child, &status, 0) == child);
    }
    T(crowd.got);
    disperse(&crowd, &thread, 1);
}

/* What the kernel keeps for a program over a call stays as it is. */
#ifdef __x86_64__
CASE(a_register_over_a_call) {
    int port, fd = pair(&port), changed = 0;
    struct name who;
    for (int i = 0; i < 5; i++) {
        pid_t here = getpid(), child = fork();
        if (child == 0) {
            await_sleep(here);
            usleep(20000);
            told("abc", fd);
            _exit(0);
        }
        socklen_t len = sizeof who;
        long n, number = fd;
        register long flags __asm__("r10") = 0;
        register void *from __asm__("r8") = &who;
        register void *from_len __asm__("r9") = &len;
        __asm__ volatile("syscall"
                         : "=a"(n), "+D"(number)
                         : "a"(SYS_recvfrom), "S"(bytes), "d"(10), "r"(flags), "r"(from), "r"(from_len)
                         : "rcx", "r11", "memory");
        changed += n != 3 || number != fd;
        NEED(waitpid(child, NULL, 0) == child);
    }
    T(changed);
}
#endif

/* A debugger comes and goes. */
CASE(traced_while_it_receives) {
    int port, fd = pair(&port);
    pid_t child = fork();
    if (child == 0) {
        struct name who = {0};
        socklen_t len = sizeof who;
        int n = recvfrom(fd, bytes, 10, 0, (struct sockaddr *)&who, &len);
        _exit(n + 10 * !strcmp(host_of(&who), peer));
    }
    int status;
    for (int i = 0; i < 5; i++) {
        await_sleep(child);
        NEED(ptrace(PTRACE_ATTACH, child, 0, 0) == 0);
        T(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
        T(ptrace(PTRACE_DETACH, child, 0, 0));
    }
    await_sleep(child);
    told("abc", fd);
    T(waitpid(child, &status, 0) == child);
    T(WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

/* Stops while it waits, and goes on; with one thread and with two. */
CASE(stopped_while_it_receives) {
    int port, fd = pair(&port);
    for (int threads = 1; threads <= 2; threads++) {
        pid_t child = fork();
        if (child == 0) {
            pthread_t other;
            struct name who = {0};
            socklen_t len = sizeof who;
            if (threads == 2) NEED(pthread_create(&other, NULL, sleep_for_ever, NULL) == 0);
            _exit(recvfrom(fd, bytes, 10, 0, (struct sockaddr *)&who, &len));
        }
        int status = 0;
        await_sleep(child);
        NEED(kill(child, SIGSTOP) == 0);
        T(waitpid(child, &status, WUNTRACED) == child);
        T(WIFSTOPPED(status) ? WSTOPSIG(status) : 0);
        NEED(kill(child, SIGCONT) == 0);
        told("abc", fd);
        T(waitpid(child, &status, 0) == child);
        T(WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    }
}

static void *stop_all(void *sleepers) {
    for (int i = 0; i < 2; i++) await_sleep(((pid_t *)sleepers)[i]);
    raise(SIGSTOP);
    return NULL;
}

/* By a thread of its own, while all others wait. */
CASE(stopped_while_two_threads_wait) {
    int port, fd = pair(&port);
    pid_t child = fork();
    if (child == 0) {
        struct name name, who = {0};
        socklen_t len = sizeof who;
        struct waiter second;
        pthread_t stops;
        wait_in(&second, bound(&name));
        pid_t sleepers[] = {gettid(), second.id};
        NEED(pthread_create(&stops, NULL, stop_all, sleepers) == 0);
        _exit(recvfrom(fd, bytes, 10, 0, (struct sockaddr *)&who, &len));
    }
    int status = 0;
    T(waitpid(child, &status, WUNTRACED) == child);
    T(WIFSTOPPED(status) ? WSTOPSIG(status) : 0);
    NEED(kill(child, SIGCONT) == 0);
    told("abc", fd);
    T(waitpid(child, &status, 0) == child);
    T(WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

/* The default of some signals ends the process, with a core or without. */
CASE(ended_while_it_receives) {
    static const int ends[] = {SIGTERM, SIGKILL, SIGQUIT};
    int port, fd = pair(&port);
    for (int i = 0; i < 3; i++) {
        pid_t child = fork();
        if (child == 0) {
            struct name who = {0};
            socklen_t len = sizeof who;
            struct rlimit none = {0, 0};
            setrlimit(RLIMIT_CORE, &none);
            _exit(recvfrom(fd, bytes, 10, 0, (struct sockaddr *)&who, &len));
        }
        int status = 0;
        await_sleep(child);
        NEED(kill(child, ends[i]) == 0);
        T(waitpid(child, &status, 0) == child);
        T(WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    }
}
