/* Programs that a shell starts: `system`, `popen` and `pclose`, with what POSIX says of them, and sockets that go on there. */
#include "compare.h"

/* What a shell starts: it has standard streams, or numbers. */
static int started(const char *role) {
    char bytes[32] = "";
    int fd = atoi(strchr(role, '-') + 1);
    case_name = role;
    if (!strncmp(role, "answer", 6)) {
        /* As a program of CGI: it reads the request and writes to the connection, which was left open for it. */
        long n = recv(fd, bytes, sizeof bytes, 0);
        dprintf(2, "%s: asked %.*s\n", role, (int)n, bytes);
        return send(fd, "answered", 8, 0) == 8 ? 7 : 9;
    }
    if (!strncmp(role, "signals", 7)) {
        /* By name: what is ignored and what is blocked in the child. */
        static const int signals[] = {SIGINT, SIGQUIT, SIGCHLD, SIGUSR1};
        sigset_t blocked;
        sigprocmask(SIG_BLOCK, NULL, &blocked);
        for (int i = 0; i < 4; i++) {
            struct sigaction action;
            sigaction(signals[i], NULL, &action);
            dprintf(2, "%s: %s is%s%s\n", role, sigabbrev_np(signals[i]), action.sa_handler == SIG_IGN ? " ignored" : "",
                    sigismember(&blocked, signals[i]) ? " blocked" : "");
        }
    }
    return 0;
}

/* The command that starts this program in a role, behind some words of the shell's. */
static const char *command(const char *before, const char *role, int fd) {
    static char text[512];
    snprintf(text, sizeof text, "%s %s started %s-%d", before, program, role, fd);
    return text;
}

CASE(system_leaves_sockets_open) {
    int fd = accepted("A");
    NEED(dup2(1, 2) == 2);
    tell("send A question");
    T(system(command("", "answer", fd)));
    tell("read A 8");
    tell("send A again");
    T(await(fd, POLLIN));
    T(system(command("exec", "answer", fd)));
    tell("read A 8");
    T(fcntl(fd, F_SETFD, FD_CLOEXEC));
    T(send(fd, "here", 4, 0));
    T(close(fd));
    tell("drain A");
}

CASE(standard_output_is_a_connection) {
    int fd = accepted("A"), kept = dup(1);
    tell("send A into");
    NEED(await(fd, POLLIN) && dup2(fd, 0) == 0 && dup2(fd, 1) == 1);
    int status = system("head -c 4; echo; echo out of");
    NEED(dup2(kept, 1) == 1);
    out("status %x", status);
    tell("read A 12");
    T(close(0));
    T(close(fd));
    tell("drain A");
}

CASE(what_system_says) {
    int fd = accepted("A");
    T(system(NULL));
    T(system("exit 3"));
    T(system("kill -9 $$"));
    T(system("kill -15 $$"));
    T(system("exec /nonexistent/program 2>/dev/null"));
    T(system("/nonexistent/program 2>/dev/null"));
    T(system(""));
    T(system("true"));
    T(close(fd));
    tell("drain A");
}

static volatile sig_atomic_t children, interrupts;

static void on_signal(int number) {
    children += number == SIGCHLD;
    interrupts += number == SIGINT;
}

CASE(signals_of_system) {
    int fd = accepted("A");
    NEED(dup2(1, 2) == 2);
    struct sigaction action = {.sa_handler = on_signal}, found;
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    T(sigaction(SIGCHLD, &action, NULL));
    T(sigaction(SIGINT, &action, NULL));
    T(sigprocmask(SIG_BLOCK, &blocked, NULL));
    /* One comes while the shell runs: it is for the shell. */
    T(system(command("kill -INT $PPID; exec", "signals", 0)));
    out("%d children, %d interrupts", children, interrupts);
    T(sigaction(SIGINT, NULL, &found));
    T(found.sa_handler == on_signal);
    T(sigprocmask(SIG_BLOCK, NULL, &blocked));
    T(sigismember(&blocked, SIGCHLD));
    /* What is ignored stays so. */
    signal(SIGQUIT, SIG_IGN);
    T(system(command("exec", "signals", 1)));
    T(sigaction(SIGQUIT, NULL, &found));
    T(found.sa_handler == SIG_IGN);
    /* A child of the program's own is not taken. */
    pid_t other = fork();
    if (other == 0) _exit(5);
    T(system("exit 1"));
    int status = -1;
    NEED(waitpid(other, &status, 0) == other);
    out("another child ended with %x", status);
    T(close(fd));
}

static void *in_system(void *result) {
    *(int *)result = system("read line; exit 4");
    return NULL;
}

/* The first of two threads makes the process deaf, the last lets it hear again. */
CASE(two_threads_in_system) {
    int fd = accepted("A"), ends[2], results[2] = {-1, -1};
    struct sigaction action = {.sa_handler = on_signal}, found;
    T(sigaction(SIGINT, &action, NULL));
    NEED(pipe2(ends, O_CLOEXEC) == 0 && dup2(ends[0], 0) == 0);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) NEED(pthread_create(&threads[i], NULL, in_system, &results[i]) == 0);
    do sigaction(SIGINT, NULL, &found);
    while (found.sa_handler != SIG_IGN);
    T(write(ends[1], "1\n", 2));
    T(write(ends[1], "2\n", 2));
    T(close(ends[1]));
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    out("%x %x", results[0], results[1]);
    T(sigaction(SIGINT, NULL, &found));
    T(found.sa_handler == on_signal);
    T(close(fd));
}

static void *for_ever(void *nothing) {
    system("echo $$; exec sleep 30");
    return nothing;
}

CASE(cancelled_in_system) {
    int fd = accepted("A"), ends[2], kept = dup(1);
    NEED(pipe2(ends, O_CLOEXEC) == 0 && dup2(ends[1], 1) == 1);
    pthread_t thread;
    NEED(pthread_create(&thread, NULL, for_ever, NULL) == 0);
    char text[32] = "";
    NEED(read(ends[0], text, sizeof text - 1) > 0);
    NEED(dup2(kept, 1) == 1);
    T(pthread_cancel(thread));
    void *result;
    T(pthread_join(thread, &result));
    T(result == PTHREAD_CANCELED);
    T(kill(atoi(text), 0));
    T(close(fd));
}

static void *cancels_itself(void *status) {
    pthread_cancel(pthread_self());
    *(int *)status = system("exit 3");
    return NULL;
}

/* The shell is started, and killed. */
CASE(cancelled_before_system) {
    int fd = accepted("A"), status = -1;
    pthread_t thread;
    NEED(pthread_create(&thread, NULL, cancels_itself, &status) == 0);
    void *result;
    T(pthread_join(thread, &result));
    T(result == PTHREAD_CANCELED);
    T(status);
    T(wait(NULL));
    T(system("exit 2"));
    T(close(fd));
}

/* Not what compilers expect of a stream of `popen`. */
static int (*volatile closing)(FILE *) = fclose;

CASE(popen_reads_and_writes) {
    int fd = accepted("A");
    char line[64] = "";
    NEED(dup2(1, 2) == 2);
    FILE *stream = popen("echo read; exit 6", "r");
    NEED(stream);
    T(fileno(stream) > fd);
    T(fcntl(fileno(stream), F_GETFD));
    T(fgets(line, sizeof line, stream) == line);
    out("%s", line);
    T(fgets(line, sizeof line, stream) == NULL);
    T(pclose(stream));
    stream = popen("cat >&2", "we");
    NEED(stream);
    T(fcntl(fileno(stream), F_GETFD));
    T(fprintf(stream, "popen_reads_and_writes: written\n"));
    T(pclose(stream));
    /* The connection is open in what is started, too. */
    tell("send A question");
    T(await(fd, POLLIN));
    stream = popen(command("", "answer", fd), "w");
    NEED(stream);
    T(pclose(stream));
    tell("read A 8");
    stream = popen("kill -9 $$", "r");
    T(closing(stream));
    T(pclose(popen("/nonexistent/program 2>/dev/null", "r")));
    T(pclose(popen("true", "w")));
    T(close(fd));
    tell("drain A");
}

CASE(popen_refuses) {
    static const char *const modes[] = {"", "rw", "x", "r+", "e", "wr"};
    int fd = accepted("A");
    for (int i = 0; i < 6; i++) {
        errno = 0;
        FILE *stream = popen("true", modes[i]);
        out("%s: %d %s", modes[i], stream != NULL, stream ? "" : strerrorname_np(errno));
        if (stream) pclose(stream);
    }
    T(close(fd));
}

/* A child does not keep a pipe of another one open. */
CASE(popen_twice) {
    int fd = accepted("A");
    FILE *first = popen("cat >/dev/null; exit 2", "w"), *second = popen("cat >/dev/null; exit 3", "w");
    NEED(first && second);
    T(pclose(first));
    T(pclose(second));
    T(close(fd));
}

CASE(popen_in_a_child) {
    int fd = accepted("A");
    FILE *stream = popen("echo told; exit 5", "r");
    NEED(stream);
    char line[8] = "";
    T(fgets(line, sizeof line, stream) == line);
    pid_t child = fork();
    if (child == 0) {
        /* It is no child of this one. */
        T(pclose(stream));
        _exit(0);
    }
    NEED(waitpid(child, NULL, 0) == child);
    T(pclose(stream));
    T(wait(NULL));
    T(close(fd));
}
