/* The C library's streams on sockets: `fdopen`, standard streams that are connections, flushing, errors, ends. */
#include "compare.h"
#include <pty.h>
#include <stdarg.h>
#include <stdio_ext.h>
#include <wchar.h>

static void wait_for(pid_t child) {
    int status = -1;
    NEED(waitpid(child, &status, 0) == child);
    out("child ended with %x", status);
}

/* What a stream says of itself. */
static void told(FILE *stream) {
    out("eof %d error %d", feof(stream) != 0, ferror(stream) != 0);
}

static FILE *stream_of(int fd, const char *mode) {
    FILE *stream = fdopen(fd, mode);
    NEED(stream != NULL);
    return stream;
}

/* Roles of a program whose standard streams are a connection. */
static int started(const char *role) {
    char line[64];
    if (!strcmp(role, "lines")) {
        while (fgets(line, sizeof line, stdin)) printf("got %s", line);
        fprintf(stderr, "unbuffered %d\n", feof(stdin) != 0);
        printf("flushed by exit");
        return 0;
    }
    if (!strcmp(role, "numbers")) {
        int a, b;
        while (scanf("%d %d", &a, &b) == 2) {
            printf("%d\n", a + b);
            fflush(stdout);
        }
        errno = ENOENT;
        perror("perror");
        puts("puts");
        putchar('c');
        exit(0);
    }
    if (!strcmp(role, "wide")) {
        wprintf(L"%ls\n", L"wide");
        wint_t c = getwc(stdin);
        wprintf(L"%lc\n", c);
        return 0;
    }
    if (!strcmp(role, "large")) {
        static char block[70000];
        size_t total = 0, n;
        while ((n = fread(block, 1, sizeof block, stdin)) > 0) total += n;
        for (int i = 0; i < 10; i++) fwrite(block, 1, sizeof block, stdout);
        printf("%zu", total);
        return 0;
    }
    if (!strcmp(role, "quick")) {
        printf("never seen");
        _exit(0);
    }
    if (!strcmp(role, "daemon")) {
        printf("before");
        fflush(stdout);
        if (daemon(0, 0) < 0) return 7;
        printf("never seen");
        return 0;
    }
    if (!strcmp(role, "terminal")) {
        int terminal;
        pid_t child = forkpty(&terminal, NULL, NULL, NULL);
        if (child == 0) {
            _exit(write(1, "tty", 3) == 3 && isatty(0) ? 0 : 8);
        }
        ssize_t n = read(terminal, line, sizeof line);
        int status = -1;
        waitpid(child, &status, 0);
        printf("%zd %.3s %x", n, line, status);
        return 0;
    }
    if (!strcmp(role, "again")) {
        printf("before");
        fflush(stdout);
        execl(program, program, "started", "lines", NULL);
    }
    return 9;
}

/* A program with a connection for its standard streams; the other host calls its end A. */
static pid_t start(const char *role) {
    int fd = accepted("A");
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < 3; i++) dup2(fd, i);
        close(fd);
        execl(program, program, "started", role, NULL);
        _exit(6);
    }
    NEED(close(fd) == 0);
    return child;
}

CASE(standard_streams) {
    pid_t child = start("lines");
    tell("line A one");
    tell("send A two");
    tell("shut A");
    tell("read A 43");
    tell("drain A");
    wait_for(child);
}

CASE(standard_streams_after_another_exec) {
    pid_t child = start("again");
    tell("read A 6");
    tell("shut A");
    tell("read A 28");
    tell("drain A");
    wait_for(child);
}

CASE(standard_streams_of_a_daemon) {
    pid_t child = start("daemon");
    tell("read A 6");
    tell("drain A");
    wait_for(child);
}

CASE(standard_streams_of_a_terminal) {
    pid_t child = start("terminal");
    tell("read A 7");
    tell("drain A");
    wait_for(child);
}

CASE(put_under_a_stream) {
    int fd = accepted("A");
    pid_t child = fork();
    if (child == 0) {
        FILE *stream = fopen("/dev/null", "w");
        NEED(stream != NULL && dup2(fd, fileno(stream)) >= 0 && close(fd) == 0);
        fprintf(stream, "flushed by exit");
        exit(0);
    }
    NEED(close(fd) == 0);
    tell("read A 15");
    tell("drain A");
    wait_for(child);
}

CASE(numbers) {
    pid_t child = start("numbers");
    tell("line A 1 2");
    tell("shut A");
    tell("read A 42");
    tell("drain A");
    wait_for(child);
}

CASE(wide_characters) {
    pid_t child = start("wide");
    tell("send A x");
    tell("read A 7");
    tell("drain A");
    wait_for(child);
}

CASE(large_amounts) {
    pid_t child = start("large");
    tell("fill A 300000");
    tell("shut A");
    tell("read A 700000");
    tell("read A 6");
    tell("drain A");
    wait_for(child);
}

CASE(without_flushing) {
    pid_t child = start("quick");
    tell("drain A");
    wait_for(child);
}

CASE(opened_on_a_connection) {
    int fd = accepted("A");
    FILE *stream = stream_of(fd, "r+");
    T(fileno(stream) == fd);
    T(fileno_unlocked(stream) == fd);
    char line[32] = "";
    tell("line A hello");
    T(fgets(line, sizeof line, stream) == line);
    out("%s", line);
    /* Both directions of one stream need a call between them. */
    T(fseek(stream, 0, SEEK_CUR));
    T(ftell(stream));
    T(fprintf(stream, "%s %d %c\n", "answer", 42, 'c'));
    T(__fpending(stream));
    T(fflush(stream));
    tell("read A 12");
    T(fputs("closed", stream) >= 0);
    T(fclose(stream));
    T(fcntl(fd, F_GETFD));
    tell("drain A");
}

CASE(two_streams) {
    int fd = connected("A");
    FILE *in = stream_of(fd, "r"), *to = stream_of(dup(fd), "w");
    tell("line A word");
    char word[16] = "";
    T(fscanf(in, "%15s", word));
    T(fprintf(to, "<%s>", word));
    T(fclose(to));
    tell("read A 6");
    T(getc(in));
    T(ungetc('u', in));
    T(getc(in));
    T(fputs("x", in));
    told(in);
    T(fclose(in));
    tell("drain A");
}

CASE(buffering) {
    int fd = accepted("A");
    FILE *stream = stream_of(fd, "w");
    T(setvbuf(stream, NULL, _IOLBF, 100));
    fputs("half", stream);
    T(__fpending(stream));
    fputs(" line\n", stream);
    tell("read A 10");
    T(setvbuf(stream, NULL, _IONBF, 0));
    fputs("at once", stream);
    tell("read A 7");
    T(fclose(stream));
    tell("drain A");
}

CASE(opened_before_it_is_connected) {
    int port = atoi(tell("listen L"));
    int fd = socket(family, SOCK_STREAM, 0);
    FILE *stream = stream_of(fd, "r+");
    struct name to = name_of(peer, port);
    T(connect(fd, ADDRESS(to)));
    tell("accept L A");
    fputs("later", stream);
    T(fflush(stream));
    tell("read A 5");
    T(fclose(stream));
    tell("drain A");
}

CASE(ends) {
    int fd = accepted("A");
    FILE *stream = stream_of(fd, "r");
    tell("send A no-newline");
    tell("shut A");
    char line[32] = "";
    T(fgets(line, sizeof line, stream) == line);
    out("%s", line);
    told(stream);
    T(fgets(line, sizeof line, stream) == NULL);
    told(stream);
    clearerr(stream);
    T(getc(stream));
    told(stream);
    T(fclose(stream));
}

CASE(reset) {
    int fd = accepted("A");
    FILE *stream = stream_of(fd, "r+");
    tell("reset A");
    T(await(fd, POLLIN) > 0);
    T(getc(stream));
    told(stream);
    clearerr(stream);
    signal(SIGPIPE, SIG_IGN);
    T(fputs("gone", stream) >= 0);
    T(fflush(stream));
    told(stream);
    T(fclose(stream));
}

static int pipes;

static void on_pipe(int number) {
    pipes += number == SIGPIPE;
}

CASE(broken_pipe) {
    int fd = accepted("A");
    FILE *stream = stream_of(fd, "w");
    signal(SIGPIPE, on_pipe);
    T(shutdown(fd, SHUT_WR));
    T(fputs("x", stream) >= 0);
    T(fclose(stream));
    T(pipes);
    tell("drain A");
}

CASE(without_waiting) {
    int fd = accepted("A");
    nonblock(fd);
    FILE *stream = stream_of(fd, "r");
    T(getc(stream));
    told(stream);
    clearerr(stream);
    tell("send A x");
    T(await(fd, POLLIN));
    T(getc(stream));
    told(stream);
    T(fclose(stream));
}

CASE(printed_to_a_descriptor) {
    int fd = accepted("A");
    T(dprintf(fd, "%d %s %.2f %c %ld %d %d %s|", 1, "two", 3.5, '4', 5L, 6, 7, "eight"));
    tell("read A 25");
    T(dprintf(fd, "plain|"));
    tell("read A 6");
    T(dprintf(900, "nothing"));
    signal(SIGPIPE, SIG_IGN);
    T(shutdown(fd, SHUT_WR));
    T(dprintf(fd, "nothing"));
}

CASE(opened_anew) {
    int fd = accepted("A");
    FILE *stream = stream_of(fd, "w");
    fputs("to the peer", stream);
    stream = freopen("/dev/null", "w", stream);
    T(fileno(stream) == fd);
    T(fputs("to nobody", stream) >= 0);
    T(fflush(stream));
    tell("drain A");
    T(fclose(stream));
}

CASE(forked) {
    int fd = accepted("A");
    FILE *stream = stream_of(fd, "w");
    fputs("twice ", stream);
    pid_t child = fork();
    if (child == 0) exit(0);
    wait_for(child);
    T(fclose(stream));
    tell("read A 12");
    tell("drain A");
}

static void on_signal(int number) {
    (void)number;
}

static FILE *reading;

static void *read_line(void *nothing) {
    (void)nothing;
    char line[16];
    return fgets(line, sizeof line, reading);
}

CASE(interrupted) {
    int fd = accepted("A");
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGALRM, &action, NULL);
    FILE *stream = stream_of(fd, "r");
    ualarm(50000, 0);
    T(getc(stream));
    told(stream);
    T(fclose(stream));
}

CASE(cancelled) {
    reading = stream_of(accepted("A"), "r");
    pthread_t thread;
    NEED(pthread_create(&thread, NULL, read_line, NULL) == 0);
    /* Its lock shows that it is in the call. */
    while (ftrylockfile(reading) == 0) {
        funlockfile(reading);
        sched_yield();
    }
    T(pthread_cancel(thread));
    void *result;
    T(pthread_join(thread, &result));
    T(result == PTHREAD_CANCELED);
    T(ftrylockfile(reading));
    funlockfile(reading);
    tell("line A still");
    char line[16] = "";
    T(fgets(line, sizeof line, reading) == line);
    out("%s", line);
    T(fclose(reading));
    tell("drain A");
}
