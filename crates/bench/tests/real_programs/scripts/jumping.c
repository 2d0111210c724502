/* Jumps out of getaddrinfo by siglongjmp from a handler that blocks all signals, and cancels a thread in it; then does
 * what could suffer: threads, processes, look-ups of files, connections.
 *
 *   jumping ADDRESS PORT     an echo server of the other host, whose name server does not answer
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                                        \
    do {                                                                                   \
        if (!(what)) {                                                                     \
            printf("line %d: %s: errno %d %s\n", __LINE__, #what, errno, strerror(errno)); \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

extern char **environ;
static sigjmp_buf back;
static struct sockaddr_in peer;

static void jump(int number) { siglongjmp(back, number); }

static void look_up(void) {
    struct addrinfo *list = NULL;
    getaddrinfo("nobody.example.test", "80", NULL, &list);
}

static _Atomic pid_t looks_up;

static void *looking_up(void *unused) {
    looks_up = gettid();
    look_up();
    return unused;
}

/* Until the thread that looks up sleeps, again and again: a bounded spin comes before each sleep. */
static void await_sleep(void) {
    for (int in_a_row = 0; in_a_row < 5; usleep(10000)) {
        char name[64], text[512] = "";
        snprintf(name, sizeof name, "/proc/self/task/%d/stat", looks_up);
        FILE *file = fopen(name, "r");
        char *state = file && fgets(text, sizeof text, file) ? strrchr(text, ')') : NULL;
        if (file) fclose(file);
        in_a_row = state && state[2] == 'S' ? in_a_row + 1 : 0;
    }
}

static void *nothing(void *given) { return given; }

static void goes_on(void) {
    pthread_t thread;
    void *result;
    CHECK(pthread_create(&thread, NULL, nothing, &peer) == 0);
    CHECK(pthread_join(thread, &result) == 0 && result == &peer);
    pid_t child;
    char *arguments[] = {"true", NULL};
    CHECK(posix_spawnp(&child, "true", NULL, NULL, arguments, environ) == 0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    child = fork();
    if (child == 0) _exit(7);
    CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && connect(fd, (void *)&peer, sizeof peer) == 0);
    CHECK(write(fd, "hello", 5) == 5);
    char answer[5];
    for (ssize_t got = 0, more; got < 5; got += more) CHECK((more = read(fd, answer + got, 5 - got)) > 0);
    CHECK(memcmp(answer, "hello", 5) == 0 && close(fd) == 0);
}

/* With another depth of the stack than the last one. */
static __attribute__((noinline)) void jumped_out_of(int depth) {
    volatile char room[512];
    room[0] = depth;
    if (depth > 0) {
        jumped_out_of(depth - 1);
        room[1] = room[0];
        return;
    }
    if (sigsetjmp(back, 1) == 0) {
        ualarm(100000, 0);
        look_up();
        CHECK(!"the look-up came back");
    }
    goes_on();
}

int main(int count, char **words) {
    CHECK(count == 3);
    peer = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(atoi(words[2]))};
    CHECK(inet_aton(words[1], &peer.sin_addr));
    struct sigaction action = {.sa_handler = jump};
    sigfillset(&action.sa_mask);
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    jumped_out_of(8);
    jumped_out_of(2);
    jumped_out_of(20);
    pthread_t thread;
    void *result;
    CHECK(pthread_create(&thread, NULL, looking_up, NULL) == 0);
    await_sleep();
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED);
    goes_on();
    /* What is written after a jump out of it is written as ever. */
    struct addrinfo *list = NULL;
    CHECK(getaddrinfo("localhost", "80", NULL, &list) == 0);
    freeaddrinfo(list);
    jumped_out_of(5);
    printf("all right\n");
    return 0;
}
