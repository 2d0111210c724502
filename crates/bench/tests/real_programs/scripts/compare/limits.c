/* Limits of resources that leave no room: for descriptors, for address space. What is ours beside the program's is not
 * to be in its way. */
#include "compare.h"
#include <sched.h>
#include <sys/resource.h>

static int started(const char *role) {
    return role == NULL;
}

static int limit(int resource, rlim_t soft) {
    struct rlimit now;
    NEED(getrlimit(resource, &now) == 0);
    now.rlim_cur = soft;
    return setrlimit(resource, &now);
}

/* What the program may have and does have, of address space. */
static void tell_limit(void) {
    struct rlimit now;
    T(getrlimit(RLIMIT_AS, &now));
    out("%lld %lld", (long long)now.rlim_cur, (long long)now.rlim_max);
}

static void wait_for(pid_t child) {
    int status = -1;
    NEED(waitpid(child, &status, 0) == child);
    out("child ended with %x", status);
}

static int select_one(int fd, int ms) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    struct timeval time = {ms / 1000, ms % 1000 * 1000};
    return select(fd + 1, &set, NULL, NULL, &time);
}

/* One descriptor may be open, and so only one may be in a call of `poll`: as in the child of OpenSSH's server that has
 * given up its rights. */
CASE(waits_with_no_more_descriptors) {
    int fd = accepted("A"), unused = socket(family, SOCK_DGRAM, 0);
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    T(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    T(limit(RLIMIT_NOFILE, 1));
    struct pollfd one = {fd, POLLIN, 0}, two[2] = {{fd, POLLIN, 0}, {unused, POLLIN, 0}};
    struct timespec time = {0, 20000000};
    struct pollfd of_set = {set, POLLIN, 0};
    T(poll(&one, 1, 20));
    T(poll(two, 2, 20));
    T(ppoll(&one, 1, &time, NULL));
    T(select_one(fd, 20));
    T(poll(&of_set, 1, 20));
    T(select_one(set, 20));
    T(epoll_wait(set, &event, 1, 20));
    tell("send A abc");
    T(poll(&one, 1, SOON_MS));
    T(poll(&of_set, 1, SOON_MS));
    T(select_one(fd, SOON_MS));
    T(select_one(set, SOON_MS));
    T(epoll_wait(set, &event, 1, SOON_MS));
    char bytes[4];
    T(recv(fd, bytes, 3, 0));
    struct timeval patience = {0, 20000};
    T(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience));
    T(recv(fd, bytes, 3, 0));
}

CASE(reads_with_no_descriptors) {
    int fd = accepted("A");
    T(limit(RLIMIT_NOFILE, 0));
    struct pollfd one = {fd, POLLIN, 0};
    T(poll(&one, 1, 20));
    T(select_one(fd, 20));
    char bytes[4];
    struct timeval patience = {0, 20000};
    T(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience));
    T(recv(fd, bytes, 3, 0));
    tell("send A abc");
    T(select_one(fd, SOON_MS));
    T(recv(fd, bytes, 3, 0));
}

CASE(forks_with_a_full_table) {
    int fd = accepted("A");
    T(limit(RLIMIT_NOFILE, 64));
    while (open("/dev/null", O_RDONLY) >= 0) {}
    out("%s", strerrorname_np(errno));
    pid_t child = fork();
    if (child == 0) {
        T(send(fd, "c", 1, MSG_NOSIGNAL));
        _exit(0);
    }
    wait_for(child);
    T(send(fd, "p", 1, MSG_NOSIGNAL));
    tell("read A 2");
    struct rlimit now;
    T(getrlimit(RLIMIT_NOFILE, &now));
    out("%d", (int)now.rlim_cur);
    child = vfork();
    if (child == 0) {
        dup2(fd, 1);
        for (int i = 3; i < 64; i++) close(i);
        execl("/bin/sh", "sh", "-c", "echo shell", NULL);
        _exit(3);
    }
    wait_for(child);
    tell("read A 6");
}

/* Nor may anything that is open stay below the limit. */
CASE(forks_with_a_limit_below_what_is_open) {
    int fd = accepted("A");
    T(limit(RLIMIT_NOFILE, 2));
    pid_t child = fork();
    if (child == 0) {
        T(send(fd, "c", 1, MSG_NOSIGNAL));
        _exit(0);
    }
    wait_for(child);
    tell("read A 1");
    T(dup(fd));
}

CASE(memory_after_a_limit) {
    int fd = accepted("A");
    tell_limit();
    struct rlimit some = {1l << 30, 2l << 30}, before, is;
    T(setrlimit(RLIMIT_AS, &some));
    tell_limit();
    T(malloc(1 << 20) ? 1 : -1);
    T(malloc(800l << 20) ? 1 : -1);
    T(malloc(3l << 30) ? 1 : -1);
    pthread_t thread;
    T(pthread_create(&thread, NULL, (void *)usleep, NULL));
    T(send(fd, "x", 1, 0));
    tell("read A 1");
    some.rlim_cur = 900l << 20;
    T(prlimit(0, RLIMIT_AS, &some, &before));
    out("%lld %lld", (long long)before.rlim_cur, (long long)before.rlim_max);
    T(prlimit(getpid(), RLIMIT_AS, NULL, &is));
    out("%lld %lld", (long long)is.rlim_cur, (long long)is.rlim_max);
    some.rlim_cur = 3l << 30;
    T(setrlimit(RLIMIT_AS, &some));
    T(fork() == 0 ? (tell_limit(), _exit(0), 0) : 0);
    T(wait(NULL) > 0);
}

/* As vsftpd does, whose child has a namespace of its own. */
CASE(a_child_with_little_memory) {
    int fd = accepted("A");
    pid_t child = syscall(SYS_clone, CLONE_NEWIPC | SIGCHLD, NULL, NULL, NULL, NULL);
    if (child == 0) {
        struct rlimit little = {200 << 20, 200 << 20};
        T(setrlimit(RLIMIT_AS, &little));
        T(malloc(1 << 20) ? 1 : -1);
        T(send(fd, "220 hello", 9, 0));
        int other = T(socket(family, SOCK_STREAM, 0));
        struct name to = name_of(peer, atoi(peer_port));
        T(connect(other, ADDRESS(to)));
        pid_t grandchild = fork();
        if (grandchild == 0) _exit(T(send(fd, "!", 1, 0)) == 1 ? 0 : 1);
        wait_for(grandchild);
        _exit(0);
    }
    wait_for(child);
    tell("read A 10");
}

/* More entries than there may be descriptors are refused whatever they are, and before anything is looked at. */
CASE(polls_beyond_the_limit) {
    int fd = accepted("A"), other = socket(family, SOCK_DGRAM, 0);
    struct timespec time = {0, 20000000}, none = {0, 0};
    struct pollfd many[8];
    T(send(fd, "x", 1, 0));
    tell("send A abc");
    NEED(await(fd, POLLIN) & POLLIN);
    T(limit(RLIMIT_NOFILE, 4));
    for (int kind = 0; kind < 4; kind++) {
        out("%s", (const char *[]){"all ready", "none ready", "one is", "no descriptors"}[kind]);
        for (int n = 3; n < 8; n++) {
            for (int i = 0; i < 8; i++) {
                many[i] = (struct pollfd){kind == 3 || (kind == 2 && i) ? -1 : fd, kind == 1 ? POLLPRI : POLLIN, -1};
                if (i == 1 && kind < 2) many[i].fd = other;
            }
            T(poll(many, n, 0));
            T(poll(many, n, 20));
            T(ppoll(many, n, &none, NULL));
            T(ppoll(many, n, &time, NULL));
            out("%d: %x %x", n, many[0].revents, many[n - 1].revents);
        }
    }
    T(poll(many, 1 << 20, 0));
    T(poll(many, (nfds_t)-1, 0));
    T(poll(NULL, 5, 0));
}

/* Numbers beyond the table of descriptors are in no set: what stands there is not looked at. */
CASE(selects_beyond_the_table) {
    int fd = accepted("A");
    static unsigned long sets[3][64];
    tell("send A abc");
    NEED(await(fd, POLLIN) & POLLIN);
    static const int counts[] = {-1, 0, 1, 700, 1000, 1024, 1025, 2000, 4096};
    static const int bits[] = {0, 900, 1023, 1024, 1500, 4000};
    for (size_t b = 0; b < sizeof bits / sizeof *bits; b++)
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            memset(sets, 0, sizeof sets);
            sets[0][fd / 64] |= 1ul << fd % 64;
            if (bits[b]) sets[1][bits[b] / 64] |= 1ul << bits[b] % 64;
            struct timeval time = {0, 0};
            errno = 0;
            int result = select(counts[i], (fd_set *)sets[0], (fd_set *)sets[1], NULL, &time);
            out("bit %d, %d: %d %s, left %d %d", bits[b], counts[i], result, result < 0 ? strerrorname_np(errno) : "",
                (int)(sets[0][fd / 64] >> fd % 64 & 1), (int)(sets[1][bits[b] / 64] >> bits[b] % 64 & 1));
        }
    /* A set as long as the table, with nothing behind it. */
    long page = sysconf(_SC_PAGESIZE);
    char *two = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NEED(two != MAP_FAILED && munmap(two + page, page) == 0);
    unsigned long *last = (unsigned long *)(two + page - 128);
    struct timeval time = {0, 0};
    last[fd / 64] |= 1ul << fd % 64;
    T(select(5000, (fd_set *)last, NULL, NULL, &time));
    T(select(INT_MAX, (fd_set *)last, NULL, NULL, &time));
    struct timespec none = {0, 0};
    T(pselect(INT_MAX, (fd_set *)last, NULL, NULL, &none, NULL));
}

/* An epoll that has heard of no socket yet. */
CASE(watches_with_a_full_table) {
    int fd = accepted("A"), epoll = epoll_create1(0), taken[256], count = 0;
    T(limit(RLIMIT_NOFILE, 64));
    while (count < 256 && (taken[count] = dup(0)) >= 0) count++;
    struct epoll_event one = {.events = EPOLLIN};
    T(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &one));
    tell("send A x");
    T(epoll_wait(epoll, &one, 1, SOON_MS));
    T(dup(0));
    while (count > 0) close(taken[--count]);
}

/* What the machine has no memory for is not to be asked for: the library's addresses are no memory. */
CASE(all_of_its_memory_stays) {
    int fd = accepted("A");
    T(mlockall(0));
    T(mlockall(8));
    for (int future = 0; future < 2; future++) {
        T(mlockall(MCL_CURRENT | (future ? MCL_FUTURE : 0)));
        T(send(fd, "x", 1, 0));
        tell("read A 1");
    }
    struct rlimit some = {16 << 20, 16 << 20};
    T(munlockall());
    T(setrlimit(RLIMIT_MEMLOCK, &some));
    T(syscall(SYS_mlockall, MCL_CURRENT | MCL_ONFAULT));
    T(munlockall());
}

static int listening;

static void *connects(void *none) {
    struct name to = name_of(peer, listening), nobody = name_of(peer, 9);
    int fd = socket(family, SOCK_STREAM, 0), datagrams = socket(family, SOCK_DGRAM, 0);
    char byte;
    if (connect(fd, ADDRESS(to)) < 0) return "connect";
    if (send(fd, "x", 1, 0) != 1) return "send";
    if (recv(fd, &byte, 1, MSG_DONTWAIT) != -1) return "recv";
    if (sendto(datagrams, "x", 1, 0, ADDRESS(nobody)) != 1) return "sendto";
    struct pollfd one = {fd, POLLIN, 0};
    if (poll(&one, 1, 0) != 0) return "poll";
    return close(fd) + close(datagrams) == 0 ? none : "close";
}

/* As runtimes make for their coroutines. */
CASE(a_thread_with_the_least_stack) {
    listening = atoi(tell("listen L"));
    pthread_attr_t least;
    pthread_attr_init(&least);
    T(pthread_attr_setstacksize(&least, 16384));
    pthread_t thread;
    void *said;
    T(pthread_create(&thread, &least, connects, "done"));
    pthread_join(thread, &said);
    out("%s", (char *)said);
}
