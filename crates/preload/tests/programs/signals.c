/* EINTR with and without SA_RESTART, SIGPIPE, ppoll's mask, blocking calls in every form. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static volatile int alarms, pipes;
static void on_alarm(int s) { (void)s; alarms++; }
static void on_pipe(int s) { (void)s; pipes++; }
static int l, c, s;
static struct sockaddr_in name;

static void handle(int sig, void (*f)(int), int flags) {
    struct sigaction a;
    memset(&a, 0, sizeof a);
    a.sa_handler = f;
    a.sa_flags = flags;
    sigaction(sig, &a, 0);
}

static void in_ms(int ms) {
    struct itimerval t = {{0, 0}, {0, ms * 1000}};
    setitimer(ITIMER_REAL, &t, 0);
}

static void result(const char *what, long n) {
    printf("%s %ld %s alarms %d pipes %d\n", what, n, n < 0 ? strerror(errno) : "", alarms, pipes);
    fflush(stdout);
}

static void *write_later(void *unused) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, 0);
    usleep(150000);
    if (write(c, "late", 4) != 4) abort();
    return unused;
}

static void *connect_later(void *unused) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, 0);
    usleep(150000);
    int x = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(x, (void *)&name, sizeof name)) abort();
    return unused;
}

int main(void) {
    socklen_t len = sizeof name;
    char buf[100];
    pthread_t t;
    name.sin_family = AF_INET;
    inet_pton(AF_INET, getenv("ADDRESS"), &name.sin_addr);
    l = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(l, (void *)&name, sizeof name) || listen(l, 5) || getsockname(l, (void *)&name, &len)) return 1;
    c = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(c, (void *)&name, sizeof name)) return 2;
    s = accept(l, 0, 0);

    handle(SIGALRM, on_alarm, 0);
    in_ms(50);
    result("read", read(s, buf, 10));
    in_ms(50);
    result("accept", accept(l, 0, 0));
    struct timeval tv = {1, 0};
    handle(SIGALRM, on_alarm, SA_RESTART);
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    in_ms(50);
    result("recv with a time-out", recv(s, buf, 10, 0));
    tv.tv_sec = 0;
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    in_ms(50);
    pthread_create(&t, 0, write_later, 0);
    result("read, restarted", read(s, buf, 10));
    pthread_join(t, 0);
    in_ms(50);
    pthread_create(&t, 0, connect_later, 0);
    result("accept, restarted", accept(l, 0, 0) > 0);
    pthread_join(t, 0);
    struct pollfd p = {s, POLLIN, 0};
    in_ms(50);
    result("poll", poll(&p, 1, 1000));
    fd_set set;
    FD_ZERO(&set);
    FD_SET(s, &set);
    in_ms(50);
    result("select", select(s + 1, &set, 0, 0, 0));
    int ep = epoll_create1(0);
    struct epoll_event e = {EPOLLIN, {.u64 = 77}};
    epoll_ctl(ep, EPOLL_CTL_ADD, s, &e);
    in_ms(50);
    result("epoll_wait", epoll_wait(ep, &e, 1, 1000));

    sigset_t blocked, open;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGALRM);
    sigprocmask(SIG_BLOCK, &blocked, &open);
    in_ms(20);
    usleep(50000);
    result("blocked", alarms);
    struct timespec second = {1, 0};
    result("ppoll opens the mask", ppoll(&p, 1, &second, &open));
    in_ms(20);
    usleep(50000);
    result("epoll_pwait opens the mask", epoll_pwait(ep, &e, 1, 1000, &open));
    in_ms(20);
    usleep(50000);
    FD_SET(s, &set);
    result("pselect opens the mask", pselect(s + 1, &set, 0, 0, &second, &open));

    /* SIGPIPE. */
    handle(SIGPIPE, on_pipe, 0);
    shutdown(c, SHUT_WR);
    result("write after shutdown", write(c, "x", 1));
    result("with MSG_NOSIGNAL", send(c, "x", 1, MSG_NOSIGNAL));
    close(s);
    usleep(50000);
    int x = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(x, (void *)&name, sizeof name)) return 3;
    s = accept(l, 0, 0);
    close(s);
    usleep(50000);
    result("first write", write(x, "x", 1));
    usleep(50000);
    result("second write", write(x, "x", 1));
    handle(SIGPIPE, SIG_IGN, 0);
    result("ignored", write(x, "x", 1));
    return 0;
}
