/* System calls by number (`syscall(2)`): those that have functions of their own in the other programs, and do more, or
 * something else, than these. */
#include "compare.h"
#include <dlfcn.h>

extern char **environ;

/* A program that was started with a connection. */
static int started(const char *role) {
    case_name = role;
    T(send(atoi(strchr(role, '-') + 1), "hello", 5, 0));
    return 0;
}

static void wait_for(pid_t child) {
    int status = -1;
    NEED(waitpid(child, &status, 0) == child);
    out("child ended with %x", status);
}

#ifdef __x86_64__
/* A plug-in that makes its calls by instruction. */
CASE(code_that_is_loaded_later) {
    char directory[] = "/tmp/scoutline-later-XXXXXX", command[200];
    NEED(mkdtemp(directory) != NULL);
    snprintf(command, sizeof command, "gcc -shared -fPIC -O1 -o %s/later.so -x c -", directory);
    FILE *compiler = popen(command, "w");
    NEED(compiler != NULL);
    fputs("long call(long n, long a, long b, long c) {\n"
          "    long result;\n"
          "    __asm__ volatile(\"syscall\" : \"=a\"(result) : \"a\"(n), \"D\"(a), \"S\"(b), \"d\"(c) : \"rcx\", \"r11\", \"memory\");\n"
          "    return result;\n"
          "}\n", compiler);
    int status = pclose(compiler);
    snprintf(command, sizeof command, "%s/later.so", directory);
    void *later = dlopen(command, RTLD_NOW);
    unlink(command);
    rmdir(directory);
    NEED(status == 0 && later != NULL);
    long (*call)(long, long, long, long) = dlsym(later, "call");
    int fd = accepted("A");
    char bytes[4];
    T(call(SYS_write, fd, (long)"hello", 5));
    tell("read A 5");
    tell("send A abc");
    T(call(SYS_read, fd, (long)bytes, 3));
    T(close(fd));
    tell("drain A");
}
#endif

/* By a handle of the C library, as scripting languages call it. */
CASE(functions_looked_up_by_a_handle) {
    void *library = dlopen("libc.so.6", RTLD_NOW);
    ssize_t (*its_send)(int, const void *, size_t, int) = dlsym(library, "send");
    ssize_t (*its_read)(int, void *, size_t) = dlsym(library, "read");
    long (*its_syscall)(long, ...) = dlsym(library, "syscall");
    int (*its_close)(int) = dlsym(library, "close");
    T(dlerror() == NULL);
    char bytes[4];
    int fd = accepted("A");
    T(its_send(fd, "hello", 5, MSG_NOSIGNAL));
    tell("read A 5");
    T(its_syscall(SYS_write, fd, "hi", 2));
    tell("read A 2");
    tell("send A abc");
    T(its_read(fd, bytes, 3));
    T(its_close(fd));
    tell("drain A");
    T(dlsym(library, "no_such_function") == NULL);
    T(dlerror() != NULL);
    T(dlsym(library, "qsort") == dlsym(RTLD_DEFAULT, "qsort"));
    T(dlerror() == NULL);
    T(dlsym(RTLD_NEXT, "send") == dlsym(RTLD_DEFAULT, "send"));
    T(dlsym(RTLD_DEFAULT, "CASE_of_nobody") == NULL);
}

CASE(vectors_at_no_position) {
    int fd = accepted("A");
    char one[4] = "", two[8] = "";
    struct iovec from[2] = {{"abc", 3}, {"defgh", 5}}, to[2] = {{one, 3}, {two, 5}};
    T(pwritev2(fd, from, 2, -1, 0));
    T(syscall(SYS_pwritev2, fd, from, 2L, -1L, -1L, 0L));
    tell("read A 16");
    tell("send A 12345678");
    T(await(fd, POLLIN));
    T(preadv2(fd, to, 1, -1, 0));
    T(syscall(SYS_preadv2, fd, to + 1, 1L, -1L, -1L, 0L));
    out("%s %s", one, two);
    T(preadv2(fd, to, 2, -1, RWF_NOWAIT));
    T(syscall(SYS_preadv2, fd, to, 2L, -1L, -1L, (long)RWF_NOWAIT));
    T(pwritev2(fd, from, 1, -1, RWF_NOWAIT | RWF_SYNC | RWF_DSYNC | RWF_HIPRI | RWF_APPEND));
    T(preadv2(fd, to, 2, -1, 0x40000000));
    T(pwritev2(fd, from, 2, -1, 0x40000000));
    T(preadv2(fd, to, 0, -1, 0x40000000));
    T(pwritev2(fd, from, 0, -1, 0));
    T(preadv2(fd, to, -1, -1, 0));
    T(preadv2(fd, NULL, 1, -1, 0));
    tell("read A 3");
    tell("shut A");
    T(preadv2(fd, to, 2, -1, 0));
    T(close(fd));
    T(preadv2(fd, to, 2, -1, 0));
}

CASE(vectors_at_a_position) {
    int fd = accepted("A");
    char bytes[4] = "";
    struct iovec from = {"abc", 3}, to = {bytes, 3};
    T(preadv2(fd, &to, 1, 0, 0));
    T(preadv2(fd, &to, 1, 7, RWF_NOWAIT));
    T(preadv2(fd, &to, 1, -2, 0));
    T(pwritev2(fd, &from, 1, 0, 0));
    T(pwritev2(fd, &from, 1, -2, 0));
    T(preadv(fd, &to, 1, 0));
    T(preadv(fd, &to, 1, -1));
    T(pwritev(fd, &from, 1, 3));
    T(pread(fd, bytes, 3, 0));
    T(pwrite(fd, bytes, 3, 0));
    T(syscall(SYS_preadv2, fd, &to, 1L, 5L, 0L, 0L));
    T(syscall(SYS_pwritev2, fd, &from, 1L, 5L, 0L, 0L));
    T(syscall(SYS_pread64, fd, bytes, 3L, 0L));
    T(syscall(SYS_pwrite64, fd, bytes, 3L, 0L));
    T(syscall(SYS_preadv, fd, &to, 1L, 0L, 0L));
    T(syscall(SYS_pwritev, fd, &from, 1L, 0L, 0L));
}

/* `writev` of nothing is nothing, `write` of nothing is an empty datagram. */
CASE(vectors_of_nothing) {
    int fd = socket(family, SOCK_DGRAM, 0), stream = accepted("A");
    struct name to = name_of(peer, atoi(tell("bind D")));
    struct iovec none[2] = {{"", 0}, {NULL, 0}};
    T(connect(fd, ADDRESS(to)));
    T(writev(fd, none, 2));
    T(pwritev2(fd, none, 2, -1, 0));
    T(send(fd, "first", 5, 0));
    tell("recvfrom D");
    signal(SIGPIPE, SIG_IGN);
    T(shutdown(stream, SHUT_WR));
    T(writev(stream, none, 2));
    T(write(stream, "", 0));
}

static void on_signal(int number) {
    out("signal %d", number);
}

CASE(waiting) {
    int fd = accepted("A");
    fd_set set;
    struct timespec long_ = {30, 0}, short_ = {0, 20000000}, none = {0, 0}, wrong = {0, 2000000000};
    FD_ZERO(&set);
    FD_SET(fd, &set);
    T(syscall(SYS_pselect6, fd + 1L, NULL, &set, NULL, NULL, NULL));
    T(FD_ISSET(fd, &set) != 0);
    T(syscall(SYS_pselect6, fd + 1L, &set, NULL, NULL, &short_, NULL));
    out("left %ld.%09ld, %d", (long)short_.tv_sec, short_.tv_nsec, FD_ISSET(fd, &set) != 0);
    FD_SET(fd, &set);
    T(syscall(SYS_pselect6, fd + 1L, &set, NULL, NULL, &none, NULL));
    FD_SET(fd, &set);
    T(syscall(SYS_pselect6, fd + 1L, &set, NULL, NULL, &wrong, NULL));
    /* A signal that waits is let in, and only while the call waits. */
    sigset_t blocked, open_;
    struct sigaction action = {.sa_handler = on_signal};
    sigemptyset(&open_);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    T(sigaction(SIGUSR1, &action, NULL));
    T(sigprocmask(SIG_BLOCK, &blocked, NULL));
    T(raise(SIGUSR1));
    struct {
        const sigset_t *set;
        size_t len;
    } mask = {&open_, 8}, odd = {&open_, 7};
    T(syscall(SYS_pselect6, fd + 1L, &set, NULL, NULL, &long_, &odd));
    T(syscall(SYS_pselect6, fd + 1L, &set, NULL, NULL, &long_, &mask));
    out("some is left: %d", long_.tv_sec < 30 && long_.tv_sec > 0);
    struct pollfd one = {fd, POLLIN, 0};
    T(raise(SIGUSR1));
    long_ = (struct timespec){30, 0};
    T(syscall(SYS_ppoll, &one, 1L, &long_, &open_, 7L));
    T(syscall(SYS_ppoll, &one, 1L, &long_, &open_, 8L));
    out("some is left: %d", long_.tv_sec < 30 && long_.tv_sec > 0);
    short_ = (struct timespec){0, 20000000};
    T(syscall(SYS_ppoll, &one, 1L, &short_, NULL, 8L));
    out("left %ld.%09ld", (long)short_.tv_sec, short_.tv_nsec);
    tell("send A abc");
    T(syscall(SYS_ppoll, &one, 1L, NULL, NULL, 0L));
    out("events %x", one.revents);
    FD_SET(fd, &set);
    T(syscall(SYS_pselect6, fd + 1L, &set, NULL, NULL, NULL, NULL));
    T(FD_ISSET(fd, &set) != 0);
}

#ifdef SYS_select
CASE(waiting_as_of_old) {
    int fd = accepted("A");
    fd_set set;
    struct timeval short_ = {0, 20000};
    FD_ZERO(&set);
    FD_SET(fd, &set);
    T(syscall(SYS_select, fd + 1L, &set, NULL, NULL, &short_));
    out("left %ld.%06ld, %d", (long)short_.tv_sec, (long)short_.tv_usec, FD_ISSET(fd, &set) != 0);
    tell("send A abc");
    FD_SET(fd, &set);
    T(syscall(SYS_select, fd + 1L, &set, NULL, NULL, NULL));
    T(FD_ISSET(fd, &set) != 0);
    T(syscall(SYS_epoll_create, 0L));
    int waits = T(syscall(SYS_epoll_create, 1L));
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 7};
    T(syscall(SYS_epoll_ctl, waits, (long)EPOLL_CTL_ADD, fd, &event));
    T(syscall(SYS_epoll_wait, waits, &event, 1L, (long)SOON_MS));
    out("%x %u", event.events, event.data.u32);
}
#endif

CASE(children) {
    int fd = accepted("A");
    pid_t child = syscall(SYS_clone, (long)SIGCHLD, NULL, NULL, NULL, NULL);
    if (child == 0) {
        char bytes[4];
        T(recv(fd, bytes, 3, MSG_WAITALL));
        T(send(fd, "from the child", 14, 0));
        syscall(SYS_exit_group, 3L);
    }
    tell("send A abc");
    wait_for(child);
    T(send(fd, "+", 1, 0));
    tell("read A 15");
#ifdef SYS_fork
    child = syscall(SYS_fork);
    if (child == 0) {
        T(shutdown(fd, SHUT_WR));
        syscall(SYS_exit_group, 0L);
    }
    wait_for(child);
#endif
    T(close(fd));
    tell("drain A");
}

CASE(exit_with_unsent_data) {
    static char large[250000];
    int port = atoi(tell("listen L"));
    pid_t child = fork();
    if (child == 0) {
        struct name to = name_of(peer, port);
        int fd = socket(family, SOCK_STREAM, 0);
        T(connect(fd, ADDRESS(to)));
        T(send(fd, large, sizeof large, 0));
        syscall(SYS_exit_group, 0L);
    }
    wait_for(child);
    tell("accept L A");
    tell("drain A");
}

CASE(new_images) {
    int fd = accepted("A"), file = open(program, O_PATH | O_CLOEXEC);
    char role[16];
    snprintf(role, sizeof role, "say-%d", fd);
    char *arguments[] = {(char *)program, "started", role, NULL};
    NEED(file >= 0);
    for (int way = 0; way < 3; way++) {
        pid_t child = fork();
        if (child == 0) {
            if (way == 0) syscall(SYS_execve, program, arguments, environ);
            if (way == 1) syscall(SYS_execveat, (long)AT_FDCWD, program, arguments, environ, 0L);
            if (way == 2) syscall(SYS_execveat, file, "", arguments, environ, (long)AT_EMPTY_PATH);
            _exit(6);
        }
        wait_for(child);
    }
    T(syscall(SYS_execve, "/nonexistent/program", arguments, environ));
    T(close(fd));
    tell("drain A");
}

/* Flags of the file are the kernel's to keep and to refuse. */
CASE(flags_of_the_file) {
    int fd = socket(family, SOCK_STREAM, 0);
    struct name to = name_of(peer, atoi(tell("listen F")));
    T(connect(fd, ADDRESS(to)));
    T(fcntl(fd, F_SETFL, O_APPEND | O_NONBLOCK));
    T(fcntl(fd, F_GETFL));
    T(fcntl(fd, F_SETFL, O_DIRECT));
    T(fcntl(fd, F_GETFL));
    T(fcntl(fd, F_SETFL, 0));
    T(fcntl(fd, F_GETFL));
}
